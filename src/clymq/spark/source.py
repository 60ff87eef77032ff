"""The data source `clymq`: what Spark finds by that name, and reading a topic as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamArrowWriter, InputPartition
from pyspark.sql.types import StructType

from clymq.client.cluster import Cluster
from clymq.client.waiting import Deadline
from clymq.errors import InvalidRequest
from clymq.spark.columns import check_schema, table_schema
from clymq.spark.link import link_to
from clymq.spark.offsets import Offsets, Range, ranges_between
from clymq.spark.options import SourceOptions, includes_headers, sink_options, source_options
from clymq.spark.planning import plan
from clymq.spark.positions import end_offsets, find_topics, first_offsets, resolve, subscribe_to
from clymq.spark.reading import RangeOptions, RangePartition, lost_error, read_range
from clymq.spark.sink import BatchWriter, StreamWriter
from clymq.spark.stream import StreamReader


class ClymqDataSource(DataSource):
    """Topics of a ClyMQ cluster as tables and streams, to read and to write."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "clymq"

    def schema(self) -> StructType:
        """Return the columns of a topic."""
        return table_schema(headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what is there now."""
        return TableReader(source_options(self.options, "batch"), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 Spark's name
        """Return a reader that goes on."""
        return StreamReader(source_options(self.options, "stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a writer for one job."""
        return BatchWriter(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a writer for one micro-batch."""
        return StreamWriter(sink_options(self.options), schema, dict(self.options), overwrite=overwrite)


class TableReader(DataSourceReader):
    """Reads the messages between two positions, which are found once: all uses of a DataFrame see the same rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, headers=options.include_headers)
        self._options = options
        self._schema = schema
        self._ranges = RangeOptions(options.bootstrap, options.group, options.fail_on_data_loss, options.timeout)

    def partitions(self) -> list[InputPartition]:
        """Return one entry for each task."""
        options = self._options
        start, end = link_to(options.bootstrap).run(self._find, options.timeout)
        planned = plan(
            start,
            end,
            min_partitions=options.min_partitions,
            max_records_per_partition=options.max_records_per_partition,
        )
        # Spark makes a task of its own out of an empty list.
        return [RangePartition(each) for each in planned] or [RangePartition(_NOTHING)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, RangePartition)
        if partition.range.size:
            yield from read_range(partition.range, self._schema, self._ranges)

    async def _find(self, cluster: Cluster, deadline: Deadline) -> tuple[Offsets, Offsets]:
        options = self._options
        topics = await find_topics(cluster, options.subscription, deadline)
        await subscribe_to(cluster, topics, options.group, deadline)
        start = await resolve(cluster, topics, options.start, options, deadline)
        end = await resolve(cluster, topics, options.end, options, deadline)
        gone = ranges_between(start, first_offsets(topics))
        if gone and options.fail_on_data_loss:
            raise lost_error(gone, "they were removed by retention")
        if options.end.kind == "offsets":
            missing = ranges_between(await end_offsets(cluster, topics, deadline), end)
            if missing:
                raise InvalidRequest(f"endingOffsets asks for what is not there yet: {', '.join(map(str, missing))}")
        return start, end


_NOTHING = Range("", "", "", 0, 0)


def register(spark: Any) -> None:
    """Make the source known to a session; not needed where `pyspark_clymq` can be imported."""
    spark.dataSource.register(ClymqDataSource)
