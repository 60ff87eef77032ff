"""Limits that a broker keeps whatever a client believes, and the figures that it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq import AsyncAdmin, AsyncProducer
from clymq.client.cluster import Cluster
from clymq.client.waiting import Deadline
from clymq.errors import MessageTooLarge, TooManyProducers
from clymq.protocol.broker import InitProducer, Push
from clymq.protocol.controller import ProGetBroker
from clymq.record import BatchBuilder
from clymq.testing.local_cluster import LocalCluster
from clymq.testing.waiting import until_asked
from rows import LONG_SECONDS, run

SETTINGS = {"producers_max": 2, "config_ms": 50, "disk_reserve_bytes": 0}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(brokers=1, config=SETTINGS) as cluster:
        yield cluster.bootstrap


def test_a_partition_takes_as_many_producers_as_are_allowed_and_forgets_none_that_is_not_idle(bootstrap: str) -> None:
    async def check() -> None:
        async with AsyncAdmin(bootstrap) as admin:
            await admin.create_topic("few", partitions=1)
        for name in ("a", "b"):
            async with AsyncProducer(bootstrap, name=name) as producer:
                await producer.push("few", b"x")
        async with AsyncProducer(bootstrap, name="c", timeout=LONG_SECONDS) as producer:
            with pytest.raises(TooManyProducers):
                await producer.push("few", b"x")
        async with AsyncProducer(bootstrap, name="a") as producer:
            assert (await producer.push("few", b"y")).offset == 2

    run(check())


def test_a_message_above_the_topic_s_limit_is_refused_by_the_broker_too(bootstrap: str) -> None:
    """By a client that does not ask what is allowed."""

    async def check() -> None:
        async with AsyncAdmin(bootstrap) as admin:
            await admin.create_topic("small", partitions=1, settings={"message_bytes_max": 1000})
        cluster = Cluster(bootstrap, name="careless", role="producer", surroundings=None)
        try:
            route = await cluster.ask_controller(ProGetBroker("small", "0"), Deadline(cluster.clock, LONG_SECONDS))
            async with AsyncProducer(bootstrap, name="careful") as producer:
                await producer.push("small", b"the leader is ready")
            init = InitProducer("small", "0", route.uid, "careless")
            epoch = (await cluster.ask(route.address, init, timeout_ms=5000)).reply.epoch
            data = BatchBuilder().add(b"x" * 1001).build(producer="careless", cmdindex=1, epoch=epoch)
            push = Push("small", "0", route.uid, "careless", 1, ack=-1)
            with pytest.raises(MessageTooLarge):
                await cluster.ask(route.address, push, [data], timeout_ms=5000)
            data = BatchBuilder().add(b"x" * 1000).build(producer="careless", cmdindex=1, epoch=epoch)
            answer = (await cluster.ask(route.address, push, [data], timeout_ms=5000)).reply
            assert answer.base_offset == 1
        finally:
            await cluster.close()

    run(check())


def test_status_shows_how_busy_a_broker_is_and_how_much_room_it_has(bootstrap: str) -> None:
    async def check() -> None:
        async with AsyncAdmin(bootstrap) as admin:

            async def told() -> bool:
                (broker,) = (await admin.status())["brokers"]
                return bool(broker["cpu"] > 0 and broker["disk_free_bytes"] > 0)

            await until_asked(told, "its figures are shown", seconds_max=LONG_SECONDS)
            (broker,) = (await admin.status())["brokers"]
            assert broker["disk_io"] >= 0

    asyncio.run(check())
