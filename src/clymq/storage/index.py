"""The sparse index of a block: from an offset, an entry's index or a time to a position near it.

One entry about every `index_interval_bytes`; whoever looks something up walks the headers from there. Entries are
searched in the file, not loaded: a sealed block costs no memory and opening one costs no time. New entries gather in
memory and are written some at a time; those that a crash loses are found again by recovery, which reads that part of
the log anyway. The index is never trusted further than its checksums, and never synced but for a checkpoint.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from clymq.errors import CorruptBlock, StorageError
from clymq.record.layout import Header
from clymq.storage.files import File

ENTRY_BYTES: Final = 40
_ENTRY: Final = struct.Struct("<QQQq")
_CRC: Final = struct.Struct("<I4x")
_GATHERED_MAX: Final = 256
assert _ENTRY.size + _CRC.size == ENTRY_BYTES

log = logging.getLogger("clymq.storage")


class Entry(NamedTuple):
    """One mark in the log: the batch at `position`, and the latest timestamp of all batches before it."""

    base_offset: int
    index: int  # type: ignore[assignment]  # tuples have a method of this name, which nobody needs here
    position: int
    timestamp_max: int


class SparseIndex:
    """The entries of one block, the older ones in the file, the newest in memory."""

    def __init__(self, file: Callable[[], File], interval_bytes: int) -> None:
        """Begin without entries; what the file holds will be overwritten, unless `resume` takes it over."""
        self.next_mark = 0
        """The next batch at or behind this position gets an entry."""
        self._file = file
        self._interval_bytes = interval_bytes
        self._written = 0
        self._gathered: list[Entry] = []

    def __len__(self) -> int:
        return self._written + len(self._gathered)

    def resume(self, entries: int, position: int) -> bool:
        """Take over the first entries of the file, all of them before a position; False if they are not there."""
        self._written = entries
        try:
            last = self._last()
        except CorruptBlock:
            last = None
        fits = last is None if position == 0 else last is not None and last.position < position
        if not fits:
            self.clear()
            return False
        self._set_next_mark(last)
        return True

    def clear(self) -> None:
        """Forget every entry."""
        self._written, self.next_mark = 0, 0
        self._gathered.clear()

    def add(self, entry: Entry) -> None:
        """Append an entry; it reaches the file with some others."""
        self._gathered.append(entry)
        self._set_next_mark(entry)
        if len(self._gathered) % _GATHERED_MAX == 0:
            self.write_if_possible()

    def mark(self, position: int, header: Header, timestamp_max: int) -> None:
        """Add an entry for the batch at a position if one is due there."""
        if position >= self.next_mark:
            self.add(Entry(header.base_offset, header.index, position, timestamp_max))

    def write(self) -> None:
        """Write what has gathered."""
        if self._gathered:
            self._file().write(self._written * ENTRY_BYTES, [b"".join(map(_encoded, self._gathered))])
            self._written += len(self._gathered)
            self._gathered.clear()

    def write_if_possible(self) -> None:
        """Write what has gathered, or keep it: an index that cannot be written must not stop what it is for."""
        try:
            self.write()
        except StorageError as error:
            log.warning("the index stays in memory: %s", error)

    def by_offset(self, offset: int) -> Entry | None:
        """Return the last entry whose batch begins at or below an offset."""
        return self._last(lambda entry: entry.base_offset <= offset)

    def by_index(self, index: int) -> Entry | None:
        """Return the last entry at or below an entry's index."""
        return self._last(lambda entry: entry.index <= index)

    def by_time(self, timestamp: int) -> Entry | None:
        """Return the last entry that has only earlier timestamps before it."""
        return self._last(lambda entry: entry.timestamp_max < timestamp)

    def by_position(self, position: int) -> Entry | None:
        """Return the last entry whose batch begins at or before a position."""
        return self._last(lambda entry: entry.position <= position)

    def count_before(self, position: int) -> int:
        """Return how many entries lie before a position."""
        return self._count(lambda entry: entry.position < position)

    def truncate(self, position: int) -> None:
        """Forget the entries at or after a position."""
        keep = self.count_before(position)
        if keep >= self._written:
            del self._gathered[keep - self._written :]
        else:
            self._gathered.clear()
            self._written = keep
        self._set_next_mark(self._last())

    def _last(self, holds: Callable[[Entry], bool] | None = None) -> Entry | None:
        count = len(self) if holds is None else self._count(holds)
        return self._entry(count - 1) if count else None

    def _set_next_mark(self, last: Entry | None) -> None:
        self.next_mark = 0 if last is None else last.position + self._interval_bytes

    def _count(self, holds: Callable[[Entry], bool]) -> int:
        """Return how many entries `holds` is true of; it must be true of a beginning and false of the rest."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if holds(self._entry(middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _entry(self, number: int) -> Entry:
        if number >= self._written:
            return self._gathered[number - self._written]
        file = self._file()
        data = file.read(number * ENTRY_BYTES, ENTRY_BYTES)
        if len(data) < ENTRY_BYTES or data[_ENTRY.size :] != _CRC.pack(crc32c(data[: _ENTRY.size])):
            raise CorruptBlock(file.path, number * ENTRY_BYTES, "an index entry fails its checksum")
        return Entry(*_ENTRY.unpack_from(data))


def _encoded(entry: Entry) -> bytes:
    fields = _ENTRY.pack(*entry)
    return fields + _CRC.pack(crc32c(fields))
