"""An active Raft block as a broker serves it. Only the leader answers, and what readers see is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clymq.broker.active_block import ActiveBlock, Closed, Listener, Readers, write_for
from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import AckMismatch, ClymqError, CorruptBatch, CorruptBlock, InvalidRequest, NotHosted
from clymq.protocol.broker import (
    RUN_BATCHES_MAX,
    InitProducer,
    ProducerReady,
    Pull,
    Pulled,
    Push,
    Pushed,
    StoredAt,
    StoredBatch,
)
from clymq.protocol.controller import HostedBlock
from clymq.protocol.hosting import BlockClosed, CloseAccept
from clymq.record import producer_id
from clymq.record.batch import Batch
from clymq.replication.entries import Entry
from clymq.replication.machine import Elected
from clymq.replication.producers import Claim, Initialised
from clymq.replication.raft_driver import RaftDriver
from clymq.replication.raft_partition import RaftPartition, Stored
from clymq.rpc.peer import Call
from clymq.storage.block import Block
from clymq.types import Ack


class RaftBlock:
    """One active block on this broker, leader or not."""

    def __init__(
        self,
        place: HostedBlock,
        partition: RaftPartition,
        driver: RaftDriver,
        clock: Clock,
        fence: Callable[[int], ActiveBlock],
    ) -> None:
        """`fence` takes this replica out of its group, under an epoch, and returns what is here instead."""
        self._fence = fence
        self.number = place.block
        self.start = place.start
        self.machine = partition.machine
        self.driver = driver
        self._partition = partition
        self.listener = Listener()
        self._readers = Readers(clock, self, driver.read)
        partition.on_advance = self._advanced
        partition.on_lost = self._lost
        partition.on_leases = self._leads
        partition.leases = self._leases

    @property
    def end(self) -> int:
        """One past the last message that readers may see."""
        return self.driver.committed_offset

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this replica knows."""
        return self.driver.leader

    @property
    def file(self) -> Block:
        """The log on this broker's disk; to look at."""
        return self.driver.replica.block

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """Be lame from here on, and mended by the others."""
        self.driver.damaged(error)

    def push(self, call: Call, config: Config) -> None:
        """Store what is in the payload; it is answered when a majority has it on its disks."""
        self.driver.check_leading()
        request: Push = call.request
        if request.ack != Ack.QUORUM:
            raise AckMismatch(
                f"{request.topic}/{request.partition} acknowledges with a majority, not with {request.ack}"
            )
        batches = checked_batches(call, config)
        self._partition.push(batches, lambda outcome: answer_push(call, batches, outcome))

    def init_producer(self, call: Call) -> None:
        """Give a producer its next epoch."""
        request: InitProducer = call.request
        claim = Claim(request.life, request.epoch)
        self._partition.init_producer(producer_id(request.producer), lambda outcome: answer_epoch(call, outcome), claim)

    def pull(self, call: Call) -> None:
        """Answer with what is there from an offset on, or wait for it."""
        self._partition.check_reading()
        self._readers.pull(call)

    def pull_by_position(self, call: Call) -> None:
        """Give bytes of a block that has ended to a replica that mends, or that begins the next block."""
        request: Pull = call.request
        if not self.machine.sealed:
            raise NotHosted(f"block {self.number} of {request.topic}/{request.partition} has not ended here")
        block = self.driver.replica.block
        position = block.position_of(block.last_index) if request.position < 0 else request.position
        data = block.read_at(position, request.bytes_max, block.end_position)
        call.reply(Pulled(high_watermark=self.end, log_start=self.start, block=self.number, position=position), [data])

    def write(self, entry: Entry, answer: Callable[[object], None]) -> None:
        """Put a control entry into the log."""
        write_for(self.listener, self._partition.write, entry, answer)

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole committed batches from an offset on."""
        return self.driver.read(offset, bytes_max)

    def check_reading(self) -> None:
        """Raise unless this replica leads and knows what is committed."""
        self._partition.check_reading()

    def check_sharing(self) -> None:
        """Raise unless messages may be leased here."""
        self._partition.check_sharing()

    def close_accept(self, request: CloseAccept, answer: Closed) -> None:
        """End the block, for which a majority is needed; without one an operator may fence replicas of it."""
        if request.fence:
            self._fence(request.epoch).close_accept(request, answer)
            return

        def sealed(outcome: Stored | ClymqError) -> None:
            answer(self._closed() if isinstance(outcome, Stored) else outcome)

        self._partition.seal(sealed)

    def _leads(self, elected: Elected) -> None:
        self.listener.leads(elected)

    def _leases(self) -> Sequence[bytes]:
        return self.listener.leases()

    def _advanced(self) -> None:
        self._readers.look()
        self.listener.advanced()

    def _lost(self, error: ClymqError) -> None:
        self._readers.fail(error)
        self.listener.lost(error)

    def _closed(self) -> BlockClosed:
        block = self.driver.replica.block
        _, seal = next(block.headers(block.last_index))
        return BlockClosed(
            start=block.start_offset,
            end=block.end_offset,
            seal_index=seal.index,
            seal_crc=seal.header_crc,
            bytes=block.end_position,
            last_append_time=seal.append_time,
            last_index=seal.index,
        )


def checked_batches(call: Call, config: Config) -> list[Batch]:
    """Return the batches of a push, past all checks of the door; what the request repeats must be what they say."""
    request: Push = call.request
    if not 1 <= request.batches <= RUN_BATCHES_MAX:
        raise InvalidRequest(f"a push of {request.batches} batches; 1 to {RUN_BATCHES_MAX} are allowed")
    payload, producer, position = call.payload, producer_id(request.producer), 0
    # A broker's own letters to a dead letter topic carry headers beside what the producer was allowed.
    message_bytes_max = config.message_bytes_max if "/" not in request.producer else config.batch_bytes_max
    batches: list[Batch] = []
    for _ in range(request.batches):
        batch = Batch(payload, position, batch_bytes_max=config.batch_bytes_max)
        if batch.producer != producer or (not position and batch.cmdindex != request.cmdindex):
            raise InvalidRequest("the request and its batch do not name the same producer and cmdindex")
        batch.check()
        batch.check_sizes(message_bytes_max)
        batches.append(batch)
        position += batch.length
    if position != len(payload):
        raise InvalidRequest(f"{len(payload) - position} bytes follow the {request.batches} batches of a push")
    return batches


def answer_push(call: Call, batches: Sequence[Batch], outcome: Sequence[Stored] | ClymqError) -> None:
    """Answer a Push: where each of its batches is, or why not."""
    if isinstance(outcome, ClymqError):
        call.fail(outcome)
        return
    first, *more = (
        StoredAt(stored.base_offset, batch.append_time, stored.duplicate)
        for batch, stored in zip(batches, outcome, strict=True)
    )
    call.reply(Pushed(first.base_offset, first.append_time, first.duplicate, tuple(more)))


def answer_epoch(call: Call, outcome: object) -> None:
    """Answer an InitProducer."""
    if isinstance(outcome, Initialised):
        stored = tuple(StoredBatch(kept.cmdindex, kept.count, kept.base_offset) for kept in outcome.kept)
        call.reply(ProducerReady(outcome.epoch, outcome.next, stored))
    else:
        assert isinstance(outcome, ClymqError)
        call.fail(outcome)
