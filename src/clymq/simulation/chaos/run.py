"""A whole run: start everything, do the worst, heal, read everything, and let the checker judge."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.errors import ClymqError
from clymq.simulation.chaos.checker import Verdict, check_files
from clymq.simulation.chaos.clients import WORKERS, runs_of
from clymq.simulation.chaos.cluster import ChaosCluster
from clymq.simulation.chaos.dead_letters import read_dead_letters
from clymq.simulation.chaos.directed import DIRECTED
from clymq.simulation.chaos.events import Journal
from clymq.simulation.chaos.faults import Faults
from clymq.simulation.chaos.plan import ModeKind, Options, Turn, draw
from clymq.simulation.chaos.replicas import Replicas
from clymq.simulation.chaos.scene import Scene
from clymq.simulation.chaos.tolerance import Tolerance
from clymq.simulation.chaos.workload import Place, Workload
from clymq.testing.network import Kind
from clymq.testing.processes import ProcessFailed
from clymq.testing.waiting import WaitedTooLong, until_asked

log = logging.getLogger("clymq.chaos")

TOPIC: Final = "chaos"
LEASE_MS: Final = 5000
SETTINGS: Final = {"block_bytes_max": 256 * 1024, "lease_ms": LEASE_MS}
QUIET_SECONDS: Final = 2.5 * LEASE_MS / 1000
FINAL_SECONDS_MAX: Final = 120.0
# Before and after a directed run.
CALM_SECONDS: Final = 3.0

# The partitions of each mode, and how each begins.
PARTITIONS: Final[dict[ModeKind, dict[str, int]]] = {
    "raft": {"0": -1, "1": -1},
    "fetch": {"0": 1, "1": 1},
    "mixed": {"raft": -1, "fetch": 1, "switched": -1},
}
SWITCHED: Final = "switched"


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is."""

    brokers: int = 3
    producers: int = 2
    readers: int = 2
    workers: int = 2
    pause_ms: float = 20.0


