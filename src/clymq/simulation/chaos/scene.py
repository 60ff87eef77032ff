"""Where faults happen: the cluster, its clients, and who is meant when a fault says `leader` or `minority`.

Who is meant is asked when it happens; if nobody answers, somebody is chosen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from clymq.client.admin import AsyncAdmin
from clymq.errors import ClymqError
from clymq.simulation.chaos.cluster import ChaosCluster
from clymq.simulation.chaos.events import Journal
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.tolerance import Tolerance
from clymq.simulation.chaos.workload import Place, Workload
from clymq.testing.processes import ProcessFailed
from clymq.testing.waiting import WaitedTooLong

LEADER_SECONDS_MAX: Final = 3.0
ADMIN_SECONDS_MAX: Final = 15.0

T = TypeVar("T")


class Scene:
    """See the module."""

    def __init__(
        self,
        cluster: ChaosCluster,
        workload: Workload,
        journal: Journal,
        places: Sequence[Place],
        tolerance: Tolerance,
        *,
        kills_cut_power: bool = False,
    ) -> None:
        self.cluster = cluster
        self.workload = workload
        self.journal = journal
        self.places = places
        self.tolerance = tolerance
        self.kills_cut_power = kills_cut_power

    def note(self, text: str) -> None:
        """Write down what nobody asked for."""
        self.journal.write("note", text=text)

    # --- Who is meant ---

    @property
    def brokers(self) -> Sequence[str]:
        """All that belong to the cluster, running or not."""
        return self.cluster.brokers

    @property
    def stores(self) -> Sequence[str]:
        """Who serves the metadata."""
        return self.cluster.zookeepers or self.cluster.zkservers

    def is_running(self, name: str) -> bool:
        """Whether a server is alive; a frozen one is."""
        return self.cluster.processes.is_running(name)

    async def chosen(self, fault: Fault) -> list[str]:
        """Return the brokers that are meant."""
        if fault.who == "leader":
            return [await self._leader(one_of(self.places, fault.pick), fault.pick)]
        return some_of(self.brokers, fault)

    async def active_zkserver(self) -> str:
        """Return who is in charge."""
        if len(self.cluster.zkservers) == 1:
            return self.cluster.zkservers[0]
        async with AsyncAdmin(self.cluster.bootstrap, timeout=LEADER_SECONDS_MAX) as admin:
            try:
                return next(str(each["name"]) for each in (await admin.status())["zkservers"] if each["active"])
            except (ClymqError, StopIteration):
                return self.cluster.zkservers[0]

    async def _leader(self, place: Place, pick: float) -> str:
        try:
            return await self.cluster.leading(*place, seconds_max=LEADER_SECONDS_MAX)
        except (ClymqError, WaitedTooLong, TimeoutError, AssertionError):
            return one_of(self.brokers, pick)

    # --- What happens to them ---

    async def kill(self, names: Sequence[str], *, keep: float) -> None:
        """SIGKILL; if kills cut the power in this run, what was not synced is gone, but for a torn part."""
        if self.kills_cut_power:
            await self.cut_power(names, keep=keep)
        else:
            await asyncio.to_thread(self.cluster.kill, *names)

    async def cut_power(self, names: Sequence[str], *, keep: float) -> None:
        """SIGKILL, and what was not synced is gone, but for a torn part."""
        lost = await asyncio.to_thread(self.cluster.cut_power, *names, keep=keep)
        self.journal.write("unsynced", brokers=list(names), writes=lost)

    async def start(self, names: Sequence[str]) -> None:
        """Start again who is not running, all at once; one that does not start is noted as what it is."""
        missing = [name for name in names if not self.is_running(name)]
        if not missing:
            return
        try:
            await asyncio.to_thread(self.cluster.start, *missing)
        except ProcessFailed as error:
            self.journal.write("stuck", text=str(error))

    async def stop(self, name: str) -> None:
        """SIGTERM; in the middle of faults it need not end well."""
        if self.is_running(name):
            try:
                await asyncio.to_thread(self.cluster.stop, name)
            except ProcessFailed as error:
                self.note(f"stop: {error}")

    async def freeze(self, names: Sequence[str]) -> list[str]:
        """SIGSTOP; return who stands still."""
        running = [name for name in names if self.is_running(name)]
        for name in running:
            await asyncio.to_thread(self.cluster.freeze, name)
        return running

    def thaw(self, names: Sequence[str]) -> None:
        """SIGCONT."""
        for name in names:
            self.cluster.thaw(name)

    async def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Lose what two servers send to each other; one way: what the first sends to the second."""
        await asyncio.to_thread(self.cluster.partition, one, other, one_way=one_way)

    async def heal(self) -> None:
        """Undo all cuts."""
        await asyncio.to_thread(self.cluster.heal)

    # --- What is asked of the controller ---

    async def attempt(self, what: str, ask: Callable[[AsyncAdmin], Awaitable[None]]) -> bool:
        """Ask; it may fail, for others break things meanwhile. Return whether it did not."""
        async with AsyncAdmin(self.cluster.bootstrap, timeout=ADMIN_SECONDS_MAX) as admin:
            try:
                await ask(admin)
            except ClymqError as error:
                self.note(f"{what}: {error.code}: {error}")
                return False
        return True

    @asynccontextmanager
    async def asking(self, what: str, ask: Callable[[AsyncAdmin], Awaitable[None]]) -> AsyncIterator[None]:
        """Ask while the turn lasts."""
        task = asyncio.create_task(self.attempt(what, ask))
        try:
            yield
        finally:
            await task


@asynccontextmanager
async def meanwhile(work: Awaitable[None]) -> AsyncIterator[None]:
    """Do something without end while the turn lasts."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def one_of(names: Sequence[T], pick: float) -> T:
    """Choose by a number from 0 to 1."""
    return names[min(len(names) - 1, int(pick * len(names)))]


def some_of(names: Sequence[str], fault: Fault) -> list[str]:
    """Choose one, a minority, a majority or all."""
    shuffled = list(names)
    random.Random(fault.pick).shuffle(shuffled)
    minority = (len(shuffled) - 1) // 2
    count = {"one": 1, "minority": minority, "majority": len(shuffled) - minority, "all": len(shuffled)}
    return shuffled[: count[fault.who]]
