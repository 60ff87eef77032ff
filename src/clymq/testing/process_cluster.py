"""A whole cluster of real processes: zkservers, brokers and, if asked for, a real ZooKeeper, alone or an ensemble.

    with ProcessCluster(brokers=3) as cluster:
        cluster.kill(cluster.leader("orders", "0"))         # or stop, freeze, thaw, partition, heal
        cluster.start("Broker0")

Servers are `ZkServer0`, ... and `Broker0`, ..., the store is `zookeeper`, or `zookeeper0`, ... where there are several.
Calls block, in `async with` too; those that take long (`start`, `stop`, `leader`) are run by `asyncio.to_thread` where
there is an event loop. A server that is started again has its address, its data and its name.

Where network namespaces are permitted each server has one, and any two can be cut off from each other. Elsewhere all
of them are on the loopback interface, where only the ways to ZooKeeper can be cut, which always lead through the test.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clymq.cli.stores import embedded_store, zookeeper_store
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import InvalidRequest
from clymq.metadata.store import MetadataStore
from clymq.rpc.transport import TcpTransport
from clymq.testing.background import Background
from clymq.testing.cluster import Cluster
from clymq.testing.leaders import LEADER_SECONDS_MAX, Leaders
from clymq.testing.namespaces import Namespaces
from clymq.testing.network import Kind
from clymq.testing.ports import free_ports
from clymq.testing.proxies import Proxies
from clymq.testing.store_cluster import StoreKind

ZOOKEEPER: Final = "zookeeper"
_COMMAND: Final = (sys.executable, "-c", "from clymq.cli.main import main; main()")


class ProcessCluster(Cluster):
    """See the module. `spares`: further brokers, that run when they are started. `zookeepers`: how many members."""

    def __init__(
        self,
        brokers: int = 3,
        zkservers: int = 1,
        store: StoreKind = "embedded",
        *,
        spares: int = 0,
        zookeepers: int = 1,
        folder: Path | None = None,
        network: Kind = "auto",
        config: Mapping[str, object] | None = None,
    ) -> None:
        """`config`: settings of all servers, by name."""
        assert zkservers == 1 or store == ZOOKEEPER, "the embedded store is held by one zkserver"
        self.store = store
        numbered = tuple(f"{ZOOKEEPER}{number}" for number in range(zookeepers))
        self.zookeepers = () if store != ZOOKEEPER else (ZOOKEEPER,) if zookeepers == 1 else numbered
        self._ensemble: str | None = None
        self.zkservers = tuple(f"ZkServer{number}" for number in range(zkservers))
        self.brokers = tuple(f"Broker{number}" for number in range(brokers))
        self._spares = tuple(f"Broker{number}" for number in range(brokers, brokers + spares))
        names = (*self.zkservers, *self.brokers)
        super().__init__(names, folder=folder, network=network, settings=config, clients=self._spares)
        self._ways: Proxies | None = None
        self._listening: dict[str, str] = {}
        self._leaders = Leaders()

    def command(self, name: str) -> Sequence[str]:
        """Return how a server is run: where it was the first time."""
        listen = self._listening.get(name, self.network.listen_address(name))
        arguments = ["--name", name, "--listen", listen, "--data", str(self.data(name))]
        if self._ways is not None:
            hosts = ",".join(self._ways.address(name, zookeeper) for zookeeper in self.zookeepers)
            arguments += ["--store", ZOOKEEPER, "--zookeeper", hosts]
        if name in self.zkservers:
            return (*self.program(name), "zkserver", *arguments)
        reached = ",".join(self.network.address(name, zkserver) for zkserver in self.zkservers)
        return (*self.program(name), "broker", *arguments, "--zkserver", reached)

    def program(self, name: str) -> Sequence[str]:
        """Return what runs a server, without its arguments; for those who run another one."""
        del name
        return _COMMAND

    # --- Begin and end ---

    def open(self) -> None:
        """Make the network and start everything; if that fails, nothing is left."""
        self._listening.clear()
        super().open()

    def close(self) -> None:
        """Kill what is running, and leave nothing behind but a folder that was given."""
        try:
            super().close()
        finally:
            ways, self._ways = self._ways, None
            self._ensemble = None
            if ways is not None:
                ways.close()

    def start(self, *names: str) -> None:
        """Start servers, each after those that it needs, and wait until all serve."""
        if self._ways is None:
            names = (*self.zookeepers, *names)
        stores = [name for name in names if name in self.zookeepers]
        if stores:
            self._start_zookeepers(stores)
        for kind in (self.zkservers, (*self.brokers, *self._spares)):
            chosen = [name for name in names if name in kind]
            if chosen:
                super().start(*chosen)
                self._listening.update({name: self.processes.address(name) for name in chosen})
        self.brokers += tuple(name for name in names if name in self._spares and name not in self.brokers)
        self._names = (*self.zkservers, *self.brokers)

    def _start_zookeepers(self, names: Sequence[str]) -> None:
        """They listen on the loopback interface of the test, which lets others through, each on a way of its own."""
        if self._ways is None:
            host = self.network.outside if isinstance(self.network, Namespaces) else "127.0.0.1"
            self._ways = Proxies([*self._places, *self.zookeepers], host=host, targets=self.zookeepers)
            self._ways.start()
            if len(self.zookeepers) > 1:
                ports = iter(free_ports(2 * len(self.zookeepers)))
                self._ensemble = ",".join(f"{one}:{next(ports)}" for one in ports)
        for name in names:
            self.processes.add(name, self._zookeeper_command(name))
        self.processes.start(*names)
        for name in names:
            self._ways.serves(name, self.processes.address(name))

    def _zookeeper_command(self, name: str) -> Sequence[str]:
        command = (*_COMMAND, "zookeeper", "--name", name, "--port", "0", "--data", str(self.data(name)))
        if self._ensemble is None:
            return command
        return (*command, "--ensemble", self._ensemble, "--member", str(self.zookeepers.index(name) + 1))

    def retire(self, name: str) -> None:
        """Count a broker among the spares from now on; it is not running."""
        assert name in self.brokers, f"{name} is none of {', '.join(self.brokers)}"
        assert not self.processes.is_running(name), f"{name} is running"
        self.brokers = tuple(each for each in self.brokers if each != name)
        self._spares = (*(each for each in self._spares if each != name), name)
        self._names = (*self.zkservers, *self.brokers)

    # --- What may happen ---

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Cut two servers off from each other; one way: only what the first sends to the second."""
        if self._ways is not None and not {one, other}.isdisjoint(self.zookeepers):
            self._ways.partition(one, other, one_way=one_way)
            return
        if self.network.kind != Namespaces.kind:
            raise InvalidRequest(f"servers cannot be cut off from each other here: {Namespaces.refusal()}")
        super().partition(one, other, one_way=one_way)

    def isolate(self, name: str) -> None:
        """Cut a server off from all others, the store among them; the test still reaches it."""
        super().isolate(name)
        for zookeeper in self.zookeepers:
            self.partition(name, zookeeper)

    def heal(self) -> None:
        """Undo all cuts."""
        super().heal()
        if self._ways is not None:
            self._ways.heal()

    # --- What can be asked ---

    @property
    def spares(self) -> tuple[str, ...]:
        """Brokers that were never started, or are retired."""
        return tuple(name for name in self._spares if name not in self.brokers)

    async def connect(self) -> MetadataStore:
        """Return a client of the store with a session of its own; close it."""
        config, clock = Config(), SystemClock()
        store: MetadataStore
        if self.store == ZOOKEEPER:
            running = [name for name in self.zookeepers if self.processes.is_running(name)]
            hosts = ",".join(self.processes.address(name) for name in running or self.zookeepers)
            store = zookeeper_store(hosts, clock, config, "/ClyMQ")
        else:
            address = self.processes.address(self.zkservers[0])
            store = embedded_store(address, TcpTransport(), clock, config, "test", random.SystemRandom())
        await store.open()
        return store

    def leader(self, topic: str, partition: str, *, seconds_max: float = LEADER_SECONDS_MAX) -> str:
        """Return who leads a partition, by the word of the brokers; wait until one of them does."""
        running = {name: self.processes.address(name) for name in self.brokers if self.processes.is_running(name)}
        background = Background("clymq-leader")
        background.start()
        try:
            finding = self._leaders.find(running, self.bootstrap, topic, partition, seconds_max=seconds_max)
            return background.run(finding, seconds_max=2 * seconds_max)
        finally:
            background.close()

    async def leading(self, topic: str, partition: str, *, seconds_max: float = LEADER_SECONDS_MAX) -> str:
        """Return the same without stopping the event loop."""
        return await asyncio.to_thread(self.leader, topic, partition, seconds_max=seconds_max)
