"""What replicas of a block say to each other: the messages of `clymq.raft.messages`, as they travel.

All are one-way: an answer is a message of its own, and one that is lost is sent again by the protocol itself. This is
the hot path, so headers are arrays: fields are told apart by their place, and a new one can only come last.

`group` names the replicated log, one per block. The batches of an `AppendEntries` are its payload, verbatim and one
behind the other; the entries' index, term and length stand in the headers of the batches.
"""

from __future__ import annotations

from msgspec import Struct

from clymq.protocol.verbs import OneWay, verb


class _Message(OneWay, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """What all of them begin with."""

    group: str
    sender: str
    receiver: str
    term: int
    sender_incarnation: int
    receiver_incarnation: int


@verb(300)
class AppendEntries(_Message, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """The leader's entries behind (previous_index, previous_term); the payload is their batches."""

    previous_index: int
    previous_term: int
    commit: int
    sequence: int


@verb(301)
class AppendAnswer(_Message, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """How far the follower's log is the leader's, and how much of that is on its disk."""

    held: int
    match: int
    sequence: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0


@verb(302)
class RequestVote(_Message, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """A candidate asks for a vote, or whether it would get one (`pre`)."""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


@verb(303)
class VoteAnswer(_Message, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """The answer to it."""

    granted: bool
    pre: bool = False


@verb(304)
class TimeoutNow(_Message, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """The leader hands over: campaign at once."""


class Beat(Struct, frozen=True, array_like=True, gc=False):
    """A heartbeat of one group, or the answer to one; sender and receiver are those of the message around it."""

    group: str
    answer: bool
    term: int
    sender_incarnation: int
    receiver_incarnation: int
    commit: int
    sleep: bool = False
    """Of a heartbeat: go to sleep. Of an answer: asleep."""


@verb(305)
class Heartbeats(OneWay, frozen=True, array_like=True, omit_defaults=False, gc=False):
    """All that the groups of one broker have to say to another at this moment; none may be awake."""

    sender: str
    incarnation: int
    beats: tuple[Beat, ...] = ()
    hears: bool = True
    """The receiver was heard within an election timeout: the way is open in both directions."""
