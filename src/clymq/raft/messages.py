"""What replicas say to each other, and the descriptor of a log entry.

A descriptor says where an entry lies, never what is in it: the bytes stay in the file and in the driver's buffers. It
is a tuple because there is one for each batch on each replica: a frozen class takes four times as long to make.

Every message names two incarnations, random numbers that a process draws when it starts: the sender's own, and the
receiver's as far as the sender knows it (0: not at all). A message that names another incarnation of its receiver was
meant for a process that is gone, and may lean on what that process had on its disk: it is dropped.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Kind(enum.IntEnum):
    """What the core must know about an entry; everything else is `DATA` to it."""

    DATA = 0
    GENESIS = 1
    BELEADER = 2
    SEAL = 3


class Entry(NamedTuple):
    """One entry of the log: its number, its term, and [position, position + length) in the block file."""

    index: int  # type: ignore[assignment]  # tuples have a method of this name, which nobody needs here
    term: int
    position: int
    length: int
    kind: Kind = Kind.DATA


@dataclass(frozen=True, slots=True)
class Message:
    """The part that all messages share."""

    sender: str
    receiver: str
    term: int
    sender_incarnation: int
    receiver_incarnation: int


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    """A candidate asks for a vote (§5.2), or, before it disturbs anyone, whether it would get one (`pre`, §9.6 of the
    dissertation). `transfer`: the leader asked it to, so a voter need not protect that leader.
    """

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse(Message):
    """The answer. To a pre-vote that was granted, `term` is the term that the candidate would run in."""

    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class Append(Message):
    """The leader's entries behind (previous_index, previous_term), and how far it has committed (§5.3).

    `sequence` counts the leader's appends to this follower; see `AppendResponse`.
    """

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int
    sequence: int


@dataclass(frozen=True, slots=True)
class AppendResponse(Message):
    """`held`: up to there this replica's log is the leader's; `match`: up to there it is *also on its disk*.

    `rejected`: the entry before is not here; then `hint_index` and `hint_term` say where to try (§5.3, end): the first
    entry of the term that conflicts, or the end of the log with term 0. `sequence` is the highest append that this
    process has received: an answer to anything older may come from a process that is gone.
    """

    held: int
    match: int
    sequence: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The leader is alive; `commit` never reaches beyond what this follower has confirmed.

    `sleep`: nothing is going on; a follower that has it all may stop its clock, as the leader will.
    """

    commit: int
    sleep: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Message):
    """The follower is alive, knows that `commit` is committed, and is asleep or not."""

    commit: int
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """The leader hands over: campaign at once (§3.10 of the dissertation)."""
