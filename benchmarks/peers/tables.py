"""The report on the terminal: every cell is a row, ours beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.peers.figures import Book, Cell, Figure
from benchmarks.peers.verdicts import Verdict

WIDTH_MIN = 190
COLUMNS = ("", "promise", "queue", "unit", "median", "MB/s", "lowest - highest", "turns", "of the machine", "ours / it")


def number(value: float | None) -> str:
    """Return a figure with three digits or so."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cell_texts(book: Book, ours: str, cell: Cell, figure: Figure, raw: float | None) -> list[str]:
    """Return a cell as texts, one for each column."""
    median, spread = figure.median, figure.spread
    own = book.median(Cell(cell.work, cell.what, cell.unit, cell.promise, ours))
    beside = number(own / median) if own is not None and median and cell.system != ours else ""
    return [
        cell.what, cell.promise, cell.system, cell.unit,
        number(median) if median is not None else f"none: {figure.reason}",
        number(median * cell.size_bytes / 1e6) if median is not None and cell.size_bytes else "",
        f"{number(spread[0])} - {number(spread[1])}" if spread else "", str(len(figure.values)),
        f"{median / raw:.0%}" if median is not None and raw else "", beside,
    ]  # fmt: skip


def show(rows: Sequence[tuple[str, list[list[str]]]], ours: str, verdicts: Sequence[Verdict]) -> None:
    """Print all tables: one for each kind of work, and the verdicts."""
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    for title, lines in rows:
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in COLUMNS:
            table.add_column(column, justify="right" if column in COLUMNS[4:] else "left", overflow="fold")
        for line in lines:
            table.add_row(*map(Text, line), style="bold" if line[2] == ours else None)
        console.print(table)
    console.print(_verdicts(verdicts))


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="aims", title_justify="left", title_style="bold")
    for column in ("aim", "where", "found", "wanted", "verdict", "best peer"):
        table.add_column(column)
    for verdict in verdicts:
        table.add_row(verdict.aim, verdict.where, number(verdict.ratio), verdict.target, verdict_text(verdict),
                      verdict.beside, style=_STYLES[verdict.is_met])  # fmt: skip
    return table


_STYLES: Mapping[bool | None, str] = {True: "green", False: "red", None: "dim"}


def verdict_text(verdict: Verdict) -> str:
    """Return the verdict in words."""
    if verdict.is_met is None:
        return "not measured"
    return "met" if verdict.is_met else f"missed: {number(verdict.ratio)}"


def show_facts(title: str, facts: Mapping[str, Any]) -> None:
    """Print names and what belongs to them."""
    console = Console()
    console.width = max(console.width, WIDTH_MIN)
    if facts:
        console.print(f"[bold]{title}")
        for name, value in facts.items():
            console.print(Text(f"  {name}: {value}"))
