"""`RaftNode` from outside: who is listened to, what may be proposed when, and the order in which things are done."""

from __future__ import annotations

import pytest

from clymq.errors import BlockSealed, InvalidRequest, NotLeader, NotReady
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    Message,
    RequestVote,
    TimeoutNow,
    VoteResponse,
)
from clymq.raft.node import RaftNode
from clymq.raft.state import HardState, Role
from raft_cluster import Cluster, entries, node, outcome, say

EVERY_MESSAGE: list[tuple[type[Message], dict[str, object]]] = [
    (RequestVote, {"last_index": 9, "last_term": 9}),
    (VoteResponse, {"granted": True}),
    (Append, {"previous_index": 0, "previous_term": 0, "entries": (), "commit": 0, "sequence": 1}),
    (AppendResponse, {"held": 0, "match": 0, "sequence": 1}),
    (Heartbeat, {"commit": 0}),
    (HeartbeatResponse, {"commit": 0}),
    (TimeoutNow, {}),
]


def leader(size: int = 3) -> RaftNode:
    """Return a leader of term 1 with an empty log, nothing said yet."""
    replica = node(members="abcde"[:size])
    replica.campaign(0)
    for pre in (True, False):
        for voter in "bcde"[: size // 2]:
            replica.step(say(VoteResponse, voter, 1, granted=True, pre=pre), 0)
    assert replica.role is Role.LEADER
    outcome(replica)
    return replica


@pytest.mark.parametrize("members", ["bcd", "aab"])
def test_a_replica_is_one_of_its_group_and_nobody_is_in_it_twice(members: str) -> None:
    with pytest.raises(InvalidRequest, match="not one of"):
        node(members=members)


# --- Who is listened to ---


@pytest.mark.parametrize(("kind", "fields"), EVERY_MESSAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_message_to_another_process_of_this_replica_is_dropped(
    kind: type[Message], fields: dict[str, object]
) -> None:
    replica = node()
    replica.step(say(kind, "b", 9, to=2, **fields), 0)
    assert (replica.term, replica.leader, outcome(replica).messages) == (0, None, ())


@pytest.mark.parametrize(("kind", "fields"), EVERY_MESSAGE, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("stranger", ["z", "a"])
def test_a_message_from_no_other_member_is_ignored(
    kind: type[Message], fields: dict[str, object], stranger: str
) -> None:
    replica = node()
    replica.step(say(kind, stranger, 9, **fields), 0)
    assert (replica.term, replica.leader, outcome(replica).messages) == (0, None, ())


@pytest.mark.parametrize("to", [0, 1])
def test_a_message_to_this_process_or_to_whoever_it_may_be_is_taken(to: int) -> None:
    replica = node()
    replica.step(say(Heartbeat, "b", 1, to=to, commit=0), 0)
    assert replica.leader == "b"
    assert outcome(replica).messages == (say(HeartbeatResponse, "a", 1, receiver="b", own=1, to=7, commit=0),)


@pytest.mark.parametrize(("kind", "fields"), EVERY_MESSAGE, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.value)
def test_whatever_arrives_in_whatever_role_is_answered_or_ignored(
    role: Role, kind: type[Message], fields: dict[str, object]
) -> None:
    """Late answers to a role that has ended, above all; a second leader in one term cannot be, and is an error."""
    replica = leader()
    if role is not Role.LEADER:
        replica = node(hard=HardState(1))
    if role in {Role.PRECANDIDATE, Role.CANDIDATE}:
        replica.campaign(0)
    if role is Role.CANDIDATE:
        replica.step(say(VoteResponse, "c", 2, granted=True, pre=True), 0)
    assert replica.role is role
    term = replica.term
    message = say(kind, "b", term, **fields)
    if role is Role.LEADER and kind in {Append, Heartbeat}:
        with pytest.raises(AssertionError, match="one leader per term"):
            replica.step(message, 0)
        return
    replica.step(message, 0)
    expected = {
        (Role.FOLLOWER, TimeoutNow): Role.CANDIDATE,
        (Role.CANDIDATE, VoteResponse): Role.LEADER,
        (Role.PRECANDIDATE, Append): Role.FOLLOWER,
        (Role.PRECANDIDATE, Heartbeat): Role.FOLLOWER,
        (Role.CANDIDATE, Append): Role.FOLLOWER,
        (Role.CANDIDATE, Heartbeat): Role.FOLLOWER,
    }
    assert replica.role is expected.get((role, kind), role)


def test_two_leaders_of_one_term_are_an_error_to_a_follower() -> None:
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 0)
    with pytest.raises(AssertionError, match="one leader per term"):
        replica.step(say(Heartbeat, "c", 1, commit=0), 0)


def test_a_promise_for_another_term_does_not_count() -> None:
    replica = node(hard=HardState(2))
    replica.campaign(0)
    for term in (1, 2, 4):
        replica.step(say(VoteResponse, "b", term, granted=True, pre=True), 0)
    assert replica.role is Role.PRECANDIDATE


def test_a_precandidate_whose_time_runs_out_asks_again() -> None:
    replica = node()
    replica.tick(400)
    outcome(replica)
    assert (replica.deadline(), replica.asleep) == (800, False)
    replica.tick(799)
    assert outcome(replica).messages == ()
    replica.tick(800)
    assert (replica.role, len(outcome(replica).messages)) == (Role.PRECANDIDATE, 2)


def test_only_a_follower_without_a_leader_campaigns_when_asked_to() -> None:
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 0)
    replica.campaign(0)
    assert replica.role is Role.FOLLOWER
    first = leader()
    first.campaign(0)
    assert first.role is Role.LEADER


def test_a_hint_is_skipped_to_the_right_place_though_the_leader_is_told_nonsense() -> None:
    """The next try lies before the last and behind what is known to match, whatever a follower says."""
    replica = node(log=entries(1, 1, 1), hard=HardState(1))
    replica.campaign(0)
    for pre in (True, False):
        replica.step(say(VoteResponse, "b", 2, granted=True, pre=pre), 0)
    outcome(replica)
    for hint, previous in ((9, 2), (3, 1), (1, 0), (1, 0)):
        rejection = say(
            AppendResponse, "b", 2, held=0, match=0, sequence=9, rejected=True, hint_index=hint, hint_term=0
        )
        replica.step(rejection, 0)
        (probe,) = [m for m in outcome(replica).messages if isinstance(m, Append)]
        assert probe.previous_index == previous


# --- Proposals ---


def test_the_first_entries_are_genesis_then_beleader_then_data() -> None:
    replica = leader()
    for kind in (Kind.DATA, Kind.SEAL, Kind.BELEADER):
        with pytest.raises(NotReady, match=f"takes no {kind.name}"):
            replica.propose(10, kind, 0)
    assert replica.propose(10, Kind.GENESIS, 0) == Entry(1, 1, 0, 10, Kind.GENESIS)
    for kind in (Kind.DATA, Kind.SEAL, Kind.GENESIS):
        with pytest.raises(NotReady):
            replica.propose(10, kind, 0)
    assert replica.propose(20, Kind.BELEADER, 0) == Entry(2, 1, 10, 20, Kind.BELEADER)
    for kind in Kind:
        with pytest.raises(NotReady):
            replica.propose(10, kind, 0)
    assert not replica.is_ready


def test_a_leader_is_ready_when_its_beleader_is_committed_and_then_takes_data_and_a_seal() -> None:
    cluster = Cluster()
    a = cluster.elect("a")
    assert a.is_ready
    for kind in (Kind.GENESIS, Kind.BELEADER):
        with pytest.raises(NotReady):
            a.propose(10, kind, 0)
    assert a.propose(30, Kind.DATA, 0) == Entry(3, 1, 20, 30, Kind.DATA)
    assert a.propose(5, Kind.SEAL, 0) == Entry(4, 1, 50, 5, Kind.SEAL)


def test_behind_a_seal_nothing_is_proposed_not_even_before_it_is_committed() -> None:
    cluster = Cluster()
    a = cluster.elect("a")
    a.propose(5, Kind.SEAL, 0)
    for kind in Kind:
        with pytest.raises(BlockSealed, match="sealed at entry 3"):
            a.propose(10, kind, 0)


def test_a_leader_whose_log_was_sealed_in_an_earlier_term_takes_no_proposal() -> None:
    replica = node(members="a", log=[*entries(1), Entry(2, 1, 10, 10, Kind.SEAL)], hard=HardState(1))
    replica.campaign(0)
    assert replica.role is Role.LEADER
    for kind in Kind:
        with pytest.raises(BlockSealed):
            replica.propose(10, kind, 0)


def test_whoever_does_not_lead_says_who_does() -> None:
    replica = node()
    with pytest.raises(NotLeader) as refused:
        replica.propose(10, Kind.DATA, 0)
    assert refused.value.hint is None
    replica.step(say(Heartbeat, "b", 1, commit=0), 0)
    with pytest.raises(NotLeader) as refused:
        replica.propose(10, Kind.DATA, 0)
    assert refused.value.hint == "b"


# --- Ready ---


def test_ready_stays_the_same_until_advance_and_what_happens_meanwhile_comes_after_it() -> None:
    replica = node()
    replica.step(say(RequestVote, "b", 1, last_index=0, last_term=0), 0)
    first = replica.ready()
    replica.step(
        say(Append, "b", 1, previous_index=0, previous_term=0, entries=tuple(entries(1)), commit=0, sequence=1), 0
    )
    assert replica.ready() is first
    assert (first.hard_state, first.entries, len(first.messages)) == (HardState(1, "b"), (), 1)
    replica.advance()
    second = replica.ready()
    assert (second.hard_state, second.entries, second.messages) == (None, tuple(entries(1)), ())
    assert not second.must_sync


def test_advance_comes_after_ready() -> None:
    with pytest.raises(AssertionError, match="ready comes before advance"):
        node().advance()


def test_a_vote_is_in_the_ready_that_carries_its_answer() -> None:
    """Hard state BEFORE messages: a driver that keeps the order of the fields cannot answer first."""
    replica = node()
    replica.step(say(RequestVote, "b", 3, last_index=0, last_term=0), 0)
    ready = replica.ready()
    assert (ready.hard_state, ready.must_sync, len(ready.messages)) == (HardState(3, "b"), True, 1)


def test_a_term_that_changes_while_a_ready_is_performed_is_in_the_next_one() -> None:
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 0)
    assert replica.ready().hard_state == HardState(1)
    replica.step(say(Heartbeat, "c", 2, commit=0), 0)
    replica.advance()
    assert outcome(replica).hard_state == HardState(2)
    assert outcome(replica).hard_state is None


