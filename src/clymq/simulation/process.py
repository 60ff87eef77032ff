"""One process on one disk: the product's own driver, in a world where anything may happen to it.

What runs here is `RaftHost`, `RaftDriver` and `RaftPartition` as they are; the world is in what they are given. Time
passes through a clock that stops for a process that is paused and never rings for one that is dead; so do the ends of
syncs. The others are reached through the world's network. And the checkers watch: what is written, cut, committed and
said is told to them by the log, the machine and the links that the driver is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from clymq.clock import ManualClock, Timer
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.raft.groups import PairHeartbeat
from clymq.raft.messages import Message
from clymq.raft.node import RaftNode
from clymq.raft.state import Role
from clymq.record.batch import Batch
from clymq.record.layout import Buffer, Header
from clymq.replication.entries import Genesis
from clymq.replication.hosted import Hosted
from clymq.replication.machine import Answer, PartitionMachine
from clymq.replication.producers import Initialised
from clymq.replication.raft_host import RaftHost
from clymq.replication.raft_partition import RaftPartition, Stored
from clymq.replication.replica import Replica
from clymq.simulation.surroundings import Surroundings
from clymq.storage.block import Block
from clymq.storage.files import File, SyncDone
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles

FOLDER: Final = "/data/Block_1"
HOSTED: Final = "/data/hosted"
BLOCK: Final = "Block_1"
UID: Final = b"u" * 16
GROUP: Final = "g"

Handle = Callable[[Callable[[], None]], None]
Reply = Callable[[int | Initialised | ClymqError, bool], None]


class Disk:
    """A disk: what is on it, and who it is. A wiped one is another disk."""

    def __init__(self, files: MemoryFiles, identity: int) -> None:
        self.files = files
        self.identity = identity


class Process:
    """A process. When it has stopped, another one is made for the same disk."""

    def __init__(self, world: Surroundings, name: str, disk: Disk, incarnation: int, *, verify: bool) -> None:
        self.name = name
        self.world = world
        self.disk = disk
        self.incarnation = incarnation
        self.stopped = False
        self.paused = False
        self.wiped = disk.identity != world.founders[name]
        self._backlog: list[Callable[[], None]] = []
        self._role = Role.FOLLOWER
        self._clock = _ProcessClock(world.clock, self._handle)
        config = self._config()
        replica = self._open(config, verify=verify)
        self._machine = _WatchedMachine(self)
        self._host = RaftHost(
            name, clock=self._clock, config=config, links=self, draw=world.chance.randint, incarnation=incarnation
        )
        self._partition = RaftPartition(name, self._machine, self._clock, lambda begin: begin(Genesis(uid=UID)))
        self._partition.on_stop = self._out
        self._driver = self._host.add(GROUP, world.names, replica, self._machine, self._partition)
        self._partition.attach(self._driver)
        self._host.start()

    def _config(self) -> Config:
        options = self.world.options
        return Config(
            index_interval_bytes=1024,
            disk_reserve_bytes=0,
            set_aside_files_max=3,
            set_aside_bytes_max=65536,
            append_bytes_max=options.append_bytes_max,
            append_window=options.window_messages,
            checkpoint_ms_max=400,
        )

    def _open(self, config: Config, *, verify: bool) -> Replica:
        """Open what is on the disk, or make it; `verify`: a reader has met damage, so everything is read."""
        files = _ProcessFiles(self.disk.files, self._handle)
        handles = Handles(self.disk.files, config.open_files_max)
        replica = _WatchedReplica(files, FOLDER, config, handles, None)
        replica.watcher = self
        hosted = Hosted.open(self.disk.files, HOSTED)
        replica.begin(hosted, BLOCK, named_here=not self.wiped, start_offset=0, verify=verify)
        return replica

    # --- What checkers and the world see ---

    @property
    def node(self) -> RaftNode:
        """The core."""
        return self._driver.node

    @property
    def block(self) -> Block:
        """The log."""
        return self._driver.replica.block

    @property
    def lame(self) -> bool:
        """Whether it may neither vote nor run."""
        return self.node.lame

    @property
    def term(self) -> int:
        """The term it is in."""
        return self.node.term

    @property
    def applied(self) -> int:
        """How far its state machine has come."""
        return self._machine.applied

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry in its log."""
        return self.node.log.term_at(index)

    def committed_bytes(self) -> bytes:
        """Return what it takes for committed."""
        block = self.block
        return bytes(block.read_at(0, block.committed_position, block.committed_position))

    # --- Life ---

    def stop(self, reason: str) -> None:
        """Die. What it had not written is gone, what it had not synced may be."""
        if not self.stopped:
            self.stopped = True
            self.world.note(f"{self.name} stops: {reason}")

    def _out(self, error: ClymqError) -> None:
        """The driver gives up: over its disk it may, over itself it must not."""
        if error.__cause__ is not None and not isinstance(error.__cause__, ClymqError):
            raise error.__cause__
        self.stop(str(error))

    def pause(self) -> None:
        """Stand still, as under SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """Go on; what has piled up comes first."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for event in backlog:
            self._handle(event)

    def _handle(self, event: Callable[[], None]) -> None:
        """Let something happen to this process, if it is there and awake to see it."""
        if self.stopped:
            return
        if self.paused:
            self._backlog.append(event)
            return
        event()
        self._note_role()

    def _note_role(self) -> None:
        role = self.node.role
        if role is not self._role:
            self._role = role
            self.world.note(f"{self.name} is {role.value} in term {self.node.term}")
            self.world.checkers.role(self, role, self.node.term)

    # --- What happens to it ---

    def receive(self, message: Message, payload: bytes) -> None:
        """Take a message from another replica, with the bytes of its entries."""
        self._handle(lambda: self._receive(message, payload))

    def _receive(self, message: Message, payload: bytes) -> None:
        self.world.checkers.received(self, message)
        self._host.receive(GROUP, message, bytearray(payload))

    def receive_beat(self, beat: PairHeartbeat) -> None:
        """Take the heartbeats of another broker."""
        self._handle(lambda: self._host.receive_beat(beat))

    def push(self, data: bytes, reply: Reply) -> None:
        """Take a batch from a producer."""

        def begin() -> None:
            batch = Batch.parse(bytearray(data))
            batch.check()
            self._partition.push([batch], lambda outcome: _answer(reply, outcome))

        self._handle(lambda: self._answering(reply, begin))

    def init_producer(self, producer: bytes, reply: Reply) -> None:
        """Give a producer its next epoch."""

        def answer(outcome: Any) -> None:
            reply(outcome, False)

        self._handle(lambda: self._answering(reply, lambda: self._partition.init_producer(producer, answer)))

    def seal(self) -> bool:
        """End the block, if this replica leads and is ready; return whether it was asked to."""
        if self.stopped or self.paused or not self.node.is_ready or self.node.log.sealed:
            return False
        ignored: Reply = lambda outcome, duplicate: None  # noqa: E731
        self._handle(lambda: self._answering(ignored, lambda: self._partition.seal(lambda _: None)))
        return True

    def transfer(self, target: str) -> None:
        """Hand leadership over."""
        self._handle(lambda: None if self.name == target else self._transfer(target))

    def _transfer(self, target: str) -> None:
        if self.node.role is Role.LEADER:
            self._driver.transfer(target)

    def _answering(self, reply: Reply, begin: Callable[[], None]) -> None:
        try:
            begin()
        except ClymqError as error:
            reply(error, False)

    # --- Links ---

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        """Hand a message to the network."""
        assert group == GROUP
        self.world.checkers.sent(self, message)
        self.world.carry(message, b"".join(payload))

    def beat(self, peer: str, beat: PairHeartbeat) -> None:
        """Hand a heartbeat to the network."""
        for _, message in beat.beats:
            self.world.checkers.sent(self, message)
        self.world.carry_beat(self.name, peer, beat)

    # --- What checkers are told ---

    def written(self, block: Block, batches: Sequence[Batch], previous: int) -> None:
        """Batches were appended."""
        for batch in batches:
            self.world.checkers.appended(self, batch, previous)
            previous = batch.term

    def cut(self, block: Block, index: int) -> None:
        """Entries are about to go, from `index` on."""
        removed = [(header.index, header.term) for _, header in block.headers(index)]
        self.world.checkers.truncated(self, index - 1, removed)
        self.world.cut(self.name)

    def committed(self, index: int, batch: Header) -> None:
        """An entry is about to be applied."""
        assert isinstance(batch, Batch)
        self.world.checkers.committed(self, index, batch)


