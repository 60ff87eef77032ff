"""Judgements about a partition's log: what was promised must be there, once, in order, the same for everybody.

Pure: each check takes facts and yields anomalies. What was acknowledged by a fetch leader alone (ack 1 and 0) may go
with it; that is not an anomaly but a figure: `documented_losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from clymq.simulation.chaos.anomalies import Anomaly, Kind
from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.facts import Facts, Send


def lost_writes(facts: Facts) -> Iterator[Anomaly]:
    """A write that a majority has acknowledged is nowhere, though the log was read beyond it."""
    for send, value, offset in facts.acknowledged():
        if facts.is_gone(value) and facts.promised_by_majority(send):
            if offset is not None and offset >= facts.end:
                if facts.is_complete:
                    text = f"{value} was acknowledged at {offset}, and the final reads end at {facts.end}"
                    yield Anomaly(Kind.UNSEEN, text, (value,), (offset,))
            elif facts.is_complete or (offset is not None and offset in facts.read.values):
                text = f"{value} was acknowledged at {_at(offset)} and is nowhere"
                yield Anomaly(Kind.LOST, text, (value,), () if offset is None else (offset,))


def vanished(facts: Facts) -> Iterator[Anomaly]:
    """A value was read, whatever its producer was told, and is not there in the end."""
    for offset, value in sorted(facts.read.values.items()):
        if facts.is_gone(value) and value in facts.sent:
            send, _ = facts.sent[value]
            if not (send.is_acknowledged and facts.promised_by_majority(send)):  # those are named above
                yield Anomaly(Kind.LOST, f"{value} was read at {offset} and is nowhere in the end", (value,), (offset,))


def documented_losses(facts: Facts) -> list[tuple[Send, str]]:
    """Return what a fetch leader alone had acknowledged, what nobody has read, and what is nowhere."""
    if not facts.is_complete:
        return []
    return [
        (send, value)
        for send, value, _ in facts.acknowledged()
        if facts.is_gone(value) and value not in facts.read.places and not facts.promised_by_majority(send)
    ]


def duplicates(facts: Facts) -> Iterator[Anomaly]:
    """A value is in the log twice."""
    doubles = {**facts.stored.doubles, **facts.read.doubles}
    for value, offsets in doubles.items():
        text = f"{value} is at {' and '.join(map(str, sorted(offsets)))}"
        yield Anomaly(Kind.DUPLICATE, text, (value,), tuple(sorted(offsets)))


def inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    """Two values at one offset: two readers, a reader and a disk, or an answer and what is there."""
    read, stored = facts.read, facts.stored
    found = {offset: set(values) for offset, values in read.conflicts.items()}
    for offset in read.values.keys() & stored.values.keys():
        if read.values[offset] != stored.values[offset]:
            found.setdefault(offset, set()).update((read.values[offset], stored.values[offset]))
    for offset, values in sorted(found.items()):
        names = tuple(sorted(values))
        yield Anomaly(Kind.INCONSISTENT, f"offset {offset} was {' and '.join(names)}", names, (offset,))
    for send, value, told in facts.acknowledged():
        place = facts.place(value)
        if told is not None and place is not None and told != place and facts.promised_by_majority(send):
            text = f"{value} was acknowledged at {told} and is at {place}"
            yield Anomaly(Kind.INCONSISTENT, text, (value,), (told, place))


def reorders(facts: Facts) -> Iterator[Anomaly]:
    """A producer's messages are not in the order in which it sent them, or its lives are mixed up.

    A process that takes a name over ends the one before: what has come of another life since, nothing of it follows.
    One that stood still from before its first push may be the last to take the name; but not one that was dead by then.
    """
    orders: dict[str, _ProducerOrder] = {}
    for offset, value in facts.places:
        if value in facts.sent:
            send, at = facts.sent[value]
            order = orders.setdefault(send.event.by, _ProducerOrder())
            problem = order.problem(send, send.serial + at, facts)
            if problem:
                before, where = order.last
                text = f"{problem}: {before} is at {where}, {value} at {offset}"
                yield Anomaly(Kind.REORDER, text, (before, value), (where, offset))
            order.take(send, send.serial + at, value, offset)


class _ProducerOrder:
    """How far one producer's messages have come in a partition."""

    def __init__(self) -> None:
        self.last = "", -1
        self._life: tuple[str, int] | None = None
        self._since = 0
        self._serial = -1
        self._before: set[tuple[str, int]] = set()

    def problem(self, send: Send, serial: int, facts: Facts) -> str | None:
        """Return what is wrong with a message that follows."""
        if self._life is None:
            return None
        if send.life == self._life:
            return f"{send.event.by} sent them the other way round" if serial < self._serial else None
        if send.life in self._before:
            return f"life {send.life[1]} of {send.event.by} goes on after life {self._life[1]}"
        if facts.ended.get(send.life, self._since) < self._since:
            return f"life {send.life[1]} of {send.event.by} was dead when life {self._life[1]} began"
        return None

    def take(self, send: Send, serial: int, value: str, offset: int) -> None:
        """Go on behind this message."""
        if send.life != self._life:
            if self._life is not None:
                self._before.add(self._life)
            self._life, self._since = send.life, send.event.t
        self._serial, self.last = serial, (value, offset)


