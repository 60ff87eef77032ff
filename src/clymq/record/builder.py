"""Building a batch: messages, columns or Arrow in, bytes out.

Three roads, all ending in Arrow columns: single messages gather in Python lists and become columns when the batch is
built; whole columns and Arrow tables go straight through with no loop in Python. They may be mixed; order is kept.
What has values only, as most batches do, is written down without asking Arrow for more than the values (`plain`).
"""

from __future__ import annotations

import array
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from clymq.config import Config
from clymq.errors import InvalidRequest, MessageTooLarge
from clymq.record import body
from clymq.record.elements import Headers, bytes_of, check_columns, header_pairs
from clymq.record.layout import (
    BATCH_BYTES_MAX,
    BODY_CRC_AT,
    CODECS,
    CRC,
    HEADER,
    HEADER_BYTES,
    HEADER_CRC_AT,
    MAGIC,
    PRODUCER_FIELDS_END,
    VERSION,
    Buffer,
    Flag,
    Kind,
    padded,
)
from clymq.record.plain import plain_values
from clymq.record.sizes import largest_message

Columns = dict[str, Any]  # name -> pa.Array
# Pieces and their length together, the length unpacked, how many messages, which columns, the first and last time.
_Body = tuple[Sequence[Buffer | pa.Buffer], int, int, int, Flag, tuple[int, int]]
# How many values there are, where each begins and the last ends, and all of them in pieces.
_Values = tuple[int, Any, "Sequence[Buffer | pa.Buffer]"]

MESSAGE_BYTES_MAX: Final = Config().message_bytes_max
PRODUCER_ID_BYTES: Final = 16
# A producer names itself in every push, and hashing a name takes longer than finding it again.
PRODUCER_NAMES_KEPT: Final = 1024
_NO_PRODUCER: Final = bytes(PRODUCER_ID_BYTES)
_OFFSET: Final = struct.Struct("<i")
# Up to here plain Python has the values side by side sooner than Arrow.
_FEW_VALUES: Final = 16
# Up to here chunks are sent as they lie; more of them are small, and joining them costs less than sending each.
_FEW_CHUNKS: Final = 16


@lru_cache(maxsize=PRODUCER_NAMES_KEPT)
def producer_id(name: str) -> bytes:
    """Return the 16 bytes that stand for a producer's name in every batch."""
    return hashlib.sha256(name.encode()).digest()[:PRODUCER_ID_BYTES]


def value_column(values: Sequence[bytes]) -> pa.Array:
    """Return values as a column, for `BatchBuilder.add_columns`; they were checked."""
    return _array(body.FIELDS["value"], values)


def check_table(table: pa.Table | pa.RecordBatch) -> None:
    """Raise `InvalidRequest` unless these are messages: the columns that there must be, of types that can be theirs."""
    names = table.schema.names
    if set(names) - set(body.FIELDS) or "value" not in names or len(set(names)) < len(names):
        raise InvalidRequest(f"columns {names}: value is required; key, timestamp and headers are allowed, once each")
    for name in names:
        _array(body.FIELDS[name], table.column(name).slice(0, 0))
    _check_no_nulls(table.column("value"))