def _answer(reply: Reply, outcome: Sequence[Stored] | ClymqError) -> None:
    if isinstance(outcome, ClymqError):
        reply(outcome, False)
    else:
        (stored,) = outcome
        reply(stored.base_offset, stored.duplicate)


class _ProcessClock:
    """The world's time, as a process sees it."""

    def __init__(self, clock: ManualClock, handle: Handle) -> None:
        self._clock = clock
        self._handle = handle

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_ms, lambda: self._handle(callback))


class _ProcessFiles:
    """The disk's files; only the end of a sync is the process's to hear, if it still is there."""

    def __init__(self, files: MemoryFiles, handle: Handle) -> None:
        self._files = files
        self._handle = handle

    def sync_soon(self, file: File, done: SyncDone) -> None:
        self._files.sync_soon(file, lambda error: self._handle(lambda: done(error)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _WatchedMachine(PartitionMachine):
    """A machine that says what it applies."""

    def __init__(self, watcher: Process) -> None:
        super().__init__()
        self._watcher = watcher

    def apply(self, index: int, batch: Header) -> Answer:
        self._watcher.committed(index, batch)
        return super().apply(index, batch)


class _WatchedReplica(Replica):
    """A replica whose log says what is written to it and cut from it."""

    watcher: Process

    def _open_block(self, *, verify: bool) -> None:
        super()._open_block(verify=verify)
        block, watcher = self.block, self.watcher
        append, truncate = block.append, block.truncate

        def watched_append(batches: Sequence[Batch]) -> None:
            previous = block.last_term
            append(batches)
            watcher.written(block, batches, previous)

        def watched_truncate(index: int) -> None:
            watcher.cut(block, index)
            truncate(index)

        setattr(block, "append", watched_append)  # noqa: B010
        setattr(block, "truncate", watched_truncate)  # noqa: B010
