"""Subscriptions of many consumers at once: each is recorded, and the store is not asked once for each of them."""

from __future__ import annotations

import asyncio
from typing import Any

from clymq.errors import UnknownTopic
from clymq.metadata.store import MetadataStore
from clymq.protocol.controller import ListSubs, Sub, Subscribed, UnSub
from clymq.types import Mode
from controller_world import World, run

CONSUMERS = 300


class Counting:
    """A store that counts what is written to it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def commit(self, *arguments: Any, **options: Any) -> Any:
        self.commits += 1
        return await self.store.commit(*arguments, **options)


async def consumers_of(world: World) -> dict[str, dict[str, bool]]:
    listed = (await world.ask(ListSubs("t"))).subscriptions
    return dict(listed[0].groups) if listed else {}


def test_hundreds_that_join_and_leave_at_once_are_all_recorded_and_cost_few_writes() -> None:
    async def main(world: World) -> None:
        await world.make("t", "p")
        stores: list[Counting] = []

        def counted(store: MetadataStore) -> MetadataStore:
            stores.append(Counting(store))
            return stores[0]  # type: ignore[return-value]

        await world.kill_controller("ZkServer0")
        await world.add_controller("ZkServer1", wrap=counted)
        await world.ask(ListSubs("t"))
        before = stores[0].commits
        joining = [Sub("t", f"c{number}", Mode.PTP_PULL, "g") for number in range(CONSUMERS)]
        joined = await asyncio.gather(*(world.ask(each) for each in joining))
        assert joined == [Subscribed("PTP_PULL", created=True)] * CONSUMERS
        assert await consumers_of(world) == {"g": {f"c{number}": True for number in range(CONSUMERS)}}
        assert await world.ask(joining[0]) == Subscribed("PTP_PULL", created=False)
        leaving = [UnSub("t", f"c{number}", Mode.PTP_PULL, "g") for number in range(1, CONSUMERS)]
        await asyncio.gather(*(world.ask(each) for each in leaving))
        assert await consumers_of(world) == {"g": {"c0": True}}
        assert stores[0].commits - before < CONSUMERS / 10

    run(main)


def test_a_topic_that_is_not_there_is_said_to_everybody() -> None:
    async def main(world: World) -> None:
        asked = [world.ask(Sub("none", f"c{number}", Mode.PTP_PULL, "g")) for number in range(10)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in outcomes} == {UnknownTopic}

    run(main)
