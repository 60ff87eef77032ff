"""Raft paper §5.4: a leader has all that was ever committed, and commits only what cannot be lost."""

from __future__ import annotations

import pytest

from clymq.raft.messages import AppendResponse, Entry, Kind, RequestVote, VoteResponse
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, entries, node, outcome, say

FIGURE_8 = {"a": entries(1, 2), "b": entries(1, 2), "c": entries(1), "d": entries(1), "e": entries(1, 3)}


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (9, 2, True), (1, 3, True), (2, 2, False), (9, 1, False)],
)
@pytest.mark.parametrize("pre", [True, False])
def test_a_voter_denies_its_vote_to_a_log_that_is_behind_its_own(
    last_index: int, last_term: int, granted: bool, pre: bool
) -> None:
    """§5.4.1: the voter denies its vote if its own log is more up-to-date: later last term, or longer."""
    replica = node(log=entries(1, 1, 2), hard=HardState(2))
    replica.step(say(RequestVote, "b", 3, last_index=last_index, last_term=last_term, pre=pre), 0)
    (answer,) = outcome(replica).messages
    assert isinstance(answer, VoteResponse)
    assert (answer.granted, answer.pre) == (granted, pre)


def test_a_replica_that_lacks_what_is_committed_is_not_elected() -> None:
    """§5.4.1: the election restriction; Leader Completeness follows from it."""
    cluster = Cluster(5)
    cluster.load({name: entries(1, 1, 1) for name in "abc"} | {name: entries(1) for name in "de"})
    cluster.crash("a")
    for name in "de":
        cluster.nodes[name].campaign(0)
        cluster.deliver()
        assert cluster.nodes[name].role is not Role.LEADER
    cluster.elect("b")
    assert cluster.terms("e") == [1, 1, 1, 2]


def test_entries_of_earlier_terms_are_not_committed_by_counting_replicas() -> None:
    """§5.4.2, figure 8 (c): the entry of term 2 is on a majority, and yet not committed."""
    cluster = Cluster(5)
    cluster.load(FIGURE_8, terms=dict.fromkeys("abcde", 3))
    cluster.crash("e")
    a = cluster.nodes["a"]
    a.campaign(0)
    cluster.deliver()
    assert (a.role, a.term, a.log.commit) == (Role.LEADER, 4, 0)
    assert [cluster.terms(name) for name in "abcd"] == [[1, 2]] * 4
    # (d): it can still be overwritten, by the one that wrote in term 3.
    cluster.crash("a")
    cluster.crash("b")
    cluster.start("e")
    cluster.pass_time(3000)
    assert cluster.leaders() == ["e"]
    cluster.begin("e")
    assert [cluster.terms(name) for name in "cd"] == [[1, 3, cluster.nodes["e"].term]] * 2


def test_an_entry_of_the_present_term_commits_all_before_it() -> None:
    """§5.4.2, figure 8 (e): then all prior entries are committed indirectly, and the one of term 3 cannot win."""
    cluster = Cluster(5)
    cluster.load(FIGURE_8, terms=dict.fromkeys("abcde", 3))
    cluster.crash("e")
    assert cluster.elect("a").log.commit == 3
    cluster.crash("a")
    e = cluster.start("e")
    for _ in range(30):
        cluster.pass_time(100)
        assert e.role is not Role.LEADER
    assert cluster.terms("e")[:3] == [1, 2, 4]


def sealed(*terms: int) -> list[Entry]:
    log = entries(*terms)
    last = log.pop()
    return [*log, Entry(last.index, last.term, last.position, last.length, Kind.SEAL)]


def test_a_leader_that_finds_a_seal_commits_it_by_a_note_beside_the_log() -> None:
    """§5.4.2 where nothing can be appended: the note of the new term takes the place of the entry of that term."""
    cluster = Cluster()
    cluster.load({"a": sealed(1, 2), "b": entries(1), "c": entries(1)}, terms=dict.fromkeys("abc", 3))
    a = cluster.elect("a")
    assert (a.term, a.is_ready, a.log.commit) == (4, True, 2)
    assert [cluster.disks[name].hard.seal_term for name in "abc"] == [4, 4, 4]
    assert [cluster.terms(name) for name in "abc"] == [[1, 2]] * 3


