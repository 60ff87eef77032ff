"""What the tests of Spark do with the cluster beside Spark."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer

# Spark fills both cores of a small machine: leaders must not lose their office for that.
SLOW_ELECTIONS = {
    "election_ms_min": 3000,
    "election_ms_max": 5000,
    "session_timeout_ms": 20_000,
    "retention_check_ms": 200,
}
_numbers = itertools.count()


class Queue:
    """What tests do with the cluster beside Spark."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def topic(self, partitions: int | Sequence[str] = 2, **options: Any) -> str:
        name = f"topic{next(_numbers)}"
        self.admin(lambda admin: admin.create_topic(name, partitions=partitions, **options))
        return name

    def admin(self, work: Callable[[AsyncAdmin], Any]) -> Any:
        async def run() -> Any:
            async with AsyncAdmin(self.bootstrap, timeout=60) as admin:
                return await work(admin)

        return asyncio.run(run())

    def push(self, topic: str, values: Sequence[bytes], **columns: Any) -> None:
        async def run() -> None:
            async with AsyncProducer(self.bootstrap, timeout=60) as producer:
                await producer.push_many(topic, values, **columns)

        asyncio.run(run())

    def pull(self, topic: str) -> list[Any]:
        """Return all messages that are there."""

        async def run() -> list[Any]:
            found: list[Any] = []
            async with AsyncConsumer(self.bootstrap, timeout=60) as consumer:
                ends = await consumer.end_offsets(topic)
                for partition in ends:
                    await consumer.assign(topic, partition, "earliest")
                while sum(ends.values()) > len(found):
                    found += await consumer.pull(100_000, timeout=10)
            return found

        return asyncio.run(run())

    def ends(self, topic: str) -> dict[str, int]:
        """Return where each partition ends."""

        async def run() -> dict[str, int]:
            async with AsyncConsumer(self.bootstrap, timeout=60) as consumer:
                return await consumer.end_offsets(topic)

        return asyncio.run(run())
