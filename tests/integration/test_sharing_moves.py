"""Leases while blocks roll, modes change and leaders go: nothing is delivered twice unless a leader crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from clymq import Ack, AsyncAdmin, AsyncProducer
from clymq.errors import UnknownLease
from clymq.protocol import broker as wire
from clymq.testing import LocalCluster
from clymq.testing.waiting import until, until_asked
from consuming import (
    PATIENT,
    Leased,
    RawConsumer,
    consuming,
    dead_letters,
    make_topic,
    numbered,
    push_values,
    values_in,
)
from rows import LONG_SECONDS, Asking, refusal, roll, run

ROLLS = 50
LOAD_SECONDS_MAX = 300
CONFIG = {**PATIENT, "controller_tick_ms": 50, "retention_check_ms": 300, "delete_delay_ms": 100}


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=CONFIG) as cluster:
        yield cluster


async def pull_from_whoever_leads(consumer: RawConsumer, *, wait_ms: int = 300, **more: object) -> Leased:
    answer = await consumer.ask_whoever_leads(consumer.pull_request(wait_ms=wait_ms, **more))
    leased = Leased(answer.reply.leases, values_in(answer.payload, answer.reply.leases), answer.reply.locator)
    if leased.locator is not None:
        leased.values = await read_at(consumer, leased)
    assert list(leased.values) == leased.offsets
    return leased


async def read_at(consumer: RawConsumer, leased: Leased) -> dict[int, bytes]:
    """Read what lies elsewhere, where the answer says that it is."""
    assert leased.locator is not None
    values: dict[int, bytes] = {}
    offset, end = leased.offsets[0], leased.offsets[-1] + 1
    while offset < end:
        request = wire.Pull(consumer.topic, "0", consumer.routes["0"].uid, offset=offset, mode=4)
        answer = await consumer.ask_at(leased.locator.address, request)
        lease = wire.Lease(0, wire.OffsetRange(offset, answer.reply.high_watermark))
        values |= values_in(answer.payload, [lease])
        offset = max(values) + 1
    return {offset: values[offset] for offset in leased.offsets}


class Load:
    """A producer that does not stop, and consumers that hold what they get for a while, then ack it."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.pushed = 0
        self.stopped = False
        self.produced = False
        self.delivered: Counter[int] = Counter()
        self.wrong: list[int] = []

    async def produce(self) -> None:
        async with AsyncProducer(self.cluster.bootstrap) as producer:
            while not self.stopped:
                await producer.push_many(self.topic, numbered(20, self.pushed), partition="0")
                self.pushed += 20
                await asyncio.sleep(0.005)
        self.produced = True

    async def more_is_pushed(self) -> None:
        """Wait until the active block has something, so that rolls do not follow one another too fast to get in."""
        before = self.pushed
        await until(lambda: self.pushed > before, "a push goes through", seconds_max=LONG_SECONDS)

    async def consume(self, consumer: RawConsumer) -> None:
        held: list[tuple[float, Leased]] = []
        loop = asyncio.get_running_loop()
        while held or not self.is_done:
            leased = await pull_from_whoever_leads(consumer, count=7)
            self.delivered.update(leased.offsets)
            self.wrong += [offset for offset, value in leased.values.items() if value != b"%d" % offset]
            if leased.leases:
                held.append((loop.time() + 0.15, leased))
            due = [each for each in held if each[0] <= loop.time() or not leased.leases]
            held = [each for each in held if each not in due]
            for _, old in due:
                await consumer.ask_whoever_leads(consumer.about(wire.Ack, old, ranges=old.ranges))

    @property
    def is_done(self) -> bool:
        return self.produced and len(self.delivered) >= self.pushed

    def check(self) -> None:
        assert self.wrong == []
        assert {offset: times for offset, times in self.delivered.items() if times > 1} == {}
        assert sorted(self.delivered) == list(range(self.pushed))


def test_row_82_fifty_rolls_under_load_deliver_nothing_twice(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "rolls")
        load = Load(three, "rolls")
        async with Asking(three) as asking, consuming(three, "rolls", "one", "two") as consumers:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.produce())
                for consumer in consumers:
                    tasks.create_task(load.consume(consumer))
                for _ in range(ROLLS):
                    await load.more_is_pushed()
                    await roll(asking, "rolls")
                load.stopped = True
            load.check()
            await consumers[0].find()
            assert consumers[0].routes["0"].offset == load.pushed

    asyncio.run(asyncio.wait_for(body(), LOAD_SECONDS_MAX))


async def ack_at_whoever_leads(consumer: RawConsumer, leased: Leased) -> None:
    await consumer.ask_whoever_leads(consumer.about(wire.Ack, leased))