def test_a_seal_that_was_committed_so_cannot_be_overwritten_by_an_entry_of_a_later_term() -> None:
    """Figure 8 (d) with a seal: without the note, the entry of term 3 would win over the seal of term 2."""
    cluster = Cluster(5)
    cluster.load(
        {"a": sealed(1, 2), "b": sealed(1, 2), "c": entries(1), "d": entries(1), "e": entries(1, 3)},
        terms=dict.fromkeys("abcde", 3),
    )
    cluster.crash("e")
    cluster.elect("a")
    assert cluster.nodes["a"].log.commit == 2
    cluster.crash("a")
    e = cluster.start("e")
    for _ in range(30):
        cluster.pass_time(100)
        assert e.role is not Role.LEADER
    assert cluster.disks["e"].log == sealed(1, 2)


def test_a_crash_between_the_note_and_the_seal_does_not_lend_the_note_to_another_seal() -> None:
    """The hard state is saved BEFORE the log is cut and written: a note must never speak for the log that was there."""
    cluster = Cluster()
    other, committed = sealed(1, 3, 3, 3), sealed(1, 4, 4)
    cluster.load({"a": other, "b": committed, "c": committed}, terms=dict.fromkeys("abc", 5))
    perform = cluster.perform

    def dies_after_saving(name: str) -> None:
        """Replica a saves its hard state and dies, when there is also something to cut."""
        ready = cluster.nodes[name].ready()
        if name != "a" or ready.truncate_to is None:
            perform(name)
        elif name not in cluster.down:
            cluster.disks[name].hard = ready.hard_state or cluster.disks[name].hard
            cluster.crash(name)

    cluster.perform = dies_after_saving  # type: ignore[method-assign]
    c = cluster.elect("c")
    assert (c.log.commit, cluster.down, cluster.disks["a"].log) == (3, {"a"}, other)
    cluster.perform = perform  # type: ignore[method-assign]
    cluster.crash("c")
    cluster.start("a")
    cluster.pass_time(3000)
    assert cluster.disks["b"].log == committed
    assert cluster.leaders() == ["b"]


def test_state_machine_safety_holds_over_random_crashes() -> None:
    """§5.4.3: if a server has applied an entry at an index, no other ever applies a different one there."""
    for seed in range(10):
        cluster = Cluster(3, seed=seed)
        applied: dict[int, Entry] = {}
        for _ in range(12):
            cluster.pass_time(600, step=25)
            for name in cluster.leaders():
                leader = cluster.nodes[name]
                if leader.log.last_term < leader.term:
                    cluster.begin(name)
                if leader.is_ready:
                    cluster.propose(name, 3)
                    cluster.perform(name)
            cluster.queue = [m for m in cluster.queue if cluster.chance.random() < 0.5]
            for name in set(cluster.names) - cluster.down:
                log = cluster.nodes[name].log
                for entry in cluster.disks[name].log[: log.commit]:
                    assert applied.setdefault(entry.index, entry) == entry
            for name in list(cluster.down):
                cluster.start(name)
            victim = cluster.chance.choice(cluster.names)
            cluster.crash(victim)
        assert len(applied) > 5


def test_a_rejection_never_raises_what_a_follower_is_known_to_have() -> None:
    """Figure 2: matchIndex moves only by success."""
    cluster = Cluster()
    cluster.load({"a": entries(1, 1, 1), "b": entries(), "c": entries()})
    a = cluster.nodes["a"]
    a.campaign(0)
    cluster.blocked = lambda message: isinstance(message, AppendResponse)
    cluster.deliver()
    for name in "bc":
        a.step(say(AppendResponse, name, 2, held=3, match=3, sequence=1, rejected=True, hint_index=1, hint_term=0), 0)
    cluster.begin("a")
    assert a.log.commit == 0
