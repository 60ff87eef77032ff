"""An active Raft block as a broker serves it: pushes, reads that may wait, and its end.

Only the leader answers. What readers see is committed; a reader that has come to the end waits here until more is,
until its time is over, until the block is sealed, or until leadership is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import ClymqError, NotLeader, OffsetOutOfRange
from clymq.protocol.broker import InitProducer, ProducerReady, Pull, Pulled, Pushed, StoredBatch
from clymq.protocol.controller import HostedBlock
from clymq.protocol.hosting import BlockClosed
from clymq.record import producer_id
from clymq.record.batch import Batch
from clymq.replication.producers import Initialised
from clymq.replication.raft_driver import RaftDriver
from clymq.replication.raft_partition import RaftPartition, Stored
from clymq.rpc.peer import Call


class RaftBlock:
    """One active block on this broker, leader or not."""

    def __init__(self, place: HostedBlock, partition: RaftPartition, driver: RaftDriver, clock: Clock) -> None:
        self.number = place.block
        self.epoch = place.epoch
        self.start = place.start
        self.partition = partition
        self.driver = driver
        self._clock = clock
        self._readers: list[_Reader] = []
        partition.on_advance = self._advanced
        partition.on_lost = self._lost

    @property
    def end(self) -> int:
        """One past the last message that readers may see."""
        return self.driver.committed_offset

    # --- Verbs ---

    def push(self, call: Call, config: Config) -> None:
        """Store the batch in the payload; it is answered when a majority has it on its disks."""
        self.driver.check_leading()
        batch = Batch.parse(call.payload, batch_bytes_max=config.batch_bytes_max)
        batch.check()

        def answer(outcome: Stored | ClymqError) -> None:
            if isinstance(outcome, Stored):
                call.reply(Pushed(outcome.base_offset, batch.append_time, outcome.duplicate))
            else:
                call.fail(outcome)

        self.partition.push(batch, answer)

    def init_producer(self, call: Call) -> None:
        """Give a producer its next epoch."""
        request: InitProducer = call.request

        def answer(outcome: object) -> None:
            if isinstance(outcome, Initialised):
                stored = tuple(StoredBatch(kept.cmdindex, kept.count, kept.base_offset) for kept in outcome.kept)
                call.reply(ProducerReady(outcome.epoch, outcome.next, stored))
            else:
                assert isinstance(outcome, ClymqError)
                call.fail(outcome)

        self.partition.init_producer(producer_id(request.producer), answer)

    def pull(self, call: Call) -> None:
        """Answer with what is there from an offset on, or wait for it."""
        self.partition.check_reading()
        request: Pull = call.request
        if request.offset < self.start or request.offset > self.end:
            raise OffsetOutOfRange(request.offset, first=self.start, end=self.end)
        if request.offset < self.end or not request.wait_ms_max or self.partition.machine.sealed:
            self._answer(call)
            return
        reader = _Reader(call)
        reader.timer = self._clock.call_later(request.wait_ms_max, lambda: self._give_up(reader))
        call.on_cancel(lambda: self._forget(reader))
        self._readers.append(reader)

    def seal(self, answer: Callable[[BlockClosed | ClymqError], None]) -> None:
        """End the block; a second call is answered like the first."""

        def sealed(outcome: Stored | ClymqError) -> None:
            answer(self.closed() if isinstance(outcome, Stored) else outcome)

        self.partition.seal(sealed)

    def closed(self) -> BlockClosed:
        """Say how the block ended."""
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

    # --- Waiting readers ---

    def _advanced(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if reader.request.offset < self.end or self.partition.machine.sealed:
                self._finish(reader)
            else:
                self._readers.append(reader)

    def _lost(self, error: NotLeader) -> None:
        """Leadership is lost: whoever waits asks the next leader."""
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.stop()
            reader.call.fail(error)

    def _give_up(self, reader: _Reader) -> None:
        self._readers.remove(reader)
        self._finish(reader)

    def _forget(self, reader: _Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            reader.stop()

    def _finish(self, reader: _Reader) -> None:
        reader.stop()
        try:
            self._answer(reader.call)
        except ClymqError as error:
            reader.call.fail(error)

    def _answer(self, call: Call) -> None:
        request: Pull = call.request
        end = self.end
        data = self.driver.read(request.offset, request.bytes_max) if request.offset < end else memoryview(b"")
        done = self.partition.machine.sealed and request.offset >= end
        call.reply(
            Pulled(
                high_watermark=end, log_start=self.start, block=self.number, next_block=self.number + 1 if done else 0
            ),
            [data] if data else (),
        )


class _Reader:
    """A pull that waits."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.request: Pull = call.request
        self.timer: Timer | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