def test_a_vote_must_be_saved_until_it_was() -> None:
    replica = node()
    outcome(replica)
    assert replica.unsaved is None
    replica.step(say(RequestVote, "b", 3, last_index=9, last_term=2), 0)
    assert replica.unsaved == HardState(3, "b")
    outcome(replica)
    assert replica.unsaved is None


def test_a_vote_that_was_saved_before_ready_is_not_in_it_and_a_newer_one_is() -> None:
    replica = node()
    replica.step(say(RequestVote, "b", 3, last_index=9, last_term=2), 0)
    hard = replica.unsaved
    assert hard is not None
    replica.step(say(Heartbeat, "c", 4, commit=0), 0)
    replica.saved(hard)
    assert replica.unsaved == outcome(replica).hard_state == HardState(4)
    assert outcome(replica).hard_state is None


def test_a_candidate_waits_for_votes_from_when_it_may_ask_for_them() -> None:
    """Its own vote must be on the disk first. Who waits for a slow disk would run again before anybody is asked."""
    replica = node()
    replica.campaign(0)
    outcome(replica)
    replica.step(say(VoteResponse, "b", 1, granted=True, pre=True), 10)
    assert replica.role is Role.CANDIDATE
    before, hard = replica.deadline(), replica.unsaved
    assert hard is not None
    replica.look_at(1010)
    replica.saved(hard)
    assert replica.deadline() == before + 1000


