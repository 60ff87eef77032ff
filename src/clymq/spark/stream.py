"""Reading topics as a stream: how far the next micro-batch goes, and what Spark is told about the rest.

All of this runs in one process for the life of a query; tasks read by themselves (`reading`). What must hold:
* a position never moves back, whatever an old leader says about its end;
* a topic that was deleted, or deleted and made anew, is noticed by its id, and so is what retention has removed: an
  error that names what is lost, or with failOnDataLoss=false a warning;
* a partition that appears is read from its beginning;
* what lies between two positions is divided by `planning` alone, which asks nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clymq.client.cluster import LOOK_AGAIN_MS_MAX, Cluster
from clymq.client.offsets import commit_offset, wait_past
from clymq.client.waiting import Deadline
from clymq.errors import ClymqError, UnknownTopic
from clymq.spark.columns import check_schema
from clymq.spark.link import link_to
from clymq.spark.offsets import (
    Offsets,
    Range,
    TopicOffsets,
    from_json,
    limited,
    message_count,
    partitions_of,
    ranges_between,
    to_json,
)
from clymq.spark.options import SourceOptions
from clymq.spark.planning import plan
from clymq.spark.positions import Topics, end_offsets, find_topics, resolve, subscribe_to
from clymq.spark.reading import RangeOptions, RangePartition, lost_error, read_range

log = logging.getLogger("clymq.spark")

# How long an idle query waits for a message before it tells Spark that there is none. Spark asks again at once.
IDLE_WAIT_SECONDS: Final = 0.5
# Of at most so many partitions at a time: each costs its leader a long poll.
IDLE_PARTITIONS_MAX: Final = 256


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Made anew in each process that Spark uses; nothing is kept but what can be asked again."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(schema, headers=options.include_headers)
        self._options = options
        self._schema = schema
        self._ranges = RangeOptions(options.bootstrap, options.group, options.fail_on_data_loss, options.timeout)
        self._initial: Offsets | None = None
        self._topics: Topics = {}
        self._subscribed: set[str] = set()
        self._latest: Offsets = {}
        self._target: Offsets | None = None
        """Where an AvailableNow query ends."""
        self._waiting_since: float | None = None
        """When a micro-batch began to wait for enough messages."""

    # --- Positions ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 Spark's name
        """Return where a new query begins. Spark asks twice, and must hear the same."""
        if self._initial is None:
            self._initial = self._run(self._find_initial)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 Spark's name
        """Return what Spark hands to `latestOffset` unless the trigger is to take everything."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 Spark's name
        """Return how far the next micro-batch goes; `start` if there is none to be made yet."""
        begin = from_json(start)
        end = self._run(lambda cluster, deadline: self._find_end(cluster, begin, deadline))
        if not isinstance(limit, ReadAllAvailable):
            if self._is_too_little(begin, end):
                return dict(start)
            if self._options.max_offsets_per_trigger is not None:
                end = limited(begin, end, self._options.max_offsets_per_trigger)
        if ranges_between(begin, end):
            self._waiting_since = None
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 Spark's name
        """Return where the topics end, as last heard: Spark shows it beside where the query is."""
        return to_json(self._latest) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 Spark's name
        """Note where the topics end now: the query ends there."""
        self._target = self._run(self._find_target)

    # --- Work ---

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return one entry for each task: the same for the same positions, always."""
        planned = plan(
            from_json(start),
            from_json(end),
            min_partitions=self._options.min_partitions,
            max_records_per_partition=self._options.max_records_per_partition,
        )
        return [RangePartition(each) for each in planned] or [RangePartition(Range("", "", "", 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, RangePartition)
        if partition.range.size:
            yield from read_range(partition.range, self._schema, self._ranges)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Store the progress for the group, if there is one, where tools look for it. Nothing here depends on it."""
        if self._options.group is not None:
            group = self._options.group
            try:
                self._run(lambda cluster, deadline: _commit(cluster, from_json(end), group, deadline))
            except ClymqError as error:
                # The checkpoint is the truth; a group that lags behind for once is no reason to stop a query.
                log.warning("the progress of group %s is not stored: %s", group, error)

    def stop(self) -> None:
        """Do nothing: Spark ends this process."""

    # --- Inside ---

    def _run(self, work: Any) -> Any:
        return link_to(self._options.bootstrap).run(work, self._options.timeout)

    async def _find_initial(self, cluster: Cluster, deadline: Deadline) -> Offsets:
        topics = await self._look(cluster, deadline)
        return await resolve(cluster, topics, self._options.start, self._options, deadline)

    async def _find_target(self, cluster: Cluster, deadline: Deadline) -> Offsets:
        return await end_offsets(cluster, await self._look(cluster, deadline), deadline)

    async def _find_end(self, cluster: Cluster, start: Offsets, deadline: Deadline) -> Offsets:
        """Return where the topics end; if nothing is new, wait a moment for something."""
        end = await self._ends(cluster, start, deadline)
        if self._target is None and not ranges_between(start, end):
            await _anything_new(cluster, end)
            end = await self._ends(cluster, start, deadline)
        return end

    async def _ends(self, cluster: Cluster, start: Offsets, deadline: Deadline) -> Offsets:
        topics = await self._look(cluster, deadline)
        self._check_loss(start, topics)
        if self._target is None:
            self._latest = _not_before(await end_offsets(cluster, topics, deadline), self._latest)
        else:
            self._latest = self._target
        return _not_before(self._latest, start)

    async def _look(self, cluster: Cluster, deadline: Deadline) -> Topics:
        """Return the topics as they are now; while no controller answers, as they were."""
        limit = min(deadline.remaining_ms, LOOK_AGAIN_MS_MAX) / 1000 if self._topics else deadline.remaining_ms / 1000
        brief = Deadline(cluster.clock, limit)
        try:
            found = await find_topics(cluster, self._options.subscription, brief)
            new = {name: each for name, each in found.items() if name not in self._subscribed}
            await subscribe_to(cluster, new, self._options.group, brief)
        except UnknownTopic:
            if not self._topics or self._options.fail_on_data_loss:
                raise
            found = {}
        except ClymqError as error:
            if not self._topics or not error.retriable:
                raise
            return self._topics
        self._subscribed |= new.keys() if found else set()
        self._topics = found
        return found

    def _check_loss(self, start: Offsets, topics: Topics) -> None:
        """Notice what `start` still wants and nobody has any more."""
        gone = []
        for topic, partition, offset in partitions_of(start):
            found = topics.get(topic)
            if found is None or found.id != start[topic].id or partition not in found.partitions:
                gone.append((Range(topic, start[topic].id, partition, offset, offset), "the topic was deleted"))
            elif offset < found.partitions[partition].first:
                first = found.partitions[partition].first
                gone.append((Range(topic, found.id, partition, offset, first), "they were removed by retention"))
        if gone and self._options.fail_on_data_loss:
            raise lost_error([each for each, _ in gone], "; ".join(sorted({why for _, why in gone})))
        for each, why in gone:
            log.warning("%s and what followed is not there: %s", each, why)

    def _is_too_little(self, start: Offsets, end: Offsets) -> bool:
        """Whether to wait for more messages, and not for too long already."""
        least = self._options.min_offsets_per_trigger
        waiting = message_count(start, end)
        if least is None or waiting == 0 or waiting >= least or self._target is not None:
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return (now - self._waiting_since) * 1000 < self._options.max_trigger_delay_ms


