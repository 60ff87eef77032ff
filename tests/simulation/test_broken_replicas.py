"""The checkers bite: a replica that breaks one rule is caught, by the seed that is known to catch it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clymq.errors import ClymqError
from clymq.simulation.checkers import Violation
from clymq.simulation.mutations import MUTATIONS, applied
from clymq.simulation.world import simulate

# The first seed known to catch each, and by what: `scripts/simulate --mutation NAME --seeds 1000` finds them again.
CAUGHT_BY = {
    "accept_after_seal": (0, "SealedNeverGrows"),
    "ack_before_majority": (1, "LeaderCompleteness"),
    "believe_a_former_process": (68, "Liveness"),
    "begin_a_term_without_entry": (0, "an assertion of the core"),
    "commit_beyond_what_is_held": (5, "Liveness"),
    "count_an_unsynced_match": (3, "LeaderCompleteness"),
    "deduplicate_at_apply": (2, "NoDuplicateCommand"),
    "elect_a_shorter_log": (1, "VotesSeeWholeLogs"),
    "forget_producers_on_restore": (2, "AckedIsReadable"),
    "forget_the_vote_on_restart": (340, "OneLeaderPerTerm"),
    "ignore_the_own_term_rule": (2549, "LeaderCompleteness"),
    "let_a_lame_replica_vote": (36, "LeaderCompleteness"),
    "lose_the_loss": (36, "LeaderCompleteness"),
    "no_conflict_truncation": (1, "StateMachineSafety"),
    "no_term_check_on_append": (1, "an assertion of the core"),
    "skip_fsync_before_ack": (29, "LeaderCompleteness"),
    "skip_the_log_check_of_pre_votes": (1, "VotesSeeWholeLogs"),
    "skip_the_log_check_of_votes": (3, "VotesSeeWholeLogs"),
    "truncate_without_sync": (184, "LogMatching"),
    "trust_a_wiped_disk": (53, "WipedNeverVotes"),
    "two_leaders_of_one_term": (1, "OneLeaderPerTerm"),
    "vote_twice": (6, "OneLeaderPerTerm"),
}
TESTING = Path(__file__).parents[2] / "docs" / "testing.md"


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_replica_that_breaks_one_rule_is_caught(name: str) -> None:
    seed, checker = CAUGHT_BY[name]
    with applied(name), pytest.raises((AssertionError, ClymqError)) as caught:
        simulate(seed)
    if isinstance(caught.value, Violation):
        assert str(caught.value).startswith(f"{checker}: ")
    else:
        assert checker == "an assertion of the core"


@pytest.mark.parametrize("seed", sorted({seed for seed, _ in CAUGHT_BY.values()}))
def test_the_same_seed_finds_nothing_in_a_replica_that_breaks_none(seed: int) -> None:
    simulate(seed)


def test_the_table_in_the_docs_names_every_mutation_with_its_seed_and_what_catches_it() -> None:
    table = TESTING.read_text().partition("| broken rule | what it does | first seed |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d+) \| ([^|]+) \|$", table, re.MULTILINE)
    assert {name: (int(seed), checker) for name, seed, checker in rows} == CAUGHT_BY
    assert set(CAUGHT_BY) == set(MUTATIONS)
