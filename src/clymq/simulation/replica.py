"""One replica: a process on one disk that performs what the core says, in the order that durability needs.

The driver of the product does the same on real sockets and disks. Here the disk may fail, the process may be stopped,
killed or started anew at any moment, and every step is told to the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from clymq.config import Config
from clymq.errors import ClymqError, CorruptBlock, NotLeader, StorageError
from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.log import RaftLog
from clymq.raft.messages import Append, Entry, Kind, Message
from clymq.raft.node import RaftNode, Ready
from clymq.raft.state import HardState, Limits, Role
from clymq.record.batch import Batch
from clymq.record.layout import Header
from clymq.replication.entries import BeLeader, Genesis, batch_of
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import Initialised
from clymq.simulation.surroundings import Surroundings
from clymq.storage.block import Block
from clymq.storage.flusher import Flusher
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles
from clymq.storage.replace import read_whole, replace
from clymq.storage.vote import Vote, VoteFile

CONFIG: Final = Config(
    index_interval_bytes=1024, disk_reserve_bytes=0, set_aside_files_max=3, set_aside_bytes_max=65536
)
FOLDER: Final = "/data/Block_1"
HOSTED: Final = "/data/hosted"
UID: Final = b"u" * 16
GROUP: Final = "g"
TICK_MS: Final = 30
CHECKPOINT_MS: Final = 400

Reply = Callable[[int | Initialised | ClymqError, bool], None]


class Disk:
    """A disk: what is on it, and who it is. A wiped one is another disk."""

    def __init__(self, files: MemoryFiles, identity: int) -> None:
        self.files = files
        self.identity = identity


class BlockStore:
    """The entries in a block file, as the core wants to see them."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def term(self, index: int) -> int:
        """Return the term of an entry."""
        return self._block.end_at(index).term

    def entries(self, start: int, end: int, bytes_max: int) -> Sequence[Entry]:
        """Return entries from `start` on."""
        chosen: list[Entry] = []
        size = 0
        for position, header in self._block.headers(start):
            size += header.length
            if header.index >= end or (chosen and size > bytes_max):
                break
            chosen.append(descriptor(position, header))
        return chosen


def descriptor(position: int, header: Header) -> Entry:
    """Return what the core knows of a batch."""
    return Entry(header.index, header.term, position, header.length, Kind.SEAL if header.is_seal else Kind.DATA)


