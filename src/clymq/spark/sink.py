"""Writing rows to topics, each once: what a task writes is recognised by its numbers, however often it is repeated.

A task is a producer named for the query and the task's place in it. What it writes to a partition are batches numbered
(micro-batch + 1) * 2^20 + k; before the first of them it asks the partition where this producer stands, which fences
every earlier attempt of the same task and says what that has stored (`client.exactly_once`). A batch job is the same
with a name made once on the driver, and one micro-batch.

It holds as long as each attempt of a task has the same rows, in whatever order; docs/spark.md says when that is so.
Where the sink can see that it does not hold, it refuses: no identity, an ack below quorum, numbers older than what is
stored.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clymq.client.cluster import Cluster
from clymq.client.exactly_once import Build, Pieces, SparseWriter
from clymq.client.producer import AsyncProducer
from clymq.config import MiB
from clymq.errors import InvalidRequest
from clymq.record import BatchBuilder
from clymq.spark.link import Link, link_to
from clymq.spark.options import SinkOptions
from clymq.spark.routing import Partitions, Routes, Topics, begin, finish, look, place_of
from clymq.spark.targets import Place, Targets, batches, check_columns

NUMBERS: Final = 1 << 20
"""How many batches of one micro-batch a task may write to a partition."""
# Internal names of Spark's, and the only way to learn these two inside a task.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_AT_LEAST_ONCE_BATCH_BYTES: Final = 1 * MiB
# How many of Spark's batches may be on their way at a time.
_PUSHES_MAX: Final = 4


@dataclass
class Written(WriterCommitMessage):
    """What a task did: rows in all, batches that are new, and batches that an earlier attempt had stored."""

    rows: int
    written: int = 0
    skipped: int = 0
    topics: tuple[str, ...] = ()
    """Where they went."""


class BatchWriter(DataSourceArrowWriter):
    """Writes one job. Made once, on the driver: all tasks and all their attempts share its name."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, overwrite)
        self._options = options
        self._name = options.producer_name or f"spark-{secrets.token_hex(16)}"
        if options.producer_name is not None and options.batch_id is None:
            raise InvalidRequest(
                f"producerName {options.producer_name} without batchId: a second job would be taken for a repetition",
                hint="give a batchId that grows from job to job, or leave both out",
            )
        # Found once, for all attempts of all tasks: a partition that is added meanwhile changes nothing.
        topics = [options.topic] if options.topic is not None else []
        self._settled = look(options.bootstrap, topics, options.timeout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write the rows of one task."""
        return _write(iterator, self._options, self._name, self._options.batch_id or 0, self._settled)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: what tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: what tasks have written stays; a job that failed has written some of its rows."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch of a query."""

    def __init__(self, options: SinkOptions, schema: StructType, given: Mapping[str, str], *, overwrite: bool) -> None:
        _check(schema, overwrite)
        if options.batch_id is not None:
            raise InvalidRequest("batchId is for batch writes; a query numbers its micro-batches itself")
        self._options = options
        self._checkpoint = {name.lower(): value for name, value in given.items()}.get("checkpointlocation", "")
        self._place = place_of(self._checkpoint) if options.exactly_once else None
        self._routes = Routes()
        if self._place is not None:
            self._routes = begin(self._place, options.bootstrap, options.topic, options.timeout)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write the rows of one task."""
        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not self._options.exactly_once:
            return _write(iterator, self._options, "", int(batch or 0), {})
        name = self._options.producer_name or _named(query or _query_id(self._checkpoint))
        if name is None:
            raise InvalidRequest(
                "exactly-once needs to know which query this is, and Spark does not say",
                hint="give the option producerName, one for each query, or delivery=at-least-once",
            )
        if batch is None:
            raise InvalidRequest(
                "exactly-once needs the number of the micro-batch, and Spark does not say it",
                hint="delivery=at-least-once works without",
            )
        return _write(iterator, self._options, name, int(batch), self._routes.at(int(batch)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Let the next micro-batch use partitions that have come since; what tasks have written is there."""
        if self._place is not None:
            used = {topic for each in messages if isinstance(each, Written) for topic in each.topics}
            finish(self._place, batchId, self._options.bootstrap, used, self._options.timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Do nothing: the micro-batch is repeated, and what is there is recognised."""


def _check(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest("a topic cannot be overwritten", hint='use mode("append"), or outputMode("append")')
    check_columns(schema.fieldNames())


def _named(query: str | None) -> str | None:
    return f"spark-{query}" if query else None


def _query_id(checkpoint: str) -> str | None:
    """Return the id of a query from its checkpoint, if that can be read here."""
    place = urlparse(checkpoint)
    if not checkpoint or place.scheme not in {"", "file"}:
        return None
    try:
        found = json.loads((Path(place.path) / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def _write(iterator: Iterator[pa.RecordBatch], options: SinkOptions, name: str, batch: int, settled: Topics) -> Written:
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    link = link_to(options.bootstrap)
    partitions = Partitions(settled, options.bootstrap, options.timeout)
    targets = Targets(options.topic, partitions, turn=task + batch, bytes_max=options.buffer_bytes_max)
    if not options.exactly_once:
        return _write_at_least_once(iterator, targets, options, link)
    for rows in iterator:
        if rows.num_rows:
            targets.add(rows)
    tables = targets.take()
    if not tables:
        return Written(0)
    work = _store(link.cluster, f"{name}-{task}", (batch + 1) * NUMBERS, tables, options)
    # Each wait inside is bounded by `timeout`; how many there are is not known here.
    written, skipped = link.begin(work).result()
    return Written(targets.rows, written, skipped, tuple({topic for topic, _ in tables}))


async def _store(
    cluster: Cluster, producer: str, first: int, tables: Mapping[Place, pa.Table], options: SinkOptions
) -> tuple[int, int]:
    """Write to all partitions together; return how many batches are new and how many were there."""
    now_us = time.time_ns() // 1000

    async def write_to(place: Place, table: pa.Table) -> tuple[int, int]:
        writer = SparseWriter(cluster, *place, producer, timeout=options.timeout)
        builds = [
            _build(part, producer, options.codec, now_us) for part in batches(table, stable_order=options.stable_order)
        ]
        stored = await writer.write(first, first + NUMBERS - 1, builds)
        return stored.written, stored.skipped

    done = await asyncio.gather(*(write_to(*each) for each in tables.items()))
    return sum(written for written, _ in done), sum(skipped for _, skipped in done)


def _build(table: pa.Table, producer: str, codec: str, now_us: int) -> Build:
    def build(number: int, epoch: int) -> Pieces:
        builder = BatchBuilder(codec).add_arrow(table)
        return builder.build_pieces(producer=producer, cmdindex=number, epoch=epoch, sparse=True, now=now_us)

    return build


def _write_at_least_once(
    iterator: Iterator[pa.RecordBatch], targets: Targets, options: SinkOptions, link: Link
) -> Written:
    """Push as rows come; a repeated attempt pushes them again."""
    producer = AsyncProducer(
        options.bootstrap, batch_bytes=_AT_LEAST_ONCE_BATCH_BYTES, codec=options.codec, timeout=options.timeout
    )
    under_way: deque[Future[None]] = deque()
    written = 0

    async def push(tables: Mapping[Place, pa.Table]) -> None:
        parts = (producer.push_arrow(topic, table, partition=name) for (topic, name), table in tables.items())
        await asyncio.gather(*parts)

    try:
        for rows in iterator:
            if rows.num_rows:
                targets.add(rows)
                tables = targets.take()
                written += len(tables)
                under_way.append(link.begin(push(tables)))
                if len(under_way) > _PUSHES_MAX:
                    under_way.popleft().result()
        for each in under_way:
            each.result()
    finally:
        link.begin(producer.close()).result()
    return Written(targets.rows, written)
