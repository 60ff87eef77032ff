"""Raft's promise to itself: the current term, who got this replica's vote in it, the term that a seal was confirmed in;
and the fence epoch of fetch mode.

Two slots of one disk sector each, written in turn: while one is written the other still holds the promise before. A
sector is written whole or not at all, so a slot that fails its checksum is rot, not a torn write; and two slots whose
sequences do not follow each other have lost one. Then what is left may be older than what was promised, and `damaged`
says so: a replica in doubt about its own vote must not vote.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import Final, NamedTuple

from crc32c import crc32c

from clymq.errors import CorruptBlock, InvalidRequest, StorageError
from clymq.storage.files import File, Files, SyncDone
from clymq.storage.replace import replace

MAGIC: Final = b"CLYV"
VERSION: Final = 1
SLOT_BYTES: Final = 512
_SLOT: Final = struct.Struct("<4sIQQQQI464s")
_CRC: Final = struct.Struct("<I")
NAME_BYTES_MAX: Final = 464
SEQUENCE_MAX: Final = 2**63
assert _SLOT.size + _CRC.size == SLOT_BYTES


class Vote(NamedTuple):
    """What must survive every crash, BEFORE any reply that depends on it is sent."""

    term: int = 0
    voted_for: str = ""
    fence_epoch: int = 0
    seal_term: int = 0


class VoteFile:
    """The file `vote` of one block, held open only while it is written: votes are rare. Made by `open`."""

    def __init__(self, files: Files, path: str, sequence: int, vote: Vote, *, damaged: bool) -> None:
        self.vote = vote
        self.damaged = damaged
        self._files = files
        self._path = path
        self._sequence = sequence
        self._saving: tuple[int, Vote] | None = None

    @classmethod
    def open(cls, files: Files, path: str, *, create: bool = False) -> VoteFile:
        """Read the file; missing, or without a whole slot, it is `CorruptBlock`: the replica is lost.

        `create` makes one that is missing, with no vote in it; only for a replica that never promised anything.
        """
        if not files.exists(path):
            if not create:
                raise CorruptBlock(path, 0, "the vote file is missing")
            # As a whole and with its name durable: a file that could vanish would be an invitation to vote again.
            replace(files, path, [bytes(SLOT_BYTES), _slot(1, Vote())])
        with closing(files.open(path)) as file:
            data = file.read(0, file.size())
        slots = [_read_slot(data[:SLOT_BYTES]), _read_slot(data[SLOT_BYTES:])]
        whole = [slot for slot in slots if slot is not None]
        if not whole:
            raise CorruptBlock(path, 0, "no slot of the vote file is whole")
        sequence, vote = max(whole)
        follow_on = len(whole) == 2 and sequence - min(whole)[0] == 1
        first_of_all = sequence == 1 and data == bytes(SLOT_BYTES) + data[SLOT_BYTES:] and len(data) == 2 * SLOT_BYTES
        return cls(files, path, sequence, vote, damaged=not follow_on and not first_of_all)

    def save(self, vote: Vote) -> None:
        """Write to the slot that is not in use and sync; when this returns the promise is durable."""
        with closing(self._written(vote)):
            self.finish()

    def save_soon(self, vote: Vote, done: SyncDone) -> None:
        """Write to the slot that is not in use and sync off the event loop; then the promise is durable, or not."""
        file, saving = self._written(vote), self._saving

        def synced(error: StorageError | None) -> None:
            file.close()
            if self._saving is not saving:
                return  # somebody could not wait for it
            self._saving = None
            if error is None:
                self._sequence, self.vote = self._sequence + 1, vote
            done(error)

        self._files.sync_soon(file, synced)

    @property
    def is_saving(self) -> bool:
        """Whether a promise is written and not known to be durable."""
        return self._saving is not None

    def finish(self) -> None:
        """Wait until the promise that is being saved is durable; who was to hear of it does not."""
        saving, self._saving = self._saving, None
        if saving is not None:
            with closing(self._files.open(self._path)) as file:
                file.sync()
            self._sequence, self.vote = saving

    def _written(self, vote: Vote) -> File:
        """Write a promise to the slot that is not in use; return the file, to be synced."""
        assert self._saving is None, "one promise after the other"
        if len(vote.voted_for.encode()) > NAME_BYTES_MAX:
            raise InvalidRequest(f"a vote for a name of {len(vote.voted_for)} characters does not fit")
        sequence = self._sequence + 1
        file = self._files.open(self._path)
        try:
            file.write(sequence % 2 * SLOT_BYTES, [_slot(sequence, vote)])
        except StorageError:
            file.close()
            raise
        self._saving = sequence, vote
        return file


def _slot(sequence: int, vote: Vote) -> bytes:
    name = vote.voted_for.encode()
    slot = _SLOT.pack(MAGIC, VERSION, sequence, vote.term, vote.fence_epoch, vote.seal_term, len(name), name)
    return slot + _CRC.pack(crc32c(slot))


def _read_slot(slot: bytes) -> tuple[int, Vote] | None:
    if len(slot) != SLOT_BYTES or crc32c(slot[: _SLOT.size]) != _CRC.unpack_from(slot, _SLOT.size)[0]:
        return None
    magic, version, sequence, term, fence_epoch, seal_term, name_length, name = _SLOT.unpack_from(slot)
    if magic != MAGIC or version != VERSION or sequence > SEQUENCE_MAX:
        return None
    try:
        return sequence, Vote(term, name[:name_length].decode(), fence_epoch, seal_term)
    except UnicodeDecodeError:
        return None  # no name of ours, whatever its checksum says
