"""All six combinations of store and mode, one run after the other, and one table at the end.

Each run has a folder, a cluster and a seed of its own. One that comes to no verdict, because the harness itself fails,
counts as an anomaly: nothing was shown.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from clymq.simulation.chaos.anomalies import Anomaly, Kind
from clymq.simulation.chaos.checker import Verdict
from clymq.simulation.chaos.figures import NO_FAULT
from clymq.simulation.chaos.plan import ModeKind, StoreKind

STORES: Final[tuple[StoreKind, ...]] = ("embedded", "zookeeper")
MODES: Final[tuple[ModeKind, ...]] = ("raft", "fetch", "mixed")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the matrix."""

    store: StoreKind
    mode: ModeKind
    seed: int

    @property
    def name(self) -> str:
        """What its folder is called."""
        return f"{self.store}-{self.mode}"


def cells(stores: Sequence[StoreKind], modes: Sequence[ModeKind], first_seed: int) -> list[Cell]:
    """Return the runs; a combination has the same seed whether others are made or not."""
    whole = [(store, mode) for store in STORES for mode in MODES]
    return [
        Cell(store, mode, first_seed + at)
        for at, (store, mode) in enumerate(whole)
        if store in stores and mode in modes
    ]


def run_all(chosen: Sequence[Cell], run: Callable[[Cell], Verdict], say: Callable[[str], None]) -> list[Verdict]:
    """Make the runs, and say what each has shown."""
    verdicts: list[Verdict] = []
    for cell in chosen:
        try:
            verdict = run(cell)
        except Exception:  # noqa: BLE001 - whatever it was, the other runs are made
            told = traceback.format_exc()
            verdict = Verdict([Anomaly(Kind.STUCK, f"{cell.name}, seed {cell.seed}, came to no verdict:\n{told}")])
        for line in verdict.report():
            say(line)
        verdicts.append(verdict)
    return verdicts


def table(chosen: Sequence[Cell], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the sum of it all, line by line; the last one is that of a single run over all of them."""
    yield (
        f"{'store':12}{'mode':8}{'seed':>8}{'minutes':>9}{'faults':>8}{'acknowledged':>14}"
        f"{'lost, documented':>18}{'anomalies':>11}"
    )
    for cell, verdict in zip(chosen, verdicts, strict=True):
        faults = sum(row.faults for row in verdict.availability if row.kind != NO_FAULT)
        lost = verdict.documented_losses + verdict.read_and_lost
        yield (
            f"{cell.store:12}{cell.mode:8}{cell.seed:8}{verdict.seconds / 60:9.1f}{faults:8}{verdict.acknowledged:14}"
            f"{lost:18}{len(verdict.anomalies):11}"
        )
    whole = Verdict(
        [anomaly for verdict in verdicts for anomaly in verdict.anomalies],
        acknowledged=sum(verdict.acknowledged for verdict in verdicts),
        seconds=sum(verdict.seconds for verdict in verdicts),
    )
    yield whole.last_line
