"""A group in which nothing happens stops its clocks, and starts them again before anything is lost by it."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Heartbeat, HeartbeatResponse, Kind, RequestVote, VoteResponse
from clymq.raft.state import Presence, Role
from raft_cluster import Cluster, entries, node, outcome, say


def asleep(size: int = 3) -> Cluster:
    """Return a group that sleeps; replica a leads it."""
    cluster = Cluster(size)
    cluster.elect("a")
    cluster.propose("a", 3)
    cluster.pass_time(500)
    assert all(replica.asleep for replica in cluster.nodes.values())
    cluster.sent.clear()
    return cluster


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_idle_group_falls_asleep_and_says_nothing_more(size: int) -> None:
    cluster = asleep(size)
    assert {replica.deadline() for replica in cluster.nodes.values()} == {float("inf")}
    cluster.pass_time(5000, step=100)
    assert (cluster.sent, cluster.leaders(), cluster.nodes["a"].term) == ([], ["a"], 1)


def test_a_group_sleeps_only_when_everything_is_committed_and_everybody_alive_was_told() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.slow.add("c")
    cluster.propose("a")
    cluster.pass_time(1000)
    assert not any(replica.asleep for replica in cluster.nodes.values()), "c has not synced"
    cluster.sync("c")
    cluster.propose("a")
    cluster.perform("a")
    cluster.sync("c")
    cluster.slow.clear()
    cluster.propose("a")
    cluster.pass_time(1000)
    assert all(replica.asleep for replica in cluster.nodes.values())


def test_a_leader_that_is_not_ready_does_not_rest() -> None:
    cluster = Cluster()
    cluster.nodes["a"].campaign(0)
    cluster.pass_time(1000)
    assert not any(replica.asleep for replica in cluster.nodes.values())


def test_a_replica_that_is_down_does_not_keep_the_others_awake() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.crash("c")
    cluster.propose("a")
    cluster.pass_time(1500)
    assert cluster.nodes["a"].asleep
    assert cluster.nodes["b"].asleep


@pytest.mark.parametrize(("held", "synced", "commit", "sleeps"), [(2, 2, 2, True), (2, 2, 1, False), (1, 1, 1, False)])
def test_a_follower_sleeps_only_if_all_it_has_is_committed_and_on_its_disk(
    held: int, synced: int, commit: int, sleeps: bool
) -> None:
    replica = node(log=entries(1, 1), commit=held)
    replica.step(say(Heartbeat, "b", 1, commit=commit, sleep=True), 0)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, HeartbeatResponse)
    assert (answer.asleep, replica.asleep, answer.commit) == (sleeps, sleeps, held)


def test_a_sleeping_follower_ignores_the_time_and_keeps_its_leader() -> None:
    b = asleep().nodes["b"]
    b.tick(1_000_000)
    assert (b.role, b.leader, b.asleep) == (Role.FOLLOWER, "a", True)


@pytest.mark.parametrize("pre", [True, False])
def test_a_sleeping_follower_protects_its_leader(pre: bool) -> None:
    b = asleep().nodes["b"]
    ask = say(RequestVote, "c", 2, receiver="b", last_index=99, last_term=9, pre=pre)
    b.step(ask, 1_000_000)
    (answer,) = outcome(b).messages
    assert isinstance(answer, VoteResponse)
    assert (answer.granted, b.term) == (False, 1)


def test_an_append_wakes_a_follower_and_a_heartbeat_does() -> None:
    cluster = asleep()
    cluster.propose("a")
    cluster.deliver()
    assert [cluster.nodes[name].asleep for name in "abc"] == [False] * 3
    assert cluster.nodes["b"].log.last_index == 6
    b = asleep().nodes["b"]
    b.step(say(Heartbeat, "a", 1, receiver="b", commit=5), 1000)
    assert not b.asleep


def test_a_proposal_is_made_only_to_a_leader_that_was_woken() -> None:
    cluster = asleep()
    with pytest.raises(AssertionError, match="woken first"):
        cluster.nodes["a"].propose(10, Kind.DATA, cluster.now)


def test_a_hand_over_wakes_everybody() -> None:
    """DESIGN 5: an announced stepping down wakes a sleeping replica."""
    cluster = asleep()
    cluster.nodes["a"].transfer_leadership("b", cluster.now)
    cluster.deliver()
    assert cluster.leaders() == ["b"]
    assert not any(replica.asleep for replica in cluster.nodes.values())


def test_a_sleeping_leader_does_not_judge_its_majority_by_its_own_clock() -> None:
    a = asleep().nodes["a"]
    a.tick(1_000_000)
    a.step(say(HeartbeatResponse, "b", 1, own=2, commit=5, asleep=True), 1_000_000)
    assert a.role is Role.LEADER


def test_a_leader_that_wakes_and_whose_brokers_were_heard_goes_on_at_once() -> None:
    cluster = asleep()
    a = cluster.nodes["a"]
    later = cluster.now + 100_000
    cluster.brokers["a"].update(b=Presence(later - 299, 0), c=Presence(0, 0))
    a.wake(later)
    assert (a.role, a.asleep, a.deadline()) == (Role.LEADER, False, later)
    a.tick(later)
    beats = [m for m in outcome(a).messages if isinstance(m, Heartbeat)]
    assert [(beat.receiver, beat.sleep) for beat in beats] == [("b", True), ("c", True)]


@pytest.mark.parametrize("heard", [{}, {"b": Presence(99_700, 0), "c": Presence(5, 0)}])
def test_a_leader_that_wakes_and_whose_brokers_were_silent_steps_down_before_it_answers(
    heard: dict[str, Presence],
) -> None:
    cluster = asleep()
    a = cluster.nodes["a"]
    cluster.brokers["a"].update(heard)
    a.wake(100_000)
    assert (a.role, a.leader, outcome(a).messages) == (Role.FOLLOWER, None, ())


def test_brokers_that_are_not_in_the_group_may_have_been_heard_too() -> None:
    """The coalescer knows all brokers that this one shares any group with."""
    cluster = asleep()
    a = cluster.nodes["a"]
    cluster.brokers["a"].update((name, Presence(cluster.now, 0)) for name in "bcz")
    a.wake(cluster.now)
    assert a.role is Role.LEADER


def test_a_follower_that_wakes_listens_for_a_whole_election_timeout_first() -> None:
    cluster = asleep()
    b = cluster.nodes["b"]
    later = cluster.now + 100_000
    b.wake(later)
    assert (b.asleep, b.leader) == (False, "a")
    assert 300 <= b.deadline() - later <= 500
    b.tick(b.deadline())
    assert b.role is Role.PRECANDIDATE


def test_waking_who_is_awake_changes_nothing() -> None:
    brokers = {"b": Presence(0, 0)}
    replica = node(brokers=brokers)
    before = replica.deadline()
    replica.wake(100)
    assert replica.deadline() == before
    replica.tick(400)
    brokers["b"].heard_at = 500
    replica.wake(500)
    assert (replica.role, replica.deadline()) == (Role.PRECANDIDATE, 800)
    cluster = Cluster()
    a = cluster.elect("a")
    a.tick(0)
    before = a.deadline()
    a.wake(10)
    assert a.deadline() == before


def test_when_the_leader_is_gone_those_who_wake_find_another() -> None:
    cluster = asleep()
    cluster.crash("a")
    for name in "bc":
        cluster.nodes[name].wake(cluster.now)
    cluster.pass_time(1500)
    assert len(cluster.leaders()) == 1


def test_a_replica_that_was_cut_off_when_the_group_fell_asleep_is_brought_up_to_date_when_it_is_back() -> None:
    """It asks for votes, and that is a message of the group: it wakes the leader, who then sees what is missing."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.blocked = lambda message: "c" in {message.sender, message.receiver}
    cluster.propose("a", 2)
    cluster.pass_time(1000)
    assert cluster.nodes["a"].asleep
    cluster.blocked = lambda message: False
    cluster.pass_time(2000)
    assert cluster.disks["c"].log == cluster.disks["a"].log
    assert all(replica.asleep for replica in cluster.nodes.values())


def test_a_follower_that_woke_alone_is_put_to_sleep_again_instead_of_asking_for_votes_for_ever() -> None:
    """Its broker heard nothing from the leader's for a while; the other direction was fine, so the leader sleeps on."""
    cluster = asleep()
    cluster.wake("b")
    cluster.pass_time(2000)
    assert (cluster.leaders(), cluster.nodes["a"].term) == (["a"], 1)
    assert cluster.nodes["b"].leader == "a"
    assert all(replica.asleep for replica in cluster.nodes.values())
