"""What must never happen, one small class each. They look at what has just changed, and at nothing twice.

A checker is told of events by the replicas (`Events`) and raises `Violation`. What is committed is known to all of them
through `Truth`: the first replica that commits an entry decides what that entry is, for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from clymq.raft.messages import Message, RequestVote, VoteResponse
from clymq.raft.node import RaftNode
from clymq.raft.state import Role
from clymq.record.batch import Batch
from clymq.record.layout import Flag, Header


class Violation(AssertionError):
    """A promise was broken."""


class Observed(Protocol):
    """What a checker may see of a replica."""

    name: str
    wiped: bool

    @property
    def node(self) -> RaftNode: ...

    @property
    def lame(self) -> bool: ...

    @property
    def term(self) -> int: ...

    def term_at(self, index: int) -> int | None: ...


@dataclass
class Truth:
    """The committed log: what each entry is, once and for all."""

    entries: list[Header] = field(default_factory=list)
    bytes: list[bytes] = field(default_factory=list)
    sealed_at: int | None = None

    def last_index(self) -> int:
        return len(self.entries)

    def commit(self, index: int, batch: Batch) -> bool:
        """Take note of a committed entry; return whether it is the first time."""
        if index <= len(self.entries):
            return False
        self.entries.append(batch)
        self.bytes.append(bytes(batch.buffer))
        if batch.is_seal:
            self.sealed_at = index
        return True


class Checker:
    """Hears of everything; each class below cares for one thing."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def role(self, replica: Observed, role: Role, term: int) -> None:
        """A replica has changed its role."""

    def appended(self, replica: Observed, batch: Batch, previous_term: int) -> None:
        """A replica has written an entry."""

    def truncated(self, replica: Observed, last: int, removed: list[tuple[int, int]]) -> None:
        """A replica has cut its log behind `last`; `removed` are index and term of what went."""

    def committed(self, replica: Observed, index: int, batch: Batch, *, first: bool) -> None:
        """A replica takes an entry for committed and applies it; `first`: nobody did before."""

    def sent(self, replica: Observed, message: Message) -> None:
        """A replica has sent a message."""

    def received(self, replica: Observed, message: Message) -> None:
        """A replica is about to take a message."""

    def acknowledged(self, offset: int, values: list[bytes], *, duplicate: bool) -> None:
        """A producer was told that its messages are stored from this offset on (-1: somewhere)."""

    def fail(self, text: str) -> None:
        """Say what was broken."""
        raise Violation(f"{type(self).__name__}: {text}")


class OneLeaderPerTerm(Checker):
    """§5.2: at most one leader can be elected in a term."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._leaders: dict[int, str] = {}

    def role(self, replica: Observed, role: Role, term: int) -> None:
        if role is Role.LEADER and self._leaders.setdefault(term, replica.name) != replica.name:
            self.fail(f"{self._leaders[term]} and {replica.name} both lead in term {term}")


class LogMatching(Checker):
    """§5.3: entries of one index and term are the same, and so is everything before them."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def appended(self, replica: Observed, batch: Batch, previous_term: int) -> None:
        key, content = (batch.index, batch.term), (previous_term, batch.header_crc)
        if self._seen.setdefault(key, content) != content:
            self.fail(f"entry {batch.index} of term {batch.term} differs on {replica.name}")


class LeaderCompleteness(Checker):
    """§5.4: what was committed in a term is in the log of the leader of every later term.

    Not of an earlier one: votes may come late, and make a leader of a term that has passed. It can commit nothing.
    """

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._committed_in: list[int] = []

    def committed(self, replica: Observed, index: int, batch: Batch, *, first: bool) -> None:
        if first:
            self._committed_in.append(replica.term)

    def role(self, replica: Observed, role: Role, term: int) -> None:
        earlier = (n for n in range(len(self._committed_in) - 1, -1, -1) if self._committed_in[n] < term)
        last = self.truth.entries[at] if role is Role.LEADER and (at := next(earlier, None)) is not None else None
        if last is not None and replica.term_at(last.index) != last.term:
            self.fail(f"{replica.name} leads term {term} without committed entry {last.index} of {last.term}")


class StateMachineSafety(Checker):
    """§5.4.3: no two replicas apply different entries at one index."""

    def committed(self, replica: Observed, index: int, batch: Batch, *, first: bool) -> None:
        known = self.truth.entries[index - 1]
        if (batch.index, batch.term, batch.header_crc) != (index, known.term, known.header_crc):
            self.fail(f"{replica.name} applies another entry {index} than was committed")


class CommittedNeverLost(Checker):
    """A replica that has a committed entry never cuts it away."""

    def truncated(self, replica: Observed, last: int, removed: list[tuple[int, int]]) -> None:
        for index, term in removed:
            if index <= self.truth.last_index() and self.truth.entries[index - 1].term == term:
                self.fail(f"{replica.name} cuts committed entry {index} of term {term}")


class AckedIsReadable(Checker):
    """What a producer was told is stored is in the committed log, at the offset that it was told."""

    def acknowledged(self, offset: int, values: list[bytes], *, duplicate: bool) -> None:
        if offset < 0:
            return
        for header, data in zip(self.truth.entries, self.truth.bytes, strict=True):
            if header.count and header.base_offset <= offset < header.end_offset:
                stored = Batch.parse(data).values()[offset - header.base_offset :][: len(values)]
                if stored != values:
                    self.fail(f"offset {offset} was acknowledged but holds something else")
                return
        self.fail(f"offset {offset} was acknowledged but is not committed")


