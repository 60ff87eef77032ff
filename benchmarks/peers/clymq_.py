"""ClyMQ as its users have it: `ProcessCluster` for the servers, `AsyncProducer` and `AsyncConsumer` for the client.

One replica is one zkserver and one broker; three are one zkserver and three brokers. Every setting is at its default
but one: what was deleted leaves the disk after a second, Kafka's too, and not in a minute while others measure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import clymq
from benchmarks.contest import Turn, Watch
from benchmarks.peers.system import FIRST, Client, Pace, Promise, System, Task
from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.errors import ClymqError
from clymq.testing import ProcessCluster
from clymq.types import Ack

UNDER_WAY = 16
# Their runs are short, and wait for company in their partition; Kafka's client gathers three times as many bytes.
UNDER_WAY_OF_MANY_PARTITIONS = 1600
PULLED_MAX = 10_000
WAIT_SECONDS = 1.0
CREATED_AT_ONCE = 8
MANY_SECONDS = 300.0


def ack_for(promise: Promise) -> Ack:
    """Return the mode that keeps a promise: Raft syncs, fetch acknowledges what the leader has written."""
    if not promise.acknowledged:
        return Ack.NONE
    return Ack.QUORUM if promise.synced else Ack.LEADER


class Clymq(System):
    """See the module."""

    name, key = "ClyMQ", "clymq"

    def __init__(self, promise: Promise, folder: Path) -> None:
        super().__init__(promise, folder)
        self._cluster = ProcessCluster(
            brokers=promise.replicas, folder=folder, network="proxies", config={"delete_delay_ms": 1000}
        )
        self._is_open = False

    @classmethod
    def missing(cls) -> str | None:
        """Never."""
        return None

    @classmethod
    def version(cls) -> str:
        """The product's."""
        return f"clymq {clymq.__version__}"

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """Ack -1 is Raft, acks 1 and 0 are fetch mode."""
        if not promise.acknowledged:
            return "ack 0: answered on receipt, fsync every second"
        if promise.synced:
            return "ack -1: fdatasync on a majority before the ack" if promise.replicas > 1 else "ack -1: fdatasync"
        return "ack 1: written by the leader, fsync every second" + (
            ", two followers pull" if promise.replicas > 1 else ""
        )

    def start(self) -> None:
        """Start the cluster, or what was killed of it."""
        if not self._is_open:
            self._is_open = True
            self._cluster.open()
            return
        down = [name for name in self._names if not self._cluster.processes.is_running(name)]
        self._cluster.start(*down)

    @property
    def _names(self) -> tuple[str, ...]:
        return (*self._cluster.brokers, *self._cluster.zkservers)

    def kill(self, *numbers: int) -> None:
        """Kill brokers by number, or everything, the zkserver included."""
        self._cluster.kill(*([self._cluster.brokers[number] for number in numbers] or self._names))

    def leader(self, topic: str) -> int:
        """By the word of the brokers."""
        return self._cluster.brokers.index(self._cluster.leader(topic, "0"))

    def is_whole(self, topic: str) -> bool:
        """When all replicas are online."""
        return asyncio.run(self._is_whole(topic))

    async def _is_whole(self, topic: str) -> bool:
        async with AsyncAdmin(self.address) as admin:
            (found,) = [each for each in (await admin.status())["partitions"] if each["topic"] == topic]
            return len(found["online"]) == self.promise.replicas

    @property
    def address(self) -> str:
        """The bootstrap addresses."""
        return self._cluster.bootstrap

    @property
    def pids(self) -> list[int]:
        """Brokers and the zkserver."""
        processes = self._cluster.processes
        return [processes.pid(name) for name in self._names if processes.is_running(name)]

    def close(self) -> None:
        """Close the cluster."""
        if self._is_open:
            self._cluster.close()
            self._is_open = False
            super().close()


class ClymqClient(Client):
    """`push_many` with some calls under way; `pull` to Python messages."""

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Make a topic; partitions that are many are made several at a time."""
        del readers
        asyncio.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        async with AsyncAdmin(self.address, timeout=MANY_SECONDS) as admin:
            await admin.create_topic(topic, partitions=[], ack=Ack.UNSET)
            names = iter(range(partitions))

            async def create() -> None:
                for name in map(str, names):
                    await admin.create_partition(topic, name)
                    await admin.set_partition_state(
                        topic, name, ack=ack_for(self.promise), replicas=self.promise.replicas
                    )

            await asyncio.gather(*(create() for _ in range(CREATED_AT_ONCE)))

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Delete the topic."""
        del partitions, readers

        async def drop() -> None:
            async with AsyncAdmin(self.address, timeout=MANY_SECONDS) as admin:
                await admin.delete_topic(topic)

        asyncio.run(drop())

    def produce(self, task: Task) -> Turn:
        """`push_many`, so many calls at a time."""
        return asyncio.run(self._produce(task))

    async def _produce(self, task: Task) -> Turn:
        async with AsyncProducer(self.address) as producer:
            await asyncio.gather(
                *(producer.push_many(task.topic, [FIRST], partition=str(number)) for number in range(task.partitions))
            )
            watch, runs, count = Watch(), task.runs(), 0

            async def push() -> None:
                nonlocal count
                for partition, values in runs:
                    await producer.push_many(task.topic, values, partition=str(partition))
                    count += len(values)

            calls = UNDER_WAY if task.partitions == 1 else UNDER_WAY_OF_MANY_PARTITIONS
            await asyncio.gather(*(push() for _ in range(calls)))
            return watch.stop(count)

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`pull`, and the value of each message."""
        del reader
        return asyncio.run(self._consume(task))

    async def _consume(self, task: Task) -> Turn:
        async with AsyncConsumer(self.address) as consumer:
            await consumer.end_offsets(task.topic)
            watch, count, deadline = Watch(), 0, time.perf_counter() + task.seconds
            for partition in range(task.partitions):
                await consumer.assign(task.topic, str(partition))
            while count < task.count and time.perf_counter() < deadline:
                count += len([message.value for message in await consumer.pull(PULLED_MAX, WAIT_SECONDS)])
            return watch.stop(count)

    def write_paced(self, topic: str, pace: Pace) -> None:
        """`send` without linger."""
        asyncio.run(self._write_paced(topic, pace))

    async def _write_paced(self, topic: str, pace: Pace) -> None:
        async with AsyncProducer(self.address, linger_ms=0) as producer:
            await producer.push(topic, FIRST)
            async for value in pace:
                producer.send(topic, value)
            await producer.flush()

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """`pull` as soon as there is anything."""
        asyncio.run(self._follow(topic, ready, taken))

    async def _follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        async with AsyncConsumer(self.address) as consumer:
            await consumer.assign(topic, "0", "latest")
            await consumer.pull(1, 0.1)
            ready()
            while True:
                for message in await consumer.pull(1000, WAIT_SECONDS):
                    if taken(message.value):
                        return

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """One `push` after the other; the client itself finds the new leader."""
        asyncio.run(self._write_on(topic, acknowledged))

    async def _write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        async with AsyncProducer(self.address) as producer:
            while True:
                try:
                    await producer.push(topic, FIRST)
                except ClymqError:
                    continue
                if acknowledged():
                    return
