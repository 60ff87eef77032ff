"""Raft paper §5.2: who leads, and how a leader is found."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Append, Heartbeat, RequestVote, VoteResponse
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, entries, node, outcome, say


def candidate(size: int = 3) -> Cluster:
    """Return a cluster whose replica a has just begun a real election, nothing delivered."""
    cluster = Cluster(size)
    a = cluster.nodes["a"]
    a.campaign(0)
    for name in cluster.names[1 : size // 2 + 1]:
        a.step(say(VoteResponse, name, 1, granted=True, pre=True), 0)
    return cluster


def test_servers_begin_as_followers() -> None:
    """§5.2: when servers start up, they begin as followers."""
    cluster = Cluster(5)
    assert {replica.role for replica in cluster.nodes.values()} == {Role.FOLLOWER}


def test_a_follower_stays_one_as_long_as_it_hears_a_leader() -> None:
    """§5.2: a server remains in follower state as long as it receives valid RPCs from a leader or candidate."""
    replica = node(patience_ms=300)
    for now in range(0, 6000, 299):
        replica.tick(now)
        replica.step(say(Heartbeat, "b", 1, commit=0), now)
    assert (replica.role, replica.leader, replica.term) == (Role.FOLLOWER, "b", 1)


def test_a_follower_that_hears_nothing_runs_for_leader_with_a_vote_for_itself() -> None:
    """§5.2: to begin an election, it increments its term, votes for itself and asks all others in parallel."""
    replica = node(members="abcde", hard=HardState(3), log=entries(1, 3), patience_ms=350)
    replica.tick(349)
    assert replica.role is Role.FOLLOWER
    replica.tick(350)
    outcome(replica)
    for name in "bc":
        replica.step(say(VoteResponse, name, 4, granted=True, pre=True), 350)
    ready = outcome(replica)
    assert (replica.role, ready.hard_state) == (Role.CANDIDATE, HardState(4, "a"))
    assert ready.must_sync
    assert ready.messages == tuple(
        say(RequestVote, "a", 4, receiver=peer, own=1, last_index=2, last_term=3) for peer in "bcde"
    )


@pytest.mark.parametrize(("size", "needed"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_candidate_wins_with_the_votes_of_a_majority(size: int, needed: int) -> None:
    """§5.2: a candidate wins if it receives votes from a majority of the servers in the full cluster."""
    a = candidate(size).nodes["a"]
    for voter in "bcde"[:needed]:
        assert a.role is Role.CANDIDATE
        a.step(say(VoteResponse, voter, 1, granted=False, pre=True), 0)
        a.step(say(VoteResponse, voter, 1, granted=True), 0)
    assert a.role is Role.LEADER


def test_a_vote_that_arrives_twice_counts_once() -> None:
    """§5.2: a majority of servers, not of messages."""
    a = candidate(5).nodes["a"]
    for _ in range(3):
        a.step(say(VoteResponse, "b", 1, granted=True), 0)
    assert a.role is Role.CANDIDATE


def test_a_group_of_one_elects_itself() -> None:
    """§5.2: of one server, one is a majority."""
    cluster = Cluster(1)
    cluster.elect("a")
    assert cluster.nodes["a"].is_ready


def test_each_server_votes_once_per_term_first_come_first_served() -> None:
    """§5.2: each server votes for at most one candidate in a given term."""
    replica = node()
    ask = {name: say(RequestVote, name, 1, last_index=0, last_term=0) for name in "bc"}
    for name in "bcb":
        replica.step(ask[name], 0)
    ready = outcome(replica)
    assert [answer.granted for answer in ready.messages if isinstance(answer, VoteResponse)] == [True, False, True]
    assert ready.hard_state == HardState(1, "b")


def test_a_vote_survives_a_crash() -> None:
    """§5.2 with figure 2: votedFor is on stable storage BEFORE the answer leaves."""
    replica = node(hard=HardState(1, "b"))
    replica.step(say(RequestVote, "c", 1, last_index=0, last_term=0), 0)
    ready = outcome(replica)
    assert [answer.granted for answer in ready.messages if isinstance(answer, VoteResponse)] == [False]


def test_a_new_leader_speaks_to_all_others_at_once() -> None:
    """§5.2: it then sends messages to all of the other servers to establish its authority."""
    cluster = candidate(3)
    a = cluster.nodes["a"]
    outcome(a)
    a.step(say(VoteResponse, "b", 1, granted=True), 0)
    assert [(type(m), m.receiver) for m in outcome(a).messages] == [(Append, "b"), (Append, "c")]


def test_a_leader_beats_often_enough_that_nobody_else_runs() -> None:
    """§5.2: and prevents new elections."""
    cluster = Cluster()
    cluster.elect("a")
    for _ in range(20):
        cluster.propose("a")
        cluster.pass_time(200)
    assert (cluster.leaders(), cluster.nodes["a"].term) == (["a"], 1)


def test_a_candidate_that_hears_the_leader_of_its_term_follows_it() -> None:
    """§5.2: if the leader's term is at least as large as the candidate's, the candidate returns to follower state."""
    for message in (
        say(Heartbeat, "b", 1, commit=0),
        say(Append, "b", 1, previous_index=0, previous_term=0, entries=(), commit=0, sequence=1),
    ):
        a = candidate().nodes["a"]
        a.step(message, 0)
        assert (a.role, a.leader, a.term) == (Role.FOLLOWER, "b", 1)


def test_a_candidate_that_hears_a_leader_of_an_earlier_term_goes_on() -> None:
    """§5.2: if the term in the RPC is smaller, the candidate rejects it and continues in candidate state."""
    a = candidate().nodes["a"]
    a.step(say(Heartbeat, "b", 0, commit=0), 0)
    assert (a.role, a.leader) == (Role.CANDIDATE, None)


def test_when_votes_are_split_nobody_wins_and_a_new_term_is_tried() -> None:
    """§5.2: each candidate will time out and start a new election by incrementing its term."""
    cluster = Cluster(4)
    heard = {("a", "c"), ("b", "d")}
    cluster.blocked = lambda m: isinstance(m, RequestVote) and not m.pre and (m.sender, m.receiver) not in heard
    for name in "ab":
        cluster.nodes[name].campaign(0)
    cluster.deliver()
    assert [(cluster.nodes[name].role, cluster.nodes[name].term) for name in "ab"] == [(Role.CANDIDATE, 1)] * 2
    assert [cluster.disks[name].hard.voted_for for name in "abcd"] == ["a", "b", "a", "b"]
    cluster.blocked = lambda m: False
    cluster.pass_time(1500)
    (winner,) = cluster.leaders()
    assert cluster.nodes[winner].term > 1


def test_election_timeouts_are_drawn_anew_from_a_fixed_interval() -> None:
    """§5.2: Raft uses randomized election timeouts to ensure that split votes are rare."""
    drawn: list[tuple[int, int]] = []
    cluster = Cluster()

    def draw(low: int, high: int) -> int:
        drawn.append((low, high))
        return high - len(drawn)

    a = cluster.nodes["a"]
    a._state.draw_ms = draw
    a.step(say(Heartbeat, "b", 1, commit=0), 0)
    first = a.deadline()
    a.tick(first)
    assert a.deadline() - first == 498
    a.tick(a.deadline())
    assert drawn == [(300, 500)] * 3


def test_a_candidate_that_most_refuse_waits_its_turn_as_a_follower() -> None:
    """§5.2: a candidate that cannot win any more need not wait for its time to run out."""
    a = candidate().nodes["a"]
    a.step(say(VoteResponse, "b", 1, granted=False), 0)
    assert a.role is Role.CANDIDATE
    a.step(say(VoteResponse, "c", 1, granted=False), 0)
    assert (a.role, a.term, a.leader) == (Role.FOLLOWER, 1, None)