class Replica:
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
        self._pending: dict[tuple[int, int], Batch] = {}
        self._waiting: dict[int, list[Reply]] = {}
        self._role = Role.FOLLOWER
        self._checkpoint_at = 0.0
        self._machine = PartitionMachine()
        self._open(verify=verify)
        self._coalescer = Coalescer(
            name,
            incarnation,
            heartbeat_ms=self.node._state.limits.heartbeat_ms,
            election_ms=self.node._state.limits.election_ms_min,
        )
        self._peers = tuple(each for each in world.names if each != name)
        self._coalescer.join(self._peers, self.now)
        world.clock.call_later(TICK_MS, self._tick)
        self._catch_up()

    # --- Starting ---

    def _open(self, *, verify: bool) -> None:
        """Open what is on the disk, or make it, if this disk was never asked to hold it before.

        `verify`: a reader has met damage, so everything is read.
        """
        files = self.disk.files
        if self.wiped:
            raise CorruptBlock(FOLDER, 0, "this disk was not named as a replica's")
        if read_whole(files, HOSTED) is None:
            if not Block.was_created(files, FOLDER):
                new = Handles(files, CONFIG.open_files_max)
                Block.create(files, FOLDER, start_offset=0, config=CONFIG, handles=new).close()
            VoteFile.open(files, f"{FOLDER}/vote", create=True).close()
            # BEFORE the first vote or ack: from now on an empty folder is a loss, not a beginning.
            replace(files, HOSTED, [b"Block_1"])
        handles = Handles(files, CONFIG.open_files_max)
        self.block = Block.open(files, FOLDER, config=CONFIG, handles=handles, verify=verify)
        self._vote = VoteFile.open(files, f"{FOLDER}/vote")
        lame = self.block.loss is not None or self._vote.damaged
        self.block.acknowledge_loss()
        self._flusher = Flusher(self.world.clock, CONFIG)
        self._flusher.add(self.block, self._synced)
        self._machine.restore(self.block.checkpoint.state)
        self.node = self._make_node(lame=lame)

    def _make_node(self, *, lame: bool) -> RaftNode:
        block, vote = self.block, self._vote.vote
        commit = min(block.commit_index, block.last_index)
        tail = [descriptor(position, header) for position, header in block.headers(max(1, commit))]
        return RaftNode(
            self.name,
            self.world.names,
            RaftLog(BlockStore(block), tail, commit=commit, synced=block.synced_index),
            hard_state=HardState(vote.term, vote.voted_for, vote.seal_term),
            incarnation=self.incarnation,
            now=self.now,
            draw_ms=self.world.chance.randint,
            lame=lame,
            limits=Limits(
                append_bytes_max=self.world.options.append_bytes_max,
                window_messages=self.world.options.window_messages,
            ),
        )

    # --- What checkers and the world see ---

    @property
    def now(self) -> float:
        """The time."""
        return self.world.clock.monotonic_ms()

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
        try:
            event()
        except StorageError as error:
            # A replica that cannot trust its disk stops; the others go on.
            self.stop(str(error))

    # --- Events ---

    def receive(self, message: Message, payload: tuple[bytes, ...]) -> None:
        """Take a message from another replica, with the bytes of its entries."""
        self._handle(lambda: self._receive(message, payload))

    def _receive(self, message: Message, payload: tuple[bytes, ...]) -> None:
        self._wake()
        if isinstance(message, Append):
            for entry, data in zip(message.entries, payload, strict=True):
                batch = Batch.parse(data)
                batch.check_crc()
                self._pending[entry.index, entry.term] = batch
        self.node.step(message, self.now)
        self._perform()

    def receive_beat(self, beat: PairHeartbeat) -> None:
        """Take the heartbeats of another broker."""
        self._handle(lambda: self._receive_beat(beat))

    def _receive_beat(self, beat: PairHeartbeat) -> None:
        if self._coalescer.hear(beat, self.now):
            self._wake()
        for _, message in beat.beats:
            self._wake()
            self.node.step(message, self.now)
            self._perform()

    def push(self, data: bytes, reply: Reply) -> None:
        """Take a batch from a producer."""
        self._handle(lambda: self._answering(reply, lambda: self._push(data, reply)))

    def _push(self, data: bytes, reply: Reply) -> None:
        batch = Batch.parse(bytearray(data))
        batch.check()
        self._check_leading()
        duplicate = self._machine.judge(batch)
        if duplicate is None:
            self._propose(batch, Kind.DATA, reply)
        elif duplicate.index <= self.applied:
            reply(duplicate.base_offset, True)
        else:
            self._waiting.setdefault(duplicate.index, []).append(
                lambda _outcome, _again: reply(duplicate.base_offset, True)
            )

    def init_producer(self, producer: bytes, reply: Reply) -> None:
        """Give a producer its next epoch."""

        def begin() -> None:
            self._check_leading()
            entry = self._machine.init_producer(producer, now=self.world.clock.wall_us())
            self._propose(Batch.parse(bytearray(batch_of(entry))), Kind.DATA, reply)

        self._handle(lambda: self._answering(reply, begin))

    def seal(self) -> bool:
        """End the block, if this replica leads and has applied everything; return whether it was proposed."""
        if self.stopped or self.paused or not self.node.is_ready or self.applied < self.node.log.last_index:
            return False
        self._wake()
        if not self.node.is_ready or self.node.log.sealed:
            return False
        seal = self._machine.seal(end=self.block.end_offset, now=self.world.clock.wall_us())
        batch = Batch.parse(bytearray(batch_of(seal)))
        self._handle(lambda: self._answering(lambda *_: None, lambda: self._propose(batch, Kind.SEAL, None)))
        return True

    def transfer(self, target: str) -> None:
        """Hand leadership over."""

        def begin() -> None:
            self._wake()
            if self.node.role is Role.LEADER:
                self.node.transfer_leadership(target, self.now)
                self._perform()

        self._handle(begin)

    def _tick(self) -> None:
        if not self.stopped:
            self.world.clock.call_later(TICK_MS, self._tick)
            self._handle(self._ticked)

    def _ticked(self) -> None:
        if self._coalescer.silent(self.now):
            self._wake()
        if not self.node.asleep:
            self.node.tick(self.now)
            self._perform()
        for peer, beat in self._coalescer.beat(self.now):
            self.world.carry_beat(self.name, peer, beat)
        if self.now >= self._checkpoint_at:
            self._checkpoint_at = self.now + CHECKPOINT_MS
            self._write_checkpoint()

    def _synced(self, error: StorageError | None) -> None:
        def noted() -> None:
            if error is not None:
                raise error
            self.node.synced(self.block.synced_index, self.now)
            self._perform()

        self._handle(noted)

    # --- Performing ---

    def _perform(self) -> None:
        """Do what the core says: durable, cut, written, sent, applied; in this order."""
        ready = self.node.ready()
        self._save(ready)
        if ready.truncate_to is not None:
            self._truncate(ready.truncate_to)
        if ready.entries:
            self._write(ready.entries)
        for message in self._coalescer.gather(GROUP, ready.messages):
            self.world.checkers.sent(self, message)
            self.world.carry(message, self._payload(message))
        self.node.advance()
        self._apply(ready.commit)
        self._note_role()

    def _save(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            hard = ready.hard_state
            self._vote.save(Vote(hard.term, hard.voted_for, 0, hard.seal_term))

    def _truncate(self, last: int) -> None:
        removed = [(header.index, header.term) for _, header in self.block.headers(last + 1)]
        self.world.checkers.truncated(self, last, removed)
        self.block.truncate(last + 1)

    def _write(self, entries: Sequence[Entry]) -> None:
        batches = [self._pending.pop((entry.index, entry.term)) for entry in entries]
        previous = self.block.last_term
        self.block.append(batches)
        for batch in batches:
            self.world.checkers.appended(self, batch, previous)
            previous = batch.term
        if len(self._pending) > 1000:
            self._pending.clear()
        self._flusher.written(self.block, "commit")

    def _payload(self, message: Message) -> tuple[bytes, ...]:
        if not isinstance(message, Append):
            return ()
        end = self.block.end_position
        return tuple(bytes(self.block.read_at(e.position, e.length, end))[: e.length] for e in message.entries)

    def _apply(self, commit: int) -> None:
        block = self.block
        if (
            commit > block.commit_index
            or block.end_at(min(commit, block.last_index)).position > block.committed_position
        ):
            block.commit(commit, block.end_at(commit).position)
        for batch in self._batches(self.applied + 1, commit):
            self.world.checkers.committed(self, batch.index, batch)
            answer = self._machine.apply(batch.index, batch)
            outcome = answer if isinstance(answer, Initialised) else batch.base_offset
            for reply in self._waiting.pop(batch.index, ()):
                reply(outcome, False)

    def _batches(self, start: int, end: int) -> Iterator[Batch]:
        """Yield committed batches, read back from the file: what is applied is what is on the disk."""
        if start <= end <= self.block.last_index:
            position, limit = self.block.position_of(start), self.block.end_at(end).position
            while data := self.block.read_at(position, 1, limit):
                yield Batch.parse(data)
                position += len(data)

    def _write_checkpoint(self) -> None:
        index = min(self.applied, self.block.synced_index)
        if index == self.applied and self.block.commit_index > self.block.checkpoint.commit_index:
            self.block.write_checkpoint(index, self._machine.checkpoint())

    # --- Roles ---

    def _note_role(self) -> None:
        role = self.node.role
        if role is not self._role:
            self._role = role
            self.world.note(f"{self.name} is {role.value} in term {self.node.term}")
            self.world.checkers.role(self, role, self.node.term)
            self._machine.roll_back()
            self._waiting.clear()
            if role is Role.LEADER:
                self._begin_term()
        if self.node.asleep and self.node.leader is not None:
            self._coalescer.sleeps(GROUP, self.node.leader, self._peers)

    def _begin_term(self) -> None:
        """Write the entries that a leader begins with."""
        self._machine.lead(self.node.term)
        if self.node.log.sealed:
            return
        if self.node.log.last_index == 0:
            self._propose(Batch.parse(bytearray(batch_of(Genesis(uid=UID)))), Kind.GENESIS, None)
        self._propose(Batch.parse(bytearray(batch_of(BeLeader(replica=self.name)))), Kind.BELEADER, None)

    def _propose(self, batch: Batch, kind: Kind, reply: Reply | None) -> None:
        """Stamp a batch, submit it, and put it into the log."""
        entry = self.node.propose(batch.length, kind, self.now)
        batch.stamp(
            base_offset=self.block.end_offset,
            term=entry.term,
            index=entry.index,
            append_time=max(self.world.clock.wall_us(), self.block.last_append_time),
            commit_index=self.node.log.commit,
        )
        if kind in {Kind.DATA, Kind.SEAL}:
            self._machine.submitted(entry.index, batch)
        self._pending[entry.index, entry.term] = batch
        if reply is not None:
            self._waiting.setdefault(entry.index, []).append(reply)
        self._perform()

    def _check_leading(self) -> None:
        self._wake()
        if not self.node.is_ready or not self._machine.leading:
            raise NotLeader(f"{self.name} does not lead", hint=self.node.leader)

    def _answering(self, reply: Reply, begin: Callable[[], None]) -> None:
        """Answer a refusal; what is wrong with the disk is not the producer's to hear."""
        try:
            begin()
        except StorageError:
            raise
        except ClymqError as error:
            reply(error, False)

    def _wake(self) -> None:
        self._coalescer.woken(GROUP)
        self.node.wake(self.now, {peer: at for peer, at in self._coalescer.heard().items() if peer in self._peers})
        if self.node.role is not self._role:
            self._perform()

    def _catch_up(self) -> None:
        """Apply what was committed before this process began."""
        self._handle(self._perform)
