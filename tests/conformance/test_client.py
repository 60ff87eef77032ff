"""What the client promises, asynchronous and blocking, against a real broker."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from client_subjects import KINDS, Clients, Subject, eventually, new_topic, pulled, run
from clymq import Ack, Message, Messages, Mode, Receipts
from clymq.errors import (
    ClosedError,
    ClymqError,
    InvalidRequest,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownLease,
    UnknownTopic,
)

SHARING = (Mode.PTP_PULL, Mode.PTP_PUSH)
READING = (Mode.PSB_PULL, Mode.PSB_PUSH)


@pytest.fixture(params=KINDS)
def clients(request: pytest.FixtureRequest, clymq_bootstrap: str) -> Clients:
    return Clients(request.param, clymq_bootstrap)


def values(messages: list[Message] | Messages) -> list[bytes]:
    return [message.value for message in messages]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- Administration ---


def test_topics_are_made_described_changed_and_deleted(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.admin() as admin:
            made = await admin.create_topic(topic, partitions=["xian", "beijing"], settings={"lease_ms": 5000})
            assert made.created
            assert [each.partition for each in made.partitions] == ["beijing", "xian"]
            assert not (await admin.create_topic(topic)).created
            await admin.alter_topic(topic, {"retention_ms": 60_000})
            found = await admin.describe_topic(topic)
            assert found.settings == {"lease_ms": 5000, "retention_ms": 60_000}
            assert await admin.set_partition_state(topic, "xian", ack=Ack.QUORUM) == "HadRaft"
            assert await admin.create_partition(topic, "shanghai")
            assert topic in await admin.list_topics()
            assert {each["topic"] for each in (await admin.status())["partitions"]} >= {topic}
            await admin.delete_topic(topic)
            with pytest.raises(UnknownTopic):
                await admin.describe_topic(topic)

    run(main())


# --- Producing ---


def test_a_receipt_says_where_a_message_is(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer(name=f"p-{topic}") as producer:
            await producer.create_topic(topic)
            assert await producer.last_cmdindex(topic, "0") == 0
            first = await producer.push(topic, b"a", key=b"k", headers={"h": b"1"}, timestamp=5)
            assert (first.topic, first.partition, first.offset, first.timestamp) == (topic, "0", 0, 5)
            many = await producer.push_many(topic, [b"b", b"c"], keys=[b"k", None])
            assert (many.count, sum(count for _, _, count in many.ranges)) == (2, 2)
            arrow = await producer.push_arrow(topic, pa.table({"value": [b"d"]}))
            assert arrow.ranges == [("0", 3, 1)]
            assert await producer.last_cmdindex(topic, "0") == 4

    run(main())


def test_what_is_sent_arrives_in_order_with_what_is_pushed(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        delivered: list[Receipts | ClymqError] = []
        async with clients.producer(on_delivery=delivered.append, batch_bytes=2000) as producer:
            await producer.create_topic(topic)
            for number in range(0, 3000, 3):
                await producer.send(topic, b"%d" % number)
                await producer.send(topic, b"%d" % (number + 1), key=b"k", headers={"a": b"1"})
                if number % 300 == 0:
                    await producer.push(topic, b"%d" % (number + 2))
                else:
                    await producer.send(topic, b"%d" % (number + 2), partition="0")
            await producer.flush()
            assert sum(each.count for each in delivered if isinstance(each, Receipts)) == 3000
        async with clients.consumer() as consumer:
            await consumer.assign(topic, "0")
            assert values(await pulled(consumer, 3000)) == numbers(3000)

    run(main())


def test_what_lingers_is_sent_by_itself(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer(linger_ms=20) as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await consumer.assign(topic, "0")
            await producer.send(topic, b"one")
            assert values(await pulled(consumer, 1)) == [b"one"]

    run(main())


def test_closing_sends_what_was_accepted(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer(linger_ms=60_000) as producer:
            await producer.create_topic(topic)
            for value in numbers(1000):
                await producer.send(topic, value)
        async with clients.consumer() as consumer:
            await consumer.assign(topic, "0")
            assert values(await pulled(consumer, 1000)) == numbers(1000)
        with pytest.raises(ClosedError):
            await producer.send(topic, b"late")

    run(main())


def test_what_is_wrong_with_a_message_is_said_at_once(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer:
            await producer.create_topic(topic)
            wrong: list[dict[str, Any]] = [
                {"value": "text"},
                {"value": None},
                {"value": b"v", "key": "k"},
                {"value": b"v", "headers": {"a": 1}},
                {"value": b"v", "timestamp": 1.5},
            ]
            for message in wrong:
                for word in (producer.send, producer.push):
                    with pytest.raises(InvalidRequest):
                        await word(topic, **message)
            for word in (producer.send, producer.push):
                with pytest.raises(MessageTooLarge):
                    await word(topic, bytes(2 << 20))
            await producer.push(topic, b"fine")

    run(main())


NOT_BYTES = [
    ({"values": [b"x", "text"]}, "value 1 is a str"),
    ({"values": [b"x"] * 2000 + [7]}, "value 2000 is a int"),
    ({"values": [b"x", None]}, "value 1 is a NoneType"),
    ({"values": "xy"}, "value 0 is a str"),
    ({"values": (each for each in [b"x"])}, "column value"),
    ({"values": [b"x", b"y"], "keys": [b"k", "k"]}, "key 1 is a str"),
    ({"values": [b"x", b"y"], "keys": [None, 1]}, "key 1 is a int"),
    ({"values": [b"x", b"y"], "timestamps": [1, 2.0]}, "timestamp 1 is a float"),
    ({"values": [b"x", b"y"], "timestamps": [None, True]}, "timestamp 1 is a bool"),
    ({"values": [b"x", b"y"], "headers": [None, {"a": "text"}]}, "message 1: header 'a' is a str"),
    ({"values": [b"x", b"y"], "headers": [{}, {1: b"v"}]}, "message 1: header"),
    ({"values": [b"x", b"y"], "headers": [{"a": b"1"}, "text"]}, "message 1: header"),
    ({"values": [b"x", b"y"], "headers": [7, None]}, "message 0: headers are a int"),
]
NO_TABLES: list[tuple[Any, str]] = [
    ({"value": [b"x"]}, "dict"),
    (pa.table({"key": [b"k"]}), "value is required"),
    (pa.table({"value": [b"x"], "more": [1]}), "more"),
    (pa.table({"value": [1]}), "column value"),
    (pa.table({"value": [b"x", None]}), "value 1 is null"),
    (pa.table({"value": [b"x"], "key": [1]}), "column key"),
    (pa.table({"value": [b"x"], "timestamp": [1.0]}), "column timestamp"),
    (pa.table({"value": [b"x"], "timestamp": ["now"]}), "column timestamp"),
    (pa.table({"value": [b"x"], "headers": [b"h"]}), "column headers"),
]


def test_what_is_no_message_is_refused_by_its_place_and_nothing_of_it_is_stored(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic, partitions=2)
            for columns, said in NOT_BYTES:
                with pytest.raises(InvalidRequest, match=said):
                    await producer.push_many(topic, **columns)
            for table, said in NO_TABLES:
                with pytest.raises(InvalidRequest, match=said):
                    await producer.push_arrow(topic, table)
            assert await consumer.end_offsets(topic) == {"0": 0, "1": 0}
            batch = pa.record_batch({"value": pa.array([b"x"]), "key": pa.array([b"k"])})
            assert (await producer.push_arrow(topic, batch)).count == 1

    run(main())


def test_what_cannot_be_delivered_is_reported_once_and_raised_by_flush(clients: Clients) -> None:
    async def main() -> None:
        told: list[Receipts | ClymqError] = []
        async with clients.producer(on_delivery=told.append) as producer:
            await producer.send("nowhere", b"one")
            with pytest.raises(UnknownTopic):
                await producer.flush()
            assert [type(each) for each in told] == [UnknownTopic]
            await producer.flush()

    run(main())


# --- Reading ---


@pytest.mark.parametrize("mode", READING)
def test_each_reader_gets_everything_in_order(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as one, clients.consumer() as other:
            await producer.create_topic(topic, partitions=2)
            for partition in ("0", "1"):
                await producer.push_many(topic, numbers(500), partition=partition)
            for consumer in (one, other):
                await consumer.subscribe(topic, mode=mode)
                messages = await pulled(consumer, 1000)
                for partition in ("0", "1"):
                    assert values([each for each in messages if each.partition == partition]) == numbers(500)

    run(main())


@pytest.mark.parametrize("mode", READING)
def test_row_56_reading_begins_anywhere_and_waits_at_the_end(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
            for start in (0, 37, 0):
                await consumer.subscribe(topic, mode=mode, offset=start)
                messages = await pulled(consumer, 100 - start)
                assert [message.offset for message in messages] == list(range(start, 100))
            assert not len(await consumer.pull(timeout=0.05))
            waiting = asyncio.create_task(consumer.pull(timeout=20.0))
            await producer.push(topic, b"new")
            assert values(await waiting) == [b"new"]

    run(main())


def test_offsets_are_words_numbers_and_times(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        begin = datetime(2020, 1, 1, tzinfo=UTC)
        times = [int((begin + timedelta(hours=hour)).timestamp() * 1e6) for hour in range(100)]
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            for start in range(0, 100, 10):
                await producer.push_many(topic, numbers(100)[start : start + 10], timestamps=times[start : start + 10])
            for offset, expected in [
                ("earliest", 0),
                ("latest", 100),
                (42, 42),
                (begin + timedelta(hours=55), 55),
                (begin - timedelta(days=1), 0),
                (begin + timedelta(days=30), 100),
                ((begin + timedelta(hours=7)).astimezone().replace(tzinfo=None), 7),
            ]:
                await consumer.assign(topic, "0", offset)
                assert await consumer.position(topic, "0") == expected, offset
            await consumer.seek(topic, "0", begin + timedelta(hours=99))
            assert [message.offset for message in await pulled(consumer, 1)] == [99]
            assert await consumer.end_offsets(topic) == {"0": 100}
            await consumer.assign(topic, "0", 1000)
            with pytest.raises(OffsetOutOfRange):
                await pulled(consumer, 1)
            for offset in (-1, "soon"):
                with pytest.raises(InvalidRequest):
                    await consumer.assign(topic, "0", offset)

    run(main())


@pytest.mark.parametrize("mode", READING)
def test_a_group_goes_on_where_it_has_committed(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
            await consumer.subscribe(topic, mode=mode, group="readers")
            assert await consumer.committed(topic, "0") is None
            assert len(await consumer.first(40)) == 40
            assert await consumer.position(topic, "0") == 40
            await consumer.commit()
            assert await consumer.committed(topic, "0") == 40
        async with clients.consumer() as consumer:
            await consumer.subscribe(topic, mode=mode, group="readers")
            assert (await pulled(consumer, 60))[0].offset == 40
            with pytest.raises(InvalidRequest, match="publish-subscribe"):
                await consumer.ack(Message(topic, "0", 1, 0, None, b"", (), 1))

    run(main())


@pytest.mark.parametrize("mode", [*READING, *SHARING])
def test_a_loop_that_was_left_goes_on_where_it_was(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
            await consumer.subscribe(topic, mode=mode, group="g")
            messages = await consumer.first(7)
            messages += await consumer.first(30)
            messages += await consumer.pull(5, timeout=20.0)
            messages += await consumer.first(1)
            messages += await pulled(consumer, 57)
            assert [message.offset for message in messages] == list(range(100))
            if mode in READING:
                await consumer.seek(topic, "0", 10)
                assert (await consumer.first(3))[0].offset == 10
                assert await consumer.position(topic, "0") == 13
                await consumer.seek(topic, "0", 50)
                assert (await consumer.first(1))[0].offset == 50
            else:
                for message in messages:
                    await consumer.ack(message)

    run(main())


def test_messages_become_a_table(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
            await consumer.subscribe(topic)
            messages = await consumer.pull(timeout=20.0)
            table = messages.to_arrow()
            assert table.column("value").to_pylist() == values(messages)
            assert table.column("delivery_count").to_pylist() == [1] * len(messages)

    run(main())


# --- Sharing ---


@pytest.mark.parametrize("mode", SHARING)
def test_what_is_acked_is_not_delivered_again_and_the_rest_is(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
        async with clients.consumer() as consumer:
            await consumer.subscribe(topic, mode=mode, group="g")
            messages = await consumer.first(10)
            for message in (messages[1], messages[2], messages[0], messages[7]):
                await consumer.ack(message)
        async with clients.consumer() as consumer:
            await consumer.subscribe(topic, mode=mode, group="g")
            rest = await pulled(consumer, 96)
            assert sorted(message.offset for message in rest) == [3, 4, 5, 6, *range(8, 100)]

    run(main())


@pytest.mark.parametrize("mode", SHARING)
def test_row_59_the_cursor_moves_over_the_acked_prefix_only(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer, clients.admin() as admin:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(10))
            await consumer.subscribe(topic, mode=mode, group="g")
            first, second, third, *_ = await consumer.first(10)

            async def cursor_is(offset: int) -> bool:
                found = await admin.groups(topic)
                return [(each["group"], each["cursor"]) for each in found] == [("g", offset)]

            await consumer.ack(second)
            await consumer.ack(third)
            await eventually(lambda: cursor_is(0), "the first is not acked: the cursor stays")
            await consumer.ack(first)
            await eventually(lambda: cursor_is(3), "all three are acked: the cursor is behind them")
            (group,) = await admin.groups(topic)
            assert (group["end"], group["lag"]) == (10, 7)

    run(main())


@pytest.mark.parametrize("mode", SHARING)
def test_what_is_nacked_comes_again_and_says_how_often(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(3))
            await consumer.subscribe(topic, mode=mode)
            messages = await pulled(consumer, 3)
            await consumer.ack(messages[0])
            await consumer.nack(messages[1])
            again = await pulled(consumer, 1)
            assert [(each.offset, each.delivery_count) for each in again] == [(1, 2)]
            loop = asyncio.get_running_loop()
            began = loop.time()
            await consumer.nack(messages[2], delay=0.5)
            later = await pulled(consumer, 1)
            assert loop.time() - began >= 0.45
            assert [(each.offset, each.delivery_count) for each in later] == [(2, 2)]
            await consumer.ack(again[0])
            await consumer.ack(later[0])

    run(main())


@pytest.mark.parametrize("mode", SHARING)
def test_a_whole_pull_is_acked_at_once_and_only_once(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic, partitions=3)
            for partition in "012":
                await producer.push_many(topic, numbers(100), partition=partition)
            await consumer.subscribe(topic, mode=mode)
            seen = 0
            while seen < 300:
                messages = await consumer.pull(timeout=20.0)
                seen += len(messages)
                await consumer.ack(messages)
                with pytest.raises(UnknownLease):
                    await consumer.ack(messages)
            for word in (consumer.ack, consumer.nack, consumer.reject):
                with pytest.raises(InvalidRequest):
                    await word([1, 2])

    run(main())


def test_a_lease_that_is_extended_lasts_and_one_that_is_not_runs_out(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as one, clients.consumer() as other:
            await producer.create_topic(topic, settings={"lease_ms": 1000})
            await producer.push_many(topic, numbers(2))
            await one.subscribe(topic)
            await other.subscribe(topic)
            kept = await one.pull(1, timeout=20.0)
            left = await one.pull(1, timeout=20.0)
            await one.extend(kept, 30)
            again = await pulled(other, 1)
            assert [(each.offset, each.delivery_count) for each in again] == [(next(iter(left)).offset, 2)]
            with pytest.raises(UnknownLease):
                await one.ack(left)
            await one.ack(kept)
            await other.ack(again[0])
            for seconds in (0, -1, 1e9):
                with pytest.raises(InvalidRequest):
                    await one.extend(kept, seconds)

    run(main())


def headers_of(message: Message) -> dict[str, bytes | None]:
    return dict(message.headers)


def test_row_61_what_fails_too_often_or_is_rejected_is_a_dead_letter_with_its_reason(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer, clients.consumer() as reader:
            await producer.create_topic(topic)
            await producer.push(topic, b"fails", key=b"k", headers={"a": b"1"})
            await consumer.subscribe(topic, group="g")
            for delivery in (1, 2, 3):
                (message,) = await pulled(consumer, 1)
                assert message.delivery_count == delivery
                await consumer.nack(message)
            await producer.push(topic, b"rejected")
            (message,) = await pulled(consumer, 1)
            assert message.value == b"rejected"
            await consumer.reject(message, "no such customer")

            await reader.subscribe(re.compile(re.escape(topic) + r"\.dlq"), mode=Mode.PSB_PULL, offset="earliest")
            dead = {message.value: message for message in await pulled(reader, 2)}
            assert headers_of(dead[b"rejected"])["clymq-reason"] == b"no such customer"
            fails = headers_of(dead[b"fails"])
            assert (fails["a"], fails["clymq-offset"], fails["clymq-group"]) == (b"1", b"0", b"g")
            assert fails["clymq-deliveries"] == b"3"
            assert dead[b"fails"].key == b"k"

    run(main())


def test_only_one_consumer_at_a_time_has_an_ordered_partition(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as one:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(100))
            await one.subscribe(topic, ordered=True)
            first = await one.pull(10, timeout=20.0)
            async with clients.consumer() as other:
                await other.subscribe(topic, ordered=True)
                assert not len(await other.pull(timeout=1.5))
                await one.ack(first)
                second = await one.pull(10, timeout=20.0)
                assert [message.offset for message in second] == list(range(10, 20))
                await one.ack(second)
                await one.unsubscribe(topic)
                assert (await pulled(other, 1))[0].offset == 20

    run(main())


def test_an_ordered_partition_that_is_assigned_to_another_consumer_goes_on_there(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as one:
            await producer.create_topic(topic, partitions=2)
            for partition in ("0", "1"):
                await producer.push(topic, b"first", partition=partition)
            await one.subscribe(topic, ordered=True)
            for message in await pulled(one, 2):
                await one.ack(message)
            async with clients.consumer() as other:
                await other.subscribe(topic, ordered=True)
                for partition in ("0", "1"):
                    await producer.push(topic, b"second", partition=partition)
                assert set(values(await pulled(other, 1))) == {b"second"}

    run(main())


@pytest.mark.parametrize("mode", SHARING)
def test_several_topics_a_pattern_and_what_is_new_are_read(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        names = [f"{topic}-{letter}" for letter in "abc"]
        async with clients.producer() as producer, clients.consumer() as listed, clients.consumer() as matching:
            for name in names[:2]:
                await producer.create_topic(name)
                await producer.push(name, name.encode())
            await listed.subscribe(names[:2], mode=mode, group="listed")
            await matching.subscribe(re.compile(topic + "-."), mode=mode, group="matching")
            for consumer in (listed, matching):
                assert {message.topic for message in await pulled(consumer, 2)} == set(names[:2])
            await producer.create_topic(names[2])
            await producer.push(names[2], b"new topic")
            await producer.create_partition(names[0], "new")
            await producer.set_partition_state(names[0], "new", ack=Ack.QUORUM)
            await producer.push(names[0], b"new partition", partition="new")
            assert set(values(await pulled(matching, 2))) == {b"new topic", b"new partition"}
            assert values(await pulled(listed, 1)) == [b"new partition"]

    run(main())


def test_row_55_subscriptions_are_recorded_and_undone(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.admin() as admin, clients.consumer(name="c") as consumer:
            await producer.create_topic(topic)
            with pytest.raises(InvalidRequest, match="not subscribed"):
                await consumer.unsubscribe(topic)
            await consumer.subscribe(topic, group="g")
            (found,) = await admin.subscriptions(topic)
            assert (found["topic"], found["option"], found["groups"]) == (topic, Mode.PTP_PULL, {"g": {"c": True}})
            await consumer.unsubscribe(topic)
            assert await admin.subscriptions(topic) == []
            with pytest.raises(UnknownTopic):
                await consumer.subscribe("nowhere")
            for wish in (
                {"topics": []},
                {"topics": topic, "offset": 7},
                {"topics": topic, "mode": Mode.PSB_PULL, "ordered": True},
            ):
                with pytest.raises(InvalidRequest):
                    await consumer.subscribe(**wish)

    run(main())


def test_a_group_is_reset_to_an_offset_and_a_time(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        begin = datetime(2020, 1, 1, tzinfo=UTC)
        times = [int((begin + timedelta(hours=hour)).timestamp() * 1e6) for hour in range(20)]
        async with clients.producer() as producer, clients.admin() as admin:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(20), timestamps=times)
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, group="g")
                await consumer.ack(await consumer.pull(timeout=20.0))
            for to, expected in ((5, 5), ("earliest", 0), ("latest", 20), (begin + timedelta(hours=12), 12)):
                (place,) = await admin.reset_group(topic, "g", to)
                assert (place["group"], place["partition"], place["cursor"]) == ("g", "0", expected)
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, group="g")
                assert (await pulled(consumer, 8))[0].offset == 12

    run(main())


# --- Handlers ---


async def running(consumer: Subject, handler: Any, **options: Any) -> asyncio.Task[None]:
    return asyncio.create_task(consumer.run(handler, **options))


@pytest.mark.parametrize("mode", SHARING)
def test_row_78_a_handler_that_raises_gets_the_message_again_and_one_that_returns_does_not(
    clients: Clients, mode: Mode
) -> None:
    async def main() -> None:
        topic = new_topic()
        seen: list[tuple[bytes, int]] = []

        def handle(message: Message) -> None:
            seen.append((message.value, message.delivery_count))
            if message.value == b"twice" and message.delivery_count < 3:
                raise RuntimeError("not yet")
            if message.value == b"always":
                raise RuntimeError("never")

        async with clients.producer() as producer, clients.consumer() as dead, clients.admin() as admin:
            await producer.create_topic(topic)
            await producer.push_many(topic, [b"fine", b"twice", b"always"])
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, mode=mode, group="g")
                run_ = await running(consumer, handle)
                await dead.subscribe(re.compile(re.escape(topic) + r"\.dlq"), mode=Mode.PSB_PULL)
                assert values(await pulled(dead, 1)) == [b"always"]

                async def all_acked() -> bool:
                    return [each["lag"] for each in await admin.groups(topic)] == [0]

                await eventually(all_acked, "everything is finished")
            await asyncio.wait_for(run_, 20)
        assert sorted(seen) == [(b"always", n) for n in (1, 2, 3)] + [(b"fine", 1)] + [(b"twice", n) for n in (1, 2, 3)]

    run(main())


def test_handlers_run_at_the_same_time_and_outlast_their_lease(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        seen: list[int] = []
        at_once = 0
        most = 0

        async def handle(message: Message) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(5)
            at_once -= 1
            seen.append(message.offset)

        async with clients.producer() as producer, clients.admin() as admin:
            await producer.create_topic(topic, settings={"lease_ms": 4000})
            await producer.push_many(topic, numbers(8))
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic)
                run_ = await running(consumer, handle, concurrency=4)

                async def all_acked() -> bool:
                    return [each["lag"] for each in await admin.groups(topic)] == [0]

                await eventually(all_acked, "everything is finished")
            await asyncio.wait_for(run_, 20)
        assert (sorted(seen), most) == (list(range(8)), 4)

    run(main())


def test_a_reader_s_handler_ends_the_run_with_its_error_and_positions_are_stored(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()

        def handle(message: Message) -> None:
            if message.value == b"bad":
                raise KeyError("bad")

        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(50))
            await consumer.subscribe(topic, mode=Mode.PSB_PULL, group="g")
            run_ = await running(consumer, handle, concurrency=3)

            async def stored() -> bool:
                return bool(await consumer.committed(topic, "0") == 50)

            await eventually(stored, "the position is stored")
            await producer.push(topic, b"bad")
            with pytest.raises(KeyError):
                await asyncio.wait_for(run_, 20)
            assert await consumer.committed(topic, "0") == 50

    run(main())


# --- The end ---


@pytest.mark.parametrize("mode", SHARING)
def test_closing_gives_leases_back_at_once_and_counts_only_what_was_seen(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as other:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(10))
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, mode=mode)
                seen = {message.offset for message in await consumer.pull(timeout=20.0)}
                assert seen
            await other.subscribe(topic, mode=mode)
            loop = asyncio.get_running_loop()
            began = loop.time()
            again = {message.offset: message.delivery_count for message in await pulled(other, 10)}
            assert again == {offset: 2 if offset in seen else 1 for offset in range(10)}
            assert loop.time() - began < 20, "a lease is 30 s"

    run(main())


@pytest.mark.parametrize("leave", ["close", "unsubscribe"])
@pytest.mark.parametrize("mode", SHARING)
def test_what_a_loop_has_not_come_to_is_given_back_and_does_not_count_as_delivered(
    clients: Clients, mode: Mode, leave: str
) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as other:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(10))
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, mode=mode)
                assert [message.offset for message in await consumer.first(3)] == [0, 1, 2]
                if leave == "unsubscribe":
                    await consumer.unsubscribe(topic)
                else:
                    await consumer.close()
                await other.subscribe(topic, mode=mode)
                again = {message.offset: message.delivery_count for message in await pulled(other, 10)}
            assert again == {offset: 2 if offset < 3 else 1 for offset in range(10)}

    run(main())


def test_what_is_still_on_its_way_to_a_consumer_that_closes_does_not_count_as_delivered(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker does not answer within the time that a consumer takes to end its stream."""

    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as other:
            await producer.create_topic(topic)
            await producer.push_many(topic, numbers(2000))
            for _ in range(4):
                async with clients.consumer() as consumer:
                    await consumer.subscribe(topic, mode=Mode.PTP_PUSH)
                    monkeypatch.setattr("clymq.client.pushing.PRESENT_MS", 1e-3)
                monkeypatch.undo()
            await other.subscribe(topic, mode=Mode.PTP_PULL)
            assert {message.delivery_count for message in await pulled(other, 2000)} == {1}

    run(main())


