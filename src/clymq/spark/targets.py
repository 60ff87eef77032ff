"""Which rows go where: a task's rows divided among partitions of topics, and into batches, as Arrow and without a loop.

Where a row goes must not depend on chance, on time or on the order of the rows: a repeated attempt has to send the
same rows to the same partitions. With a `partition` it goes there; with a key where every client would send that key;
without either all rows of the task go to one partition, which changes with the task and the micro-batch.

Rows of one partition that fit into one batch are one batch, in the order in which they came. More than that is sorted
first, because rows may come in another order the next time, and then cut where the sizes say: so the same rows make the
same batches. `stable_order` is for who knows that the order is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from clymq.client.partitioning import by_key_column, cuts
from clymq.config import MiB
from clymq.errors import InvalidRequest, MessageTooLarge, UnknownPartition

BATCH_BYTES: Final = 8 * MiB
"""So much is one batch; the cluster takes twice as much, so that one more message always fits."""
CUT_BYTES: Final = 2 * MiB
"""What is more is cut into batches of about this size: memory for larger ones costs more than their number."""
ROW_BYTES: Final = 16
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
    """Gathers the rows of one task by where they go."""

    def __init__(self, topic: str | None, partitions_of: PartitionsOf, *, turn: int, bytes_max: int) -> None:
        """`turn` chooses the partition of rows that say nothing; `bytes_max` bounds what is held."""
        self._topic = topic
        self._partitions_of = partitions_of
        self._turn = turn
        self._bytes_max = bytes_max
        self._bytes = 0
        self.rows = 0
        self._gathered: dict[Place, list[pa.Table]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        table = _messages(batch)
        self.rows += table.num_rows
        self._bytes += table.nbytes
        if self._bytes > self._bytes_max:
            raise MessageTooLarge(
                f"a task has more than {self._bytes_max} bytes of rows, which are held until its end",
                size_bytes=self._bytes,
                limit_bytes=self._bytes_max,
                hint="use more tasks (repartition, minPartitions, maxOffsetsPerTrigger), or raise bufferBytesMax",
            )
        for place, part in self._placed(table):
            self._gathered.setdefault(place, []).append(part)

    def take(self) -> dict[Place, pa.Table]:
        """Return the messages for each partition, in the order in which they came, and hold none any more."""
        gathered, self._gathered, self._bytes = self._gathered, {}, 0
        return {place: pa.concat_tables(parts, promote_options="default") for place, parts in sorted(gathered.items())}

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


def batches(
    table: pa.Table, *, stable_order: bool, batch_bytes: int = BATCH_BYTES, cut_bytes: int = CUT_BYTES
) -> list[pa.Table]:
    """Divide the messages for one partition into batches: the same for the same messages, in whatever order."""
    sizes = _sizes(table)
    if pc.sum(sizes).as_py() <= batch_bytes:
        return [table]
    if not stable_order:
        table = _sorted(table)
        sizes = _sizes(table)
    return [table.slice(start, end - start) for start, end, _ in cuts(sizes.to_pylist(), cut_bytes)]


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
    "partition": pa.utf8(),
}


def _messages(batch: pa.RecordBatch) -> pa.Table:
    """Return rows with the types of messages; text is taken as its UTF-8."""
    columns: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        wanted = _CASTS.get(name)
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
    """Divide rows by the values of a column."""
    column = table.column(name)
    found = pc.unique(column).to_pylist()
    if len(found) == 1:
        yield found[0], table
        return
    for value in found:
        mask = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        yield value, table.filter(mask)


def _sizes(table: pa.Table) -> Any:
    """Return about what each message takes, by its content alone: not by how Arrow happens to hold it."""
    sizes = pc.add(pc.cast(pc.binary_length(table.column("value")), pa.int64()), ROW_BYTES)
    if "key" in table.schema.names:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(table.column("key")), 0))
    if "headers" in table.schema.names:
        texts = _headers_as_text(table)
        sizes = pc.add(sizes, pc.binary_length(texts))
    return sizes


def _sorted(table: pa.Table) -> pa.Table:
    """Bring rows into an order that depends on nothing but the rows."""
    names: list[str] = [name for name in ("key", "value", "timestamp") if name in table.schema.names]
    by = table.select(names)
    if "headers" in table.schema.names:
        by = by.append_column("headers", _headers_as_text(table))
        names.append("headers")
    order = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in names])
    return table.take(order).combine_chunks()


def _headers_as_text(table: pa.Table) -> pa.Array:
    """Arrow does not compare lists; this is the one place that looks at messages one by one, if they have headers."""
    return pa.array([repr(each) for each in table.column("headers").to_pylist()], pa.utf8())
