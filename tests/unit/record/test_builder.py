"""Every road into a batch gives the same messages out of it."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from clymq.errors import InvalidRequest, MessageTooLarge
from clymq.record import Batch, BatchBuilder, Kind, Record, control_batch, producer_id

CODECS = ["none", "lz4", "zstd"]


def read(data: bytes) -> list[Record]:
    batch = Batch.parse(data)
    batch.check()
    return list(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_messages_come_back_as_they_went_in(codec: str) -> None:
    builder = BatchBuilder(codec)
    builder.add(b"v1", key=b"k1", headers={"a": b"1", "b": None}, timestamp=7)
    builder.add(b"", headers=[("same", b"1"), ("same", b"2")])
    builder.add(b"v3", key=b"")
    assert len(builder) == 3
    assert read(builder.build(producer="p", cmdindex=1, now=99)) == [
        Record(0, 7, b"k1", b"v1", (("a", b"1"), ("b", None))),
        Record(1, 99, None, b"", (("same", b"1"), ("same", b"2"))),
        Record(2, 99, b"", b"v3", ()),
    ]
    assert len(builder) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_lists_columns_and_arrow_say_the_same(codec: str) -> None:
    values, keys, times = [b"a", b"bb", b""], [None, b"k", b""], [3, 1, 2]
    one_by_one = BatchBuilder(codec)
    for value, key, time in zip(values, keys, times, strict=True):
        one_by_one.add(value, key=key, timestamp=time)
    columns = BatchBuilder(codec).add_columns(value=values, key=keys, timestamp=times)
    table = pa.table({"value": values, "key": pa.array(keys, pa.binary()), "timestamp": times})
    arrow = BatchBuilder(codec).add_arrow(table)
    built = [builder.build(producer="p", cmdindex=1) for builder in (one_by_one, columns, arrow)]
    assert built[0] == built[1] == built[2]


def test_roads_may_be_mixed_and_order_is_kept() -> None:
    builder = BatchBuilder().add(b"1").add_values([b"2", b"3"]).add(b"4", key=b"k", timestamp=5)
    builder.add_arrow(pa.table({"value": [b"5"], "headers": pa.array([[("h", b"x")]], HEADERS)}))
    records = read(builder.build(producer="p", cmdindex=1, now=9))
    assert [r.value for r in records] == [b"1", b"2", b"3", b"4", b"5"]
    assert [r.key for r in records] == [None, None, None, b"k", None]
    assert [r.timestamp for r in records] == [9, 9, 9, 5, 9]
    assert [r.headers for r in records] == [(), (), (), (), (("h", b"x"),)]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_arrow_tables_of_related_types_are_brought_to_the_schema() -> None:
    when = datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "key": pa.array(["k"], pa.string()),
            "value": pa.array([b"v"], pa.large_binary()),
            "timestamp": pa.array([when], pa.timestamp("ms", tz="UTC")),
        }
    )
    (record,) = read(BatchBuilder().add_arrow(table).build(producer="p", cmdindex=1))
    assert record == Record(0, int(when.timestamp()) * 1_000_000, b"k", b"v", ())


def test_a_table_of_many_chunks_and_slices_keeps_every_row() -> None:
    chunks = [pa.array([b"%d" % i for i in range(k)], pa.binary()) for k in (3, 0, 5)]
    table = pa.table({"value": pa.chunked_array(chunks)}).slice(2, 5)
    records = read(BatchBuilder().add_arrow(table).build(producer="p", cmdindex=1))
    assert [r.value for r in records] == [b"2", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("chunks", [1, 2, 5, 40])
def test_values_that_lie_in_slices_and_chunks_make_the_same_bytes_as_in_one_piece(chunks: int) -> None:
    values = [b"x" * (number % 7) for number in range(40 * chunks)]
    column = pa.chunked_array([[b"before", *values[at::chunks], b"after"] for at in range(chunks)], pa.binary())
    slices = [chunk.slice(1, len(chunk) - 2) for chunk in column.chunks]
    table = pa.table({"value": pa.chunked_array(slices)})
    in_order = [value for at in range(chunks) for value in values[at::chunks]]
    assert BatchBuilder().add_arrow(table).build(producer="p", cmdindex=1, now=5) == BatchBuilder().add_columns(
        value=in_order
    ).build(producer="p", cmdindex=1, now=5)


def test_a_slice_is_sent_from_where_it_lies() -> None:
    column = pa.array([b"before", b"x" * 10_000, b"y" * 10_000], pa.binary()).slice(1)
    pieces = BatchBuilder().add_arrow(pa.table({"value": column})).build_pieces(producer="p", cmdindex=1)
    (data,) = (piece for piece in pieces if len(piece) == 20_000)
    assert pa.py_buffer(data).address == column.buffers()[2].address + len(b"before")


def test_arrow_without_a_codec_is_a_view_of_the_batch_not_a_copy() -> None:
    data = BatchBuilder().add_values([b"x" * 100] * 100).build(producer="p", cmdindex=1)
    value = Batch.parse(data).to_arrow().column("value")
    start = pa.py_buffer(data).address
    assert all(start <= buffer.address < start + len(data) for buffer in value.buffers() if buffer)


def test_columns_that_are_empty_in_the_whole_batch_are_left_out() -> None:
    builder = BatchBuilder().add_columns(value=[b"a", b"b"], key=[None, None], headers=[None, None])
    batch = Batch.parse(builder.build(producer="p", cmdindex=1))
    assert batch.to_arrow().schema.names == ["value", "timestamp"]
    assert batch.flags == 0


def test_the_header_carries_what_build_was_given() -> None:
    batch = Batch.parse(
        BatchBuilder("lz4").add_values([b"a"] * 5).build(producer="p", cmdindex=2**40, epoch=3, sparse=True)
    )
    assert (batch.count, len(batch), batch.cmdindex, batch.epoch, batch.codec) == (5, 5, 2**40, 3, "lz4")
    assert batch.producer == producer_id("p")
    assert batch.kind == Kind.DATA


def test_a_producer_may_be_given_by_its_id() -> None:
    data = BatchBuilder().add(b"x").build(producer=producer_id("p"), cmdindex=1)
    assert Batch.parse(data).producer == producer_id("p")


def test_a_control_batch_carries_its_payload_and_no_message() -> None:
    batch = Batch.parse(control_batch(b"\x81\xa1a\x01", seal=True))
    batch.check()
    assert (batch.kind, batch.count, batch.is_seal) == (Kind.CONTROL, 0, True)
    assert bytes(batch.payload()) == b"\x81\xa1a\x01"
    assert not Batch.parse(control_batch(b"")).is_seal
    assert list(batch) == []
    with pytest.raises(MessageTooLarge):
        control_batch(bytes(17 << 20))


def test_a_stamp_needs_memory_that_may_be_written_and_else_changes_nothing() -> None:
    batch = Batch.parse(BatchBuilder().add(b"x").build(producer="p", cmdindex=1))
    with pytest.raises(TypeError):
        batch.stamp(base_offset=5, term=1, index=1, append_time=1, commit_index=0)
    assert (batch.base_offset, batch.index) == (0, 0)


def test_the_size_of_a_message_is_counted_in_bytes_whatever_it_is_a_view_of() -> None:
    with pytest.raises(MessageTooLarge):
        BatchBuilder(message_bytes_max=100).add(memoryview(bytes(160)).cast("Q"))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda b: b.add("text"), "value"),
        (lambda b: b.add(None), "value"),
        (lambda b: b.add(b"v", key=7), "key"),
        (lambda b: b.add(b"v", timestamp="now"), "timestamp"),
        (lambda b: b.add(b"v", timestamp=2**63), "timestamp"),
        (lambda b: b.add(b"v", headers={1: b"x"}), "header"),
        (lambda b: b.add(b"v", headers={"a": "text"}), "header"),
        (lambda b: b.add(b"v", headers=["ab"]), "header"),
        (lambda b: b.add(b"v", headers={"\ud800": b"x"}), "header"),
        (lambda b: b.add_values([b"a", None]), "value"),
        (lambda b: b.add_values([7]), "value"),
        (lambda b: b.add(b"v", timestamp=True), "timestamp"),
        (lambda b: b.add_columns(value=[b"a"], timestamp=[1.5]), "timestamp"),
        (lambda b: b.add_columns(value=[b"a"], headers=pa.array([[None]], HEADERS)), "header"),
        (lambda b: b.add_arrow(pa.Table.from_arrays([pa.array([b"a"])] * 2, names=["value", "value"])), "once"),
        (lambda b: b.add_arrow(pa.table({"value": pa.chunked_array([[b"a"], [None]], pa.binary())})), "null"),
        (lambda b: b.add_values(["text"]), "value"),
        (lambda b: b.add_values(b"bytes"), "value"),
        (lambda b: b.add_columns(value=[b"a"], key=["text"]), "key"),
        (lambda b: b.add_columns(value=[b"a"], key=[b"k", b"k"]), "key 2"),
        (lambda b: b.add_columns(value=[b"a"], timestamp=["x"]), "timestamp"),
        (lambda b: b.add_arrow(pa.table({"key": [b"k"]})), "value is required"),
        (lambda b: b.add_arrow(pa.table({"value": [b"k"], "colour": [1]})), "colour"),
        (lambda b: b.add_arrow(pa.table({"value": [1.5]})), "value"),
    ],
)
def test_a_wrong_argument_is_refused_by_name_and_nothing_gathered_is_lost(call, word: str) -> None:
    builder = BatchBuilder().add(b"before")
    with pytest.raises(InvalidRequest, match=word):
        call(builder)
    builder.add(b"after")
    assert [r.value for r in read(builder.build(producer="p", cmdindex=1))] == [b"before", b"after"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"producer": "p", "cmdindex": 0}, "cmdindex"),
        ({"producer": "", "cmdindex": 1}, "producer"),
        ({"producer": "\ud800", "cmdindex": 1}, "producer"),
        ({"producer": "p", "cmdindex": 1, "now": 2**63}, "now"),
        ({"producer": "p", "cmdindex": 2**64}, "cmdindex"),
        ({"producer": "p", "cmdindex": 1, "epoch": 2**32}, "epoch"),
        ({"producer": b"short", "cmdindex": 1}, "producer"),
    ],
)
def test_build_refuses_numbers_that_do_not_fit_and_keeps_the_messages(arguments, word: str) -> None:
    builder = BatchBuilder().add(b"x")
    with pytest.raises(InvalidRequest, match=word):
        builder.build(**arguments)
    assert len(builder) == 1


def test_an_empty_batch_and_an_unknown_codec_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        BatchBuilder().build(producer="p", cmdindex=1)
    with pytest.raises(InvalidRequest, match="at least one"):
        BatchBuilder().add_values([]).build(producer="p", cmdindex=1)
    with pytest.raises(InvalidRequest, match="brotli"):
        BatchBuilder("brotli")


@pytest.mark.parametrize(
    "add",
    [
        lambda b: b.add(b"x" * 90, key=b"k" * 11),
        lambda b: b.add(b"x" * 90, headers={"h" * 5: b"y" * 6}),
        lambda b: b.add_values([b"a", b"x" * 101]),
        lambda b: b.add_columns(value=[b"a", b"x" * 90], key=[None, b"k" * 11]),
        lambda b: b.add_columns(value=[b"a", b"x" * 90], headers=[None, {"h" * 5: b"y" * 3, "i": b"zz"}]),
    ],
)
def test_a_message_above_the_limit_is_refused_however_it_comes(add) -> None:
    builder = BatchBuilder(message_bytes_max=100)
    with pytest.raises(MessageTooLarge) as caught:
        add(builder)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (101, 100)
    assert len(builder) == 0


def test_a_message_at_the_limit_passes_however_it_comes() -> None:
    builder = BatchBuilder(message_bytes_max=100).add(b"x" * 90, key=b"k" * 10)
    builder.add_columns(value=[b"x" * 90] * 50, headers=[{"h" * 5: b"y" * 5}] * 50)
    assert len(read(builder.build(producer="p", cmdindex=1))) == 51


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_above_the_limit_is_refused_and_the_messages_stay(codec: str) -> None:
    builder = BatchBuilder(codec, batch_bytes_max=4096).add_values([b"x" * 100] * 100)
    with pytest.raises(MessageTooLarge, match="100 messages"):
        builder.build(producer="p", cmdindex=1)
    assert len(builder) == 100
    builder.clear()
    assert len(builder) == 0
