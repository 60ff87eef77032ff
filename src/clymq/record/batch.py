"""Reading a batch: its header at once, its messages when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as count_from
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from clymq.errors import CorruptBatch, MessageTooLarge
from clymq.record import body
from clymq.record.layout import (
    BATCH_BYTES_MAX,
    CRC,
    DATA,
    HEADER_BYTES,
    HEADER_CRC_AT,
    LEADER_FIELDS,
    PRODUCER_FIELDS_END,
    Buffer,
    Header,
)
from clymq.record.sizes import largest_message


class Record(NamedTuple):
    """One message as it lies in a batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]


class Batch(Header):
    """A header and the bytes that belong to it. Fields of the header are attributes; the messages come by iteration.

    `parse` looks at the header only. Whatever gives out messages (`to_arrow`, `values`, iteration, `payload`) runs
    `check` first: nothing that fails it is ever delivered.
    """

    __slots__ = ("_columns", "buffer", "intact")

    def __init__(self, buffer: Buffer, position: int = 0, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        """Read one header and take hold of the bytes after it; see `parse`."""
        view = memoryview(buffer)
        super().__init__(view, position, batch_bytes_max=batch_bytes_max)
        self.buffer = view[position : position + self.length]
        if len(self.buffer) != self.length:
            problem = f"truncated: {len(self.buffer) - HEADER_BYTES} of {self.length - HEADER_BYTES} bytes"
            raise CorruptBatch("body_length", problem)
        self.intact = False
        self._columns: pa.RecordBatch | None = None

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> Batch:
        """Read the batch that begins at `position`; bytes after it are left alone (`length` says where it ends)."""
        return cls(buffer, position, batch_bytes_max=batch_bytes_max)

    def check(self) -> None:
        """Check what `parse` did not: the producer's checksum and, without a codec, every offset inside the body."""
        self.check_crc()
        if self.kind == DATA and self.codec == "none":
            self.to_arrow()

    def check_sizes(self, message_bytes_max: int) -> None:
        """Refuse a message above the limit, where messages can be seen: not in a packed body.

        A body no larger than one message may be holds none that is too large: most end here.
        """
        if self.unpacked_length <= message_bytes_max or self.codec != "none":
            return
        columns = self.to_arrow()
        largest = largest_message({name: columns.column(name) for name in columns.schema.names})
        if largest > message_bytes_max:
            raise MessageTooLarge(
                f"a message has {largest} bytes; {message_bytes_max} are allowed",
                size_bytes=largest,
                limit_bytes=message_bytes_max,
                hint="split it, or raise message_bytes_max of the topic",
            )

    def check_crc(self) -> None:
        """Check that the bytes are those that the producer sent; says nothing about what it put into them."""
        if self.intact:
            return
        buffer = self.buffer
        if crc32c(buffer[HEADER_BYTES:], crc32c(buffer[:PRODUCER_FIELDS_END])) != self.body_crc:
            raise self._corrupt("body_crc", "does not match the body")
        unpadded = HEADER_BYTES + self.body_length
        if unpadded != self.length and any(buffer[unpadded:]):
            raise self._corrupt("padding", "is not zero")
        self.intact = True

    def to_arrow(self) -> pa.RecordBatch:
        """Return the columns that this batch has; without a codec they are views of its own bytes, not copies."""
        if self._columns is None:
            if self.kind != DATA:
                raise self._corrupt("kind", "a control batch has no messages")
            times = self.first_timestamp, self.last_timestamp
            message = self.payload()
            try:
                if self.codec != "none":
                    message = memoryview(body.unpack(message, self.codec, self.unpacked_length))
                self._columns = body.decode(message, self.flags, self.count, times)
            except CorruptBatch as error:
                raise self._corrupt(error.field, error.problem) from None
        return self._columns

    def payload(self) -> memoryview:
        """Return the body as stored: msgpack in a control batch, an Arrow message in a data batch, maybe packed."""
        self.check_crc()
        return self.buffer[HEADER_BYTES : HEADER_BYTES + self.body_length]

    def stamp(self, *, base_offset: int, term: int, index: int, append_time: int, commit_index: int) -> None:
        """Write the leader's fields, in place: the buffer must be writable. Nothing else ever changes a batch.

        The producer's fields and the body are untouched, and so is `body_crc`, which still speaks for them.
        """
        buffer = self.buffer
        LEADER_FIELDS.pack_into(buffer, PRODUCER_FIELDS_END, base_offset, term, index, append_time, commit_index)
        self.header_crc = crc32c(buffer[:HEADER_CRC_AT])
        CRC.pack_into(buffer, HEADER_CRC_AT, self.header_crc)
        self.base_offset, self.term, self.index = base_offset, term, index
        self.append_time, self.commit_index = append_time, commit_index

    def values(self) -> list[bytes]:
        """Return only the values: the fastest way to Python bytes."""
        values: list[bytes] = self.to_arrow().column("value").to_pylist()
        return values

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Record]:
        if not self.count:
            return iter(())
        columns = self.to_arrow()
        names = columns.schema.names
        keys = columns.column("key").to_pylist() if "key" in names else repeat(None)
        headers = map(_pairs, columns.column("headers").to_pylist()) if "headers" in names else repeat(())
        timestamps = columns.column("timestamp").to_pylist()
        return map(Record, count_from(self.base_offset), timestamps, keys, self.values(), headers)

    def _corrupt(self, field: str, problem: str) -> CorruptBatch:
        return CorruptBatch(field, problem, start=self.base_offset, end=self.end_offset)


def _pairs(headers: list[dict[str, bytes | None]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers) if headers else ()  # type: ignore[misc]
