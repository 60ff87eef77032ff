"""The checkers bite: a replica that breaks one rule is caught, by the seed that is known to catch it."""

from __future__ import annotations

import pytest

from clymq.errors import ClymqError
from clymq.simulation.mutations import MUTATIONS, applied
from clymq.simulation.world import simulate

# A seed that catches each; how they were found is in docs/testing.md.
CAUGHT_BY = {
    "accept_after_seal": 0,
    "ack_before_majority": 2,
    "begin_a_term_without_entry": 0,
    "commit_beyond_what_is_held": 5,
    "count_an_unsynced_match": 9,
    "deduplicate_at_apply": 0,
    "elect_a_shorter_log": 3,
    "forget_producers_on_restore": 0,
    "forget_the_vote_on_restart": 875,
    "ignore_the_own_term_rule": 747,
    "let_a_lame_replica_vote": 243,
    "lose_the_loss": 243,
    "no_conflict_truncation": 1,
    "no_term_check_on_append": 1,
    "skip_fsync_before_ack": 22,
    "skip_the_log_check_of_votes": 6,
    "trust_a_wiped_disk": 27,
    "two_leaders_of_one_term": 1,
    "vote_twice": 4,
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_replica_that_breaks_one_rule_is_caught(name: str) -> None:
    with applied(name), pytest.raises((AssertionError, ClymqError)):
        simulate(CAUGHT_BY[name])


@pytest.mark.parametrize("seed", sorted(set(CAUGHT_BY.values())))
def test_the_same_seed_finds_nothing_in_a_replica_that_breaks_none(seed: int) -> None:
    simulate(seed)