def test_a_change_of_mode_there_and_back_hands_over_leases_and_delays(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "modes")
        await push_values(three, "modes", numbered(10))
        async with AsyncAdmin(three.bootstrap) as admin, consuming(three, "modes", "one", "two") as (one, two):
            held = await pull_from_whoever_leads(one, count=3)
            late = await pull_from_whoever_leads(one, count=3)
            await one.ask_whoever_leads(one.about(wire.Nack, late, delay_ms=60_000))
            for ack in (Ack.LEADER, Ack.QUORUM):
                await admin.set_partition_state("modes", "0", ack=ack)
                assert not {*held.offsets, *late.offsets} & {*(await pull_from_whoever_leads(two)).offsets}
            await ack_at_whoever_leads(one, held)
            await one.find()
            assert one.routes["0"].offset == 3

    run(body())


def test_a_leadership_that_is_handed_over_takes_the_leases_along(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "transfer")
        await push_values(three, "transfer", numbered(10))
        async with consuming(three, "transfer", "one", "two", patience_ms=1000) as (one, two):
            held = await pull_from_whoever_leads(one, count=6)
            leader = await asyncio.to_thread(three.leader, "transfer", "0")
            await asyncio.to_thread(three.stop, leader)
            try:
                assert await asyncio.to_thread(three.leader, "transfer", "0") != leader
                assert (await pull_from_whoever_leads(two)).offsets == [6, 7, 8, 9]
                await ack_at_whoever_leads(one, held)
                await one.find()
                assert one.routes["0"].offset == 6
            finally:
                await asyncio.to_thread(three.start, leader)

    run(body())


def test_after_a_crash_of_the_leader_what_was_not_acked_is_delivered_again(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "crash")
        await push_values(three, "crash", numbered(10))
        async with consuming(three, "crash", "one", "two", patience_ms=1000) as (one, two):
            done, held = await pull_from_whoever_leads(one, count=4), await pull_from_whoever_leads(one, count=4)
            await ack_at_whoever_leads(one, done)
            leader = await asyncio.to_thread(three.leader, "crash", "0")
            await asyncio.to_thread(three.kill, leader)
            try:
                again = await pull_from_whoever_leads(two)
                assert again.offsets == [4, 5, 6, 7, 8, 9]
                error = await refusal(one.ask_whoever_leads(one.about(wire.Ack, held)))
                assert isinstance(error, UnknownLease)
                named = one.about(wire.Ack, done, ranges=done.ranges)
                await one.ask_whoever_leads(named)  # what is finished may be acked at any leader
            finally:
                await asyncio.to_thread(three.start, leader)

    run(body())


def test_what_the_leader_does_not_hold_is_leased_with_a_place_to_read_it(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "located", replicas=1)
        await push_values(three, "located", numbered(10))
        async with Asking(three) as asking, consuming(three, "located", "one") as (one,):
            held = await pull_from_whoever_leads(one, count=2)
            first = (await asking.route("located")).broker
            other = next(name for name in three.brokers if name != first)
            await roll(asking, "located", brokers=(other,))
            await push_values(three, "located", numbered(5, 10))
            elsewhere = await pull_from_whoever_leads(one)
            assert elsewhere.locator is not None
            assert elsewhere.locator.broker == first
            assert elsewhere.locator.end == 10
            assert elsewhere.values == dict(enumerate(numbered(8, 2), 2))
            here = await pull_from_whoever_leads(one)
            assert here.locator is None
            assert here.offsets == [10, 11, 12, 13, 14]
            for leased in (elsewhere, here, held):
                await ack_at_whoever_leads(one, leased)
            await one.find()
            assert one.routes["0"].offset == 15

    run(body())


def test_dead_letters_are_read_where_they_are(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "far", replicas=1)
        await push_values(three, "far", numbered(3))
        async with Asking(three) as asking, consuming(three, "far", "one") as (one,):
            first = (await asking.route("far")).broker
            await roll(asking, "far", brokers=(next(name for name in three.brokers if name != first),))
            leased = await pull_from_whoever_leads(one)
            await one.ask_whoever_leads(one.about(wire.Reject, leased, reason="far away"))

            assert [letter.value for letter in await dead_letters(three, "far", 3)] == numbered(3)

    run(body())


def test_a_group_steps_over_what_retention_has_taken(three: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(three, "retained", settings={"retention_bytes": 0})
        await push_values(three, "retained", numbered(10))
        async with Asking(three) as asking, consuming(three, "retained", "one") as (one,):
            held = await pull_from_whoever_leads(one, count=2)
            await roll(asking, "retained")
            await push_values(three, "retained", numbered(5, 10))

            async def stepped_over() -> bool:
                leased = await pull_from_whoever_leads(one, wait_ms=10_000)
                if leased.offsets == [10, 11, 12, 13, 14]:
                    return True
                # A broker may not have heard yet that the block is gone.
                await one.ask_whoever_leads(one.about(wire.Nack, leased, unread=True))
                return False

            await until_asked(stepped_over, "the group goes on with what is there", seconds_max=LONG_SECONDS)
            await ack_at_whoever_leads(one, held)
            await one.find()
            assert one.routes["0"].offset == 10

    run(body())
