"""Reading a file of batches from front to back, and finding the way again after damage.

Everything that reads a log which it does not trust goes through `scan`: recovery, mending, `clymq dump`. It yields
each batch whose checksums are right and each stretch that is not a whole batch. Behind damage the next batch is looked
for at every multiple of 8 that has the magic bytes and two right checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from clymq.errors import CorruptBatch
from clymq.record.batch import Batch
from clymq.record.layout import ALIGNMENT, FORMAT_BYTES_MAX, HEADER_BYTES, MAGIC, Header
from clymq.storage.files import File

_WINDOW_BYTES: Final = 1024 * 1024
# Bytes of checksum that the search may spend per byte of file. A message can be made to look like a thousand headers of
# huge batches; a search that gave each of them a fair hearing would not end in a lifetime.
_EFFORT: Final = 8


class Found(NamedTuple):
    """A whole batch."""

    position: int
    batch: Batch


class Damage(NamedTuple):
    """[position, end) is not a whole batch. `given_up`: the search grew too long, what lies behind is unknown."""

    position: int
    end: int
    error: CorruptBatch
    given_up: bool = False


def scan(file: File, start: int, end: int) -> Iterator[Found | Damage]:
    """Read [start, end); together the results cover it without gap or overlap."""
    window = _Window(file, end)
    effort = _EFFORT * (end - start) + _WINDOW_BYTES
    position = start
    while position < end:
        try:
            batch = window.batch(position)
        except CorruptBatch as error:
            search = _Search(window, effort)
            behind = search.next_whole(position, end)
            effort = search.effort
            yield Damage(position, behind, CorruptBatch(error.field, error.problem, position=position), effort <= 0)
            position = behind
        else:
            yield Found(position, batch)
            position += batch.length


class _Window:
    """A stretch of the file in memory that moves along with the reader."""

    def __init__(self, file: File, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = memoryview(b"")

    def batch(self, position: int) -> Batch:
        """Return the batch at a position with both checksums checked, or raise `CorruptBatch`."""
        header = self.header(position)
        if position + header.length > self._end:
            raise CorruptBatch("body_length", f"truncated: {self._end - position} of {header.length} bytes")
        batch = Batch(self.bytes(position, header.length), batch_bytes_max=FORMAT_BYTES_MAX)
        batch.check_crc()
        return batch

    def header(self, position: int) -> Header:
        return Header(self.bytes(position, HEADER_BYTES), batch_bytes_max=FORMAT_BYTES_MAX)

    def bytes(self, position: int, length: int) -> memoryview:
        """Return up to `length` bytes from a position; fewer only at the end."""
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            wanted = min(max(length, _WINDOW_BYTES), self._end - position)
            self._data = memoryview(self._file.read(position, wanted))
            self._start, at = position, 0
        return self._data[at : at + length]


class _Search:
    """Looks for the next whole batch behind damage, with bounded effort."""

    def __init__(self, window: _Window, effort: int) -> None:
        self._window = window
        self.effort = effort

    def next_whole(self, position: int, end: int) -> int:
        """Return where the next whole batch begins, or `end`."""
        for candidate in self._candidates(self._beyond(position), end):
            self.effort -= HEADER_BYTES
            try:
                self.effort -= self._window.header(candidate).length
                self._window.batch(candidate)
            except CorruptBatch:
                if self.effort <= 0:
                    return end
            else:
                return candidate
        return end

    def _beyond(self, position: int) -> int:
        """Return where to begin: behind the body, if the header is whole and says where that ends."""
        try:
            return position + self._window.header(position).length
        except CorruptBatch:
            return position + ALIGNMENT

    def _candidates(self, start: int, end: int) -> Iterator[int]:
        """Yield every aligned position from `start` on that has the magic bytes."""
        while start < end:
            chunk = bytes(self._window.bytes(start, min(_WINDOW_BYTES, end - start)))
            at = chunk.find(MAGIC)
            while at >= 0:
                if at % ALIGNMENT == 0:
                    yield start + at
                at = chunk.find(MAGIC, at + 1)
            start += max(ALIGNMENT, len(chunk) - len(chunk) % ALIGNMENT)
