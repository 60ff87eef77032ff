"""The metadata stores as real processes: the embedded one in a zkserver, or a real ZooKeeper.

    async with StoreCluster("embedded") as cluster:
        store = await cluster.connect()

The test stands at the place `client` of the network, so that it can be cut off: `cluster.cut_off()`, `cluster.heal()`.
It reaches the store through a port that stays the same when the server comes back at another one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from clymq.clock import SystemClock
from clymq.config import load
from clymq.metadata.remote import RemoteStore
from clymq.metadata.store import MetadataStore
from clymq.rpc.transport import TcpTransport
from clymq.testing.cluster import Cluster

CLIENT: Final = "client"
_COMMAND: Final = (sys.executable, "-c", "from clymq.cli.main import main; main()")

StoreKind = Literal["embedded", "zookeeper"]


class StoreCluster(Cluster):
    """One server of the kind that was asked for; its name is `server`."""

    def __init__(
        self,
        store: StoreKind = "embedded",
        *,
        folder: Path | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.store = store
        self.server = "ZkServer0" if store == "embedded" else "zookeeper"
        self._config = load(flags=settings)
        # Of proxies, always: ZooKeeper listens on the loopback interface, and the test is to be cut off.
        super().__init__([self.server], folder=folder, network="proxies", settings=settings, clients=[CLIENT])

    def command(self, name: str) -> Sequence[str]:
        """Return how the server is run."""
        data = str(self.data(name))
        if self.store == "zookeeper":
            return (*_COMMAND, "zookeeper", "--port", "0", "--data", data)
        listen = self.network.listen_address(name)
        return (*_COMMAND, "zkserver", "--name", name, "--listen", listen, "--data", data)

    @property
    def address(self) -> str:
        """Where the test reaches the store, through all restarts."""
        return self.network.address(CLIENT, self.server)

    async def connect(self) -> MetadataStore:
        """Return a client of the store with a session of its own; close it."""
        store = self._client()
        await store.open()
        return store

    def cut_off(self) -> None:
        """Let the test not reach the store until `heal`."""
        self.partition(CLIENT, self.server)

    def _client(self) -> MetadataStore:
        clock = SystemClock()
        if self.store == "zookeeper":
            # Here and not above: kazoo comes with an extra, and the embedded store does without.
            from clymq.metadata.zookeeper.store import ZookeeperStore  # noqa: PLC0415

            return ZookeeperStore(self.address, clock, self._config)
        return RemoteStore(
            TcpTransport(), self.address, clock, self._config, name=CLIENT, chance=random.SystemRandom().random
        )
