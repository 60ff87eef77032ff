"""What everyone asks of the controller: to make things, to change them, and where they are.

Sections follow the callers: whoever administers, producers, consumers, brokers.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

from clymq.protocol.hosting import ReplicaPlace
from clymq.protocol.verbs import Done, Reply, Request, verb

# --- Anyone ---


class ControllerFound(Reply, frozen=True):
    """The active zkserver."""

    name: str
    address: str
    epoch: int = 0


@verb(200)
class FindController(Request[ControllerFound], frozen=True):
    """Ask which zkserver is active; brokers answer it too."""


class ZkServerStatus(Struct, frozen=True, omit_defaults=True):
    """A zkserver, as `status` shows it."""

    name: str
    address: str
    active: bool


class BrokerStatus(Struct, frozen=True, omit_defaults=True):
    """A broker, as `status` shows it."""

    name: str
    address: str
    online: bool
    draining: bool = False
    power: int = 1
    cpu: float = 0.0
    disk_free_bytes: int = 0
    partitions: int = 0
    leaders: int = 0
    disk_io: float = 0.0


class PartitionStatus(Struct, frozen=True, omit_defaults=True):
    """A partition, as `status` and `topic describe` show it."""

    topic: str
    partition: str
    ack: int
    replicas: tuple[str, ...] = ()
    online: tuple[str, ...] = ()
    leader: str = ""
    epoch: int = 0
    blocks: int = 0
    start: int = 0
    end: int = 0
    lost_messages: int = 0
    uid: str = ""


class GroupStatus(Struct, frozen=True, omit_defaults=True):
    """A group's place in one partition."""

    topic: str
    group: str
    partition: str
    cursor: int
    end: int
    lag: int