class OffsetsDense(Checker):
    """Offsets of committed messages have no hole and no overlap."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._next = 0

    def committed(self, replica: Observed, index: int, batch: Batch, *, first: bool) -> None:
        if first:
            if batch.base_offset != self._next:
                self.fail(f"entry {index} begins at offset {batch.base_offset}, expected {self._next}")
            self._next = batch.end_offset


class NoDuplicateCommand(Checker):
    """No command of a producer is in the committed log twice, and none is skipped."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._next: dict[bytes, int] = {}

    def committed(self, replica: Observed, index: int, batch: Batch, *, first: bool) -> None:
        if first and batch.count and not batch.flags & Flag.SPARSE:
            expected = self._next.get(batch.producer, 1)
            if batch.cmdindex != expected:
                self.fail(f"entry {index} has cmdindex {batch.cmdindex} of its producer, expected {expected}")
            self._next[batch.producer] = expected + batch.count


class SealedNeverGrows(Checker):
    """Nothing is ever written behind a seal."""

    def appended(self, replica: Observed, batch: Batch, previous_term: int) -> None:
        if self.truth.sealed_at is not None and batch.index > self.truth.sealed_at:
            self.fail(f"{replica.name} writes entry {batch.index} behind the seal at {self.truth.sealed_at}")


class LameNeverVotes(Checker):
    """A replica that may have lost what it promised neither votes nor runs."""

    def sent(self, replica: Observed, message: Message) -> None:
        votes = isinstance(message, VoteResponse) and message.granted
        if replica.lame and (votes or isinstance(message, RequestVote)):
            self.fail(f"{replica.name} is lame and sends {type(message).__name__}")


class VotesSeeWholeLogs(Checker):
    """§5.4.1, and dissertation §9.6: no vote or pre-vote goes to a candidate whose log is older than the voter's.

    A candidate may ask twice in one term, for its log may have grown; the newest log that it named is what counts. Of
    the voter it is the log that it had when it was asked: until its vote is on the disk it says nothing, and the log
    may grow meanwhile. Only the log is looked at, not the term that its seal was confirmed in.
    """

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._named: dict[tuple[str, int, bool], tuple[int, int]] = {}
        self._when_asked: dict[tuple[str, str, int, bool], tuple[int, int]] = {}

    def received(self, replica: Observed, message: Message) -> None:
        if isinstance(message, RequestVote):
            asked = (replica.name, message.sender, message.term, message.pre)
            own = replica.node.log.last_term, replica.node.log.last_index
            self._when_asked[asked] = min(self._when_asked.get(asked, own), own)

    def sent(self, replica: Observed, message: Message) -> None:
        if isinstance(message, RequestVote):
            asked = (message.sender, message.term, message.pre)
            self._named[asked] = max(self._named.get(asked, (0, 0)), (message.last_term, message.last_index))
        elif isinstance(message, VoteResponse) and message.granted:
            named = self._named[message.receiver, message.term, message.pre]
            own = self._when_asked[replica.name, message.receiver, message.term, message.pre]
            if named < own:
                kind = "pre-vote" if message.pre else "vote"
                ends = "whose log ends with entry {1} of term {0}".format
                self.fail(f"{replica.name}, {ends(*own)}, gives a {kind} to {message.receiver}, {ends(*named)}")


class WipedNeverVotes(Checker):
    """A disk that was wiped is another disk: it says nothing in the name of the old one."""

    def sent(self, replica: Observed, message: Message) -> None:
        if replica.wiped:
            self.fail(f"{replica.name} has a new disk and sends {type(message).__name__}")


CHECKERS = (
    OneLeaderPerTerm,
    LogMatching,
    LeaderCompleteness,
    StateMachineSafety,
    CommittedNeverLost,
    AckedIsReadable,
    OffsetsDense,
    NoDuplicateCommand,
    SealedNeverGrows,
    LameNeverVotes,
    VotesSeeWholeLogs,
    WipedNeverVotes,
)


class Checkers:
    """All of them, told of everything."""

    def __init__(self) -> None:
        self.truth = Truth()
        self._all = [kind(self.truth) for kind in CHECKERS]

    def role(self, replica: Observed, role: Role, term: int) -> None:
        """A replica has changed its role."""
        for checker in self._all:
            checker.role(replica, role, term)

    def appended(self, replica: Observed, batch: Batch, previous_term: int) -> None:
        """A replica has written an entry."""
        for checker in self._all:
            checker.appended(replica, batch, previous_term)

    def truncated(self, replica: Observed, last: int, removed: list[tuple[int, int]]) -> None:
        """A replica has cut its log."""
        for checker in self._all:
            checker.truncated(replica, last, removed)

    def committed(self, replica: Observed, index: int, batch: Batch) -> None:
        """A replica applies an entry."""
        if index > self.truth.last_index() + 1:
            raise Violation(f"StateMachineSafety: {replica.name} applies {index}, nobody has applied the one before")
        first = self.truth.commit(index, batch)
        for checker in self._all:
            checker.committed(replica, index, batch, first=first)

    def sent(self, replica: Observed, message: Message) -> None:
        """A replica has sent a message."""
        for checker in self._all:
            checker.sent(replica, message)

    def received(self, replica: Observed, message: Message) -> None:
        """A replica is about to take a message."""
        for checker in self._all:
            checker.received(replica, message)

    def acknowledged(self, offset: int, values: list[bytes], *, duplicate: bool) -> None:
        """A producer was answered."""
        for checker in self._all:
            checker.acknowledged(offset, values, duplicate=duplicate)

    def same_bytes(self, replica: Observed, data: bytes) -> None:
        """Compare what a replica has committed with the truth, byte for byte."""
        whole = b"".join(self.truth.bytes)
        if data != whole[: len(data)]:
            raise Violation(f"PrefixesIdentical: the committed bytes of {replica.name} differ")
