"""What a task does: read its range, as Arrow, ahead of Spark; and say which messages are gone if some are."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from clymq.client.cluster import Cluster
from clymq.client.messages import Run
from clymq.client.offsets import find_topic
from clymq.client.ranges import RangeReader
from clymq.client.waiting import Deadline
from clymq.config import MiB
from clymq.errors import ClymqError, CorruptBatch, DataLost, OffsetOutOfRange, UnknownPartition, UnknownTopic
from clymq.spark.columns import ROWS, RowMaker
from clymq.spark.link import Link, link_to
from clymq.spark.offsets import Range
from clymq.spark.planning import spread

log = logging.getLogger("clymq.spark")

CONSUMER: Final = "spark"
"""The name under which topics are read: one for all tasks, because a subscription is a write to the metadata."""
CHUNK_ROWS: Final = 4 * ROWS
CHUNK_BYTES: Final = 8 * MiB


@dataclass
class RangePartition(InputPartition):
    """One task's share: pickled by Spark, so it says everything that the task needs."""

    range: Range

    def __init__(self, range_: Range) -> None:
        super().__init__(None)
        self.range = range_


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """What all tasks of a query share."""

    bootstrap: str
    group: str | None
    fail_on_data_loss: bool
    timeout: float


def read_range(range_: Range, schema: StructType, options: RangeOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range. The next chunk is fetched while Spark takes the one before."""
    link = link_to(options.bootstrap)
    reader = link.run(lambda cluster, deadline: _open(cluster, range_, options, deadline), options.timeout)
    if reader is None:
        return
    maker = RowMaker(schema, range_.topic, range_.partition)
    try:
        yield from _rows(link, reader, maker, range_, options)
    finally:
        link.wait(link.begin(reader.close()), options.timeout)


def _rows(
    link: Link, reader: RangeReader, maker: RowMaker, range_: Range, options: RangeOptions
) -> Iterator[pa.RecordBatch]:
    fetching = link.begin(_take(reader))
    try:
        while True:
            try:
                runs = link.wait(fetching, options.timeout)
            except (OffsetOutOfRange, DataLost, CorruptBatch) as error:
                behind = _lost(range_, reader.position, error, options)
                link.wait(link.begin(reader.skip_to(behind)), options.timeout)
                fetching = link.begin(_take(reader))
                continue
            if not runs:
                return
            fetching = link.begin(_take(reader))
            yield from maker.rows(runs)
    finally:
        fetching.cancel()  # Spark may have seen enough


async def _open(cluster: Cluster, range_: Range, options: RangeOptions, deadline: Deadline) -> RangeReader | None:
    """Return a reader of the partition that was meant when the work was planned, and of no other of its name."""
    try:
        found = await find_topic(cluster, range_.topic, deadline)
        if found.id != range_.topic_id:
            raise UnknownTopic(f"topic {range_.topic} was deleted and made anew: it is {found.id} now")
        partition = found.partitions.get(range_.partition)
        if partition is None:
            raise UnknownPartition(f"{range_.topic} has no partition {range_.partition}")
    except (UnknownTopic, UnknownPartition) as error:
        _lost(range_, range_.start, error, options)
        return None
    reader = RangeReader(
        cluster,
        range_.topic,
        range_.partition,
        uid=partition.uid,
        start=range_.start,
        end=range_.end,
        consumer=CONSUMER,
        group=options.group,
        timeout=options.timeout,
        spread=spread(range_),
    )
    reader.start()
    return reader


async def _take(reader: RangeReader) -> list[Run]:
    return await reader.take(messages_max=CHUNK_ROWS, bytes_max=CHUNK_BYTES)


def _lost(range_: Range, position: int, error: ClymqError, options: RangeOptions) -> int:
    """Return where to go on behind messages that are gone, if that is allowed."""
    end = range_.end
    if isinstance(error, OffsetOutOfRange):
        end = error.first if error.first > position else range_.end
    elif isinstance(error, DataLost | CorruptBatch) and error.end is not None:
        end = error.end
    gone = range_._replace(start=position, end=max(position, min(end, range_.end)))
    if options.fail_on_data_loss:
        raise lost_error([gone], error)
    log.warning("%s cannot be read and is left out: %s", gone, error)
    return gone.end


def lost_error(gone: list[Range], why: object) -> DataLost:
    """Return the error that names the messages that cannot be read."""
    ranges = ", ".join(map(str, gone))
    return DataLost(
        f"messages cannot be read any more: {ranges}: {why}",
        start=gone[0].start,
        end=gone[-1].end,
        hint="failOnDataLoss=false goes on without them",
    )
