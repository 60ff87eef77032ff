"""Ongaro's dissertation: what goes beyond the paper and is used here, section by section."""

from __future__ import annotations

import pytest

from clymq.errors import InvalidRequest, NotLeader, NotReady
from clymq.raft.messages import Append, Heartbeat, HeartbeatResponse, Kind, RequestVote, TimeoutNow, VoteResponse
from clymq.raft.state import HardState, Limits, Role
from raft_cluster import Cluster, entries, node, outcome, say

# --- §3.10: leadership transfer ---


def test_a_leader_hands_over_to_a_replica_that_has_everything_without_a_timeout() -> None:
    """§3.10: the target starts an election at once, before anyone's time has run out."""
    cluster = Cluster()
    cluster.elect("a").transfer_leadership("b", cluster.now)
    cluster.deliver()
    assert (cluster.leaders(), cluster.nodes["b"].term, cluster.now) == (["b"], 2, 0)


def test_a_leader_that_hands_over_takes_no_proposals() -> None:
    """§3.10, step 1: the prior leader stops accepting new client requests."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.blocked = lambda message: message.receiver == "b"
    a.transfer_leadership("b", cluster.now)
    with pytest.raises(NotReady, match="leadership goes to b"):
        cluster.propose("a")


def test_the_target_is_first_brought_up_to_date() -> None:
    """§3.10, step 2: the prior leader fully updates the target's log to match its own."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.slow.add("b")
    cluster.propose("a")
    cluster.deliver()
    a.transfer_leadership("b", cluster.now)
    cluster.deliver()
    assert not [m for m in cluster.sent if isinstance(m, TimeoutNow)]
    cluster.sync("b")
    cluster.deliver()
    assert [m.receiver for m in cluster.sent if isinstance(m, TimeoutNow)] == ["b"]
    assert cluster.leaders() == ["b"]


def test_voters_do_not_protect_a_leader_that_hands_over() -> None:
    """§3.10 with §4.2.3: the request carries a flag, so that others do not take it for a disturbance."""
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 0)
    replica.step(say(RequestVote, "c", 2, last_index=0, last_term=0, transfer=True), 1)
    answer = outcome(replica).messages[-1]
    assert isinstance(answer, VoteResponse)
    assert answer.granted


def test_a_hand_over_that_takes_longer_than_an_election_timeout_is_given_up() -> None:
    """§3.10: if it does not complete after about an election timeout, the prior leader resumes."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.blocked = lambda message: isinstance(message, TimeoutNow)
    a.transfer_leadership("b", cluster.now)
    cluster.pass_time(Limits().election_ms_max - 10)
    with pytest.raises(NotReady):
        cluster.propose("a")
    cluster.pass_time(20)
    assert cluster.propose("a")[0].index == 3


def test_leadership_is_handed_only_by_a_leader_and_only_to_another_member() -> None:
    cluster = Cluster()
    cluster.elect("a")
    with pytest.raises(NotLeader) as refused:
        cluster.nodes["b"].transfer_leadership("c", 0)
    assert refused.value.hint == "a"
    for target in ("a", "z"):
        with pytest.raises(InvalidRequest, match="not another member"):
            cluster.nodes["a"].transfer_leadership(target, 0)


# --- §6.2: a leader without a majority ---


def test_a_leader_that_hears_no_majority_for_an_election_timeout_steps_down() -> None:
    """§6.2: a leader steps down if an election timeout elapses without a successful round of heartbeats."""
    cluster = Cluster(5)
    a = cluster.elect("a")
    cluster.blocked = lambda message: message.sender in "cde" or message.receiver in "cde"
    cluster.pass_time(290)
    assert a.role is Role.LEADER
    cluster.pass_time(20)
    assert (a.role, a.leader) == (Role.FOLLOWER, None)


def test_a_leader_that_hears_half_of_the_others_stays() -> None:
    """§6.2: with itself that is a majority."""
    cluster = Cluster(5)
    a = cluster.elect("a")
    cluster.blocked = lambda message: message.sender in "de" or message.receiver in "de"
    for _ in range(10):
        cluster.propose("a")
        cluster.pass_time(200)
    assert (a.role, a.term) == (Role.LEADER, 1)


def test_a_leader_of_one_is_its_own_majority() -> None:
    cluster = Cluster(1)
    a = cluster.elect("a")
    a.tick(1_000_000)
    assert a.role is Role.LEADER


def test_a_leader_that_was_stopped_steps_down_before_it_answers_anything() -> None:
    """§6.2 and DESIGN 5: whatever it is asked first after a pause, it is no leader any more."""
    for asked in range(5):
        cluster = Cluster()
        a = cluster.elect("a")
        later = Limits().election_ms_min + 1
        if asked == 0:
            a.step(say(HeartbeatResponse, "b", 1, commit=0), later)
        elif asked == 1:
            a.synced(2, later)
        elif asked == 2:
            a.tick(later)
        elif asked == 3:
            with pytest.raises(NotLeader):
                a.propose(10, Kind.DATA, later)
        else:
            with pytest.raises(NotLeader):
                a.transfer_leadership("b", later)
        assert (a.role, a.leader, a.is_ready) == (Role.FOLLOWER, None, False)
        assert outcome(a).messages == ()


# --- §9.6: pre-vote ---


def test_a_replica_asks_whether_it_would_win_before_it_takes_a_new_term() -> None:
    """§9.6: a candidate only increments its term if it first learns that a majority would grant it their votes."""
    replica = node(hard=HardState(3), log=entries(1, 3))
    replica.tick(400)
    ready = outcome(replica)
    assert (replica.role, replica.term, ready.hard_state) == (Role.PRECANDIDATE, 3, None)
    assert ready.messages == tuple(
        say(RequestVote, "a", 4, receiver=peer, own=1, last_index=2, last_term=3, pre=True) for peer in "bc"
    )
    replica.step(say(VoteResponse, "b", 4, granted=True, pre=True), 400)
    assert (replica.role, replica.term) == (Role.CANDIDATE, 4)


def test_a_replica_that_was_cut_off_does_not_disturb_when_it_is_back() -> None:
    """§9.6: the term of a partitioned server does not grow, and the leader is not deposed when it returns."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.blocked = lambda message: "c" in {message.sender, message.receiver}
    for _ in range(20):
        cluster.propose("a")
        cluster.pass_time(250)
    assert cluster.nodes["c"].term == 1
    cluster.blocked = lambda message: False
    cluster.propose("a")
    cluster.pass_time(1000)
    assert (cluster.leaders(), cluster.nodes["a"].term) == (["a"], 1)
    assert cluster.disks["c"].log == cluster.disks["a"].log


