"""Plots of a run as PNG files: bars for the systems, side by side for what is comparable. Needs matplotlib."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peers.figures import RAW, Book, Cell, Figure

COLOURS = {
    "ClyMQ": "#d1495b", "Kafka": "#30638e", "NATS JetStream": "#00798c", "RabbitMQ quorum queue": "#edae49",
    "RabbitMQ stream": "#c98b2b", "Redis Streams": "#7d5ba6", RAW: "#bbbbbb",
}  # fmt: skip
# Work, file, and which of its cells; costs are many, so each kind has a plot of its own.
PLOTS: tuple[tuple[str, str, Callable[[Cell], bool]], ...] = (
    ("produce", "produce", lambda _: True),
    ("consume", "consume", lambda _: True),
    ("latency", "latency", lambda _: True),
    ("fan-out", "fan-out", lambda _: True),
    ("partitions", "partitions", lambda _: True),
    ("failover", "failover", lambda _: True),
    ("start-up", "start-up", lambda _: True),
    ("recovery", "recovery", lambda _: True),
    ("cost", "cpu", lambda cell: "CPU of the servers" in cell.what),
    ("cost", "memory", lambda cell: cell.unit == "MiB"),
    ("cost", "disk", lambda cell: cell.unit == "bytes/message"),
)


def is_possible() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plots(book: Book) -> dict[str, bytes]:
    """Return the plots by name, as PNG."""
    found = {}
    for work, name, belongs in PLOTS:
        cells = [(cell, figure) for cell, figure in book.of(work) if belongs(cell) and figure.values]
        if cells:
            found[name] = _draw(name, cells)
    return found


def _draw(title: str, cells: list[tuple[Cell, Figure]]) -> bytes:
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    systems = [name for name in COLOURS if any(cell.system == name for cell, _ in cells)]
    places, middles = _places(cells, systems)
    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.2 * (len(cells) + len(middles))), dpi=90)
    for system in systems:
        _bars(axes, [(places[cell], found) for cell, found in cells if cell.system == system], system)
    axes.set_yticks(list(middles.values()), list(middles), fontsize=8)
    axes.invert_yaxis()
    medians = [found.median for _, found in cells if found.median]
    if medians and max(medians) > 20 * min(map(abs, medians)):
        axes.set_xscale("log")
    axes.set_xlabel(cells[0][0].unit)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
    pyplot.close(figure)
    return buffer.getvalue()


def _places(cells: Sequence[tuple[Cell, Figure]], systems: Sequence[str]) -> tuple[dict[Cell, float], dict[str, float]]:
    """Return where each bar goes, one below the other with a gap between groups, and the middle of each group."""
    groups: dict[str, list[Cell]] = {}
    for cell, _ in cells:
        groups.setdefault(f"{cell.what}\n{cell.promise}", []).append(cell)
    places, middles, next_place = {}, {}, 0.0
    for name, members in groups.items():
        for cell in sorted(members, key=lambda cell: systems.index(cell.system)):
            places[cell] = next_place
            next_place += 1
        middles[name] = next_place - 0.5 - len(members) / 2
        next_place += 1
    return places, middles


def _bars(axes: Any, bars: list[tuple[float, Figure]], system: str) -> None:
    """Draw the bars of one system; a line in each goes from its lowest turn to its highest."""
    medians = [figure.median or 0.0 for _, figure in bars]
    spreads = [figure.spread or (0.0, 0.0) for _, figure in bars]
    errors = [
        [median - low for median, (low, _) in zip(medians, spreads, strict=True)],
        [high - median for median, (_, high) in zip(medians, spreads, strict=True)],
    ]
    axes.barh([place for place, _ in bars], medians, height=0.9, color=COLOURS[system], label=system, xerr=errors,
              error_kw={"lw": 0.8, "alpha": 0.6})  # fmt: skip
    for (place, _), median in zip(bars, medians, strict=True):
        axes.annotate(f"{median:,.3g}" if abs(median) < 1000 else f"{median:,.0f}", (median, place), fontsize=6,
                      xytext=(3, 0), textcoords="offset points", va="center")  # fmt: skip