def _not_before(end: Offsets, start: Offsets) -> Offsets:
    """Return `end`, but in no partition before `start`; topics that `end` does not know are gone."""
    found = {}
    for topic, each in end.items():
        before = start.get(topic)
        known = before.offsets if before is not None and before.id == each.id else {}
        numbers = {name: max(number, known.get(name, 0)) for name, number in each.offsets.items()}
        found[topic] = TopicOffsets(each.id, numbers)
    return found


async def _anything_new(cluster: Cluster, end: Offsets) -> None:
    """Return when a message comes, or after a moment."""
    places = list(partitions_of(end))[:IDLE_PARTITIONS_MAX]
    deadline = Deadline(cluster.clock, IDLE_WAIT_SECONDS)
    waits = [asyncio.create_task(wait_past(cluster, *place, deadline)) for place in places]
    waits.append(asyncio.create_task(asyncio.sleep(IDLE_WAIT_SECONDS)))
    try:
        await asyncio.wait(waits, timeout=IDLE_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
        # What went wrong here goes wrong again when the ends are asked for, and is said there.
        await asyncio.gather(*waits, return_exceptions=True)


async def _commit(cluster: Cluster, end: Offsets, group: str, deadline: Deadline) -> None:
    await asyncio.gather(
        *(
            commit_offset(cluster, topic, partition, group, offset, deadline)
            for topic, partition, offset in partitions_of(end)
        )
    )
