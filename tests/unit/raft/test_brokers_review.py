"""What must still happen where brokers speak for their replicas."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    RequestVote,
    VoteResponse,
)
from clymq.raft.node import RaftNode
from clymq.raft.state import Presence, Role
from raft_cluster import entries, node, outcome, say


def heard(brokers: Mapping[str, Presence], now: float) -> None:
    for broker in brokers.values():
        broker.heard_at = now


def leader(brokers: Mapping[str, Presence], *, answers: str = "bc") -> RaftNode:
    """Return a leader of term 1 at time 0 with entries 1 and 2 on its disk; these replicas have them, too."""
    replica = node(log=entries(1), commit=1, brokers=brokers)
    replica.campaign(0)
    for pre in (True, False):
        outcome(replica)
        replica.step(say(VoteResponse, "b", 1, granted=True, pre=pre), 0)
    assert replica.role is Role.LEADER
    replica.propose(10, Kind.BELEADER, 0)
    outcome(replica)
    replica.synced(2, 0)
    for peer in answers:
        replica.step(say(AppendResponse, peer, 1, to=1, held=2, match=2, sequence=2), 0)
        outcome(replica)
    return replica


# --- 1: a lame replica is spoken to by its name ---


def test_a_heartbeat_that_repeats_what_is_known_is_addressed_to_the_process_that_answered_the_last_one() -> None:
    """Else a lame replica, which trusts only what is said to its very process, stays lame in a group that is quiet."""
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers, answers="c")  # b answers, and cannot write: nobody may sleep
    addressed = []
    for now in range(90, 5_000, 90):
        heard(brokers, now)
        replica.tick(now)
        for message in outcome(replica).messages:
            if not isinstance(message, Heartbeat):
                continue
            if message.receiver == "c":
                addressed.append(message.receiver_incarnation)
            replica.step(say(HeartbeatResponse, message.receiver, 1, to=1, commit=2), now + 2)
            outcome(replica)
    assert addressed[0] == 7
    assert 7 in addressed[1:], f"{len(addressed)} heartbeats, and after the first none names the process: {addressed}"


def test_a_lame_replica_does_not_sleep() -> None:
    """It waits for a word to its very process; a heartbeat to whatever process is there is none."""
    replica = node("c", log=entries(1, 1), commit=1, lame=True)
    end = say(Append, "a", 1, receiver="c", previous_index=2, previous_term=1, entries=(), commit=2, sequence=1)
    replica.step(end, 0)
    outcome(replica)
    replica.step(say(Heartbeat, "a", 1, receiver="c", to=0, commit=2, sleep=True), 0)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, HeartbeatResponse)
    assert (replica.lame, replica.asleep, answer.asleep) == (True, False, False)
    replica.step(say(Heartbeat, "a", 1, receiver="c", to=1, commit=2, sleep=True), 0)
    assert (replica.lame, replica.asleep) == (False, True)


# --- 2: nobody protects a leader against itself ---


def test_a_leader_that_asks_for_votes_itself_is_not_protected() -> None:
    brokers = {"b": Presence(0, -1)}
    replica = node(log=entries(1), commit=1, brokers=brokers)
    replica.step(say(Heartbeat, "b", 1, commit=1), 0)
    outcome(replica)
    brokers["b"].heard_at = 1_000
    replica.step(say(RequestVote, "b", 2, own=8, last_index=1, last_term=1, pre=True), 1_000)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, VoteResponse)
    assert answer.granted
    replica.step(say(RequestVote, "c", 2, last_index=1, last_term=1, pre=True), 1_001)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, VoteResponse)
    assert answer.granted, "its leader is none, whoever runs"


# --- 3: handing over again and again ---


def test_a_leader_whose_replicas_say_nothing_does_not_stay_by_trying_to_hand_over() -> None:
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers)
    for now in range(0, 10_000, 100):
        heard(brokers, now)
        if replica.role is Role.LEADER and not now % 1000:
            replica.transfer_leadership("b", now)
        replica.tick(now)
        outcome(replica)
    assert replica.role is not Role.LEADER


# --- 4: another process of the broker ---


@pytest.mark.parametrize("asleep", [True, False])
def test_a_follower_that_is_woken_by_another_process_of_its_leaders_broker_gives_that_no_credit(asleep: bool) -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join("b", 0)
    made.hear(PairHeartbeat("b", 7, ()), 5)
    replica = node(log=entries(1), commit=1, brokers=made.brokers)
    replica.step(say(Heartbeat, "b", 1, commit=1, sleep=asleep), 10)
    outcome(replica)
    if asleep:
        assert replica.asleep
        made.sleeps("g", "b", "b")
    assert made.hear(PairHeartbeat("b", 8, ()), 200) == ({"g"} if asleep else set())
    replica.wake(200)
    for now in range(290, 2_000, 90):
        made.hear(PairHeartbeat("b", 8, ()), now)
    assert replica.deadline() <= 200 + 400, "the process that led is gone: nobody waits longer than usual"


def test_a_follower_that_is_woken_waits_no_longer_than_usual_for_a_leader_that_may_sleep_or_be_gone() -> None:
    """A leader that sleeps says nothing until it is asked for votes; that its broker is heard is no word of it."""
    brokers = {"b": Presence(0, -1)}
    replica = node(brokers=brokers)
    replica.step(say(Heartbeat, "b", 1, commit=0, sleep=True), 10)
    outcome(replica)
    assert replica.asleep
    heard(brokers, 5_000)
    replica.wake(5_000)
    heard(brokers, 5_900)
    assert replica.deadline() == 5_000 + 400
    replica.step(say(Heartbeat, "b", 1, commit=0), 5_300)
    assert replica.deadline() == 5_900 + 400, "it has spoken"


def test_a_leader_that_is_woken_by_other_processes_of_its_followers_brokers_gives_them_no_credit() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join("bc", 0)
    for peer in "bc":
        made.hear(PairHeartbeat(peer, 7, ()), 5)
    replica = leader(made.brokers)
    replica.tick(90)
    outcome(replica)
    for peer in "bc":
        replica.step(say(HeartbeatResponse, peer, 1, to=1, commit=2, asleep=True), 95)
    assert replica.asleep
    for peer in "bc":
        made.hear(PairHeartbeat(peer, 8, ()), 200)
    replica.wake(200)
    for now in range(290, 1_000, 90):
        for peer in "bc":
            made.hear(PairHeartbeat(peer, 8, ()), now)
    replica.tick(501)
    assert replica.role is Role.FOLLOWER, "nobody has spoken for the group since"


# --- 5: alone ---


def test_a_leader_does_not_sleep_that_has_no_majority() -> None:
    """Both other brokers are new processes: nobody is known to be there, and all of nobody sleep."""
    brokers = {"b": Presence(0, -1), "c": Presence(0, -1)}
    replica = leader(brokers)
    heard(brokers, 380)
    replica.tick(380)
    outcome(replica)
    for peer in brokers:
        brokers[peer] = Presence(heard_at=400, since=400, incarnation=8)
    replica.tick(470)
    assert not (replica.role is Role.LEADER and replica.asleep)


# --- 6: one way only ---


def test_a_broker_that_does_not_hear_this_one_gives_its_replicas_no_credit() -> None:
    """They hear nothing of this leader and elect another, while all that they say still arrives here."""
    made = {name: Coalescer(name, 1, heartbeat_ms=90, election_ms=300) for name in "abc"}
    for name, coalescer in made.items():
        coalescer.join(set("abc") - {name}, -1)
    replica = leader(made["a"].brokers)
    for now in range(30, 1_000, 30):
        for name in "bc":  # what a sends is lost
            for receiver, beat in made[name].beat(now):
                made[receiver].hear(beat, now)
        replica.tick(now)
        outcome(replica)
        if replica.role is not Role.LEADER:
            break
    assert now <= 720, "little longer than its followers wait at least"
