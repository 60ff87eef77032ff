"""The control entries of a partition's log: what is written between the messages so that every replica knows the same.

An entry is the msgpack body of a control batch: a map with `kind` and the fields below. It carries everything that its
effect depends on, because a replica that applies it reads no clock and asks nobody.

kind      fields                        written when                            effect on the state
Genesis   uid, snapshot, leases         first entry of a block                  becomes the snapshot
BeLeader  replica                       first entry of a leader's term          none; the leader may serve once applied
Seal      end, snapshot, leases,        last entry of a block                   drops `expired`, nothing can follow
          expired
Producer  producer, epoch, expired      InitProducer                            raises the epoch, drops `expired`
Prepare   group, offset                 a PTP group reads for the first time    a cursor, unless there is one
Reset     group, offset                 a PTP group is set to an offset         the cursor begins anew there
Ack       group, ranges                 leases ended by an ack                  the ranges are finished
Timeout   ended                         leases ended in any other way           one more delivery counted for each
Commit    group, offset                 a PSB group stores its position         the position, forwards or back
Dead      group, range, reason, seq,    deliveries are used up, or a Reject     finished; to be pushed to the dlq
          deliveries
Done      group, seq                    the dlq has it                          forgotten
HandOver  leases                        leadership is about to go to another    the next leader is given them

Unknown fields are refused, not skipped: a replica that ignored one would from then on differ from the others. For the
same reason `encode` refuses what `decode` would: an entry that cannot be read would stop all replicas at once.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from clymq.errors import CorruptBatch, InvalidRequest
from clymq.record import control_batch

NUMBER_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**32 - 1
REASON_CHARACTERS_MAX: Final = 256

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Epoch = Annotated[int, Meta(ge=1, le=EPOCH_MAX)]
Life = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
ProducerId = Annotated[bytes, Meta(min_length=16, max_length=16)]
GroupName = Annotated[str, Meta(min_length=1, max_length=200)]
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]


class Range(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Offsets [start, end), at least one."""

    start: Number
    end: Number

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"[{self.start}, {self.end}) is empty")


class EndedLease(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A lease that came back: expired, given back by a nack, or its consumer is gone."""

    group: GroupName
    range: Range


class _Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True, tag_field="kind"):
    """What all entries have in common: a name that tells them apart."""


class Genesis(_Entry, frozen=True):
    """The block begins with the state that the block before it ended with; the first block with none."""

    uid: Annotated[bytes, Meta(min_length=16, max_length=16)]
    snapshot: bytes = b""
    leases: tuple[bytes, ...] = ()


class BeLeader(_Entry, frozen=True):
    """This replica leads the term that stands in the batch's header."""

    replica: Annotated[str, Meta(min_length=1)]


class Seal(_Entry, frozen=True):
    """The block ends at offset `end`; `snapshot` is the state there, without the producers named in `expired`."""

    end: Number
    snapshot: bytes
    leases: tuple[bytes, ...] = ()
    expired: tuple[ProducerId, ...] = ()


class Producer(_Entry, frozen=True):
    """The producer goes on under this epoch; those in `expired` were idle for too long."""

    producer: ProducerId
    epoch: Epoch
    expired: tuple[ProducerId, ...] = ()
    life: Life = 0
    """Which life of the producer has asked for it; 0: it has not said."""


class Prepare(_Entry, frozen=True):
    """The PTP group has a cursor; a new one begins at `offset`."""

    group: GroupName
    offset: Number


class Reset(_Entry, frozen=True):
    """The PTP group's cursor stands at `offset`; what was acked or counted above it is forgotten."""

    group: GroupName
    offset: Number


class Ack(_Entry, frozen=True):
    """The PTP group has finished these ranges."""

    group: GroupName
    ranges: Annotated[tuple[Range, ...], Meta(min_length=1)]


class Timeout(_Entry, frozen=True):
    """These leases ended without an ack. Nothing ended, nothing written: the list is never empty."""

    ended: Annotated[tuple[EndedLease, ...], Meta(min_length=1)]


class Commit(_Entry, frozen=True):
    """The PSB group will go on at `offset`."""

    group: GroupName
    offset: Number


class Dead(_Entry, frozen=True):
    """The PTP group gives this range up; it goes to the dead-letter topic under the number `seq`, until `Done`."""

    group: GroupName
    range: Range
    reason: Reason
    seq: Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
    deliveries: Number = 0


class Done(_Entry, frozen=True):
    """The dead-letter topic has stored what `Dead` announced under this number."""

    group: GroupName
    seq: Number


class HandOver(_Entry, frozen=True):
    """Leadership is about to go to another replica: it goes on with these leases. Empty: it did not go after all."""

    leases: tuple[bytes, ...] = ()


Entry = Genesis | BeLeader | Seal | Producer | Prepare | Reset | Ack | Timeout | Commit | Dead | Done | HandOver

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[Entry]] = msgspec.msgpack.Decoder(Entry)
# ValueError: a string that is no UTF-8. RecursionError: nested without end.
UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)
_FIELD_IN_ERROR: Final = re.compile(r"at `\$\.([^`]+)`|field `(\w+)`")


def encode(entry: Entry) -> bytes:
    """Return the payload of an entry; one that no replica could read back is `InvalidRequest`."""
    try:
        payload = _ENCODER.encode(entry)
        _DECODER.decode(payload)
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{type(entry).__name__}: {error}") from None
    return payload


def decode(payload: bytes | memoryview) -> Entry:
    """Read a payload; `CorruptBatch` names the field that is wrong."""
    try:
        return _DECODER.decode(payload)
    except UNREADABLE as error:
        raise corrupt(error, "payload") from None


def batch_of(entry: Entry) -> bytes:
    """Return the control batch to propose for an entry; only a `Seal` is flagged as one."""
    return control_batch(encode(entry), seal=isinstance(entry, Seal))


def corrupt(error: Exception, whole: str) -> CorruptBatch:
    """Translate what msgspec found; `whole` is to blame where it names no field."""
    found = _FIELD_IN_ERROR.search(str(error))
    field = (found[1] or found[2]) if found else whole
    return CorruptBatch(field, str(error))
