"""What a power cut takes in fetch mode, where nobody waits for the disk: the checker does not hold it against anybody.

Pure. In fetch mode readers are shown what a majority of the replicas holds, and with `fsync = "interval"` that may be
in memory for about a second. It survives the death of processes, not of machines: when one that held it has lost its
power, a new leader may begin without it, also after another that still had it has shown it once more. So what was sent
shortly before, and is on no disk in the end, counts as if it had not been read, and what a group had finished then is
not sure to be; that it gave a message up neither, so that there may be two dead letters of one that was out then. In
Raft mode nothing is taken away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.facts import Modes

BEFORE_US: Final = 10_000_000
# Answers that were on their way when it happened.
BEHIND_US: Final = 1_000_000


def without_what_power_took(events: list[Event], cuts: Sequence[int]) -> tuple[list[Event], int]:
    """Return a partition's events without it, and how many messages it was. `cuts`: when power was cut, in order."""
    survivors = {value for event in events if event.do in {"final", "replica"} for value in event.values}
    modes = Modes(events)
    if not cuts or not survivors or not modes.ever_weaker:
        return events, 0

    def in_danger(event: Event) -> bool:
        return _just_before(event.t, cuts) and not modes.surely_quorum(event.t, event.t)

    gone = {
        value
        for event in events
        if event.do == "send" and in_danger(event)
        for value in event.values
        if value not in survivors
    }
    # That a message was given up may be lost though its letter is safe: it is given out again, and perhaps up again.
    out = {offset for event in events if event.do == "deliver" and in_danger(event) for offset in _offsets(event)}
    taken: set[str] = set()
    kept: list[Event] = []
    for event in events:
        if event.do in {"poll", "deliver"} and not gone.isdisjoint(event.values):
            taken.update(gone.intersection(event.values))
            kept.append(_trimmed(event, gone))
        elif (event.do == "done" and in_danger(event)) or (event.do == "dead" and not out.isdisjoint(_offsets(event))):
            kept.append(replace(event, rest={**event.rest, "unsure": True}))
        else:
            kept.append(event)
    return kept, len(taken)


def _offsets(event: Event) -> range:
    assert event.offset is not None
    return range(event.offset, event.end)


def _just_before(time: int, cuts: Sequence[int]) -> bool:
    at = bisect_left(cuts, time - BEHIND_US)
    return at < len(cuts) and cuts[at] - BEFORE_US <= time


def _trimmed(event: Event, gone: set[str]) -> Event:
    """Return a read without what is lost, which is at its end; that the reader went on behind it stays known."""
    first_lost = next(at for at, value in enumerate(event.values) if value in gone)
    return replace(event, values=event.values[:first_lost], rest={**event.rest, "messages": len(event.values)})
