"""Replicas that break one rule each, to prove that the checkers bite.

Each mutation replaces one method of the product by one that lacks a rule; there is no switch for it in the product. A
mutation that no seed catches means that a checker, or a fault, is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from clymq.errors import NotReady
from clymq.raft.candidate import Candidate
from clymq.raft.follower import Follower
from clymq.raft.leader import Leader
from clymq.raft.log import RaftLog
from clymq.raft.messages import Append, Entry, RequestVote
from clymq.raft.node import RaftNode
from clymq.raft.progress import Progress
from clymq.raft.state import HardState, State, majority
from clymq.record.layout import Header
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import Producers, Submitted
from clymq.replication.raft_driver import RaftDriver
from clymq.replication.raft_partition import RaftPartition
from clymq.replication.replica import Replica
from clymq.simulation.process import Process
from clymq.storage.block import Block
from clymq.storage.end import End
from clymq.storage.files import SyncDone
from clymq.storage.vote import Vote, VoteFile

Patches = list[tuple[type, str, Any]]


def skip_fsync_before_ack() -> Patches:
    """A replica says that it has synced what it has only written."""
    original = RaftDriver._write

    def write(self: RaftDriver, entries: Any) -> None:
        original(self, entries)
        self.node.synced(self.replica.block.last_index, self._now())

    return [(RaftDriver, "_write", write)]


def ignore_the_own_term_rule() -> Patches:
    """A leader commits entries of earlier terms by counting (figure 8)."""

    def commit(self: Leader) -> None:
        log = self._state.log
        agreed = majority([log.synced, *(p.match for p in self._followers.values())], self._state.quorum)
        if agreed > log.commit:
            log.commit_to(agreed)

    return [(Leader, "commit", commit)]


def vote_twice() -> Patches:
    """A replica forgets whom it has voted for."""

    def may_vote(self: RaftNode, message: RequestVote) -> bool:
        return message.term == self.term and isinstance(self._role, Follower)

    def enter(self: State, term: int, voted_for: str = "") -> None:
        self.held = 0 if term > self.term else self.held
        self.hard = HardState(term, voted_for, self.hard.seal_term)

    return [(RaftNode, "_may_vote", may_vote), (State, "enter", enter)]


def forget_the_vote_on_restart() -> Patches:
    """The vote is not on the disk when it is sent."""

    def save(self: Replica, hard: HardState, done: SyncDone) -> None:
        VoteFile.save_soon(self._vote, Vote(hard.term, "", 0, hard.seal_term), done)

    return [(Replica, "save", save)]


def no_term_check_on_append() -> Patches:
    """A follower takes entries without looking at the one before."""

    def append(self: Follower, message: Append) -> None:
        previous = self._state.log.term_at(message.previous_index)
        if previous is None:
            original(self, message)
            return
        fields = {name: getattr(message, name) for name in Append.__dataclass_fields__}
        original(self, Append(**(fields | {"previous_term": previous})))

    original = Follower.append
    return [(Follower, "append", append)]


def accept_after_seal() -> Patches:
    """Nobody remembers that a seal ends the log."""

    def take(self: End, batch: Header) -> None:
        self.sealed = False
        original(self, batch)

    original = End.take
    append = Block.append
    end_with = RaftLog._end_with

    def end_open(self: RaftLog, last: Entry | None) -> None:
        end_with(self, last)
        self.sealed = False

    def append_anyway(self: Block, batches: Any) -> None:
        self._end.sealed = False
        append(self, batches)

    def open_anyway(self: PartitionMachine) -> Submitted:
        if self._submitted is None:
            raise NotReady("the leader's first entry is not applied here")
        return self._submitted

    return [
        (RaftLog, "_end_with", end_open),
        (End, "take", take),
        (Block, "append", append_anyway),
        (PartitionMachine, "_open", open_anyway),
    ]


def forget_producers_on_restore() -> Patches:
    """A checkpoint is restored without the table of producers."""
    original = PartitionMachine.restore

    def restore(self: PartitionMachine, state: bytes) -> None:
        original(self, state)
        self._state.producers = Producers()

    return [(PartitionMachine, "restore", restore), (Producers, "store", lambda self, header: 0)]


def elect_a_shorter_log() -> Patches:
    """A voter does not compare logs."""
    return [(State, "is_up_to_date", lambda self, last_index, last_term: True)]


def skip_the_log_check_of_votes() -> Patches:
    """A voter compares terms of last entries, but not lengths."""
    return [(State, "is_up_to_date", lambda self, last_index, last_term: last_term >= self.last_term)]


def skip_the_log_check_of_pre_votes() -> Patches:
    """A pre-vote is granted without a look at the logs; votes are not.

    Nothing is lost by it, because the vote that follows is refused; but a replica that cannot win drives up the term.
    """
    original = RaftNode._answer_vote

    def answer(self: RaftNode, message: RequestVote) -> None:
        as_good = dataclasses.replace(message, last_index=self.log.last_index, last_term=message.term)
        original(self, as_good if message.pre else message)

    return [(RaftNode, "_answer_vote", answer)]


def no_conflict_truncation() -> Patches:
    """A follower keeps its own entries where they conflict with the leader's."""

    def take(self: Follower, message: Append) -> bool:
        log, written = self._state.log, False
        for entry in message.entries:
            if entry.index == log.last_index + 1 and not log.sealed:
                log.append(entry)
                written = True
        return written

    return [(Follower, "_take", take)]


