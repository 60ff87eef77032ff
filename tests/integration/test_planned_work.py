"""What Spark's tasks do, without Spark: ranges of a partition are read, numbered batches are written once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clymq import AsyncAdmin, AsyncProducer
from clymq.client.cluster import Cluster
from clymq.client.exactly_once import Build, SparseWriter
from clymq.client.offsets import end_offset, find_topic, offset_of_time
from clymq.client.ranges import RangeReader
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Deadline
from clymq.errors import InvalidRequest, OffsetOutOfRange, OutOfSequence, ProducerFenced, UnknownPartition
from clymq.record import BatchBuilder
from clymq.testing import LocalCluster

FIRST, LAST = 1 << 20, (2 << 20) - 1


def on_an_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:
        yield running


@asynccontextmanager
async def connected(cluster: LocalCluster, topic: str, **options: object) -> AsyncIterator[Cluster]:
    async with AsyncAdmin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, **options)  # type: ignore[arg-type]
    client = Cluster(cluster.bootstrap, name="planned", role="test", surroundings=Surroundings())
    try:
        yield client
    finally:
        await client.close()


async def push(cluster: LocalCluster, topic: str, values: list[bytes], **columns: object) -> None:
    async with AsyncProducer(cluster.bootstrap, batch_bytes=1000) as producer:
        await producer.push_many(topic, values, **columns)  # type: ignore[arg-type]


async def read(client: Cluster, topic: str, start: int, end: int, *, uid: str = "") -> list[bytes]:
    found = await find_topic(client, topic, Deadline(client.clock, 30))
    reader = RangeReader(
        client, topic, "0", uid=uid or found.partitions["0"].uid, start=start, end=end, consumer="reader"
    )
    reader.start()
    values: list[bytes] = []
    try:
        while runs := await reader.take(messages_max=70, bytes_max=2000):
            for run in runs:
                values += run.columns().column("value").to_pylist()
    finally:
        await reader.close()
    return values


@on_an_event_loop
async def test_a_range_is_read_exactly_wherever_batches_begin_and_end(cluster: LocalCluster) -> None:
    async with connected(cluster, "ranges") as client:
        values = [b"%d" % number for number in range(500)]
        await push(cluster, "ranges", values)
        for start, end in ((0, 500), (3, 4), (77, 311), (499, 500), (10, 10)):
            assert await read(client, "ranges", start, end) == values[start:end]


@on_an_event_loop
async def test_a_range_of_a_partition_that_is_no_more_is_not_read_from_another_of_its_name(
    cluster: LocalCluster,
) -> None:
    async with connected(cluster, "lives") as client:
        await push(cluster, "lives", [b"x"])
        with pytest.raises(UnknownPartition, match="made anew"):
            await read(client, "lives", 0, 1, uid="0" * 32)


@on_an_event_loop
async def test_a_range_before_the_first_message_says_so(cluster: LocalCluster) -> None:
    async with connected(cluster, "short") as client:
        await push(cluster, "short", [b"x"])
        with pytest.raises(OffsetOutOfRange):
            await read(client, "short", 5, 9)


@on_an_event_loop
async def test_a_time_is_found_or_it_is_said_that_all_is_earlier(cluster: LocalCluster) -> None:
    async with connected(cluster, "times") as client:
        await push(cluster, "times", [b"x"] * 100, timestamps=[1000 * number for number in range(100)])

        async def find(time_us: int) -> int | None:
            deadline = Deadline(client.clock, 30)
            return await offset_of_time(client, "times", "0", time_us, consumer="c", first=0, deadline=deadline)

        assert await find(0) == 0
        assert await find(41_500) == 42
        assert await find(99_000) == 99
        assert await find(99_001) is None


def builds(*values: bytes) -> list[Build]:
    def build_of(value: bytes) -> Build:
        return lambda number, epoch: (
            BatchBuilder().add(value).build_pieces(producer="task", cmdindex=number, epoch=epoch, sparse=True)
        )

    return [build_of(value) for value in values]


async def write(writer: SparseWriter, first: int, last: int, work: list[Build]) -> tuple[int, int]:
    """Do work whose numbers mean the same each time; return how many batches are new, and how many were there."""
    ready = await writer.begin(last)
    there = max(0, ready.next - first)
    await writer.push(ready.epoch, list(enumerate(work, first))[there:])
    return len(work) - there, there


async def stored(client: Cluster, topic: str) -> list[bytes]:
    end = await end_offset(client, topic, "0", Deadline(client.clock, 30))
    return await read(client, topic, 0, end)


@on_an_event_loop
async def test_what_an_earlier_attempt_has_stored_is_left_out(cluster: LocalCluster) -> None:
    async with connected(cluster, "attempts") as client:
        writer = SparseWriter(client, "attempts", "0", "task")
        assert await write(writer, FIRST, LAST, builds(b"a", b"b")) == (2, 0)
        again = SparseWriter(client, "attempts", "0", "task")
        assert await write(again, FIRST, LAST, builds(b"a", b"b", b"c")) == (1, 2)
        assert await write(again, FIRST, LAST, builds(b"a", b"b", b"c")) == (0, 3)
        assert await write(again, LAST + 1, LAST + FIRST, builds(b"d")) == (1, 0)
        assert await stored(client, "attempts") == [b"a", b"b", b"c", b"d"]


@on_an_event_loop
async def test_many_batches_go_in_order(cluster: LocalCluster) -> None:
    async with connected(cluster, "many") as client:
        values = [b"%d" % number for number in range(60)]
        writer = SparseWriter(client, "many", "0", "task")
        assert await write(writer, FIRST, LAST, builds(*values)) == (60, 0)
        assert await stored(client, "many") == values


@on_an_event_loop
async def test_an_attempt_is_fenced_by_the_next_one(cluster: LocalCluster) -> None:
    async with connected(cluster, "fenced") as client:
        begun, go_on = asyncio.Event(), asyncio.Event()
        slow = SparseWriter(client, "fenced", "0", "task")
        push_all = slow.push

        async def push_later(*arguments: object) -> None:
            begun.set()
            await go_on.wait()
            await push_all(*arguments)  # type: ignore[arg-type]

        slow.push = push_later  # type: ignore[method-assign]
        first = asyncio.create_task(write(slow, FIRST, LAST, builds(b"a")))
        await begun.wait()
        assert await write(SparseWriter(client, "fenced", "0", "task"), FIRST, LAST, builds(b"a")) == (1, 0)
        go_on.set()
        with pytest.raises(ProducerFenced):
            await first
        assert await stored(client, "fenced") == [b"a"]


@on_an_event_loop
async def test_work_that_is_older_than_what_is_stored_is_refused(cluster: LocalCluster) -> None:
    async with connected(cluster, "older") as client:
        writer = SparseWriter(client, "older", "0", "task")
        await write(writer, LAST + 1, LAST + FIRST, builds(b"later"))
        with pytest.raises(OutOfSequence, match="are over"):
            await write(writer, FIRST, LAST, builds(b"earlier"))
        assert await stored(client, "older") == [b"later"]


@on_an_event_loop
async def test_partitions_that_may_lose_what_they_acknowledged_are_refused(cluster: LocalCluster) -> None:
    async with connected(cluster, "weak", ack=1) as client:
        with pytest.raises(InvalidRequest, match="exactly-once cannot hold"):
            await SparseWriter(client, "weak", "0", "task").begin(LAST)


@on_an_event_loop
async def test_a_leader_that_was_stopped_and_is_back_gets_the_same_bytes_again() -> None:
    with LocalCluster(brokers=1) as cluster:
        async with connected(cluster, "back") as client:
            writer = SparseWriter(client, "back", "0", "task")
            await write(writer, FIRST, LAST, builds(b"a"))
            await asyncio.to_thread(cluster.kill, "Broker0")
            writing = asyncio.create_task(write(writer, FIRST, LAST, builds(b"a", b"b", b"c")))
            await asyncio.to_thread(cluster.start, "Broker0")
            assert await writing == (2, 1)
            assert await stored(client, "back") == [b"a", b"b", b"c"]


@on_an_event_loop
async def test_readers_of_a_sealed_block_begin_at_different_replicas() -> None:
    with LocalCluster(brokers=3, config={"election_ms_min": 1500, "election_ms_max": 2500}) as cluster:
        async with connected(cluster, "sealed", settings={"block_bytes_max": 65536}) as client:
            async with AsyncAdmin(cluster.bootstrap) as admin:
                await push(cluster, "sealed", [bytes(20_000)] * 5)
                async with asyncio.timeout(60):  # it rolls when the controller has heard how large it is
                    while (await admin.describe_topic("sealed")).partitions[0].blocks < 2:
                        await asyncio.sleep(0.05)
            uid = (await find_topic(client, "sealed", Deadline(client.clock, 30))).partitions["0"].uid
            asked = set()
            for spread in range(3):
                reader = RangeReader(client, "sealed", "0", uid=uid, start=0, end=1, consumer="reader", spread=spread)
                reader.start()
                assert await reader.take(messages_max=1, bytes_max=1)
                asked.add(reader.asked)
                await reader.close()
            assert len(asked) == 3
