"""RabbitMQ streams: the servers of `rabbitmq`, over their own protocol; client `rstream`. A partition is a stream.

A stream is confirmed when a majority of its replicas has it, and never synced by the server, by design.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import importlib.util
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from benchmarks.contest import Turn, Watch
from benchmarks.peers.rabbitmq import RabbitMQ, missing_server
from benchmarks.peers.system import FIRST, Client, Pace, Promise, Task

UNCONFIRMED_MAX = 20_000
CREDIT = 50
ANSWER_SECONDS = 60.0
GUEST = {"username": "guest", "password": "guest"}


class RabbitMQStream(RabbitMQ):
    """See the module."""

    name, key = "RabbitMQ stream", "rabbitmq_stream"

    @classmethod
    def missing(cls) -> str | None:
        """Without server or client."""
        if missing_server() is None and importlib.util.find_spec("rstream") is None:
            return "rstream is not installed: scripts/setup --bench"
        return missing_server()

    @classmethod
    def version(cls) -> str:
        """Of server and client."""
        return f"{cls.server_version()}, rstream {importlib.metadata.version('rstream')}"

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """It never syncs."""
        if promise.synced or not promise.acknowledged:
            return None
        return "confirmed by a majority, never synced" if promise.replicas > 1 else "never synced"

    @property
    def address(self) -> str:
        """All servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._stream)


def _name(topic: str, partition: int) -> str:
    return f"{topic}.{partition}"


class RabbitMQStreamClient(Client):
    """`send_batch` with confirms, `subscribe` with messages as raw bytes."""

    def __init__(self, address: str, promise: Promise) -> None:
        super().__init__(address, promise)
        self._library: Any = importlib.import_module("rstream")

    @contextlib.asynccontextmanager
    async def _producer(self) -> AsyncIterator[Any]:
        host, _, port = self.address.partition(",")[0].partition(":")
        async with self._library.Producer(host, int(port), **GUEST) as producer:
            yield producer

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Create a stream for each partition."""
        del readers
        asyncio.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        arguments = {"initial-cluster-size": str(self.promise.replicas)}
        async with self._producer() as producer:
            for number in range(partitions):
                await producer.create_stream(_name(topic, number), arguments=arguments, exists_ok=True)

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Delete the streams."""
        del readers
        asyncio.run(self._drop(topic, partitions))

    async def _drop(self, topic: str, partitions: int) -> None:
        async with self._producer() as producer:
            for number in range(partitions):
                await producer.delete_stream(_name(topic, number))

    # --- Producing ---

    def produce(self, task: Task) -> Turn:
        """`send_batch`, with so many messages at most that are not confirmed."""
        return asyncio.run(self._produce(task))

    async def _produce(self, task: Task) -> Turn:
        confirms = _Confirms()
        async with self._producer() as producer:
            for number in range(task.partitions):
                await producer.send_wait(_name(task.topic, number), FIRST)
            watch = Watch()
            for partition, values in task.runs():
                await confirms.room_for(len(values))
                await producer.send_batch(_name(task.topic, partition), values, on_publish_confirm=confirms.take)
            await confirms.all()
            return watch.stop(confirms.confirmed)

    def write_paced(self, topic: str, pace: Pace) -> None:
        """`send_batch` with one message."""
        asyncio.run(self._write_paced(topic, pace))

    async def _write_paced(self, topic: str, pace: Pace) -> None:
        confirms = _Confirms()
        async with self._producer() as producer:
            await producer.send_wait(_name(topic, 0), FIRST)
            async for value in pace:
                await confirms.room_for(1)
                await producer.send_batch(_name(topic, 0), [value], on_publish_confirm=confirms.take)
            await confirms.all()

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """`send_wait`; connect anew where that fails."""
        asyncio.run(self._write_on(topic, acknowledged))

    async def _write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        async with self._producer() as producer:
            while True:
                await producer.send_wait(_name(topic, 0), FIRST)
                if acknowledged():
                    return

    # --- Consuming ---

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`subscribe`, from the beginning."""
        del reader
        return asyncio.run(self._consume(task))

    async def _consume(self, task: Task) -> Turn:
        count, over = 0, asyncio.Event()
        deadline = time.perf_counter() + task.seconds

        async def take(_message: bytes, _context: object) -> None:
            nonlocal count
            count += 1
            if count >= task.count or time.perf_counter() > deadline:
                over.set()

        async with self._subscribed(task.topic, take) as watch:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), task.seconds)
            return watch.stop(count)

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """`subscribe`."""
        asyncio.run(self._follow(topic, ready, taken))

    async def _follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        over = asyncio.Event()

        async def take(message: bytes, _context: object) -> None:
            if taken(bytes(message)):
                over.set()

        async with self._subscribed(topic, take):
            ready()
            await over.wait()

    @contextlib.asynccontextmanager
    async def _subscribed(self, topic: str, take: Callable[[bytes, object], Any]) -> AsyncIterator[Watch]:
        host, _, port = self.address.partition(",")[0].partition(":")
        async with self._library.Consumer(host, int(port), **GUEST) as consumer:
            watch = Watch()
            first = self._library.ConsumerOffsetSpecification(self._library.OffsetType.FIRST, None)
            await consumer.subscribe(
                _name(topic, 0), take, decoder=bytes, offset_specification=first, initial_credit=CREDIT
            )
            yield watch


class _Confirms:
    """Counts what is confirmed, and lets the producer wait."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self._moved = asyncio.Event()

    def take(self, _status: object) -> None:
        """Called for each message."""
        self.confirmed += 1
        self._moved.set()

    async def room_for(self, count: int) -> None:
        """Wait until so many more may be sent."""
        await self._until(lambda: self.sent - self.confirmed < UNCONFIRMED_MAX)
        self.sent += count

    async def all(self) -> None:
        """Wait until all are confirmed."""
        await self._until(lambda: self.sent == self.confirmed)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), ANSWER_SECONDS)
