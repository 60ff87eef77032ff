"""The matrix: every store with every mode once, each with a seed of its own, and one sum."""

from __future__ import annotations

import pytest

from clymq.simulation.chaos.anomalies import Anomaly, Kind
from clymq.simulation.chaos.checker import Verdict
from clymq.simulation.chaos.command import main
from clymq.simulation.chaos.figures import Availability
from clymq.simulation.chaos.matrix import MODES, STORES, Cell, cells, run_all, table


def test_every_store_meets_every_mode_with_another_seed() -> None:
    whole = cells(STORES, MODES, 100)
    assert len({(cell.store, cell.mode) for cell in whole}) == 6
    assert [cell.seed for cell in whole] == list(range(100, 106))
    assert len({cell.name for cell in whole}) == 6


def test_a_part_of_the_matrix_has_the_seeds_of_the_whole() -> None:
    assert cells(["zookeeper"], ["fetch"], 100) == [Cell("zookeeper", "fetch", 104)]


def test_the_table_adds_up_and_a_run_without_a_verdict_is_an_anomaly() -> None:
    chosen = cells(["embedded"], MODES, 1)

    def run(cell: Cell) -> Verdict:
        if cell.mode == "mixed":
            raise RuntimeError("the harness fails")
        rows = [Availability("kill one", 3, 1.0, 2.0), Availability("none", 2, 0.1, 0.1)]
        anomalies = [Anomaly(Kind.LOST, "gone")] if cell.mode == "fetch" else []
        return Verdict(anomalies, acknowledged=10, seconds=120, documented_losses=4, availability=rows)

    said: list[str] = []
    verdicts = run_all(chosen, run, said.append)
    assert any("the harness fails" in line for line in said)
    _, raft, fetch, mixed, last = table(chosen, verdicts)
    assert raft.split() == ["embedded", "raft", "1", "2.0", "3", "10", "4", "0"]
    assert fetch.split()[-1] == "1"
    assert mixed.split()[-1] == "1"
    assert last == "4.0 min, 20 acknowledged, 2 anomalies"


def test_the_plan_of_a_matrix_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--matrix", "--plan", "--minutes", "1", "--seed", "7", "--store", "zookeeper"]) == 0
    told = capsys.readouterr().out
    assert [line for line in told.splitlines() if ", seed " in line] == [
        "zookeeper-raft, seed 10",
        "zookeeper-fetch, seed 11",
        "zookeeper-mixed, seed 12",
    ]
