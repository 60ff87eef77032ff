"""`scripts/bench all` on real processes, with as little of everything as there can be."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.cells import CellFailed, run_cell, run_raw
from benchmarks.peers.clymq_ import Clymq
from benchmarks.peers.figures import RAW, rows
from benchmarks.peers.nats import Nats
from benchmarks.peers.program import FULL, ONE, ONE_SYNCED, ONE_UNACKNOWLEDGED, Plan, Run
from benchmarks.peers.system import Programs, Promise, System, wait_until

TINY = dataclasses.replace(
    FULL,
    sizes=(100, 1000),
    latency_sizes=(100,),
    seconds=0.1,
    turns=1,
    latency_seconds=0.2,
    partitions=(),
    failovers=0,
    recovery_bytes=0,
    promises=(ONE_UNACKNOWLEDGED, ONE, ONE_SYNCED),
    cell_seconds_max=120,
)


@pytest.mark.quick_skip
def test_row_70_one_command_reports_rates_and_percentiles_for_each_ack_and_size_beside_a_peer_and_the_raw_limit() -> (
    None
):
    found = _measured(TINY, Clymq)
    for promise, size in itertools.product(TINY.promises, ("100 B", "1 KB")):
        for work in ("produce", "consume"):
            row = found[work, size, str(promise), "ClyMQ"]
            assert row["value"] > 0, row["reason"]
            assert row["mb_per_second"] > 0
            assert row["raw"] == found[work, size, str(promise), RAW]["value"] > 0
    for promise, percent in itertools.product(TINY.promises, ("50", "99", "99.9")):
        assert found["latency", f"p{percent}, 100 B at 500/s", str(promise), "ClyMQ"]["value"] > 0
    if Nats.missing() is None:
        beside = _measured(dataclasses.replace(TINY, sizes=(100,), latency_sizes=(), promises=(ONE,)), Nats)
        assert beside["produce", "100 B", str(ONE), Nats.name]["value"] > 0


def _measured(plan: Plan, kind: type[System]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    run = Run(plan, [kind], print)
    run.everything()
    return {(row["work"], row["what"], row["promise"], row["system"]): row for row in rows(run.book)}


class _Nobody(System):
    """A queue that nobody knows."""

    name, key = "Nobody", "nobody"
    address, pids = "", []  # type: ignore[assignment]
    start = kill = leader = is_whole = None  # type: ignore[assignment]
    missing = version = settings = None  # type: ignore[assignment]


def test_a_cell_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match="KeyError: 'nobody'"):
        run_cell(_Nobody(Promise(1, synced=False), tmp_path), "create", 60, topic="t")


def test_a_cell_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(CellFailed, match="not done after"):
        run_cell(_Nobody(Promise(1, synced=False), tmp_path), "create", 0.001, topic="t")


def test_the_machine_s_limit_is_a_figure_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.processes.DATA", str(tmp_path))
    assert run_raw("copy", 0.05, 60) > 0
    with pytest.raises(CellFailed, match="not done after"):
        run_raw("copy", 60, 1)
    assert list(tmp_path.iterdir()) == []


def test_servers_are_ended_with_all_that_they_have_started(tmp_path: Path) -> None:
    programs = Programs(tmp_path / "log")
    programs.start(0, ["sh", "-c", "sleep 600 & sleep 600"])
    wait_until(lambda: len(programs.pids) == 3)
    started = programs.pids
    programs.kill()
    assert programs.pids == []
    wait_until(lambda: not any(_is_alive(pid) for pid in started))


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
