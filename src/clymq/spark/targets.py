"""Which rows go where: a task's rows divided among partitions of topics, as Arrow and without a loop.

Where a row goes must not depend on chance, on time or on the order of the rows: a repeated attempt has to send the
same rows to the same partitions. With a `partition` it goes there; with a key where every client would send that key;
without either all rows of the task go to one partition, which changes with the task and the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from clymq.client.partitioning import by_key_column
from clymq.errors import InvalidRequest, UnknownPartition

_MESSAGE: Final = ("value", "key", "headers", "timestamp")
_ALL: Final = (*_MESSAGE, "topic", "partition")

Place = tuple[str, str]
"""Topic and partition."""


class PartitionsOf(Protocol):
    """What is known of the partitions of topics."""

    def __call__(self, topic: str) -> Sequence[str]:
        """Return what keys are divided among, in order."""

    def has(self, topic: str, partition: str) -> bool:
        """Return whether there is such a partition."""


class Targets:
    """Says where the rows of one task go."""

    def __init__(self, topic: str | None, partitions_of: PartitionsOf, *, turn: int) -> None:
        """`turn` chooses the partition of rows that say nothing."""
        self._topic = topic
        self._partitions_of = partitions_of
        self._turn = turn

    def divide(self, batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.Table]]:
        """Yield the messages for each partition, in the order in which they came."""
        return self._placed(_messages(batch))

    def _placed(self, table: pa.Table) -> Iterator[tuple[Place, pa.Table]]:
        topics: Iterator[tuple[str | None, pa.Table]]
        if self._topic is not None:
            topics = iter([(self._topic, table)])
        elif "topic" in table.schema.names:
            topics = _by_column(table, "topic")
        else:
            raise InvalidRequest("no topic: neither an option topic nor a column topic is given")
        for topic, rows in topics:
            if topic is None:
                raise InvalidRequest(f"column topic: {rows.num_rows} rows have none, and there is no option topic")
            given = _by_column(rows, "partition") if "partition" in rows.schema.names else iter([(None, rows)])
            for partition, part in given:
                if partition is not None:
                    self._check_partition(topic, partition)
                    yield (topic, partition), part.select([name for name in _MESSAGE if name in part.schema.names])
                else:
                    yield from self._by_key(topic, part.select([n for n in _MESSAGE if n in part.schema.names]))

    def _by_key(self, topic: str, rows: pa.Table) -> Iterator[tuple[Place, pa.Table]]:
        names = self._partitions_of(topic)
        for partition, part in by_key_column(rows, names).items():
            yield (topic, names[self._turn % len(names)] if partition is None else partition), part

    def _check_partition(self, topic: str, partition: str) -> None:
        if not self._partitions_of.has(topic, partition):
            raise UnknownPartition(f"topic {topic} has no partition {partition}, which column partition names")


def check_columns(names: Sequence[str]) -> None:
    """Refuse a table that is not one of messages."""
    if "value" not in names:
        raise InvalidRequest(f"a column value is required; there are {', '.join(names)}")
    for name in names:
        if name not in _ALL:
            raise InvalidRequest(f"column {name} means nothing to the sink; it takes {', '.join(_ALL)}")


_CASTS: Final[Mapping[str, pa.DataType]] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "topic": pa.utf8(),
}


def _messages(batch: pa.RecordBatch) -> pa.Table:
    """Return rows with the types of messages; text is taken as its UTF-8, a number as what it is written like."""
    columns: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        wanted = _CASTS.get(name)
        if name == "partition" and not pa.types.is_integer(column.type):
            wanted = pa.utf8()  # numbers are compared as such, which takes a tenth of the time: see `_by_column`
        if wanted is not None and column.type != wanted:
            try:
                column = column.cast(wanted)
            except pa.ArrowException as error:
                raise InvalidRequest(f"column {name} is {column.type}: {error}") from None
        columns[name] = column
    nulls = columns["value"].null_count
    if nulls:
        raise InvalidRequest(f"column value: {nulls} rows are null; a message has a value")
    return pa.table(columns)


def _by_column(table: pa.Table, name: str) -> Iterator[tuple[str | None, pa.Table]]:
    """Divide rows by the values of a column, which has then done its work; a number stands for the name like it."""
    column, table = table.column(name), table.drop_columns([name])
    for value in (found := pc.unique(column).to_pylist()):
        text = None if value is None else str(value)
        if len(found) == 1:
            yield text, table
        elif value is None:
            yield text, table.filter(pc.is_null(column))
        else:
            yield text, table.filter(pc.equal(column, pa.scalar(value, column.type)))
