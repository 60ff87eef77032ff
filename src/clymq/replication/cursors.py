"""How far the groups of consumers have come.

A PTP group shares the messages out: they are finished in any order, so its cursor is a low mark with what is known of
the offsets above it. A PSB group has a position, which it sets as it likes. Leases are not here: they run on the
leader's clock, and reach the log only by how they end.

Above the low mark a cursor is a step function of the offset, kept as the segments where it is not 0: ACKED, or how
many deliveries came back. Invariants: segments are ascending, disjoint and not empty; neighbours that touch differ;
none begins below the low mark and an ACKED one never begins at it. So equal cursors have equal segments, whatever the
order of the acks.

The bounds are part of the log's meaning, not settings: replicas with different ones would differ in their state. They
are chosen so that the largest state fits into the SEAL of the default `batch_bytes_max`. What is past a bound:
* an ack that would make one more range is refused, and the lease stays. One that begins at the low mark, or merges,
  never is; and the low mark may always be leased, so the lowest hole can close and there is room again;
* the delivery count of the highest segment is forgotten, so that those that hold up the low mark are counted;
* a new group, or a dead letter while too many wait for the dlq, is refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from clymq.errors import CorruptBatch, Overloaded
from clymq.replication.entries import (
    Ack,
    Commit,
    Dead,
    Done,
    GroupName,
    Number,
    Prepare,
    Range,
    Reason,
    Reset,
    Timeout,
)

ACKED_RANGES_MAX: Final = 1_000
COUNTED_RANGES_MAX: Final = 1_000
PTP_GROUPS_MAX: Final = 200
PSB_GROUPS_MAX: Final = 1_000
DEAD_LETTERS_MAX: Final = 1_000
ACKED: Final = -1


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry found no room; `ranges` are those that it could not finish."""

    error: Overloaded
    ranges: tuple[Range, ...] = ()


