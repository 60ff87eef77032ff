"""Each fault as a context: entering it makes something go wrong, leaving it makes it right again.

Every method takes the fault that was drawn and does what it says to the cluster or its clients. Who is meant by
`leader` is asked when it happens; if nobody answers, somebody is chosen.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from clymq.client.admin import AsyncAdmin
from clymq.errors import ClymqError
from clymq.simulation.chaos.cluster import CONFIG, ChaosCluster
from clymq.simulation.chaos.events import Journal
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.tolerance import Tolerance
from clymq.simulation.chaos.workload import Place, Workload
from clymq.testing.process_cluster import ZOOKEEPER
from clymq.testing.processes import ProcessFailed
from clymq.testing.waiting import WaitedTooLong

LEADER_SECONDS_MAX: Final = 3.0
ADMIN_SECONDS_MAX: Final = 15.0
EXPIRE_SECONDS: Final = 2.0 * float(str(CONFIG["session_timeout_ms"])) / 1000
# What is older than this when a broker dies is known to be committed, also by the broker itself: damage to it is
# noticed. One second is promised; the machine may be busy.
OLD_SECONDS: Final = 3.0
FLAKY_SECONDS: Final = 0.15
DAY_SECONDS: Final = 86_400.0

T = TypeVar("T")


class Faults:
    """See the module."""

    def __init__(
        self, cluster: ChaosCluster, workload: Workload, journal: Journal, places: Sequence[Place], tolerance: Tolerance
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._journal = journal
        self._places = places
        self._tolerance = tolerance
        self._topics_made = 0
        self.switching: Place | None = None
        """The partition whose mode may be switched."""
        self.modes: dict[Place, int] = {}

    def make(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """Return the context of a fault."""
        context: AbstractAsyncContextManager[None] = getattr(self, fault.kind.replace(" ", "_"))(fault)
        return context

    def note(self, text: str) -> None:
        """Write down what nobody asked for."""
        self._journal.write("note", text=text)

    # --- Processes ---

    @asynccontextmanager
    async def kill(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL."""
        names = await self._chosen(fault)
        await asyncio.to_thread(self._cluster.kill, *names)
        yield
        await self._start(names)

    @asynccontextmanager
    async def power_cut(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL, and what was not synced is gone."""
        names = await self._chosen(fault)
        lost = await asyncio.to_thread(self._cluster.cut_power, *names, keep=fault.amount)
        self.note(f"power cut of {' '.join(names)}: {lost} writes undone")
        yield
        await self._start(names)

    @asynccontextmanager
    async def freeze(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP, and later SIGCONT."""
        names = [name for name in await self._chosen(fault) if self._cluster.processes.is_running(name)]
        for name in names:
            await asyncio.to_thread(self._cluster.freeze, name)
        yield
        for name in names:
            self._cluster.thaw(name)

    @asynccontextmanager
    async def stop(self, fault: Fault) -> AsyncIterator[None]:
        """SIGTERM; `rolling`: one after the other, each back before the next goes."""
        if fault.who == "rolling":
            for name in self._brokers():
                await self._stop(name)
                await self._start([name])
            yield
            return
        names = await self._chosen(fault)
        for name in names:
            await self._stop(name)
        yield
        await self._start(names)

    # --- Disks and clocks ---

    @asynccontextmanager
    async def damage(self, fault: Fault) -> AsyncIterator[None]:
        """Truncation, a flipped bit, or no files at all, of one broker that is down; see `tolerance` for the rule."""
        down = [name for name in self._brokers() if not self._cluster.processes.is_running(name)]
        if down or not await self._tolerance.may_damage():
            self.note(f"no damage: {' '.join(down) or self._tolerance.damaged or 'somebody'} is down or not whole")
            yield
            return
        name = self._one_of(self._brokers(), fault.pick)
        paths = self._cluster.data(name).glob("*/*/Block_*/batches")
        old = {path: path.stat().st_size for path in sorted(paths) if path.stat().st_size}
        await asyncio.sleep(OLD_SECONDS)
        self._tolerance.note(name)
        await asyncio.to_thread(self._cluster.kill, name)
        if fault.who == "wipe":
            await asyncio.to_thread(shutil.rmtree, self._cluster.data(name))
            self.note(f"{name} has lost all files")
        elif old:
            self.note(damage_file(old, fault, random.Random(f"{fault.pick} {fault.amount}")))
        yield
        await self._start([name])

    @asynccontextmanager
    async def disk_full(self, fault: Fault) -> AsyncIterator[None]:
        """No room for messages on one broker."""
        names = await self._chosen(fault)
        for name in names:
            self._cluster.tell(name, disk_full=True)
        yield
        for name in names:
            self._cluster.tell(name, disk_full=False)

    @asynccontextmanager
    async def clock_jump(self, fault: Fault) -> AsyncIterator[None]:
        """The wall clock of one broker is wrong by up to a day, either way, and then right again."""
        names = await self._chosen(fault)
        for name in names:
            self._cluster.tell(name, clock_offset_seconds=(2 * fault.amount - 1) * DAY_SECONDS)
        yield
        for name in names:
            self._cluster.tell(name, clock_offset_seconds=0.0)

    # --- The network ---

    @asynccontextmanager
    async def isolate(self, fault: Fault) -> AsyncIterator[None]:
        """Cut brokers off from the others, half of the time from zkservers and store too."""
        names = await self._chosen(fault)
        others = [name for name in self._brokers() if name not in names]
        if fault.amount > 0.5:
            others += self._control_plane()
        for name in names:
            for other in others:
                await asyncio.to_thread(self._cluster.partition, name, other)
        yield
        await asyncio.to_thread(self._cluster.heal)

    @asynccontextmanager
    async def one_way(self, fault: Fault) -> AsyncIterator[None]:
        """A broker is deaf or mute for the others, but not both."""
        (name,) = await self._chosen(fault)
        for other in self._brokers():
            if other != name:
                one, another = (name, other) if fault.amount > 0.5 else (other, name)
                await asyncio.to_thread(self._cluster.partition, one, another, one_way=True)
        yield
        await asyncio.to_thread(self._cluster.heal)

    @asynccontextmanager
    async def ring(self, fault: Fault) -> AsyncIterator[None]:
        """Every broker reaches a majority, and no two the same one."""
        brokers = list(self._brokers())
        first = int(fault.pick * len(brokers))
        brokers = brokers[first:] + brokers[:first]
        for one, other in ring_cuts(brokers):
            await asyncio.to_thread(self._cluster.partition, one, other)
        yield
        await asyncio.to_thread(self._cluster.heal)

    @asynccontextmanager
    async def flaky(self, fault: Fault) -> AsyncIterator[None]:
        """Packets of a broker are lost every other moment, and with them go delays."""
        (name,) = await self._chosen(fault)
        others = [other for other in self._brokers() if other != name]

        async def disturb() -> None:
            while True:
                for other in others:
                    await asyncio.to_thread(self._cluster.partition, name, other)
                await asyncio.sleep(FLAKY_SECONDS * (0.5 + fault.amount))
                await asyncio.to_thread(self._cluster.heal)
                await asyncio.sleep(FLAKY_SECONDS)

        async with _meanwhile(disturb()):
            yield
        await asyncio.to_thread(self._cluster.heal)

    @asynccontextmanager
    async def reset(self, fault: Fault) -> AsyncIterator[None]:
        """All connections of a broker break, again and again."""
        (name,) = await self._chosen(fault)

        async def disturb() -> None:
            while True:
                self._cluster.reset_connections(name)
                await asyncio.sleep(0.2 + fault.amount)

        async with _meanwhile(disturb()):
            yield

    @asynccontextmanager
    async def expire_session(self, fault: Fault) -> AsyncIterator[None]:
        """A broker does not reach the store for longer than its session lives."""
        (name,) = await self._chosen(fault)
        for store in (ZOOKEEPER,) if self._cluster.store == ZOOKEEPER else self._cluster.zkservers:
            await asyncio.to_thread(self._cluster.partition, name, store)
        await asyncio.sleep(EXPIRE_SECONDS)
        yield
        await asyncio.to_thread(self._cluster.heal)

    # --- The control plane ---

    @asynccontextmanager
    async def kill_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGKILL of the active zkserver."""
        name = await self._active_zkserver()
        await asyncio.to_thread(self._cluster.kill, name)
        yield
        await self._start([name])

    @asynccontextmanager
    async def freeze_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGSTOP of the active zkserver."""
        name = await self._active_zkserver()
        await asyncio.to_thread(self._cluster.freeze, name)
        yield
        self._cluster.thaw(name)

    @asynccontextmanager
    async def stop_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGTERM of the active zkserver."""
        name = await self._active_zkserver()
        await self._stop(name)
        yield
        await self._start([name])

    @asynccontextmanager
    async def kill_zookeeper(self, _: Fault) -> AsyncIterator[None]:
        """SIGKILL of ZooKeeper itself."""
        await asyncio.to_thread(self._cluster.kill, ZOOKEEPER)
        yield
        await self._start([ZOOKEEPER])

    # --- Clients ---

    @asynccontextmanager
    async def kill_producer(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a producer, which comes back under the same name."""
        name = self._one_of(self._workload.producers, fault.pick)
        await asyncio.to_thread(self._workload.kill, name)
        yield
        await asyncio.to_thread(self._workload.start, name)

    @asynccontextmanager
    async def zombie_producer(self, fault: Fault) -> AsyncIterator[None]:
        """A producer is frozen, replaced, and goes on beside its successor, which has its name."""
        name = self._one_of(self._workload.producers, fault.pick)
        zombie = await asyncio.to_thread(self._workload.replace, name)
        yield
        self._workload.release(zombie)

    @asynccontextmanager
    async def kill_reader(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a reader, which goes on where it has committed."""
        name = self._one_of(self._workload.readers, fault.pick)
        await asyncio.to_thread(self._workload.kill, name)
        yield
        await asyncio.to_thread(self._workload.start, name)

    @asynccontextmanager
    async def kill_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of a worker, with all that is leased to it."""
        name = self._one_of(self._workload.workers, fault.pick)
        await asyncio.to_thread(self._workload.kill, name)
        yield
        await asyncio.to_thread(self._workload.start, name)

    @asynccontextmanager
    async def freeze_worker(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of a worker; it comes back with what others have by then."""
        name = self._one_of(self._workload.workers, fault.pick)
        process = await asyncio.to_thread(self._workload.freeze, name)
        yield
        self._workload.release(process)

    # --- What an operator does ---

    @asynccontextmanager
    async def add_broker(self, _: Fault) -> AsyncIterator[None]:
        """Another broker joins; it stays."""
        spares = self._cluster.spares
        if spares:
            await self._start([spares[0]])
        yield

    @asynccontextmanager
    async def drain_broker(self, fault: Fault) -> AsyncIterator[None]:
        """Move everything off a broker, and let it come back."""
        brokers = self._brokers()
        name = self._one_of(brokers, fault.pick)
        if len(brokers) <= 3:
            yield
            return

        async def drain(admin: AsyncAdmin) -> None:
            try:
                await admin.drain(name)
            finally:
                await admin.undrain(name)

        async with self._asking("drain", drain):
            yield

    @asynccontextmanager
    async def move(self, fault: Fault) -> AsyncIterator[None]:
        """Move a partition's active block to brokers in another order."""
        topic, partition = self._one_of(self._places, fault.pick)
        brokers = list(self._brokers())
        random.Random(fault.amount).shuffle(brokers)

        async def move(admin: AsyncAdmin) -> None:
            await admin.move_partition(topic, partition, brokers[:3])

        async with self._asking(f"move {partition}", move):
            yield

    @asynccontextmanager
    async def create_topic(self, _: Fault) -> AsyncIterator[None]:
        """Make a topic."""
        self._topics_made += 1
        name = f"made{self._topics_made}"

        async def create(admin: AsyncAdmin) -> None:
            await admin.create_topic(name, partitions=2)

        async with self._asking(f"create {name}", create):
            yield

    @asynccontextmanager
    async def switch_mode(self, fault: Fault) -> AsyncIterator[None]:
        """Change a partition from Raft to fetch mode or back."""
        assert self.switching is not None
        topic, partition = place = self.switching
        ack = self.modes[place] = 1 if self.modes[place] == -1 else -1
        fields = {"topic": topic, "partition": partition, "ack": ack}
        self._journal.write("mode", **fields, stage="begin")

        async def switch(admin: AsyncAdmin) -> None:
            await admin.set_partition_state(topic, partition, ack=ack)
            self._journal.write("mode", **fields, stage="end")

        async with self._asking(f"switch {partition} to {ack}", switch):
            yield

    # --- Inside ---

    def _brokers(self) -> Sequence[str]:
        return self._cluster.brokers

    def _control_plane(self) -> list[str]:
        return [*self._cluster.zkservers, *([ZOOKEEPER] if self._cluster.store == ZOOKEEPER else [])]

    async def _chosen(self, fault: Fault) -> list[str]:
        """Return the brokers that are meant."""
        brokers = list(self._brokers())
        if fault.who == "leader":
            return [await self._leader(self._one_of(self._places, fault.pick), fault.pick)]
        random.Random(fault.pick).shuffle(brokers)
        minority = (len(brokers) - 1) // 2
        count = {"one": 1, "minority": minority, "majority": len(brokers) - minority, "all": len(brokers)}
        return brokers[: count[fault.who]]

    async def _leader(self, place: Place, pick: float) -> str:
        try:
            return await self._cluster.leading(*place, seconds_max=LEADER_SECONDS_MAX)
        except (ClymqError, WaitedTooLong, TimeoutError, AssertionError):
            return self._one_of(self._brokers(), pick)

    async def _active_zkserver(self) -> str:
        if len(self._cluster.zkservers) == 1:
            return self._cluster.zkservers[0]
        async with AsyncAdmin(self._cluster.bootstrap, timeout=LEADER_SECONDS_MAX) as admin:
            try:
                return next(str(each["name"]) for each in (await admin.status())["zkservers"] if each["active"])
            except (ClymqError, StopIteration):
                return self._cluster.zkservers[0]

    async def _start(self, names: Sequence[str]) -> None:
        missing = [name for name in names if not self._cluster.processes.is_running(name)]
        for name in missing:
            try:
                await asyncio.to_thread(self._cluster.start, name)
            except ProcessFailed as error:
                self._journal.write("stuck", text=str(error))

    async def _stop(self, name: str) -> None:
        if self._cluster.processes.is_running(name):
            try:
                await asyncio.to_thread(self._cluster.stop, name)
            except ProcessFailed as error:
                self.note(f"stop: {error}")

    @asynccontextmanager
    async def _asking(self, what: str, ask: Any) -> AsyncIterator[None]:
        """Ask the controller for something while the turn lasts; it may fail, for others break things meanwhile."""

        async def attempt() -> None:
            async with AsyncAdmin(self._cluster.bootstrap, timeout=ADMIN_SECONDS_MAX) as admin:
                try:
                    await ask(admin)
                except ClymqError as error:
                    self.note(f"{what}: {error.code}: {error}")

        task = asyncio.create_task(attempt())
        try:
            yield
        finally:
            await task

    @staticmethod
    def _one_of(names: Sequence[T], pick: float) -> T:
        return names[min(len(names) - 1, int(pick * len(names)))]


@asynccontextmanager
async def _meanwhile(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


def damage_file(old: dict[Path, int], fault: Fault, chance: random.Random) -> str:
    """Truncate one of these files, or flip a bit in it, within what is old; return what was done."""
    path = chance.choice(sorted(old))
    position = chance.randrange(old[path])
    where = "/".join(path.parts[-5:])
    with path.open("r+b") as file:
        if fault.who == "truncate":
            file.truncate(position)
            return f"{where} is cut to {position} of {old[path]} bytes"
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        return f"{where} has a bit flipped at {position} of {old[path]} bytes"
