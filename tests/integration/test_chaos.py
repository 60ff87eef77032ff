"""SPEC 7, row 69: real processes under random faults, judged by the checker; and brokers that it must convict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clymq.simulation.chaos.anomalies import Kind
from clymq.simulation.chaos.checker import Verdict
from clymq.simulation.chaos.plan import Options
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutation", "seed", "faults", "kind"),
    [
        ("ack_before_commit", 11, ("kill", "isolate"), Kind.LOST),
        ("serve_uncommitted", 36, ("isolate",), Kind.INCONSISTENT),
        ("let_zombies_write", 11, ("zombie producer",), Kind.LOST),
        ("never_deduplicate", 11, ("reset",), Kind.DUPLICATE),
        ("forget_commits", 11, ("kill reader",), Kind.COMMIT_LOST),
        ("forget_the_block_before", 11, ("kill reader",), Kind.COMMIT_LOST),
    ],
)
def test_brokers_that_break_a_rule_are_convicted(
    tmp_path: Path, mutation: str, seed: int, faults: tuple[str, ...], kind: Kind
) -> None:
    if not NETWORK and "isolate" in faults:
        pytest.skip(f"servers cannot be cut off from each other here: {Namespaces.refusal()}")
    verdict = run(tmp_path, Options(seed=seed, minutes=0.5, faults=faults), mutation)
    assert kind in verdict.counts
