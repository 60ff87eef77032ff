"""What producers and consumers ask of a broker, and what a broker tells a consumer on the consumer's own connection.

Every request that names a partition carries its `uid`: a partition that was deleted and made anew is another one.
Batches are payload, as they lie in the producer's memory and in the block.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from msgspec import Struct, structs

from clymq.protocol.verbs import Done, OneWay, Reply, Request, verb

OFFSET_UNKNOWN: Final = -1
# A feature of the handshake: a `Push` may carry several batches.
PUSH_RUNS: Final = "push-runs"
# So many at most: they are judged and stored in one turn of the broker, and others wait for it.
RUN_BATCHES_MAX: Final = 64


class OffsetRange(Struct, frozen=True, array_like=True, gc=False):
    """Offsets [start, end)."""

    start: int
    end: int


class StoredBatch(Struct, frozen=True, array_like=True, gc=False):
    """Where a batch of a producer went."""

    cmdindex: int
    count: int
    base_offset: int


class StoredAt(Struct, frozen=True, array_like=True, gc=False):
    """Where a batch that was pushed went; see `Pushed`."""

    base_offset: int
    append_time: int
    duplicate: bool


class Pushed(Reply, frozen=True):
    """The batch is stored as safely as it was asked for."""

    base_offset: int = OFFSET_UNKNOWN
    """-1: at ack 0, or a duplicate whose place is no longer known."""
    append_time: int = 0
    duplicate: bool = False
    more: tuple[StoredAt, ...] = ()
    """The same of each batch behind the first."""


@verb(100)
class Push(Request[Pushed], frozen=True):
    """Store the batch in the payload, or several. What is repeated here must be what the first batch says.

    Several are stored in their order and answered together, when the last is stored. If one is refused the request is,
    and what came before it may be stored: who sends each of them again, alone, learns which one it was.
    """

    topic: str
    partition: str
    uid: str
    producer: str
    cmdindex: int
    ack: int
    """-1 committed by a majority, 1 written by the leader, 0 answered on receipt."""
    explicit_ack: bool = False
    """The caller insisted on this ack; otherwise it is the partition's default as the client knew it."""
    batches: int = 1
    """How many lie in the payload, one behind the other; more than one only where the other side has `PUSH_RUNS`."""

    def window_key(self) -> Hashable:
        """Pushes to one partition have a window of their own, so that a slow one does not hold up the rest."""
        return self.uid


class ProducerReady(Reply, frozen=True):
    """The producer may go on under this epoch."""

    epoch: int
    next: int
    """The cmdindex that the partition expects."""
    stored: tuple[StoredBatch, ...] = ()
    """Its last batches."""


@verb(101)
class InitProducer(Request[ProducerReady], frozen=True):
    """Fence older processes of this producer and learn where it stands.

    Who asks again says which life of the producer it is and which epoch it had: if another life has come since, it is
    fenced itself (`ProducerFenced`), and nothing changes.
    """

    topic: str
    partition: str
    uid: str
    producer: str
    life: int = 0
    """A number that no other process of this name has; 0: not said."""
    epoch: int = 0
    """The last epoch that this life was given here; 0: none."""


@verb(102)
class CommitOffset(Request[Done], frozen=True):
    """Store the position of a PSB group."""

    topic: str
    partition: str
    uid: str
    group: str
    offset: int


class CommittedOffset(Reply, frozen=True):
    """The position of a PSB group."""

    offset: int | None = None
    """None: the group has none."""


@verb(103)
class FetchOffset(Request[CommittedOffset], frozen=True):
    """Ask for the position of a PSB group."""

    topic: str
    partition: str
    uid: str
    group: str


class Lease(Struct, frozen=True, omit_defaults=True, gc=False):
    """Offsets that one consumer of a PTP group has to itself for a while."""

    lease: int
    range: OffsetRange
    deliveries: int = 1
    """How many times these have been delivered, this time included."""
    expires_in_ms: int = 0


class Locator(Struct, frozen=True, omit_defaults=True, gc=False):
    """Where bytes can be had that the answering broker does not hold."""

    block: int
    broker: str
    address: str
    end: int = 0
    """Where that block ends."""


class Pulled(Reply, frozen=True):
    """Whole batches in the payload, the first of which holds the offset asked for; none when the wait was over."""

    high_watermark: int
    """The end of what readers may see."""
    log_start: int
    """The first offset that is still there."""
    block: int = 0
    next_block: int = 0
    """Where to go on when this block is sealed and read to its end; 0: here."""
    leases: tuple[Lease, ...] = ()
    locator: Locator | None = None
    # To a replica that pulls by position:
    epoch: int = 0
    position: int = 0
    """Of the payload's first byte in the block."""
    visible: int = 0
    """Followers may show their readers what is below this index."""
    sealed: bool = False
    """The payload reaches the SEAL."""


