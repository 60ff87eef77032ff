"""The metadata store that a command was told to use."""

from __future__ import annotations

import random

from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import ConfigError
from clymq.metadata.remote import RemoteStore
from clymq.metadata.store import MetadataStore
from clymq.rpc.transport import Transport


def zookeeper_store(hosts: str, clock: Clock, config: Config, root: str) -> MetadataStore:
    """Return a client of ZooKeeper."""
    try:
        # Here and not above: kazoo comes with an extra, and the embedded store does without.
        from clymq.metadata.zookeeper.store import ZookeeperStore  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError("store", "zookeeper", "needs kazoo: pip install 'clymq[zookeeper]'") from None
    return ZookeeperStore(hosts, clock, config, root=root)


def embedded_store(
    address: str, transport: Transport, clock: Clock, config: Config, name: str, chance: random.Random
) -> MetadataStore:
    """Return a client of the store that a zkserver serves."""
    return RemoteStore(transport, address, clock, config, name=name, chance=chance.random)
