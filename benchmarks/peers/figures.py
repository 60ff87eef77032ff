"""What came out: figures by cell, each the median of its turns with the lowest and the highest beside it.

A cell without a figure keeps the reason. Nothing here runs anything.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

RAW = "the machine"


@dataclass(frozen=True)
class Cell:
    """Where a figure stands: what was done, with what, in which unit, under which promise, by whom."""

    work: str
    what: str
    unit: str
    promise: str
    system: str

    @property
    def size_bytes(self) -> int | None:
        """How large messages are, where `what` names it and messages are counted."""
        found = re.search(r"(\d+) (B|KB)", self.what) if self.unit == "messages/s" else None
        return None if found is None else int(found[1]) * (1000 if found[2] == "KB" else 1)


@dataclass
class Figure:
    """The turns of one cell, or why there are none."""

    values: list[float] = field(default_factory=list)
    reason: str = ""

    @property
    def median(self) -> float | None:
        """The middle of the turns."""
        return statistics.median(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The lowest and the highest."""
        return (min(self.values), max(self.values)) if self.values else None


class Book:
    """All figures, in the order in which their cells were first met."""

    def __init__(self) -> None:
        self._figures: dict[Cell, Figure] = {}

    def add(self, cell: Cell, value: float) -> None:
        """Note one turn."""
        self._figures.setdefault(cell, Figure()).values.append(value)

    def fail(self, cell: Cell, reason: str) -> None:
        """Note that a turn has failed; what other turns have found stays."""
        self._figures.setdefault(cell, Figure()).reason = reason

    def __iter__(self) -> Iterator[tuple[Cell, Figure]]:
        return iter(self._figures.items())

    def works(self) -> list[str]:
        """Return what was done, in order."""
        return list(dict.fromkeys(cell.work for cell in self._figures))

    def of(self, work: str) -> list[tuple[Cell, Figure]]:
        """Return the cells of one kind of work, those that are compared beside each other."""
        groups: dict[tuple[str, str, str], list[tuple[Cell, Figure]]] = {}
        for cell, figure in self._figures.items():
            if cell.work == work:
                groups.setdefault((cell.what, cell.unit, cell.promise), []).append((cell, figure))
        return [each for group in groups.values() for each in group]

    def median(self, cell: Cell) -> float | None:
        """Return a figure, None if there is none."""
        found = self._figures.get(cell)
        return None if found is None else found.median

    def others(self, cell: Cell) -> dict[str, float]:
        """Return the figures of all other systems in the same place, the machine's limit left out."""
        return {
            other.system: figure.median
            for other, figure in self._figures.items()
            if _place(other) == _place(cell) and other.system not in {cell.system, RAW} and figure.median is not None
        }


def _place(cell: Cell) -> tuple[str, str, str, str]:
    return cell.work, cell.what, cell.unit, cell.promise


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the value that so many percent of an ordered sequence do not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def rows(book: Book) -> list[dict[str, Any]]:
    """Return all cells as rows: value, the machine's limit and the ratio to it, spread, and the reason of a failure."""
    found = []
    for work in book.works():
        for cell, figure in book.of(work):
            raw = book.median(Cell(cell.work, cell.what, cell.unit, cell.promise, RAW))
            value, spread = figure.median, figure.spread
            found.append({
                "name": f"{cell.work}: {cell.what}, {cell.promise}, {cell.system}", "unit": cell.unit,
                "value": value, "raw": raw, "ratio": value / raw if value is not None and raw else None,
                "target": None, "met": None, "low": spread and spread[0], "high": spread and spread[1],
                "turns": len(figure.values), "reason": figure.reason or None, "work": cell.work, "what": cell.what,
                "promise": cell.promise, "system": cell.system,
                "mb_per_second": value * cell.size_bytes / 1e6 if value is not None and cell.size_bytes else None,
            })  # fmt: skip
    return found
