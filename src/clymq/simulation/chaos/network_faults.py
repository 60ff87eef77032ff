"""Cuts between named servers, packets that are lost or late, connections that break, sessions that end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from clymq.simulation.chaos.cluster import CONFIG
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import Scene, meanwhile

EXPIRE_SECONDS: Final = 2.0 * float(str(CONFIG["session_timeout_ms"])) / 1000
LOSS_SECONDS: Final = 0.15
DELAY_SECONDS_MAX: Final = 0.4


class NetworkFaults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @asynccontextmanager
    async def isolate(self, fault: Fault) -> AsyncIterator[None]:
        """Cut brokers off from the others, half of the time from zkservers and store too."""
        names = await self._scene.chosen(fault)
        others = [name for name in self._scene.brokers if name not in names]
        if fault.amount > 0.5:
            others += [*self._scene.cluster.zkservers, *self._scene.cluster.zookeepers]
        for name in names:
            for other in others:
                await self._scene.cut(name, other)
        yield
        await self._scene.heal()

    @asynccontextmanager
    async def one_way(self, fault: Fault) -> AsyncIterator[None]:
        """A broker is deaf or mute for the others, but not both."""
        (name,) = await self._scene.chosen(fault)
        for other in self._scene.brokers:
            if other != name:
                one, another = (name, other) if fault.amount > 0.5 else (other, name)
                await self._scene.cut(one, another, one_way=True)
        yield
        await self._scene.heal()

    @asynccontextmanager
    async def ring(self, fault: Fault) -> AsyncIterator[None]:
        """Every broker reaches a majority, and no two the same one."""
        brokers = list(self._scene.brokers)
        first = int(fault.pick * len(brokers))
        brokers = brokers[first:] + brokers[:first]
        for one, other in ring_cuts(brokers):
            await self._scene.cut(one, other)
        yield
        await self._scene.heal()

    @asynccontextmanager
    async def loss(self, fault: Fault) -> AsyncIterator[None]:
        """What a broker and the others send to each other is lost every other moment."""
        (name,) = await self._scene.chosen(fault)
        others = [other for other in self._scene.brokers if other != name]

        async def disturb() -> None:
            while True:
                for other in others:
                    await self._scene.cut(name, other)
                await asyncio.sleep(LOSS_SECONDS * (0.5 + fault.amount))
                await self._scene.heal()
                await asyncio.sleep(LOSS_SECONDS)

        async with meanwhile(disturb()):
            yield
        await self._scene.heal()

    @asynccontextmanager
    async def delay(self, fault: Fault) -> AsyncIterator[None]:
        """All that brokers are sent arrives late."""
        names = await self._scene.chosen(fault)
        for name in names:
            self._scene.cluster.tell(name, delay_seconds=round(0.01 + DELAY_SECONDS_MAX * fault.amount, 3))
        yield
        for name in names:
            self._scene.cluster.tell(name, delay_seconds=0.0)

    @asynccontextmanager
    async def reset(self, fault: Fault) -> AsyncIterator[None]:
        """All connections of a broker break, again and again."""
        (name,) = await self._scene.chosen(fault)

        async def disturb() -> None:
            while True:
                self._scene.cluster.reset_connections(name)
                await asyncio.sleep(0.2 + fault.amount)

        async with meanwhile(disturb()):
            yield

    @asynccontextmanager
    async def expire_session(self, fault: Fault) -> AsyncIterator[None]:
        """A broker, or the active zkserver, does not reach the store for longer than its session lives."""
        if fault.who == "zkserver":
            name = await self._scene.active_zkserver()
        else:
            (name,) = await self._scene.chosen(fault)
        for store in self._scene.stores:
            if store != name:
                await self._scene.cut(name, store)
        if name in self._scene.stores:  # it holds the store itself: its own session ends with its standing still
            await self._scene.freeze([name])
        await asyncio.sleep(EXPIRE_SECONDS)
        yield
        self._scene.thaw([name])
        await self._scene.heal()


def ring_cuts(brokers: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs to cut so that each broker reaches its neighbours in the ring only; of three, one pair."""
    count = len(brokers)
    if count == 3:
        return [(brokers[0], brokers[2])]
    return [
        (brokers[one], brokers[other])
        for one in range(count)
        for other in range(one + 1, count)
        if 1 < other - one < count - 1
    ]
