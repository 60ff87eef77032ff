"""What an operator does under load: brokers come and go, blocks move, topics are made, modes are switched."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from clymq.client.admin import AsyncAdmin
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import Scene, one_of
from clymq.simulation.chaos.workload import Place

REPLICAS: Final = 3
# What a partition's mode may be switched to from each.
SWITCHES: Final = {-1: (1, 0), 1: (-1, 0), 0: (-1, 1)}


class OperatorFaults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._topics_made = 0
        self._draining: set[str] = set()
        self.switching: Place | None = None
        """The partition whose mode may be switched."""
        self.modes: dict[Place, int] = {}

    async def undo(self) -> None:
        """Let all brokers take blocks again that are there."""
        for name in sorted(self._draining & set(self._scene.brokers)):
            if await self._scene.attempt(f"undrain {name}", partial(_undrain, name)):
                self._draining.discard(name)

    @asynccontextmanager
    async def add_broker(self, _: Fault) -> AsyncIterator[None]:
        """Another broker joins; it stays until it is removed."""
        spares = self._scene.cluster.spares
        if spares:
            await self._scene.start([spares[0]])
        await self.undo()
        yield

    @asynccontextmanager
    async def remove_broker(self, fault: Fault) -> AsyncIterator[None]:
        """Move everything off a broker; once nothing needs it, it is stopped, and its disk is destroyed."""
        scene = self._scene
        if len(scene.brokers) <= REPLICAS:
            scene.note("no broker can be spared")
            yield
            return
        name = one_of(scene.brokers, fault.pick)
        emptied = False

        async def drain(admin: AsyncAdmin) -> None:
            nonlocal emptied
            await admin.drain(name)
            emptied = True

        self._draining.add(name)
        async with scene.asking(f"drain {name}", drain):
            yield
        if not emptied:
            await self.undo()
            return
        await scene.stop(name)
        await asyncio.to_thread(shutil.rmtree, scene.cluster.data(name), ignore_errors=True)
        scene.cluster.retire(name)
        scene.note(f"{name} is removed")

    @asynccontextmanager
    async def move(self, fault: Fault) -> AsyncIterator[None]:
        """Move a partition's active block to brokers in another order."""
        topic, partition = one_of(self._scene.places, fault.pick)
        brokers = list(self._scene.brokers)
        random.Random(fault.amount).shuffle(brokers)

        async def move(admin: AsyncAdmin) -> None:
            await admin.move_partition(topic, partition, brokers[:REPLICAS])

        async with self._scene.asking(f"move {partition}", move):
            yield

    @asynccontextmanager
    async def create_topic(self, _: Fault) -> AsyncIterator[None]:
        """Make a topic."""
        self._topics_made += 1
        name = f"made{self._topics_made}"

        async def create(admin: AsyncAdmin) -> None:
            await admin.create_topic(name, partitions=2)

        async with self._scene.asking(f"create {name}", create):
            yield

    @asynccontextmanager
    async def switch_mode(self, fault: Fault) -> AsyncIterator[None]:
        """Change the ack of a partition: from Raft to fetch mode or back, or between the two of fetch mode."""
        assert self.switching is not None
        topic, partition = place = self.switching
        ack = self.modes[place] = one_of(SWITCHES[self.modes[place]], fault.amount)
        fields = {"topic": topic, "partition": partition, "ack": ack}
        self._scene.journal.write("mode", **fields, stage="begin")

        async def switch(admin: AsyncAdmin) -> None:
            await admin.set_partition_state(topic, partition, ack=ack)
            self._scene.journal.write("mode", **fields, stage="end")

        async with self._scene.asking(f"switch {partition} to {ack}", switch):
            yield


async def _undrain(name: str, admin: AsyncAdmin) -> None:
    await admin.undrain(name)
