"""Measuring fairly on a noisy machine, and saying what came out.

Ours and the raw limit take turns in one run, several times; the ratio of such a row is the median of the ratios of the
turns, and its figures are medians. A row without a raw limit shows the best of several tries. A figure that is missed
is reported, not hidden: it is no failure of the program.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One figure: `ratio` is against the raw limit; `target` is for the ratio if there is one, else for the value."""

    name: str
    unit: str
    value: float
    raw: float | None = None
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None


def beside_raw(
    name: str, unit: str, ours: Callable[[], float], raw: Callable[[], float], *, turns: int, target: float | None
) -> Row:
    """Let `ours` and `raw`, which return rates, take turns; who goes first changes, because it matters."""
    ours(), raw()  # warm
    pairs = []
    for turn in range(turns):
        if turn % 2:
            mine, limit = ours(), raw()
        else:
            limit, mine = raw(), ours()
        pairs.append((mine, limit))
    ratio = statistics.median(mine / limit for mine, limit in pairs)
    value, limit = (statistics.median(side) for side in zip(*pairs, strict=True))
    if target is None:
        return Row(name, unit, value, limit, ratio)
    return Row(name, unit, value, limit, ratio, f">= {target:.0%} of raw", ratio >= target)


def at_least(name: str, unit: str, measure: Callable[[], float], *, turns: int, target: float | None = None) -> Row:
    """Measure a rate several times; the best is what the program can do when the machine lets it."""
    value = max(measure() for _ in range(turns))
    return (
        Row(name, unit, value)
        if target is None
        else Row(name, unit, value, None, None, f">= {target:g}", value >= target)
    )


def at_most(name: str, unit: str, measure: Callable[[], float], *, turns: int, target: float | None = None) -> Row:
    """Measure a cost several times and keep the best."""
    value = min(measure() for _ in range(turns))
    return (
        Row(name, unit, value)
        if target is None
        else Row(name, unit, value, None, None, f"<= {target:g}", value <= target)
    )


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return how long one call takes, averaged over some."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column, justify in (("", "left"), ("unit", "left"), ("ours", "right"), ("raw", "right"), ("ratio", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("target")
    for row in rows:
        table.add_row(
            row.name,
            row.unit,
            _number(row.value),
            "" if row.raw is None else _number(row.raw),
            "" if row.ratio is None else f"{row.ratio:.0%}",
            "" if row.target is None else f"{row.target}  {'[green]met' if row.met else '[red]missed'}",
        )
    console = Console()
    console.width = max(console.width, 140)
    console.print(table)


def save(path: str, rows: list[Row]) -> None:
    """Write the rows as one JSON document."""
    Path(path).write_text(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
