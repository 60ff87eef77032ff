"""Which partition a message goes to, when the caller does not say.

With a key: CRC-32 (IEEE, as in zlib) of the key's bytes, modulo the number of partitions, in the order of the names by
code points ("0", "1", "10", "2"). Every client in any language must agree, so that a key stays in one partition; test
vectors are in `tests/unit/client/test_partitioning.py`. A topic that gains partitions sends most keys elsewhere.

Without one: the same partition until its batch is full or due, then the next. Batches stay large and all partitions get
their share. Columns and tables are divided without a loop over messages where there are no keys, and with one over the
distinct keys where they come as Arrow.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from clymq.record.builder import value_column

_OFFSET: Final = struct.Struct("<i")

Limit = Callable[[], int]
"""How large the next piece may be: asked for each, because it may change while those before are sent."""


def partition_of(key: bytes, partitions: Sequence[str]) -> str:
    """Return the partition of a key; the names must be sorted."""
    return partitions[zlib.crc32(key) % len(partitions)]


def by_key(keys: Sequence[bytes | None], partitions: Sequence[str]) -> dict[str | None, list[int]]:
    """Return which messages go to which partition, in order; None: those without a key."""
    names = [None if key is None else partition_of(key, partitions) for key in keys]
    chosen: dict[str | None, list[int]] = {}
    for at, name in enumerate(names):
        chosen.setdefault(name, []).append(at)
    return chosen


def by_key_column(table: pa.Table, partitions: Sequence[str]) -> dict[str | None, pa.Table]:
    """Divide a table by its key column, if it has one; the order inside each part is the table's."""
    if "key" not in table.schema.names or table.column("key").null_count == table.num_rows:
        return {None: table}
    keys = table.column("key").combine_chunks().cast(pa.binary()).dictionary_encode()
    count = len(partitions)
    places = pa.array([zlib.crc32(key) % count for key in keys.dictionary.to_pylist()], pa.int32())
    chosen = pc.fill_null(places.take(keys.indices), -1)
    parts: dict[str | None, pa.Table] = {}
    for place in pc.unique(chosen).to_pylist():
        parts[None if place < 0 else partitions[place]] = table.filter(pc.equal(chosen, place))
    return parts


def cuts(sizes: Sequence[int], limit: Limit) -> Iterator[tuple[int, int, int]]:
    """Divide messages of these sizes into runs of at most the limit's bytes, at least one each: (start, end, bytes)."""
    sums = list(accumulate(sizes))
    start = before = 0
    while start < len(sums):
        end = max(start + 1, bisect_right(sums, before + limit(), start))
        yield start, end, sums[end - 1] - before
        start, before = end, sums[end - 1]


def cut_values(values: Sequence[bytes], message_bytes: int, limit: Limit) -> Iterator[tuple[pa.Array, int]]:
    """Divide values into columns of at most the limit's bytes, at least one value each: (column, bytes).

    A value counts with `message_bytes` beside its own. How many make a column is guessed from those before; a column
    knows the sizes of its values, so that nobody has to ask each of them.
    """
    start = 0
    row_bytes: float = _first_bytes(values, message_bytes)
    while start < len(values):
        limit_bytes = limit()
        column = value_column(values[start : start + max(1, int(limit_bytes / row_bytes))])
        size = _size_to(column, len(column), message_bytes)
        if size > limit_bytes and len(column) > 1:
            fitting = bisect_right(
                range(1, len(column)), limit_bytes, key=lambda end: _size_to(column, end, message_bytes)
            )
            column = column.slice(0, max(1, fitting))
            size = _size_to(column, len(column), message_bytes)
        yield column, size
        start += len(column)
        row_bytes = size / len(column)


def size_of_few(values: Sequence[bytes], message_bytes: int, limit_bytes: int) -> int | None:
    """Return what values take that fit into `limit_bytes` together; None if they do not, or are not all `bytes`."""
    fitting = limit_bytes // _first_bytes(values, message_bytes)
    if not 0 < len(values) <= max(1, fitting) or set(map(type, values)) != {bytes}:
        return None
    size = sum(map(len, values)) + message_bytes * len(values)
    return size if size <= limit_bytes else None


def _first_bytes(values: Sequence[bytes], message_bytes: int) -> int:
    """Return what the first value takes, for a guess at the others."""
    try:
        return message_bytes + len(values[0]) if values else message_bytes
    except TypeError:
        return message_bytes  # no bytes: the column says so


def _size_to(column: pa.Array, end: int, message_bytes: int) -> int:
    """Return what the first values of a column take; it is not a slice from its middle."""
    offsets = column.buffers()[1]
    assert offsets is not None
    (size,) = _OFFSET.unpack_from(offsets, 4 * end)
    return int(size) + message_bytes * end


def cut_table(table: pa.Table, limit_bytes: int) -> Iterator[pa.Table]:
    """Divide a table into slices of at most `limit_bytes`, at least one row each: as few as rows of one size need.

    A little room is left in each, so that rows of nearly one size need not be cut again.
    """
    size = table.nbytes
    if table.num_rows > 1 and size > limit_bytes:
        parts = min(table.num_rows, max(2, -(-size * 17 // (limit_bytes * 16))))
        for start, end in pairwise(table.num_rows * at // parts for at in range(parts + 1)):
            yield from cut_table(table.slice(start, end - start), limit_bytes)
    elif table.num_rows:
        yield table


def cut_table_by(table: pa.Table, limit: Limit) -> Iterator[pa.Table]:
    """Divide a table as `cut_table` does, with a limit that may change on the way."""
    row_bytes, start = max(1.0, table.nbytes / max(1, table.num_rows)), 0
    while start < table.num_rows:
        limit_bytes = limit()
        part = table.slice(start, max(1, int(limit_bytes / row_bytes)))
        yield from cut_table(part, limit_bytes)
        start += part.num_rows


class Sticky:
    """The partition of the messages without a key: one until its batch is closed, then the next."""

    def __init__(self, chance: float) -> None:
        """Begin somewhere: not every producer at the first partition."""
        self._chance = chance
        self._turn = -1

    def current(self, partitions: Sequence[str]) -> str:
        """Return the partition whose turn it is."""
        if self._turn < 0:
            self._turn = int(self._chance * len(partitions))
        return partitions[self._turn % len(partitions)]

    def advance(self, closed: str, partitions: Sequence[str]) -> None:
        """A batch of this partition was closed: if it was the current one's, it is the next one's turn."""
        if self._turn >= 0 and partitions and partitions[self._turn % len(partitions)] == closed:
            self._turn = (self._turn + 1) % len(partitions)
