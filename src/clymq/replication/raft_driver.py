"""One replica of one Raft group, driven: the core decides, the driver does it, in the order that durability needs.

    a message, a tick, a proposal, a sync  ->  RaftNode  ->  Ready
        1. the vote and the term are saved                 BEFORE anything is said
        2. what lost is cut away                           BEFORE anything is written in its place
        3. entries are written
        4. messages leave, and the sync of what was written begins
        5. what is committed is applied, and whoever waits for it is answered

Nothing here waits but a cut and a checkpoint. A vote is saved off the event loop, and until it is there nothing is
performed: hundreds of groups that elect at once must not keep their broker silent, or the others elect anew. What
happens within one turn of the event loop is performed together: many proposals are one write, one sync, and one message
to each follower.

It runs any `Machine` and knows nothing of what entries mean. Its owner says what a term begins with and hears when
leadership comes and goes. What is wrong with the disk ends here:

* a write that failed and was cut back (disk full): the core begins anew from the disk, as after a restart, under a new
  incarnation; a leader hands over first. It follows, and does not campaign until there may be room again;
* damage met by a read: the block is read from its first byte, cut there, and the replica is lame until it is mended;
* a failed sync, a vote that cannot be saved, an error that has no name here: the replica stops for good. The others,
  and the other groups of this process, go on.

Whoever is told something may come back with more before the call returns: propose, close, read. So nothing is performed
inside of performing, and nothing between a proposal and its owner's note of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from clymq.errors import (
    ClosedError,
    ClymqError,
    CorruptBatch,
    CorruptBlock,
    DiskFailed,
    DiskFull,
    NotLeader,
    Overloaded,
    ReplicaLost,
    StorageError,
)
from clymq.raft.messages import Append, Entry, Heartbeat, HeartbeatResponse, Kind, Message
from clymq.raft.node import RaftNode
from clymq.raft.state import HardState, Role
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, Buffer
from clymq.replication.machine import Machine
from clymq.replication.recent import Recent
from clymq.replication.replica import Replica
from clymq.replication.surroundings import Owner, Surroundings

# A disk that was full is believed to be full for so long, before this replica runs for leader again.
FULL_DISK_MS: Final = 1_000
# A turn of the event loop may bring megabytes. The disks and the followers should not wait for the last of them.
PERFORM_BYTES: Final = 1024 * 1024
INCARNATION_MAX: Final = 2**63 - 1

log = logging.getLogger("clymq.replication")


class Applied(Struct, frozen=True, gc=False):
    """An entry that was proposed here is committed and applied; `answer` is what the machine says to it."""

    batch: Batch
    answer: object


Done = Callable[[Applied | ClymqError], None]


class RaftDriver:
    """One group on this broker. Made and called by a `RaftHost`; the calls at the top are the owner's."""

    def __init__(
        self,
        surroundings: Surroundings,
        group: str,
        members: Sequence[str],
        replica: Replica,
        machine: Machine,
        owner: Owner,
        *,
        incarnation: int,
    ) -> None:
        self.group = group
        self.members = tuple(members)
        self.peers = tuple(member for member in members if member != surroundings.name)
        self.replica = replica
        self.machine = machine
        self.stopped: ClymqError | None = None
        self.committed_offset = self._committed_on_disk()
        """One past the last message that readers may see."""
        self._around = surroundings
        self._owner = owner
        self._led: int | None = None
        self._sleeps = False
        self._performing = False
        self._next_offset = 0
        self._last_append_time = 0
        self._unfit_until = 0.0
        self.due_at = 0.0
        """When it wants to be ticked, or sooner."""
        self._recent = Recent()
        self._waiting: dict[int, list[Done]] = {}
        self.on_transfer: Callable[[], None] = _nothing
        """Called BEFORE leadership is handed over, as long as something can still be proposed."""
        machine.restore(replica.block.checkpoint.state)
        self.node = self._make_node(incarnation, lame=replica.lame)
        surroundings.flusher.add(replica.block, self._synced)

    def _committed_on_disk(self) -> int:
        block = self.replica.block
        return block.end_at(min(block.commit_index, block.last_index)).offset

    def _make_node(self, incarnation: int, *, lame: bool) -> RaftNode:
        around = self._around
        self._was_lame = lame
        return RaftNode(
            around.name,
            self.members,
            self.replica.raft_log(),
            hard_state=self.replica.hard_state,
            incarnation=incarnation,
            now=self._now(),
            draw_ms=around.draw,
            lame=lame,
            limits=around.limits,
            brokers=around.brokers,
        )

    # --- What its owner asks ---

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this replica knows."""
        return self.node.leader

    @property
    def applied(self) -> int:
        """How far the machine has come."""
        return self.machine.applied

    @property
    def disk_is_idle(self) -> bool:
        """Whether no sync of its block is under way."""
        return not self._around.flusher.is_syncing(self.replica.block)

    @property
    def next_offset(self) -> int:
        """Where the next message that is proposed will be; a leader's to ask."""
        return self._next_offset

    def check_leading(self) -> None:
        """Raise `NotLeader` unless this replica leads.

        BEFORE anything is answered: a group that slept is woken, and a leader that was stopped for longer than others
        wait for it finds out here that it is none.
        """
        if self.stopped is not None:
            raise NotLeader(f"{self._around.name} is out of {self.group}: {self.stopped}")
        self.wake()
        self.node.look_at(self._now())
        if self._recent.arrived_bytes >= PERFORM_BYTES:
            self.perform()  # here, BEFORE the next one is judged: it may be the end of this leadership
        if self._led is None or self._leading() != self._led:
            self._around.schedule(self)
            raise NotLeader(f"{self._around.name} does not lead {self.group}", hint=self.node.leader)

    def propose(self, batch: Batch, done: Done | None = None, *, kind: Kind = Kind.DATA) -> int:
        """Stamp a batch and put it into the log; return its index. `done` hears what became of it.

        The owner has called `check_leading`. Nothing is written before this turn of the event loop ends.
        """
        core, around = self.node.log, self._around
        if (
            kind is Kind.DATA
            and core.end_position - self.replica.block.committed_position > around.uncommitted_bytes_max
        ):
            raise Overloaded(f"{self.group}: too much is waiting for a majority of {list(self.members)}")
        if batch.count:
            self._check_room(batch.length)
        entry = self.node.propose(batch.length, kind, self._now())
        self._last_append_time = max(around.clock.wall_us(), self._last_append_time)
        batch.stamp(
            base_offset=self._next_offset,
            term=entry.term,
            index=entry.index,
            append_time=self._last_append_time,
            commit_index=core.commit,
        )
        self._next_offset = batch.end_offset
        self._recent.arrive(batch)
        if done is not None:
            self._waiting[entry.index] = [done]
        around.schedule(self)
        return entry.index

    def _check_room(self, length: int) -> None:
        """Refuse at the door what the disk has no room for, and let another lead, if one can."""
        try:
            self.replica.check_room(length)
        except DiskFull:
            if self._now() >= self._unfit_until:
                self._unfit_until = self._now() + FULL_DISK_MS
                self.transfer()
            raise

    def when_applied(self, index: int, done: Done) -> None:
        """Call `done` when an entry that is in the log by now is applied; for the second sender of one batch, too."""
        assert index > self.applied, "what is applied is answered at once"
        self._waiting.setdefault(index, []).append(done)

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole committed batches from an offset on; the owner has called `check_leading`.

        What does not pass its checks never leaves this replica: it is lame from then on, and another one leads.
        """
        try:
            data = self.replica.block.read(offset, bytes_max)
            position = 0
            while position < len(data):
                batch = Batch.parse(data, position, batch_bytes_max=FORMAT_BYTES_MAX)
                batch.check_crc()
                position += batch.length
        except (CorruptBatch, CorruptBlock) as error:
            self.damaged(error)
            raise NotLeader(f"{self._around.name} has lost part of {self.group}", hint=self.node.leader) from error
        return data

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """A read of the block met damage: cut there, and be lame until the others have mended it."""
        if self.stopped is None:
            self._fall_back(error)

    def transfer(self, target: str | None = None) -> bool:
        """Hand leadership over, to the follower that has most if none is named; return whether there is anyone."""
        if self.stopped is not None:
            return False
        self.wake()
        self.node.look_at(self._now())
        target = target or self.node.successor()
        if self.node.role is not Role.LEADER or target is None:
            return False
        self.on_transfer()
        self.node.transfer_leadership(target, self._now())
        self._around.schedule(self)
        return True

    def campaign(self) -> None:
        """Run for leader at once: for the replica that was named first leader of a new group."""
        self.node.campaign(self._now())
        self._around.schedule(self)

    # --- What happens to it ---

    def receive(self, message: Message, payload: Buffer = b"") -> None:
        """Take a message from another replica; an append with the batches of its entries."""
        if self.stopped is not None:
            return
        if isinstance(message, Append):
            try:
                message = self._recent.receive(message, payload, self.node.log.end_position)
            except CorruptBatch as error:
                log.warning("%s: an append from %s is dropped: %s", self.group, message.sender, error)
                return
        self._attempt(lambda: self._step(message))

    def _step(self, message: Message) -> None:
        # What only confirms that nothing is going on must not wake anybody: the answer would wake the other.
        lulls = isinstance(message, Heartbeat) or (isinstance(message, HeartbeatResponse) and message.asleep)
        if not lulls:
            self.wake()
        self.node.step(message, self._now())
        if self._recent.arrived_bytes >= PERFORM_BYTES:
            self.perform()
        else:
            self._around.schedule(self)

    @property
    def would_campaign(self) -> bool:
        """Whether it runs for leader when it is ticked."""
        node = self.node
        return node.role is not Role.LEADER and node.able and not node.lame and node.deadline() <= self._now()

    @property
    def is_saving(self) -> bool:
        """Whether it waits for a promise to be on the disk, and so for nobody else."""
        return self.replica.is_saving

    def tick(self) -> None:
        """Let time pass."""
        if self.stopped is None:
            self._attempt(self._tick)

    def _tick(self) -> None:
        now = self._now()
        self.node.able = now >= self._unfit_until
        self.node.tick(now)
        self.perform()
        self.due_at = self.node.deadline()

    def look(self) -> None:
        """Take the time, and what follows from it for a leader, BEFORE anybody is heard."""
        self.node.look_at(self._now())
        self._around.schedule(self)

    def wake(self) -> None:
        """Leave sleep, BEFORE anything is said to this replica or asked of it."""
        if self.node.asleep:
            self.node.wake(self._now())
            self._note_sleep()
            self._around.schedule(self)

    def _synced(self, error: StorageError | None) -> None:
        """A sync of the block has ended."""

        def note() -> None:
            if error is not None:
                raise error
            self.node.synced(self.replica.block.synced_index, self._now())
            self._around.applied(self)
            self.perform()

        if self.stopped is None:
            self._attempt(note)

    def perform(self) -> None:
        """Do what the core says; if that is being done, whoever was told something is to be done with first."""
        if self._performing:
            self._around.schedule(self)
        elif self.stopped is None:
            self._attempt(self._perform)

    def checkpoint(self) -> bool:
        """Keep the machine's state, as soon as everything in it is on the disk; return whether that is done."""
        block, known = self.replica.block, self.replica.block.checkpoint
        is_told = max(known.commit_index, known.missing_through) >= block.synced_index
        if self.stopped is not None or (is_told and known.commit_index >= block.commit_index):
            return True
        # What was applied before it was lost is here again before this process knows that it is what was committed.
        if self.applied > min(block.synced_index, block.last_index, self.node.log.commit):
            return False
        try:
            # What is synced was acknowledged, and may be committed though nobody has said so here.
            block.write_checkpoint(self.applied, self.machine.checkpoint(), promised=block.synced_index)
        except DiskFull as error:
            # The one before still stands, and the log with it.
            log.warning("%s: no checkpoint: %s", self.group, error)
            return False
        except StorageError as error:
            self._fall_back(error)
        return True

    def close(self) -> None:
        """Leave the group and let go of the files; whoever waits is told."""
        self.checkpoint()
        if self.stopped is None:
            self._stop(ClosedError(f"{self.group} is closed"))

    # --- Performing, in order ---

    def _perform(self) -> None:
        self._performing = True
        try:
            self._perform_in_order()
        finally:
            self._performing = False

    def _perform_in_order(self) -> None:
        node = self.node
        if not self._promises_are_saved():
            return
        ready = node.ready()
        if ready.truncate_to is not None:
            self._recent.cut(ready.truncate_to)
            self.replica.block.truncate(ready.truncate_to + 1)
        if ready.entries:
            self._write(ready.entries)
        self._recent.settle()
        try:
            for message in self._around.gather(self.group, ready.messages):
                self._around.send(self.group, message, self._payload(message))
        finally:
            # Behind the messages: the others' disks are further away, and the thread that syncs wants the interpreter.
            if ready.entries:
                self._around.flusher.written(self.replica.block, "commit")
        node.advance()
        if self._leading() != self._led:
            self._lose_leadership()  # BEFORE anything is applied: it may be another leader's, where ours was waited for
        if self.stopped is None and self.node is node:
            self._apply(ready.commit)
        if self.stopped is None:
            self._note_role()

    def _promises_are_saved(self) -> bool:
        """Say whether term and vote are on the disk; if they are not, performing goes on when they are."""
        hard = self.node.unsaved
        if hard is not None and not self.replica.is_saving:
            self._save(hard)
        return hard is None

    def _save(self, hard: HardState) -> None:
        node = self.node

        def saved(error: StorageError | None) -> None:
            if error is not None:
                raise ReplicaLost(f"{self.group}: a vote could not be saved: {error}") from error
            node.look_at(self._now())
            node.saved(hard)
            self.perform()

        def done(error: StorageError | None) -> None:
            if self.stopped is None:
                self._attempt(lambda: saved(error))

        try:
            self.replica.save(hard, done)
        except StorageError as error:
            raise ReplicaLost(f"{self.group}: a vote could not be saved: {error}") from error

    def _write(self, entries: Sequence[Entry]) -> None:
        block = self.replica.block
        try:
            block.append([self._recent.take(entry) for entry in entries])
        except CorruptBatch as error:
            # Nothing is wrong with the disk: the sender's log is not what ours can go on with.
            raise StorageError(f"{self.group}: entries that do not follow on are not written: {error}") from error

    def _payload(self, message: Message) -> Sequence[Buffer]:
        """Return the batches of an append: out of memory if they are there, or from the file, checked."""
        if not isinstance(message, Append):
            return ()
        return [
            (self._recent.get(entry.index) or self._read(entry.position, entry.position + entry.length)).buffer
            for entry in message.entries
        ]

    def _read(self, position: int, limit: int) -> Batch:
        """Read one batch back from the file; what does not pass its checks never leaves this replica."""
        data = self.replica.block.read_at(position, 1, limit)
        batch = Batch.parse(data, batch_bytes_max=FORMAT_BYTES_MAX)
        batch.check_crc()
        return batch

    def _apply(self, commit: int) -> None:
        block, node = self.replica.block, self.node
        end = node.log.end_of(commit)
        if commit > block.commit_index or end > block.committed_position:
            block.commit(commit, end)
            if self.applied >= commit:
                self.committed_offset = self._committed_on_disk()  # it was applied before it was lost
        if self.applied >= commit:
            return
        outcomes = self._apply_to_machine(commit)
        self._around.applied(self)
        # Readers first: they have waited longer than the producer, who is about to send the next ones.
        self._owner.advanced()
        for outcome in outcomes:
            self._tell(self._waiting.pop(outcome.batch.index, ()), outcome)
            if self.stopped is not None or self.node is not node:
                return  # whoever was told has closed the group, or met damage
        self._owner.answered()

    def _apply_to_machine(self, commit: int) -> list[Applied]:
        """Apply what is committed; return what somebody waits for."""
        apply, recent, node = self.machine.apply, self._recent, self.node
        outcomes: list[Applied] = []
        position: int | None = None
        for index in range(self.applied + 1, commit + 1):
            batch = recent.pop(index)
            if batch is None:  # it is only in the file; from here on it is known where each lies
                position = node.log.end_of(index - 1) if position is None else position
                batch = self._read(position, self.replica.block.end_position)
            if position is not None:
                position += batch.length
            try:
                answer = apply(index, batch)
            except ClymqError as error:
                raise ReplicaLost(f"{self.group}: entry {index} cannot be applied: {error}") from error
            self.committed_offset = batch.end_offset
            if index in self._waiting:
                outcomes.append(Applied(batch, answer))
        return outcomes

    def _leading(self) -> int | None:
        """Return the term that the core leads."""
        return self.node.term if self.node.role is Role.LEADER else None

    def _note_role(self) -> None:
        term = self._leading()
        if term is not None and term != self._led:
            log.info("%s: %s leads term %d", self.group, self._around.name, term)
            block = self.replica.block
            self._led, self._next_offset, self._last_append_time = term, block.end_offset, block.last_append_time
            self._owner.leads(term)
        if self._was_lame and not self.node.lame:
            self._was_lame = self.replica.lame = False
            log.warning("%s: what %s had lost is mended; it votes again", self.group, self._around.name)
        self.due_at = min(self.due_at, self.node.deadline())
        self._note_sleep()

    def _note_sleep(self) -> None:
        leader = self.node.leader
        if self.node.asleep and not self._sleeps and leader is not None:
            self._sleeps = True
            self._around.sleeps(self, leader)
        elif self._sleeps and not self.node.asleep:
            self._sleeps = False
            self._around.woken(self)

    def _lose_leadership(self) -> None:
        """Whoever waits may try elsewhere; what was proposed may still be committed, once, by another leader."""
        if self._led is None:
            return
        self._led = None
        waiting, self._waiting = self._waiting, {}
        self._owner.leads_no_more()
        error = NotLeader(f"{self._around.name} leads {self.group} no more", hint=self.node.leader)
        for some in waiting.values():
            self._tell(some, error)

    def _tell(self, waiting: Sequence[Done], outcome: Applied | ClymqError) -> None:
        for done in waiting:
            try:
                done(outcome)
            except Exception:
                # A mistake of whoever asked must take neither the group nor the others' answers with it.
                log.exception("%s: an answer could not be given", self.group)

    # --- When the disk fails ---

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (StorageError, ReplicaLost) as error:
            self._fall_back(error)
        except Exception as error:
            # One that does not understand itself must not go on; the other groups of this process must.
            log.exception("%s: met an error that it has no name for", self.group)
            lost = ReplicaLost(f"{self.group}: {type(error).__name__}: {error}")
            lost.__cause__ = error
            self._stop(lost)

    def _fall_back(self, error: StorageError | ReplicaLost) -> None:
        """Go on as far as the disk can still be trusted; a leader lets another one lead first."""
        log.error("%s: %s", self.group, error)
        self.wake()
        farewell = self.node.farewell()
        if farewell is not None:
            self._around.send(self.group, farewell, ())
        block = self.replica.block
        if isinstance(error, ReplicaLost) or block.failure is not None:
            self._stop(error)
        elif isinstance(error, CorruptBlock | CorruptBatch) or (
            isinstance(error, DiskFailed) and error.operation == "read"
        ):
            self._read_anew(error)
        else:
            self._unfit_until = self._now() + FULL_DISK_MS
            self._begin_anew()

    def _read_anew(self, error: StorageError) -> None:
        """A read met damage: find out how far the block is good, and go on from there."""
        old = self.replica.block
        try:
            self.replica.verify()
        except StorageError as second:
            self._stop(second)
            return
        self._around.flusher.remove(old)
        self._around.flusher.add(self.replica.block, self._synced)
        if self.replica.block.loss is None:
            # Everything is there when it is read again: the disk cannot be relied on.
            self._stop(error)
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Be as after a restart: what was said before was said by a process that is gone."""
        self._lose_leadership()
        self._recent.clear()
        if self.stopped is not None:
            return  # by one who was told
        incarnation = self._around.draw(1, INCARNATION_MAX)
        try:
            self.replica.finish_saving()
            self.node = self._make_node(incarnation, lame=self.node.lame or self.replica.lame)
            self.committed_offset = self._committed_on_disk()
        except StorageError as error:
            self._stop(error)
            return
        self.node.able = self._now() >= self._unfit_until
        self.due_at = 0.0
        self._note_sleep()

    def _stop(self, error: ClymqError) -> None:
        if self.stopped is not None:
            return  # by one who was told, while something else went wrong
        self.stopped = error
        self._lose_leadership()
        replica = self.replica
        try:
            replica.finish_saving()  # BEFORE it can be opened anew: what is read then must be on the disk
        except StorageError as second:
            log.error("%s: a vote that nobody has heard of could not be saved: %s", self.group, second)
        self._around.flusher.remove(replica.block, replica.close)
        self._around.stopped(self)
        if not isinstance(error, ClosedError):
            self._owner.stopped(error)

    # --- Inside ---

    def _now(self) -> float:
        return self._around.clock.monotonic_ms()


def _nothing() -> None:
    """For whoever has nothing to hand over."""
