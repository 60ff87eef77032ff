"""A whole cluster inside the process of a test: real sockets on the loopback interface, data in a temporary folder.

    with LocalCluster() as cluster:
        producer = AsyncProducer(cluster.bootstrap)

For tests of programs that use ClyMQ: one broker serves in a fraction of a second. Each server has a thread and an event
loop of its own, so calls may come from any thread and with or without an event loop. They block; none takes long.

Who is killed says nothing more to anybody: connections break, leadership is not handed over, the session runs out. Who
is frozen does nothing at all until it is thawed. Who can serve no more by itself, for instance because its disk has
failed, is as if killed, and the log says why. Who is cut off from another has no connection with it: unlike in
`ProcessCluster`, both are told at once. Each connection is broken, and refused, by the one of the two that opens it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from clymq.cli.figures import process_totals
from clymq.clock import SystemClock
from clymq.config import load
from clymq.errors import ClymqError, ConnectFailed, InvalidRequest
from clymq.metadata.remote import RemoteStore
from clymq.node.broker import BrokerNode
from clymq.node.zkserver import ZkServerNode
from clymq.rpc.transport import Listener, TcpTransport, Transport, Wire
from clymq.storage.files import RealFiles
from clymq.testing.background import Background
from clymq.testing.leaders import LEADER_SECONDS_MAX, Leaders
from clymq.testing.opened import Opened

ZKSERVER: Final = "ZkServer0"
ANY_PORT: Final = "127.0.0.1:0"


class LocalCluster(Opened):
    """One zkserver, `ZkServer0`, with the store, and brokers `Broker0`, ... `config`: settings of all, by name."""

    def __init__(self, brokers: int = 1, *, config: Mapping[str, object] | None = None) -> None:
        self.brokers = tuple(f"Broker{number}" for number in range(brokers))
        self._config = load(flags=config)
        self._servers: dict[str, _Server] = {}
        self._addresses: dict[str, str] = {}
        # Who must not connect to which address. The servers' threads only ask whether a pair is in it.
        self._cuts: set[tuple[str, str]] = set()
        self._leaders = Leaders()
        self.folder = Path()

    # --- Begin and end ---

    def open(self) -> None:
        """Start every server; if that fails, nothing is left."""
        self.folder = Path(tempfile.mkdtemp(prefix="clymq-"))
        self._addresses.clear()
        self._cuts.clear()
        try:
            self.start(ZKSERVER)
            for name in self.brokers:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every server that runs, at once, and leave nothing behind."""
        try:
            # All of them first: nobody waits for one that is ending as well.
            for server in self._servers.values():
                server.silence()
            for name in list(self._servers):
                self.kill(name)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- What there is ---

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each server is reached; one that is not running had it there, and will again."""
        return dict(self._addresses)

    @property
    def bootstrap(self) -> str:
        """All addresses, as clients want them."""
        return ",".join(self._addresses.values())

    def leader(self, topic: str, partition: str, *, seconds_max: float = LEADER_SECONDS_MAX) -> str:
        """Return who leads a partition, by the word of the brokers; wait until one of them does."""
        running = {name: self._addresses[name] for name in self.brokers if name in self._servers}
        background = Background("clymq-leader")
        background.start()
        try:
            finding = self._leaders.find(running, self.bootstrap, topic, partition, seconds_max=seconds_max)
            return background.run(finding, seconds_max=2 * seconds_max)
        finally:
            background.close()

    # --- What may happen ---

    def start(self, name: str) -> None:
        """Start a server, where it was and with the data that it had, and wait until it serves."""
        assert name not in self._servers, f"{name} is running"
        make = self._zkserver if name == ZKSERVER else self._broker
        server = _Server(name, make, self._config.fsync_threads, self._cuts)
        server.start(self._addresses.get(name, ANY_PORT))
        self._servers[name] = server
        self._addresses[name] = server.address

    def stop(self, name: str) -> None:
        """Let a server stop cleanly."""
        self._servers[name].thaw()
        self._servers.pop(name).stop()

    def kill(self, name: str) -> None:
        """End a server without a word to anybody; one that is not running stays so."""
        server = self._servers.pop(name, None)
        if server is not None:
            server.silence()
            server.stop()

    def freeze(self, name: str) -> None:
        """Let a server stand still; it has come to a halt when this returns."""
        self._servers[name].freeze()

    def thaw(self, name: str) -> None:
        """Let a frozen server go on; no change if it was not frozen."""
        self._servers[name].thaw()

    def partition(self, one: str, other: str) -> None:
        """Cut two servers off from each other, also if one is started again; a frozen one wakes up to that."""
        for name in (one, other):
            if name not in self._addresses:
                raise InvalidRequest(f"there is no server {name}, only {', '.join(self._addresses)}")
        if one == other:
            raise InvalidRequest(f"{one} cannot be cut off from itself")
        # BEFORE connections are broken, so that none is made in the place of another.
        self._cuts.update({(one, self._addresses[other]), (other, self._addresses[one])})
        for name in (one, other):
            if name in self._servers:
                self._servers[name].obey_cuts()

    def heal(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()

    # --- Servers ---

    def _zkserver(self, name: str, transport: Transport, files: RealFiles) -> ZkServerNode:
        del files  # the store has a file of its own
        # In a folder and not in memory: a zkserver that is started again has what it had.
        folder = str(self.folder / name)
        return ZkServerNode.embedded(name, folder, transport, SystemClock(), self._config, random.SystemRandom())

    def _broker(self, name: str, transport: Transport, files: RealFiles) -> BrokerNode:
        clock, chance, zkserver = SystemClock(), random.SystemRandom(), self._addresses[ZKSERVER]
        return BrokerNode(
            name,
            str(self.folder / name),
            store=lambda: RemoteStore(transport, zkserver, clock, self._config, name=name, chance=chance.random),
            transport=transport,
            files=files,
            clock=clock,
            config=self._config,
            chance=chance,
            totals=process_totals,  # of all of them together: they are one process
        )


class _Node(Protocol):
    """What runs in a server: as the commands of `clymq.cli` run it."""

    @property
    def address(self) -> str:
        """Where it listens."""
        ...

    async def start(self, address: str) -> None:
        """Serve; when this returns, it does."""
        ...

    async def failed(self) -> ClymqError:
        """Wait until it can serve no more, and say why."""
        ...

    async def close(self) -> None:
        """Stop cleanly."""
        ...


class _Server:
    """One server on a thread of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[str, Transport, RealFiles], _Node],
        sync_threads: int,
        cuts: Set[tuple[str, str]],
    ) -> None:
        self._name = name
        self._make = make
        self._background = Background(f"clymq-{name}")
        self._transport = _BreakableTransport(name, cuts)
        self._files = RealFiles(sync_threads=sync_threads)
        self._node: _Node | None = None
        self._thawed: threading.Event | None = None
        self._watching: asyncio.Task[None] | None = None
        self.address = ""

    def start(self, address: str) -> None:
        self._background.start()
        try:
            self.address = self._background.run(self._start(address))
        except BaseException:
            self._end()
            raise

    async def _start(self, address: str) -> str:
        self._node = self._make(self._name, self._transport, self._files)
        await self._node.start(address)
        self._watching = asyncio.create_task(self._die_with(self._node))
        return self._node.address

    async def _die_with(self, node: _Node) -> None:
        """End as its process would if the node can serve no more: it must not only look alive."""
        await node.failed()
        self._transport.is_muted = True
        self._transport.break_connections()

    def stop(self) -> None:
        try:
            self._background.run(self._stop())
        finally:
            self._end()

    async def _stop(self) -> None:
        assert self._node is not None
        await self._node.close()

    def _end(self) -> None:
        self._background.close()
        self._files.close()

    def silence(self) -> None:
        """Let it say nothing from now on, and hear nothing; a frozen one wakes up to that."""
        self._transport.is_muted = True
        self.thaw()
        self._background.run(self._break_connections())

    def obey_cuts(self) -> None:
        """Let it have no connection that is cut; a frozen one wakes up to that."""
        if self._thawed is None:
            self._background.run(self._break_connections())

    async def _break_connections(self) -> None:
        self._transport.break_connections()

    def freeze(self) -> None:
        if self._thawed is None:
            halted, self._thawed = threading.Event(), threading.Event()
            self._background.call(self._halt, halted, self._thawed)
            halted.wait()

    def thaw(self) -> None:
        thawed, self._thawed = self._thawed, None
        if thawed is not None:
            thawed.set()

    def _halt(self, halted: threading.Event, thawed: threading.Event) -> None:
        """Runs on the server's own event loop, so that nothing else does."""
        halted.set()
        thawed.wait()
        self._transport.break_connections()


