"""Raft paper §5.5: followers and candidates crash; messages are repeated, and that does no harm."""

from __future__ import annotations

import pytest

from clymq.raft.messages import Append, AppendResponse, Kind
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, entries, node, outcome, say


def test_a_follower_that_crashed_is_brought_up_to_date_when_it_is_back() -> None:
    """§5.5: if a follower crashes, Raft handles it by retrying; if it restarts, the RPC will complete."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a", 2)
    cluster.deliver()
    cluster.crash("b")
    cluster.propose("a", 2)
    cluster.pass_time(1000)
    cluster.start("b")
    cluster.propose("a")
    cluster.pass_time(1000)
    assert cluster.disks["b"].log == cluster.disks["a"].log
    assert cluster.nodes["b"].log.commit == 7


def test_a_follower_that_was_away_over_an_election_is_sent_only_what_it_lacks() -> None:
    """DESIGN 5: a follower that was away reads the block from where it is, not from its beginning."""
    cluster = Cluster()
    a = cluster.elect("a")
    cluster.propose("a", 50)
    cluster.pass_time(100)
    cluster.crash("c")
    cluster.wake("a")
    a.transfer_leadership("b", cluster.now)
    cluster.deliver()
    cluster.begin("b")
    cluster.pass_time(1000)
    cluster.sent.clear()
    cluster.start("c")
    cluster.propose("b")
    cluster.pass_time(1000)
    assert cluster.disks["c"].log == cluster.disks["b"].log
    sent = [m.entries[0].index for m in cluster.sent if isinstance(m, Append) and m.receiver == "c" and m.entries]
    assert min(sent) == 53


def test_an_append_that_arrives_twice_does_no_harm() -> None:
    """§5.5: Raft RPCs are idempotent: entries that are already present are ignored."""
    replica = node()
    message = say(Append, "b", 1, previous_index=0, previous_term=0, entries=tuple(entries(1, 1)), commit=1, sequence=1)
    replica.step(message, 0)
    assert len(outcome(replica).entries) == 2
    replica.synced(2, 0)
    (first,) = outcome(replica).messages
    replica.step(message, 0)
    again = outcome(replica)
    assert (again.entries, again.truncate_to, again.messages) == ((), None, (first,))


def test_an_older_append_that_arrives_late_cuts_nothing() -> None:
    """§5.5 and figure 2: only an entry that conflicts deletes what follows it; a shorter message proves nothing."""
    replica = node()
    for count, sequence in ((3, 2), (1, 1)):
        message = say(
            Append,
            "b",
            1,
            previous_index=0,
            previous_term=0,
            entries=tuple(entries(*[1] * count)),
            commit=0,
            sequence=sequence,
        )
        replica.step(message, 0)
        outcome(replica)
    assert replica.log.last_index == 3


def test_a_server_that_answered_late_answers_the_same_again() -> None:
    """§5.5: if a server crashes after completing an RPC but before responding, it receives the same RPC again."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.blocked = lambda message: isinstance(message, AppendResponse) and message.sender == "b"
    cluster.crash("c")
    cluster.propose("a")
    cluster.deliver()
    assert (cluster.terms("b"), cluster.nodes["a"].log.commit) == ([1, 1, 1], 2)
    cluster.blocked = lambda message: False
    cluster.pass_time(600)
    assert cluster.nodes["a"].log.commit == 3


def test_a_candidate_that_crashed_keeps_the_vote_it_gave_itself() -> None:
    """§5.5: candidate crashes are handled like those of followers; its term and vote are on its disk."""
    cluster = Cluster()
    cluster.blocked = lambda message: not getattr(message, "pre", False)
    cluster.nodes["a"].campaign(0)
    cluster.deliver()
    assert cluster.nodes["a"].role is Role.CANDIDATE
    cluster.crash("a")
    a = cluster.start("a")
    assert (a.role, a.term, cluster.disks["a"].hard) == (Role.FOLLOWER, 1, HardState(1, "a"))


@pytest.mark.parametrize("size", [1, 3])
def test_a_whole_group_that_crashed_goes_on_with_what_was_synced(size: int) -> None:
    """§5.5: servers persist what they promised BEFORE they promise it, so all may crash at once."""
    cluster = Cluster(size)
    cluster.elect("a")
    cluster.propose("a", 4)
    cluster.deliver()
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    cluster.elect("a")
    assert [cluster.terms(name) for name in cluster.names] == [[1] * 6 + [2]] * size
    assert cluster.nodes["a"].log.commit == 7


@pytest.mark.parametrize("size", [1, 3])
def test_a_whole_group_that_crashed_behind_its_seal_commits_it_again(size: int) -> None:
    """§5.5: and a sealed log is no exception, though nothing is written that could be synced."""
    cluster = Cluster(size)
    cluster.elect("a")
    cluster.propose("a", kind=Kind.SEAL)
    cluster.deliver()
    for name in cluster.names:
        cluster.crash(name)
    for name in cluster.names:
        cluster.start(name)
    assert cluster.elect("a").is_ready
