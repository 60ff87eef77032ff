"""A leader that must go: whom it chooses, what it says, and who does not run in its place."""

from __future__ import annotations

from clymq.raft.messages import AppendResponse, TimeoutNow, VoteResponse
from clymq.raft.node import RaftNode
from clymq.raft.state import Role
from raft_cluster import entries, node, outcome, say


def leader_with(match: dict[str, int]) -> RaftNode:
    """Return a leader of term 2 with three entries, whose followers have so much of them."""
    replica = node(log=entries(1, 1, 1))
    replica.campaign(0)
    for pre in (True, False):
        replica.step(say(VoteResponse, "b", 1, granted=True, pre=pre), 0)
    assert replica.role is Role.LEADER
    outcome(replica)
    for follower, held in match.items():
        replica.step(say(AppendResponse, follower, 1, held=held, match=held, sequence=1), 0)
    return replica


def test_the_successor_is_the_live_follower_that_has_most() -> None:
    assert leader_with({"b": 1, "c": 3}).successor() == "c"
    assert leader_with({"b": 3, "c": 1}).successor() == "b"


def test_a_follower_that_is_silent_is_no_successor() -> None:
    replica = leader_with({"b": 1, "c": 3})
    for now in (250, 500):
        replica.step(say(AppendResponse, "b", 1, held=1, match=1, sequence=1), now)
    assert replica.successor() == "b"


def test_only_a_leader_has_a_successor_and_says_farewell() -> None:
    replica = node()
    assert replica.successor() is None
    assert replica.farewell() is None


def test_a_farewell_lets_the_successor_run_at_once() -> None:
    farewell = leader_with({"b": 1, "c": 3}).farewell()
    assert farewell == TimeoutNow("a", "c", 1, 1, farewell.receiver_incarnation if farewell else 0)


def test_a_replica_that_cannot_write_neither_campaigns_nor_takes_over() -> None:
    replica = node()
    replica.able = False
    replica.tick(1_000)
    assert replica.role is Role.FOLLOWER
    replica.step(say(TimeoutNow, "b", 0), 1_001)
    assert replica.role is Role.FOLLOWER
    replica.able = True
    replica.tick(2_000)
    assert replica.role is Role.PRECANDIDATE


def test_a_leader_that_stood_still_is_none_when_it_is_looked_at() -> None:
    replica = leader_with({"b": 3, "c": 3})
    replica.look_at(299)
    assert replica.role is Role.LEADER
    replica.look_at(301)
    assert replica.role is Role.FOLLOWER
