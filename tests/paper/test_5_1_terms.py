"""Raft paper §5.1: terms are a logical clock, exchanged in every message."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Append, Heartbeat, HeartbeatResponse, Message, RequestVote, TimeoutNow, VoteResponse
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, node, outcome, say

HIGHER: list[Message] = [
    say(Append, "b", 9, previous_index=0, previous_term=0, entries=(), commit=0, sequence=1),
    say(Heartbeat, "b", 9, commit=0),
    say(HeartbeatResponse, "b", 9, commit=0),
    say(RequestVote, "b", 9, last_index=9, last_term=9, transfer=True),
    say(VoteResponse, "b", 9, granted=False, pre=True),
]


@pytest.mark.parametrize("message", HIGHER, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_whoever_sees_a_larger_term_takes_it_and_becomes_a_follower(role: Role, message: Message) -> None:
    """§5.1: if one server's current term is smaller than the other's, it updates it; a candidate or leader reverts."""
    replica = node(hard=HardState(2))
    now = 0.0 if role is Role.FOLLOWER else 400.0
    replica.tick(now)
    if role in {Role.CANDIDATE, Role.LEADER}:
        replica.step(say(VoteResponse, "b", 3, granted=True, pre=True), now)
    if role is Role.LEADER:
        replica.step(say(VoteResponse, "b", 3, granted=True), now)
    assert replica.role is role
    replica.step(message, now)
    assert (replica.role, replica.term) == (Role.FOLLOWER, 9)
    hard = outcome(replica).hard_state
    assert hard is not None
    assert hard.term == 9


def test_a_request_with_a_stale_term_is_rejected() -> None:
    """§5.1: a server that receives a request with a stale term number rejects the request."""
    replica = node(hard=HardState(5))
    replica.step(say(RequestVote, "b", 4, last_index=9, last_term=4), 0)
    replica.step(say(Append, "b", 4, previous_index=0, previous_term=0, entries=(), commit=0, sequence=1), 0)
    replica.step(say(Heartbeat, "b", 4, commit=0), 0)
    replica.step(say(TimeoutNow, "b", 4), 0)
    answers = outcome(replica).messages
    assert answers[0] == say(VoteResponse, "a", 5, receiver="b", own=1, to=7, granted=False)
    assert {type(answer) for answer in answers[1:]} == {HeartbeatResponse}
    assert [answer.term for answer in answers[1:]] == [5, 5], "the old leader learns that it is one"
    assert (replica.leader, replica.log.last_index, replica.role) == (None, 0, Role.FOLLOWER)


def test_a_term_has_at_most_one_leader() -> None:
    """§5.1: some terms end with no leader; none has two. Every election of many random ones is looked at."""
    for seed in range(20):
        cluster = Cluster(5, seed=seed)
        seen: dict[int, str] = {}
        cut = ""
        cluster.blocked = lambda message: message.sender in cut or message.receiver in cut  # noqa: B023
        for _ in range(12):
            cluster.pass_time(250)
            cut = "".join(cluster.chance.sample(cluster.names, 2))
            for name in cluster.leaders():
                assert seen.setdefault(cluster.nodes[name].term, name) == name
        assert seen


def test_the_current_term_never_decreases_not_even_over_a_crash() -> None:
    """§5.1: each server stores a current term number, which increases monotonically over time."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.elect("b") if cluster.nodes["b"].leader is None else cluster.nodes["a"].transfer_leadership("b", 0)
    cluster.deliver()
    assert [cluster.nodes[name].term for name in "abc"] == [2, 2, 2]
    for name in "abc":
        cluster.crash(name)
        assert cluster.start(name).term == 2
