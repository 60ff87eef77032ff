"""`nats-py` with one server that keeps its stream in files; it gets a part of the messages, being slower by far."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.contest import Turn, Watch
from benchmarks.load import DISTINCT, Load

SHARE = 0.04
WAIT_SECONDS = 60.0


class NatsClient:
    """See the module. A stream for each subject."""

    def __init__(self, address: str) -> None:
        self._library: Any = importlib.import_module("nats")
        self._address = address

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        client = await self._library.connect(servers=[self._address])
        try:
            yield client.jetstream(timeout=WAIT_SECONDS)
        finally:
            await client.close()

    async def create(self, stream: str) -> None:
        """Make a stream in a file."""
        async with self._connected() as streams:
            await streams.add_stream(name=stream, subjects=[stream], num_replicas=1, storage="file")

    async def publish_async(self, load: Load) -> Turn:
        """Call `publish_async` for each message, and wait until all are stored."""
        async with self._connected() as streams:
            await streams.publish("write", b"warm")
            watch = Watch()
            await self._publish(streams, "write", load)
            return watch.stop(load.part(SHARE))

    async def fill(self, load: Load) -> None:
        """Store what is going to be read."""
        await self.create(_read_stream(load))
        async with self._connected() as streams:
            await self._publish(streams, _read_stream(load), load)

    async def _publish(self, streams: Any, subject: str, load: Load) -> None:
        for _ in range(load.part(SHARE) // DISTINCT):
            for value in load.some:
                await streams.publish_async(subject, value, wait_stall=WAIT_SECONDS)
        await streams.publish_async_completed()

    async def publish_one_by_one(self, subject: str, value: bytes, count: int) -> list[float]:
        """Call `publish` again and again, each after the one before; return how long each took, in milliseconds."""
        async with self._connected() as streams:
            await streams.publish(subject, value)
            taken = []
            for _ in range(count):
                began = time.perf_counter()
                await streams.publish(subject, value)
                taken.append(1000 * (time.perf_counter() - began))
            return taken

    async def fetch(self, load: Load) -> Turn:
        """Call `fetch(1000)` until there are enough."""
        policy = self._library.js.api.ConsumerConfig(ack_policy="none")
        async with self._connected() as streams:
            watch, taken = Watch(), 0
            subscription = await streams.pull_subscribe(_read_stream(load), config=policy)
            while taken < load.part(SHARE):
                taken += len(await subscription.fetch(1000, timeout=WAIT_SECONDS))
            return watch.stop(taken)

    async def iterate(self, load: Load) -> Turn:
        """`async for`, over an ordered consumer."""
        async with self._connected() as streams, asyncio.timeout(WAIT_SECONDS):
            watch, left = Watch(), load.part(SHARE)
            subscription = await streams.subscribe(_read_stream(load), ordered_consumer=True)
            async for _message in subscription.messages:
                left -= 1
                if not left:
                    break
            return watch.stop(load.part(SHARE))


def _read_stream(load: Load) -> str:
    return f"read-{load.size_bytes}"
