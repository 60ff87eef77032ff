"""An active fetch block as a broker serves it: its leader takes pushes and readers, its followers pull.

Also the owner that its driver tells things to: what needs the controller goes to `FetchNews`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from clymq.broker.active_block import Closed, Listener, Readers, write_for
from clymq.broker.raft_block import answer_epoch, answer_push, checked_batches
from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import AckMismatch, ClymqError, CorruptBatch, CorruptBlock, NotLeader
from clymq.protocol.broker import OFFSET_UNKNOWN, InitProducer, Push
from clymq.protocol.controller import HostedBlock
from clymq.protocol.hosting import CloseAccept
from clymq.record import producer_id
from clymq.replication.entries import Entry
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_surroundings import PulledBatches
from clymq.replication.machine import Elected, PartitionMachine
from clymq.replication.producers import Claim
from clymq.replication.raft_partition import Stored
from clymq.rpc.peer import Call
from clymq.storage.block import Block
from clymq.types import Ack


class FetchNews(Protocol):
    """What the controller must hear of a fetch block."""

    def began(self, term: int) -> None:
        """This broker leads the block, and a majority has its first entry."""

    def needs_move(self, reason: str) -> None:
        """The partition needs its next block."""

    def replica_down(self, error: ClymqError) -> None:
        """This replica is lost or cannot write."""


class FetchBlock:
    """One active block on this broker, leader or not. `attach` it to the driver that it was made for."""

    def __init__(self, me: str, place: HostedBlock, machine: PartitionMachine, clock: Clock, news: FetchNews) -> None:
        self._me = me
        self.number = place.block
        self.start = place.start
        self.machine = machine
        self.listener = Listener()
        self._news = news
        self._clock = clock
        self._untold_term = 0

    def attach(self, driver: FetchDriver) -> None:
        """Speak through this driver from now on."""
        self.driver = driver
        self._readers = Readers(self._clock, self, driver.read)

    @property
    def end(self) -> int:
        """One past the last message that readers may see."""
        return self.driver.visible_end

    @property
    def leader(self) -> str | None:
        """Who leads this block, for as long as it lasts."""
        return self.driver.group.leader

    @property
    def file(self) -> Block:
        """The log on this broker's disk; to look at."""
        return self.driver.log.block

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """Write no more: the partition needs its next block."""
        self.driver.damaged(error)

    def let_go(self) -> None:
        """The block is served here no longer: whoever waits at its end asks elsewhere."""
        self._readers.fail(NotLeader(f"{self._me} has let go of {self.driver.group.name}"))

    # --- Verbs ---

    def push(self, call: Call, config: Config) -> None:
        """Store what is in the payload; it is answered as its ack says."""
        request: Push = call.request
        if request.ack not in {Ack.LEADER, Ack.NONE}:
            raise AckMismatch(f"{request.topic}/{request.partition} has no majority to acknowledge with")
        batches = checked_batches(call, config)

        def answer(outcome: Sequence[Stored] | ClymqError) -> None:
            if request.ack == Ack.NONE and not isinstance(outcome, ClymqError):
                outcome = [Stored(OFFSET_UNKNOWN, each.duplicate) for each in outcome]
            answer_push(call, batches, outcome)

        self.driver.push(batches, request.ack, answer)

    def init_producer(self, call: Call) -> None:
        """Give a producer its next epoch."""
        request: InitProducer = call.request
        claim = Claim(request.life, request.epoch)
        self.driver.init_producer(producer_id(request.producer), lambda outcome: answer_epoch(call, outcome), claim)

    def pull(self, call: Call) -> None:
        """Answer with what is visible from an offset on, or wait for it."""
        self.check_reading()
        self._readers.pull(call)

    def pull_by_position(self, call: Call) -> None:
        """Give another replica what it does not have."""

        def answer(outcome: PulledBatches | ClymqError) -> None:
            if isinstance(outcome, PulledBatches):
                call.reply(outcome.reply, [outcome.payload] if len(outcome.payload) else ())
            else:
                call.fail(outcome)

        self.driver.pull(call.request, answer)

    def write(self, entry: Entry, answer: Callable[[object], None]) -> None:
        """Put a control entry into the log."""
        write_for(self.listener, partial(self.driver.write, visible=True), entry, answer)

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole visible batches from an offset on."""
        return self.driver.read(offset, bytes_max)

    def check_reading(self) -> None:
        """Raise unless this is the block's leader; one that takes no more pushes still shows what it has."""
        group = self.driver.group
        if group.leader != self._me:
            raise NotLeader(f"{self._me} does not lead {group.name}", hint=group.leader)

    def check_sharing(self) -> None:
        """Raise unless messages may be leased here."""
        self.driver.check_writing()

    def close_accept(self, request: CloseAccept, answer: Closed) -> None:
        """End the block in good order, fence this replica, or end the block here after a fence."""
        if request.seal:
            self.driver.seal_after_fence(request.epoch, answer, trusted=request.trusted)
        elif request.fence:
            self.driver.fence(request.epoch, answer, source=request.source, trusted=request.trusted)
        else:
            self.driver.seal(request.epoch, answer, self.listener.leases())

    # --- What its driver tells it ---

    def leads(self, elected: Elected) -> None:
        """This replica has begun the block."""
        self.listener.leads(elected)
        self._untold_term = max(1, elected.term)
        self._tell_begun()

    def advanced(self) -> None:
        """Readers may see more."""
        self._readers.look()
        self.listener.advanced()
        self._tell_begun()

    def _tell_begun(self) -> None:
        """Tell that the block has begun, once that outlives this leader: then the block before is not needed any more,
        for whose SEAL a replica would look that was fenced before it had anything.
        """
        if self._untold_term and self.driver.is_begun_by_majority:
            term, self._untold_term = self._untold_term, 0
            self._news.began(term)

    def ask_for_move(self, reason: str) -> None:
        """The partition needs its next block."""
        self._news.needs_move(reason)

    def replica_down(self, error: ClymqError) -> None:
        """This replica cannot write, or does not know what it once promised."""
        self._news.replica_down(error)

    def whole(self) -> None:
        """This replica has everything up to a SEAL; the chain will say whether that is the end."""
