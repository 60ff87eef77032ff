"""A producer's load on a whole cluster: numbers pushed in order, and judged by what was promised for them.

Many pushes are under way at once, so that what happens to a cluster always finds some in the middle. Any error that
reaches the producer fails the test: a client that retries must never see one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from clymq import AsyncProducer
from clymq.errors import ClymqError
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until
from rows import LONG_SECONDS, block_folders, values

UNDER_WAY_MAX = 16
PAUSE_SECONDS = 0.002


@dataclass
class Load:
    """Pushes 0, 1, 2, ... to a partition while it is entered; at the end waits for every answer."""

    cluster: ProcessCluster
    topic: str
    partition: str = "0"
    timeout: float = 60.0
    acknowledged: dict[int, int | None] = field(default_factory=dict)
    """The offset of each number that was acknowledged; None at ack 0."""
    answered_at: list[float] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    async def __aenter__(self) -> Load:
        self._ended = False
        self._count = 0
        self.producer = AsyncProducer(self.cluster.bootstrap, linger_ms=0, timeout=self.timeout)
        await self.producer.start()
        await self._push(0)
        self._task = asyncio.create_task(self._push_on())
        await self.goes_on()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType) -> None:
        if error is None:
            await self.goes_on()
        self._ended = True
        await self._task
        await self.producer.close()
        assert not self.errors, self.errors[0]

    async def goes_on(self, more: int = 20) -> float:
        """Wait until so many more pushes were begun and answered from now on; return how many seconds that took."""
        began, number = time.monotonic(), self._count + more
        await until(
            lambda: self.errors or len(self.acknowledged) > number,
            f"pushes to {self.topic} are answered",
            seconds_max=self.timeout,
        )
        return time.monotonic() - began

    async def _push_on(self) -> None:
        under_way: set[asyncio.Task[None]] = set()
        while not self._ended and not self.errors:
            under_way.add(asyncio.create_task(self._push(self._count)))
            await asyncio.sleep(PAUSE_SECONDS)
            if len(under_way) >= UNDER_WAY_MAX:
                _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        if under_way:
            await asyncio.wait(under_way)

    async def _push(self, number: int) -> None:
        self._count = number + 1
        try:
            receipt = await self.producer.push(self.topic, b"%d" % number, partition=self.partition)
        except ClymqError as error:
            self.errors.append(error)
        else:
            self.acknowledged[number] = receipt.offset
            self.answered_at.append(time.monotonic())

    async def judge(self) -> None:
        """Every number is there once and in order, each where it was said to be."""
        found = [int(value) for value in await values(self.cluster, self.topic, self.partition)]
        assert found == list(range(len(self.acknowledged)))
        wrong = {number: offset for number, offset in self.acknowledged.items() if offset not in {None, number}}
        assert not wrong

    async def judge_with_loss(self) -> int:
        """Every number is there at most once and in order; return how many that were acknowledged are not there."""
        found = [int(value) for value in await values(self.cluster, self.topic, self.partition)]
        assert found == sorted(set(found))
        assert set(found) <= set(self.acknowledged)
        return len(self.acknowledged) - len(found)


def restored(cluster: ProcessCluster) -> ProcessCluster:
    """Return the cluster, whole again whatever the test before has done to it."""
    cluster.heal()
    for name in (*cluster.zkservers, *cluster.brokers):
        cluster.processes.thaw(name)
        if not cluster.processes.is_running(name):
            cluster.start(name)
    return cluster


def batches(cluster: ProcessCluster, topic: str, block: int) -> list[Path]:
    """Return the files of one block of a topic with one partition, one for each replica."""
    return [folder / "batches" for folder in block_folders(cluster, topic) if folder.name == f"Block_{block}"]


async def equal(cluster: ProcessCluster, topic: str, block: int = 1, *, replicas: int = 3) -> float:
    """Wait until all replicas of a block hold the same bytes; return how many seconds that took."""

    def are_equal() -> bool:
        paths = batches(cluster, topic, block)
        try:
            if len(paths) != replicas or len({path.stat().st_size for path in paths}) > 1:
                return False
            return len({hashlib.blake2b(path.read_bytes()).digest() for path in paths}) == 1
        except FileNotFoundError:
            return False  # its folder is being made, or leaves

    return await until(are_equal, f"all replicas of block {block} of {topic} are equal", seconds_max=2 * LONG_SECONDS)