@pytest.mark.parametrize("pre", [True, False])
def test_a_replica_that_hears_a_leader_gives_no_vote_against_it(pre: bool) -> None:
    """§9.6 and §4.2.3: if a server receives a request within the minimum election timeout, it does not grant it."""
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 1000)
    outcome(replica)
    ask = say(RequestVote, "c", 2, last_index=9, last_term=1, pre=pre)
    replica.step(ask, 1299)
    replica.step(ask, 1300)
    answers = [m for m in outcome(replica).messages if isinstance(m, VoteResponse)]
    assert [(answer.granted, answer.term) for answer in answers] == [(False, 1), (True, 2)]
    assert replica.term == (1 if pre else 2)


def test_a_leader_gives_no_vote_against_itself() -> None:
    """§4.2.3: it hears itself."""
    cluster = Cluster()
    a = cluster.elect("a")
    a.step(say(RequestVote, "b", 9, last_index=99, last_term=8, own=2), 100)
    assert (a.role, a.term) == (Role.LEADER, 1)


def test_promises_of_votes_are_no_votes_and_may_be_given_to_several() -> None:
    """§9.6: a pre-vote changes nothing in the one who grants it."""
    replica = node()
    for name in "bcb":
        replica.step(say(RequestVote, name, 1, last_index=0, last_term=0, pre=True), 0)
    ready = outcome(replica)
    assert [m.granted for m in ready.messages if isinstance(m, VoteResponse)] == [True] * 3
    assert (ready.hard_state, replica.term) == (None, 0)


def test_a_pre_vote_for_a_term_that_is_past_is_refused_and_names_the_present_one() -> None:
    """§9.6: so a server that comes back late learns the term without having disturbed anyone."""
    replica = node(hard=HardState(5))
    replica.step(say(RequestVote, "b", 5, last_index=0, last_term=0, pre=True), 0)
    assert outcome(replica).messages == (say(VoteResponse, "a", 5, receiver="b", own=1, to=7, granted=False, pre=True),)


# --- §10.2: batching and pipelining ---


def test_what_gathers_between_two_looks_goes_out_as_one_message() -> None:
    """§10.2.2: batching amortizes the cost of a message over many entries."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.sent.clear()
    cluster.propose("a", 10)
    cluster.perform("a")
    assert [len(m.entries) for m in cluster.sent if isinstance(m, Append)] == [10, 10]


def test_the_next_entries_are_sent_before_the_last_are_acknowledged() -> None:
    """§10.2.2: pipelining: the leader updates nextIndex immediately after sending."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.sent.clear()
    for _ in range(5):
        cluster.propose("a")
        cluster.perform("a")
    to_b = [m.previous_index for m in cluster.sent if isinstance(m, Append) and m.receiver == "b"]
    assert to_b == [2, 3, 4, 5, 6]
