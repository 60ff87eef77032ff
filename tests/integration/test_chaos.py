"""SPEC 7, row 69: real processes under random faults, judged by the checker; and brokers that it must convict."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clymq.simulation.chaos.anomalies import Kind
from clymq.simulation.chaos.checker import Verdict
from clymq.simulation.chaos.plan import ModeKind, Options, StoreKind
from clymq.simulation.chaos.run import Chaos


def run(folder: Path, options: Options, **how: Any) -> Verdict:
    verdict = asyncio.run(Chaos(options, folder, **how).run())
    print(*verdict.report(), sep="\n")
    return verdict


@pytest.mark.quick_skip
def test_row_69_random_faults_lose_double_and_reorder_nothing_and_leave_equal_replicas(
    tmp_path: Path, size: str
) -> None:
    minutes = 10.0 if size == "long" else 1.5
    verdict = run(tmp_path, Options(seed=69, minutes=minutes))
    assert not verdict.anomalies
    assert verdict.acknowledged > 1000
    assert verdict.read >= verdict.acknowledged


@pytest.mark.long
@pytest.mark.parametrize("mode", ["raft", "fetch", "mixed"])
@pytest.mark.parametrize("store", ["embedded", "zookeeper"])
def test_every_store_keeps_the_promises_of_every_mode(tmp_path: Path, store: StoreKind, mode: ModeKind) -> None:
    assert not run(tmp_path, Options(seed=70, minutes=2.0, store=store, mode=mode)).anomalies


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "store", "mode"),
    [(2003, "embedded", "mixed"), (2005, "embedded", "fetch"), (2006, "zookeeper", "mixed")],
)
def test_seeds_that_once_failed(tmp_path: Path, seed: int, store: StoreKind, mode: ModeKind) -> None:
    """A flipped bit that nobody read; and in 2006 a dead letter that went with the power."""
    assert not run(tmp_path, Options(seed=seed, minutes=1.5, store=store, mode=mode)).anomalies


@pytest.mark.long
def test_cuts_are_made_where_there_are_no_namespaces(tmp_path: Path) -> None:
    faults = ("isolate", "one way", "ring", "loss", "expire session")
    assert not run(tmp_path, Options(seed=71, minutes=1.0, faults=faults), network="proxies").anomalies


@pytest.mark.long
@pytest.mark.parametrize(
    ("directed", "mode"),
    [("empty disk", "raft"), ("short disk", "raft"), ("slow disk", "raft"), ("lost session", "fetch")],
)
def test_brokers_that_keep_the_rules_pass_what_is_directed_at_them(
    tmp_path: Path, directed: str, mode: ModeKind
) -> None:
    assert not run(tmp_path, Options(seed=1, minutes=1, mode=mode), directed=directed).anomalies


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
        ("forget_leases", 11, (), Kind.LEASED_TWICE),
    ],
)
def test_brokers_that_break_a_rule_are_convicted(
    tmp_path: Path, mutation: str, seed: int, faults: tuple[str, ...], kind: Kind
) -> None:
    verdict = run(tmp_path, Options(seed=seed, minutes=0.5, faults=faults), mutation=mutation)
    assert kind in verdict.counts


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutation", "directed", "mode", "kind"),
    [
        ("trust_an_empty_disk", "empty disk", "raft", Kind.LOST),
        ("let_a_lame_replica_vote", "short disk", "raft", Kind.LOST),
        ("ignore_sessions", "lost session", "fetch", Kind.REAL_TIME),
    ],
)
def test_brokers_that_break_a_rule_are_convicted_by_what_is_directed_at_it(
    tmp_path: Path, mutation: str, directed: str, mode: ModeKind, kind: Kind
) -> None:
    verdict = run(tmp_path, Options(seed=1, minutes=1, mode=mode), mutation=mutation, directed=directed)
    assert kind in verdict.counts
