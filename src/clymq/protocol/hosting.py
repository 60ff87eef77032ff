"""What the controller asks of a broker: to make room for a block, to seal one, to look at what it hosts.

Each carries the epoch of the move that it belongs to; a broker refuses a lower one than it has seen. `Add...` and
`Close...` are nudges: what a broker should host is what `BroGetConfig` says.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from clymq.protocol.verbs import Done, Reply, Request, verb

LATEST: Final = -1
"""For an offset: the end, as the leader knows it when it writes."""


class ReplicaPlace(Struct, frozen=True, omit_defaults=True, gc=False):
    """A replica is a broker and a disk; the address is looked up when it is left out."""

    broker: str
    disk_id: str
    address: str = ""


@verb(150)
class PrepareAccept(Request[Done], frozen=True):
    """Make the folders of a block and be ready to take it."""

    topic: str
    topic_id: str
    partition: str
    uid: str
    block: int
    epoch: int
    mode: int
    """-1: Raft; 0 or 1: fetch."""
    disk_id: str
    """The disk that is meant; another one is refused."""
    start: int = 0
    """The first offset of the block, if known."""


class BlockClosed(Reply, frozen=True):
    """How the block ended. To a fence, where there is no SEAL yet: how far this replica has come."""

    start: int
    end: int
    sealed: bool = True
    seal_index: int = 0
    seal_crc: int = 0
    bytes: int = 0
    last_append_time: int = 0
    last_index: int = 0


@verb(151)
class CloseAccept(Request[BlockClosed], frozen=True):
    """Seal the active block, or fence a replica of it; a second call answers the same."""

    topic: str
    partition: str
    uid: str
    block: int
    epoch: int
    fence: bool = False
    """The leader is gone (fetch), or the majority (Raft, by force): write the epoch down, take nothing more, tell the
    end. A Raft replica that is fenced takes no part in its group any more."""
    seal: bool = False
    """After a fence, to the replica that has come furthest: append the SEAL."""
    source: str = ""
    """With a fence: the broker that holds the SEAL; mend from it."""
    source_address: str = ""
    trusted: bool = False
    """Somebody has decided that this replica's log is what counts, or with a fence: may count, whatever it has lost."""


class PartitionFound(Reply, frozen=True):
    """What the broker found."""

    state: int
    block: int
    epoch: int
    end: int
    leader: str = ""


@verb(152)
class PrepareState(Request[PartitionFound], frozen=True):
    """Check that a partition is in the state that it should be in."""

    topic: str
    partition: str
    uid: str
    state: int
    block: int
    epoch: int


class SendPrepared(Reply, frozen=True):
    """The cursor is there; the consumer may read from this offset."""

    offset: int


@verb(153)
class PrepareSend(Request[SendPrepared], frozen=True):
    """Prepare a consumer's cursor before it reads; a second call changes nothing."""

    topic: str
    partition: str
    uid: str
    block: int
    mode: int
    group: str
    consumer: str
    offset: int = 0


@verb(154)
class AddRaftPartition(Request[Done], frozen=True):
    """Host a Raft block."""

    topic: str
    topic_id: str
    partition: str
    uid: str
    block: int
    epoch: int
    replicas: tuple[ReplicaPlace, ...]
    first_leader: str = ""
    """Campaigns at once; the others wait an election timeout."""


@verb(155)
class CloseRaftPartition(Request[Done], frozen=True):
    """Stop hosting a Raft block."""

    topic: str
    partition: str
    uid: str
    block: int
    epoch: int


@verb(156)
class AddFetchPartition(Request[Done], frozen=True):
    """Host a fetch block."""

    topic: str
    topic_id: str
    partition: str
    uid: str
    block: int
    epoch: int
    mode: int
    replicas: tuple[ReplicaPlace, ...]
    leader: str
    leader_address: str = ""
    leader_incarnation: int = 0


@verb(157)
class CloseFetchPartition(Request[Done], frozen=True):
    """Stop hosting a fetch block."""

    topic: str
    partition: str
    uid: str
    block: int
    epoch: int


class GroupPositionSet(Reply, frozen=True):
    """The group goes on from this offset; `end` is where the partition ends."""

    offset: int
    end: int


@verb(158)
class SetGroupPosition(Request[GroupPositionSet], frozen=True):
    """Set a group to an offset, in the log of the active block, whose leader is asked.

    Its point-to-point cursor, if it has one, and its publish-subscribe position, if it has one. A group that has
    neither gets the one that `mode` says.
    """

    topic: str
    partition: str
    uid: str
    block: int
    group: str
    offset: int
    """`LATEST`: the end."""
    mode: int = 0
