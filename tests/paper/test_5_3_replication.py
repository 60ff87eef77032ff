"""Raft paper §5.3: logs become the same, and what is on a majority's disks is committed."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Append, AppendResponse, Entry, Heartbeat, Kind
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, entries, node, outcome, say

# Figure 7: the logs that a leader of term 8 may find, beside its own.
LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7 = {
    "a, one missing": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b, many missing": (1, 1, 1, 4),
    "c, one too many": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d, a later term too many": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e, both": (1, 1, 1, 4, 4, 4, 4),
    "f, both, of several terms": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


def test_a_proposal_is_sent_to_all_others_in_parallel_and_committed_by_a_majority() -> None:
    """§5.3: the leader appends the command, issues AppendEntries in parallel, and applies it once safely replicated."""
    cluster = Cluster(5)
    a = cluster.elect("a")
    cluster.sent.clear()
    (entry,) = cluster.propose("a")
    cluster.perform("a")
    assert [(m.receiver, m.entries) for m in cluster.sent if isinstance(m, Append)] == [(n, (entry,)) for n in "bcde"]
    assert a.log.commit == entry.index - 1
    for acknowledged in (False, True):
        cluster.step(cluster.queue.pop(0))
        cluster.step(cluster.queue.pop())
        assert (a.log.commit == entry.index) is acknowledged


def test_followers_learn_what_is_committed_from_the_next_message() -> None:
    """§5.3: the leader includes the highest index it knows to be committed in future RPCs, heartbeats among them."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a")
    cluster.deliver()
    assert [cluster.nodes[name].log.commit for name in "abc"] == [3, 2, 2]
    cluster.propose("a")
    cluster.deliver()
    assert [cluster.nodes[name].log.commit for name in "abc"] == [4, 3, 3]
    cluster.pass_time(100)
    assert [cluster.nodes[name].log.commit for name in "abc"] == [4, 4, 4]


def test_an_append_is_repeated_until_it_is_stored_even_after_it_was_committed() -> None:
    """§5.3: if packets are lost, the leader retries indefinitely, until all followers eventually store all entries."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.blocked = lambda message: message.receiver == "c" and isinstance(message, Append)
    cluster.propose("a", 3)
    cluster.pass_time(2000)
    assert (cluster.nodes["a"].log.commit, cluster.terms("c")) == (5, [1, 1])
    cluster.blocked = lambda message: False
    cluster.propose("a")
    cluster.pass_time(400)
    assert cluster.disks["c"].log == cluster.disks["a"].log


def test_an_acknowledgement_that_was_lost_is_asked_for_again() -> None:
    """§5.3: the leader retries, whatever was lost: here the answer about a disk that took its time."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.crash("c")
    cluster.slow.add("b")
    cluster.propose("a")
    cluster.pass_time(500)
    assert a.log.commit == 2
    cluster.blocked = lambda message: isinstance(message, AppendResponse)
    cluster.sync("b")
    cluster.blocked = lambda message: False
    cluster.pass_time(1000)
    assert a.log.commit == 3


