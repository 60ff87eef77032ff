"""Producers, readers and workers that die, freeze, and come back under the same name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import Scene, one_of


class ClientFaults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self._workload = scene.workload

    @asynccontextmanager
    async def kill_producer(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a producer, which comes back under the same name."""
        async with self._killed(self._workload.producers, fault):
            yield

    @asynccontextmanager
    async def zombie_producer(self, fault: Fault) -> AsyncIterator[None]:
        """A producer is frozen, replaced, and goes on beside its successor, which has its name."""
        name = one_of(self._workload.producers, fault.pick)
        zombie = await asyncio.to_thread(self._workload.replace, name)
        yield
        self._workload.release(zombie)

    @asynccontextmanager
    async def kill_reader(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a reader, which goes on where it has committed."""
        async with self._killed(self._workload.readers, fault):
            yield

    @asynccontextmanager
    async def freeze_reader(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of a reader."""
        async with self._frozen(self._workload.readers, fault):
            yield

    @asynccontextmanager
    async def kill_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a worker, with all that is leased to it."""
        async with self._killed(self._workload.workers, fault):
            yield

    @asynccontextmanager
    async def freeze_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of a worker; it comes back with what others have by then."""
        async with self._frozen(self._workload.workers, fault):
            yield

    @asynccontextmanager
    async def _killed(self, names: Sequence[str], fault: Fault) -> AsyncIterator[None]:
        name = one_of(names, fault.pick)
        await asyncio.to_thread(self._workload.kill, name)
        yield
        await asyncio.to_thread(self._workload.start, name)

    @asynccontextmanager
    async def _frozen(self, names: Sequence[str], fault: Fault) -> AsyncIterator[None]:
        process = await asyncio.to_thread(self._workload.freeze, one_of(names, fault.pick))
        yield
        self._workload.release(process)
