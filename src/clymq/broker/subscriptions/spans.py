"""Sets of offsets as ascending, disjoint ranges that do not touch: thousands of messages cost as much as one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Offsets [start, end), at least one."""

    start: int
    end: int


class Spans:
    """A set of offsets."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self._starts, self._ends)

    def __len__(self) -> int:
        """How many ranges; see `count` for offsets."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spans({[tuple(span) for span in self]})"

    @property
    def count(self) -> int:
        """How many offsets."""
        return sum(self._ends) - sum(self._starts)

    @property
    def start(self) -> int:
        """The lowest offset; there must be one."""
        return self._starts[0]

    @property
    def end(self) -> int:
        """One past the highest offset; there must be one."""
        return self._ends[-1]

    def add(self, start: int, end: int) -> None:
        """Put [start, end) in."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end, lo=first)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def within(self, start: int, end: int) -> list[Span]:
        """Return what is in the set of [start, end)."""
        first, last = self._overlapping(start, end)
        return [
            Span(max(start, self._starts[at]), min(end, self._ends[at])) for at in range(first, last) if start < end
        ]

    def take(self, start: int, end: int) -> list[Span]:
        """Take [start, end) out; return what of it was in."""
        taken = self.within(start, end)
        if taken:
            first, last = self._overlapping(start, end)
            left = [(self._starts[first], start), (end, self._ends[last - 1])]
            left = [(low, high) for low, high in left if low < high]
            self._starts[first:last] = [low for low, _ in left]
            self._ends[first:last] = [high for _, high in left]
        return taken

    def _overlapping(self, start: int, end: int) -> tuple[int, int]:
        first = bisect_right(self._ends, start)
        return first, max(first, bisect_left(self._starts, end, lo=first))


def outside(spans: Iterable[Span], start: int, end: int) -> list[Span]:
    """Return what of [start, end) is in none of the spans, which ascend."""
    gaps: list[Span] = []
    for span in spans:
        if span.start > start:
            gaps.append(Span(start, min(span.start, end)))
        start = max(start, span.end)
    if start < end:
        gaps.append(Span(start, end))
    return [gap for gap in gaps if gap.start < gap.end]