class ClusterStatus(Reply, frozen=True):
    """Everything that `status` shows."""

    zkservers: tuple[ZkServerStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    groups: tuple[GroupStatus, ...] = ()


@verb(201)
class Status(Request[ClusterStatus], frozen=True):
    """Ask how the cluster is."""


class TopicList(Reply, frozen=True):
    """The names, sorted."""

    topics: tuple[str, ...]


@verb(202)
class ListTopics(Request[TopicList], frozen=True):
    """Ask which topics there are."""


class TopicDescription(Reply, frozen=True):
    """A topic with its settings and partitions."""

    topic: str
    id: str
    settings: dict[str, Any] = field(default_factory=dict)
    partitions: tuple[PartitionStatus, ...] = ()


@verb(203)
class DescribeTopic(Request[TopicDescription], frozen=True):
    """Ask about one topic."""

    topic: str


@verb(204)
class AlterTopic(Request[Done], frozen=True):
    """Change settings of a topic; those not named stay."""

    topic: str
    settings: dict[str, Any]


@verb(205)
class DeleteTopic(Request[Done], frozen=True):
    """Mark the topic as deleting; the rest follows by itself."""

    topic: str


class GroupList(Reply, frozen=True):
    """Groups and where they stand."""

    groups: tuple[GroupStatus, ...]


@verb(206)
class ListGroups(Request[GroupList], frozen=True):
    """Ask where groups stand; of one topic, or of all."""

    topic: str = ""
    group: str = ""


class Subscription(Struct, frozen=True, omit_defaults=True):
    """What is recorded of a subscription."""

    name: str
    topic: str
    option: int
    partition: str = ""
    """Empty: all."""
    groups: dict[str, dict[str, bool]] = field(default_factory=dict)
    """group -> consumer -> alive."""


class SubscriptionList(Reply, frozen=True):
    """Subscriptions."""

    subscriptions: tuple[Subscription, ...]


@verb(207)
class ListSubs(Request[SubscriptionList], frozen=True):
    """Ask for the subscriptions; of one topic, or of all."""

    topic: str = ""


@verb(208)
class ResetGroup(Request[GroupList], frozen=True):
    """Set a group to `earliest`, `latest`, an offset in digits, or a time in ISO 8601 (UTC where it does not say).

    The answer says where the group stands in each partition that was asked for.
    """

    topic: str
    group: str
    to: str
    partition: str = ""
    """Empty: all."""


class DrainProgress(Reply, frozen=True):
    """Blocks that moved away, and those that still need the broker."""

    moved: int
    remaining: int


@verb(209)
class DrainBroker(Request[DrainProgress], frozen=True):
    """Move everything off a broker; asked again, it tells how far that is."""

    broker: str


@verb(210)
class UndrainBroker(Request[Done], frozen=True):
    """Let a broker take blocks again."""

    broker: str


@verb(211)
class MovePartition(Request[Done], frozen=True):
    """Move a partition's active block to these brokers."""

    topic: str
    partition: str
    brokers: tuple[str, ...]


class ForceSealed(Reply, frozen=True):
    """Where the block was cut, and what may be lost."""

    end: int
    lost_messages_max: int


@verb(212)
class ForceSeal(Request[ForceSealed], frozen=True):
    """Seal a block that has no majority at what one replica holds. May lose data; recorded."""

    topic: str
    partition: str
    trust: str


# --- Producers ---


class TopicMade(Reply, frozen=True):
    """The topic is there."""

    id: str
    created: bool
    """False: it was there."""


@verb(220)
class CreateTopic(Request[TopicMade], frozen=True):
    """Make a topic; one that could not get the partitions that are to follow is refused, and nothing is stored."""

    topic: str
    settings: dict[str, Any] = field(default_factory=dict)
    partitions: int = 0
    """How many are to follow."""
    dupnum: int | None = None
    """How many replicas each of them is to have, if that is known."""


class PartitionMade(Reply, frozen=True):
    """The partition is there."""

    uid: str
    created: bool


@verb(221)
class CreatePart(Request[PartitionMade], frozen=True):
    """Make a partition, in state -2."""

    topic: str
    partition: str


class PartitionStateSet(Reply, frozen=True):
    """`changed`, `HadRaft` or `HadFetch`."""

    result: str


@verb(222)
class SetPartitionState(Request[PartitionStateSet], frozen=True):
    """Choose how a partition is replicated and when a push is acknowledged."""

    topic: str
    partition: str
    option: int
    dupnum: int | None = None


NOT_YET: Final = -1
"""The term of a leader that is named and has not been heard of: who finds that it does not lead waits until it does."""


class ProducerRoute(Reply, frozen=True):
    """Where to push."""

    uid: str
    broker: str
    address: str
    ack: int
    """The partition's, which is the default."""
    block: int = 0
    epoch: int = 0
    message_bytes_max: int = 0
    replicas: tuple[ReplicaPlace, ...] = ()
    """All who hold the active block: whom to ask who leads while no controller answers."""
    term: int = 0
    """Of this leader, to be named if it fails; `NOT_YET`: it has not said that it leads."""


@verb(223)
class ProGetBroker(Request[ProducerRoute], frozen=True):
    """Ask who leads a partition.

    Who comes from a leader that failed says which it was (`block`, `term` and `failed` as in the last answer): the
    answer then waits, for a bounded time, for one that is newer.
    """

    topic: str
    partition: str
    failed: str = ""
    """The broker that did not lead any more, or did not answer; empty: none did."""
    block: int = 0
    term: int = 0
    """0: not known; any that the broker has had so far is meant."""


# --- Consumers ---


class ReadRoute(Struct, frozen=True, omit_defaults=True):
    """Where to read one partition, or the error that stands in the way."""

    partition: str
    uid: str
    broker: str = ""
    address: str = ""
    block: int = 0
    offset: int = 0
    error: str = ""
    """The code; empty: none."""
    problem: str = ""
    replicas: tuple[ReplicaPlace, ...] = ()
    """Others that can be asked, best first."""
    end: int = -1
    """Of a sealed block, or of what an error is about; -1: the active one."""
    assigned: bool = False
    """Whether the group's assignment gives the partition to this consumer (PTP)."""
    start: int = -1
    """Of the block, or of what an error is about: the offsets that are lost, or those that there are."""


class ConsumerRoutes(Reply, frozen=True):
    """One entry for each partition of the subscription."""

    routes: tuple[ReadRoute, ...]
    generation: int = 0
    """Of the assignment (PTP)."""


@verb(230)
class ConGetBroker(Request[ConsumerRoutes], frozen=True):
    """Ask where to read a subscription."""

    topic: str
    consumer: str
    option: int
    group: str = "default"
    partition: str = ""
    """Empty: all."""
    offset: int = 0
    broker: str = ""
    """A broker asks, for bytes of a partition that it shares out: no subscription is needed."""


class Subscribed(Reply, frozen=True):
    """The subscription is recorded."""

    name: str
    created: bool


@verb(231)
class Sub(Request[Subscribed], frozen=True):
    """Subscribe a consumer."""

    topic: str
    consumer: str
    option: int
    group: str = "default"
    partition: str = ""


@verb(232)
class UnSub(Request[Done], frozen=True):
    """Undo a subscription."""

    topic: str
    consumer: str
    option: int
    group: str = "default"
    partition: str = ""


# --- Brokers ---


class Property(Struct, frozen=True, omit_defaults=True, gc=False):
    """A broker's performance figures, as of the last few seconds."""

    power: int = 1
    cpu: float = 0.0
    """Cores that its process keeps busy."""
    disk_io: float = 0.0
    """Bytes per second that it reads from disks and writes to them."""
    disk_free_bytes: int = 0


class BrokerKnown(Reply, frozen=True):
    """The broker is on the ring."""

    cluster_id: str
    draining: bool = False


@verb(240)
class BroInfo(Request[BrokerKnown], frozen=True):
    """A broker says who it is; repeated, it refreshes the figures."""

    name: str
    address: str
    disk_id: str
    incarnation: int
    cluster_id: str = ""
    host: str = ""
    rack: str = ""
    properties: Property = Property()


class BlockBefore(Struct, frozen=True, omit_defaults=True):
    """The block before an active one."""

    block: int
    seal_index: int
    seal_crc: int
    replicas: tuple[ReplicaPlace, ...]


class HostedBlock(Struct, frozen=True, omit_defaults=True):
    """A block that a broker should host."""

    topic: str
    topic_id: str
    partition: str
    uid: str
    block: int
    epoch: int
    mode: int
    start: int
    replicas: tuple[ReplicaPlace, ...]
    leader: str = ""
    leader_incarnation: int = 0
    term: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    # Of a sealed one:
    sealed: bool = False
    end: int = 0
    seal_index: int = 0
    seal_crc: int = 0
    bytes: int = 0
    # Of an active one: the SEAL that its GENESIS carries on from, and who holds it. None: it is the first.
    before: BlockBefore | None = None
    leader_session: str = ""
    """Of an active fetch block: the session of the store in which its leader leads."""
    last_append_time: int = 0
    copy: bool = False
    """Of a sealed one: a new copy, to be made from the replicas, which do not name this broker yet."""
    trusted: str = ""
    """Of a sealed one that was ended by force: the broker whose log counts. Others may hold something else."""
    down: bool = False
    """Of a sealed one: this broker's replica was reported as lost. If it is whole after all, it is to be said."""


class BrokerConfig(Reply, frozen=True):
    """What a broker should host: all of it. What it does not name may be deleted after a while."""

    blocks: tuple[HostedBlock, ...]
    addresses: dict[str, str] = field(default_factory=dict)
    """broker -> host:port."""


@verb(241)
class BroGetConfig(Request[BrokerConfig], frozen=True):
    """Ask what to host."""

    broker: str
    disk_id: str


@verb(242)
class RollBlock(Request[Done], frozen=True):
    """Ask for a move of an active block."""

    topic: str
    partition: str
    uid: str
    block: int
    epoch: int
    broker: str
    reason: str
    """size, age, restart, session."""


@verb(243)
class ReplicaDown(Request[Done], frozen=True):
    """This replica is lost, corrupt or cannot write."""

    topic: str
    partition: str
    uid: str
    block: int
    broker: str
    disk_id: str
    reason: str


@verb(244)
class UpdateDup(Request[Done], frozen=True):
    """Report how far a replica has come, for the mirrors."""

    topic: str
    partition: str
    uid: str
    block: int
    broker: str
    end: int
    leader: bool = False
    disk_id: str = ""
    whole: bool = False
    """Of a sealed block: this copy ends with its SEAL."""
    lost_messages: int = 0
    """Acknowledged by a fetch leader and cut off when it came back."""


@verb(245)
class UpdatePTPOffset(Request[Done], frozen=True):
    """Report a group's cursor, for the mirror."""

    topic: str
    partition: str
    uid: str
    group: str
    offset: int
    exact: bool = False
    """It may have gone back on purpose (a reset, a position that was stored): the mirror goes back with it."""


@verb(246)
class BecomeLeader(Request[Done], frozen=True):
    """Report that this broker leads the active block."""

    topic: str
    partition: str
    uid: str
    block: int
    broker: str
    term: int
    incarnation: int = 0


class LeaderKnown(Reply, frozen=True):
    """The active block's leader as recorded."""

    broker: str
    address: str
    block: int
    term: int = 0
    epoch: int = 0


@verb(247)
class GetNewLeader(Request[LeaderKnown], frozen=True):
    """Ask who leads the active block."""

    topic: str
    partition: str
    uid: str
