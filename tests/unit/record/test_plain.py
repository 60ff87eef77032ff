"""A glance at the metadata must find out no less than the long way does."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from clymq.errors import CorruptBatch
from clymq.record import Batch, BatchBuilder, body
from clymq.record.layout import HEADER_BYTES, Flag
from clymq.record.plain import plain_times_at

KEYS = int(Flag.KEYS)
MUTATIONS = 3000


def built(count: int, *, key: bytes | None = None, timed: bool = False) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(b"v" * (number % 7), key=key, timestamp=number if timed else None)
    return builder.build(producer="p", cmdindex=1, now=5)


def mended(data: bytearray) -> bytes:
    """Return it with checksums that are right, as a producer with bad intentions would send it."""
    struct.pack_into("<I", data, 104, crc32c(bytes(data[HEADER_BYTES:]), crc32c(bytes(data[:64]))))
    struct.pack_into("<I", data, 108, crc32c(bytes(data[:108])))
    return bytes(data)


def as_arrow_writes(values: list[bytes], now: int) -> bytes:
    columns = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array([now] * len(values), pa.int64())], schema=body.schema_of(0)
    )
    return body.encode(columns).to_pybytes()


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 64, 1000])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 100])
def test_what_is_written_without_arrow_is_what_arrow_writes(count: int, length: int) -> None:
    values = [bytes([n % 256]) * (length + n % 3) for n in range(count)]
    roads = [BatchBuilder() for _ in range(4)]
    for value in values:
        roads[0].add(value)
    roads[1].add_values(values)
    roads[2].add(values[0]).add_checked(values[1:])
    roads[3].add_columns(value=pa.array([b"before", *values], pa.binary()).slice(1))
    for builder in roads:
        batch = Batch.parse(builder.build(producer="p", cmdindex=1, now=-7))
        assert bytes(batch.payload()) == as_arrow_writes(values, -7)
        assert batch.values() == values
        assert (batch.first_timestamp, batch.last_timestamp, batch.flags) == (-7, -7, 0)


def test_columns_that_only_some_messages_have_are_where_they_belong() -> None:
    builder = (
        BatchBuilder().add(b"0").add(b"1", key=b"k").add(b"2").add(b"3", timestamp=9).add(b"4", headers={"h": b"v"})
    )
    records = list(Batch.parse(builder.add_checked([b"5"]).build(producer="p", cmdindex=1, now=5)))
    assert [record.value for record in records] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [record.key for record in records] == [None, b"k", None, None, None, None]
    assert [record.timestamp for record in records] == [5, 5, 5, 9, 5, 5]
    assert [record.headers for record in records] == [(), (), (), (), (("h", b"v"),), ()]


@pytest.mark.parametrize("count", [1, 2, 3, 64, 65, 1000])
@pytest.mark.parametrize(("key", "flags"), [(None, 0), (b"k", KEYS)])
def test_what_the_builder_writes_is_plain(count: int, key: bytes | None, flags: int) -> None:
    data = built(count, key=key)
    batch = Batch.parse(data)
    at = plain_times_at(batch.payload(), flags, count)
    assert at is not None, "Arrow writes other metadata than the table says: every batch would take the long way"
    assert batch.payload()[at : at + 8 * count] == struct.pack("<q", 5) * count
    batch.check()


def test_other_columns_counts_and_lengths_are_not_plain() -> None:
    message = bytes(Batch.parse(built(3)).payload())
    assert plain_times_at(memoryview(message), 0, 3) is not None
    assert plain_times_at(memoryview(message), KEYS, 3) is None
    assert plain_times_at(memoryview(message), int(Flag.HEADERS), 3) is None
    assert plain_times_at(memoryview(message), 0, 4) is None
    assert plain_times_at(memoryview(message + bytes(8)), 0, 3) is None
    assert plain_times_at(memoryview(message[:100]), 0, 3) is None


def test_keys_for_some_messages_only_are_not_plain_and_not_wrong() -> None:
    data = BatchBuilder().add(b"1", key=b"k").add(b"2").build(producer="p", cmdindex=1)
    batch = Batch.parse(data)
    assert plain_times_at(batch.payload(), KEYS, 2) is None
    assert [record.key for record in batch] == [b"k", None]


@pytest.mark.parametrize(
    "data",
    [built(3), built(3, key=b"k"), built(20, timed=True), built(200, key=b"key")],
    ids=["3", "keys", "times", "many"],
)
def test_a_plain_batch_is_refused_exactly_when_the_long_way_refuses_it(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(len(data))
    changed = [data] + [mutated(data, chance) for _ in range(MUTATIONS)]
    glanced = [verdict(each) for each in changed]
    monkeypatch.setattr(body, "plain_times_at", lambda *_: None)
    assert glanced == [verdict(each) for each in changed]
    assert glanced[0] == "good"
    assert 0 < glanced.count("good") < len(glanced), "some changes are of the messages, and some are of what holds them"


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change a number or a bit, mostly in Arrow's metadata, the offsets and the timestamps."""
    changed = bytearray(data)
    at = chance.randrange(HEADER_BYTES, min(len(data), HEADER_BYTES + 300) if chance.random() < 0.8 else len(data))
    if chance.random() < 0.5:
        changed[at] ^= 1 << chance.randrange(8)
    else:
        at = min(at & ~7, len(data) - 8)
        struct.pack_into("<q", changed, at, chance.choice([-8, -1, 0, 1, 8, 64, len(data), 2**31, 2**62, -(2**63)]))
    return mended(changed)


def verdict(data: bytes) -> str:
    try:
        Batch.parse(data).check()
    except CorruptBatch:
        return "corrupt"
    return "good"
