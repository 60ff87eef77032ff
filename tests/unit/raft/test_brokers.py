"""What is heard of a broker counts for its replicas: one with a thousand groups is late with what each has to say."""

from __future__ import annotations

import pytest

from clymq.raft.messages import AppendResponse, Heartbeat, Kind, RequestVote, VoteResponse
from clymq.raft.node import RaftNode
from clymq.raft.state import LENIENCE, Presence, Role
from raft_cluster import entries, node, outcome, say


def follower(brokers: dict[str, Presence], *, at: float = 0) -> RaftNode:
    """Return a replica that has heard of its leader, replica b; its patience is 400 ms."""
    replica = node(brokers=brokers)
    replica.step(say(Heartbeat, "b", 1, commit=0, sleep=False), at)
    outcome(replica)
    return replica


def leader(brokers: dict[str, Presence]) -> RaftNode:
    """Return a leader at time 0 whose log is committed, and whose followers hold all of it."""
    replica = node(log=entries(1), commit=1, brokers=brokers)
    replica.campaign(0)
    for pre in (True, False):
        outcome(replica)
        for peer in "bc":
            replica.step(say(VoteResponse, peer, 1, granted=True, pre=pre), 0)
    assert replica.role is Role.LEADER
    replica.propose(10, Kind.BELEADER, 0)
    outcome(replica)
    return replica


def test_a_follower_waits_longer_for_a_leader_whose_broker_is_heard() -> None:
    brokers = {"b": Presence(heard_at=0, since=-1)}
    replica = follower(brokers)
    assert replica.deadline() == 400
    brokers["b"].heard_at = 350
    assert replica.deadline() == 750
    replica.tick(700)
    assert replica.role is Role.FOLLOWER
    replica.tick(750)
    assert replica.role is Role.PRECANDIDATE, "its broker has fallen silent"


def test_but_not_for_ever() -> None:
    """The replica may be out while its broker lives."""
    brokers = {"b": Presence(heard_at=1_000_000, since=-1)}
    assert follower(brokers).deadline() == LENIENCE * 300 + 400


def test_another_process_does_not_speak_for_the_leader_that_was_there_before() -> None:
    brokers = {"b": Presence(heard_at=200, since=150)}
    assert follower(brokers, at=100).deadline() == 500


def test_a_leader_whose_broker_is_heard_is_protected_from_others() -> None:
    brokers = {"b": Presence(heard_at=500, since=-1)}
    replica = follower(brokers)
    replica.step(say(RequestVote, "c", 2, last_index=9, last_term=1, pre=True), 600)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, VoteResponse)
    assert not answer.granted


def test_a_leader_stays_while_the_brokers_of_a_majority_are_heard() -> None:
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers)
    brokers["c"].heard_at = 400
    replica.tick(500)
    assert replica.role is Role.LEADER
    replica.tick(700)
    assert replica.role is Role.FOLLOWER


def test_a_leader_whose_replicas_say_nothing_steps_down_though_their_brokers_are_heard() -> None:
    brokers = {"b": Presence(1_000_000, -1), "c": Presence(1_000_000, -1)}
    replica = leader(brokers)
    replica.tick(LENIENCE * 300 + 299)
    assert replica.role is Role.LEADER
    replica.tick(LENIENCE * 300 + 300)
    assert replica.role is Role.FOLLOWER


def beats(replica: RaftNode, now: float, brokers: dict[str, Presence]) -> list[str]:
    """Let time pass, with all brokers heard, and return who is sent a heartbeat."""
    for broker in brokers.values():
        broker.heard_at = now
    replica.tick(now)
    return [message.receiver for message in outcome(replica).messages if isinstance(message, Heartbeat)]


def test_a_leader_repeats_itself_only_now_and_then_where_brokers_hear_each_other() -> None:
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers)
    sent = [beats(replica, now, brokers) for now in range(90, 900, 90)]
    assert [len(each) for each in sent] == [2, 0, 0, 0, 2, 0, 0, 0, 2]


@pytest.mark.parametrize("others", [{}, {"b": Presence(0, 1), "c": Presence(0, 1)}])
def test_it_beats_at_each_interval_where_they_do_not_or_another_process_is_there(others: dict[str, Presence]) -> None:
    replica = leader(others)
    assert [len(beats(replica, now, others)) for now in (90, 180, 270)] == [2, 2, 2]


def test_what_is_new_is_said_at_the_next_interval() -> None:
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers)
    beats(replica, 90, brokers)
    replica.synced(2, 91)

    def holds(peer: str) -> None:
        replica.step(say(AppendResponse, peer, 1, to=1, held=2, match=2, sequence=2), replica.log.last_index + 90)
        outcome(replica)

    holds("b")
    assert (replica.log.commit, beats(replica, 180, brokers)) == (2, ["b", "c"]), "more is committed"
    assert beats(replica, 270, brokers) == []
    holds("c")
    assert beats(replica, 360, brokers) == ["b", "c"], "there is nothing more to do: sleep"


def test_a_follower_that_is_woken_counts_what_its_broker_has_heard() -> None:
    brokers = {"b": Presence(0, -1)}
    replica = follower(brokers)
    replica.step(say(Heartbeat, "b", 1, commit=0, sleep=True), 10)
    outcome(replica)
    assert replica.asleep
    brokers["b"].heard_at = 5_000
    replica.wake(5_310)
    assert replica.deadline() == 5_010 + 400, "the least patience, and not more, has passed"