class Chaos:
    """One run in a folder; what it leaves there is the history, and the logs of all processes."""

    def __init__(
        self,
        options: Options,
        folder: Path,
        *,
        size: Size = Size(),  # noqa: B008 - frozen
        mutation: str | None = None,
        directed: str | None = None,
        network: Kind = "auto",
        say: Callable[[str], None] = print,
    ) -> None:
        self._options = options
        self._folder = folder
        self._size = size
        self._directed = directed
        self._say = say
        zkservers = 2 if options.store == "zookeeper" else 1
        self._cluster_folder = folder / "cluster"
        self._cluster = ChaosCluster(
            size.brokers, zkservers, options.store,
            spares=1, folder=self._cluster_folder, network=network, mutation=mutation,
        )  # fmt: skip
        modes = PARTITIONS[options.mode]
        self._places: list[Place] = [(TOPIC, name) for name in modes]
        self._modes = {(TOPIC, name): ack for name, ack in modes.items()}

    async def run(self) -> Verdict:
        """Make the run, and return what it shows."""
        history = self._folder / "history"
        for left_behind in (history, self._cluster_folder, self._folder / "clients"):
            shutil.rmtree(left_behind, ignore_errors=True)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._cluster)
            await self._make_topic()
            workload = stack.enter_context(self._workload())
            journal = stack.enter_context(Journal(history / "nemesis.jsonl", "nemesis"))
            for (topic, partition), ack in self._modes.items():
                journal.write("mode", topic=topic, partition=partition, ack=ack, stage="end")
            await asyncio.to_thread(workload.start)
            await self._disturb(workload, journal)
            await self._finish(workload, journal)
        self._say("the history is judged")
        return await asyncio.to_thread(lambda: check_files(sorted(history.glob("*.jsonl"))))

    def _workload(self) -> Workload:
        size = self._size
        return Workload(
            self._folder,
            self._cluster.bootstrap,
            self._places,
            producers=size.producers,
            readers=size.readers,
            workers=size.workers,
            pause_ms=size.pause_ms,
        )

    async def _make_topic(self) -> None:
        async with AsyncAdmin(self._cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=0, settings=SETTINGS)
            for (topic, partition), ack in self._modes.items():
                await admin.create_partition(topic, partition)
                await admin.set_partition_state(topic, partition, ack=ack)
        for place in self._places:
            await self._cluster.leading(*place)

    # --- While it lasts ---

    async def _disturb(self, workload: Workload, journal: Journal) -> None:
        tolerance, power = Tolerance(self._all_whole), self._options.kills_cut_power
        scene = Scene(self._cluster, workload, journal, self._places, tolerance, kills_cut_power=power)
        if self._directed is not None:
            self._say(f"directed: {self._directed}")
            await asyncio.sleep(CALM_SECONDS)
            await DIRECTED[self._directed](scene)
            await asyncio.sleep(CALM_SECONDS)
            return
        faults = Faults(scene)
        faults.operator.modes = dict(self._modes)
        faults.operator.switching = (TOPIC, SWITCHED) if (TOPIC, SWITCHED) in self._modes else None
        clock = asyncio.get_running_loop()
        began = clock.time()
        for number, turn in enumerate(draw(self._options)):
            if self._options.by_the_clock and clock.time() - began >= 60 * self._options.minutes:
                break
            await self._take_turn(number, turn, faults, journal)
            for name in workload.failures():
                scene.note(f"{name} has ended by itself")
                await asyncio.to_thread(workload.start, name)
        await faults.operator.undo()

    async def _take_turn(self, number: int, turn: Turn, faults: Faults, journal: Journal) -> None:
        names = [fault.name for fault in turn.faults]
        self._say(f"turn {number}: {', '.join(names) or 'nothing'} for {turn.seconds:g} s")
        kinds = names or ["none"]
        for at, kind in enumerate(kinds):
            journal.write("fault", id=f"{number}.{at}", kind=kind, stage="begin")
        async with AsyncExitStack() as stack:
            for fault in turn.faults:
                await stack.enter_async_context(faults.make(fault))
            await asyncio.sleep(turn.seconds)
        for at, kind in enumerate(kinds):
            journal.write("fault", id=f"{number}.{at}", kind=kind, stage="end")
        await asyncio.sleep(turn.calm_seconds)

    async def _all_whole(self) -> bool:
        """Whether every replica that the tree names holds the same bytes, or the same but for what is being written."""
        store = await self._cluster.connect()
        try:
            return await (await Replicas.all(self._cluster, store)).can_lose_one()
        except ClymqError:
            return False
        finally:
            await store.close()

    # --- At the end ---

    async def _finish(self, workload: Workload, journal: Journal) -> None:
        """Heal, let producers and workers come to the end, read everything, wait until all replicas are equal."""
        self._say("all is healed, and read to its end")
        problems = await asyncio.to_thread(self._heal)
        problems += await asyncio.to_thread(workload.stop, workload.producers)
        with Journal(workload.journals / "final.jsonl", "final") as final:
            for each in await asyncio.gather(*(self._read_all(place, final) for place in self._places)):
                problems += each
            if not problems:  # groups do not come to the end of what cannot be read
                problems += await self._drain(workload, final)
        problems += await asyncio.to_thread(workload.stop, (*workload.readers, *workload.workers))
        store = await self._cluster.connect()
        try:
            self._say("replicas become equal")
            everything = await Replicas.all(self._cluster, store)
            problems += [f"not equal: {text}" for text in await everything.settle()]
            await Replicas(self._cluster, store, self._places).record(workload.journals)
        finally:
            await store.close()
        for problem in problems:
            journal.write("stuck", text=problem)

    def _heal(self) -> list[str]:
        """Leave nothing broken; return what cannot be mended."""
        cluster = self._cluster
        cluster.heal()
        for name in (*cluster.zookeepers, *cluster.zkservers, *cluster.brokers):
            cluster.thaw(name)
        problems = []
        # Members of an ensemble need each other; of the others each is given its own chance.
        for names in (cluster.zookeepers, *((name,) for name in (*cluster.zkservers, *cluster.brokers))):
            down = [name for name in names if not cluster.processes.is_running(name)]
            try:
                if down:
                    cluster.start(*down)
            except ProcessFailed as error:
                problems.append(str(error))
        return problems

    async def _drain(self, workload: Workload, final: Journal) -> list[str]:
        """Wait until the workers get nothing more, for longer than any lease lasts; then read what was put aside."""
        before, quiet_since = -1, 0.0

        async def quiet() -> bool:
            nonlocal before, quiet_since
            size, now = workload.noted_bytes(workload.workers), asyncio.get_running_loop().time()
            if size != before:
                before, quiet_since = size, now
            await asyncio.sleep(0.5)
            return now - quiet_since > QUIET_SECONDS

        try:
            await until_asked(quiet, "the workers have finished everything", seconds_max=FINAL_SECONDS_MAX)
            await read_dead_letters(self._cluster.bootstrap, TOPIC, final)
        except WaitedTooLong as error:
            return [str(error)]
        for topic, partition in self._places:
            final.write("drained", topic=topic, partition=partition, group=WORKERS)
        return []

    async def _read_all(self, place: Place, final: Journal) -> list[str]:
        """Read a partition from its beginning to its end, which must come in reach."""
        topic, partition = place
        position = 0

        async def read() -> bool:
            nonlocal position
            async with AsyncConsumer(self._cluster.bootstrap, timeout=10) as consumer:
                try:
                    end = (await consumer.end_offsets(topic))[partition]
                    await consumer.assign(topic, partition, position)
                    while position < end:
                        for _, offset, values in runs_of(await consumer.pull(timeout=10)):
                            final.write("final", topic=topic, partition=partition, offset=offset, values=values)
                            position = offset + len(values)
                except ClymqError as error:
                    log.warning("final reads of %s/%s: %s: %s", topic, partition, error.code, error)
                    return False
            return True

        try:
            await until_asked(read, f"the end of {topic}/{partition} is read", seconds_max=FINAL_SECONDS_MAX)
        except WaitedTooLong as error:
            return [str(error)]
        return []
