"""SPEC 7 on a cluster of real processes: what whoever runs it does every week, under load, and no client may notice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from clymq import Ack, AsyncAdmin
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until_asked
from row_load import Load, restored
from rows import CONFIG, LONG_SECONDS, Asking, is_online, roll, run

MODES = {"raft": Ack.QUORUM, "fetch": Ack.LEADER}


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    with ProcessCluster(4, config={**CONFIG, "config_ms": 500, "mirror_ms": 200}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> ProcessCluster:
    return restored(shared)


@pytest.mark.quick_skip
def test_a_rolling_restart_of_all_brokers_under_load_reaches_no_producer_and_loses_nothing(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin, AsyncExitStack() as stack:
            for topic, ack in MODES.items():
                await admin.create_topic(topic, partitions=1, ack=ack)
            loads = [await stack.enter_async_context(Load(cluster, topic)) for topic in MODES]
            for name in cluster.brokers:
                await asyncio.to_thread(cluster.stop, name)
                await asyncio.gather(*(load.goes_on() for load in loads))
                await asyncio.to_thread(cluster.start, name)
                await asyncio.gather(*(load.goes_on() for load in loads))
        for load in loads:
            await load.judge()

    run(check(), seconds_max=120)


@pytest.mark.quick_skip
def test_row_76_a_broker_is_emptied_under_load_and_destroyed_and_nothing_is_lost(cluster: ProcessCluster) -> None:
    async def check() -> None:
        topics = {f"emptied-{mode}": ack for mode, ack in MODES.items()}
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap, timeout=60) as admin,
            AsyncExitStack() as stack,
        ):
            victim = cluster.brokers[0]
            for topic, ack in topics.items():
                await admin.create_topic(topic, partitions=1, ack=ack)
                await admin.move_partition(topic, "0", cluster.brokers[:3])
            loads = [await stack.enter_async_context(Load(cluster, topic)) for topic in topics]
            for topic in topics:
                await roll(asking, topic, brokers=cluster.brokers[:3][::-1])  # a sealed block lies there too
            drained = await admin.drain(victim)
            assert drained["remaining"] == 0
            assert drained["moved"] >= 4
            await asyncio.gather(*(load.goes_on() for load in loads))
            cluster.kill(victim)
            shutil.rmtree(cluster.data(victim))
            await until_asked(lambda: is_online(asking, victim, False), "it is gone", seconds_max=LONG_SECONDS)
            await asyncio.gather(*(load.goes_on() for load in loads))
        for load in loads:
            await load.judge()
        async with AsyncAdmin(cluster.bootstrap) as admin:
            for topic in topics:
                assert victim not in (await admin.describe_topic(topic)).partitions[0].replicas

    run(check(), seconds_max=120)
