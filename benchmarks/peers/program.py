"""Who does what in which order: `scripts/bench all`.

Queues that keep the same promise run at the same time, and take turns at each piece of work, the machine's own limit
among them; who begins changes from turn to turn. Then the next promise. Recovery comes last, one queue at a time. A
turn that fails leaves its reason and the run goes on; whatever was started is ended, also when the run is interrupted.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.memory import UsedMemory, memory_bytes
from benchmarks.peers import raw
from benchmarks.peers.cells import CellFailed, run_cell, run_raw
from benchmarks.peers.figures import RAW, Book, Cell, percentile
from benchmarks.peers.registry import OURS
from benchmarks.peers.system import Promise, ServerFailed, System, wait_until
from benchmarks.peers.verdicts import CONSUME, FAILOVER, LATENCY, MILLISECONDS, PARTITIONS, PRODUCE, RATE, SECONDS
from benchmarks.processes import calm_disk, folder

MEGA = 1e6
ONE_UNACKNOWLEDGED = Promise(1, synced=False, acknowledged=False)
ONE, ONE_SYNCED = Promise(1, synced=False), Promise(1, synced=True)
THREE, THREE_SYNCED = Promise(3, synced=False), Promise(3, synced=True)
RECOVERY_WEIGHT = 3
READERS = 10
PERCENTS = (50, 99, 99.9)
FAN_OUT_BYTES = 100
PARTITION_BYTES = 100
RECOVERY_BYTES = 10_000
FAILOVER_TOPIC, RECOVERY_TOPIC = "all-failover", "all-much"
FILL_BYTES_PER_SECOND_MIN = 20e6
MEMORY_PER_STORED_BYTE = 2.5
CALM_SECONDS_MAX = 30.0
FAN_OUT, START, COST, RECOVERY = "fan-out", "start-up", "cost", "recovery"


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    sizes: tuple[int, ...]
    seconds: float
    turns: int
    latency_sizes: tuple[int, ...]
    latency_seconds: float
    latency_rate: float
    partitions: tuple[int, ...]
    failovers: int
    recovery_bytes: float
    promises: tuple[Promise, ...]
    # Only ours has more than one replica.
    is_quick: bool
    cell_seconds_max: float
    # Turns after the first are left out when they would make the run longer than this.
    seconds_max: float


QUICK = Plan(
    sizes=(100, 1000),
    seconds=1.0,
    turns=3,
    latency_sizes=(100,),
    latency_seconds=1.0,
    latency_rate=500,
    partitions=(1, 10, 100),
    failovers=3,
    recovery_bytes=1e9,
    promises=(ONE_UNACKNOWLEDGED, ONE, ONE_SYNCED, THREE_SYNCED),
    is_quick=True,
    cell_seconds_max=60,
    seconds_max=780,
)
FULL = Plan(
    sizes=(100, 1000, 10_000),
    seconds=2.0,
    turns=5,
    latency_sizes=(100, 1000, 10_000),
    latency_seconds=4.0,
    latency_rate=500,
    partitions=(1, 10, 100, 1000),
    failovers=5,
    recovery_bytes=10e9,
    promises=(ONE_UNACKNOWLEDGED, ONE, ONE_SYNCED, THREE, THREE_SYNCED),
    is_quick=False,
    cell_seconds_max=240,
    seconds_max=45 * 60,
)


def size_text(size_bytes: int) -> str:
    """Return a size as people say it."""
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes // 1000} KB"


class Run:
    """One run of everything; what it finds goes into `book`, `say` hears what is being done."""

    def __init__(self, plan: Plan, systems: Sequence[type[System]], say: Callable[[str], None]) -> None:
        self.book = Book()
        self._plan = plan
        self._systems = systems
        self._say = say
        self._memory = UsedMemory()
        self._began = time.monotonic()
        # Each kind of work has a share of the time, and takes turns up to the end of its share.
        weights = [weight for promise in plan.promises for weight in self._weights(promise)]
        ends = itertools.accumulate(weights)
        self._ends = (plan.seconds_max * end / (sum(weights) + RECOVERY_WEIGHT * len(systems)) for end in ends)

    def _weights(self, promise: Promise) -> list[int]:
        count = sum(self._takes_part(each, promise) for each in self._systems)
        kinds = [2 * len(self._plan.sizes), len(self._plan.latency_sizes)]
        if promise.acknowledged and self._plan.partitions:
            kinds += [2, len(self._plan.partitions)]
        return [count * kind for kind in kinds]

    def everything(self) -> None:
        """Run all of it."""
        with self._memory:
            for promise in self._plan.promises:
                self._one_promise(promise)
            if self._plan.recovery_bytes:
                self._recovery()

    def _one_promise(self, promise: Promise) -> None:
        chosen = [each for each in self._systems if self._takes_part(each, promise)]
        self._say(f"{promise}: {', '.join(each.name for each in chosen)}")
        with self._started(chosen, promise) as running:
            self._throughput(promise, running)
            self._latency(promise, running)
            if promise.acknowledged and self._plan.partitions:
                self._fan_out(promise, running)
                self._partitions(promise, running)
            if promise == THREE_SYNCED and self._plan.failovers:
                self._fail_over(promise, running)

    def _takes_part(self, system: type[System], promise: Promise) -> bool:
        if self._plan.is_quick and promise.replicas > 1 and system.key != OURS:
            return False
        return system.missing() is None and system.settings(promise) is not None

    # --- Servers ---

    @contextlib.contextmanager
    def _started(self, chosen: Sequence[type[System]], promise: Promise) -> Iterator[list[System]]:
        with contextlib.ExitStack() as stack:
            running = [self._start(each, promise, stack) for each in chosen]
            yield [each for each in running if each is not None]

    def _start(self, kind: type[System], promise: Promise, stack: contextlib.ExitStack) -> System | None:
        cell = Cell(START, "until it answers a client", SECONDS, str(promise), kind.name)
        system = stack.enter_context(kind(promise, Path(stack.enter_context(folder())) / kind.key))
        try:
            system.prepare()
            began = time.monotonic()
            system.start()
        except (ServerFailed, AssertionError, OSError, subprocess.SubprocessError) as error:
            self.book.fail(cell, f"did not start: {error}")
            self._say(f"  {kind.name} did not start: {error}")
            return None
        self.book.add(cell, time.monotonic() - began)
        return system

    # --- Turns ---

    def _turns(self, running: Sequence[System], turns: int) -> Iterator[tuple[int, list[System]]]:
        """Yield numbers of turns, and who takes part in which order; the first turn is always taken."""
        until = next(self._ends)
        for turn in range(turns):
            if turn and time.monotonic() - self._began > until:
                self._say(f"  time is short: {turn} of {turns} turns")
                return
            first = turn % max(1, len(running))
            yield turn, [*running[first:], *running[:first]]

    def _attempt(self, system: System, cells: Sequence[Cell], work: str, **arguments: Any) -> dict[str, Any] | None:
        """Run a child; if it fails, all cells that it was to fill say why."""
        self._memory.fill()
        try:
            return run_cell(system, work, self._plan.cell_seconds_max, **arguments)
        except CellFailed as failure:
            for cell in cells:
                self.book.fail(cell, str(failure))
            self._say(f"  {system.name}, {work}: {failure}")
            return None

    # --- Work ---

    def _throughput(self, promise: Promise, running: Sequence[System]) -> None:
        for turn, order in self._turns(running, self._plan.turns):
            for size in self._plan.sizes:
                self._raw(promise, size)
                for system in order:
                    cells = _throughput_cells(size, promise, system.name)
                    found = self._attempt(system, list(cells.values()), "throughput", topic=f"all-{size}-{turn}",
                                          size_bytes=size, seconds=self._plan.seconds)  # fmt: skip
                    for name, value in _throughput_figures(found).items() if found else ():
                        self.book.add(cells[name], value)
            self._say(f"  throughput, turn {turn + 1}")

    def _raw(self, promise: Promise, size: int) -> None:
        """The machine's limit in messages, for what is written under this promise and for what is read."""
        for work, limit in ((PRODUCE, raw.writing(promise)), (CONSUME, "send")):
            if limit is None:
                continue
            cell = Cell(work, size_text(size), RATE, str(promise), RAW)
            self._memory.fill()
            try:
                found = run_raw(limit, min(1.0, self._plan.seconds), self._plan.cell_seconds_max)
            except CellFailed as failure:
                self.book.fail(cell, str(failure))
                continue
            self.book.add(cell, found * MEGA / size)

    def _latency(self, promise: Promise, running: Sequence[System]) -> None:
        """Not before the disk is done with what was deleted after the work before: who would wait for it is chance."""
        plan = self._plan
        if not calm_disk(seconds_max=CALM_SECONDS_MAX):
            self._say(f"  the disk is still busy after {CALM_SECONDS_MAX:g} s")
        for turn, order in self._turns(running, plan.turns):
            for size, system in itertools.product(plan.latency_sizes, order):
                cells = {
                    percent: Cell(LATENCY, f"p{percent:g}, {size_text(size)} at {plan.latency_rate:g}/s", MILLISECONDS,
                                  str(promise), system.name)
                    for percent in PERCENTS
                }  # fmt: skip
                found = self._attempt(system, list(cells.values()), "latency", topic=f"all-latency-{size}-{turn}",
                                      size_bytes=size, seconds=plan.latency_seconds,
                                      rate=plan.latency_rate)  # fmt: skip
                ages = sorted(found["ages_ms"]) if found else []
                for percent, cell in cells.items() if ages else ():
                    self.book.add(cell, percentile(ages, percent))
        self._say("  latency")

    def _fan_out(self, promise: Promise, running: Sequence[System]) -> None:
        for turn, order in self._turns(running, self._plan.turns):
            for system in order:
                cell = Cell(FAN_OUT, f"{READERS} readers, {size_text(FAN_OUT_BYTES)}, all together", RATE,
                            str(promise), system.name)  # fmt: skip
                found = self._attempt(system, [cell], "fan_out", topic=f"all-fan-{turn}", size_bytes=FAN_OUT_BYTES,
                                      seconds=self._plan.seconds, readers=READERS)  # fmt: skip
                if found:
                    self.book.add(cell, found["count"] / found["seconds"])
        self._say("  fan-out")

    def _partitions(self, promise: Promise, running: Sequence[System]) -> None:
        for turn, order in self._turns(running, self._plan.turns):
            for count, system in itertools.product(self._plan.partitions, order):
                what = f"{count:,} partition{'s' if count > 1 else ''}, produce {size_text(PARTITION_BYTES)}"
                cell = Cell(PARTITIONS, what, RATE, str(promise), system.name)
                found = self._attempt(system, [cell], "partitions", topic=f"all-{count}p-{turn}", count=count,
                                      size_bytes=PARTITION_BYTES, seconds=self._plan.seconds)  # fmt: skip
                if found:
                    self.book.add(cell, found["produce"]["count"] / found["produce"]["seconds"])
            self._say(f"  partitions, turn {turn + 1}")

    def _fail_over(self, promise: Promise, running: Sequence[System]) -> None:
        for system in running:
            cell = Cell(FAILOVER, "leader killed: longest pause of a writer", SECONDS, str(promise), system.name)
            if self._attempt(system, [cell], "create", topic=FAILOVER_TOPIC) is None:
                continue
            for _ in range(self._plan.failovers):
                try:
                    pause = self._pause(system)
                except Exception as error:  # noqa: BLE001 - every client's library has errors of its own
                    self.book.fail(cell, f"{type(error).__name__}: {error}")
                    break
                self.book.add(cell, pause)
        self._say("  failover")

    def _pause(self, system: System) -> float:
        """Kill the leader once all replicas are there, bring it back, and return how long a writer had to wait."""
        wait_until(lambda: system.is_whole(FAILOVER_TOPIC))
        leader = system.leader(FAILOVER_TOPIC)
        found = run_cell(system, "fail_over", self._plan.cell_seconds_max, topic=FAILOVER_TOPIC,
                         on_ready=lambda: system.kill(leader))  # fmt: skip
        system.start()
        return float(found["pause_seconds"])

    # --- Recovery ---

    def _recovery(self) -> None:
        """Each by itself, with the promise that fills it soonest."""
        for kind in self._systems:
            promise = next((each for each in (ONE, ONE_SYNCED) if kind.settings(each) is not None), None)
            if kind.missing() is not None or promise is None:
                continue
            gigabytes = self._plan.recovery_bytes / 1e9
            cell = Cell(RECOVERY, f"killed with {gigabytes:g} GB, until a message is stored again", SECONDS,
                        str(promise), kind.name)  # fmt: skip
            with self._started([kind], promise) as running:
                for system in running:
                    try:
                        self.book.add(cell, self._recover(system))
                    except (CellFailed, ServerFailed) as failure:
                        self.book.fail(cell, str(failure))
            self._say(f"  recovery, {kind.name}")

    def _recover(self, system: System) -> float:
        count = int(self._plan.recovery_bytes / RECOVERY_BYTES)
        seconds = self._plan.recovery_bytes / FILL_BYTES_PER_SECOND_MIN
        self._check_room(system)
        self._memory.fill()
        filled = run_cell(system, "fill", 2 * seconds, topic=RECOVERY_TOPIC, size_bytes=RECOVERY_BYTES, count=count,
                          seconds=seconds)["produce"]["count"]  # fmt: skip
        if filled < count:
            raise CellFailed(f"could not be filled: {filled * RECOVERY_BYTES / 1e9:.2f} GB in {seconds:.0f} s")
        system.kill()
        began = 0.0

        def restart() -> None:
            nonlocal began
            began = time.monotonic()
            system.start()

        found = run_cell(system, "come_back", self._plan.cell_seconds_max + seconds, topic=RECOVERY_TOPIC,
                         size_bytes=RECOVERY_BYTES, on_ready=restart)  # fmt: skip
        if not found["seen"]:
            raise CellFailed("nothing of what was stored could be read")
        return float(found["at"]) - began

    def _check_room(self, system: System) -> None:
        wanted = self._plan.recovery_bytes
        if shutil.disk_usage(system.folder).free < 3 * wanted:
            raise CellFailed(f"the disk has no room for {3 * wanted / 1e9:g} GB")
        if system.keeps_all_in_memory and memory_bytes("MemAvailable") < MEMORY_PER_STORED_BYTE * wanted:
            raise CellFailed(f"needs {MEMORY_PER_STORED_BYTE * wanted / 1e9:g} GB of free memory")


