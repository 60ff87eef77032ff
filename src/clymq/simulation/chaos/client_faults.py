"""Producers, readers and workers that die, freeze, and come back under the same name.

Two faults of one turn never strike the same client: what the one has ended the other could not freeze.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import one_of
from clymq.simulation.chaos.workload import Workload


class ClientFaults:
    """See the module."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._struck: set[str] = set()

    @asynccontextmanager
    async def kill_producer(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a producer, which comes back under the same name."""
        async with self._strike(self._workload.producers, fault, self._kill, self._workload.start):
            yield

    @asynccontextmanager
    async def zombie_producer(self, fault: Fault) -> AsyncIterator[None]:
        """A producer is frozen, replaced, and goes on beside its successor, which has its name."""
        async with self._strike(self._workload.producers, fault, self._workload.replace, self._workload.release):
            yield

    @asynccontextmanager
    async def kill_reader(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a reader, which goes on where it has committed."""
        async with self._strike(self._workload.readers, fault, self._kill, self._workload.start):
            yield

    @asynccontextmanager
    async def freeze_reader(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of a reader."""
        async with self._strike(self._workload.readers, fault, self._workload.freeze, self._workload.release):
            yield

    @asynccontextmanager
    async def kill_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a worker, with all that is leased to it."""
        async with self._strike(self._workload.workers, fault, self._kill, self._workload.start):
            yield

    @asynccontextmanager
    async def freeze_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of a worker; it comes back with what others have by then."""
        async with self._strike(self._workload.workers, fault, self._workload.freeze, self._workload.release):
            yield

    @asynccontextmanager
    async def _strike(
        self, names: Sequence[str], fault: Fault, begin: Callable[[str], str], undo: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Strike one of those that nothing has struck at present, if there is any; `undo` gets what `begin` returns."""
        free = [name for name in names if name not in self._struck]
        if not free:
            yield
            return
        name = one_of(free, fault.pick)
        self._struck.add(name)
        try:
            process = await asyncio.to_thread(begin, name)
            yield
            await asyncio.to_thread(undo, process)
        finally:
            self._struck.remove(name)

    def _kill(self, name: str) -> str:
        self._workload.kill(name)
        return name
