"""The header of a batch, byte for byte, and the checks that need nothing but the header.

 at  size  field            written by   meaning
  0    4   magic            producer     the bytes "CLYB"
  4    1   version          producer     1
  5    1   kind             producer     0 data, 1 control
  6    1   codec            producer     0 none, 1 lz4 (frame), 2 zstd
  7    1   flags            producer     bit 0 keys, bit 1 headers, bit 2 SPARSE, bit 3 SEAL
  8    4   count            producer     messages in the batch; 0 in a control batch
 12    4   body_length      producer     bytes of the body as stored, without padding
 16    4   unpacked_length  producer     bytes of the body once unpacked
 20    4   epoch            producer     producer epoch
 24   16   producer         producer     first 16 bytes of SHA-256 of the producer's name
 40    8   cmdindex         producer     number of the first message (SPARSE: of the batch)
 48    8   first_timestamp  producer     earliest timestamp in the batch, us since 1970, signed
 56    8   last_timestamp   producer     latest timestamp in the batch
 64    8   base_offset      leader       offset of the first message
 72    8   term             leader       Raft term, or epoch of a fetch block
 80    8   index            leader       number of the entry in the block's log
 88    8   append_time      leader       us since 1970, signed; never decreases in a block
 96    8   commit_index     leader       highest committed index known when this was appended
104    4   body_crc         producer     crc32c of bytes [0, 64), then of the body with its padding
108    4   header_crc       both         crc32c of bytes [0, 108)

The two checksums divide the work: `body_crc` is the producer's word, which nobody can renew by accident; `header_crc`
makes a header trustworthy before its body has been read, so that a scan knows how far to go. The leader's stamp is one
span of 40 bytes and four bytes of checksum.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from crc32c import crc32c

from clymq.config import Config, GiB
from clymq.errors import CorruptBatch

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"CLYB"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sBBBBIIII16sQqqQQQqQII")
HEADER_BYTES: Final = 112
PRODUCER_FIELDS_END: Final = 64
LEADER_FIELDS: Final = struct.Struct("<QQQqQ")
BODY_CRC_AT: Final = 104
HEADER_CRC_AT: Final = 108
CRC: Final = struct.Struct("<I")
_GLANCE: Final = struct.Struct("<4s8xI")
ALIGNMENT: Final = 8
CODECS: Final = ("none", "lz4", "zstd")
BATCH_BYTES_MAX: Final = Config().batch_bytes_max
# What any setting may allow. What lies on a disk is read with this: a limit that was lowered must not make it damage.
FORMAT_BYTES_MAX: Final = GiB
assert HEADER.size == HEADER_BYTES


def padded(length: int) -> int:
    """Round a length up to the alignment of everything in a block file."""
    return (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def whole_batches(buffer: memoryview) -> tuple[int, int]:
    """Return where the last whole batch begins and ends, in bytes that begin with a batch.

    A glance at each: that the next one begins where this one's length says is enough to serve a range. Whoever takes
    the batches out of it checks both checksums of each.
    """
    glance, last, position, last_possible = _GLANCE.unpack_from, 0, 0, len(buffer) - HEADER_BYTES
    while position <= last_possible:
        magic, body_length = glance(buffer, position)
        if magic != MAGIC:
            raise CorruptBatch("magic", f"{magic!r} instead of {MAGIC!r}", position=position)
        end = position + HEADER_BYTES + (body_length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        if end > len(buffer):
            break
        last, position = position, end
    return last, position


class Kind(enum.IntEnum):
    """What a batch carries."""

    DATA = 0
    CONTROL = 1


class Flag(enum.IntFlag):
    """What to know of a batch without opening it."""

    KEYS = 1
    HEADERS = 2
    SPARSE = 4
    SEAL = 8


DATA: Final = int(Kind.DATA)
"""The kind of nearly every batch, as a number: it is compared for each of them, and an enum costs."""
# As plain numbers: the complement of a Flag has only the bits that have a name.
_SEAL: Final = int(Flag.SEAL)  # an operation on the enum itself costs microseconds
_NOT_OF_DATA: Final = ~int(Flag.KEYS | Flag.HEADERS | Flag.SPARSE)
_NOT_OF_CONTROL: Final = ~int(Flag.SEAL)


class Header:
    """The fields of one batch's header, checked. Everything that storage and consensus know of a batch."""

    version: int
    kind: int
    codec: str
    flags: int
    count: int
    body_length: int
    unpacked_length: int
    epoch: int
    producer: bytes
    cmdindex: int
    first_timestamp: int
    last_timestamp: int
    base_offset: int
    term: int
    index: int
    append_time: int
    commit_index: int
    body_crc: int
    header_crc: int
    length: int
    """Bytes of the whole batch: header, body and padding."""

    __slots__ = tuple(__annotations__)  # one object per batch on the hot path: no dict

    def __init__(self, buffer: Buffer, position: int = 0, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        """Read the header at `position`; raise `CorruptBatch` naming the first field that is wrong."""
        try:
            (
                magic, self.version, self.kind, codec, self.flags, self.count, self.body_length,
                self.unpacked_length, self.epoch, self.producer, self.cmdindex, self.first_timestamp,
                self.last_timestamp, self.base_offset, self.term, self.index, self.append_time,
                self.commit_index, self.body_crc, self.header_crc,
            ) = HEADER.unpack_from(buffer, position)  # fmt: skip
        except struct.error:
            raise CorruptBatch("header", f"{max(0, len(buffer) - position)} of {HEADER_BYTES} bytes") from None
        if magic != MAGIC:
            raise CorruptBatch("magic", f"{magic!r} instead of {MAGIC!r}")
        if self.version != VERSION:
            raise CorruptBatch("version", f"{self.version}; this program reads {VERSION}")
        if self.header_crc != crc32c(buffer[position : position + HEADER_CRC_AT]):
            raise CorruptBatch("header_crc", "does not match the header")
        if codec >= len(CODECS):
            raise CorruptBatch("codec", f"{codec} is unknown")
        self.codec = CODECS[codec]
        # What most headers are passes in one look; what does not is looked at rule by rule.
        if (
            self.kind
            or codec
            or self.body_length != self.unpacked_length
            or self.body_length > batch_bytes_max
            or not self.count
            or not self.cmdindex
            or self.flags & _NOT_OF_DATA
            or self.first_timestamp > self.last_timestamp
        ):
            self._check_lengths(batch_bytes_max)
            self._check_kind()
        self.length = HEADER_BYTES + padded(self.body_length)

    def _check_lengths(self, batch_bytes_max: int) -> None:
        if self.body_length > batch_bytes_max:
            raise CorruptBatch("body_length", f"{self.body_length} is above batch_bytes_max = {batch_bytes_max}")
        if self.unpacked_length > batch_bytes_max:
            raise CorruptBatch(
                "unpacked_length", f"{self.unpacked_length} is above batch_bytes_max = {batch_bytes_max}"
            )
        if self.codec == "none" and self.unpacked_length != self.body_length:
            raise CorruptBatch("unpacked_length", f"{self.unpacked_length}, but {self.body_length} without a codec")

    def _check_kind(self) -> None:
        if self.kind == Kind.DATA:
            if self.count == 0:
                raise CorruptBatch("count", "a data batch has at least one message")
            if self.flags & _NOT_OF_DATA:
                raise CorruptBatch("flags", f"{self.flags:#x} is not allowed in a data batch")
            if self.first_timestamp > self.last_timestamp:
                raise CorruptBatch("first_timestamp", f"{self.first_timestamp} is after {self.last_timestamp}")
            if self.cmdindex == 0:
                raise CorruptBatch("cmdindex", "counts from 1")
        elif self.kind == Kind.CONTROL:
            if self.count != 0:
                raise CorruptBatch("count", f"{self.count} in a control batch")
            if self.flags & _NOT_OF_CONTROL:
                raise CorruptBatch("flags", f"{self.flags:#x} is not allowed in a control batch")
            if self.codec != "none":
                raise CorruptBatch("codec", f"{self.codec} in a control batch")
        else:
            raise CorruptBatch("kind", f"{self.kind} is unknown")

    @property
    def end_offset(self) -> int:
        """One past the offset of the last message."""
        return self.base_offset + self.count

    @property
    def is_seal(self) -> bool:
        """Whether nothing may follow this batch in its block."""
        return self.flags & _SEAL != 0