def _throughput_cells(size: int, promise: Promise, name: str) -> dict[str, Cell]:
    what = size_text(size)
    cells = {work: Cell(work, what, RATE, str(promise), name) for work in (PRODUCE, CONSUME)}
    for work in (PRODUCE, CONSUME):
        for side in ("servers", "client"):
            cells[f"{work} {side}"] = Cell(
                COST, f"CPU of the {side}, {work} {what}", "s/million messages", str(promise), name
            )
    cells["memory"] = Cell(COST, f"memory of the servers after producing {what}", "MiB", str(promise), name)
    cells["growth"] = Cell(COST, f"growth of that memory, {what}", "MiB/million messages", str(promise), name)
    cells["disk"] = Cell(COST, f"disk, {what}", "bytes/message", str(promise), name)
    return cells


def _throughput_figures(found: dict[str, Any]) -> dict[str, float]:
    before, between, after = found["before"], found["between"], found["after"]
    figures, looks = {}, {PRODUCE: (before, between), CONSUME: (between, after)}
    for work, (one, other) in looks.items():
        turn = found[work]
        if not turn["count"]:
            continue
        millions = turn["count"] / MEGA
        figures[work] = turn["count"] / turn["seconds"]
        figures[f"{work} client"] = turn["cpu_seconds"] / millions
        figures[f"{work} servers"] = (other["cpu_seconds"] - one["cpu_seconds"]) / millions
    written = found[PRODUCE]["count"]
    figures["memory"] = between["memory_bytes"] / 2**20
    figures["growth"] = (between["memory_bytes"] - before["memory_bytes"]) / 2**20 / (written / MEGA)
    figures["disk"] = (between["disk_bytes"] - before["disk_bytes"]) / written
    return figures
