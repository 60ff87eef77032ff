"""A partition whose active block is replicated by Raft: what its leader does with a push, and how it seals.

Between the broker's verbs and the driver. A push is judged, stamped, submitted and proposed in one go, so that the next
one is judged against it; it is answered when it is applied, a duplicate when its original is. What a term begins with
stands here too: a GENESIS if the log is empty, then the BeLeader entry.

`begin` is how the state at the end of the block before gets into a new one. It may take its time, because another
broker may have to be asked; the term may be over by the time it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from clymq.clock import Clock
from clymq.errors import BlockSealed, ClymqError, NotLeader, NotReady
from clymq.raft.messages import Kind
from clymq.record.batch import Batch
from clymq.replication.entries import BeLeader, Entry, Genesis, HandOver, batch_of
from clymq.replication.machine import Elected, PartitionMachine
from clymq.replication.producers import NEWCOMER, Claim
from clymq.replication.raft_driver import Applied, RaftDriver

BEGIN_AGAIN_MS: Final = 100
# A leadership that nobody has taken by then is not given away any more.
HAND_OVER_MS_MAX: Final = 1_000

Begin = Callable[[Callable[[Genesis], None]], None]


class Stored(Struct, frozen=True, gc=False):
    """A batch is in the log, committed: where its first message is (-1: so long ago that nobody knows)."""

    base_offset: int
    duplicate: bool


Answer = Callable[[Stored | ClymqError], None]
AnswerAll = Callable[[Sequence[Stored] | ClymqError], None]


class RaftPartition:
    """The owner of a partition's Raft group on one broker. `attach` it to the driver that it was made for."""

    def __init__(self, name: str, machine: PartitionMachine, clock: Clock, begin: Begin) -> None:
        self.machine = machine
        self.on_elected: Callable[[int], None] = _ignore
        self.on_leases: Callable[[Elected], None] = _ignore
        """Hears of the leases that a leader begins with, BEFORE `on_elected`."""
        self.leases: Callable[[], Sequence[bytes]] = tuple
        """What is leased now, for the next leader."""
        self.on_advance: Callable[[], None] = _ignore
        self.on_lost: Callable[[NotLeader], None] = _ignore
        self.on_stop: Callable[[ClymqError], None] = _ignore
        self._name = name
        self._clock = clock
        self._begin = begin
        self._sealing: list[Answer] | None = None
        self._handing_over = False

    def attach(self, driver: RaftDriver) -> None:
        """Speak through this driver from now on."""
        self.driver = driver
        driver.on_transfer = self._hand_over

    # --- What producers and the controller ask ---

    def push(self, batches: Iterable[Batch], answer: AnswerAll) -> None:
        """Store batches that have passed the door's checks, in their order; answer them when the last is applied.

        A refusal is raised: of the one that is refused and all behind it, not of those before.
        """
        self.check_open()
        machine, driver = self.machine, self.driver
        stored: list[Stored] = []
        last = 0
        for batch in batches:
            duplicate = machine.judge(batch)
            if duplicate is None:
                index = driver.propose(batch)
                machine.submitted(index, batch)
                stored.append(Stored(batch.base_offset, duplicate=False))
            else:
                index = duplicate.index
                stored.append(Stored(duplicate.base_offset, duplicate=True))
            last = max(last, index)
        if last <= machine.applied:
            answer(stored)
        else:
            driver.when_applied(last, lambda outcome: answer(outcome if isinstance(outcome, ClymqError) else stored))

    def init_producer(self, producer: bytes, answer: Callable[[object], None], claim: Claim = NEWCOMER) -> None:
        """Give a producer its next epoch; the answer is `Initialised`, or an error."""
        self.check_open()
        self.write(self.machine.init_producer(producer, claim, now=self._clock.wall_us()), answer)

    def write(self, entry: Entry, answer: Callable[[object], None]) -> None:
        """Put a control entry into the log; the answer is what the machine says when it is applied, or an error."""
        self.check_open()
        batch = Batch.parse(bytearray(batch_of(entry)))
        index = self.driver.propose(
            batch, lambda outcome: answer(outcome.answer if isinstance(outcome, Applied) else outcome)
        )
        self.machine.submitted(index, batch)

    def check_open(self) -> None:
        """Raise unless this replica leads and has not begun to seal."""
        self.driver.check_leading()
        if self._sealing is not None:
            raise BlockSealed("the block is about to be sealed", hint="the next block takes it")

    def check_reading(self) -> None:
        """Raise `NotLeader`, or `NotReady` as long as the end of what is committed is not known here."""
        self.driver.check_leading()
        if not self.machine.leading and not self.machine.sealed:
            raise NotReady("the leader's first entry is not applied here", hint="try again, or ask who leads")

    def check_sharing(self) -> None:
        """Raise unless messages may be leased here: by a leader that is ready, does not seal and does not give way."""
        self.check_reading()
        self.check_open()
        if self.machine.sealed or self.machine.sealing:
            raise BlockSealed("the block is sealed", hint="the next block takes it")
        if self._handing_over:
            raise NotReady("leadership is being handed over", hint="ask who leads")

    def seal(self, answer: Answer) -> None:
        """End the block: nothing more is taken, what is on its way is applied, then the SEAL is written.

        A second call is answered like the first. The answer's offset is the block's end.
        """
        self.driver.check_leading()
        core = self.driver.node.log
        if self.machine.sealed:
            answer(Stored(self.driver.replica.block.end_offset, duplicate=True))
        elif core.sealed:
            self.driver.when_applied(core.last_index, lambda outcome: answer(_stored(outcome)))
        elif not self.machine.leading:
            raise NotReady("the leader's first entry is not applied here", hint="try again, or ask who leads")
        else:
            self._sealing = [*(self._sealing or ()), answer]
            self._seal_if_applied()

    # --- What its driver tells it ---

    def leads(self, term: int) -> None:
        """This replica was elected: begin the term."""
        self.machine.lead(term)
        core = self.driver.node.log
        if core.sealed:
            return
        if core.last_index == 0:
            self._begin(lambda genesis: self._begin_block(term, genesis))
        else:
            self._be_leader(term)

    def leads_no_more(self) -> None:
        """It leads no more: what is submitted is forgotten."""
        self.machine.roll_back()
        self._handing_over = False
        sealing, self._sealing = self._sealing or [], None
        error = NotLeader(f"{self._name} leads no more", hint=self.driver.leader)
        for answer in sealing:
            answer(error)
        self.on_lost(error)

    def advanced(self) -> None:
        """More is applied."""
        self.on_advance()

    def answered(self) -> None:
        """What leases and delays have become of it is known, too: a seal may be due, which writes them down."""
        self._seal_if_applied()

    def stopped(self, error: ClymqError) -> None:
        """This replica is out."""
        self.on_stop(error)

    # --- Inside ---

    def _begin_block(self, term: int, genesis: Genesis) -> None:
        """Write the first entry of the block, unless somebody else leads by now."""
        if self._still_leads(term) and self.driver.node.log.last_index == 0:
            try:
                self.driver.propose(_control(genesis), kind=Kind.GENESIS)
            except NotReady:
                # Leadership was to go to another, who may not take it; without this entry nobody could begin.
                self._clock.call_later(BEGIN_AGAIN_MS, lambda: self._begin_block(term, genesis))
            else:
                self._be_leader(term)

    def _be_leader(self, term: int) -> None:
        def applied(outcome: Applied | ClymqError) -> None:
            if isinstance(outcome, Applied):
                assert isinstance(outcome.answer, Elected)
                self.on_leases(outcome.answer)
                self.on_elected(term)

        # If this process stood still since it was elected, it leads no more, as its driver is about to find out.
        with suppress(NotLeader):
            self.driver.propose(_control(BeLeader(replica=self._name)), applied, kind=Kind.BELEADER)

    def _hand_over(self) -> None:
        """Leadership is about to go to another, who is to know what is leased. From now on nothing is, here."""
        leases = tuple(self.leases()) if self.machine.leading and self._sealing is None else ()
        if not leases or self._handing_over or self.machine.sealed:
            return
        # If it cannot be written what is leased is delivered again, as after a crash.
        with suppress(ClymqError):
            self.write(HandOver(leases=leases), _ignore)
            self._handing_over = True
            term = self.driver.node.term
            self._clock.call_later(HAND_OVER_MS_MAX, lambda: self._go_on_leading(term))

    def _go_on_leading(self, term: int) -> None:
        """Nobody has taken the leadership: what was handed over is out of date from here on."""
        if not self._handing_over or not self._still_leads(term):
            return
        try:
            self.write(HandOver(), _ignore)
        except BlockSealed:
            return
        except ClymqError:
            self._clock.call_later(HAND_OVER_MS_MAX, lambda: self._go_on_leading(term))
            return
        self._handing_over = False
        self.on_advance()

    def _still_leads(self, term: int) -> bool:
        try:
            self.driver.check_leading()
        except NotLeader:
            return False
        return self.driver.node.term == term

    def _seal_if_applied(self) -> None:
        if self._sealing is None or self.machine.sealing or self.machine.applied < self.driver.node.log.last_index:
            return
        seal = self.machine.seal(end=self.driver.next_offset, now=self._clock.wall_us(), leases=self.leases())
        batch = _control(seal)
        try:
            index = self.driver.propose(batch, self._sealed, kind=Kind.SEAL)
            self.machine.submitted(index, batch)
        except ClymqError as error:
            self._sealed(error)

    def _sealed(self, outcome: Applied | ClymqError) -> None:
        """The SEAL is applied, or never will be under this leader."""
        sealing, self._sealing = self._sealing or [], None
        for answer in sealing:
            answer(_stored(outcome))


def _stored(outcome: Applied | ClymqError) -> Stored | ClymqError:
    return Stored(outcome.batch.base_offset, duplicate=False) if isinstance(outcome, Applied) else outcome


def _ignore(*_: object) -> None:
    """For whoever does not listen."""


def _control(entry: Entry) -> Batch:
    return Batch.parse(bytearray(batch_of(entry)))
