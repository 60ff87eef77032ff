"""The checkers of clusters bite: one that breaks one rule is caught, in the world that is made for it.

Each mutation has a world in which the rule matters all the time, and is caught by one of its first seeds. Not by one
named seed: every change of the product that sends a message more or less is another world from there on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cluster_worlds import BUSY, LEADERS_CUT_OFF, LEADERS_KILLED, RAFT_LEADERS_CUT_OFF
from clymq.simulation.checkers import Violation
from clymq.simulation.cluster.mutations import MUTATIONS, applied
from clymq.simulation.cluster.options import Options
from clymq.simulation.cluster.world import simulate

SEEDS_MAX = 16
TESTING = Path(__file__).parents[2] / "docs" / "testing.md"

WORLDS = {
    "acknowledge_without_a_session": LEADERS_CUT_OFF,
    "show_what_one_replica_holds": LEADERS_KILLED,
    "seal_at_the_shortest": LEADERS_KILLED,
    "lose_without_a_word": LEADERS_CUT_OFF,
    "commit_alone": RAFT_LEADERS_CUT_OFF,
    "forget_the_intent": replace(BUSY, zkserver_rate=1.0),
    "drop_the_intent": replace(BUSY, kill_rate=0.8),
    "seal_before_the_end": replace(BUSY, isolate_rate=0.0, zkserver_rate=0.0),
}


CAUGHT_BY = {
    "acknowledge_without_a_session": {"NoAckAfterEnd"},
    "commit_alone": {"ReadStays", "OneValuePerOffset", "NoAckedLoss", "CursorNeverGoesBack", "Liveness"},
    "drop_the_intent": {"IntentFirst"},
    "forget_the_intent": {"Liveness"},
    "lose_without_a_word": {"LossIsCounted"},
    "seal_at_the_shortest": {"ReadStays", "OneValuePerOffset"},
    "seal_before_the_end": {"NoAckedLoss", "ReadStays", "OneValuePerOffset", "Liveness"},
    "show_what_one_replica_holds": {"ReadStays", "OneValuePerOffset"},
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_cluster_that_breaks_one_rule_is_caught(name: str) -> None:
    assert first_violation(name).partition(":")[0] in CAUGHT_BY[name]


def first_violation(name: str) -> str:
    """Return what catches a mutation first; empty if nothing does."""
    for seed in range(SEEDS_MAX):
        try:
            with applied(name):
                simulate(seed, WORLDS[name])
        except Violation as error:
            return str(error)
    return ""


@pytest.mark.parametrize("options", sorted(set(WORLDS.values()), key=str), ids=lambda _: "world")
def test_the_same_worlds_find_nothing_in_a_cluster_that_breaks_none(options: Options) -> None:
    simulate(0, options)


def test_the_table_in_the_docs_names_every_mutation_of_clusters_and_what_catches_it() -> None:
    section = TESTING.read_text().partition("## Whole clusters on virtual time")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([A-Za-z, ]+) \|$", section, re.MULTILINE)
    assert {name: set(checkers.split(", ")) for name, checkers in rows} == CAUGHT_BY
    assert set(CAUGHT_BY) == set(MUTATIONS) == set(WORLDS)
