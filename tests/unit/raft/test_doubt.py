"""What cannot be is not believed, and who answers as somebody new is looked after."""

from __future__ import annotations

import pytest

from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.messages import AppendResponse, Heartbeat, HeartbeatResponse, RequestVote
from raft_cluster import Cluster, node, outcome, say


def heartbeat(group_term: int) -> Heartbeat:
    return Heartbeat("a", "b", group_term, 1, 0, 0)


@pytest.mark.parametrize(("held", "match"), [(1_000, 1_000), (3, 1_000), (-1, -1), (1, 2)])
def test_an_answer_that_holds_what_was_never_sent_is_dropped(held: int, match: int) -> None:
    cluster = Cluster()
    cluster.elect("a")
    leader, before = cluster.nodes["a"], cluster.nodes["a"].log.commit
    leader.propose(10, 0, cluster.now)  # type: ignore[arg-type]
    for follower in "bc":
        own = cluster.nodes[follower]._state.incarnation
        leader.step(say(AppendResponse, follower, 1, own=own, held=held, match=match, sequence=99), cluster.now)
    assert leader.log.commit == before
    cluster.pass_time(500)
    assert len({replica.log.commit for replica in cluster.nodes.values()}) == 1


def test_a_hint_in_front_of_the_log_leads_to_its_first_entry() -> None:
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a", 3)
    leader, own = cluster.nodes["a"], cluster.nodes["b"]._state.incarnation
    answer = say(AppendResponse, "b", 1, own=own, held=0, match=0, sequence=99, rejected=True, hint_index=-5)
    leader.step(answer, cluster.now)
    leader.step(
        say(AppendResponse, "b", 1, own=own, held=0, match=0, sequence=99, rejected=True, hint_index=-5, hint_term=1),
        cluster.now,
    )
    cluster.pass_time(500)
    assert len({replica.log.commit for replica in cluster.nodes.values()}) == 1


@pytest.mark.parametrize("term", [-1, 2**63])
def test_a_term_that_fits_in_no_file_is_not_entered(term: int) -> None:
    replica = node()
    replica.step(say(RequestVote, "b", term, last_index=9, last_term=9, transfer=True), 0)
    assert (replica.term, outcome(replica).messages) == (0, ())


def test_a_message_for_another_replica_is_not_taken() -> None:
    replica = node()
    replica.step(say(RequestVote, "b", 5, receiver="c", last_index=9, last_term=9, transfer=True), 0)
    assert (replica.term, outcome(replica).messages) == (0, ())


def test_a_leader_that_sleeps_wakes_when_another_process_answers_for_a_follower() -> None:
    """The answer says `asleep`, which wakes nobody by itself; but what that process has is not known."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a", 3)
    cluster.pass_time(500)
    leader = cluster.nodes["a"]
    assert leader.asleep
    leader.step(say(HeartbeatResponse, "b", 1, own=999, commit=leader.log.commit, asleep=True), cluster.now)
    assert not leader.asleep


def test_a_broker_that_is_heard_for_the_first_time_and_late_wakes_the_groups_that_slept_without_it() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join(["b", "c"], 0)
    made.hear(PairHeartbeat("b", 5, ()), 250)
    assert made.silent(310) == set()
    made.sleeps("g", "a", ["b", "c"])
    assert made.hear(PairHeartbeat("c", 9, ()), 400) == {"g"}


def test_what_a_group_has_gathered_leaves_with_it_and_the_rest_stays() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    for _ in range(2):
        made.join(["b"], 0)
    made.gather("g", [heartbeat(1)])
    made.gather("h", [heartbeat(2)])
    made.leave("g", ["b"])
    assert made.beat(100) == [("b", PairHeartbeat("a", 1, (("h", heartbeat(2)),)))]
