"""Several clients that do the same work in turns, in one process and one run, and what came out of it.

Each turn opens a client of its own and times only the work. Who begins changes from round to round. A row sets one of
ours beside one of the others: figures are medians, its ratio is the median of the ratios of the rounds. Beside time
stands what the process itself used of the processor, in all its threads: the figure that a busy machine disturbs least.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.report import Row

MICRO = 1e-6


@dataclass(frozen=True)
class Turn:
    """So many messages in such a time."""

    count: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """Processor time of a message."""
        return self.cpu_seconds / self.count / MICRO


class Watch:
    """Begins to count when it is made."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._began = time.perf_counter()

    def stop(self, count: int) -> Turn:
        """Return the turn, of so many messages."""
        return Turn(count, time.perf_counter() - self._began, time.process_time() - self._cpu)


Measure = Callable[[], Awaitable[Turn]]


@dataclass(frozen=True)
class Pair:
    """One of ours beside one of the others; `target` is for the ratio of their rates."""

    ours: str
    theirs: str
    target: float | None = None


async def take_turns(measures: Mapping[str, Measure], turns: int) -> dict[str, list[Turn]]:
    """Let all have their turns; the first round is to warm up."""
    names = list(measures)
    results: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(turns + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            turn = await measures[name]()
            if number:
                results[name].append(turn)
    return results


def rows(what: str, results: Mapping[str, list[Turn]], pairs: list[Pair]) -> Iterator[Row]:
    """Return rows for the pairs; of one that is not there, what is there, and that the other is missing."""
    for pair in pairs:
        ours, theirs = results[pair.ours], results.get(pair.theirs)
        if theirs is None:
            name = f"{pair.ours}, {what} ({pair.theirs}: missing)"
            yield Row(name, "messages/s", statistics.median(turn.rate for turn in ours))
            continue
        name = f"{pair.ours}, {what}, beside {pair.theirs}"
        ratio = statistics.median(mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True))
        target = None if pair.target is None else f">= {pair.target:.0%} of raw"
        met = None if pair.target is None else ratio >= pair.target
        mine, other = (statistics.median(turn.rate for turn in side) for side in (ours, theirs))
        yield Row(name, "messages/s", mine, other, ratio, target, met)
        used = [(one.cpu_us, another.cpu_us) for one, another in zip(ours, theirs, strict=True)]
        mine, other = (statistics.median(side) for side in zip(*used, strict=True))
        yield Row(f"  {name}", "CPU us/message", mine, other, statistics.median(one / two for one, two in used))
