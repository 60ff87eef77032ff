"""What one point-to-point group has out, as bytes that go from leader to leader in SEAL, GENESIS and HandOver.

The log does not know leases: it carries them, one record for each group, and gives them to whoever leads next. Times
are what was left when they were written down, because no two clocks agree. What cannot be read is no disaster: what
was leased is delivered again.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from clymq.errors import CorruptBatch
from clymq.replication.entries import UNREADABLE

# All of it has to fit into a SEAL, beside the largest state that a partition may have.
HANDED_OVER_BYTES_MAX: Final = 1024 * 1024


class HandedLease(Struct, array_like=True, frozen=True, gc=False):
    """One lease: what is left of its ranges and of its time. `consumer` counts in the record's names."""

    number: int
    consumer: int
    deliveries: int
    left_ms: int
    ranges: tuple[tuple[int, int], ...]


class HandedDelay(Struct, array_like=True, frozen=True, gc=False):
    """A range that was given back and is not to be delivered yet."""

    left_ms: int
    start: int
    end: int


class HandedGroup(Struct, array_like=True, frozen=True):
    """One group."""

    group: str
    consumers: tuple[str, ...] = ()
    leases: tuple[HandedLease, ...] = ()
    delays: tuple[HandedDelay, ...] = ()
    holder: str = ""
    """Of an ordered group: who has the partition."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(HandedGroup)


def encode_group(group: HandedGroup) -> bytes:
    """Return the record of a group."""
    return _ENCODER.encode(group)


def decode_group(record: bytes) -> HandedGroup:
    """Read a record."""
    try:
        return _DECODER.decode(record)
    except UNREADABLE as error:
        raise CorruptBatch("leases", str(error)) from None


def within_bounds(records: list[bytes]) -> tuple[bytes, ...]:
    """Return as many records as a SEAL has room for, the first ones; the groups of the rest begin anew."""
    kept, size = [], 0
    for record in records:
        size += len(record)
        if size > HANDED_OVER_BYTES_MAX:
            break
        kept.append(record)
    return tuple(kept)
