"""What outlives a role: the table of transitions, majorities, the hard state, and whose log is further."""

from __future__ import annotations

import pytest

from clymq.raft.log import RaftLog
from clymq.raft.messages import Entry, Heartbeat, Kind
from clymq.raft.state import TRANSITIONS, HardState, Limits, Role, State, majority
from raft_cluster import Disk, entries


def state(
    *terms: int, members: int = 3, sealed: bool = False, hard: HardState | None = None, synced: int | None = None
) -> State:
    """Return the state of replica a with a log of these terms; `sealed`: the last entry is a SEAL."""
    log = entries(*terms)
    if sealed:
        last = log.pop()
        log.append(Entry(last.index, last.term, last.position, last.length, Kind.SEAL))
    return State(
        "a",
        [chr(ord("a") + n) for n in range(members)],
        RaftLog(Disk(log), log, commit=0, synced=len(log) if synced is None else synced),
        hard=hard or HardState(max(terms, default=0)),
        incarnation=1,
        lame=False,
        limits=Limits(),
        draw_ms=lambda low, high: low,
    )


def test_every_role_has_its_transitions_and_only_a_candidate_becomes_leader() -> None:
    assert set(TRANSITIONS) == set(Role)
    assert [role for role in Role if Role.LEADER in TRANSITIONS[role]] == [Role.CANDIDATE]
    assert TRANSITIONS[Role.LEADER] == {Role.FOLLOWER}
    assert all(Role.FOLLOWER in allowed for allowed in TRANSITIONS.values())


@pytest.mark.parametrize(("members", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_is_more_than_half(members: int, quorum: int) -> None:
    assert state(members=members).quorum == quorum
    assert quorum * 2 > members


@pytest.mark.parametrize(
    ("values", "quorum", "reached"), [([7], 1, 7), ([3, 9], 2, 3), ([5, 1, 3], 2, 3), ([4, 1, 1, 9, 6], 3, 4)]
)
def test_a_majority_has_reached_the_value_that_so_many_have_or_exceed(
    values: list[int], quorum: int, reached: int
) -> None:
    assert majority(values, quorum) == reached


# --- Term and vote ---


def test_a_higher_term_forgets_the_vote_and_keeps_the_term_of_the_seal() -> None:
    replica = state(hard=HardState(2, "b", 1))
    replica.enter(3)
    assert replica.hard == HardState(3, "", 1)
    replica.enter(3, "c")
    replica.enter(3, "c")
    assert replica.hard == HardState(3, "c", 1)


def test_there_is_one_vote_per_term() -> None:
    replica = state(hard=HardState(2, "b"))
    with pytest.raises(AssertionError, match="one vote"):
        replica.enter(2, "c")


def test_messages_carry_the_term_they_were_sent_in_unless_told_another() -> None:
    replica = state(hard=HardState(4))
    replica.send(Heartbeat, "b", commit=0)
    replica.send(Heartbeat, "b", term=9, incarnation=3, commit=0)
    assert replica.outbox == [Heartbeat("a", "b", 4, 1, 0, 0), Heartbeat("a", "b", 9, 1, 3, 0)]


# --- Whose log is further (§5.4.1) ---


@pytest.mark.parametrize(
    ("last_index", "last_term", "expected"),
    [(3, 2, True), (4, 2, True), (1, 3, True), (2, 2, False), (9, 1, False), (0, 0, False)],
)
def test_a_log_is_up_to_date_by_the_term_of_its_last_entry_and_then_by_its_length(
    last_index: int, last_term: int, expected: bool
) -> None:
    assert state(1, 1, 2).is_up_to_date(last_index, last_term) is expected


def test_to_an_empty_log_every_log_is_up_to_date() -> None:
    assert state().is_up_to_date(0, 0)


def test_a_confirmed_seal_is_judged_as_if_an_entry_of_that_term_lay_behind_it() -> None:
    replica = state(1, 1, 2, sealed=True, hard=HardState(5, "", 5))
    assert replica.last_term == 5
    assert not replica.is_up_to_date(9, 4)
    assert replica.is_up_to_date(3, 5)


def test_the_term_of_a_seal_counts_only_for_a_log_that_ends_with_one() -> None:
    replica = state(1, 1, 2, hard=HardState(5, "", 5))
    assert replica.last_term == 2
    assert replica.is_up_to_date(9, 4)


def test_a_seal_that_nobody_confirmed_is_judged_by_its_own_term() -> None:
    assert state(1, 3, sealed=True).last_term == 3


def test_confirming_a_seal_again_changes_nothing() -> None:
    replica = state(1, 1, sealed=True, hard=HardState(4, "b"))
    replica.confirm_seal_if_synced(replica.log.last_index)
    first = replica.hard
    replica.confirm_seal_if_synced(replica.log.last_index)
    assert first == HardState(4, "b", 4)
    assert replica.hard is first


# --- What a lame replica waits for ---


@pytest.mark.parametrize(
    ("commit", "term", "expected"), [(0, 0, False), (2, 2, False), (3, 2, True), (4, 2, False), (5, 2, False)]
)
def test_a_commit_index_is_held_if_its_entry_is_on_the_disk_and_of_that_term(
    commit: int, term: int, expected: bool
) -> None:
    assert state(1, 1, 2, 2, synced=3).holds_own_term_commit(commit, term) is expected


def test_a_seal_that_was_confirmed_in_a_term_counts_as_an_entry_of_it() -> None:
    replica = state(1, 2, sealed=True, hard=HardState(5, "", 5))
    assert replica.holds_own_term_commit(2, 5)
    assert not replica.holds_own_term_commit(1, 5)
    assert not replica.holds_own_term_commit(2, 4)
