"""What is in a data batch: a single record batch in Arrow's IPC format, whose schema everybody knows already.

The schema is fixed by the version in the header; columns that are empty in the whole batch are left out, and the
header's flags say which are there. The reader of Arrow is handed nothing that it could be hurt by: before it runs,
`_check_metadata` makes sure that the message is a record batch of the size that was promised and that it does not ask
for Arrow's own buffer compression (whose reader allocates whatever it is told); after it, Arrow's full validation
checks every offset. Whole messages are compressed instead, and unpacked into no more than the length in the header.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from clymq.errors import CorruptBatch
from clymq.record.layout import ALIGNMENT, Buffer, Flag
from clymq.record.plain import plain_times_at

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.binary())]))
_KEY: Final = pa.field("key", pa.binary())
_VALUE: Final = pa.field("value", pa.binary(), nullable=False)
_TIMESTAMP: Final = pa.field("timestamp", pa.int64(), nullable=False)
_HEADERS: Final = pa.field("headers", HEADERS_TYPE)

# By the two flag bits of the columns that may be left out.
_SCHEMAS: Final = (
    pa.schema([_VALUE, _TIMESTAMP]),
    pa.schema([_KEY, _VALUE, _TIMESTAMP]),
    pa.schema([_VALUE, _TIMESTAMP, _HEADERS]),
    pa.schema([_KEY, _VALUE, _TIMESTAMP, _HEADERS]),
)
FULL_SCHEMA: Final = _SCHEMAS[3]
FIELDS: Final = {field.name: field for field in FULL_SCHEMA}
_COLUMN_FLAGS: Final = int(Flag.KEYS | Flag.HEADERS)
_LZ4_BLOCKS_64_KIB: Final = 0x40  # in the frame's sixth byte
_FEW: Final = 64  # up to here plain Python is faster than a call into Arrow's compute functions


def schema_of(flags: int) -> pa.Schema:
    """Return the schema of a body whose batch has these flags."""
    return _SCHEMAS[flags & _COLUMN_FLAGS]


def encode(columns: pa.RecordBatch) -> pa.Buffer:
    """Write one IPC message; its length is a multiple of the alignment."""
    return columns.serialize()


def pack(message: pa.Buffer, codec: str) -> pa.Buffer:
    """Compress a whole message."""
    return message if codec == "none" else pa.Codec(codec).compress(message)


def unpack(packed: Buffer, codec: str, unpacked_length: int) -> pa.Buffer:
    """Decompress into exactly `unpacked_length` bytes, never more; anything else is `CorruptBatch`."""
    try:
        if codec == "none":
            return pa.py_buffer(packed)
        if codec == "zstd":
            # In one step: a stream would allocate the window that the frame asks for. Arrow fails on any other length.
            return pa.Codec(codec).decompress(packed, unpacked_length)
        # As a stream: in one step Arrow's lz4 leaves what the frame did not fill uninitialised, and says nothing. The
        # frame says how large its blocks are, and the reader allocates for them: small ones only.
        if len(packed) > 5 and packed[5] & 0x70 > _LZ4_BLOCKS_64_KIB:
            raise CorruptBatch("body", "lz4 blocks larger than 64 KiB")
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec) as stream:
            message = stream.read_buffer(unpacked_length)
            if message.size == unpacked_length and not stream.read(1):
                return message
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatch("body", f"{codec}: {error}") from None
    raise CorruptBatch("unpacked_length", f"the body does not unpack to {unpacked_length} bytes")


def decode(message: memoryview, flags: int, count: int, times: tuple[int, int]) -> pa.RecordBatch:
    """Read a message without copying, and prove that every byte it points at is inside it.

    `times` are the earliest and the latest timestamp as the batch's header has them.
    """
    times_at = plain_times_at(message, flags & _COLUMN_FLAGS, count)
    if times_at is None:
        _check_metadata(message, count)
    try:
        columns = pa.ipc.read_record_batch(pa.py_buffer(message), schema_of(flags))
        columns.validate(full=True)
    except (OSError, ValueError, KeyError, IndexError, TypeError, pa.ArrowException) as error:
        raise CorruptBatch("body", f"Arrow: {error}") from None
    if times_at is None:
        if columns.num_rows != count:
            raise CorruptBatch("count", f"{count} in the header, {columns.num_rows} rows in the body")
        _check_nulls(columns)
    _check_times(columns, message, count, times_at, times)
    return columns


def time_range(timestamps: pa.Array) -> tuple[int, int]:
    """Return the earliest and latest of a column that is not empty, has no nulls, and was validated."""
    buffer = timestamps.buffers()[1]
    assert buffer is not None
    start, end = 8 * timestamps.offset, 8 * (timestamps.offset + len(timestamps))
    times = memoryview(buffer)[start:end].cast("b").cast("q")  # the buffer may be longer, and not by whole numbers
    if times[0] == times[-1] and bytes(times) == bytes(times[:1]) * len(times):
        return times[0], times[0]  # all at one time, as most batches are: cheaper to see than to search
    if len(times) <= _FEW:
        return min(times), max(times)
    bounds = pc.min_max(timestamps)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _check_times(
    columns: pa.RecordBatch, message: memoryview, count: int, times_at: int | None, times: tuple[int, int]
) -> None:
    """Compare the column with the header. All at one time, as most batches are, is cheaper to see than to search."""
    first, last = times
    if (
        times_at is not None
        and first == last
        and bytes(message[times_at : times_at + 8 * count]) == _I64.pack(first) * count
    ):
        return
    earliest, latest = time_range(columns.column("timestamp"))
    if first != earliest:
        raise CorruptBatch("first_timestamp", f"{first}, but the body has {earliest}")
    if last != latest:
        raise CorruptBatch("last_timestamp", f"{last}, but the body has {latest}")


def _check_nulls(columns: pa.RecordBatch) -> None:
    """Refuse nulls where the schema has none: Arrow's validation does not look at nullability."""
    for name in ("value", "timestamp"):
        nulls = columns.column(name).null_count
        if nulls:
            raise CorruptBatch("body", f"{nulls} nulls in column {name}")
    if "headers" in columns.schema.names:
        pairs = columns.column("headers").values
        if pairs.null_count or pairs.field(0).null_count:
            raise CorruptBatch("body", "a header without a key")


