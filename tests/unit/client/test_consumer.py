"""What a consumer promises: every message once and in order, wherever its block lies, and nothing damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clymq import AsyncConsumer, AsyncProducer, Message
from clymq.clock import ManualClock, pause
from clymq.errors import (
    ClosedError,
    CorruptBatch,
    InvalidRequest,
    NotReady,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownPartition,
    UnknownTopic,
)
from clymq.protocol.broker import Pull
from clymq.rpc.memory import MemoryNetwork
from fake_cluster import CLIENT, FakeCluster
from rpc_pair import virtually

Main = Callable[[FakeCluster, AsyncProducer, AsyncConsumer], Awaitable[None]]


def consuming(main: Main, *, partitions: int = 1, **options: Any) -> None:
    """Run a test with a consumer, a producer and the topic `t`."""

    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t", partitions)
            around = cluster.surroundings()
            async with (
                AsyncProducer(cluster.bootstrap, batch_bytes=1024, surroundings=around) as producer,
                AsyncConsumer(cluster.bootstrap, surroundings=around, **options) as consumer,
            ):
                await main(cluster, producer, consumer)

    virtually(run)


async def fill(producer: AsyncProducer, start: int, end: int, *, partition: str = "0") -> None:
    await producer.push_many("t", [b"%05d" % n * 10 for n in range(start, end)], partition=partition)


async def read(consumer: AsyncConsumer, count: int, *, max_messages: int = 1000) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        pulled = await consumer.pull(max_messages, timeout=20.0)
        assert len(pulled), f"{len(messages)} of {count}"
        assert len(pulled) <= max_messages
        messages += pulled
    return messages


def check(messages: list[Message], start: int) -> None:
    for at, message in enumerate(messages, start):
        assert (message.offset, message.value) == (at, b"%05d" % at * 10)


def test_everything_is_read_once_and_in_order() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 500)
        await consumer.assign("t", "0")
        check(await read(consumer, 500, max_messages=7), 0)
        assert await consumer.position("t", "0") == 500
        assert len(await consumer.pull(timeout=0.1)) == 0

    consuming(main)


def test_reading_begins_in_the_middle_of_a_batch_and_again_from_the_start() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 100)
        for start in (0, 37, 99, 0):
            await consumer.assign("t", "0", start)
            check(await read(consumer, 100 - start), start)
        await consumer.seek("t", "0", 50)
        assert await consumer.position("t", "0") == 50
        check(await read(consumer, 50), 50)

    consuming(main)


def test_a_message_has_all_its_parts() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await producer.push("t", b"v", key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=77)
        await consumer.assign("t", "0")
        (message,) = await read(consumer, 1)
        assert message == Message("t", "0", 0, 77, b"k", b"v", (("a", b"1"), ("a", None)), 1)

    consuming(main)


def test_messages_become_a_table_with_the_same_columns() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 50)
        await producer.push("t", b"v", key=b"k", headers={"a": b"1"}, timestamp=77)
        await consumer.assign("t", "0", 20)
        await pause(cluster.clock, 100)
        messages = await consumer.pull()
        table = messages.to_arrow()
        assert table.num_rows == len(messages) == 31
        assert tuple(table.schema.names) == Message._fields
        rows = table.to_pylist()
        for row, message in zip(rows, messages, strict=True):
            headers = tuple((pair["key"], pair["value"]) for pair in row.pop("headers") or ())
            assert Message(**row, headers=headers) == message
        assert (await consumer.pull(timeout=0.01)).to_arrow().num_rows == 0

    consuming(main)


def test_pull_returns_as_soon_as_there_is_anything() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await consumer.assign("t", "0", "latest")
        began = cluster.clock.monotonic_ms()
        assert len(await consumer.pull(timeout=2.0)) == 0
        assert 2000 <= cluster.clock.monotonic_ms() - began < 2100
        pulling = asyncio.create_task(consumer.pull(timeout=60.0))
        await pause(cluster.clock, 7000)  # longer than one long poll
        await producer.push("t", b"x")
        assert [message.value for message in await pulling] == [b"x"]
        assert cluster.clock.monotonic_ms() - began < 10_000

    consuming(main)


def test_a_broker_is_asked_for_more_before_its_reader_gets_busy_with_much_and_after_it_has_got_a_little() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        events: list[str] = []
        ask = consumer._cluster.ask

        def asking(address: str, request: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(request, Pull):  # what is written leaves at the end of the turn
                asyncio.get_running_loop().call_soon(events.append, f"asked from {request.offset}")
            return ask(address, request, *arguments, **options)

        consumer._cluster.ask = asking  # type: ignore[method-assign]
        await fill(producer, 0, 2000)
        await consumer.assign("t", "0")
        check(list(await consumer.pull(10_000, timeout=5.0)), 0)
        events.append("has 2000")
        await pause(cluster.clock, 50)
        await fill(producer, 2000, 2010)
        check(list(await consumer.pull(10_000, timeout=5.0)), 2000)
        events.append("has 10")
        await pause(cluster.clock, 50)
        assert events == ["asked from 0", "asked from 2000", "has 2000", "has 10", "asked from 2010"]

    consuming(main)


def test_latest_earliest_and_end_offsets() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        assert await consumer.end_offsets("t") == {"0": 0, "1": 0}
        await fill(producer, 0, 30)
        cluster.topics["t"]["0"].roll("Broker1")
        await fill(producer, 30, 40)
        assert await consumer.end_offsets("t") == {"0": 40, "1": 0}
        await consumer.assign("t", "0", "latest")
        assert await consumer.position("t", "0") == 40
        await consumer.assign("t", "0", "earliest")
        check(await read(consumer, 40), 0)

    consuming(main, partitions=2)


def test_blocks_and_brokers_are_crossed_without_gap_or_repeat() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 100)
        partition.roll("Broker1")
        await fill(producer, 100, 200)
        partition.roll("Broker2")
        await fill(producer, 200, 300)
        await consumer.assign("t", "0")
        check(await read(consumer, 300), 0)
        # And while it waits at the end of the active one.
        reading = asyncio.create_task(read(consumer, 50))
        await pause(cluster.clock, 50)
        partition.roll("Broker0")
        await fill(producer, 300, 350)
        check(await reading, 300)

    consuming(main)


def test_reading_goes_on_at_the_next_leader() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 10)
        await consumer.assign("t", "0")
        check(await read(consumer, 10), 0)
        partition.fail_over("Broker1")
        await fill(producer, 10, 20)
        check(await read(consumer, 10), 10)
        partition.hints = False
        await cluster.stop("Broker1")
        partition.fail_over("Broker2")
        await fill(producer, 20, 30)
        check(await read(consumer, 10), 20)

    consuming(main)


def test_a_replica_that_is_gone_is_passed_over() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 100)
        cluster.topics["t"]["0"].roll("Broker2", brokers=("Broker0", "Broker1"))
        await cluster.stop("Broker0")  # the controller has not noticed
        await consumer.assign("t", "0")
        check(await read(consumer, 100), 0)

    consuming(main)


def test_a_damaged_batch_is_fetched_from_another_replica() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 100)
        partition.roll("Broker2", brokers=("Broker0", "Broker1"))
        partition.corrupt["Broker0"] = 1000
        await consumer.assign("t", "0")
        check(await read(consumer, 100), 0)
        assert partition.corrupt["Broker0"] < 1000

    consuming(main)


def test_damage_on_all_replicas_is_an_error_that_names_the_offsets_and_can_be_stepped_over() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 10)
        partition.roll("Broker2", brokers=("Broker0", "Broker1"))
        partition.corrupt.update(Broker0=100, Broker1=100)
        await consumer.assign("t", "0")
        for _ in range(2):  # until something is done about it
            with pytest.raises(CorruptBatch):
                await consumer.pull(timeout=30.0)
        partition.corrupt.clear()
        await consumer.seek("t", "0", 5)
        check(await read(consumer, 5), 5)

    consuming(main)


def test_a_batch_that_does_not_follow_is_not_delivered() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 100)
        cluster.topics["t"]["0"].skip_batches = 1
        await consumer.assign("t", "0")
        check(await read(consumer, 100), 0)
        assert cluster.topics["t"]["0"].skip_batches == 0

    consuming(main)


def test_an_offset_that_is_gone_or_never_was_is_an_error() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 10)
        partition.roll("Broker1")
        await fill(producer, 10, 20)
        partition.sealed.clear()  # retention
        await consumer.assign("t", "0", 3)
        with pytest.raises(OffsetOutOfRange) as before:
            await consumer.pull(timeout=5.0)
        assert before.value.first == 10
        await consumer.assign("t", "0", 1000)
        with pytest.raises(OffsetOutOfRange) as behind:
            await consumer.pull(timeout=5.0)
        assert (behind.value.first, behind.value.end) == (10, 20)
        await consumer.assign("t", "0", "earliest")
        check(await read(consumer, 10), 10)

    consuming(main)


def test_what_is_read_ahead_is_bounded_by_the_credit() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        for name in ("0", "1"):
            await producer.push_many("t", [bytes(1000)] * 2000, partition=name)
            await consumer.assign("t", name)
        await pause(cluster.clock, 2000)
        held = sum(reader._kept_bytes for reader in consumer._sources.values())
        assert 100_000 < held <= 300_000
        assert len(await read(consumer, 4000)) == 4000

    consuming(main, partitions=2, credit_bytes=200_000)


def test_all_partitions_get_their_turn() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        for name in ("0", "1", "2"):
            await fill(producer, 0, 100, partition=name)
            await consumer.assign("t", name)
        await pause(cluster.clock, 100)
        heads = [next(iter(await consumer.pull(10))).partition for _ in range(3)]
        assert sorted(heads) == ["0", "1", "2"]
        assert len(await read(consumer, 270)) == 270

    consuming(main, partitions=3)


def test_iteration_moves_the_position_message_by_message() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 50)
        await consumer.assign("t", "0")
        seen = []
        async for message in consumer:
            seen.append(message)
            assert await consumer.position("t", "0") == message.offset + 1
            if len(seen) == 10:
                await consumer.seek("t", "0", 40)
            if message.offset == 49:
                break
        assert [message.offset for message in seen] == [*range(10), *range(40, 50)]

    consuming(main)


def test_a_group_goes_on_where_it_committed() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 100)
        await consumer.assign("t", "0", "committed", group="g")
        assert await consumer.committed("t", "0") is None
        await read(consumer, 37, max_messages=37)
        await consumer.commit()
        cluster.topics["t"]["0"].fail_over("Broker1")
        around = cluster.surroundings()
        async with AsyncConsumer(cluster.bootstrap, surroundings=around) as other:
            await other.assign("t", "0", "committed", group="g")
            assert await other.position("t", "0") == await other.committed("t", "0") == 37
            check(await read(other, 63), 37)
        commits = cluster.asked["CommitOffset"]
        await consumer.commit()  # nothing has moved
        assert cluster.asked["CommitOffset"] == commits

    consuming(main)


def test_a_consumer_subscribes_where_it_must_and_undoes_it() -> None:
    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t")
            cluster.needs_subscription = True
            around = cluster.surroundings()
            async with AsyncProducer(cluster.bootstrap, surroundings=around) as producer:
                await fill(producer, 0, 10)
            async with AsyncConsumer(cluster.bootstrap, name="c", surroundings=around) as consumer:
                await consumer.assign("t", "0")
                check(await read(consumer, 10), 0)
                assert cluster.subscribed == {("c", "0")}
                await consumer.assign("t", "0", 5)
                check(await read(consumer, 5), 5)
                await consumer.seek("t", "0", 2)
            assert not cluster.subscribed

    virtually(run)


def test_a_consumer_that_is_closed_at_any_moment_leaves_no_subscription() -> None:
    """Who is closed while it subscribes does not hear that it is subscribed."""

    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t")
            cluster.needs_subscription = True
            for turns in range(200):
                consumer = AsyncConsumer(cluster.bootstrap, name="c", surroundings=cluster.surroundings())
                await consumer.assign("t", "0", 0)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await consumer.close()
                assert not cluster.subscribed, f"closed after {turns} turns"
            assert cluster.asked["UnSub"] > 10

    virtually(run)


def test_a_leader_out_of_reach_is_said_after_the_timeout_and_reading_goes_on() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 10)
        await cluster.stop("Broker0")
        await consumer.assign("t", "0", 0)
        assert len(await consumer.pull(timeout=1.0)) == 0
        await pause(cluster.clock, 3000)
        with pytest.raises(RequestTimeout, match=r"t/0 from offset 0.*ConnectFailed"):
            await consumer.pull(timeout=1.0)
        await cluster.start("Broker0")
        check(await read(consumer, 10), 0)

    consuming(main, timeout=3.0)


def test_reading_goes_on_while_no_controller_answers() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await fill(producer, 0, 10)
        await consumer.assign("t", "0")
        check(await read(consumer, 10), 0)
        await cluster.stop("Zk0")
        cluster.network.cut(CLIENT, "Broker0")
        cluster.network.heal(CLIENT, "Broker0")
        await fill(producer, 10, 20)
        check(await read(consumer, 10), 10)

    consuming(main)


def test_cancelling_a_pull_loses_nothing() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        await consumer.assign("t", "0")
        for n in range(20):
            pulling = asyncio.create_task(consumer.pull(timeout=60.0))
            await fill(producer, n, n + 1)
            await pause(cluster.clock, n % 5)
            pulling.cancel()
            outcome = (await asyncio.gather(pulling, return_exceptions=True))[0]
            messages = [] if isinstance(outcome, asyncio.CancelledError) else list(outcome)  # type: ignore[arg-type]
            check(messages or await read(consumer, 1), n)

    consuming(main)


def test_wrong_calls_are_refused() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        with pytest.raises(InvalidRequest):
            await consumer.assign("t", "0", "middle")
        with pytest.raises(InvalidRequest):
            await consumer.assign("t", "0", -1)
        with pytest.raises(InvalidRequest):
            await consumer.assign("t", "0", "committed")
        with pytest.raises(InvalidRequest):
            await consumer.seek("t", "0", 0)
        with pytest.raises(InvalidRequest):
            await consumer.pull(0)
        with pytest.raises(UnknownTopic):
            await consumer.assign("nowhere", "0")
        with pytest.raises(UnknownPartition):
            await consumer.assign("t", "9")
        await consumer.assign("t", "0")
        with pytest.raises(InvalidRequest):
            await consumer.committed("t", "0")
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.pull()
        await consumer.close()

    consuming(main)


def test_a_replica_that_is_not_ready_is_asked_again() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer, consumer: AsyncConsumer) -> None:
        partition = cluster.topics["t"]["0"]
        await fill(producer, 0, 10)
        serve, refusals = partition.pull, [NotReady("not whole here") for _ in range(3)]

        def refuse_first(call: Any, broker: str) -> None:
            if refusals:
                raise refusals.pop()
            serve(call, broker)

        partition.pull = refuse_first  # type: ignore[method-assign]
        await consumer.assign("t", "0", 0)
        check(await read(consumer, 10), 0)
        assert not refusals

    consuming(main)
