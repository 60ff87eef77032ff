"""An anomaly: a promise that a history shows broken, with the messages and the lines that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.history import shown

LINES_AROUND_MAX: Final = 14
SHOWN_PER_KIND_MAX: Final = 5


class Kind(StrEnum):
    """What can be wrong."""

    LOST = "lost write"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    INCONSISTENT = "inconsistent offset"
    REORDER = "reorder"
    ABORTED_READ = "aborted value read"
    NEVER_SENT = "never-sent value read"
    POLL_SKIP = "poll skip"
    POLL_BACK = "non-monotonic poll"
    HOLE = "hole"
    DIVERGENCE = "divergence"
    REAL_TIME = "real-time order"
    COMMIT_LOST = "lost commit"
    LEASED_TWICE = "PTP leased twice"
    ACKED_TWICE = "PTP acked twice"
    NEVER_ACKED = "PTP never acked"
    NO_REASON = "dead letter without reason"
    BAD_ANSWER = "answer without question"
    STUCK = "no recovery"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise: about these values or these offsets of a partition."""

    kind: Kind
    text: str
    values: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()
    around: tuple[str, ...] = ()
    partition: str = ""

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.around)
        where = f"{self.partition}: " if self.partition else ""
        return f"{self.kind}: {where}{self.text}{lines}"


def in_context(found: Iterable[Anomaly], events: Sequence[Event], partition: str) -> list[Anomaly]:
    """Return anomalies with the history around the first of each kind; the others are named only."""
    counts: Counter[Kind] = Counter()
    out: list[Anomaly] = []
    for anomaly in found:
        counts[anomaly.kind] += 1
        lines = around(anomaly, events) if counts[anomaly.kind] <= SHOWN_PER_KIND_MAX else ()
        out.append(Anomaly(anomaly.kind, anomaly.text, anomaly.values, anomaly.offsets, lines, partition))
    return out


def around(anomaly: Anomaly, events: Sequence[Event]) -> tuple[str, ...]:
    """Return the lines that speak of an anomaly's messages, in order of time."""
    values, operations = set(anomaly.values), set()
    chosen: list[Event] = []
    for event in events:
        mentions = not values.isdisjoint(event.values)
        if event.do == "send" and mentions:
            operations.add((event.by, event.rest["op"]))
        answers = (event.by, event.rest.get("op")) in operations and event.do != "send"
        if mentions or answers or _covers(event, anomaly.offsets):
            chosen.append(event)
    about = anomaly.values
    lines = [shown(event, about=about) for event in chosen]
    left = len(lines) - LINES_AROUND_MAX
    if left > 0:
        half = LINES_AROUND_MAX // 2
        lines = [*lines[:half], f"... and {left} lines more", *lines[-half:]]
    return tuple(lines)


def _covers(event: Event, offsets: Sequence[int]) -> bool:
    if event.do == "ack":
        return any(
            first is not None and first <= offset < first + count
            for first, count in event.rest["ranges"]
            for offset in offsets
        )
    return event.offset is not None and any(event.offset <= offset < event.end for offset in offsets)