# --- The little of flatbuffers that is needed to look before Arrow leaps. ---
#
# A message is: 0xFFFFFFFF, metadata length (int32), metadata, body. The metadata is a flatbuffer: a uint32 at its
# start leads to the root table; a table begins with an int32 that leads *back* to its vtable, whose uint16 entries
# (after two sizes) say where each field lies in the table, 0 meaning absent. Fields are counted by the Arrow schema:
#   Message     0 version  1 header_type  2 header  3 bodyLength
#   RecordBatch 0 length   1 nodes        2 buffers 3 compression
# The exact bytes that ClyMQ writes are in docs/data_format.md.

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_I64: Final = struct.Struct("<q")


def _check_metadata(message: memoryview, count: int) -> None:
    try:
        mark, metadata_length = struct.unpack_from("<Ii", message)
        if mark != _CONTINUATION or metadata_length < 0 or metadata_length % ALIGNMENT:
            raise CorruptBatch("body", "is not an Arrow IPC message")
        metadata = message[8 : 8 + metadata_length]
        root = _U32.unpack_from(metadata)[0]
        if metadata[_field(metadata, root, 1)] != _RECORD_BATCH:
            raise CorruptBatch("body", "is an Arrow message, but not a record batch")
        body_length = _I64.unpack_from(metadata, _field(metadata, root, 3))[0]
        if 8 + metadata_length + body_length != len(message):
            raise CorruptBatch(
                "body", f"Arrow names {body_length} bytes where {len(message) - 8 - metadata_length} are"
            )
        header = _field(metadata, root, 2)
        table = header + _U32.unpack_from(metadata, header)[0]
        if _vtable_entry(metadata, table, 3):
            raise CorruptBatch("body", "uses Arrow's own compression")
        rows = _I64.unpack_from(metadata, _field(metadata, table, 0))[0]
        if rows != count:
            raise CorruptBatch("count", f"{count} in the header, {rows} rows in the body")
    except (struct.error, IndexError) as error:
        raise CorruptBatch("body", f"broken Arrow metadata: {error}") from None


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return where a field of a table lies; a field that must be there and is not is an IndexError."""
    entry = _vtable_entry(metadata, table, number)
    if not entry:
        raise IndexError(f"field {number} is missing")
    return table + entry


def _vtable_entry(metadata: memoryview, table: int, number: int) -> int:
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:  # struct would count a negative position from the end
        raise IndexError("a vtable lies before its buffer")
    at = 4 + 2 * number
    if at + 2 > _U16.unpack_from(metadata, vtable)[0]:
        return 0
    entry: int = _U16.unpack_from(metadata, vtable + at)[0]
    return entry