class Segment(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Offsets [start, end) that are ACKED, or were delivered so many times in vain."""

    start: Number
    end: Number
    deliveries: Annotated[int, Meta(ge=ACKED)]


class Cursor(Struct, forbid_unknown_fields=True):
    """What one PTP group has finished: all below `low`, and the ACKED segments above it."""

    low: Number = 0
    segments: list[Segment] = field(default_factory=list)

    def ack(self, start: int, end: int) -> bool:
        """Finish [start, end), what is finished already left out; return whether there was room."""
        start = max(start, self.low)
        if start >= end:
            return True
        where, changed = self._change(start, end, _to_acked)
        more = _acked(changed) - _acked(self.segments[where])
        if start > self.low and more > 0 and self.acked_ranges + more > ACKED_RANGES_MAX:
            return False
        self.segments[where] = changed
        self._raise_low()
        self._forget_highest_counts()
        return True

    def fail(self, start: int, end: int) -> None:
        """Count one more delivery in vain for what is not finished of [start, end)."""
        start = max(start, self.low)
        if start < end:
            where, changed = self._change(start, end, _to_one_more)
            self.segments[where] = changed
            self._forget_highest_counts()

    def reset(self, offset: int) -> None:
        """Begin anew at an offset."""
        self.low = offset
        self.segments = []

    @property
    def acked_ranges(self) -> int:
        """How many ranges above the low mark are finished."""
        return _acked(self.segments)

    def may_lease(self, offset: int) -> bool:
        """Whether a lease may begin here: at the low mark always, elsewhere while its ack would find room."""
        acked = self.acked_ranges
        has_room = acked < ACKED_RANGES_MAX and len(self.segments) - acked < COUNTED_RANGES_MAX
        return has_room or offset == self.low

    def unfinished(self, start: int, end: int) -> list[Segment]:
        """Return what is not finished of [start, end), cut where the number of deliveries in vain changes."""
        start = max(start, self.low)
        if start >= end:
            return []
        pieces = _pieces(self.segments[self._touching(start, end)], start, end, _to_the_same)
        return [each for each in pieces if start <= each.start and each.end <= end and each.deliveries != ACKED]

    def _change(self, start: int, end: int, change: Callable[[int], int]) -> tuple[slice, list[Segment]]:
        """Return which segments a change of [start, end) replaces, and by which."""
        where = self._touching(start, end)
        return where, _merged(_pieces(self.segments[where], start, end, change))

    def _touching(self, start: int, end: int) -> slice:
        """Return the segments that overlap [start, end) or lie against it: those may merge."""
        first = bisect_left(self.segments, start, key=attrgetter("end"))
        return slice(first, bisect_right(self.segments, end, lo=first, key=attrgetter("start")))

    def _raise_low(self) -> None:
        if self.segments[0].start == self.low and self.segments[0].deliveries == ACKED:
            self.low = self.segments.pop(0).end

    def _forget_highest_counts(self) -> None:
        excess = len(self.segments) - COUNTED_RANGES_MAX
        if excess > 0 and (excess := excess - self.acked_ranges) > 0:
            counted = [at for at, each in enumerate(self.segments) if each.deliveries != ACKED]
            for at in reversed(counted[-excess:]):
                del self.segments[at]


class DeadLetter(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A range that was given up and is not in the dead-letter topic yet."""

    range: Range
    reason: Reason
    deliveries: Number = 0


class Group(Struct, forbid_unknown_fields=True):
    """One PTP group: its cursor, and its dead letters by number. Numbers only grow, also across a reset."""

    cursor: Cursor = field(default_factory=Cursor)
    next_seq: Annotated[int, Meta(ge=1)] = 1
    dead: dict[int, DeadLetter] = field(default_factory=dict)


class Groups(Struct, forbid_unknown_fields=True):
    """All groups of a partition, PTP and PSB, as of one place in its log."""

    ptp: dict[GroupName, Group] = field(default_factory=dict)
    psb: dict[GroupName, Number] = field(default_factory=dict)

    def apply(self, entry: Prepare | Reset | Ack | Timeout | Commit | Dead | Done) -> Refused | None:
        """Take an entry from the log; return `Refused` if there was no room for it or for parts of it."""
        match entry:
            case Ack():
                return self._ack(entry)
            case Commit():
                return self._commit(entry)
            case Prepare():
                return None if self._group(entry.group, entry.offset) else _too_many_groups(PTP_GROUPS_MAX)
            case Dead():
                return self._bury(entry)
            case Timeout():
                self._time_out(entry)
            case Reset():
                return self._reset(entry)
            case Done():
                if entry.group in self.ptp:
                    self.ptp[entry.group].dead.pop(entry.seq, None)
        return None

    def ordered(self) -> Groups:
        """Return the same groups in the one order in which they are written down. (Dead letters come by number.)"""
        return Groups(dict(sorted(self.ptp.items())), dict(sorted(self.psb.items())))

    def _group(self, name: str, offset: int = 0) -> Group | None:
        """Return a PTP group, a new one beginning at `offset`; None if there are too many."""
        group = self.ptp.get(name)
        if group is None and len(self.ptp) < PTP_GROUPS_MAX:
            group = self.ptp[name] = Group(Cursor(offset))
        return group

    def _ack(self, entry: Ack) -> Refused | None:
        group = self._group(entry.group)
        if group is None:
            return _too_many_groups(PTP_GROUPS_MAX, entry.ranges)
        refused = tuple(each for each in entry.ranges if not group.cursor.ack(each.start, each.end))
        return _too_many_ranges(refused) if refused else None

    def _time_out(self, entry: Timeout) -> None:
        for lease in entry.ended:
            group = self._group(lease.group)
            if group is not None:
                group.cursor.fail(lease.range.start, lease.range.end)

    def _reset(self, entry: Reset) -> Refused | None:
        group = self._group(entry.group)
        if group is None:
            return _too_many_groups(PTP_GROUPS_MAX)
        group.cursor.reset(entry.offset)
        return None

    def _commit(self, entry: Commit) -> Refused | None:
        if entry.group not in self.psb and len(self.psb) >= PSB_GROUPS_MAX:
            return _too_many_groups(PSB_GROUPS_MAX)
        self.psb[entry.group] = entry.offset
        return None

    def _bury(self, entry: Dead) -> Refused | None:
        """Finish the range and remember it for the dlq, both or neither; its number is used up in any case."""
        group = self._group(entry.group)
        if group is None:
            return _too_many_groups(PTP_GROUPS_MAX, (entry.range,))
        if entry.seq < group.next_seq:
            raise CorruptBatch("seq", f"{entry.seq} where {group.next_seq} or more was expected")
        group.next_seq = entry.seq + 1
        if sum(len(each.dead) for each in self.ptp.values()) >= DEAD_LETTERS_MAX:
            return Refused(Overloaded(f"{DEAD_LETTERS_MAX} dead letters wait for the dlq"), (entry.range,))
        if not group.cursor.ack(entry.range.start, entry.range.end):
            return _too_many_ranges((entry.range,))
        group.dead[entry.seq] = DeadLetter(entry.range, entry.reason, entry.deliveries)
        return None


def _too_many_groups(groups_max: int, ranges: tuple[Range, ...] = ()) -> Refused:
    return Refused(Overloaded(f"the partition has {groups_max} groups", hint="use fewer group names"), ranges)


def _too_many_ranges(ranges: tuple[Range, ...]) -> Refused:
    message = f"the group has {ACKED_RANGES_MAX} acked ranges above its cursor"
    return Refused(Overloaded(message, hint="ack the lowest message that is still open first"), ranges)


def _to_acked(_: int) -> int:
    return ACKED


def _to_one_more(deliveries: int) -> int:
    return ACKED if deliveries == ACKED else deliveries + 1


def _to_the_same(deliveries: int) -> int:
    return deliveries


def _acked(segments: Sequence[Segment]) -> int:
    return sum(each.deliveries == ACKED for each in segments)


def _pieces(segments: Sequence[Segment], start: int, end: int, change: Callable[[int], int]) -> Iterator[Segment]:
    """Cut the segments at `start` and `end`, fill the gaps between the two, and change what lies between them."""
    at = start
    for each in segments:
        if each.start < start:
            yield Segment(each.start, min(each.end, start), each.deliveries)
        inner_start, inner_end = max(each.start, start), min(each.end, end)
        if inner_start < inner_end:
            if at < inner_start:
                yield Segment(at, inner_start, change(0))
            yield Segment(inner_start, inner_end, change(each.deliveries))
            at = inner_end
    if at < end:
        yield Segment(at, end, change(0))
    if segments and segments[-1].end > end:
        yield Segment(max(segments[-1].start, end), segments[-1].end, segments[-1].deliveries)


def _merged(pieces: Iterable[Segment]) -> list[Segment]:
    """Join pieces that touch and agree."""
    merged: list[Segment] = []
    for each in pieces:
        if merged and merged[-1].end == each.start and merged[-1].deliveries == each.deliveries:
            merged[-1] = Segment(merged[-1].start, each.end, each.deliveries)
        else:
            merged.append(each)
    return merged
