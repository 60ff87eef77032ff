"""What a replica is, and what it may become.

    follower ── hears no leader ──▶ precandidate ── would win ──▶ candidate ── wins ──▶ leader
       ▲  │                             │                            │                    │
       │  └── told to take over (TimeoutNow) ───────────────────────▶│                    │
       └────────── a leader, a higher term, or no majority in sight ◀┴────────────────────┘

A *lame* replica has lost something that it may have promised. It follows and stores like any other, but gives no vote
and never campaigns, until it holds an entry that the present leader wrote in its own term and calls committed, in a
message to this very process. From then on it has everything that was ever committed, and what it once promised beyond
that was promised to leaders that are gone or have met its new incarnation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from clymq.raft.log import RaftLog
from clymq.raft.messages import Message

M = TypeVar("M", bound=Message)

TERM_MAX: Final = 2**63 - 1

# So many election timeouts longer than one whose broker is silent a replica may be silent whose broker is heard.
LENIENCE: Final = 4


class Role(enum.Enum):
    """The four things a replica can be."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: Final[dict[Role, frozenset[Role]]] = {
    Role.FOLLOWER: frozenset({Role.FOLLOWER, Role.PRECANDIDATE, Role.CANDIDATE}),
    Role.PRECANDIDATE: frozenset({Role.FOLLOWER, Role.PRECANDIDATE, Role.CANDIDATE}),
    Role.CANDIDATE: frozenset({Role.FOLLOWER, Role.PRECANDIDATE, Role.LEADER}),
    Role.LEADER: frozenset({Role.FOLLOWER}),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Times and windows; milliseconds and bytes."""

    election_ms_min: int = 300
    election_ms_max: int = 500
    heartbeat_ms: int = 90
    append_bytes_max: int = 1024 * 1024
    window_messages: int = 64
    window_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on the disk BEFORE any message that was sent after it changed.

    `seal_term` stands for an entry that cannot be written: a leader commits entries of earlier terms only by one of its
    own behind them (§5.4.2), but nothing may follow a SEAL. So each replica whose log ends with the leader's SEAL notes
    the leader's term here, as if an empty entry of that term lay behind the seal, and it counts where terms of last
    entries are compared.
    """

    term: int = 0
    voted_for: str = ""
    seal_term: int = 0


@dataclass(slots=True)
class Presence:
    """A broker, as it was last heard of, whichever of its replicas spoke; whoever listens keeps it up to date."""

    heard_at: float
    since: float
    """It has been the same process since then."""
    incarnation: int = 0
    lost: bool = False
    hears_us: bool = True
    """It says that it hears this broker; one that does not cannot speak for what its replicas think of ours."""


class State:
    """Everything a replica knows that outlives its role, and its outbox."""

    def __init__(
        self,
        me: str,
        members: Sequence[str],
        log: RaftLog,
        *,
        hard: HardState,
        incarnation: int,
        lame: bool,
        limits: Limits,
        draw_ms: Callable[[int, int], int],
        brokers: Mapping[str, Presence] | None = None,
    ) -> None:
        self.me = me
        self.members = tuple(members)
        self.peers = tuple(member for member in members if member != me)
        self.log = log
        self.hard = hard
        self.incarnation = incarnation
        self.lame = lame
        self.limits = limits
        self.draw_ms = draw_ms
        self.brokers = {} if brokers is None else brokers
        self.now = 0.0
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.held = 0
        """Up to here the log is known to be the leader's of this term; what lies behind may be from one that lost."""
        self.outbox: list[Message] = []

    @property
    def term(self) -> int:
        """The current term."""
        return self.hard.term

    @property
    def quorum(self) -> int:
        """How many make a majority."""
        return len(self.members) // 2 + 1

    @property
    def last_term(self) -> int:
        """The term that this replica's log is judged by: the last entry's, or the one that a seal was confirmed in."""
        return max(self.log.last_term, self.hard.seal_term) if self.log.sealed else self.log.last_term

    def credited(self, peer: str, heard_at: float) -> float:
        """Return when a replica that was heard from at `heard_at` is taken to have been there last.

        Its broker speaks for it, for a while, if it is the process that the replica spoke from: one with a thousand
        groups is late with what each has to say, and elections would make it later still.
        """
        broker = self.brokers.get(peer)
        # `since` is `heard_at` where a sleeper was woken by this very process.
        if broker is None or not broker.hears_us or broker.since >= heard_at:
            return heard_at
        return max(heard_at, min(broker.heard_at, heard_at + LENIENCE * self.limits.election_ms_min))

    def is_present(self, peer: str, heard_at: float) -> bool:
        """Whether the broker of a replica that was heard from at `heard_at` is the same process, and heard."""
        broker = self.brokers.get(peer)
        return (
            broker is not None and broker.since < heard_at and self.now - broker.heard_at < self.limits.election_ms_min
        )

    def enter(self, term: int, voted_for: str = "") -> None:
        """Move to a term, or vote in it: both are durable before anything is said."""
        assert term > self.term or self.hard.voted_for in {"", voted_for}, "one vote per term"
        if term > self.term:
            self.held = 0
        self.hard = HardState(term, voted_for, self.hard.seal_term)

    def confirm_seal_if_synced(self, held: int) -> None:
        """Note this term beside a SEAL that is the leader's and on the disk.

        Not before it is there: a crash in between must not leave the note beside another SEAL.
        """
        log = self.log
        if log.sealed and min(held, log.synced) >= log.last_index and self.hard.seal_term != self.term:
            self.hard = HardState(self.hard.term, self.hard.voted_for, self.term)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so has at least everything that ours has (§5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.log.last_index)

    def holds_own_term_commit(self, commit: int, term: int) -> bool:
        """Whether entry `commit` is here, on the disk, and was written, or its seal confirmed, in this term."""
        log = self.log
        if not 0 < commit <= log.synced:
            return False
        confirmed = log.sealed and commit == log.last_index and self.hard.seal_term == term
        return confirmed or log.term_at(commit) == term

    def send(
        self, kind: type[M], receiver: str, *, incarnation: int = 0, term: int | None = None, **fields: Any
    ) -> None:
        """Put a message into the outbox; it leaves after what came before it is durable."""
        self.outbox.append(
            kind(
                sender=self.me,
                receiver=receiver,
                term=self.term if term is None else term,
                sender_incarnation=self.incarnation,
                receiver_incarnation=incarnation,
                **fields,
            )
        )


def majority(values: Sequence[int], quorum: int) -> int:
    """Return the highest value that a majority has reached."""
    return sorted(values, reverse=True)[quorum - 1]
