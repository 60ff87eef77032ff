"""Finding and reading batches in a block's log, by offset, by time, by entry.

The sparse index says about where; the headers, each checked, say exactly where. Bodies are not looked at here: their
checksum is the reader's own to check. A range of committed batches is a view of the mapped file, not a copy; what is
not committed may still be cut away, and touching a map of it would then kill the process, so it is copied.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, DiskFailed
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, HEADER_BYTES, Header, whole_batches
from clymq.storage.end import End
from clymq.storage.files import File
from clymq.storage.index import Entry, SparseIndex

T = TypeVar("T")

_PLACES_MAX: Final = 64


class Reader:
    """The reading half of a `Block`, which tells it how far the log goes."""

    def __init__(self, file: Callable[[], File], index: SparseIndex, config: Config) -> None:
        self.start_offset = 0
        self.committed_position = 0
        self._file = file
        self._index = index
        self._config = config
        # Where the readers of the last ranges will go on: a consumer in step needs no search.
        self._places: OrderedDict[int, int] = OrderedDict()

    def read_at(self, position: int, bytes_max: int, limit: int) -> memoryview:
        """Return whole batches from a position on, none beyond `limit`; one at least, if there is one."""
        if position >= limit:
            return memoryview(b"")
        data = self._bytes(position, min(position + max(bytes_max, HEADER_BYTES), limit))
        try:
            last, taken = whole_batches(data)
            if not taken and data:
                # The first one alone is larger than was asked for.
                data = self._bytes(position, min(position + self._header(data, 0).length, limit))
                last, taken = whole_batches(data)
            if taken:
                self._note_place(self._header(data, last), position + taken)
        except CorruptBatch as error:
            raise self._corrupt(position + (error.position or 0), error) from None
        return data[:taken]

    def check(self, place: End, bytes_max: int) -> int:
        """Check the committed batches from a place on, bodies and all, and move the place behind them; return bytes.

        Copied, never mapped: what the disk cannot read is damage then, and not the end of the process.
        """
        room = self.committed_position - place.position
        data = self._copy_for_check(place.position, min(max(bytes_max, HEADER_BYTES), room))
        taken = 0
        try:
            while len(data) - taken >= HEADER_BYTES:
                length = self._header(data, taken).length
                if taken + length > len(data):
                    if taken or length > room:
                        break
                    data = self._copy_for_check(place.position, length)  # the first alone is larger than was asked for
                batch = Batch.parse(data, taken, batch_bytes_max=FORMAT_BYTES_MAX)
                batch.check_crc()
                place.take(batch)
                taken += length
        except CorruptBatch as error:
            raise self._corrupt(place.position, error) from None
        if room and not taken:
            raise CorruptBlock(self._file().path, place.position, "a batch goes beyond what is committed")
        return taken

    def _copy_for_check(self, position: int, length: int) -> memoryview:
        try:
            return self._copy(position, length)
        except DiskFailed as error:
            if error.operation != "read":
                raise
            raise CorruptBlock(error.path, position, str(error)) from error

    def is_boundary(self, position: int, end: int) -> bool:
        """Whether a batch begins at a position, or the log ends there."""
        start = self._start(lambda index: index.by_position(position), end)
        return next((at for at, _ in self.walk(start, end) if at >= position), end) == position

    def locate(self, offset: int, end: int) -> int:
        """Return the position of the data batch that holds an offset, which must be in the block."""
        position = self._places.get(offset)
        if position is None:
            position = self._start(lambda index: index.by_offset(offset), end)
        for at, header in self.walk(position, end):
            if header.end_offset > offset:
                return at
        raise CorruptBlock(self._file().path, position, f"offset {offset} is not where it should be")

    def locate_time(self, timestamp: int, end: int) -> int | None:
        """Return the offset of the first message that is not earlier; None if all are."""
        start = self._start(lambda index: index.by_time(timestamp), end)
        for at, header in self.walk(start, end):
            if header.count and header.last_timestamp >= timestamp:
                return self._first_in_batch(at, header, timestamp)
        return None

    def end_at(self, index: int, end: int) -> End:
        """Return where the log ended after an entry."""
        place = End(self.start_offset)
        if index == 0:
            return place
        entry = self.lookup(lambda sparse: sparse.by_index(index), end)
        if entry is not None:
            place.position, place.index, place.offset = entry.position, entry.index - 1, entry.base_offset
            place.timestamp_max = entry.timestamp_max
        for _, header in self.walk(place.position, end):
            place.take(header)
            if place.index == index:
                return place
        raise CorruptBlock(self._file().path, place.position, f"there is no entry {index}")

    def first_append_time(self) -> int:
        """Return the append time of the first batch, which must be there."""
        return next(self.walk(0, HEADER_BYTES))[1].append_time

    def walk(self, start: int, end: int) -> Iterator[tuple[int, Header]]:
        """Yield position and header of each batch in [start, end), checked."""
        position, data, data_start = start, memoryview(b""), start
        while position < end:
            if position + HEADER_BYTES > data_start + len(data):
                data_start = position
                data = self._bytes(position, min(position + self._config.index_interval_bytes, end))
            try:
                header = self._header(data, position - data_start)
            except CorruptBatch as error:
                raise self._corrupt(position, error) from None
            yield position, header
            position += header.length

    def forget_places(self) -> None:
        """Forget where readers will go on: the tail is about to be cut."""
        self._places.clear()

    def _bytes(self, start: int, end: int) -> memoryview:
        file = self._file()
        data = file.view(start, end) if end <= self.committed_position else memoryview(file.read(start, end - start))
        if len(data) < end - start:
            raise CorruptBlock(file.path, start + len(data), "the file ends in the middle of the log")
        return data

    def _copy(self, start: int, length: int) -> memoryview:
        data = memoryview(self._file().read(start, length))
        if len(data) < length:
            raise CorruptBlock(self._file().path, start + len(data), "the file ends in the middle of the log")
        return data

    def _header(self, data: memoryview, at: int) -> Header:
        return Header(data, at, batch_bytes_max=FORMAT_BYTES_MAX)

    def _corrupt(self, position: int, error: CorruptBatch) -> CorruptBlock:
        return CorruptBlock(self._file().path, position, f"{error.field}: {error.problem}")

    def _start(self, find: Callable[[SparseIndex], Entry | None], end: int) -> int:
        entry = self.lookup(find, end)
        return entry.position if entry is not None else 0

    def lookup(self, find: Callable[[SparseIndex], T], end: int) -> T:
        """Ask the index; if it turns out to be damaged, make it anew and ask again."""
        try:
            return find(self._index)
        except CorruptBlock:
            self._index.clear()
            place = End(self.start_offset)
            for at, header in self.walk(0, end):
                self._index.mark(at, header, place.timestamp_max)
                place.take(header)
            return find(self._index)

    def _first_in_batch(self, position: int, header: Header, timestamp: int) -> int:
        batch = Batch(self._bytes(position, position + header.length), batch_bytes_max=FORMAT_BYTES_MAX)
        try:
            return next(record.offset for record in batch if record.timestamp >= timestamp)
        except CorruptBatch:
            # Whoever reads it will be told; a producer's bad batch is no damage of ours.
            return header.base_offset

    def _note_place(self, last: Header, position: int) -> None:
        self._places[last.end_offset] = position
        if len(self._places) > _PLACES_MAX:
            self._places.popitem(last=False)
