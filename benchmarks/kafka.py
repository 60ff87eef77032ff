"""Clients of Kafka: `confluent-kafka`, which is librdkafka with a thin layer of C above it, and `aiokafka`.

Both talk to librdkafka's mock broker (`kafka_mock`): no disk, no replication, nothing that would hold a client up. They
are set as ours are by default: acks 1, some milliseconds of linger, a buffer of 64 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
from collections.abc import AsyncIterator, Iterator
from typing import Any

from benchmarks.contest import Turn, Watch
from benchmarks.load import DISTINCT, Load
from benchmarks.processes import python

LINGER_MS = 5
BUFFER_KIB = 64 * 1024
QUEUED_MESSAGES_MAX = 1_000_000
PARTITIONS = 4
KEPT_BYTES = 5 << 20  # by the mock, of each partition
FRAMING_BYTES = 30  # of a message, at most
WAIT_SECONDS = 10.0
AIOKAFKA_SHARE = 0.1


@contextlib.contextmanager
def mock() -> Iterator[str | None]:
    """Run the mock broker and yield its address; None without librdkafka."""
    if importlib.util.find_spec("confluent_kafka") is None:
        yield None
        return
    with python(["-m", "benchmarks.kafka_mock"]) as server:
        yield server.address


def topics_of(load: Load) -> list[str]:
    """Return the topics that hold the messages of a turn: each partition keeps so much and no more."""
    kept = PARTITIONS * (KEPT_BYTES // (load.size_bytes + FRAMING_BYTES)) * 9 // 10
    return [f"read-{load.size_bytes}-{number}" for number in range(-(-load.count // kept))]


class Confluent:
    """`confluent-kafka`; its calls block, and nothing else runs meanwhile."""

    def __init__(self, address: str) -> None:
        self._library: Any = importlib.import_module("confluent_kafka")
        self._address = address

    # --- Producing ---

    def _producer(self, topic: str) -> Any:
        producer = self._library.Producer({
            "bootstrap.servers": self._address, "acks": 1, "linger.ms": LINGER_MS,
            "queue.buffering.max.kbytes": BUFFER_KIB, "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
            "log_level": 0,
        })  # fmt: skip
        producer.produce(topic, b"warm")
        producer.flush()
        return producer

    async def produce(self, load: Load) -> Turn:
        """Call `produce` for each message, then `flush`."""
        producer, topic = self._producer("write"), "write"
        produce, some = producer.produce, load.some
        watch = Watch()
        for _ in range(load.count // DISTINCT):
            try:
                for value in some:
                    produce(topic, value)
            except BufferError as error:
                raise AssertionError("the turn is larger than the buffer") from error
        producer.flush()
        turn = watch.stop(load.count)
        producer.close()
        return turn

    async def produce_batch(self, load: Load) -> Turn:
        """Call `produce_batch` for each thousand messages, then `flush`; it wants a dict for each."""
        producer = self._producer("write")
        watch = Watch()
        for _ in range(load.count // DISTINCT):
            producer.produce_batch("write", [{"value": value} for value in load.some])
        producer.flush()
        turn = watch.stop(load.count)
        producer.close()
        return turn

    async def fill(self, load: Load) -> None:
        """Store what is going to be read."""
        topics = topics_of(load)
        producer = self._producer(topics[0])
        for topic in topics:
            for number in range(-(-load.count // len(topics) // DISTINCT)):
                for value in load.some:
                    producer.produce(topic, value, partition=number % PARTITIONS)
            producer.flush()
        producer.close()

    # --- Consuming ---

    def _consumer(self) -> Any:
        consumer = self._library.Consumer({
            "bootstrap.servers": self._address, "group.id": "bench", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "log_level": 0,
            # At 100,000 messages, its default, it stops fetching for a whole second: not what is to be measured.
            "queued.min.messages": QUEUED_MESSAGES_MAX, "queued.max.messages.kbytes": 2 * BUFFER_KIB,
        })  # fmt: skip
        consumer.list_topics(timeout=WAIT_SECONDS)
        return consumer

    def _assign(self, consumer: Any, load: Load) -> None:
        place, beginning = self._library.TopicPartition, self._library.OFFSET_BEGINNING
        consumer.assign([place(topic, n, beginning) for topic in topics_of(load) for n in range(PARTITIONS)])

    async def consume(self, load: Load) -> Turn:
        """Call `consume(1000)` until all are there."""
        consumer = self._consumer()
        watch, left = Watch(), load.count
        self._assign(consumer, load)
        while left > 0:
            messages = consumer.consume(1000, WAIT_SECONDS)
            assert messages, "no message in time"
            left -= len(messages)
        turn = watch.stop(load.count - left)
        consumer.close()
        return turn

    async def poll(self, load: Load) -> Turn:
        """Call `poll` for each message."""
        consumer = self._consumer()
        poll = consumer.poll
        watch = Watch()
        self._assign(consumer, load)
        for _ in range(load.count):
            assert poll(WAIT_SECONDS) is not None, "no message in time"
        turn = watch.stop(load.count)
        consumer.close()
        return turn


class Aiokafka:
    """`aiokafka`; it gets a tenth of the messages."""

    def __init__(self, address: str) -> None:
        self._library: Any = importlib.import_module("aiokafka")
        self._address = address

    @staticmethod
    def is_installed() -> bool:
        """Whether it can be measured."""
        return importlib.util.find_spec("aiokafka") is not None

    async def send(self, load: Load) -> Turn:
        """Call `send` for each message, and wait for the last futures."""
        count = load.part(AIOKAFKA_SHARE)
        producer = self._library.AIOKafkaProducer(bootstrap_servers=self._address, acks=1, linger_ms=LINGER_MS)
        async with producer:
            await producer.send_and_wait("write", b"warm")
            watch = Watch()
            for _ in range(count // DISTINCT):
                for value in load.some:
                    await producer.send("write", value)
            await producer.flush()
            return watch.stop(count)

    @contextlib.asynccontextmanager
    async def _consumer(self) -> AsyncIterator[Any]:
        consumer = self._library.AIOKafkaConsumer(
            bootstrap_servers=self._address, enable_auto_commit=False, auto_offset_reset="earliest"
        )
        async with consumer:
            yield consumer

    async def _assign(self, consumer: Any, load: Load) -> None:
        place = self._library.TopicPartition
        consumer.assign([place(topic, n) for topic in topics_of(load) for n in range(PARTITIONS)])
        await consumer.seek_to_beginning()

    async def getmany(self, load: Load) -> Turn:
        """Call `getmany(max_records=1000)` until there are enough."""
        count = load.part(AIOKAFKA_SHARE)
        async with self._consumer() as consumer:
            watch, taken = Watch(), 0
            await self._assign(consumer, load)
            while taken < count:
                found = await consumer.getmany(timeout_ms=int(WAIT_SECONDS * 1000), max_records=1000)
                assert found, "no message in time"
                taken += sum(map(len, found.values()))
            return watch.stop(taken)

    async def iterate(self, load: Load) -> Turn:
        """`async for`."""
        count = load.part(AIOKAFKA_SHARE)
        async with self._consumer() as consumer, asyncio.timeout(WAIT_SECONDS * 6):
            watch, left = Watch(), count
            await self._assign(consumer, load)
            async for _message in consumer:
                left -= 1
                if not left:
                    break
            return watch.stop(count)