def test_a_voter_waits_for_a_leader_from_when_it_has_given_its_vote() -> None:
    replica = node()
    replica.step(say(RequestVote, "b", 3, last_index=9, last_term=2), 0)
    before, hard = replica.deadline(), replica.unsaved
    assert hard is not None
    replica.look_at(1000)
    replica.saved(hard)
    assert replica.deadline() == before + 1000


def test_who_is_alone_leads_before_its_vote_is_on_the_disk_and_says_nothing_until_it_is() -> None:
    replica = node(members="a")
    replica.campaign(0)
    assert replica.role is Role.LEADER
    hard, before = replica.unsaved, replica.deadline()
    assert hard == HardState(1, "a")
    replica.saved(hard)
    assert (replica.unsaved, replica.deadline()) == (None, before)
    assert outcome(replica).hard_state is None


def test_a_cut_must_be_synced_before_anything_is_written_there() -> None:
    replica = node(log=entries(1, 1, 1), hard=HardState(1))
    new = Entry(2, 2, 10, 10)
    replica.step(say(Append, "b", 2, previous_index=1, previous_term=1, entries=(new,), commit=0, sequence=1), 0)
    ready = outcome(replica)
    assert (ready.truncate_to, ready.entries, ready.must_sync) == (1, (new,), True)
    assert outcome(replica).truncate_to is None


