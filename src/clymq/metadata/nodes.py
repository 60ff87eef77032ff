"""The tree of ClyMQ: where each node lies and what its value means. Pure.

Values are JSON. A field that is not known is passed over, one that is missing takes its default, so that neighbours of
different ages can read each other. What is passed over is kept, and written again with the rest: an older zkserver that
changes a node takes nothing from a newer one. A value that cannot be read is a `DamagedNode` that names its path. Names
are percent-encoded on their way into a path and decoded on their way out.

    /ClusterId                                   ClusterId
    /ZkServers/<name>                 ephemeral  ZkServer        the version of /ZkServers counts the elections
    /Controller                       ephemeral  Controller
    /Brokers/<name>                              Broker
    /Brokers/<name>/state             ephemeral  BrokerState
    /Topics/<t>                                  Topic
    /Topics/<t>/Subscriptions/<sub>              Subscription
    /Topics/<t>/Partitions/<p>                   Partition
    /Topics/<t>/Partitions/<p>/Mirror            Mirror          nothing is decided by it
    /Topics/<t>/Partitions/<p>/NowBlock          NowBlock
    /Topics/<t>/Partitions/<p>/Block_<n>         SealedBlock
    .../<block>/<broker>                         Replica
    .../<block>/<broker>/mirror                  ReplicaMirror   nothing is decided by it
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from clymq.errors import DamagedNode
from clymq.types import Ack, name_of_node, node_name

CLUSTER_ID: Final = "/ClusterId"
ZKSERVERS: Final = "/ZkServers"
CONTROLLER: Final = "/Controller"
BROKERS: Final = "/Brokers"
TOPICS: Final = "/Topics"
_UNKNOWN: Final = "~unknown"
NO_BLOCK: Final = 0
"""The number of the active block where none was ever placed; blocks count from 1."""


class Value(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's value."""

    unknown: tuple[tuple[str, str], ...] = field(default=(), name=_UNKNOWN)
    """Fields that somebody newer has written, each with its JSON; of a node's value and of what is pending in it."""


class ClusterId(Value, frozen=True):
    """Made once; every data folder must agree with it."""

    id: str


class ZkServer(Value, frozen=True):
    """A zkserver that is there."""

    name: str
    address: str


class Controller(Value, frozen=True):
    """The active zkserver. A later one has a higher epoch."""

    name: str
    address: str
    epoch: int


class Broker(Value, frozen=True):
    """A broker that was ever there, online or not."""

    name: str
    address: str
    id: str = ""
    disk_id: str = ""
    host: str = ""
    rack: str = ""
    power: int = 1
    draining: bool = False


class BrokerState(Value, frozen=True):
    """A broker that is online: which life of it this is."""

    incarnation: int


class Topic(Value, frozen=True):
    """A topic; `id` is new at each creation."""

    name: str
    id: str
    settings: dict[str, int | str | bool] = {}
    deleting: bool = False


class Subscription(Value, frozen=True):
    """Who reads a topic: {group: {consumer: alive}}. No partition: all of them."""

    name: str
    option: int
    partition: str | None = None
    groups: dict[str, dict[str, bool]] = {}


class Place(Value, frozen=True):
    """A disk of a broker."""

    broker: str
    disk_id: str


class Pending(Value, frozen=True):
    """A move that has begun: the next block, and where it will be. `mode` is the partition's state afterwards."""

    block: int
    epoch: int
    mode: int
    dupnum: int
    replicas: tuple[Place, ...]
    reason: str = ""
    trust: str = ""
    """The broker whose replica is sealed as it is, because an operator said so."""


class Partition(Value, frozen=True):
    """A partition; `uid` is new at each creation. `epoch` is that of the last move that was finished."""

    name: str
    uid: str
    state: int = Ack.UNSET
    dupnum: int = 0
    next_block: int = 1
    epoch: int = 0
    first_offset: int = 0
    pending: Pending | None = None
    preferred: tuple[str, ...] = ()
    """Brokers that an operator chose; next blocks stay there while they can."""


class Mirror(Value, frozen=True):
    """What brokers last told: the cursor of each group, the end of each block."""

    cursors: dict[str, int] = {}
    ends: dict[int, int] = {}
    lost: dict[int, int] = {}
    """Messages of a block that were acknowledged and are not in it."""


class NowBlock(Value, frozen=True):
    """The active block. In fetch mode its leader leads for one life and one session, which stand here."""

    block: int = NO_BLOCK
    start: int = 0
    mode: int = Ack.UNSET
    leader: str = ""
    leader_incarnation: int = 0
    leader_session: str = ""
    term: int = 0
    epoch: int = 0


