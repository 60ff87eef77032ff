"""Which rows of a task are not stored yet, whatever order they come in."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from clymq.errors import InvalidRequest
from clymq.record import Batch, BatchBuilder
from clymq.spark.repeats import StoredRows

HEADERS = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("timestamp", pa.timestamp("us", tz="UTC"))]
)


def stored(rows: list[dict], *, now: int = 999) -> StoredRows:
    """Store rows as the sink does, two to a batch, and take them from the log."""
    found = StoredRows()
    for at in range(0, len(rows), 2):
        builder = BatchBuilder().add_arrow(pa.Table.from_pylist(rows[at : at + 2], SCHEMA))
        found.add(Batch.parse(builder.build(producer="p", cmdindex=1, now=now)).to_arrow())
    return found


def missing(found: StoredRows, rows: list[dict]) -> list[dict]:
    return found.missing(pa.Table.from_pylist(rows, SCHEMA)).to_pylist()


def frozen(row: dict) -> str:
    return repr((row["key"], row["value"], row["headers"] or [], row["timestamp"]))


def row(value: bytes, *, key: bytes | None = None, headers: list | None = None, time: int | None = None) -> dict:
    instant = None if time is None else pa.scalar(time, pa.timestamp("us", tz="UTC")).as_py()
    return {"key": key, "value": value, "headers": headers, "timestamp": instant}


def test_what_an_attempt_has_beyond_the_stored_rows_is_missing_each_as_often_as_it_is() -> None:
    chance = random.Random(7)
    rows = [
        row(
            b"%d" % chance.randrange(30),
            key=chance.choice([None, b"", b"k"]),
            headers=chance.choice([None, [], [{"key": "h", "value": b"%d" % chance.randrange(2)}]]),
            time=chance.choice([1, 2]),
        )
        for _ in range(400)
    ]
    for share in (0, 1, 150, 400):
        before = chance.sample(rows, share)
        again = chance.sample(rows, len(rows))
        expected = Counter(map(frozen, rows)) - Counter(map(frozen, before))
        assert Counter(map(frozen, missing(stored(before), again))) == expected


def test_missing_rows_keep_their_order() -> None:
    rows = [row(b"%d" % number, time=number) for number in range(20)]
    assert missing(stored(rows[::3]), rows) == [each for at, each in enumerate(rows) if at % 3]


def test_a_null_key_is_not_an_empty_one() -> None:
    assert missing(stored([row(b"v", key=b"", time=1)]), [row(b"v", time=1), row(b"v", key=b"", time=1)]) == [
        row(b"v", time=1)
    ]


def test_rows_without_a_time_are_recognised_by_what_they_say_and_not_taken_for_those_that_have_one() -> None:
    given, without = row(b"v", time=5), row(b"v")
    assert missing(stored([without]), [given, without]) == [given]
    assert missing(stored([given]), [without, given]) == [without]
    assert missing(stored([without, without]), [without, given, without]) == [given]


def test_stored_rows_that_an_attempt_does_not_have_are_an_error() -> None:
    with pytest.raises(InvalidRequest, match="1 rows that this one does not have"):
        missing(stored([row(b"a", time=1), row(b"b", time=1)]), [row(b"a", time=1), row(b"c", time=1)])
