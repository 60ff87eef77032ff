"""Processes come and go under one name; what one of them promised is never taken for the word of another."""

from __future__ import annotations

import pytest

from clymq.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    RequestVote,
    TimeoutNow,
    VoteResponse,
)
from clymq.raft.node import RaftNode
from clymq.raft.state import HardState, Limits, Role
from raft_cluster import Cluster, Disk, entries, node, outcome, say


def lame(*terms: int, term: int = 5, commit: int = 0) -> RaftNode:
    return node(log=entries(*terms), hard=HardState(term, "c"), lame=True, commit=commit)


def append(*new: int, after: tuple[int, ...], commit: int, term: int = 5, to: int = 1, sequence: int = 1) -> Append:
    """Return an append of entries of these terms behind entries of those terms."""
    return say(
        Append,
        "b",
        term,
        to=to,
        previous_index=len(after),
        previous_term=after[-1] if after else 0,
        entries=tuple(entries(*after, *new)[len(after) :]),
        commit=commit,
        sequence=sequence,
    )


# --- A lame replica (DESIGN 5) ---


def test_a_lame_replica_keeps_term_and_vote() -> None:
    replica = lame(1)
    assert (replica.lame, replica.term, replica._state.hard.voted_for) == (True, 5, "c")
    assert outcome(replica).hard_state is None


def test_a_lame_replica_takes_appends_and_acknowledges_what_it_has_synced() -> None:
    replica = lame()
    replica.step(append(5, 5, after=(), commit=0), 0)
    assert len(outcome(replica).entries) == 2
    replica.synced(2, 0)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, AppendResponse)
    assert (answer.match, replica.lame) == (2, True)


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("transfer", [True, False])
def test_a_lame_replica_gives_no_vote_and_no_pre_vote(pre: bool, transfer: bool) -> None:
    replica = lame()
    replica.step(say(RequestVote, "b", 6, last_index=99, last_term=5, pre=pre, transfer=transfer), 0)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, VoteResponse)
    assert not answer.granted


def test_a_lame_replica_never_campaigns() -> None:
    replica = lame(1, 1)
    replica.campaign(0)
    replica.step(say(TimeoutNow, "b", 5), 0)
    for now in range(0, 5000, 50):
        replica.tick(now)
    assert (replica.role, replica.term) == (Role.FOLLOWER, 5)
    assert {type(message) for message in outcome(replica).messages} == {HeartbeatResponse}, "it says that it is there"


def test_a_lame_replica_that_hears_nobody_forgets_its_leader_and_waits_on() -> None:
    replica = lame()
    replica.step(say(Heartbeat, "b", 5, commit=0), 0)
    replica.tick(400)
    assert (replica.role, replica.leader, replica.deadline()) == (Role.FOLLOWER, None, 800)


def test_a_lame_replica_is_whole_when_it_holds_a_committed_entry_of_the_leaders_own_term() -> None:
    replica = lame(1)
    replica.step(append(5, after=(1,), commit=1), 0)
    outcome(replica)
    replica.synced(2, 0)
    assert replica.lame, "what is committed so far is of an earlier term"
    replica.step(append(after=(1, 5), commit=2, sequence=2), 0)
    assert not replica.lame
    replica.step(say(RequestVote, "c", 6, last_index=2, last_term=5), 1000)
    assert outcome(replica).hard_state == HardState(6, "c")


