"""Limits that a broker keeps whatever a client believes, and the figures that it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer, Mode
from clymq.client.cluster import Cluster
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Deadline
from clymq.config import KiB, load
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


NARROW = {
    "batch_bytes_max": 64 * KiB,
    "message_bytes_max": 32 * KiB,
    "frame_bytes_max": 128 * KiB,
    "config_ms": 50,
    "disk_reserve_bytes": 0,
}


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_a_frame_carries_what_fits_into_it_however_much_is_asked_for(ack: Ack) -> None:
    """Readers, pushed ones and followers that come back all ask for a megabyte or more at once by default."""
    around = Surroundings(config=load(flags=NARROW))
    values = [bytes(8000)] * 200

    async def check(cluster: LocalCluster) -> None:
        async with (
            AsyncAdmin(cluster.bootstrap, surroundings=around) as admin,
            AsyncProducer(cluster.bootstrap, batch_bytes=16 * KiB, surroundings=around) as producer,
            AsyncConsumer(cluster.bootstrap, surroundings=around) as consumer,
        ):
            await admin.create_topic("narrow", partitions=1, ack=ack)
            await producer.push("narrow", b"it is led")
            leader = await asyncio.to_thread(cluster.leader, "narrow", "0")
            follower = next(name for name in cluster.brokers if name != leader)
            await asyncio.to_thread(cluster.kill, follower)
            await producer.push_many("narrow", values)
            await asyncio.to_thread(cluster.start, follower)
            for mode in (Mode.PSB_PULL, Mode.PSB_PUSH, Mode.PTP_PULL, Mode.PTP_PUSH):
                await consumer.subscribe("narrow", mode=mode, group=mode.name)
                seen = 0
                async with asyncio.timeout(LONG_SECONDS):
                    while seen < 1 + len(values):
                        seen += len(await consumer.pull(timeout=5.0))
                await consumer.unsubscribe("narrow")

            async def has_caught_up() -> bool:
                files = cluster.folder.glob("Broker*/narrow~*/0~*/Block_1/batches")
                return len({each.read_bytes() for each in files}) == 1

            await until_asked(has_caught_up, "the follower has all of it", seconds_max=LONG_SECONDS)

    with LocalCluster(brokers=3, config=NARROW) as cluster:
        run(check(cluster))
