"""Judgements about consumers: readers go forward without a gap, positions stay, groups finish each message once.

Pure: each check takes facts and yields anomalies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from clymq.simulation.chaos.anomalies import Anomaly, Kind
from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.facts import Facts

# A lease that was given before an answer may arrive behind it, if its receiver is slow.
LATE_US_MAX: Final = 2_000_000
# A leader numbers its leases one by one, from the time of day at which it began, in microseconds.
ONE_LEADER: Final = 100_000


def polls_out_of_step(facts: Facts) -> Iterator[Anomaly]:
    """A reader's poll does not begin where the one before it ended, though it did not go elsewhere itself."""
    positions: dict[str, int] = {}
    for event in facts.events:
        if event.do == "assign":
            assert event.offset is not None
            positions[event.by] = event.offset
        elif event.do == "poll":
            assert event.offset is not None
            expected = positions.get(event.by, event.offset)
            if event.offset != expected:
                kind = Kind.POLL_SKIP if event.offset > expected else Kind.POLL_BACK
                text = f"{event.by} was at {expected} and got {event.offset}"
                yield Anomaly(kind, text, (), (expected - 1, event.offset))
            positions[event.by] = event.end


def lost_commits(facts: Facts) -> Iterator[Anomaly]:
    """A group's position that a majority has stored is not there when it is asked for."""
    commits: dict[str, list[tuple[int, int]]] = {}
    for event in facts.events:
        if event.do == "commit":
            assert event.offset is not None
            known = commits.setdefault(event.rest["group"], [])
            if facts.modes.surely_quorum(event.rest.get("asked", event.t), event.t):
                known.append((event.t, max(event.offset, known[-1][1] if known else 0)))
        elif event.do == "committed":
            known = commits.get(event.rest["group"], [])
            # Only what was answered before the question was asked.
            at = bisect_left(known, (event.rest["asked"], -1))
            highest = known[at - 1][1] if at else None
            if highest is not None and (event.offset is None or event.offset < highest):
                text = f"group {event.rest['group']} had committed {highest} and is told {event.offset}"
                yield Anomaly(Kind.COMMIT_LOST, text, (), (highest,))


def messages_leased_twice(facts: Facts) -> Iterator[Anomaly]:
    """One leader gave a message to two consumers, and both were told that they are the first, or both the second.

    When a lease ends in vain the next one counts one more. Only what a crash takes with it is given out again as if it
    had not been, and that is another leader's doing: the numbers of its leases begin elsewhere.
    """
    given: dict[tuple[str, int, int], tuple[str, int]] = {}
    for event in facts.events:
        for number, start, end in event.rest.get("leases", ()) if event.do == "deliver" else ():
            twice = None
            for offset in range(start, end):
                key = event.rest["group"], offset, event.rest["count"]
                before, other = given.get(key, (event.by, number))
                given[key] = event.by, number
                if before != event.by and abs(number - other) < ONE_LEADER:
                    twice = twice or (offset, before, other)
            if twice:
                offset, before, other = twice
                text = f"group {key[0]}: {offset} was leased to {before} ({other}) and to {event.by} ({number})"
                yield Anomaly(Kind.LEASED_TWICE, text, (), (offset,))


def messages_finished_twice(facts: Facts) -> Iterator[Anomaly]:
    """A group gave a message out again though it was acknowledged, or put it aside as a dead letter twice.

    Two acknowledgements alone prove nothing. After a crash what is not finished is given to another, and whoever had it
    before may be told that it is finished, too. What proves it is a lease that was got after that had been answered.
    """
    finished: dict[tuple[str, int], Event] = {}
    leased: dict[tuple[str, int], int] = {}
    for event in facts.events:
        if event.do == "deliver":
            assert event.offset is not None
            when = event.rest.get("leased") or event.t
            leased.update(((event.by, offset), when) for offset in range(event.offset, event.end))
        elif event.do in {"done", "dead"} and not event.rest.get("unsure"):
            assert event.offset is not None
            for offset in range(event.offset, event.end):
                before = finished.setdefault((event.rest["group"], offset), event)
                again = leased.get((event.by, offset), event.rest.get("asked", event.t))
                # When a dead letter was put aside nobody knows: it is read when all is over.
                is_again = before.do == event.do and (event.do == "dead" or again > before.t + LATE_US_MAX)
                if before is not event and is_again:
                    text = f"group {event.rest['group']}: {offset} was {_how(before)}, then {_how(event)}"
                    yield Anomaly(Kind.ACKED_TWICE, text, (), (offset,))


def messages_never_finished(facts: Facts) -> Iterator[Anomaly]:
    """A group has come to the end, and a stored message was neither acknowledged nor put aside."""
    finished: dict[str, set[int]] = {event.rest["group"]: set() for event in facts.events if event.do == "drained"}
    for event in facts.events:
        if event.do in {"done", "dead"} and event.rest["group"] in finished:
            assert event.offset is not None
            finished[event.rest["group"]].update(range(event.offset, event.end))
    for group, offsets in finished.items():
        for _, value, _ in facts.acknowledged():
            place = facts.place(value)
            if place is not None and place not in offsets:
                text = f"group {group} has come to its end without {value} at {place}"
                yield Anomaly(Kind.NEVER_ACKED, text, (value,), (place,))


def dead_without_reason(facts: Facts) -> Iterator[Anomaly]:
    """A dead letter does not say why it is one."""
    for event in facts.events:
        if event.do == "dead" and not event.rest["reason"]:
            assert event.offset is not None
            yield Anomaly(Kind.NO_REASON, f"{event.values} of {event.rest['group']}", (*event.values,), (event.offset,))


def _how(event: Event) -> str:
    what = "acknowledged" if event.do == "done" else "a dead letter"
    return f"{what} ({event.by} at {event.t / 1e6:.6f})"


CHECKS: Final[tuple[Callable[[Facts], Iterator[Anomaly]], ...]] = (
    polls_out_of_step,
    lost_commits,
    messages_leased_twice,
    messages_finished_twice,
    messages_never_finished,
    dead_without_reason,
)
