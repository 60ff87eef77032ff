"""Point to point over the wire: leases, acks, what comes back, and what happens to them when the leader changes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest
from msgspec import structs

from clymq import Ack
from clymq.config import Config
from clymq.errors import ClymqError, NotLeader, NotPrepared, UnknownLease
from clymq.protocol import broker as wire
from clymq.protocol.broker import OffsetRange
from clymq.protocol.controller import ListGroups, ResetGroup
from clymq.testing import LocalCluster
from clymq.testing.waiting import until_asked
from clymq.types import Mode
from consuming import RawConsumer, consuming, make_topic, numbered, push_values
from rows import LONG_SECONDS, Asking, refusal, run


async def refusal_or_none(work: Coroutine[Any, Any, Any]) -> ClymqError | None:
    try:
        await work
    except ClymqError as error:
        return error
    return None


MESSAGES = 100_000
BOTH_MODES = pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER], ids=["raft", "fetch"])


@BOTH_MODES
def test_messages_are_leased_once_and_finished_by_an_ack(clymq_cluster: LocalCluster, ack: Ack) -> None:
    async def body() -> None:
        topic = f"leased-{ack.name}"
        await make_topic(clymq_cluster, topic, ack=ack)
        await push_values(clymq_cluster, topic, numbered(10))
        async with consuming(clymq_cluster, topic, "one", "two") as (one, two):
            first = await one.pull(count=4, wait_ms=5000)
            assert first.offsets == [0, 1, 2, 3]
            assert list(first.values.values()) == numbered(4)
            assert [lease.deliveries for lease in first.leases] == [1]
            second = await two.pull(wait_ms=5000)
            assert second.offsets == [4, 5, 6, 7, 8, 9]
            assert (await one.pull()).leases == ()
            await one.ack(first)
            await two.ack(second)
            await two.ack(second)
            await two.ack(second, ranges=second.ranges)
            assert (await one.pull()).leases == ()

    run(body())


@BOTH_MODES
def test_row_59_the_cursor_moves_over_the_acked_prefix_only(clymq_cluster: LocalCluster, ack: Ack) -> None:
    async def body() -> None:
        topic = f"row59-{ack.name}"
        await make_topic(clymq_cluster, topic, ack=ack)
        await push_values(clymq_cluster, topic, numbered(3))
        async with consuming(clymq_cluster, topic, "one") as (one,):
            leases = [await one.pull(count=1, wait_ms=5000) for _ in range(3)]
            assert [lease.offsets for lease in leases] == [[0], [1], [2]]
            await one.ack(leases[1])
            await one.ack(leases[2])
            await one.find()
            assert one.routes["0"].offset == 0
            await one.ack(leases[0])
            await one.find()
            assert one.routes["0"].offset == 3

    run(body())


@BOTH_MODES
def test_what_is_not_acked_in_time_comes_back_and_is_counted(clymq_cluster: LocalCluster, ack: Ack) -> None:
    async def body() -> None:
        topic = f"expiry-{ack.name}"
        await make_topic(clymq_cluster, topic, ack=ack)
        await push_values(clymq_cluster, topic, numbered(5))
        async with consuming(clymq_cluster, topic, "one", "two") as (one, two):
            first = await one.pull(wait_ms=5000, lease_ms=100)
            again = await two.pull(wait_ms=10_000)
            assert again.offsets == first.offsets
            assert [lease.deliveries for lease in again.leases] == [2]
            error = await refusal(one.ack(first))
            assert isinstance(error, UnknownLease)
            assert error.leases == list(first.numbers)
            await two.ack(again)
            assert await refusal_or_none(one.ack(first, ranges=first.ranges)) is None, "it is finished, whoever did it"

    run(body())


def test_the_lag_of_a_group_is_right_within_seconds(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "lag")
        await push_values(clymq_cluster, "lag", numbered(10))
        async with consuming(clymq_cluster, "lag", "one") as (one,), Asking(clymq_cluster) as asking:
            await one.ack(await one.pull(count=4, wait_ms=5000))

            async def shown() -> bool:
                groups = (await asking.controller(ListGroups("lag"))).groups
                return [(each.group, each.cursor, each.end, each.lag) for each in groups] == [("default", 4, 10, 6)]

            await until_asked(shown, "the group has 6 messages to go", seconds_max=LONG_SECONDS)

    run(body())


def test_a_group_that_is_reset_begins_anew_and_its_leases_are_void(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "reset")
        await push_values(clymq_cluster, "reset", numbered(10))
        async with consuming(clymq_cluster, "reset", "one") as (one,), Asking(clymq_cluster) as asking:
            done, held = await one.pull(count=4, wait_ms=5000), await one.pull(count=4)
            await one.ack(done)
            await asking.controller(ResetGroup("reset", "default", "2"))
            assert isinstance(await refusal(one.ack(held)), UnknownLease)
            again = await one.pull()
            assert again.offsets == [2, 3, 4, 5, 6, 7, 8, 9]
            assert {lease.deliveries for lease in again.leases} == {1}

    run(body())


def test_a_nack_gives_back_what_it_names_after_its_delay(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "nack")
        await push_values(clymq_cluster, "nack", numbered(6))
        async with consuming(clymq_cluster, "nack", "one", "two") as (one, two):
            mine = await one.pull(wait_ms=5000)
            await one.nack(mine, ranges=(OffsetRange(2, 4),))
            back = await two.pull()
            assert back.offsets == [2, 3]
            assert back.leases[0].deliveries == 2
            await one.nack(mine, ranges=(OffsetRange(4, 5),), delay_ms=300)
            assert (await two.pull()).leases == ()
            assert (await two.pull(wait_ms=10_000)).offsets == [4]
            await one.nack(mine, ranges=(OffsetRange(5, 6),), unread=True)
            unread = await two.pull()
            assert unread.offsets == [5]
            assert unread.leases[0].deliveries == 1, "nobody has looked at it"
            await one.ack(mine)
            assert isinstance(await refusal(one.nack(mine)), UnknownLease)
            assert isinstance(await refusal(one.ack(back)), UnknownLease), "it is not this consumer's"

    run(body())


def test_an_extended_lease_lasts_longer(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "extend")
        await push_values(clymq_cluster, "extend", numbered(1))
        async with consuming(clymq_cluster, "extend", "one", "two") as (one, two):
            mine = await one.pull(wait_ms=5000, lease_ms=500)
            await one.ask(one.about(wire.Extend, mine, lease_ms=20_000))
            assert (await two.pull(wait_ms=1500)).leases == ()
            await one.ack(mine)

    run(body())


def test_a_pull_waits_for_messages_and_for_what_comes_back(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "waits")
        async with consuming(clymq_cluster, "waits", "one", "two") as (one, two):
            waiting = asyncio.create_task(one.pull(wait_ms=20_000))
            await push_values(clymq_cluster, "waits", numbered(2))
            mine = await waiting
            assert mine.values == {0: b"0", 1: b"1"}
            waiting = asyncio.create_task(two.pull(wait_ms=20_000))
            await asyncio.sleep(0)
            await one.nack(mine)
            assert (await waiting).offsets == [0, 1]

    run(body())


@pytest.mark.parametrize("mode", [Mode.PTP_PULL, Mode.PSB_PULL])
def test_pulls_that_are_given_up_leave_nothing_behind(clymq_cluster: LocalCluster, mode: Mode) -> None:
    async def body() -> None:
        topic = f"given-up-{mode.name}"
        await make_topic(clymq_cluster, topic)
        async with consuming(clymq_cluster, topic, "one") as (one,):
            request = structs.replace(one.pull_request(wait_ms=60_000), mode=mode)
            for _ in range(Config().window_requests // 100 + 1):
                waiting = [asyncio.create_task(one.ask(request)) for _ in range(100)]
                await asyncio.sleep(0.02)
                for each in waiting:
                    each.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            await push_values(clymq_cluster, topic, numbered(1))
            answer = await one.ask(request)
            assert len(answer.payload) > 0

    run(body())


def test_row_57_a_restarted_consumer_goes_on_at_the_cursor(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "row57")
        await push_values(clymq_cluster, "row57", numbered(10))
        for begin in (0, 4, 8):
            async with consuming(clymq_cluster, "row57", "one") as (one,):
                assert one.routes["0"].offset == begin
                leased = await one.pull(count=4, wait_ms=5000)
                assert leased.offsets[0] == begin
                await one.ack(leased)

    run(body())


@BOTH_MODES
def test_row_58_three_consumers_share_three_partitions_and_get_each_message_once(
    clymq_cluster: LocalCluster, ack: Ack
) -> None:
    async def body() -> None:
        topic, each = f"row58-{ack.name}", MESSAGES // 3
        await make_topic(clymq_cluster, topic, partitions=3, ack=ack)
        delivered: Counter[tuple[str, int]] = Counter()

        async def consume(consumer: RawConsumer) -> None:
            while len(delivered) < 3 * each:
                for partition in consumer.routes:
                    leased = await consumer.pull(partition, wait_ms=50, count=1000)
                    delivered.update((partition, offset) for offset in leased.offsets)
                    if leased.leases:
                        await consumer.ack(leased, partition)

        async with consuming(clymq_cluster, topic, "one", "two", "three") as consumers, asyncio.TaskGroup() as tasks:
            for partition in consumers[0].routes:
                tasks.create_task(push_values(clymq_cluster, topic, numbered(each), partition=partition))
            for consumer in consumers:
                tasks.create_task(consume(consumer))
        assert len(delivered) == 3 * each
        assert set(delivered.values()) == {1}

    run(body())


def test_a_broker_that_stops_lets_nobody_wait() -> None:
    async def body(cluster: LocalCluster) -> None:
        await make_topic(cluster, "stops", ack=Ack.LEADER)
        async with consuming(cluster, "stops", "one") as (one,):
            waiting = asyncio.create_task(refusal(one.pull(wait_ms=60_000)))

            async def heard_of() -> bool:
                return one.pings > 0

            await until_asked(heard_of, "the broker knows who pulls", seconds_max=LONG_SECONDS)
            await asyncio.to_thread(cluster.stop, "Broker0")
            assert isinstance(await waiting, NotLeader), "an answer, not a connection that breaks"

    with LocalCluster() as cluster:
        run(body(cluster))


def test_a_group_without_a_cursor_must_be_prepared(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "unprepared")
        async with consuming(clymq_cluster, "unprepared", "one") as (one,):
            one.group = "never heard of"
            assert isinstance(await refusal(one.pull()), NotPrepared)

    run(body())


def test_an_ordered_group_is_one_consumer_s_until_it_leaves(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "ordered")
        await push_values(clymq_cluster, "ordered", numbered(6))
        async with consuming(clymq_cluster, "ordered", "one", "two") as (one, two):
            mine = await one.pull(count=3, ordered=True)
            assert mine.offsets == [0, 1, 2]
            assert (await two.pull(ordered=True)).leases == ()
            await one.nack(mine, ranges=(OffsetRange(0, 1),), delay_ms=400)
            assert (await one.pull(ordered=True)).leases == (), "nothing overtakes what is to come again"
            again = await one.pull(ordered=True, wait_ms=10_000, count=1)
            assert again.offsets == [0]
            waiting = asyncio.create_task(two.pull(ordered=True, wait_ms=20_000))
            await one.ask(wire.ConInfo("one", leaving=True))
            assert (await waiting).offsets == [0, 1, 2, 3, 4, 5]

    run(body())


def test_row_63_a_silent_consumer_is_gone_in_four_seconds_and_its_messages_are_redelivered(
    clymq_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "silent")
        await push_values(clymq_cluster, "silent", numbered(3))
        async with consuming(clymq_cluster, "silent", "one", "two") as (one, two):
            assert (await one.ask(wire.ConInfo("one"))).reply.heartbeat_ms == 1000
            mine = await one.pull()
            lively = await two.pull(wait_ms=4500)
            assert lively.leases == (), "one that answers stays, however long it takes"
            assert one.pings >= 3
            one.answers_pings = False
            began = time.monotonic()
            back = await two.pull(wait_ms=20_000)
            assert time.monotonic() - began <= 4.0 + 1.0  # a second for a machine that has other things to do
            assert back.offsets == mine.offsets
            assert back.leases[0].deliveries == 2
            one.answers_pings = True
            await two.ack(back)
            await push_values(clymq_cluster, "silent", numbered(1))
            assert (await one.pull(wait_ms=5000)).offsets == [3], "back again, it receives again"

    run(body())


def test_a_consumer_that_connects_again_under_its_name_goes_on(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "again")
        await push_values(clymq_cluster, "again", numbered(3))
        async with consuming(clymq_cluster, "again", "one", "two") as (one, two):
            mine = await one.pull()
            await one.close()
            await one.ask(wire.ConInfo("one"))
            assert (await two.pull(wait_ms=4500)).leases == ()
            await one.ack(mine)

    run(body())


def test_a_consumer_whose_connection_is_lost_is_gone_after_the_same_grace(clymq_cluster: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(clymq_cluster, "cut off")
        await push_values(clymq_cluster, "cut off", numbered(3))
        async with consuming(clymq_cluster, "cut off", "one", "two") as (one, two):
            await one.pull()
            await one.close()
            assert (await two.pull(wait_ms=1000)).leases == ()
            assert (await two.pull(wait_ms=20_000)).offsets == [0, 1, 2]

    run(body())
