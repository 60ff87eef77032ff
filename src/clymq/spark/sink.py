"""Writing rows to topics, each once: what a task writes is recognised by its numbers, however often it is repeated.

A task is a producer named for the query and the task's place in it. What it writes to a partition are batches numbered
(micro-batch + 1) * 2^20 + k; before the first of them it asks the partition where this producer stands, which fences
every earlier attempt of the same task and says what that has stored (`storing`). A batch job is the same with a name
made once on the driver, and one micro-batch.

It holds as long as each attempt of a task has the same rows, in whatever order; docs/spark.md says when that is so.
Where the sink can see that it does not hold, it refuses: no identity, an ack below quorum, numbers older than what is
stored, stored rows that a later attempt does not have.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clymq.client.producer import AsyncProducer
from clymq.config import MiB
from clymq.errors import InvalidRequest
from clymq.spark.link import Link, link_to
from clymq.spark.options import SinkOptions
from clymq.spark.routing import Partitions, Routes, Topics, begin, finish, look, place_of
from clymq.spark.storing import TaskRows
from clymq.spark.targets import Place, Targets, check_columns

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
    """What a task did: rows in all, batches that are new, and rows that an earlier attempt had stored."""

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
    targets = Targets(options.topic, partitions, turn=task + batch)
    if not options.exactly_once:
        return _write_at_least_once(iterator, targets, options, link)
    first = (batch + 1) * NUMBERS
    stored = TaskRows(link, f"{name}-{task}", first, first + NUMBERS - 1, options)
    count = 0
    try:
        for rows in iterator:
            if rows.num_rows:
                count += rows.num_rows
                for place, part in targets.divide(rows):
                    stored.add(place, part)
        return Written(count, *stored.finish(), stored.topics)
    finally:
        stored.cancel()


def _write_at_least_once(
    iterator: Iterator[pa.RecordBatch], targets: Targets, options: SinkOptions, link: Link
) -> Written:
    """Push as rows come; a repeated attempt pushes them again."""
    producer = AsyncProducer(
        options.bootstrap, batch_bytes=_AT_LEAST_ONCE_BATCH_BYTES, codec=options.codec, timeout=options.timeout
    )
    under_way: deque[Future[None]] = deque()
    count = written = 0

    async def push(tables: Mapping[Place, pa.Table]) -> None:
        parts = (producer.push_arrow(topic, table, partition=name) for (topic, name), table in tables.items())
        await asyncio.gather(*parts)

    try:
        for rows in iterator:
            if rows.num_rows:
                count += rows.num_rows
                tables = _together(targets.divide(rows))
                written += len(tables)
                under_way.append(link.begin(push(tables)))
                if len(under_way) > _PUSHES_MAX:
                    under_way.popleft().result()
        for each in under_way:
            each.result()
    finally:
        link.begin(producer.close()).result()
    return Written(count, written)


def _together(parts: Iterable[tuple[Place, pa.Table]]) -> dict[Place, pa.Table]:
    """Join what goes to one partition by name and what goes there by key."""
    tables: dict[Place, pa.Table] = {}
    for place, part in parts:
        before = tables.get(place)
        tables[place] = part if before is None else pa.concat_tables([before, part], promote_options="default")
    return tables
