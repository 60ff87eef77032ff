"""One frame on the wire, byte for byte.

 at  size  field           meaning
  0    4   magic           the bytes "CLYF"
  4    4   crc             crc32c of bytes [8, start of the payload): the rest of the prefix, the header, its padding
  8    4   length          bytes of the whole frame, this prefix and all padding included; a multiple of 8
 12    4   header_length   bytes of the header, without padding
 16    8   correlation     number of the request, given by the side that asks; 0 where nothing is answered
 24    4   payload_length  bytes of the payload, without padding
 28    2   verb            number of the verb (`verbs`); 0 where the kind alone says it all
 30    1   version         version of the protocol that both sides agreed on; 0 in HELLO and in GOODBYE before it
 31    1   kind            see `Kind`

Header and payload follow, each padded with zeros to 8 bytes, so that payloads lie aligned in a buffer that began
aligned. The header is msgpack; the payload is raw bytes that carry checksums of their own (batches), so that nobody
sums them twice. `length` can be computed from the other two lengths; that it must agree with them means that garbage
is found out by its first 32 bytes, before anything waits for what it announces.

Pure. This module knows how a frame looks, not what may follow what (`connection`) nor what is in a header (`verbs`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from clymq.errors import FrameTooLarge, ProtocolError, RemoteProtocolError

Buffer = bytes | bytearray | memoryview
"""Bytes to be sent; a memoryview must be one of bytes (`cast("B")`)."""

MAGIC: Final = b"CLYF"
PREFIX: Final = struct.Struct("<4sIIIQIHBB")
PREFIX_BYTES: Final = 32
COVERED_FROM: Final = 8
ALIGNMENT: Final = 8
# Headers become Python objects, many times their size; payloads stay what they are.
HEADER_BYTES_MAX: Final = 8 * 1024 * 1024
LENGTH_MAX: Final = 2**32 - ALIGNMENT
_MAGIC_AND_CRC: Final = struct.Struct("<4sI")
_COVERED: Final = struct.Struct("<IIQIHBB")
_ZEROS: Final = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))
# Below this a payload is copied behind its header: one more buffer to gather costs as much as copying so little.
JOIN_BYTES_MAX: Final = 2048
assert PREFIX.size == PREFIX_BYTES == _MAGIC_AND_CRC.size + _COVERED.size


class Kind(enum.IntEnum):
    """What a frame is for."""

    HELLO = 1
    """The first frame of each side; the dialer's comes first."""
    REQUEST = 2
    """Wants one REPLY or ERROR with the same correlation."""
    REPLY = 3
    ERROR = 4
    ONE_WAY = 5
    """Wants nothing back."""
    CANCEL = 6
    """The asker no longer waits for this request."""
    PING = 7
    """Wants a PONG with the same correlation."""
    PONG = 8
    GOODBYE = 9
    """The sender takes no more requests; the header is the error that says why."""


def frame(
    kind: int,
    verb: int,
    version: int,
    correlation: int,
    header: bytes,
    payload: Sequence[Buffer] = (),
) -> tuple[list[Buffer], int]:
    """Return the buffers of one frame, large payloads as they are, and how many bytes it has."""
    payload_length = 0
    for part in payload:
        payload_length += len(part)
    header_length = len(header)
    header += _ZEROS[header_length % ALIGNMENT]
    length = PREFIX_BYTES + len(header) + payload_length + -payload_length % ALIGNMENT
    if length > LENGTH_MAX or header_length > HEADER_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {length} bytes with a header of {header_length}; no format for that")
    covered = _COVERED.pack(length, header_length, correlation, payload_length, verb, version, kind)
    covered += header
    head = _MAGIC_AND_CRC.pack(MAGIC, crc32c(covered)) + covered
    if not payload_length:
        return [head], length
    if payload_length <= JOIN_BYTES_MAX:
        return [b"".join((head, *payload, _ZEROS[payload_length % ALIGNMENT]))], length
    padding = _ZEROS[payload_length % ALIGNMENT]
    return [head, *payload, padding] if padding else [head, *payload], length


def problem_of_prefix(
    magic: bytes, length: int, header_length: int, payload_length: int, *, frame_bytes_max: int
) -> ProtocolError | None:
    """Judge a prefix by itself, BEFORE anything waits for the bytes that it announces."""
    if magic != MAGIC:
        return RemoteProtocolError(f"these bytes are no frame: they begin with {magic.hex(' ')}")
    if length != frame_length(header_length, payload_length):
        return RemoteProtocolError(
            f"a frame whose lengths contradict each other: {length} in all, header {header_length}, "
            f"payload {payload_length}"
        )
    if length > frame_bytes_max:
        return FrameTooLarge(f"a frame of {length} bytes; at most {frame_bytes_max} were agreed on")
    if header_length > HEADER_BYTES_MAX:
        return FrameTooLarge(f"a header of {header_length} bytes; at most {HEADER_BYTES_MAX} are allowed")
    return None


def frame_length(header_length: int, payload_length: int) -> int:
    """Return the bytes of a frame with a header and a payload of these lengths."""
    padding = -header_length % ALIGNMENT + -payload_length % ALIGNMENT
    return PREFIX_BYTES + header_length + payload_length + padding