def strange_values(facts: Facts) -> Iterator[Anomaly]:
    """A value was read that nobody sent, or whose producer was told that it will not be stored."""
    for offset, value in facts.places:
        if value not in facts.sent:
            yield Anomaly(Kind.NEVER_SENT, f"nobody sent {value}, read at {offset}", (value,), (offset,))
        elif facts.sent[value][0].is_refused:
            answer = facts.sent[value][0].answer
            assert answer is not None
            text = f"{value} was refused ({answer.rest['error']}) and read at {offset}"
            yield Anomaly(Kind.ABORTED_READ, text, (value,), (offset,))


def holes(facts: Facts) -> Iterator[Anomaly]:
    """Offsets are not dense, in what readers were given at the end or in what lies on a disk."""
    finals = [event for event in facts.events if event.do in {"final", "replica"}]
    witnesses: dict[str, list[Event]] = {}
    for event in finals:
        key = "final reads" if event.do == "final" else f"block {event.rest['block']} on {event.by}"
        witnesses.setdefault(key, []).append(event)
    for witness, events in witnesses.items():
        expected: int | None = None
        for event in sorted(events, key=lambda event: event.offset or 0):
            assert event.offset is not None
            if expected is not None and event.offset > expected:
                text = f"{witness}: {event.offset} follows {expected - 1}"
                yield Anomaly(Kind.HOLE, text, (), (expected - 1, event.offset))
            expected = max(expected or 0, event.end)


def divergences(facts: Facts) -> Iterator[Anomaly]:
    """Replicas of a block differ, in a message or in a byte."""
    for offset, values in sorted(facts.stored.conflicts.items()):
        names = tuple(sorted(values))
        yield Anomaly(Kind.DIVERGENCE, f"replicas hold {' and '.join(names)} at {offset}", names, (offset,))
    copies: dict[int, dict[tuple[int, str], list[str]]] = {}
    for event in facts.events:
        if event.do == "bytes":
            what = event.rest["bytes"], event.rest["sha256"]
            copies.setdefault(event.rest["block"], {}).setdefault(what, []).append(event.by)
    for block, kinds in sorted(copies.items()):
        if len(kinds) > 1:
            told = "; ".join(f"{' '.join(by)}: {size} bytes, {sha[:12]}" for (size, sha), by in sorted(kinds.items()))
            yield Anomaly(Kind.DIVERGENCE, f"block {block} is not the same on all replicas: {told}")


def real_time_disorder(facts: Facts) -> Iterator[Anomaly]:
    """A was acknowledged before B was sent, and yet B stands before A; or stood, by the answer, if B is lost.

    The last also convicts a fetch leader that goes on beside its successor, though all that it says may be lost.
    """
    sends: list[tuple[int, int, int, str]] = []
    answers: list[tuple[int, int, str]] = []
    for value, (send, at) in facts.sent.items():
        place = facts.place(value)
        told = send.offsets[at] if send.is_acknowledged else None
        if place is not None and send.is_acknowledged and send.answer is not None:
            answers.append((send.answer.t, place, value))
        claimed = told if place is None else place
        if claimed is not None:
            # What is lost must not even have been at the same offset.
            sends.append((send.event.t, claimed, claimed if place is None else claimed + 1, value))
    sends.sort()
    answers.sort()
    done, highest, first = 0, -1, ""
    for time, claimed, forbidden, value in sends:
        while done < len(answers) and answers[done][0] < time:
            if answers[done][1] > highest:
                _, highest, first = answers[done]
            done += 1
        if highest >= forbidden:
            text = f"{first}, at {highest}, was acknowledged before {value}, at {claimed}, was sent"
            yield Anomaly(Kind.REAL_TIME, text, (first, value), (claimed, highest))


def bad_answers(facts: Facts) -> Iterator[Anomaly]:
    """An answer to what nobody asked, a second one, or one that speaks of another number of messages."""
    for event in facts.strays:
        yield Anomaly(Kind.BAD_ANSWER, f"{event.by}: {event.do} of {event.rest['op']} at {event.t}")


def _at(offset: int | None) -> str:
    return "an offset that was not told" if offset is None else str(offset)


CHECKS: Final[tuple[Callable[[Facts], Iterator[Anomaly]], ...]] = (
    lost_writes,
    vanished,
    duplicates,
    inconsistent_offsets,
    reorders,
    strange_values,
    holes,
    divergences,
    real_time_disorder,
    bad_answers,
)
