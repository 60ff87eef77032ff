"""Push delivery over the wire, both kinds, with credits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq import Ack
from clymq.errors import ClymqError
from clymq.protocol import broker as wire
from clymq.protocol.broker import Credit, StartToGet
from clymq.testing import LocalCluster
from clymq.testing.waiting import until_asked
from clymq.types import Mode
from consuming import PATIENT, RawConsumer, consuming, make_topic, numbered, push_values, values_in
from rows import LONG_SECONDS, Asking, roll, run

BOTH_MODES = pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER], ids=["raft", "fetch"])
MUCH = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, config=PATIENT) as cluster:
        yield cluster


async def start(consumer: RawConsumer, *, credit: int = MUCH, offset: int = 0, number: int = 1, **more: object) -> None:
    route = consumer.routes["0"]
    request = StartToGet(
        consumer.topic,
        "0",
        route.uid,
        consumer.mode,
        consumer.name,
        number,
        group=consumer.group,
        offset=offset,
        credit_bytes=credit,
        **more,
    )
    await consumer.ask_whoever_leads(request)


def received(consumer: RawConsumer) -> dict[int, bytes]:
    """Return the values that were delivered; each once, and in order for publish-subscribe."""
    values: dict[int, bytes] = {}
    for pub, payload in consumer.published:
        ranges = [lease.range for lease in pub.leases] or [pub.range]
        found = values_in(payload, [wire.Lease(0, each) for each in ranges])
        assert not found.keys() & values.keys(), "delivered twice"
        values |= found
    return values


async def until_received(consumer: RawConsumer, count: int) -> dict[int, bytes]:
    async def arrived() -> bool:
        return len(received(consumer)) >= count

    await until_asked(arrived, f"{consumer.name} has {count} messages", seconds_max=LONG_SECONDS)
    return received(consumer)


def as_numbered(count: int) -> dict[int, bytes]:
    return dict(enumerate(numbered(count)))


@BOTH_MODES
def test_row_62_two_consumers_each_get_everything_and_a_slow_one_holds_up_only_itself(
    cluster: LocalCluster, ack: Ack
) -> None:
    async def body() -> None:
        topic = f"row62-{ack.name}"
        await make_topic(cluster, topic, ack=ack)
        values = [b"%06d" % number + bytes(1000) for number in range(3000)]
        async with consuming(cluster, topic, "fast", "slow", mode=Mode.PSB_PUSH) as (fast, slow):
            await start(fast)
            await start(slow, credit=50_000)
            for begin in range(0, 3000, 100):
                await push_values(cluster, topic, values[begin : begin + 100])
            assert len(await until_received(fast, 3000)) == 3000
            sent = sum(pub.cost_bytes for pub, _ in slow.published)
            assert 0 < sent < 50_000 + 200_000, "no more than its credit, and one batch"
            while len(received(slow)) < 3000:
                before = len(slow.published)
                cost = slow.published[-1][0].cost_bytes
                link = slow._links[slow.routes["0"].address]
                assert link.peer is not None
                link.peer.tell(Credit(1, cost))

                async def more(before: int = before) -> bool:
                    return len(slow.published) > before

                await until_asked(more, "credit brings more", seconds_max=LONG_SECONDS)
            assert list(received(slow).values()) == values
            ranges = [pub.range for pub, _ in slow.published]
            assert [each.start for each in ranges[1:]] == [each.end for each in ranges[:-1]]

    run(body())


@BOTH_MODES
def test_shared_messages_are_pushed_to_one_of_the_group_each(cluster: LocalCluster, ack: Ack) -> None:
    async def body() -> None:
        topic = f"pushed-{ack.name}"
        await make_topic(cluster, topic, ack=ack)
        async with consuming(cluster, topic, "one", "two", mode=Mode.PTP_PUSH) as (one, two):
            await start(one, messages_max=5)
            await start(two, messages_max=5)
            for begin in range(0, 100, 10):
                await push_values(cluster, topic, numbered(10, begin))

            async def all_there() -> bool:
                return len(received(one)) + len(received(two)) >= 100

            await until_asked(all_there, "all are delivered", seconds_max=LONG_SECONDS)
            assert not received(one).keys() & received(two).keys()
            assert received(one) | received(two) == as_numbered(100)
            assert received(one)
            assert received(two)
            for consumer in (one, two):
                numbers = [lease.lease for pub, _ in consumer.published for lease in pub.leases]
                await consumer.ack(numbers)
            await one.find()
            assert one.routes["0"].offset == 100

    run(body())


def test_a_roll_ends_a_push_with_a_word_about_where_to_go_on(cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(cluster, "ends")
        await push_values(cluster, "ends", numbered(10))
        async with (
            Asking(cluster) as asking,
            consuming(cluster, "ends", "one", mode=Mode.PSB_PUSH) as (one,),
            consuming(cluster, "ends", "two", mode=Mode.PTP_PUSH) as (two,),
        ):
            await start(one)
            await start(two)
            await until_received(one, 10)
            await until_received(two, 10)
            await roll(asking, "ends")
            for consumer in (one, two):

                async def ended(consumer: RawConsumer = consumer) -> bool:
                    return bool(consumer.published[-1][0].error)

                await until_asked(ended, f"{consumer.name} is told", seconds_max=LONG_SECONDS)
                last = consumer.published.pop()[0]
                assert last.error in {"BlockSealed", "NotHosted", "NotLeader"}
                assert (last.range.start, last.range.end) == (10, 10)
            await push_values(cluster, "ends", numbered(5, 10))
            await one.find(offset=10)
            await start(one, offset=10)
            assert await until_received(one, 15) == as_numbered(15)
            numbers = [lease.lease for pub, _ in two.published for lease in pub.leases]
            await two.ask_whoever_leads(two.about(wire.Ack, numbers))
            await start(two)
            assert await until_received(two, 15) == as_numbered(15)

    run(body())


def test_a_leader_that_was_replaced_says_so_to_those_it_pushed_to(cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(cluster, "replaced")
        await push_values(cluster, "replaced", numbered(5))
        async with (
            consuming(cluster, "replaced", "one", mode=Mode.PSB_PUSH) as (one,),
            consuming(cluster, "replaced", "two", mode=Mode.PTP_PUSH) as (two,),
        ):
            await start(one)
            await start(two)
            await until_received(one, 5)
            await until_received(two, 5)
            leader = await asyncio.to_thread(cluster.leader, "replaced", "0")
            await asyncio.to_thread(cluster.freeze, leader)
            try:
                # What is frozen cannot be asked: it is the others who must have a leader.
                others = {name: address for name, address in cluster.addresses.items() if name != leader}

                async def another_leads() -> bool:
                    for address in others.values():
                        request = wire.Pull("replaced", "0", one.routes["0"].uid, offset=5, mode=4)
                        try:
                            await one.ask_at(address, request, timeout_ms=1000)
                        except ClymqError:
                            continue
                        return True
                    return False

                await until_asked(another_leads, "another one leads", seconds_max=LONG_SECONDS)
            finally:
                await asyncio.to_thread(cluster.thaw, leader)
            for consumer in (one, two):

                async def told(consumer: RawConsumer = consumer) -> bool:
                    return consumer.published[-1][0].error == "NotLeader"

                await until_asked(told, f"{consumer.name} is told", seconds_max=LONG_SECONDS)

    run(body())


def test_publish_subscribe_goes_from_sealed_blocks_into_the_active_one(cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(cluster, "across")
        async with Asking(cluster) as asking:
            for begin in range(0, 30, 10):
                await push_values(cluster, "across", numbered(10, begin))
                await roll(asking, "across")
        await push_values(cluster, "across", numbered(10, 30))
        async with consuming(cluster, "across", "one", mode=Mode.PSB_PUSH) as (one,):
            await one.find(offset=30)  # the leader of the active block has the others too
            await start(one, offset=3)
            values = await until_received(one, 37)
            assert values == {offset: value for offset, value in as_numbered(40).items() if offset >= 3}

    run(body())


@pytest.mark.parametrize("unread", [False, True])
def test_a_subscription_can_be_stopped_and_its_consumer_can_leave(cluster: LocalCluster, unread: bool) -> None:
    async def body() -> None:
        topic = f"stopped-{unread}"
        await make_topic(cluster, topic)
        async with consuming(cluster, topic, "one", "two", mode=Mode.PTP_PUSH) as (one, two):
            await start(one)
            await start(one, stop=True)
            await push_values(cluster, topic, numbered(3))
            await start(two)
            await until_received(two, 3)
            assert one.published == []
            await start(one)
            await two.ask(wire.ConInfo("two", leaving=True, unread=unread))
            assert await until_received(one, 3) == as_numbered(3)
            assert {lease.deliveries for pub, _ in one.published for lease in pub.leases} == {1 if unread else 2}

    run(body())


def test_a_consumer_that_does_not_answer_is_told_that_its_pushes_have_ended(cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(cluster, "frozen")
        await push_values(cluster, "frozen", numbered(3))
        async with consuming(cluster, "frozen", "one", mode=Mode.PTP_PUSH) as (one,):
            one.answers_pings = False
            await start(one)
            await until_received(one, 3)

            async def told() -> bool:
                return one.published[-1][0].error == "NotPrepared"

            await until_asked(told, "it is told", seconds_max=LONG_SECONDS)
            one.published.clear()
            one.answers_pings = True
            await start(one)
            assert await until_received(one, 3) == as_numbered(3)
            await asyncio.sleep(0)

    run(body())
