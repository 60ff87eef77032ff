"""Dead letters on their way: from the partition in which they were given up to the same one of `<topic>.dlq`.

What is given up stands in the log first (DEAD, with a number), is pushed under that number, and is forgotten when the
log says that it arrived (DONE). The producer's name is the partition's uid and the group, so that a leader that repeats
what the one before it may have pushed already is recognised: each letter is there once.

This is the broker's own small producer: it speaks the verbs that any producer speaks, and makes the topic if it is not
there. It takes its time; nobody waits for it. A letter that cannot be delivered stays in the log and is tried again;
one that is too large is made to fit (`letters`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from clymq.broker.endings import DEAD_LETTERS_SUFFIX
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.letters import Letters
from clymq.broker.neighbours import ActiveController, Neighbours
from clymq.broker.reading import Locating, read_here
from clymq.broker.sharing import Sharing
from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.errors import (
    ClymqError,
    CorruptBatch,
    DataLost,
    MessageTooLarge,
    NotReady,
    OffsetOutOfRange,
    PartitionUnset,
    UnknownPartition,
    UnknownTopic,
)
from clymq.protocol.broker import InitProducer, Pull, Push
from clymq.protocol.controller import (
    CreatePart,
    CreateTopic,
    DescribeTopic,
    ProducerRoute,
    ProGetBroker,
    SetPartitionState,
)
from clymq.record import Batch, Kind, Record
from clymq.record.layout import FORMAT_BYTES_MAX
from clymq.replication.cursors import DeadLetter
from clymq.replication.entries import Done
from clymq.types import Ack, Mode

log = logging.getLogger("clymq.broker")

ASK_MS: Final = 5_000.0
RETRY_MS_MIN: Final = 100.0
RETRY_MS_MAX: Final = 10_000.0
READ_BYTES: Final = 1024 * 1024


class DeadLetters:
    """Delivers the dead letters of the partitions that are led here, one partition at a time each."""

    def __init__(
        self,
        controller: ActiveController,
        neighbours: Neighbours,
        locating: Locating,
        clock: Clock,
        config: Config,
    ) -> None:
        self._controller = controller
        self._neighbours = neighbours
        self._locating = locating
        self._clock = clock
        self._config = config
        self._working: set[Sharing] = set()
        self.cut_messages = 0
        """How many had to be cut, since this process began."""
        self.undelivered_messages = 0
        """How many fit into no batch at all."""

    async def deliver(self, sharing: Sharing) -> None:
        """Deliver what there is, until there is nothing left or this broker leads the block no more."""
        if sharing in self._working:
            return
        self._working.add(sharing)
        try:
            retry_ms = RETRY_MS_MIN
            while sharing.leading and (group := _next_group(sharing)) is not None:
                try:
                    await self._deliver_of(sharing, group)
                    retry_ms = RETRY_MS_MIN
                except ClymqError as error:
                    log.warning("%s: dead letters of %s wait: %s", _name(sharing.partition), group, error)
                    await pause(self._clock, retry_ms)
                    retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
        finally:
            self._working.discard(sharing)

    async def _deliver_of(self, sharing: Sharing, group: str) -> None:
        """Push the letters of one group, in the order of their numbers."""
        partition = sharing.partition
        route = await self._route(partition)
        producer = f"{partition.uid}/{group}"
        topic = partition.topic + DEAD_LETTERS_SUFFIX
        self._neighbours.know({route.broker: route.address})
        begin = InitProducer(topic, partition.name, route.uid, producer)
        ready = (await self._neighbours.ask(route.broker, begin, timeout_ms=ASK_MS)).reply
        while sharing.leading and (waiting := sharing.block.machine.dead_letters(group)):
            seq, letter = next(iter(waiting.items()))
            if seq >= ready.next:
                letters = await self._letters(partition, group, letter)
                push = Push(topic, partition.name, route.uid, producer, seq, route.ack)
                try:
                    batch = letters.build(producer=producer, cmdindex=seq, epoch=ready.epoch, now=self._clock.wall_us())
                    await self._neighbours.ask(route.broker, push, [batch], timeout_ms=ASK_MS)
                    self._count_cut(partition, letters.cut)
                except MessageTooLarge as error:
                    self._give_up(partition, letter, error)
            await _written(sharing, Done(group=group, seq=seq))

    def _count_cut(self, partition: HostedPartition, messages: int) -> None:
        if messages:
            self.cut_messages += messages
            log.warning("%s: %d dead letters were too large and are cut", _name(partition), messages)

    def _give_up(self, partition: HostedPartition, letter: DeadLetter, error: ClymqError) -> None:
        """No batch takes it, however short: it stays where it is, and those behind it go on."""
        start, end = letter.range.start, letter.range.end
        self.undelivered_messages += end - start
        log.error("%s: [%d, %d) are dead and go nowhere: %s", _name(partition), start, end, error)

    # --- Where to ---

    async def _route(self, partition: HostedPartition) -> ProducerRoute:
        topic = partition.topic + DEAD_LETTERS_SUFFIX
        try:
            return await self._controller.ask(ProGetBroker(topic, partition.name), timeout_ms=ASK_MS)
        except (UnknownTopic, UnknownPartition, PartitionUnset):
            await self._make(partition, topic)
            return await self._controller.ask(ProGetBroker(topic, partition.name), timeout_ms=ASK_MS)

    async def _make(self, partition: HostedPartition, topic: str) -> None:
        """Make the partition for dead letters. A majority has a letter on its disks BEFORE its DONE is written.

        Whatever the mode of the one that they come from: in fetch mode a power cut might take the letter from one log
        and leave DONE in the other. Letters are few, and what is in them is given out to nobody any more.
        """
        described = await self._controller.ask(DescribeTopic(partition.topic), timeout_ms=ASK_MS)
        source = next(each for each in described.partitions if each.partition == partition.name)
        await self._controller.ask(CreateTopic(topic), timeout_ms=ASK_MS)
        await self._controller.ask(CreatePart(topic, partition.name), timeout_ms=ASK_MS)
        state = SetPartitionState(topic, partition.name, Ack.QUORUM, len(source.replicas))
        await self._controller.ask(state, timeout_ms=self._config.move_wait_ms_max)

    # --- What is in it ---

    async def _letters(self, partition: HostedPartition, group: str, letter: DeadLetter) -> Letters:
        """Return the messages of a letter; of those that cannot be read any more only the offset is left."""
        limit = self._config.batch_bytes_max
        letters = Letters(partition.topic, partition.name, group, letter, batch_bytes_max=limit)
        offset = letter.range.start
        while offset < letter.range.end:
            try:
                batch = await self._batch(partition, offset)
                for record in [each for each in batch if offset <= each.offset < letter.range.end]:
                    letters.add(record)
                    offset = record.offset + 1
            except (OffsetOutOfRange, DataLost, CorruptBatch) as error:
                log.warning("%s: offset %d is a dead letter without a value: %s", _name(partition), offset, error)
                letters.add(Record(offset, self._clock.wall_us(), None, b"", ()))
                offset += 1
        return letters

    async def _batch(self, partition: HostedPartition, offset: int) -> Batch:
        """Return the batch that holds an offset, as its producer sent it; a damaged copy sends us to another one."""
        found = read_here(partition, offset, READ_BYTES)
        batch = _intact(found.data, offset) if found is not None else None
        if batch is not None:
            return batch
        locator = await self._locating.find(partition, offset)
        self._neighbours.know({locator.broker: locator.address})
        pull = Pull(
            partition.topic,
            partition.name,
            partition.uid,
            offset=offset,
            bytes_max=READ_BYTES,
            mode=Mode.PSB_PULL,
        )
        answer = await self._neighbours.ask(locator.broker, pull, timeout_ms=ASK_MS)
        batch = _intact(answer.payload, offset)
        if batch is None:
            raise NotReady(f"the copy of offset {offset} at {locator.broker} is damaged")
        return batch


def _next_group(sharing: Sharing) -> str | None:
    machine = sharing.block.machine
    return next((group for group in machine.ptp_groups() if machine.dead_letters(group)), None)


def _intact(data: memoryview, offset: int) -> Batch | None:
    """Return the batch that holds an offset, if its checksums are right."""
    position = 0
    try:
        while position < len(data):
            batch = Batch.parse(data, position, batch_bytes_max=FORMAT_BYTES_MAX)
            if batch.kind == Kind.DATA and batch.base_offset <= offset < batch.end_offset:
                batch.check_crc()
                return batch
            position += batch.length
    except CorruptBatch as error:
        log.warning("a copy of offset %d is damaged: %s", offset, error)
    return None


async def _written(sharing: Sharing, entry: Done) -> None:
    """Put an entry into the log and wait until it is there."""
    applied: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def answer(outcome: object) -> None:
        if not applied.done():
            applied.set_result(outcome)

    sharing.block.write(entry, answer)
    outcome = await applied
    if isinstance(outcome, ClymqError):
        raise outcome


def _name(partition: HostedPartition) -> str:
    return f"{partition.topic}/{partition.name}"
