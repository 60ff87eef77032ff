"""Row 61: what nobody could deal with is in the dead-letter topic, once, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq import Ack, AsyncAdmin, Message
from clymq.errors import InvalidRequest
from clymq.protocol import broker as wire
from clymq.protocol.broker import OffsetRange
from clymq.protocol.controller import ProGetBroker
from clymq.record import BatchBuilder
from clymq.testing import LocalCluster
from clymq.testing.local_cluster import ZKSERVER
from consuming import PATIENT, RawConsumer, consuming, dead_letters, make_topic, numbered, push_values
from rows import refusal, run

BOTH_MODES = pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER], ids=["raft", "fetch"])


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=PATIENT) as cluster:
        yield cluster


def told(letter: Message) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers if name.startswith("clymq-")}


async def fail_three_times(consumer: RawConsumer, offsets: range) -> None:
    for delivery in (1, 2, 3):
        leased = await consumer.pull(wait_ms=10_000)
        assert leased.offsets == list(offsets)
        assert {lease.deliveries for lease in leased.leases} == {delivery}
        await consumer.nack(leased)


async def leave_letter(consumer: RawConsumer, *, number: int) -> None:
    """Push a letter as a leader does whose DEAD is lost a moment later."""
    topic, producer = f"{consumer.topic}.dlq", f"{consumer.routes['0'].uid}/{consumer.group}"
    zkserver = consumer.cluster.addresses[ZKSERVER]
    route = (await consumer.ask_at(zkserver, ProGetBroker(topic, "0"))).reply
    ready = (await consumer.ask_at(route.address, wire.InitProducer(topic, "0", route.uid, producer))).reply
    builder = BatchBuilder().add_values([b"the one whose entry is lost"])
    batch = builder.build(producer=producer, cmdindex=number, epoch=ready.epoch, sparse=True, now=1)
    await consumer.ask_at(route.address, wire.Push(topic, "0", route.uid, producer, number, route.ack), [batch])


@BOTH_MODES
def test_row_61_a_message_that_fails_three_times_is_a_dead_letter_with_a_reason(three: LocalCluster, ack: Ack) -> None:
    async def body() -> None:
        topic = f"poison-{ack.name}"
        await make_topic(three, topic, ack=ack)
        await push_values(three, topic, numbered(2))
        async with consuming(three, topic, "one") as (one,):
            good = await one.pull(count=1, wait_ms=5000)
            await one.ack(good)
            await fail_three_times(one, range(1, 2))
            assert (await one.pull(wait_ms=500)).leases == (), "it is not delivered a fourth time"
            await one.find()
            assert one.routes["0"].offset == 2
        letters = await dead_letters(three, topic, 1)
        assert [letter.value for letter in letters] == [b"1"]
        assert told(letters[0]) == {
            "clymq-reason": "delivered 3 times",
            "clymq-topic": topic,
            "clymq-partition": "0",
            "clymq-offset": "1",
            "clymq-group": "default",
            "clymq-deliveries": "3",
        }
        async with AsyncAdmin(three.bootstrap) as admin:
            source, made = await admin.describe_topic(topic), await admin.describe_topic(f"{topic}.dlq")
        assert made.partitions[0].ack == Ack.QUORUM, (
            "DONE may be on a disk before the next power cut; so must the letter"
        )
        assert len(made.partitions[0].replicas) == len(source.partitions[0].replicas)

    run(body())


def test_a_rejected_range_is_a_dead_letter_at_once(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "rejected")
        await push_values(three, "rejected", numbered(40))
        async with consuming(three, "rejected", "one") as (one,):
            leased = await one.pull(wait_ms=5000)
            await one.ask(one.about(wire.Reject, leased, ranges=(OffsetRange(3, 38),), reason="cannot be parsed"))
            await one.ack(leased)
            await one.find()
            assert one.routes["0"].offset == 40
        letters = await dead_letters(three, "rejected", 35)
        assert [letter.value for letter in letters] == numbered(35, 3)
        assert {told(letter)["clymq-reason"] for letter in letters} == {"cannot be parsed"}
        assert [told(letter)["clymq-offset"] for letter in letters] == [str(offset) for offset in range(3, 38)]

    run(body())


def test_a_dead_letter_is_not_taken_for_another_whose_entry_was_lost_with_its_block(three: LocalCluster) -> None:
    """In fetch mode a DEAD may go with its leader when its letter has arrived; the next one has another number."""

    async def body() -> None:
        await make_topic(three, "numbers", ack=Ack.LEADER)
        await push_values(three, "numbers", numbered(3))
        async with consuming(three, "numbers", "one") as (one,):
            leased = await one.pull(count=1, wait_ms=5000)
            await one.ask(one.about(wire.Reject, leased, reason="the first"))
            await dead_letters(three, "numbers", 1)
            await leave_letter(one, number=2)
            async with AsyncAdmin(three.bootstrap) as admin:
                await admin.move_partition("numbers", "0", three.brokers)
            await one.find()
            leased = await one.pull(count=1, wait_ms=5000)
            await one.ask(one.about(wire.Reject, leased, reason="the second"))
        letters = await dead_letters(three, "numbers", 3)
        assert [told(letter).get("clymq-reason") for letter in letters] == ["the first", None, "the second"]

    run(body())


def test_a_dead_letter_topic_has_no_dead_letters(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "letters.dlq")
        await push_values(three, "letters.dlq", numbered(1))
        async with consuming(three, "letters.dlq", "one") as (one,):
            for delivery in range(1, 6):
                leased = await one.pull(wait_ms=5000)
                assert leased.leases[0].deliveries == delivery
                await one.nack(leased)
            leased = await one.pull(wait_ms=5000)
            assert isinstance(await refusal(one.ask(one.about(wire.Reject, leased))), InvalidRequest)
            await one.ack(leased)

    run(body())


def test_dead_letters_that_a_leader_leaves_behind_are_delivered_once_by_the_next(three: LocalCluster) -> None:
    """The leader is killed as soon as the first letters have arrived, in the middle of the rest."""

    async def body() -> None:
        await make_topic(three, "left")
        await push_values(three, "left", numbered(600))
        async with consuming(three, "left", "one") as (one,):
            leased = await one.pull(wait_ms=5000)
            assert len(leased.offsets) == 600
            await one.ask(one.about(wire.Reject, leased, reason="no"))
            leader = await asyncio.to_thread(three.leader, "left", "0")
            await dead_letters(three, "left", 1)
            await asyncio.to_thread(three.kill, leader)
            try:
                letters = await dead_letters(three, "left", 600)
                await asyncio.sleep(0)
                assert [letter.value for letter in letters] == numbered(600)
            finally:
                await asyncio.to_thread(three.start, leader)
            again = await dead_letters(three, "left", 600)
            assert len(again) == 600

    run(body())


LIMIT = 128 * 1024
TIGHT = {**PATIENT, "batch_bytes_max": LIMIT, "message_bytes_max": LIMIT, "frame_bytes_max": 2 * LIMIT}


def test_what_is_too_large_for_a_dead_letter_is_cut_and_holds_up_nobody() -> None:
    """One that only just went into a batch; then many, of a topic whose limit was lowered since."""

    async def body(cluster: LocalCluster) -> None:
        await make_topic(cluster, "tight")
        await push_values(cluster, "tight", [bytes(LIMIT - 2000)])
        await push_values(cluster, "tight", [b"%d" % number * 4000 for number in range(40)])
        await push_values(cluster, "tight", [b"small"])
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.alter_topic("tight", {"message_bytes_max": 100})

        async with consuming(cluster, "tight", "one") as (one,):
            seen = 0
            while seen < 42:
                leased = await one.pull(wait_ms=5000)
                await one.ask(one.about(wire.Reject, leased, reason="too much"))
                seen += len(leased.offsets)
        letters = await dead_letters(cluster, "tight", 42)
        assert [told(letter)["clymq-offset"] for letter in letters] == [str(offset) for offset in range(42)]
        assert {told(letter)["clymq-reason"] for letter in letters} == {"too much"}
        assert told(letters[0])["clymq-cut"] == str(LIMIT - 2000)
        assert LIMIT // 2 < len(letters[0].value) < LIMIT - 2000
        assert letters[-1].value == b"small"
        assert "clymq-cut" not in told(letters[-1])

    with LocalCluster(config=TIGHT) as cluster:
        run(body(cluster))