class BatchBuilder:
    """Gathers messages and builds batches from them; after `build` it is empty and ready for the next."""

    def __init__(
        self,
        codec: str = "none",
        *,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        if codec not in CODECS:
            raise InvalidRequest(f"codec {codec!r} is unknown; one of {', '.join(CODECS)}")
        self._codec = codec
        self._batch_bytes_max = batch_bytes_max
        self._message_bytes_max = message_bytes_max
        self.clear()

    def add(
        self,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> BatchBuilder:
        """Add one message; a timestamp is in microseconds since 1970 and comes from `build` when left out."""
        size = bytes_of("value", value)
        if key is not None:
            size += bytes_of("key", key)
        if timestamp is not None:
            _check_time("timestamp", timestamp)
        pairs = header_pairs(headers) if headers else None
        if pairs:
            size += sum(len(name.encode()) + len(content or b"") for name, content in pairs)  # checked: they are bytes
        if size > self._message_bytes_max:
            self._refuse_message(size)
        at = len(self._values)
        self._values.append(value)
        if key is not None:
            _put(self._keys, at, key)
        if pairs is not None:
            _put(self._headers, at, pairs)
        if timestamp is not None:
            _put(self._timestamps, at, timestamp)
        return self

    def add_checked(self, values: Iterable[bytes]) -> BatchBuilder:
        """Add a message for each value. They are `bytes`, and none is too large: the caller has seen to that."""
        self._values += values
        return self

    def add_values(self, values: Sequence[bytes]) -> BatchBuilder:
        """Add a message for each value."""
        return self.add_columns(value=values)

    def add_columns(
        self,
        *,
        value: Sequence[bytes] | pa.Array,
        key: Sequence[bytes | None] | pa.Array | None = None,
        headers: Sequence[Headers | None] | pa.Array | None = None,
        timestamp: Sequence[int | None] | pa.Array | None = None,
    ) -> BatchBuilder:
        """Add messages given as columns of equal length, lists or Arrow arrays."""
        columns = {"key": key, "value": value, "timestamp": timestamp, "headers": headers}
        given = {name: column for name, column in columns.items() if column is not None}
        check_columns(given)
        if isinstance(headers, Sequence):
            given["headers"] = [header_pairs(each) if each else None for each in headers]
        self._add_chunks([given])
        return self

    def add_arrow(self, table: pa.Table | pa.RecordBatch) -> BatchBuilder:
        """Add a table with the columns value and, if it likes, key, timestamp and headers; no loop over messages."""
        check_table(table)
        names = table.schema.names
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        self._add_chunks([dict(zip(names, batch.columns, strict=True)) for batch in batches])
        return self

    def clear(self) -> None:
        """Forget every message that was added."""
        self._chunks: list[Columns] = []
        self._new_lists()

    def __len__(self) -> int:
        return sum(len(chunk["value"]) for chunk in self._chunks) + len(self._values)

    def build(
        self,
        *,
        producer: str | bytes,
        cmdindex: int,
        epoch: int = 0,
        sparse: bool = False,
        now: int = 0,
    ) -> bytes:
        """Return the batch. `now` is the timestamp, in microseconds, of the messages that were given none."""
        pieces = self.build_pieces(producer=producer, cmdindex=cmdindex, epoch=epoch, sparse=sparse, now=now)
        return b"".join(pieces)

    def build_pieces(
        self,
        *,
        producer: str | bytes,
        cmdindex: int,
        epoch: int = 0,
        sparse: bool = False,
        now: int = 0,
    ) -> list[Buffer]:
        """Return the batch in pieces that follow one another: for who sends them, a copy less than `build`."""
        if not 1 <= cmdindex < 2**64 or not 0 <= epoch < 2**32:
            raise InvalidRequest(f"cmdindex {cmdindex} counts from 1 and fits 64 bits, epoch {epoch} from 0 and 32")
        _check_time("now", now)
        pieces, packed_length, unpacked_length, count, flags, times = self._plain_body(now) or self._body(now)
        if sparse:
            flags |= Flag.SPARSE
        size = max(packed_length, unpacked_length)
        if size > self._batch_bytes_max:
            raise MessageTooLarge(
                f"a batch of {count} messages has {size} bytes; {self._batch_bytes_max} are allowed",
                size_bytes=size,
                limit_bytes=self._batch_bytes_max,
                hint="send fewer messages in one batch",
            )
        result = _assembled(
            pieces,
            packed_length,
            kind=Kind.DATA,
            codec=self._codec,
            flags=flags,
            count=count,
            unpacked_length=unpacked_length,
            epoch=epoch,
            producer=_producer(producer),
            cmdindex=cmdindex,
            times=times,
        )
        self.clear()
        return result

    def _plain_body(self, now: int) -> _Body | None:
        """Return the body of a batch that has values only, in one piece of memory; None for every other."""
        if self._codec != "none":
            return None
        if self._chunks or len(self._values) > _FEW_VALUES:
            self._gather()
            found = _values_alone(self._chunks)
        else:
            found = None if self._keys or self._headers or self._timestamps else _few_side_by_side(self._values)
        if found is None:
            return None
        count, offsets, data = found
        pieces, length = plain_values(count, offsets, data, now)
        return pieces, length, length, count, Flag(0), (now, now)

    def _body(self, now: int) -> _Body:
        self._gather()
        if not self._chunks:
            raise InvalidRequest("a batch has at least one message")
        columns, flags, times = _join(self._chunks, now)
        message = body.encode(columns)
        packed = body.pack(message, self._codec)
        return [packed], packed.size, message.size, columns.num_rows, flags, times

    def _new_lists(self) -> None:
        """Begin anew; of the columns that most messages do not have, only as much is kept as there is (`_put`)."""
        self._values: list[bytes] = []
        self._keys: list[bytes | None] = []
        self._headers: list[list[tuple[str, bytes | None]] | None] = []
        self._timestamps: list[int | None] = []

    def _gather(self) -> None:
        """Turn the single messages gathered so far into a chunk of columns, those without content left out."""
        if self._values:
            count = len(self._values)
            given: dict[str, list[Any]] = {
                "key": self._keys, "timestamp": self._timestamps, "headers": self._headers
            }  # fmt: skip
            columns: dict[str, list[Any]] = {"value": self._values}
            columns |= {name: column + [None] * (count - len(column)) for name, column in given.items() if column}
            self._chunks.append(_chunk(columns))
            self._new_lists()

    def _add_chunks(self, several: list[dict[str, Any]]) -> None:
        """Add all or none."""
        chunks = [chunk for chunk in map(_chunk, several) if len(chunk["value"])]
        for chunk in chunks:
            # A chunk no larger than one message may be holds none that is too large: most end here.
            if sum(column.nbytes for column in chunk.values()) > self._message_bytes_max:
                largest = largest_message(chunk)
                if largest > self._message_bytes_max:
                    self._refuse_message(largest)
        self._gather()
        self._chunks += chunks

    def _refuse_message(self, size: int) -> None:
        raise MessageTooLarge(
            f"a message has {size} bytes; {self._message_bytes_max} are allowed",
            size_bytes=size,
            limit_bytes=self._message_bytes_max,
            hint="split it, or raise message_bytes_max",
        )


def control_batch(payload: bytes, *, seal: bool = False) -> bytes:
    """Build a control batch around msgpack bytes; one with `seal` ends its block."""
    if len(payload) > BATCH_BYTES_MAX:
        raise MessageTooLarge(
            f"a control batch of {len(payload)} bytes", size_bytes=len(payload), limit_bytes=BATCH_BYTES_MAX
        )
    pieces = _assembled(
        [payload],
        len(payload),
        kind=Kind.CONTROL,
        codec="none",
        flags=Flag.SEAL if seal else Flag(0),
        count=0,
        unpacked_length=len(payload),
        epoch=0,
        producer=_NO_PRODUCER,
        cmdindex=0,
        times=(0, 0),
    )
    return b"".join(pieces)


def _assembled(
    pieces: Sequence[Buffer | pa.Buffer],
    length: int,
    *,
    kind: Kind,
    codec: str,
    flags: Flag,
    count: int,
    unpacked_length: int,
    epoch: int,
    producer: bytes,
    cmdindex: int,
    times: tuple[int, int],
) -> list[Buffer]:
    head = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        head, 0, MAGIC, VERSION, kind, CODECS.index(codec), flags, count, length, unpacked_length, epoch,
        producer, cmdindex, *times, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    padding = bytes(padded(length) - length)
    body_crc = crc32c(memoryview(head)[:PRODUCER_FIELDS_END])
    for piece in pieces:
        body_crc = crc32c(piece, body_crc)
    body_crc = crc32c(padding, body_crc)
    CRC.pack_into(head, BODY_CRC_AT, body_crc)
    CRC.pack_into(head, HEADER_CRC_AT, crc32c(memoryview(head)[:HEADER_CRC_AT]))
    return [head, *(memoryview(piece).cast("B") for piece in pieces), padding]


def _producer(producer: str | bytes) -> bytes:
    if isinstance(producer, bytes):
        if len(producer) != PRODUCER_ID_BYTES:
            raise InvalidRequest(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(producer)}")
        return producer
    try:
        name = producer.encode()
    except UnicodeEncodeError:
        name = b""
    if not name:
        raise InvalidRequest(f"producer {producer!r} is not a name")
    return producer_id(producer)


def _check_time(what: str, value: object) -> None:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"{what} {value!r} is not a 64-bit number of microseconds")


def _put(column: list[Any], at: int, item: object) -> None:
    """Put an item into a column of which only as much is kept as there is; what is missing before it is nothing."""
    if len(column) < at:
        column += [None] * (at - len(column))
    column.append(item)


def _few_side_by_side(values: list[bytes]) -> _Values | None:
    """Return a few values side by side, in one piece; None if they are not all `bytes`."""
    if not values or any(type(value) is not bytes for value in values):
        return None
    ends = array.array("i", accumulate(map(len, values), initial=0))
    return len(values), ends.tobytes(), [b"".join(values)]


def _values_alone(chunks: list[Columns]) -> _Values | None:
    """Return the same of columns of values, as they lie in Arrow's memory; None if there is anything beside them."""
    if not 0 < len(chunks) <= _FEW_CHUNKS or any(len(chunk) != 1 for chunk in chunks):
        return None
    columns = [chunk["value"] for chunk in chunks]
    if len(columns) == 1 and _is_whole(columns[0]):
        count = len(columns[0])
        _, offsets, data = columns[0].buffers()
        (end,) = _OFFSET.unpack_from(offsets, 4 * count)
        return count, offsets[: 4 * (count + 1)], [data[:end] if end else b""]
    return _side_by_side(columns)


def _is_whole(column: pa.Array) -> bool:
    """Whether a column of values begins where its memory does."""
    offsets = column.buffers()[1]
    assert offsets is not None
    return not column.offset and not _OFFSET.unpack_from(offsets)[0]


def _side_by_side(columns: list[pa.Array]) -> _Values:
    """Return columns as if they were one: only the offsets are made anew, the values stay where they are."""
    ends: list[pa.Array] = [pa.array([0], pa.int32())]
    data: list[Buffer | pa.Buffer] = []
    length = 0
    for column in columns:
        _, offsets, values = column.buffers()
        assert offsets is not None
        count = len(column)
        start, end = (_OFFSET.unpack_from(offsets, 4 * (column.offset + at))[0] for at in (0, count))
        own = pa.Array.from_buffers(pa.int32(), count, [None, offsets], offset=column.offset + 1)
        ends.append(pc.add(own, pa.scalar(length - start, pa.int32())))
        if values is not None and end > start:
            data.append(values[start:end])
        length += end - start
    return sum(map(len, columns)), pa.concat_arrays(ends).buffers()[1], data


def _chunk(columns: Mapping[str, Any]) -> Columns:
    """Bring given columns to the types of the schema, absent ones left absent."""
    arrays = {name: _array(body.FIELDS[name], column) for name, column in columns.items()}
    if len({len(column) for column in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in arrays.items())
        raise InvalidRequest(f"columns of different lengths: {lengths}")
    return arrays


def _array(field: pa.Field, column: Any) -> pa.Array:
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if not isinstance(column, pa.Array):
            column = pa.array(column, field.type)
        elif field.name == "timestamp" and pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        elif field.name == "timestamp" and pa.types.is_floating(column.type):
            raise TypeError("fractions are not converted")
        elif column.type != field.type:
            column = column.cast(field.type)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidRequest(f"column {field.name}: {error}") from None
    if isinstance(column, pa.ChunkedArray):
        raise MessageTooLarge(f"column {field.name} is over 2 GiB", size_bytes=column.nbytes, limit_bytes=2**31)
    if field.name == "value":
        _check_no_nulls(column)
    if field.name == "headers" and (column.values.null_count or column.values.field(0).null_count):
        raise InvalidRequest("column headers: a header without a key")
    result: pa.Array = column
    return result


def _check_no_nulls(column: pa.Array | pa.ChunkedArray) -> None:
    if column.null_count:
        at = pc.index(pc.is_null(column), value=True).as_py()
        raise InvalidRequest(f"value {at} is null; {column.null_count} are")


def _join(chunks: list[Columns], now: int) -> tuple[pa.RecordBatch, Flag, tuple[int, int]]:
    """Make one record batch of the chunks; return it with the flags of its columns and its first and last time."""
    flags = Flag(0)
    if any(_has_content(chunk, "key") for chunk in chunks):
        flags |= Flag.KEYS
    if any(_has_content(chunk, "headers") for chunk in chunks):
        flags |= Flag.HEADERS
    schema = body.schema_of(flags)
    arrays = [_concatenated([_column_or_default(chunk, field, now) for chunk in chunks]) for field in schema]
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
    timed = any("timestamp" in chunk for chunk in chunks)
    return columns, flags, body.time_range(columns.column("timestamp")) if timed else (now, now)


def _has_content(chunk: Columns, name: str) -> bool:
    return name in chunk and chunk[name].null_count < len(chunk[name])


def _column_or_default(chunk: Columns, field: pa.Field, now: int) -> pa.Array:
    column = chunk.get(field.name)
    rows = len(chunk["value"])
    if field.name == "timestamp":
        if column is None:
            return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(array.array("q", [now]) * rows)])
        return pc.fill_null(column, now) if column.null_count else column
    return pa.nulls(rows, field.type) if column is None else column


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
