"""Figures of a history: how long nothing could be written under each kind of fault, and how late readers saw things.

Pure. Not judged here: they depend on the machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.facts import Facts

NO_FAULT: Final = "none"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault from its first effect until it was undone."""

    kind: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Availability:
    """The longest times without a successful write to a partition during all faults of one kind."""

    kind: str
    faults: int
    median_seconds: float
    longest_seconds: float


def faults_of(general: Iterable[Event]) -> list[Fault]:
    """Return the faults of a history; one that never ended lasts to the last event."""
    begun: dict[str, Event] = {}
    found: list[Fault] = []
    last = 0
    for event in general:
        last = event.t
        if event.do == "fault" and event.rest["stage"] == "begin":
            begun[event.rest["id"]] = event
        elif event.do == "fault":
            first = begun.pop(event.rest["id"], event)
            found.append(Fault(first.rest["kind"], first.t, event.t))
    found += [Fault(event.rest["kind"], event.t, last) for event in begun.values()]
    return sorted(found, key=lambda fault: fault.begin)


def write_times(facts: Facts) -> list[int]:
    """Return when pushes to a partition were acknowledged."""
    answers = (send.answer for send in facts.sends.values())
    return sorted(answer.t for answer in answers if answer is not None and answer.do == "ack")


def longest_gap(times: Sequence[int], begin: int, end: int) -> int:
    """Return the longest time without a write that touches [begin, end], in microseconds."""
    first = max(0, bisect_left(times, begin) - 1)
    last = min(len(times), bisect_left(times, end) + 1)
    inside = times[first:last]
    return max((later - earlier for earlier, later in pairwise(inside)), default=0)


def availability(faults: Sequence[Fault], times_by_partition: Iterable[Sequence[int]]) -> list[Availability]:
    """Return a row for each kind of fault: of each fault its worst partition."""
    partitions = list(times_by_partition)
    gaps: dict[str, list[float]] = {}
    for fault in faults:
        worst = max((longest_gap(times, fault.begin, fault.end) for times in partitions if times), default=0)
        gaps.setdefault(fault.kind, []).append(worst / 1e6)
    return [Availability(kind, len(found), median(found), max(found)) for kind, found in sorted(gaps.items())]


def visible_lags(facts: Facts) -> list[int]:
    """Return how long after its acknowledgement each push was first given to a reader; 0 if it had been before."""
    first_seen: dict[int, int] = {}
    for event in facts.events:
        if event.do == "poll":
            assert event.offset is not None
            for offset in range(event.offset, event.end):
                first_seen.setdefault(offset, event.t)
    return [
        max(0, first_seen[offset] - send.answer.t)
        for send in facts.sends.values()
        if send.is_acknowledged and send.answer is not None
        for offset in send.offsets[-1:]
        if offset is not None and offset in first_seen
    ]
