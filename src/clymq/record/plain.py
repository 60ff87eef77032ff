"""The metadata that Arrow writes for a plain batch, recognised at a glance.

Nearly every body begins with the same bytes: those in the table of `docs/data_format.md`, in which only counts and
lengths differ from batch to batch. To compare them with the table takes a fifth of the time that it takes to walk the
flatbuffer. Plain are: no headers, a key for each message or for none, no nulls, no codec of Arrow's own. What is not
plain is not wrong; it is read the long way (`body`).

The same bytes are written here for the plainest of them, values with one time for all: Arrow would take longer to be
asked than the answer takes to write down.

What is found here is what the metadata says. That the buffers lie inside the body, and the offsets inside the buffers,
is for Arrow's own reader and its full validation to say, for plain batches as for all others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from clymq.record.layout import Buffer, padded

# What lies between the numbers that differ, from the continuation mark on, by the number of columns: up to bodyLength,
# up to the number of rows, up to the buffers, and between the buffers and the nodes.
_Between = tuple[bytes, bytes, bytes, bytes]


def _between(columns: int) -> _Between:
    buffers = 3 * (columns - 1) + 2  # validity, offsets and data; a number has no offsets
    metadata_bytes = 88 + 16 * buffers + 16 * columns
    nodes_from = 24 + 16 * buffers + 4  # counted from the field that leads there
    return (
        struct.pack("<IiI4xHHHHHHixBhI", 0xFFFFFFFF, metadata_bytes, 20, 12, 22, 6, 5, 8, 12, 12, 3, 4, 24),
        struct.pack("<2xHHHHHiII", 10, 24, 12, 4, 8, 10, nodes_from, 16),
        struct.pack("<4xI", buffers),
        struct.pack("<4xI", columns),
    )


class _Plain:
    """The layout of a message with so many columns, the last of them the timestamps."""

    __slots__ = ("_body_at", "_buffers", "_columns", "_fields", "_nodes", "_rows", "_sizes")

    def __init__(self, columns: int) -> None:
        self._sizes, self._rows, self._buffers, self._nodes = _between(columns)
        other_buffers = 16 * (3 * (columns - 1) + 1)
        self._fields = struct.Struct(f"<40sq24sq8s{other_buffers}xqq8s{2 * columns}q")
        self._body_at = self._fields.size
        self._columns = columns

    def times_at(self, message: memoryview, count: int) -> int | None:
        """Return where the timestamps are said to begin, or None if this is not the layout."""
        if len(message) < self._body_at:
            return None
        found = self._fields.unpack_from(message)
        at: int = found[5]
        body_bytes = len(message) - self._body_at
        expected = (self._sizes, body_bytes, self._rows, count, self._buffers, at, 8 * count, self._nodes)
        return self._body_at + at if found == expected + (count, 0) * self._columns else None


# By the flag bits of the columns that may be left out: keys, headers.
_PLAIN: Final = {0: _Plain(2), 1: _Plain(3)}
_VALUES_BETWEEN: Final = _between(2)
_VALUES_METADATA: Final = struct.Struct("<40sq24sq8s10q8s4q")
_TIME: Final = struct.Struct("<q")
_PADDING: Final = tuple(bytes(count) for count in range(8))


def plain_values(
    count: int, offsets: Buffer, data: Sequence[Buffer | pa.Buffer], time: int
) -> tuple[list[Buffer | pa.Buffer], int]:
    """Return the message of `count` values that lie in `data`, all of one time, in pieces; and how many bytes they are.

    `offsets` are count + 1 numbers of 32 bits, from 0 to the length of all of `data`.
    """
    sizes, rows, buffers, nodes = _VALUES_BETWEEN
    offsets_bytes, data_bytes, times_bytes = 4 * (count + 1), sum(map(len, data)), 8 * count
    data_at = padded(offsets_bytes)
    times_at = data_at + padded(data_bytes)
    body_bytes = times_at + times_bytes
    metadata = _VALUES_METADATA.pack(
        sizes, body_bytes, rows, count, buffers,
        0, 0, 0, offsets_bytes, data_at, data_bytes, times_at, 0, times_at, times_bytes,
        nodes, count, 0, count, 0,
    )  # fmt: skip
    pieces: list[Buffer | pa.Buffer] = [
        metadata,
        offsets,
        _PADDING[data_at - offsets_bytes],
        *data,
        _PADDING[times_at - data_at - data_bytes],
        _TIME.pack(time) * count,
    ]
    return pieces, len(metadata) + body_bytes


def plain_times_at(message: memoryview, columns: int, count: int) -> int | None:
    """Return where the timestamps of a plain message lie, None for any other.

    `columns` are the flag bits of the columns. A plain message has `count` rows, no nulls, and exactly as many bytes
    as its metadata says.
    """
    plain = _PLAIN.get(columns)
    return None if plain is None else plain.times_at(message, count)