def test_a_heartbeat_that_names_such_a_commit_index_makes_it_whole_as_well() -> None:
    replica = lame(5)
    replica.step(append(after=(5,), commit=0), 0)
    replica.step(say(Heartbeat, "b", 5, to=1, commit=1), 0)
    assert not replica.lame


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (append(after=(1, 5), commit=2, to=0), "it is addressed to whoever it may be"),
        (append(after=(1, 5), commit=1), "the committed entry is of an earlier term"),
        (append(after=(1, 5), commit=0), "nothing is committed"),
        (append(after=(1, 5), commit=3), "more is committed than it holds"),
        (append(after=(1,), commit=2), "it is not known whether the last entry is the leader's"),
        (append(5, after=(1, 5), commit=3), "the committed entry is not on the disk"),
        (say(Heartbeat, "b", 5, to=1, commit=2), "it is not known whether its log is the leader's"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lame_replica_stays_lame_when(message: Append | Heartbeat, why: str) -> None:
    replica = lame(1, 5)
    replica.step(message, 0)
    assert replica.lame, why


def test_a_lame_replica_is_whole_when_it_holds_a_seal_that_the_leader_confirmed() -> None:
    replica = node(log=[*entries(1), Entry(2, 1, 10, 10, Kind.SEAL)], hard=HardState(5), lame=True)
    replica.step(append(after=(1, 1), commit=2), 0)
    assert not replica.lame
    hard = outcome(replica).hard_state
    assert hard is not None
    assert hard.seal_term == 5


def test_a_lame_replica_counts_for_what_it_has_on_its_disk_now() -> None:
    cluster = Cluster()
    cluster.crash("b")
    cluster.start("b", lame=True)
    a = cluster.nodes["a"]
    a.campaign(0)
    cluster.deliver()
    cluster.crash("c")
    cluster.begin("a")
    assert a.is_ready


def test_a_lame_replica_stays_lame_while_it_lacks_anything_that_its_former_self_helped_to_commit() -> None:
    """A commit index that was lowered to what it holds so far would let it vote too soon."""
    cluster = Cluster(limits=Limits(append_bytes_max=10, window_messages=1))
    a = cluster.elect("a")
    cluster.blocked = lambda message: "c" in {message.sender, message.receiver}
    for _ in range(8):
        cluster.propose("a")
        cluster.deliver()
    assert (a.log.commit, cluster.terms("c")) == (10, [1, 1])
    cluster.crash("b")
    cluster.disks["b"] = Disk([], cluster.disks["b"].hard)
    b = cluster.start("b", lame=True)
    cluster.step(say(HeartbeatResponse, "b", 1, own=cluster.incarnations, commit=0))
    while b.log.last_index < 10:
        assert b.lame, "entries are committed that it does not have: c, without them, could win with its vote"
        cluster.step(cluster.queue.pop(0))
        cluster.now += 10
        a.tick(cluster.now)
        cluster.perform("a")
    cluster.pass_time(200)
    assert not b.lame


def test_a_lame_replica_of_an_idle_group_becomes_whole() -> None:
    """Its patience may end while its disk is busy; nothing new is proposed, and still the leader's word reaches it."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.pass_time(50)
    cluster.crash("c")
    cluster.nodes["a"].transfer_leadership("b", cluster.now)
    cluster.deliver()
    cluster.begin("b")
    c = cluster.start("c", lame=True)
    cluster.slow.add("c")
    cluster.pass_time(450)
    assert (c.lame, c.log.last_index, c.log.synced) == (True, 3, 2)
    c.tick(cluster.now + 500)
    assert c.leader is None
    cluster.sync("c")
    cluster.pass_time(500)
    assert (c.lame, c.log.commit) == (False, 3)


# --- A leader and the processes of a follower ---


def test_a_leader_that_meets_another_process_counts_nothing_of_the_former() -> None:
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.crash("c")
    cluster.propose("a")
    cluster.blocked = lambda message: message.sender == "b"
    cluster.deliver()
    (late,) = [m for m in cluster.sent if isinstance(m, AppendResponse) and m.match == 3]
    a.step(say(HeartbeatResponse, "b", 1, own=99, commit=0), 0)
    for _ in range(2):
        a.step(late, 0)
        cluster.perform("a")
        assert a.log.commit == 2
        a.step(say(HeartbeatResponse, "b", 1, own=99, commit=0), 0)
        cluster.perform("a")
        assert a.log.commit == 2


def test_messages_are_addressed_to_the_process_that_answered() -> None:
    cluster = Cluster()
    a = cluster.elect("a")
    first = next(m for m in cluster.sent if isinstance(m, Append))
    assert first.receiver_incarnation == 0, "nobody has answered yet"
    cluster.sent.clear()
    cluster.propose("a")
    cluster.perform("a")
    assert [(m.receiver, m.receiver_incarnation) for m in cluster.sent] == [("b", 2), ("c", 3)]
    a.step(say(AppendResponse, "b", 1, own=99, held=2, match=2, sequence=1), 0)
    probe = outcome(a).messages[-1]
    assert isinstance(probe, Append)
    assert (probe.receiver, probe.receiver_incarnation, probe.entries) == ("b", 99, ())


def test_a_late_word_of_a_former_process_does_not_cut_off_the_living_one() -> None:
    cluster = Cluster()
    a = cluster.elect("a")
    late = next(m for m in cluster.sent if isinstance(m, AppendResponse) and m.sender == "b")
    cluster.crash("b")
    b = cluster.start("b")
    cluster.step(say(HeartbeatResponse, "b", 1, own=cluster.incarnations, commit=0))
    cluster.deliver()
    cluster.step(late)
    cluster.propose("a")
    cluster.pass_time(1000)
    assert (a.role, b.log.commit, cluster.terms("b")) == (Role.LEADER, 3, [1, 1, 1])


def test_a_restarted_follower_finds_its_way_back_though_it_is_lame_and_says_nothing_by_itself() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a", 2)
    cluster.pass_time(50)
    cluster.crash("b")
    b = cluster.start("b", lame=True)
    cluster.propose("a")
    cluster.pass_time(1000)
    assert (b.lame, b.log.commit) == (False, 5)
