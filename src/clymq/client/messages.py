"""What a consumer gets: messages as slices of the batches that they came in, opened when somebody looks.

`Messages` is a list of runs, each a range of one batch. As Arrow they are the batches' own memory with the columns that
say where they are from; as Python objects they are made one by one, in C as far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from clymq.record import Batch
from clymq.record.body import HEADERS_TYPE

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("partition", pa.utf8(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("headers", HEADERS_TYPE),
        pa.field("delivery_count", pa.int32(), nullable=False),
    ]
)


class Message(NamedTuple):
    """One message; the timestamp is in microseconds since 1970."""

    topic: str
    partition: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Run:
    """The messages [start, end) of a partition, all in one batch."""

    topic: str
    partition: str
    batch: Batch
    start: int
    end: int
    delivery_count: int = 1
    lease: int = 0
    """What it is held by, point to point; 0: nothing."""

    def columns(self) -> pa.RecordBatch:
        """Return what the batch has of them, without a copy."""
        return self.batch.to_arrow().slice(self.start - self.batch.base_offset, self.end - self.start)


class Messages:
    """Messages in the order of their offsets within each partition."""

    __slots__ = ("runs",)

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        """Which messages of which batches."""

    def __len__(self) -> int:
        return sum(run.end - run.start for run in self.runs)

    def __iter__(self) -> Iterator[Message]:
        for run in self.runs:
            yield from _messages_of(run)

    def __repr__(self) -> str:
        ranges = ", ".join(f"{run.topic}/{run.partition} [{run.start}, {run.end})" for run in self.runs)
        return f"<Messages {ranges or 'none'}>"

    def to_arrow(self) -> pa.Table:
        """Return a table with a column for each field of a message; nothing is done message by message."""
        columns = [run.columns() for run in self.runs]
        stretches = list(_stretches(self.runs))
        made = {
            "topic": [pa.repeat(first.topic, end - first.start) for first, end in stretches],
            "partition": [pa.repeat(first.partition, end - first.start) for first, end in stretches],
            "offset": [_offsets(first.start, end) for first, end in stretches],
            "delivery_count": [
                pa.repeat(pa.scalar(first.delivery_count, pa.int32()), end - first.start) for first, end in stretches
            ],
        }
        chunks = [made.get(field.name) or _chunks(columns, field, len(self)) for field in SCHEMA]
        arrays = [pa.chunked_array(each, field.type) for each, field in zip(chunks, SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _messages_of(run: Run) -> Iterator[Message]:
    columns = run.columns()
    names = columns.schema.names
    keys = columns.column("key").to_pylist() if "key" in names else repeat(None)
    headers = map(_pairs, columns.column("headers").to_pylist()) if "headers" in names else repeat(())
    first, last = run.batch.first_timestamp, run.batch.last_timestamp  # checked against the column
    times = repeat(first) if first == last else columns.column("timestamp").to_pylist()
    fields = zip(
        repeat(run.topic),
        repeat(run.partition),
        range(run.start, run.end),
        times,
        keys,
        columns.column("value").to_pylist(),
        headers,
        repeat(run.delivery_count),
        strict=False,
    )
    # What Message(*fields) does, without a call in Python for each of them.
    return map(tuple.__new__, repeat(Message), fields)


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers) if headers else ()


def _stretches(runs: list[Run]) -> Iterator[tuple[Run, int]]:
    """Join runs that follow one another and differ in their messages only: the first, and where the last ends."""
    first: Run | None = None
    end = 0
    for run in runs:
        if first is not None and run.start == end and _same(first, run):
            end = run.end
            continue
        if first is not None:
            yield first, end
        first, end = run, run.end
    if first is not None:
        yield first, end


def _same(one: Run, other: Run) -> bool:
    return (one.topic, one.partition, one.delivery_count) == (other.topic, other.partition, other.delivery_count)


def _offsets(start: int, end: int) -> pa.Array:
    """Return the numbers from one to the other: running sums of ones, in C."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), end - start)
    return pc.cumulative_sum(ones, start=pa.scalar(start - 1, pa.int64()))


def _chunks(columns: list[pa.RecordBatch], field: pa.Field, count: int) -> list[pa.Array]:
    """Return a column of the batches, with nulls where a batch has none."""
    has = [field.name in each.schema.names for each in columns]
    if not any(has):
        return [pa.nulls(count, field.type)]
    return [
        each.column(field.name) if there else pa.nulls(each.num_rows, field.type)
        for each, there in zip(columns, has, strict=True)
    ]
