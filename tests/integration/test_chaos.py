"""SPEC 7, row 69: real processes under random faults, judged by the checker; and brokers that it must convict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clymq.simulation.chaos.anomalies import Kind
from clymq.simulation.chaos.checker import Verdict
from clymq.simulation.chaos.plan import ModeKind, Options
from clymq.simulation.chaos.run import Chaos
from clymq.testing.namespaces import Namespaces

NETWORK = Namespaces.refusal() is None


def run(folder: Path, options: Options, mutation: str | None = None) -> Verdict:
    verdict = asyncio.run(Chaos(options, folder, mutation=mutation).run())
    print(*verdict.report(), sep="\n")
    return verdict


@pytest.mark.quick_skip
def test_row_69_random_faults_lose_double_and_reorder_nothing_and_leave_equal_replicas(
    tmp_path: Path, size: str
) -> None:
    minutes = 10.0 if size == "long" else 1.5
    verdict = run(tmp_path, Options(seed=69, minutes=minutes, network=NETWORK))
    assert not verdict.anomalies
    assert verdict.acknowledged > 1000
    assert verdict.read >= verdict.acknowledged


def convicted(folder: Path, mutation: str, mode: ModeKind, faults: tuple[str, ...], kind: Kind) -> None:
    verdict = run(folder, Options(seed=11, minutes=0.5, mode=mode, network=NETWORK, faults=faults), mutation)
    assert kind in verdict.counts


@pytest.mark.quick_skip
def test_brokers_that_acknowledge_what_is_not_committed_are_convicted(tmp_path: Path) -> None:
    convicted(tmp_path, "ack_before_commit", "raft", ("kill",), Kind.LOST)