class SealedBlock(Value, frozen=True):
    """A block that takes nothing more."""

    block: int
    start: int
    end: int
    mode: int
    seal_index: int
    seal_crc: int
    bytes: int = 0
    last_append_time: int = 0
    copies: tuple[Place, ...] = ()
    """Where new copies are being made; each becomes a replica when it is whole."""
    lost_messages_max: int = 0
    trusted: str = ""
    """The broker whose replica an operator trusted, where there was no majority."""


class Replica(Value, frozen=True):
    """A copy of a block: `name` is dup_0, dup_1, ... in the order of placement."""

    name: str
    broker: str
    disk_id: str
    start: int = 0
    down: str = ""
    """Why it is of no use any more; empty while it is."""


class ReplicaMirror(Value, frozen=True):
    """How far a copy has come, as its broker last told."""

    end: int = 0


T = TypeVar("T", bound=Value)

_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])


def encode(value: Value) -> bytes:
    """Return a node's bytes."""
    data = msgspec.json.encode(value)
    pending = value.pending if isinstance(value, Partition) else None
    if not value.unknown and (pending is None or not pending.unknown):
        return data
    fields = {name: Raw(text.encode()) for name, text in value.unknown}
    fields |= {name: raw for name, raw in _FIELDS.decode(data).items() if name != _UNKNOWN}
    if pending is not None:
        fields["pending"] = Raw(encode(pending))
    return msgspec.json.encode(fields)


def decode(kind: type[T], path: str, data: bytes) -> T:
    """Read a node's bytes."""
    try:
        value = msgspec.json.decode(data, type=kind)
        fields = _FIELDS.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DamagedNode(path, f"not a {kind.__name__}: {error}") from None
    if isinstance(value, Partition) and value.pending is not None:
        value = changed(value, pending=decode(Pending, path, bytes(fields["pending"])))
    names = kind.__struct_encode_fields__
    unknown = tuple((name, bytes(raw).decode()) for name, raw in fields.items() if name not in names)
    return changed(value, unknown=unknown) if unknown else value


def changed(value: T, **fields: object) -> T:
    """Return a value with some of its fields changed."""
    return msgspec.structs.replace(value, **fields)


def zkserver_path(name: str) -> str:
    """Where a zkserver announces itself."""
    return f"{ZKSERVERS}/{node_name(name)}"


def broker_path(name: str) -> str:
    """Where a broker is registered."""
    return f"{BROKERS}/{node_name(name)}"


def state_path(name: str) -> str:
    """Where a broker is online."""
    return f"{broker_path(name)}/state"


def topic_path(topic: str) -> str:
    """Where a topic lies."""
    return f"{TOPICS}/{node_name(topic)}"


def subscriptions_path(topic: str) -> str:
    """Where a topic's subscriptions lie."""
    return f"{topic_path(topic)}/Subscriptions"


def subscription_path(topic: str, subscription: str) -> str:
    """Where a subscription lies."""
    return f"{subscriptions_path(topic)}/{node_name(subscription)}"


def partitions_path(topic: str) -> str:
    """Where a topic's partitions lie."""
    return f"{topic_path(topic)}/Partitions"


class PartitionPaths(NamedTuple):
    """The nodes of one partition."""

    partition: str

    @classmethod
    def of(cls, topic: str, partition: str) -> PartitionPaths:
        """Return those of a partition by its names."""
        return cls(f"{partitions_path(topic)}/{node_name(partition)}")

    @property
    def mirror(self) -> str:
        """What brokers last told."""
        return f"{self.partition}/Mirror"

    @property
    def now_block(self) -> str:
        """The active block."""
        return f"{self.partition}/NowBlock"

    def sealed_block(self, number: int) -> str:
        """A sealed block."""
        return f"{self.partition}/Block_{number}"


def replica_path(block_path: str, broker: str) -> str:
    """A copy of a block."""
    return f"{block_path}/{node_name(broker)}"


def replica_mirror_path(block_path: str, broker: str) -> str:
    """How far it has come."""
    return f"{replica_path(block_path, broker)}/mirror"


def block_number(node: str) -> int | None:
    """Return the number of a sealed block by the name of its node; None for other nodes of a partition."""
    prefix, _, digits = node.partition("Block_")
    return int(digits) if not prefix and digits.isascii() and digits.isdigit() else None


def decoded_name(path: str, node: str) -> str:
    """Return the name that a node was made for."""
    try:
        return name_of_node(node)
    except UnicodeDecodeError as error:
        raise DamagedNode(f"{path}/{node}", f"its name is no UTF-8: {error}") from None
