"""What a partition's history says, indexed: who sent what, what was answered, which value was seen at which offset.

Pure. Values are unique within a run, so a value stands for its message. The order of a producer is the order in which
the `send` lines of one life of its process appear.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from clymq.simulation.chaos.events import Event

QUORUM: Final = -1
READS: Final = frozenset({"poll", "final", "deliver"})


@dataclass(slots=True)
class Send:
    """One push: what was asked, and what came of it."""

    event: Event
    serial: int
    """How many messages this life of the producer had sent before it."""
    answer: Event | None = None
    offsets: list[int | None] = field(default_factory=list)
    """Where the answer says that each message is."""

    @property
    def life(self) -> tuple[str, int]:
        """Whose push it is: the producer's name, and which of its processes."""
        return self.event.by, self.event.rest.get("life", 1)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the producer was told that it is stored."""
        return self.answer is not None and self.answer.do == "ack"

    @property
    def is_refused(self) -> bool:
        """Whether the producer was told that it never will be."""
        return self.answer is not None and self.answer.do == "refused"


class Modes:
    """Which promise held when; while a partition changes its mode it is the weaker one."""

    def __init__(self, events: Iterable[Event], default: int = QUORUM) -> None:
        self._times: list[int] = []
        self._quorum: list[bool] = []
        self._default = default == QUORUM
        for event in events:
            if event.do == "mode":
                self._times.append(event.t)
                self._quorum.append(event.rest["stage"] == "end" and event.rest["ack"] == QUORUM)

    def surely_quorum(self, begin: int, end: int) -> bool:
        """Whether all that was promised between two times was promised by a majority."""
        first, last = bisect_right(self._times, begin), bisect_right(self._times, end)
        before = self._quorum[first - 1] if first else self._default
        return before and all(self._quorum[first:last])

    @property
    def ever_weaker(self) -> bool:
        """Whether there was a time with a weaker promise."""
        return not self._default or not all(self._quorum)


class Seen:
    """Values by offset from several witnesses, and where they contradict each other."""

    def __init__(self) -> None:
        self.values: dict[int, str] = {}
        self.places: dict[str, int] = {}
        self.conflicts: dict[int, set[str]] = {}
        self.doubles: dict[str, set[int]] = {}

    def add(self, offset: int, values: Sequence[str]) -> None:
        """Take note of what one witness has seen from an offset on."""
        for at, value in enumerate(values, offset):
            known = self.values.setdefault(at, value)
            if known != value:
                self.conflicts.setdefault(at, {known}).add(value)
            place = self.places.setdefault(value, at)
            if place != at:
                self.doubles.setdefault(value, {place}).add(at)

    @property
    def end(self) -> int:
        """One past the highest offset that was seen."""
        return max(self.values, default=-1) + 1


class Facts:
    """See the module. `events` are those of one partition, in order of time; `ended`: when lives of producers did."""

    def __init__(self, events: Sequence[Event], ended: Mapping[tuple[str, int], int] | None = None) -> None:
        self.events = events
        self.ended = ended or {}
        self.sends: dict[str, Send] = {}
        self.sent: dict[str, tuple[Send, int]] = {}
        """Each value's push, and its place within it."""
        self.read, self.stored = Seen(), Seen()
        self.left = Seen()
        """What was there in the end: by the final reads, or on a disk."""
        self.is_complete = False
        """Whether the run came to its final reads: what was not seen by then will not be."""
        self.strays: list[Event] = []
        """Answers to what nobody asked."""
        serials: dict[tuple[str, int], int] = {}
        ack = QUORUM
        for event in events:
            if event.do == "send":
                send = Send(event, 0)
                send.serial = serials.get(send.life, 0)
                serials[send.life] = send.serial + len(event.values)
                self._sent(send)
                ack = event.rest.get("ack", ack)
            elif event.do in {"ack", "refused", "unknown"}:
                self._answered(event)
            elif event.do in READS:
                assert event.offset is not None
                self.read.add(event.offset, event.values)
            elif event.do == "replica":
                assert event.offset is not None
                self.stored.add(event.offset, event.values)
            if event.do in {"final", "replica"}:
                assert event.offset is not None
                self.left.add(event.offset, event.values)
                self.is_complete = True
        self.modes = Modes(events, ack)

    def place(self, value: str) -> int | None:
        """Return where a value is, by whoever has seen it."""
        found = self.stored.places.get(value)
        return self.read.places.get(value) if found is None else found

    def is_gone(self, value: str) -> bool:
        """Whether a value is nowhere in the end; before the end, whether nobody has seen it."""
        return value not in self.left.places if self.is_complete else self.place(value) is None

    @property
    def places(self) -> Iterator[tuple[int, str]]:
        """All values that were seen, with their offsets, in order; what readers got comes before what is stored."""
        return iter(sorted({**self.stored.values, **self.read.values}.items()))

    @property
    def end(self) -> int:
        """One past the highest offset that was there in the end; before the end, that anybody has seen."""
        return self.left.end if self.is_complete else max(self.read.end, self.stored.end)

    def acknowledged(self) -> Iterator[tuple[Send, str, int | None]]:
        """Yield each acknowledged message with the offset that its producer was told."""
        for send in self.sends.values():
            if send.is_acknowledged:
                for value, offset in zip(send.event.values, send.offsets, strict=True):
                    yield send, value, offset

    def promised_by_majority(self, send: Send) -> bool:
        """Whether an acknowledged push had the strong promise from beginning to end."""
        assert send.answer is not None
        return self.modes.surely_quorum(send.event.t, send.answer.t)

    def _sent(self, send: Send) -> None:
        self.sends[f"{send.event.by} {send.event.rest['op']}"] = send
        for at, value in enumerate(send.event.values):
            self.sent[value] = send, at

    def _answered(self, event: Event) -> None:
        send = self.sends.get(f"{event.by} {event.rest['op']}")
        if send is None or send.answer is not None:
            self.strays.append(event)
            return
        send.answer = event
        if event.do == "ack":
            for first, count in event.rest["ranges"]:
                send.offsets += [None if first is None else first + at for at in range(count)]
            if len(send.offsets) != len(send.event.values):
                self.strays.append(event)
                send.offsets = (send.offsets + [None] * len(send.event.values))[: len(send.event.values)]
