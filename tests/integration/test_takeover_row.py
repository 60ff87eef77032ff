"""Row 83 with real processes, on ZooKeeper: the active zkserver is killed in the middle of moves, another finishes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import pytest

from clymq import Ack, AsyncAdmin, AsyncProducer
from clymq.cli.zookeeper import find_jars, find_java
from clymq.errors import ConfigError
from clymq.metadata.catalog import Catalog
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until_asked
from rows import CONFIG, LONG_SECONDS, run, tree, values

ROUNDS = 6
FINISHED_SECONDS_MAX = 5.0
TOPIC = "taken-over"


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    try:
        find_java(), find_jars()
    except ConfigError as error:
        pytest.skip(str(error))
    with ProcessCluster(3, 2, "zookeeper", config=CONFIG) as cluster:
        yield cluster


@pytest.mark.quick_skip
def test_row_83_moves_are_finished_within_five_seconds_of_a_takeover(cluster: ProcessCluster) -> None:
    """Each round another move, killed a little later; what was not begun by then is asked for again."""
    chance = random.Random(83)

    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin, tree(cluster) as catalog:
            await admin.create_topic(TOPIC, partitions=1)
            pushed: list[bytes] = []
            pushing = asyncio.create_task(push(cluster, pushed))
            for number in range(ROUNDS):
                changing = asyncio.create_task(change(admin, number))
                await asyncio.sleep(chance.uniform(0, 0.2))  # the moment is what is tried out here
                await take_over(cluster, catalog)
                await asyncio.gather(changing, return_exceptions=True)
                await change(admin, number)  # it is, or is now
                held = len(pushed)
                await until_asked(lambda held=held: more(pushed, held), "pushes go on", seconds_max=LONG_SECONDS)
            pushing.cancel()
            await asyncio.gather(pushing, return_exceptions=True)
            found = await values(cluster, TOPIC)
            # What was under way when the producer was stopped may be there as well.
            assert found[: len(pushed)] == pushed
            assert len(found) == len(set(found)) <= len(pushed) + 1

    run(check(), seconds_max=180)


async def change(admin: AsyncAdmin, number: int) -> None:
    if number % 3 == 2:
        brokers = sorted(each["name"] for each in (await admin.status())["brokers"])
        await admin.move_partition(TOPIC, "0", brokers[number % 2 :] + brokers[: number % 2])
    else:
        await admin.set_partition_state(TOPIC, "0", ack=Ack.LEADER if number % 2 else Ack.QUORUM)


async def take_over(cluster: ProcessCluster, catalog: Catalog) -> None:
    """Kill the active zkserver, and see how long the other one takes to finish what it finds."""
    active = await catalog.controller()
    assert active is not None
    cluster.kill(active.value.name)

    async def other_is_active() -> bool:
        await catalog.sync()
        found = await catalog.controller()
        return found is not None and found.value.name != active.value.name

    await until_asked(other_is_active, "the other one is active", seconds_max=LONG_SECONDS)
    began = time.monotonic()

    async def finished() -> bool:
        await catalog.sync()
        return (await catalog.chain(TOPIC, "0").partition()).value.pending is None

    await until_asked(finished, "the move is finished", seconds_max=FINISHED_SECONDS_MAX)
    print(f"finished {time.monotonic() - began:.2f} s after the takeover")
    await asyncio.to_thread(cluster.start, active.value.name)


async def push(cluster: ProcessCluster, pushed: list[bytes]) -> None:
    async with AsyncProducer(cluster.bootstrap, timeout=60) as producer:
        while True:
            value = b"%d" % len(pushed)
            await producer.push(TOPIC, value)
            pushed.append(value)
            await asyncio.sleep(0.005)


async def more(pushed: list[bytes], held: int) -> bool:
    return len(pushed) > held
