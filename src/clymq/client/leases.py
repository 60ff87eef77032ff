"""The leases that a consumer holds in one partition: pure, told the time.

A message is acked by its offset, a batch of them by its ranges; brokers want the numbers of leases with them. So it is
kept which offsets are held by which lease, in ranges that do not overlap: whoever is given an offset again has lost
what the older lease said of it. What is finished is taken out, and a lease of which nothing is left is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

# As long as there are fewer, leases that are over stay: they cost nothing, and their time may have been prolonged.
LOOK_MIN: Final = 1000

_start = attrgetter("start")
_end = attrgetter("end")


class Piece(NamedTuple):
    """Offsets [start, end) of one lease."""

    lease: int
    start: int
    end: int


class Term(NamedTuple):
    """When a lease ends, and how long it was when it began."""

    expires_ms: float
    lease_ms: float


class HeldLeases:
    """See the module."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []  # ascending
        self._terms: dict[int, Term] = {}
        self._look_at = LOOK_MIN

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, lease: int, start: int, end: int, now_ms: float, lease_ms: float) -> None:
        """Hold one more for so long."""
        if len(self._terms) >= self._look_at:
            self._forget_overdue(now_ms)
        where = self._cut(start, end)
        self._pieces.insert(where, Piece(lease, start, end))
        self._terms[lease] = Term(now_ms + lease_ms, lease_ms)

    def pieces(self, start: int, end: int) -> list[Piece]:
        """Return what is held of [start, end)."""
        return [
            Piece(each.lease, max(each.start, start), min(each.end, end))
            for each in self._pieces[self._overlapping(start, end)]
        ]

    def all(self) -> list[Piece]:
        """Return everything that is held."""
        return list(self._pieces)

    def finish(self, pieces: Iterable[Piece]) -> None:
        """Take out what is finished, unless another lease has it by now."""
        for piece in pieces:
            for held in self.pieces(piece.start, piece.end):
                if held.lease == piece.lease:
                    self._cut(held.start, held.end)
        self._forget_ended()

    def forget(self, leases: Iterable[int]) -> None:
        """Hold these no longer."""
        gone = set(leases)
        if gone:
            self._pieces = [piece for piece in self._pieces if piece.lease not in gone]
            self._forget_ended()

    def extend(self, leases: Iterable[int], now_ms: float, lease_ms: float) -> None:
        """Take note that these end so long from now."""
        for lease in leases:
            if lease in self._terms:
                self._terms[lease] = Term(now_ms + lease_ms, lease_ms)

    def has(self, lease: int, offset: int, now_ms: float) -> bool:
        """Whether an offset is held by this lease, and still is now."""
        found = self._pieces[self._overlapping(offset, offset + 1)]
        return bool(found) and found[0].lease == lease and self._terms[lease].expires_ms > now_ms

    def half_over(self, now_ms: float) -> dict[float, list[Piece]]:
        """Return what is held by leases of which less than half is left, by how long these were."""
        due: dict[float, list[Piece]] = {}
        for piece in self._pieces:
            expires_ms, lease_ms = self._terms[piece.lease]
            if expires_ms - now_ms < lease_ms / 2:
                due.setdefault(lease_ms, []).append(piece)
        return due

    def _cut(self, start: int, end: int) -> int:
        """Take [start, end) out of what is held; return where it would be put."""
        where = self._overlapping(start, end)
        rest = [
            piece
            for each in self._pieces[where]
            for piece in (each._replace(end=min(each.end, start)), each._replace(start=max(each.start, end)))
            if piece.start < piece.end
        ]
        self._pieces[where] = rest
        return bisect_left(self._pieces, end, lo=where.start, key=_start)

    def _overlapping(self, start: int, end: int) -> slice:
        first = bisect_right(self._pieces, start, key=_end)
        return slice(first, max(first, bisect_left(self._pieces, end, key=_start)))

    def _forget_overdue(self, now_ms: float) -> None:
        """Forget leases that nobody has ended and that are over for longer than they were: others have them by now."""
        self.forget([lease for lease, term in self._terms.items() if term.expires_ms + term.lease_ms < now_ms])
        self._look_at = max(LOOK_MIN, 2 * len(self._terms))

    def _forget_ended(self) -> None:
        if len(self._terms) > len(self._pieces):
            held = {piece.lease for piece in self._pieces}
            self._terms = {lease: term for lease, term in self._terms.items() if lease in held}


def joined(pieces: Iterable[Piece]) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return the leases of some pieces, and their offsets as few ranges: those that touch become one."""
    leases: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for lease, start, end in sorted(pieces, key=lambda piece: piece[1:]):
        leases.add(lease)
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], end)
        else:
            ranges.append((start, end))
    return tuple(sorted(leases)), ranges
