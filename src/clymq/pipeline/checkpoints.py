"""How far a pipeline is, from its checkpoints and the cluster alone: no Spark has to run for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clymq.client.cluster import Cluster
from clymq.client.offsets import end_offset, find_topic
from clymq.client.waiting import Deadline
from clymq.errors import ClymqError, ConfigError
from clymq.pipeline.definition import Definition
from clymq.pipeline.names import queries_of
from clymq.spark.offsets import Offsets, from_json


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """Where a query stands: its last finished micro-batch, and what is behind and before it in each partition."""

    query: str
    batch: int = -1
    """-1: none has finished."""
    time_ms: int = 0
    partitions: list[dict[str, Any]] = field(default_factory=list)
    """topic, partition, offset, end, lag."""

    @property
    def lag(self) -> int:
        """How many messages wait for it."""
        return sum(each["lag"] for each in self.partitions)


async def pipeline_status(definition: Definition, cluster: Cluster, seconds: float) -> list[QueryStatus]:
    """Return where each query stands."""
    if "://" in definition.checkpoint and not definition.checkpoint.startswith("file:"):
        raise ConfigError("checkpoint", definition.checkpoint, "is on a file system that only Spark can read")
    root = Path(definition.checkpoint.removeprefix("file://"))
    return [
        await _status(name, root / name, cluster, Deadline(cluster.clock, seconds)) for name in queries_of(definition)
    ]


async def _status(name: str, folder: Path, cluster: Cluster, deadline: Deadline) -> QueryStatus:
    batch = _last(folder / "commits")
    if batch < 0:
        return QueryStatus(name)
    time_ms, sources = _read(folder / "offsets" / str(batch))
    places = [
        (topic, partition, offset, of.id)
        for offsets in sources
        for topic, of in offsets.items()
        for partition, offset in of.offsets.items()
    ]
    found = await asyncio.gather(*(_partition(cluster, *place, deadline) for place in places))
    return QueryStatus(name, batch, time_ms, list(found))


async def _partition(
    cluster: Cluster, topic: str, partition: str, offset: int, topic_id: str, deadline: Deadline
) -> dict[str, Any]:
    known = {"topic": topic, "partition": partition, "offset": offset}
    found = await find_topic(cluster, topic, deadline)
    end = await end_offset(cluster, topic, partition, deadline)
    # Of a topic that was made anew everything is still to be read.
    return {**known, "end": end, "lag": max(0, end - offset) if found.id == topic_id else end}


def _last(folder: Path) -> int:
    """Return the highest batch that stands in a log of Spark's."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return -1
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _read(path: Path) -> tuple[int, list[Offsets]]:
    """Read an entry of the offset log: a version, a line about the batch, a line for each source."""
    try:
        _version, about, *lines = path.read_text(encoding="utf-8").splitlines()
        time_ms = int(json.loads(about)["batchTimestampMs"])
        found = []
        for line in lines:
            try:
                found.append(from_json(json.loads(line)))
            except (ValueError, ClymqError):
                continue  # of a source that is none of ours, or of one that had nothing
        return time_ms, found
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError("checkpoint", str(path), f"cannot be read: {error}") from None
