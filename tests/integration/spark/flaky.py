"""A sink that fails where it is told to, once for each place; imported by Spark's workers.

The option `faults` is a folder. Whoever comes to a place where a fault is wanted makes a file in it; who makes it first
fails, who finds it goes on. So each fault strikes once, in whatever process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from clymq.client import exactly_once
from clymq.spark import storing
from clymq.spark.options import sink_options
from clymq.spark.sink import BatchWriter, StreamWriter
from clymq.spark.source import ClymqDataSource


class Struck(Exception):
    """The fault that was asked for."""


def strike(folder: str, name: str) -> None:
    try:
        (Path(folder) / name).touch(exist_ok=False)
    except FileExistsError:
        return
    raise Struck(name)


class FlakySource(ClymqDataSource):
    @classmethod
    def name(cls) -> str:
        return "flaky"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        given = dict(self.options)
        folder = given.pop("faults")
        return FlakyBatchWriter(sink_options(given), schema, overwrite=overwrite, faults=folder)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 Spark's name
        given = dict(self.options)
        folder = given.pop("faults")
        return FlakyWriter(sink_options(given), schema, given, overwrite=overwrite, faults=folder)


class FlakyBatchWriter(BatchWriter):
    """Each task fails once, after it has written."""

    def __init__(self, *arguments: Any, faults: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext.get()
        assert context is not None
        written = super().write(iterator)
        strike(self._faults, f"task-{context.partitionId()}")
        return written


class FlakyWriter(StreamWriter):
    """Micro-batch 1, 6, ...: fails before it writes; 2, ...: after it has written; 3, ...: after some batches of it;
    4, ...: all is written, and the driver fails before the checkpoint knows. A few rows make several batches."""

    def __init__(self, *arguments: Any, faults: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        storing.BATCH_BYTES, storing.CUT_BYTES = 400, 200  # type: ignore[misc]
        context = TaskContext.get()
        assert context is not None
        batch, task = int(context.getLocalProperty("streaming.sql.batchId") or 0), context.partitionId()
        kind, place = batch % 5, f"{batch}-{task}"
        if kind == 1:
            strike(self._faults, place)
        if kind == 3:
            with Interrupted(self._faults, place):
                return super().write(iterator)
        written = super().write(iterator)
        if kind == 2:
            strike(self._faults, place)
        return written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 Spark's name
        super().commit(messages, batchId)
        if batchId % 5 == 4:
            strike(self._faults, f"{batchId}-driver")


class Interrupted:
    """While it is entered, what is sent first is the last: some batches of one partition, and not its last one."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name
        self._push = exactly_once.SparseWriter.push
        self._done = 0

    def __enter__(self) -> None:
        outer, original, one_at_a_time = self, self._push, asyncio.Lock()

        async def push(self: Any, *arguments: Any) -> None:
            async with one_at_a_time:
                if outer._done:
                    strike(outer._folder, outer._name)
                await original(self, *arguments)
                outer._done += 1

        exactly_once.SparseWriter.push = push  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        exactly_once.SparseWriter.push = self._push  # type: ignore[method-assign]


def in_another_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the same rows in an order that differs from attempt to attempt."""
    every = list(batches)
    if every:
        table = pa.Table.from_batches(every)
        order = list(range(table.num_rows))
        random.SystemRandom().shuffle(order)
        yield from table.take(order).combine_chunks().to_batches()
