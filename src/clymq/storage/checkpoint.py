"""A block's checkpoint: the state machine at an index, and where in the log to go on from there.

It also remembers what a restart must not forget: K, the highest index known to be committed; after a loss, how far the
log must reach again before the loss is over (`missing_through`); and after a failed sync, how much of the file may
still be believed (`trusted_position`). The layout is in docs/data_format.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from clymq.errors import CorruptBlock
from clymq.storage.files import Files
from clymq.storage.replace import read_whole, replace

MAGIC: Final = b"CLYC"
VERSION: Final = 1
_FIELDS: Final = struct.Struct("<4sIQQQQQqqQQQQQI")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = 112
EVERYTHING: Final = 2**64 - 1
NUMBER_MAX: Final = 2**63 - 1
TIMESTAMP_NONE: Final = -(2**63)
assert _FIELDS.size + _CRC.size == HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the log stood after entry `index`, and what the state machine was then."""

    index: int
    term: int
    position: int
    start_offset: int
    end_offset: int
    timestamp_max: int
    append_time: int
    index_entries: int
    commit_index: int
    missing_through: int
    trusted_position: int
    sealed: bool
    state: bytes

    @classmethod
    def empty(cls, start_offset: int) -> Checkpoint:
        """Return the checkpoint of a block that nothing was appended to."""
        return cls(
            index=0,
            term=0,
            position=0,
            start_offset=start_offset,
            end_offset=start_offset,
            timestamp_max=TIMESTAMP_NONE,
            append_time=0,
            index_entries=0,
            commit_index=0,
            missing_through=0,
            trusted_position=EVERYTHING,
            sealed=False,
            state=b"",
        )


def write_checkpoint(files: Files, path: str, checkpoint: Checkpoint) -> None:
    """Replace the file atomically; when this returns the new one is durable."""
    it = checkpoint
    head = _FIELDS.pack(
        MAGIC, VERSION, it.index, it.term, it.position, it.start_offset, it.end_offset, it.timestamp_max,
        it.append_time, it.index_entries, it.commit_index, it.missing_through, it.trusted_position, len(it.state),
        it.sealed,
    )  # fmt: skip
    replace(files, path, [head, _CRC.pack(crc32c(it.state, crc32c(head))), it.state])


def read_checkpoint(files: Files, path: str) -> Checkpoint | None:
    """Return the checkpoint, None if there never was one, or raise `CorruptBlock` if it was damaged."""
    data = read_whole(files, path)
    if data is None:
        return None
    if len(data) < HEADER_BYTES:
        raise CorruptBlock(path, 0, f"a checkpoint of {len(data)} bytes")
    magic, version, *fields, state_length, sealed = _FIELDS.unpack_from(data)
    state = data[HEADER_BYTES:]
    if magic != MAGIC or version != VERSION or len(state) != state_length:
        raise CorruptBlock(path, 0, "not a checkpoint of this version")
    if _CRC.unpack_from(data, _FIELDS.size)[0] != crc32c(state, crc32c(data[: _FIELDS.size])):
        raise CorruptBlock(path, 0, "the checkpoint does not match its checksum")
    checkpoint = Checkpoint(*(*fields, bool(sealed), state))
    if not _is_possible(checkpoint):
        raise CorruptBlock(path, 0, "the checkpoint says what is true of no block")
    return checkpoint


def _is_possible(it: Checkpoint) -> bool:
    """Whether a log can stand like this: what follows from these numbers must not leave what numbers can say."""
    return (
        it.index_entries <= it.index <= it.position <= NUMBER_MAX
        and it.start_offset <= it.end_offset <= NUMBER_MAX
        and max(it.commit_index, it.missing_through) <= NUMBER_MAX
    )