@pytest.mark.parametrize("mode", [*SHARING, Mode.PSB_PULL])
def test_pulls_at_the_same_time_do_not_keep_messages_from_one_another(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer, clients.consumer() as consumer:
            await producer.create_topic(topic)
            await consumer.subscribe(topic, mode=mode)
            waiting = [asyncio.create_task(consumer.pull(1, timeout=50.0)) for _ in range(3)]
            assert not len(await consumer.pull(1, timeout=0.5)), "one that ends before the others"
            for count in (1, 2, 3):
                await producer.push(topic, b"x")

                async def so_many() -> bool:
                    return sum(each.done() for each in waiting) == count  # noqa: B023

                await eventually(so_many, "each message ends one of the pulls")
            got = [message.offset for each in waiting for message in await each]
            assert sorted(got) == [0, 1, 2]

    run(main())


def test_what_waits_when_the_consumer_is_closed_ends(clients: Clients) -> None:
    async def main() -> None:
        topic = new_topic()
        async with clients.producer() as producer:
            await producer.create_topic(topic)
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic)
                waiting = asyncio.create_task(consumer.pull(timeout=60.0))
                await asyncio.sleep(0.2)
                assert not waiting.done()
            with pytest.raises(ClosedError):
                await asyncio.wait_for(waiting, 20)
            for work in (consumer.pull(), consumer.subscribe(topic), consumer.commit()):
                with pytest.raises(ClosedError):
                    await work

    run(main())
