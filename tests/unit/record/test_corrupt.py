"""Every malformed batch is `CorruptBatch` naming the field that is wrong: nothing crashes, hangs or allocates."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from clymq.errors import CorruptBatch
from clymq.record import Batch, BatchBuilder, control_batch

GOOD = (
    BatchBuilder()
    .add_columns(value=[b"one", b"two"], key=[b"k", None], timestamp=[1, 2])
    .build(producer="p", cmdindex=1)
)


def mended(data: bytes | bytearray) -> bytes:
    """Make both checksums right again, so that the damage gets further."""
    data = bytearray(data)
    struct.pack_into("<I", data, 104, crc32c(bytes(data[112:]), crc32c(bytes(data[:64]))))
    struct.pack_into("<I", data, 108, crc32c(bytes(data[:108])))
    return bytes(data)


def with_field(at: int, form: str, value: int, data: bytes = GOOD) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return mended(changed)


def wrong_field(data: bytes) -> str:
    with pytest.raises(CorruptBatch) as caught:
        Batch.parse(data).to_arrow()
    return caught.value.field


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "header"),
        (GOOD[:111], "header"),
        (GOOD[:112], "body_length"),
        (GOOD[:-1], "body_length"),
        (b"X" + GOOD[1:], "magic"),
        (with_field(4, "B", 2), "version"),
        (with_field(5, "B", 9), "kind"),
        (with_field(6, "B", 3), "codec"),
        (with_field(7, "B", 0x80), "flags"),
        (with_field(7, "B", 8), "flags"),
        (with_field(8, "<I", 0), "count"),
        (with_field(8, "<I", 3), "count"),
        (with_field(8, "<I", 2**32 - 1), "count"),
        (with_field(12, "<I", 2**32 - 1), "body_length"),
        (with_field(16, "<I", 2**32 - 1), "unpacked_length"),
        (with_field(16, "<I", 1), "unpacked_length"),
        (with_field(40, "<Q", 0), "cmdindex"),
        (with_field(48, "<q", 3), "first_timestamp"),
        (with_field(48, "<q", 0), "first_timestamp"),
        (with_field(56, "<q", 9), "last_timestamp"),
        (GOOD[:70] + bytes([GOOD[70] ^ 1]) + GOOD[71:], "header_crc"),
        (GOOD[:200] + bytes([GOOD[200] ^ 1]) + GOOD[201:], "body_crc"),
    ],
)
def test_a_wrong_field_is_named(data: bytes, field: str) -> None:
    assert wrong_field(data) == field


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (with_field(8, "<I", 1, control_batch(b"x")), "count"),
        (with_field(7, "B", 1, control_batch(b"x")), "flags"),
        (with_field(6, "B", 1, control_batch(b"x")), "codec"),
        (control_batch(b"x"), "kind"),
    ],
)
def test_a_control_batch_with_what_only_data_has_is_corrupt(data: bytes, field: str) -> None:
    assert wrong_field(data) == field


def test_padding_that_is_not_zero_is_corrupt() -> None:
    data = bytearray(control_batch(b"abc"))
    data[-1] = 1
    with pytest.raises(CorruptBatch, match="padding"):
        Batch.parse(mended(data)).check()


def test_no_bit_of_a_batch_can_flip_unnoticed() -> None:
    for codec in ("none", "lz4"):
        good = BatchBuilder(codec).add(b"value", key=b"key", headers={"h": b"x"}).build(producer="p", cmdindex=1)
        for bit in range(len(good) * 8):
            data = bytearray(good)
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptBatch):
                Batch.parse(bytes(data)).check()


def message(columns: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(columns)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


def batch_around(body: bytes, *, count: int, times: tuple[int, int] = (0, 0), flags: int = 0) -> bytes:
    header = struct.pack(
        "<4sBBBBIIII16sQqqQQQqQII", b"CLYB", 1, 0, 0, flags, count, len(body), len(body), 0, bytes(16), 1, *times,
        0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return mended(header + body + bytes(-len(body) % 8))


def columns(value: pa.Array, timestamp: pa.Array | None = None) -> pa.RecordBatch:
    timestamp = pa.array([0] * len(value), pa.int64()) if timestamp is None else timestamp
    return pa.RecordBatch.from_arrays([value, timestamp], names=["value", "timestamp"])


def test_arrows_own_compression_is_refused_before_arrow_could_allocate_for_it() -> None:
    body = message(columns(pa.array([b"\0" * 2**24], pa.binary())), compression="zstd")
    assert len(body) < 100_000
    before = pa.default_memory_pool().max_memory()
    assert wrong_field(batch_around(body, count=1)) == "body"
    assert pa.default_memory_pool().max_memory() == before


def test_nulls_in_columns_that_have_none_are_corrupt() -> None:
    assert wrong_field(batch_around(message(columns(pa.array([b"a", None], pa.binary()))), count=2)) == "body"
    times = pa.array([0, None], pa.int64())
    assert wrong_field(batch_around(message(columns(pa.array([b"a", b"b"]), times)), count=2)) == "body"


def test_a_header_without_a_key_is_corrupt() -> None:
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    for headers in ([[{"key": None, "value": b"x"}]], [[None]]):
        value, time = pa.array([b"a"], pa.binary()), pa.array([0], pa.int64())
        batch = pa.RecordBatch.from_arrays(
            [value, time, pa.array(headers, kind)], names=["value", "timestamp", "headers"]
        )
        assert wrong_field(batch_around(message(batch), count=1, flags=2)) == "body"


def test_a_body_that_is_another_arrow_message_is_corrupt() -> None:
    schema = pa.schema([("value", pa.binary())]).serialize().to_pybytes()
    assert wrong_field(batch_around(schema, count=1)) == "body"


def test_bytes_hidden_behind_the_arrow_message_are_corrupt() -> None:
    body = message(columns(pa.array([b"a"], pa.binary())))
    assert wrong_field(batch_around(body + bytes(8), count=1)) == "body"


def test_offsets_that_point_outside_are_corrupt() -> None:
    data = bytearray(BatchBuilder().add_values([b"aaaa", b"bbbb"]).build(producer="p", cmdindex=1))
    offsets = 112 + 208
    assert struct.unpack_from("<3i", data, offsets) == (0, 4, 8)
    for hostile in ((0, 4, 2**31 - 1), (0, -4, 8), (8, 4, 0), (-(2**31), 0, 8), (0, 5, 4)):
        struct.pack_into("<3i", data, offsets, *hostile)
        assert wrong_field(mended(data)) == "body"


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("change", [-8, 8, 4096])
def test_a_body_that_does_not_unpack_to_the_promised_length_is_corrupt(codec: str, change: int) -> None:
    good = BatchBuilder(codec).add_values([b"x" * 100] * 50).build(producer="p", cmdindex=1)
    unpacked = struct.unpack_from("<I", good, 16)[0]
    assert wrong_field(with_field(16, "<I", unpacked + change, good)) in {"body", "unpacked_length"}


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_decompression_bomb_is_never_unpacked_beyond_the_promised_length(codec: str) -> None:
    bomb = pa.Codec(codec).compress(bytes(2**28), asbytes=True)
    number = {"lz4": 1, "zstd": 2}[codec]
    header = struct.pack(
        "<4sBBBBIIII16sQqqQQQqQII", b"CLYB", 1, 0, number, 0, 1, len(bomb), 2**20, 0, bytes(16), 1,
        *[0] * 9,
    )  # fmt: skip
    data = mended(header + bomb + bytes(-len(bomb) % 8))
    before = pa.default_memory_pool().max_memory()
    assert wrong_field(data) in {"body", "unpacked_length"}
    assert pa.default_memory_pool().max_memory() - before < 4 * 2**20


def test_an_lz4_frame_that_asks_for_large_blocks_is_refused() -> None:
    good = BatchBuilder("lz4").add_values([b"x" * 100] * 50).build(producer="p", cmdindex=1)
    assert good[112 + 5] == 0x40
    data = bytearray(good)
    data[112 + 5] = 0x70
    with pytest.raises(CorruptBatch, match="64 KiB"):
        Batch.parse(mended(data)).to_arrow()


def test_a_reader_may_set_a_lower_limit_for_both_lengths() -> None:
    big = BatchBuilder("zstd").add(b"\0" * 100_000).build(producer="p", cmdindex=1)
    Batch.parse(big, batch_bytes_max=200_000).check()
    with pytest.raises(CorruptBatch, match="unpacked_length"):
        Batch.parse(big, batch_bytes_max=50_000)