class _BreakableTransport:
    """TCP that can fall silent for good, or be cut off from some addresses."""

    def __init__(self, name: str, cuts: Set[tuple[str, str]]) -> None:
        self.is_muted = False
        self._name = name
        self._cuts = cuts
        self._inner = TcpTransport()
        self._listeners: list[Listener] = []
        self._accepted: WeakSet[Wire] = WeakSet()
        self._opened: WeakSet[Wire] = WeakSet()

    async def listen(self, address: str, accept: Callable[[Wire], None]) -> Listener:
        def accepted(wire: Wire) -> None:
            self._accepted.add(wire)
            accept(wire)

        listener = await self._inner.listen(address, accepted)
        self._listeners.append(listener)
        return listener

    async def connect(self, address: str, timeout_ms: float) -> Wire:
        self._check(address)
        wire = await self._inner.connect(address, timeout_ms)
        self._opened.add(wire)
        try:
            self._check(address)
        except ConnectFailed:
            wire.abort()
            raise
        return wire

    def _check(self, address: str) -> None:
        if self.is_muted:
            raise ConnectFailed(f"cannot connect to {address}: this server was killed")
        if self._is_cut(address):
            raise ConnectFailed(f"cannot connect to {address}: {self._name} was cut off from it")

    def _is_cut(self, address: str) -> bool:
        return (self._name, address) in self._cuts

    def break_connections(self) -> None:
        """Break those that are cut; of a killed server all, and take no more. On the event loop that they belong to."""
        broken = [wire for wire in self._opened if self._is_cut(wire.address)]
        if self.is_muted:
            for listener in self._listeners:
                listener.close()
            broken = [*self._accepted, *self._opened]
        for wire in broken:
            wire.abort()