def test_what_was_written_is_acknowledged_only_when_it_is_synced_and_only_so_far() -> None:
    replica = node()
    message = say(
        Append, "b", 1, previous_index=0, previous_term=0, entries=tuple(entries(1, 1, 1)), commit=0, sequence=4
    )
    replica.step(message, 0)
    assert outcome(replica).messages == ()
    for synced, owed in ((1, True), (3, True), (3, False)):
        replica.synced(synced, 0)
        answers = outcome(replica).messages
        expected = say(AppendResponse, "a", 1, receiver="b", own=1, to=7, held=3, match=synced, sequence=4)
        assert answers == ((expected,) if owed else ())


def test_a_sync_that_ends_in_another_role_is_noted_and_nothing_is_said() -> None:
    replica = node()
    message = say(Append, "b", 1, previous_index=0, previous_term=0, entries=tuple(entries(1)), commit=0, sequence=1)
    replica.step(message, 0)
    replica.tick(400)
    outcome(replica)
    replica.synced(1, 400)
    assert (replica.role, replica.log.synced, outcome(replica).messages) == (Role.PRECANDIDATE, 1, ())


def test_a_sync_that_ends_when_no_leader_is_known_is_noted_and_nothing_is_said() -> None:
    replica = node()
    message = say(Append, "b", 1, previous_index=0, previous_term=0, entries=tuple(entries(1)), commit=0, sequence=1)
    replica.step(message, 0)
    replica.step(say(HeartbeatResponse, "c", 2, commit=0), 0)
    outcome(replica)
    replica.synced(1, 0)
    assert (replica.leader, replica.log.synced, outcome(replica).messages) == (None, 1, ())


def test_a_late_sync_of_entries_that_were_cut_away_acknowledges_nothing() -> None:
    """The driver's word comes from another thread: it may be about the entries that lay there before."""
    replica = node(log=entries(1, 1, 1), hard=HardState(1))
    new = (Entry(2, 2, 10, 10), Entry(3, 2, 20, 10))
    replica.step(say(Append, "b", 2, previous_index=1, previous_term=1, entries=new, commit=0, sequence=1), 0)
    replica.synced(3, 0)
    assert max((m.match for m in replica.ready().messages if isinstance(m, AppendResponse)), default=0) <= 1


def test_a_follower_that_gave_its_leader_up_for_a_moment_still_learns_what_is_committed() -> None:
    """Patience may end between two heartbeats; the leader has nothing more to send, and yet the log is its own."""
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a")
    cluster.deliver()
    b = cluster.nodes["b"]
    assert b.log.commit == 2
    cluster.blocked = lambda message: True
    b.tick(cluster.now + 500)
    cluster.perform("b")
    assert b.role is Role.PRECANDIDATE
    cluster.blocked = lambda message: False
    cluster.pass_time(300)
    assert (b.leader, b.log.commit) == ("a", 3)


# --- Time ---


def test_a_leader_wants_to_be_ticked_for_its_next_heartbeat_and_before_it_must_step_down() -> None:
    replica = leader()
    assert replica.deadline() == 0
    replica.tick(0)
    assert replica.deadline() == 90
    assert len([m for m in outcome(replica).messages if isinstance(m, Heartbeat)]) == 2
    replica.tick(89)
    assert outcome(replica).messages == ()
    for now in (90, 180, 270):
        replica.tick(now)
    assert replica.deadline() == 300
    replica.tick(300)
    assert replica.role is Role.FOLLOWER


def test_time_never_runs_backwards() -> None:
    replica = node()
    replica.step(say(Heartbeat, "b", 1, commit=0), 1000)
    replica.step(say(Heartbeat, "b", 1, commit=0), 10)
    assert replica.deadline() == 1400
