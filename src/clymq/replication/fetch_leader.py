"""The leader of a fetch block: it takes pushes, writes them, and answers by itself.

    a push  ->  judged, stamped, submitted       at once, so that the next one is judged against it
            ->  written                          at the end of this turn of the event loop, many in one write
            ->  held, applied                    written; with `fsync = commit`, when it is synced
            ->  acknowledged                     if the store still vouches for this leader, looked at after all that

Applied means here: this leader answers for it, alone. CDM is therefore what its own log says, CSM is ahead of it by
what is not written (or synced) yet, and a duplicate of that waits for its original like in a Raft block. What the next
block knows of a producer is what the sealed log says, which may be less than this leader acknowledged; a producer
learns that from InitProducer. Ack 0 is answered on receipt: judged and submitted, not written.

A leader leads for one process life and one session with the store. While its session is not confirmed it acknowledges
nothing: another block may have begun without it. When the session is lost, the disk fails, or a fence comes, it takes
nothing more, for good; what waits is refused, and may be stored all the same, once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from clymq.errors import (
    AckMismatch,
    BlockSealed,
    ClymqError,
    NotLeader,
    NotReady,
    Overloaded,
    ReplicaLost,
    StorageError,
)
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.replication.entries import BeLeader, Entry, Genesis
from clymq.replication.fetch_log import FetchLog, control
from clymq.replication.fetch_surroundings import FetchPlace
from clymq.replication.machine import Answer, Elected
from clymq.replication.producers import NEWCOMER, OFFSET_UNKNOWN, Claim
from clymq.replication.raft_partition import AnswerAll, Begin, Stored
from clymq.types import Ack

# A turn of the event loop may bring megabytes. The disk and the followers should not wait for the last of them.
WRITE_BYTES: Final = 1024 * 1024

log = logging.getLogger("clymq.replication")


@dataclass(frozen=True, slots=True)
class Held:
    """An entry that was written here is held by this leader; `answer` is what the machine says to it."""

    batch: Batch
    answer: Answer


Done = Callable[[Held | ClymqError], None]
Closed = Callable[[BlockClosed | ClymqError], None]


class FetchLeader:
    """Takes what a block gets. `on_moved` hears when it may have written or hold more, `on_broken` of a failed disk."""

    def __init__(
        self,
        place: FetchPlace,
        log: FetchLog,
        *,
        schedule: Callable[[], None],
        on_moved: Callable[[], None],
        on_broken: Callable[[ClymqError], None],
    ) -> None:
        self.over: ClymqError | None = NotReady(f"{place.group.name} has not begun", hint="try again")
        """Why it takes nothing; None while it does."""
        self._place = place
        self._log = log
        self._machine = log.machine
        self._schedule = schedule
        self._on_moved = on_moved
        self._on_broken = on_broken
        self._arrived: list[Batch] = []
        self._arrived_bytes = 0
        self._written: deque[Batch] = deque()
        self._written_bytes = 0
        self._waiting: dict[int, list[Done]] = {}
        self._unseen: deque[tuple[int, Callable[[object], None], object]] = deque()
        self._sealing: list[Closed] | None = None
        self._leases: Sequence[bytes] = ()
        self._next_index = log.block.last_index + 1
        self._next_offset = log.block.end_offset
        self._last_append_time = log.block.last_append_time

    # --- What producers and the controller ask ---

    def push(self, batches: Iterable[Batch], ack: int, answer: AnswerAll) -> None:
        """Store batches that have passed the door's checks, in their order, and answer them together.

        A refusal is raised: of the one that is refused and all behind it, not of those before.
        """
        if ack not in {Ack.LEADER, Ack.NONE}:
            raise AckMismatch(f"{self._place.group.name} takes ack 1 and 0, not {ack}", hint="ask for its state again")
        self.check_open()
        stored: list[Stored] = []
        last = 0
        try:
            for batch in batches:
                duplicate = self._machine.judge(batch)
                if duplicate is None:
                    self._submit(batch)
                    stored.append(Stored(OFFSET_UNKNOWN if ack == Ack.NONE else batch.base_offset, duplicate=False))
                    last = batch.index
                else:
                    stored.append(Stored(duplicate.base_offset, duplicate=True))
                    last = max(last, duplicate.index)
            if ack == Ack.NONE or last <= self._machine.applied:
                answer(stored)
            else:
                self._waiting.setdefault(last, []).append(
                    lambda outcome: answer(outcome if isinstance(outcome, ClymqError) else stored)
                )
        finally:
            if self._arrived:
                self._write_soon()  # BEHIND the note of who waits for it; also for those before one that was refused

    def init_producer(self, producer: bytes, answer: Callable[[object], None], claim: Claim = NEWCOMER) -> None:
        """Give a producer its next epoch; the answer is `Initialised`, or an error."""
        self.check_open()
        self.write(self._machine.init_producer(producer, claim, now=self._place.around.clock.wall_us()), answer)

    def write(self, entry: Entry, answer: Callable[[object], None], *, visible: bool = False) -> None:
        """Put a control entry into the log; the answer is what the machine says to it, or an error.

        It is given when this leader holds the entry; with `visible`, when readers would see it and it therefore
        outlives this leader: for what is acted upon elsewhere.
        """
        self.check_open()
        batch = control(entry)
        self._submit(batch)

        def held(outcome: Held | ClymqError) -> None:
            if isinstance(outcome, ClymqError):
                answer(outcome)
            elif visible:
                self._unseen.append((outcome.batch.index, answer, outcome.answer))
            else:
                answer(outcome.answer)

        self._waiting[batch.index] = [held]
        self._write_soon()

    def seal(self, answer: Closed, leases: Sequence[bytes] = ()) -> None:
        """End the block: nothing more is taken, what is on its way is written and answered, then the SEAL.

        The answer is given when all of it is on the disk. A second call is answered like the first.
        """
        if isinstance(self.over, NotReady):
            raise self.over
        if self._log.block.failure is not None:
            raise self._log.block.failure
        if self._sealing is None:
            self._sealing, self._leases = [], leases
            self.over = self.over or BlockSealed("the block is about to be sealed", hint="the next block takes it")
        self._sealing.append(answer)
        self.perform()

    # --- What its driver tells it ---

    def begin(self, begin: Begin) -> None:
        """Write the first entries of the block, once the state at the end of the block before is known."""
        begin(self._begin)

    def perform(self) -> None:
        """Write what has gathered, and answer what this leader holds by now."""
        if self._arrived:
            batches, self._arrived, self._arrived_bytes = self._arrived, [], 0
            try:
                self._log.write(batches)
            except StorageError as error:
                self.fail(error)
                return
            self._written.extend(batches)
            self._written_bytes += sum(batch.length for batch in batches)
        self.settle()

    def settle(self) -> None:
        """Apply what this leader holds by now, and acknowledge it, if it may."""
        held, settled = self._log.held.index, []
        try:
            while self._written and self._written[0].index <= held:
                batch = self._written.popleft()
                self._written_bytes -= batch.length
                settled.append(Held(batch, self._log.apply(batch)))
        except ReplicaLost as error:
            self.fail(error)
            return
        # Readers first: they have waited longer than the producer, who is about to send the next ones.
        self._on_moved()
        if settled:
            self._acknowledge(settled)
            self.saw(self._log.visible.index)
        self._seal_if_held()

    def saw(self, visible: int) -> None:
        """Readers see more: answer what waited for that."""
        while self._unseen and self._unseen[0][0] <= visible:
            _, answer, outcome = self._unseen.popleft()
            answer(outcome)

    def step_down(self, error: ClymqError) -> None:
        """Take nothing more, for good. Whoever waits may try elsewhere; what is written may still be stored, once."""
        self.over = error
        self._machine.roll_back()
        self._arrived, self._arrived_bytes = [], 0
        waiting, self._waiting = self._waiting, {}
        unseen, self._unseen = self._unseen, deque()
        for done in [done for some in waiting.values() for done in some]:
            done(error)
        for _, answer, _ in unseen:
            answer(error)

    def stop(self, error: ClymqError) -> None:
        """Write nothing more either: a fence has come, or the end."""
        self.step_down(error)
        self._sealed(error)

    def fail(self, error: ClymqError) -> None:
        """The disk has failed, or the log contradicts itself: another replica must go on."""
        self.stop(NotLeader(f"{self._place.around.name} cannot write {self._place.group.name}: {error}"))
        self._on_broken(error)

    # --- Inside ---

    def check_open(self) -> None:
        """Raise why it takes nothing at this moment, if that is so."""
        if self.over is not None:
            raise self.over
        refusal = self._unconfirmed()
        if refusal is not None:
            raise refusal
        if self._written_bytes + self._arrived_bytes > self._place.config.uncommitted_bytes_max:
            raise Overloaded(f"{self._place.group.name}: too much is waiting for the disk")

    def _unconfirmed(self) -> ClymqError | None:
        """Return why nothing may be acknowledged at this moment, if that is so."""
        if self._place.around.session_is_confirmed():
            return None
        name = self._place.around.name
        return NotLeader(f"{name} cannot tell whether it still leads {self._place.group.name}", hint="try again")

    def _begin(self, genesis: Genesis) -> None:
        if not isinstance(self.over, NotReady) or self._next_index != 1:
            return  # too late, or twice
        group = self._place.group
        self._machine.lead(group.epoch)
        for entry in (genesis, BeLeader(replica=group.leader)):
            batch = self._stamped(control(entry))
            self._take(batch)
        self._waiting[batch.index] = [self._began]
        self.perform()

    def _began(self, outcome: Held | ClymqError) -> None:
        if isinstance(outcome, Held) and isinstance(self.over, NotReady):
            assert isinstance(outcome.answer, Elected)
            log.info("%s: %s leads epoch %d", self._place.group.name, self._place.group.leader, outcome.batch.term)
            self.over = None
            self._place.owner.leads(outcome.answer)

    def _submit(self, batch: Batch) -> None:
        self._machine.submitted(self._next_index, self._stamped(batch))
        self._take(batch)

    def _stamped(self, batch: Batch) -> Batch:
        self._last_append_time = max(self._place.around.clock.wall_us(), self._last_append_time)
        batch.stamp(
            base_offset=self._next_offset,
            term=self._place.group.epoch,
            index=self._next_index,
            append_time=self._last_append_time,
            commit_index=self._log.visible.index,
        )
        return batch

    def _take(self, batch: Batch) -> None:
        self._next_index += 1
        self._next_offset = batch.end_offset
        self._arrived.append(batch)
        self._arrived_bytes += batch.length

    def _write_soon(self) -> None:
        """Write at the end of this turn; at once, if so much has gathered that the disk should begin with it."""
        if self._arrived_bytes >= WRITE_BYTES:
            self.perform()
        else:
            self._schedule()

    def _acknowledge(self, settled: Sequence[Held]) -> None:
        """Answer for what is held. The session is looked at AFTER the write and BEFORE the answer: a leader that stood
        still in between may have been replaced, and what it says then would be said for a block that has ended.
        """
        refusal = self._unconfirmed()
        for held in settled:
            begins = held.batch.index <= 2  # GENESIS and BeLeader acknowledge nothing to anybody
            for done in self._waiting.pop(held.batch.index, ()):
                done(held if begins or refusal is None else refusal)

    def _seal_if_held(self) -> None:
        if self._sealing is None or self._arrived or self._written:
            return
        try:
            if not self._log.block.sealed:
                self._log.seal(self._place.group.epoch, self._leases)
                self._on_moved()
        except StorageError as error:
            self.fail(error)
            return
        self._log.when_synced(self._sealed)

    def _sealed(self, error: ClymqError | None) -> None:
        sealing, self._sealing = self._sealing or [], None
        for answer in sealing:
            answer(error or self._log.describe())