@verb(104)
class Pull(Request[Pulled], frozen=True):
    """Read batches, and wait for some if there are none: a consumer by offset, a replica by position.

    PSB: `offset`. PTP: `group` and `consumer`; the answer leases a range. Followers and mending replicas: `replica`,
    `epoch`, `incarnation`, `index`, `position`, where index and position say what they already hold.
    """

    topic: str
    partition: str
    uid: str
    block: int = 0
    """0: the one that holds the offset."""
    offset: int = 0
    bytes_min: int = 1
    bytes_max: int = 1024 * 1024
    wait_ms_max: int = 0
    messages_max: int = 0
    """PTP: how many at most to lease; 0: as many as fit."""
    mode: int = 0
    group: str = ""
    consumer: str = ""
    replica: str = ""
    epoch: int = 0
    incarnation: int = 0
    index: int = 0
    position: int = 0
    lease_ms: int = 0
    """PTP: how long to lease; 0: as the topic has it."""
    ordered: bool = False
    """PTP: the first consumer of the group that asks has the partition to itself until it goes."""

    def within(self, bytes_max: int) -> Pull:
        """Return the same, for no more bytes than this."""
        return structs.replace(self, bytes_max=min(self.bytes_max, bytes_max))


class ConsumerKnown(Reply, frozen=True):
    """The broker will say `PingPong` this often, and takes three misses for the consumer's end."""

    heartbeat_ms: int


@verb(105)
class ConInfo(Request[ConsumerKnown], frozen=True):
    """A consumer announces itself on this connection, or takes its leave."""

    consumer: str
    leaving: bool = False
    """It goes for good: its leases come back at once, its subscriptions here end."""
    unread: bool = False
    """Nobody has looked at what is still leased to it; it has settled the rest. So it does not count as delivered."""


@verb(106)
class StartToGet(Request[Done], frozen=True):
    """Begin to push a subscription's messages over this connection, as far as the credit goes."""

    topic: str
    partition: str
    uid: str
    mode: int
    consumer: str
    subscription: int
    """Chosen by the consumer; it comes back in each `Pub`."""
    group: str = "default"
    offset: int = 0
    """PSB: where to begin."""
    credit_bytes: int = 0
    messages_max: int = 0
    """PTP: how many at most to lease with one `Pub`; 0: as many as fit."""
    lease_ms: int = 0
    ordered: bool = False
    stop: bool = False
    """End the subscription of this number instead; no change if there is none."""


@verb(107)
class Ack(Request[Done], frozen=True):
    """The ranges are finished."""

    topic: str
    partition: str
    uid: str
    group: str
    consumer: str
    leases: tuple[int, ...]
    ranges: tuple[OffsetRange, ...] = ()
    """Empty: all of each lease. Named, a repetition is safe at whichever leader it arrives."""


@verb(108)
class Nack(Request[Done], frozen=True):
    """Deliver the leases again, after a delay."""

    topic: str
    partition: str
    uid: str
    group: str
    consumer: str
    leases: tuple[int, ...]
    ranges: tuple[OffsetRange, ...] = ()
    delay_ms: int = 0
    unread: bool = False
    """Nobody has looked at the messages: this delivery is not counted."""


@verb(109)
class Reject(Request[Done], frozen=True):
    """Send the leases to the dead letters at once."""

    topic: str
    partition: str
    uid: str
    group: str
    consumer: str
    leases: tuple[int, ...]
    ranges: tuple[OffsetRange, ...] = ()
    reason: str = ""


@verb(110)
class Extend(Request[Done], frozen=True):
    """Prolong the leases to this long from now."""

    topic: str
    partition: str
    uid: str
    group: str
    consumer: str
    leases: tuple[int, ...]
    lease_ms: int


@verb(111)
class Pub(OneWay, frozen=True):
    """A delivery to a consumer: whole batches in the payload, of which the leases (PTP) or the range (PSB) count."""

    subscription: int
    topic: str
    partition: str
    range: OffsetRange
    leases: tuple[Lease, ...] = ()
    high_watermark: int = 0
    block: int = 0
    next_block: int = 0
    """The range ends where this block does; the next one begins there."""
    locator: Locator | None = None
    """PTP: the broker does not hold the bytes; they are to be read there, by an ordinary `Pull`."""
    cost_bytes: int = 0
    """What this delivery takes from the credit, and `Credit` gives back once it is dealt with."""
    error: str = ""
    """A code: the subscription has ended here, and this is the last that is heard of it."""
    problem: str = ""
    hint: str = ""


@verb(112)
class Credit(OneWay, frozen=True):
    """The consumer has dealt with so many bytes of a subscription: the broker may send as many more."""

    subscription: int
    bytes: int


@verb(113)
class PingPong(Request[Done], frozen=True):
    """The heartbeat between a broker and a consumer."""

    consumer: str = ""


class OffsetFound(Reply, frozen=True):
    """Where a block's messages of a time begin."""

    offset: int = OFFSET_UNKNOWN
    """-1: all that readers may see of the block is earlier."""
    end: int = 0
    """The end of what readers may see of the block."""


@verb(114)
class FindOffset(Request[OffsetFound], frozen=True):
    """Ask for the first message of a block whose timestamp is not earlier than this.

    Any whole replica of a sealed block answers it, of the active block its leader.
    """

    topic: str
    partition: str
    uid: str
    block: int
    timestamp_us: int
