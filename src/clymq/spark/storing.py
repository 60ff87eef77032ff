"""How the rows of a task are stored once each: on their way to a partition while Spark still makes more of them.

The batches that a task writes to a partition in one micro-batch have the numbers `first`, `first + 1`, ...; the one
that ends it has the number `last`. So the partition itself says how far an attempt came (`client.exactly_once`):

    nothing from `first` on   nobody was here: rows are written as they come, in their order
    `last`                    all is stored: rows are left out
    anything between          an attempt was cut off: rows are held to the end, what it stored is read back (`repeats`),
                              and the rows that are missing are written under the numbers behind it

Up to 8 MiB for a partition are one batch, `last`: stored as a whole or not at all. To ask the partition fences every
attempt before, and nothing is written without having asked: of two attempts at a time the one that asked last goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from clymq.client.exactly_once import Build, Numbered, Pieces, SparseWriter, Standing
from clymq.client.partitioning import cut_table
from clymq.config import MiB
from clymq.errors import InvalidRequest, MessageTooLarge
from clymq.record import BatchBuilder
from clymq.spark.link import Link
from clymq.spark.options import SinkOptions
from clymq.spark.repeats import read_back
from clymq.spark.targets import Place

BATCH_BYTES: Final = 8 * MiB
"""So much is one batch; the cluster takes twice as much, so that one more message always fits."""
CUT_BYTES: Final = 2 * MiB
"""What is more is cut into batches of at most this size: memory for larger ones costs more than their number."""
WAITING_BYTES: Final = 16 * MiB
"""So much may wait for a partition while a part is on its way to it; then Spark has to wait."""


BuildOf = Callable[[pa.Table], Build]


class TaskRows:
    """The rows of one attempt of a task, for all partitions."""

    def __init__(self, link: Link, producer: str, first: int, last: int, options: SinkOptions) -> None:
        """`first` and `last` are the numbers that belong to this micro-batch."""
        self._link = link
        self._producer = producer
        self._numbers = first, last
        self._options = options
        self._now_us = time.time_ns() // 1000
        self._places: dict[Place, _PlaceRows] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """Where rows went."""
        return tuple(sorted({topic for topic, _ in self._places}))

    def add(self, place: Place, rows: pa.Table) -> None:
        """Take rows for a partition."""
        found = self._places.get(place)
        if found is None:
            writer = SparseWriter(self._link.cluster, *place, self._producer, timeout=self._options.timeout)
            found = _PlaceRows(self._link, writer, *self._numbers, self._build)
            self._places[place] = found
        found.add(rows)
        held = sum(each.held_bytes for each in self._places.values())
        if held > self._options.buffer_bytes_max:
            raise MessageTooLarge(
                f"a task holds {held} bytes of rows; {self._options.buffer_bytes_max} are allowed",
                size_bytes=held,
                limit_bytes=self._options.buffer_bytes_max,
                hint="use more tasks (repartition, minPartitions, maxOffsetsPerTrigger), or raise bufferBytesMax",
            )

    def finish(self) -> tuple[int, int]:
        """Store what is left; return how many batches are new, and how many rows were stored before."""

        async def all_places() -> None:
            await asyncio.gather(*(each.finish() for each in self._places.values()))

        # Each wait inside is bounded by `timeout`; how many there are is not known here.
        for each in self._places.values():
            each.settle()
        self._link.begin(all_places()).result()
        places = self._places.values()
        return sum(each.written for each in places), sum(each.skipped for each in places)

    def cancel(self) -> None:
        """Give up; what is on its way may be stored or not, as whoever comes next finds out."""
        for each in self._places.values():
            each.cancel()

    def _build(self, table: pa.Table) -> Build:
        def build(number: int, epoch: int) -> Pieces:
            builder = BatchBuilder(self._options.codec).add_arrow(table)
            return builder.build_pieces(
                producer=self._producer, cmdindex=number, epoch=epoch, sparse=True, now=self._now_us
            )

        return build


class _PlaceRows:
    """The rows for one partition. `add` and `settle` are called by Spark's thread, `finish` runs on the event loop."""

    def __init__(
        self, link: Link, writer: SparseWriter, first: int, last: int, build: Callable[[pa.Table], Build]
    ) -> None:
        self.written = 0
        self.skipped = 0
        self.held_bytes = 0
        self._held: list[pa.Table] = []
        self._link = link
        self._writer = writer
        self._first, self._last = first, last
        self._next = first
        self._build = build
        self._standing: Standing | None = None
        self._pushing: Future[None] | None = None

    def add(self, rows: pa.Table) -> None:
        """Take rows, and send what is enough for batches if nothing is on its way."""
        if self._is_stored:
            self.skipped += rows.num_rows
            return
        self._held.append(rows)
        self.held_bytes += rows.nbytes
        if self._standing is None and self.held_bytes > BATCH_BYTES:
            self._link.begin(self._begin()).result()
        if self._is_fresh and self.held_bytes > CUT_BYTES:
            self._send()

    def settle(self) -> None:
        """Wait for what is on its way."""
        if self._pushing is not None:
            self._pushing.result()
            self._pushing = None

    def cancel(self) -> None:
        """Wait for nothing any more."""
        if self._pushing is not None:
            self._pushing.cancel()

    async def finish(self) -> None:
        """Store what is held as the last of all; nothing is on its way."""
        if self._standing is None:
            await self._begin()
        assert self._standing is not None
        rows = self._take()
        if self._is_stored:
            self.skipped += rows.num_rows
            return
        if not self._is_fresh:
            rows = await self._missing(rows, self._standing)
        *pieces, tail = [rows] if rows.nbytes <= BATCH_BYTES else cut_table(rows, CUT_BYTES)
        if tail.num_rows:
            await self._writer.push(self._standing.epoch, [*self._numbered(pieces), (self._last, self._build(tail))])
            self.written += 1

    # --- Inside ---

    @property
    def _is_fresh(self) -> bool:
        return self._standing is not None and self._standing.next <= self._first

    @property
    def _is_stored(self) -> bool:
        return self._standing is not None and self._standing.next > self._last

    async def _begin(self) -> None:
        self._standing = await self._writer.begin(self._last)
        self._next = max(self._first, self._standing.next)

    async def _missing(self, rows: pa.Table, standing: Standing) -> pa.Table:
        writer = self._writer
        stored = await read_back(
            self._link.cluster,
            writer.topic,
            writer.partition,
            writer.producer,
            self._first,
            standing,
            timeout=writer.timeout,
        )
        missing = stored.missing(rows)
        self.skipped += rows.num_rows - missing.num_rows
        return missing

    def _send(self) -> None:
        """Send all but the last batch of what is held: whatever comes last has a number of its own."""
        if self._pushing is not None and not self._pushing.done() and self.held_bytes < WAITING_BYTES:
            return
        self.settle()
        assert self._standing is not None
        *pieces, tail = cut_table(self._take(), CUT_BYTES)
        self._held, self.held_bytes = [tail], tail.nbytes
        self._pushing = self._link.begin(self._writer.push(self._standing.epoch, self._numbered(pieces)))

    def _take(self) -> pa.Table:
        held, self._held, self.held_bytes = self._held, [], 0
        return pa.concat_tables(held, promote_options="default")

    def _numbered(self, pieces: list[pa.Table]) -> list[Numbered]:
        numbers = range(self._next, self._next + len(pieces))
        if numbers.stop > self._last:
            raise InvalidRequest(f"more than {self._last - self._first} batches of one task for one partition")
        self._next = numbers.stop
        self.written += len(pieces)
        return [(number, self._build(piece)) for number, piece in zip(numbers, pieces, strict=True)]
