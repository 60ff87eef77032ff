"""The table that a topic is, and how batches of the log become rows of it: Arrow in, Arrow out, no loop over messages.

Spark compares the schema of what it gets with what it expects, to the letter, so everything is brought to the schema
that Spark made of the one asked for. Columns that are not asked for are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clymq.client.messages import Run
from clymq.config import MiB
from clymq.errors import InvalidRequest

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
CREATE_TIME: Final = 0
_TIME: Final = pa.timestamp("us", tz="UTC")
# Spark takes rows best in batches of about this many, or of a megabyte: what is larger misses the processor's cache on
# its way through Spark. Smaller batches of the log are joined, which copies them; larger ones are cut, which does not.
ROWS: Final = 10_000
ROWS_MAX: Final = 16_384
JOINED_BYTES: Final = MiB // 2
CUT_BYTES: Final = 2 * MiB


def table_schema(*, headers: bool) -> StructType:
    """Return all columns of a topic."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != "headers"])


def check_schema(schema: StructType, *, headers: bool) -> None:
    """Refuse columns that a topic does not have; fewer are fine, in any order."""
    for field in schema.fields:
        expected = COLUMNS.get(field.name)
        if expected is None:
            raise InvalidRequest(f"a topic has no column {field.name}; it has {', '.join(COLUMNS)}")
        if field.dataType != expected:
            raise InvalidRequest(
                f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
        if field.name == "headers" and not headers:
            raise InvalidRequest("column headers is there only with the option includeHeaders=true")


class RowMaker:
    """Makes rows of one partition's runs, with the columns that were asked for."""

    def __init__(self, schema: StructType, topic: str, partition: str) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._no_keys = pa.nulls(ROWS_MAX, pa.binary())
        self._topic = pa.repeat(topic, ROWS_MAX)
        self._partition = pa.repeat(partition, ROWS_MAX)
        self._kind = pa.repeat(pa.scalar(CREATE_TIME, pa.int32()), ROWS_MAX)
        self._offsets = _Offsets()
        self._makers: dict[str, Callable[[pa.RecordBatch, int], pa.Array]] = {
            "key": self._keys,
            "value": lambda rows, _: rows.column("value"),
            "topic": lambda rows, _: self._topic.slice(0, rows.num_rows),
            "partition": lambda rows, _: self._partition.slice(0, rows.num_rows),
            "offset": lambda rows, start: self._offsets.of(start, rows.num_rows),
            # Not a cast, which would give way to the thread that receives, and wait for it.
            "timestamp": lambda rows, _: rows.column("timestamp").view(_TIME),
            "timestampType": lambda rows, _: self._kind.slice(0, rows.num_rows),
            "headers": lambda rows, _: _headers(rows, self._schema.field("headers").type),
        }

    def rows(self, runs: Sequence[Run]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of runs that follow one another."""
        waiting: list[pa.RecordBatch] = []
        count = size = 0
        for run in runs:
            row_bytes = run.batch.unpacked_length / run.batch.count
            for start, end in _pieces(run):
                grown = int((end - start) * row_bytes)
                if waiting and (count + end - start > ROWS_MAX or size + grown > JOINED_BYTES):
                    yield _joined(waiting)
                    waiting, count, size = [], 0, 0
                waiting.append(self._shaped(run, start, end))
                count += end - start
                size += grown
        if waiting:
            yield _joined(waiting)

    def _shaped(self, run: Run, start: int, end: int) -> pa.RecordBatch:
        rows = run.batch.to_arrow().slice(start - run.batch.base_offset, end - start)
        arrays = [self._makers[name](rows, start) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _keys(self, rows: pa.RecordBatch, start: int) -> pa.Array:
        del start
        return rows.column("key") if "key" in rows.schema.names else self._no_keys.slice(0, rows.num_rows)


class _Offsets:
    """Numbers that follow one another, made for many batches at a time: most batches of large messages are short."""

    def __init__(self) -> None:
        self._start = 0
        self._numbers = pa.array([], pa.int64())

    def of(self, start: int, count: int) -> pa.Array:
        """Return `count` numbers from `start` on, at most `ROWS_MAX`."""
        at = start - self._start
        if not 0 <= at <= len(self._numbers) - count:
            self._start, at = start, 0
            self._numbers = pc.add(_first_numbers(), start)
        return self._numbers.slice(at, count)


@cache
def _first_numbers() -> pa.Array:
    return pa.array(range(ROWS_MAX), pa.int64())


def _pieces(run: Run) -> Iterator[tuple[int, int]]:
    """Cut a run where Spark would get too much at once, into pieces of about the same size."""
    count = run.end - run.start
    bytes_ = run.batch.unpacked_length * count // run.batch.count
    parts = max(1, -(-count // ROWS_MAX), min(count, bytes_ // CUT_BYTES))
    cuts = [run.start + count * at // parts for at in range(parts + 1)]
    return pairwise(cuts)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _headers(rows: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    """Return the headers; a message without any has an empty list, because null lists are slow in Spark's writer."""
    if "headers" not in rows.schema.names:
        empty = pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows + 1)
        return pa.ListArray.from_arrays(empty, pa.nulls(0, kind.value_type)).cast(kind)
    headers = rows.column("headers")
    if headers.null_count:
        headers = pc.fill_null(headers, pa.scalar([], headers.type))
    result: pa.Array = headers.cast(kind)
    return result
