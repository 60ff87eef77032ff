"""What Spark's Python sources and sinks can do at best: Arrow batches from memory, and a sink that drops them.

Imported by Spark's workers, so it stands in a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from clymq.client.messages import Run
from clymq.record import Batch, BatchBuilder
from clymq.spark.columns import ROWS, RowMaker, table_schema

TASKS = 2
# What the producer of the benchmark fills a batch to, and what a message of no bytes takes of it.
BATCH_BYTES = 1 << 20
MESSAGE_BYTES = 12


@cache
def rows_of(size: int, names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows that the source of ClyMQ makes of one batch of messages of this size."""
    count = min(ROWS, BATCH_BYTES // (size + MESSAGE_BYTES))
    values = [number.to_bytes(8, "little") + bytes(size - 8) for number in range(count)]
    built = bytearray(BatchBuilder().add_values(values).build(producer="bench", cmdindex=1))
    schema = StructType([field for field in table_schema(headers=False).fields if field.name in names])
    run = Run("memory", "0", Batch.parse(built), 0, count)
    (rows,) = RowMaker(schema, "memory", "0").rows([run])
    return rows


class MemorySource(DataSource):
    """`size`: bytes of a value, `rows`: how many in all; as a sink it drops what it gets."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "memory_arrow"

    def schema(self) -> StructType:
        """Return the columns of a topic."""
        return table_schema(headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader from memory."""
        return MemoryReader(schema, int(self.options["size"]), int(self.options["rows"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        """Return a sink that drops."""
        return Dropping()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: ARG002, N802
        """Return a sink that drops."""
        return DroppingStream()


class MemoryReader(DataSourceReader):
    """Yields the same batch over and over."""

    def __init__(self, schema: StructType, size: int, rows: int) -> None:
        self._names, self._size, self._rows = tuple(schema.fieldNames()), size, rows

    def partitions(self) -> list[InputPartition]:
        """Return two tasks, as many as there are cores."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield this task's share."""
        rows = rows_of(self._size, self._names)
        left = self._rows // TASKS
        while left:
            share = min(left, rows.num_rows)
            yield rows.slice(0, share)
            left -= share


class Dropping(DataSourceArrowWriter):
    """Takes rows and forgets them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Take all."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DroppingStream(DataSourceStreamArrowWriter):
    """Takes rows and forgets them."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Take all."""
        for _ in iterator:
            pass
        return WriterCommitMessage()