def ack_before_majority() -> Patches:
    """A leader commits what it alone has."""

    def commit(self: Leader) -> None:
        log = self._state.log
        if self._term_start is not None and log.synced >= max(self._term_start, log.commit):
            log.commit_to(log.synced)

    return [(Leader, "commit", commit)]


def count_an_unsynced_match() -> Patches:
    """A follower acknowledges what it holds, not what is on its disk."""

    def respond(self: Follower, sequence: int, **fields: Any) -> None:
        synced, self._state.log.synced = self._state.log.synced, self._state.log.last_index
        original(self, sequence, **fields)
        self._state.log.synced = synced

    def append(self: Follower, message: Append) -> None:
        plain(self, message)
        if self._owed:
            self._answer()

    original, plain = Follower._respond, Follower.append
    return [(Follower, "_respond", respond), (Follower, "append", append)]


def let_a_lame_replica_vote() -> Patches:
    """A replica that has lost something takes part as if it had not."""

    def make(self: RaftDriver, incarnation: int, **_: bool) -> RaftNode:
        return original(self, incarnation, lame=False)

    original = RaftDriver._make_node
    return [(RaftDriver, "_make_node", make)]


def trust_a_wiped_disk() -> Patches:
    """An empty disk begins anew in the name of the old one."""
    original = Process._open

    def open_anyway(self: Process, config: Any, *, verify: bool) -> Replica:
        wiped, self.wiped = self.wiped, False
        replica = original(self, config, verify=verify)
        self.wiped = wiped
        return replica

    return [(Process, "_open", open_anyway)]


def deduplicate_at_apply() -> Patches:
    """A duplicate is appended, to be found out when it is applied."""
    return [
        (Submitted, "judge", lambda self, header: None),
        (Submitted, "store", lambda self, header, index, *, applied: None),
        (Producers, "store", lambda self, header: 0),
    ]


def commit_beyond_what_is_held() -> Patches:
    """A follower believes the leader's commit index for entries that it has not compared."""

    def commit(self: Follower, leader_commit: int) -> None:
        log = self._state.log
        log.commit_to(max(log.commit, min(leader_commit, log.last_index)))

    return [(Follower, "_commit", commit)]


def begin_a_term_without_entry() -> Patches:
    """A leader is ready at once, and names an end that it cannot know."""
    return [
        (Leader, "is_ready", property(lambda self: True)),
        (PartitionMachine, "leading", property(lambda self: True)),
        (Leader, "_refuse_if_out_of_turn", lambda self, kind: None),
        (PartitionMachine, "_open", lambda self: self._submitted or Submitted(self._state.producers)),
        (RaftPartition, "leads", _begin_without_entry),
    ]


def _begin_without_entry(self: RaftPartition, term: int) -> None:
    self.machine.lead(term)
    self.machine._submitted = Submitted(self.machine._state.producers)
    role = self.driver.node._role
    assert isinstance(role, Leader)
    role._term_start = 0


def two_leaders_of_one_term() -> Patches:
    """A candidate needs one vote less than a majority."""
    return [(Candidate, "won", property(lambda self: len(self._granted) >= max(1, self._state.quorum - 1)))]


def lose_the_loss() -> Patches:
    """Damage is cut away and not remembered: the next start knows nothing of it."""
    original = Block._recover

    def recover(self: Block, *, verify: bool, start_offset: int | None) -> None:
        original(self, verify=verify, start_offset=start_offset)
        self.loss = None

    return [(Block, "_recover", recover)]


def truncate_without_sync() -> Patches:
    """What is cut away is still on the disk behind what was written in its place, and recovery believes it.

    A truncate that was not synced may be lost, and here every one is, whatever is synced after it: of the power cuts
    in a thousand seeds only one falls between the two. And two guards are taken away, because the second hides the lack
    of the first: recovery does not compare a batch's term and time with those of the one before.
    """
    take = End.take

    def cut(self: Block, end: End) -> None:
        self._generation += 1
        self._reader.forget_places()
        self._reader.lookup(lambda sparse: sparse.truncate(end.position), self._end.position)
        self._end = end
        self._synced_position, self._synced_index = end.position, end.index

    def take_anything(self: End, batch: Header) -> None:
        self.term, self.append_time = min(self.term, batch.term), min(self.append_time, batch.append_time)
        take(self, batch)

    return [(Block, "_cut", cut), (End, "take", take_anything)]


def believe_a_former_process() -> Patches:
    """A leader counts what a follower's former process has acknowledged, though another answers in its place."""

    def meet(self: Progress, incarnation: int) -> None:
        self.incarnation = incarnation

    return [(Progress, "meet", meet)]


MUTATIONS: Final[dict[str, Callable[[], Patches]]] = {
    mutation.__name__: mutation
    for mutation in (
        skip_fsync_before_ack,
        ignore_the_own_term_rule,
        vote_twice,
        forget_the_vote_on_restart,
        no_term_check_on_append,
        accept_after_seal,
        forget_producers_on_restore,
        elect_a_shorter_log,
        skip_the_log_check_of_votes,
        skip_the_log_check_of_pre_votes,
        no_conflict_truncation,
        ack_before_majority,
        count_an_unsynced_match,
        let_a_lame_replica_vote,
        trust_a_wiped_disk,
        deduplicate_at_apply,
        commit_beyond_what_is_held,
        begin_a_term_without_entry,
        two_leaders_of_one_term,
        lose_the_loss,
        truncate_without_sync,
        believe_a_former_process,
    )
}


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break one rule for a while; none if no name is given."""
    with ExitStack() as stack:
        for owner, attribute, replacement in MUTATIONS[name]() if name else ():
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
