"""Runs that are not drawn but written: what chance would need hours for, in the one order in which it hurts.

Each is a sequence of faults under the same load, judged by the same checker. They break nothing in brokers that keep
the rules; a broker that breaks the rule which each is about is convicted by it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from clymq.client.producer import AsyncProducer
from clymq.errors import ClymqError
from clymq.metadata.catalog import Catalog
from clymq.simulation.chaos.disk_faults import known_to_be_committed, sizes
from clymq.simulation.chaos.events import Journal
from clymq.simulation.chaos.scene import Scene
from clymq.simulation.chaos.workload import Place
from clymq.testing.waiting import until, until_asked

AHEAD_BYTES: Final = 16 * 1024
SECONDS_MAX: Final = 30.0
NO_LEADER_SECONDS: Final = 6.0
BURSTS, BURST = 12, 500
BESIDE_SECONDS: Final = 3.0
SYNC_SECONDS: Final = 0.5


async def empty_disk(scene: Scene) -> None:
    """Of three replicas one lags, one has lost its disk, and the leader, which alone has everything, dies.

    No leader is better than one that knows less than what was acknowledged.
    """
    await _lose_and_elect(scene, "empty disk", lambda name: shutil.rmtree(scene.cluster.data(name)))


async def short_disk(scene: Scene) -> None:
    """The same, but of all its files one half is left, and it is restarted twice: it must not forget what it misses."""

    def halve(name: str) -> None:
        for path, size in known_to_be_committed(sizes(scene.cluster.data(name))).items():
            os.truncate(path, size // 2)

    await _lose_and_elect(scene, "short disk", halve, starts=2)


async def _lose_and_elect(scene: Scene, what: str, lose: Callable[[str], None], *, starts: int = 1) -> None:
    leader, damaged, behind = await _replicas(scene)
    async with _noted(scene, what):
        for other in (leader, damaged):
            await scene.cut(behind, other)
        await _ahead(scene, damaged, behind)
        await scene.cut(damaged, leader)
        await scene.kill([damaged], keep=0.0)
        await asyncio.to_thread(lose, damaged)
        for _ in range(starts):
            await scene.kill([damaged], keep=0.0)
            await scene.start([damaged])
        await scene.kill([leader], keep=0.0)
        await scene.heal()
        await asyncio.sleep(NO_LEADER_SECONDS)  # in which the two could elect one of them
        await scene.start([leader])


async def slow_disk(scene: Scene) -> None:
    """Disks are slow, the power goes everywhere, and the leader is the last to come back.

    What was acknowledged before it was on a majority of disks is gone.
    """
    leader, *others = await _replicas(scene)
    async with _noted(scene, "slow disk"):
        for name in scene.brokers:
            scene.cluster.tell(name, sync_seconds=SYNC_SECONDS)
        await asyncio.sleep(6 * SYNC_SECONDS)
        await scene.cut_power([leader, *others], keep=0.0)
        for name in scene.brokers:
            scene.cluster.tell(name, sync_seconds=0.0)
        await scene.start(others)
        await asyncio.sleep(NO_LEADER_SECONDS)
        await scene.start([leader])


async def lost_session(scene: Scene) -> None:
    """A fetch leader is cut off from everything but its producers, and another one is put in its place.

    What it goes on to acknowledge stands beside what its successor does.
    """
    leader, *others = await _replicas(scene)
    async with _noted(scene, "lost session"):
        for other in (*others, *scene.cluster.zkservers, *scene.cluster.zookeepers):
            await scene.cut(leader, other)
        await _succeeded(scene, leader)
        with Journal(scene.workload.journals / "burst.jsonl", "burst") as journal:
            await _burst(scene, scene.places[0], journal)
        await asyncio.sleep(BESIDE_SECONDS)  # in which producers go on at the former leader, if it lets them
        await scene.heal()


DIRECTED: Final[dict[str, Callable[[Scene], Awaitable[None]]]] = {
    "empty disk": empty_disk,
    "short disk": short_disk,
    "slow disk": slow_disk,
    "lost session": lost_session,
}


@asynccontextmanager
async def _noted(scene: Scene, kind: str) -> AsyncIterator[None]:
    scene.journal.write("fault", id=kind, kind=kind, stage="begin")
    yield
    scene.journal.write("fault", id=kind, kind=kind, stage="end")


async def _replicas(scene: Scene) -> list[str]:
    """Return the brokers, the leader of the first partition first."""
    leader = await scene.cluster.leading(*scene.places[0], seconds_max=SECONDS_MAX)
    return [leader, *(name for name in scene.brokers if name != leader)]


async def _ahead(scene: Scene, one: str, other: str) -> None:
    """Wait until one broker holds more than another."""

    def is_ahead() -> bool:
        here, there = (sum(sizes(scene.cluster.data(name)).values()) for name in (one, other))
        return here >= there + AHEAD_BYTES

    await until(is_ahead, f"{one} holds more than {other}", seconds_max=SECONDS_MAX)


async def _succeeded(scene: Scene, leader: str) -> None:
    """Wait until the tree names another leader of the first partition."""
    store = await scene.cluster.connect()
    try:
        chain = Catalog(store).chain(*scene.places[0])

        async def has_other() -> bool:
            return (await chain.active()).block.value.leader not in {"", None, leader}

        await until_asked(has_other, f"somebody leads in the place of {leader}", seconds_max=SECONDS_MAX)
    finally:
        await store.close()


async def _burst(scene: Scene, place: Place, journal: Journal) -> None:
    """Push a lot at once to whoever leads now."""
    topic, partition = place
    async with AsyncProducer(scene.cluster.bootstrap, name="burst", timeout=SECONDS_MAX) as producer:
        for number in range(BURSTS):
            values = [f"burst:{number}:{at}" for at in range(BURST)]
            fields = {"topic": topic, "partition": partition, "op": f"burst:{number}"}
            journal.write("send", **fields, values=values)
            try:
                receipts = await producer.push_many(topic, [value.encode() for value in values], partition=partition)
            except ClymqError as error:
                journal.write("unknown", **fields, error=error.code)
                continue
            journal.write("ack", **fields, ranges=[[first, count] for _, first, count in receipts.ranges])
