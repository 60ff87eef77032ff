"""Raft's promise to itself: the current term, who got this replica's vote in it, and the fence epoch.

Two slots of one disk sector each, written in turn: while one is written the other still holds the promise before. A
sector is written whole or not at all, so a slot that fails its checksum is rot, not a torn write. Then the other slot
may be older than what was promised, and `damaged` says so: a replica in doubt about its own vote must not vote.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from clymq.errors import CorruptBlock, InvalidRequest
from clymq.storage.files import Files

MAGIC: Final = b"CLYV"
VERSION: Final = 1
SLOT_BYTES: Final = 512
_SLOT: Final = struct.Struct("<4sIQQQI472s")
_CRC: Final = struct.Struct("<I")
NAME_BYTES_MAX: Final = 472
assert _SLOT.size + _CRC.size == SLOT_BYTES


class Vote(NamedTuple):
    """What must survive every crash, BEFORE any reply that depends on it is sent."""

    term: int = 0
    voted_for: str = ""
    fence_epoch: int = 0


class VoteFile:
    """The file `vote` of one block."""

    def __init__(self, files: Files, path: str, *, create: bool = False) -> None:
        """Read it; without a whole slot in an existing file raise `CorruptBlock`: the replica is lost."""
        new = not files.exists(path)
        if new and not create:
            raise CorruptBlock(path, 0, "the vote file is missing")
        self._file = files.open(path, create=create)
        self._sequence, self.vote, self.damaged = 0, Vote(), False
        if new:
            self.save(Vote())  # so that an empty file later means damage
        else:
            self._read()

    def save(self, vote: Vote) -> None:
        """Write to the slot that is not in use and sync; when this returns the promise is durable."""
        name = vote.voted_for.encode()
        if len(name) > NAME_BYTES_MAX:
            raise InvalidRequest(f"a vote for a name of {len(name)} bytes; {NAME_BYTES_MAX} are allowed")
        sequence = self._sequence + 1
        slot = _SLOT.pack(MAGIC, VERSION, sequence, vote.term, vote.fence_epoch, len(name), name)
        self._file.write(sequence % 2 * SLOT_BYTES, [slot, _CRC.pack(crc32c(slot))])
        self._file.sync()
        self._sequence, self.vote = sequence, vote

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self) -> None:
        data = self._file.read(0, 2 * SLOT_BYTES)
        slots = [data[:SLOT_BYTES], data[SLOT_BYTES:]]
        whole = [read for read in map(_read_slot, slots) if read is not None]
        if not whole:
            raise CorruptBlock(self._file.path, 0, "no slot of the vote file is whole")
        self._sequence, self.vote = max(whole)
        self.damaged = any(any(slot) and _read_slot(slot) is None for slot in slots)


def _read_slot(slot: bytes) -> tuple[int, Vote] | None:
    if len(slot) != SLOT_BYTES or crc32c(slot[: _SLOT.size]) != _CRC.unpack_from(slot, _SLOT.size)[0]:
        return None
    magic, version, sequence, term, fence_epoch, name_length, name = _SLOT.unpack_from(slot)
    if magic != MAGIC or version != VERSION:
        return None
    return sequence, Vote(term, name[:name_length].decode(), fence_epoch)