def test_a_disk_that_was_slow_over_an_election_is_acknowledged_when_it_is_done() -> None:
    """§5.3: what a majority has stored is committed; the new leader hears of it without writing anything more."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.slow.add("c")
    cluster.propose("a", kind=Kind.SEAL)
    cluster.deliver()
    a.transfer_leadership("b", cluster.now)
    cluster.blocked = lambda message: isinstance(message, AppendResponse) and message.sender == "a"
    cluster.pass_time(100)
    assert cluster.leaders() == ["b"]
    cluster.sync("c")
    cluster.pass_time(100)
    assert cluster.nodes["b"].is_ready


def test_entries_are_refused_when_the_one_before_them_is_not_there() -> None:
    """§5.3: if the follower does not find an entry with the same index and term, it refuses the new entries."""
    replica = node(log=entries(1, 1, 2), hard=HardState(3))
    for previous in ((4, 2), (3, 3), (3, 1)):
        new = Entry(previous[0] + 1, 3, 10 * previous[0], 10)
        message = say(
            Append, "b", 3, previous_index=previous[0], previous_term=previous[1], entries=(new,), commit=0, sequence=1
        )
        replica.step(message, 0)
        ready = outcome(replica)
        (answer,) = ready.messages
        assert isinstance(answer, AppendResponse)
        assert (answer.rejected, answer.match, ready.entries) == (True, 0, ())


@pytest.mark.parametrize("log", FIGURE_7.values(), ids=FIGURE_7)
def test_a_leader_makes_the_logs_of_followers_its_own(log: tuple[int, ...]) -> None:
    """§5.3, figure 7: it finds the latest entry where the two agree, removes what follows, and sends its own."""
    cluster = Cluster()
    cluster.load(
        {"a": entries(*LEADER), "b": entries(*log), "c": entries(*LEADER)}, terms={"a": 7, "b": log[-1], "c": 7}
    )
    cluster.elect("a")
    assert cluster.terms("a") == [*LEADER, 8]
    assert cluster.disks["b"].log == cluster.disks["a"].log
    assert cluster.nodes["b"].log.last_index == 11


@pytest.mark.parametrize("log", FIGURE_7.values(), ids=FIGURE_7)
def test_a_leader_never_changes_its_own_entries(log: tuple[int, ...]) -> None:
    """§5.3, Leader Append-Only: a leader never overwrites or deletes entries in its own log."""
    cluster = Cluster()
    cluster.load(
        {"a": entries(*LEADER), "b": entries(*log), "c": entries(*LEADER)}, terms={"a": 7, "b": log[-1], "c": 7}
    )
    cluster.elect("a")
    assert cluster.disks["a"].log[: len(LEADER)] == entries(*LEADER)


def test_a_rejection_tells_the_term_that_conflicts_and_its_first_index() -> None:
    """§5.3, end: the follower can include the term of the conflicting entry and the first index it stores for it."""
    replica = node(log=entries(1, 2, 2, 2, 3), hard=HardState(5))
    for previous, hint in ((4, (2, 2)), (5, (5, 3)), (9, (6, 0))):
        message = say(Append, "b", 5, previous_index=previous, previous_term=5, entries=(), commit=0, sequence=1)
        replica.step(message, 0)
        (answer,) = outcome(replica).messages
        assert isinstance(answer, AppendResponse)
        assert (answer.hint_index, answer.hint_term) == hint


def test_the_place_where_logs_part_is_found_with_one_question_per_term() -> None:
    """§5.3, end: one AppendEntries RPC will be required for each term with conflicting entries, not for each entry."""
    cluster = Cluster()
    ours, theirs = [1] * 20 + [5] * 60, [1] * 20 + [2] * 20 + [3] * 20 + [4] * 20
    cluster.load({"a": entries(*ours), "b": entries(*theirs), "c": entries(*ours)})
    cluster.elect("a")
    rejections = [m for m in cluster.sent if isinstance(m, AppendResponse) and m.rejected and m.sender == "b"]
    assert len(rejections) == 3
    assert cluster.disks["b"].log == cluster.disks["a"].log


def test_a_leader_that_has_the_conflicting_term_itself_goes_to_the_end_of_it() -> None:
    """§5.3, end: what the follower has of that term may be the leader's."""
    cluster = Cluster()
    cluster.load({"a": entries(1, 2, 2, 4, 4), "b": entries(1, 2, 2, 2, 2), "c": entries(1, 2, 2, 4, 4)})
    cluster.elect("a")
    probes = [m.previous_index for m in cluster.sent if isinstance(m, Append) and m.receiver == "b" and not m.entries]
    assert probes == [5, 3]
    assert cluster.disks["b"].log == cluster.disks["a"].log


def test_a_follower_takes_no_entry_beyond_what_it_has_for_committed() -> None:
    """Figure 2: if leaderCommit > commitIndex, set commitIndex = min(leaderCommit, index of last new entry)."""
    replica = node(log=entries(1, 1, 1), hard=HardState(2))
    replica.step(say(Heartbeat, "b", 2, commit=3), 0)
    assert replica.log.commit == 0, "what it has may not be the leader's"
    replica.step(say(Append, "b", 2, previous_index=2, previous_term=1, entries=(), commit=3, sequence=1), 0)
    assert replica.log.commit == 2


def test_two_logs_with_an_entry_of_the_same_index_and_term_agree_up_to_it() -> None:
    """§5.3, Log Matching, after many crashes, cuts and elections."""
    for seed in range(10):
        cluster = Cluster(3, seed=seed)
        cut = ""
        cluster.blocked = lambda message: message.sender in cut or message.receiver in cut  # noqa: B023
        for _ in range(15):
            cluster.pass_time(500, step=25)
            for name in cluster.leaders():
                if cluster.nodes[name].log.last_index == 0 or cluster.nodes[name].log.last_term < (
                    cluster.nodes[name].term
                ):
                    cluster.begin(name)
                elif cluster.nodes[name].is_ready:
                    cluster.propose(name, 2)
                    cluster.perform(name)
            cut = cluster.chance.choice(["", "a", "b", "c"])
            logs = [cluster.disks[name].log for name in "abc"]
            for one in logs:
                for other in logs:
                    common = [n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x.term == y.term]
                    assert common == list(range(len(common)))
        assert max(len(log) for log in logs) > 5


def test_an_entry_may_be_committed_before_it_is_on_the_leaders_own_disk() -> None:
    """Dissertation §10.2.1: the leader writes its own disk in parallel; a majority of followers is enough."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.slow.add("a")
    cluster.propose("a")
    cluster.deliver()
    assert (a.log.commit, a.log.synced, a.role) == (3, 2, Role.LEADER)


def test_nothing_counts_that_is_written_but_not_synced() -> None:
    """Figure 2: what is promised is on stable storage BEFORE the answer leaves, and the leader's own disk counts so."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.slow |= {"a", "b", "c"}
    cluster.propose("a")
    cluster.deliver()
    assert a.log.commit == 2
    cluster.sync("a")
    cluster.deliver()
    assert a.log.commit == 2
    cluster.sync("b")
    cluster.deliver()
    assert a.log.commit == 3
