"""Everything that consumers can pile up at a broker has a bound, and is refused or waits there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq.errors import InvalidRequest, OffsetOutOfRange, Overloaded
from clymq.protocol import broker as wire
from clymq.protocol.broker import StartToGet
from clymq.testing import LocalCluster
from clymq.types import Mode
from consuming import PATIENT, RawConsumer, consuming, make_topic, numbered, push_values
from rows import refusal, run

SMALL = {**PATIENT, "leases_max": 2, "waiting_pulls_max": 2, "subscriptions_max": 2, "push_bytes_max": 1024}


@pytest.fixture(scope="module")
def small() -> Iterator[LocalCluster]:
    with LocalCluster(config=SMALL) as cluster:
        yield cluster


def starting(consumer: RawConsumer, number: int, **more: object) -> StartToGet:
    facts: dict[str, object] = {"mode": Mode.PSB_PUSH, "credit_bytes": 1 << 20} | more
    route = consumer.routes["0"]
    return StartToGet(consumer.topic, "0", route.uid, consumer=consumer.name, subscription=number, **facts)


def test_a_group_with_as_many_leases_as_it_may_have_waits_until_one_ends(small: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(small, "leases")
        await push_values(small, "leases", numbered(5))
        async with consuming(small, "leases", "one") as (one,):
            first = await one.pull(count=1, wait_ms=5000)
            await one.pull(count=1)
            assert (await one.pull(count=1)).leases == ()
            waiting = asyncio.create_task(one.pull(count=1, wait_ms=30_000))
            await one.ack(first)
            assert (await waiting).offsets == [2]

    run(body())


def test_only_so_many_pulls_wait_at_a_partition(small: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(small, "waiting")
        async with consuming(small, "waiting", "one") as (one,):
            pulls = [asyncio.create_task(one.pull(wait_ms=30_000)) for _ in range(3)]
            done, waiting = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
            assert [type(each.exception()) for each in done] == [Overloaded]
            await push_values(small, "waiting", numbered(2))
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert done.pop().result().leases
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(body())


def test_a_connection_has_so_many_consumers_and_push_subscriptions(small: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(small, "many")
        async with consuming(small, "many", "one", mode=Mode.PSB_PUSH) as (one,):
            for number in (1, 2, 1):
                await one.ask_whoever_leads(starting(one, number))
            error = await refusal(one.ask(starting(one, 3)))
            assert isinstance(error, Overloaded)
            await one.ask(starting(one, 1, stop=True))
            await one.ask(starting(one, 3))
            await one.ask(wire.ConInfo("another"))
            assert isinstance(await refusal(one.ask(wire.ConInfo("a third"))), Overloaded)

    run(body())


def test_a_push_that_makes_no_sense_is_refused(small: LocalCluster) -> None:
    async def body() -> None:
        await make_topic(small, "nonsense")
        await push_values(small, "nonsense", numbered(5))
        async with consuming(small, "nonsense", "one", mode=Mode.PSB_PUSH) as (one,):
            error = await refusal(one.ask(starting(one, 1, offset=6)))
            assert isinstance(error, OffsetOutOfRange)
            assert error.end == 5
            assert isinstance(await refusal(one.ask(starting(one, 1, mode=Mode.PSB_PULL))), InvalidRequest)
        async with consuming(small, "nonsense", "two") as (two,):
            for empty in (wire.OffsetRange(3, 3), wire.OffsetRange(-1, 2)):
                assert isinstance(await refusal(two.ack([1], ranges=(empty,))), InvalidRequest)

    run(body())
