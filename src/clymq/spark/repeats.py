"""What an earlier attempt of a task has stored, and which of its rows are still missing.

An attempt that was cut off has left some batches in the log, under its producer's name and consecutive numbers. Rows
may come in another order the next time, so the numbers do not say which rows those are: they are read back, and what
this attempt has beyond them is missing. Nothing is added meanwhile: whoever reads back has fenced all before it.

Batches are looked for backwards from the last one that the partition knows the place of. However they are found, they
count only if they are all there: what retention or a loss has taken would be stored a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from clymq.client.cluster import Cluster
from clymq.client.exactly_once import Standing
from clymq.client.offsets import end_offset, find_topic, subscribe
from clymq.client.ranges import RangeReader
from clymq.client.waiting import Deadline
from clymq.config import MiB
from clymq.errors import DataLost, InvalidRequest, UnknownPartition
from clymq.record.builder import producer_id
from clymq.spark.reading import CONSUMER

# How far to look back at first, and how much further each time.
_STEP_MESSAGES: Final = 10_000
_GROWTH: Final = 4
_TAKE_MESSAGES: Final = 100_000
_TAKE_BYTES: Final = 8 * MiB

Content = tuple[bytes, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Value, key and headers of a message."""


class StoredRows:
    """Rows that are stored, each as often as it is; taken out one by one when they are met again."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[Content, int]] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take messages of the log."""
        self._rows.update(zip(_contents(batch), batch.column("timestamp").to_pylist(), strict=True))

    def missing(self, rows: pa.Table) -> pa.Table:
        """Return those of all rows of a task that are not stored, in their order.

        A row without a time was stored with that of its attempt. So those that have one are taken out first: what is
        left then of the same content was stored without. If anything is left in the end, an attempt had other rows.
        """
        contents, times = _contents(rows), _times(rows)
        timed = {at for at, time in enumerate(times) if time is not None and _taken(self._rows, (contents[at], time))}
        left: Counter[Content] = Counter()
        for (content, _), count in self._rows.items():
            left[content] += count
        untimed = {at for at, time in enumerate(times) if time is None and _taken(left, contents[at])}
        if left.total():
            raise InvalidRequest(
                f"an earlier attempt has stored {left.total()} rows that this one does not have: "
                f"exactly-once cannot hold",
                hint="each attempt of a task must have the same rows; docs/spark.md says when that is so",
            )
        stored = timed | untimed
        return rows.filter(pa.array([at not in stored for at in range(len(times))], pa.bool_()))


async def read_back(
    cluster: Cluster, topic: str, partition: str, producer: str, first: int, standing: Standing, *, timeout: float
) -> StoredRows:
    """Return the rows that a producer has stored under the numbers from `first` on."""
    deadline = Deadline(cluster.clock, timeout)
    found = (await find_topic(cluster, topic, deadline)).partitions.get(partition)
    if found is None:
        raise UnknownPartition(f"{topic} has no partition {partition}")
    await subscribe(cluster, topic, CONSUMER, "default", deadline)
    search = _Search(producer_id(producer), range(first, standing.next))
    kept = [each for each in standing.kept if each.number >= first]
    end = kept[-1].end if kept else await end_offset(cluster, topic, partition, deadline)
    until, start = end, max(found.first, kept[0].start if kept else end - _STEP_MESSAGES)
    while start < until:
        reader = RangeReader(
            cluster, topic, partition, uid=found.uid, start=start, end=until, consumer=CONSUMER, timeout=timeout
        )
        await search.look(reader)
        if search.is_complete:
            return search.rows
        until, start = start, max(found.first, start - _GROWTH * max(_STEP_MESSAGES, end - start))
    raise DataLost(
        f"{topic}/{partition}: what an earlier attempt of {producer} has stored is not all there any more: "
        f"{search.found} of {len(search.numbers)} batches are found",
        start=found.first,
        end=end,
        hint="which rows are missing cannot be known; begin with a new checkpoint, or another producerName",
    )


class _Search:
    """Gathers the batches of one producer; one may come in two parts."""

    def __init__(self, producer: bytes, numbers: range) -> None:
        self.rows = StoredRows()
        self.numbers = numbers
        self._producer = producer
        self._left: dict[int, int] = {}

    @property
    def found(self) -> int:
        """How many are there as a whole."""
        return sum(left == 0 for left in self._left.values())

    @property
    def is_complete(self) -> bool:
        """Whether that is all."""
        return self.found == len(self.numbers)

    async def look(self, reader: RangeReader) -> None:
        """Read a range to its end."""
        reader.start()
        try:
            while runs := await reader.take(messages_max=_TAKE_MESSAGES, bytes_max=_TAKE_BYTES):
                for run in runs:
                    batch = run.batch
                    if batch.producer == self._producer and batch.cmdindex in self.numbers:
                        left = self._left.get(batch.cmdindex, batch.count)
                        self._left[batch.cmdindex] = left - (run.end - run.start)
                        self.rows.add(run.columns())
        finally:
            await reader.close()


def _taken(counter: Counter[Any], item: Any) -> bool:
    if not counter[item]:
        return False
    counter[item] -= 1
    return True


def _contents(rows: pa.Table | pa.RecordBatch) -> list[Content]:
    values = rows.column("value").to_pylist()
    keys = rows.column("key").to_pylist() if "key" in rows.schema.names else [None] * len(values)
    return list(zip(values, keys, _headers(rows), strict=True))


def _headers(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    """Yield headers that can be compared: none and an empty list are the same in a message."""
    if "headers" not in rows.schema.names:
        yield from [()] * rows.num_rows
        return
    for each in rows.column("headers").to_pylist():
        yield tuple((header["key"], header["value"]) for header in each or ())


def _times(rows: pa.Table) -> Sequence[int | None]:
    """Return the times that rows were given, in microseconds."""
    if "timestamp" not in rows.schema.names:
        return [None] * rows.num_rows
    column: Any = rows.column("timestamp")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz))
    times: list[int | None] = column.cast(pa.int64()).to_pylist()
    return times
