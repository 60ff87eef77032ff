"""Views to where they go: a registry by kind, so that others (Delta, Iceberg) can join without a change here.

    @sink("delta")
    def _delta(rows, sink, bootstrap): ...

A kind is known to files once it is in `kinds.CHECKS` too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from clymq.pipeline.definition import Sink

Write = Callable[[DataFrame, Sink, str], "DataStreamWriter"]
"""(rows, sink, bootstrap) -> a writer, to which the caller adds checkpoint, trigger and name."""

_WRITERS: dict[str, Write] = {}


def sink(kind: str) -> Callable[[Write], Write]:
    """Register how a kind is written."""

    def register(write: Write) -> Write:
        _WRITERS[kind] = write
        return write

    return register


def writer_of(rows: DataFrame, spec: Sink, bootstrap: str) -> DataStreamWriter:
    """Return the writer of a sink."""
    return _WRITERS[spec.kind](rows, spec, bootstrap).outputMode(spec.mode)


@sink("topic")
def _topic(rows: DataFrame, spec: Sink, bootstrap: str) -> DataStreamWriter:
    expressions = [f"{expression} AS {name}" for name, expression in spec.fields["expressions"].items()]
    messages = rows.selectExpr(*expressions)
    return _with_options(messages.writeStream.format("clymq"), spec, {
        "bootstrap.servers": bootstrap, "topic": spec.fields["topic"],
    })  # fmt: skip


@sink("parquet")
@sink("json")
def _files(rows: DataFrame, spec: Sink, _bootstrap: str) -> DataStreamWriter:
    writer = _with_options(rows.writeStream.format(spec.kind), spec, {"path": spec.fields["path"]})
    return writer.partitionBy(*spec.fields["partition_by"]) if spec.fields["partition_by"] else writer


@sink("console")
def _console(rows: DataFrame, spec: Sink, _bootstrap: str) -> DataStreamWriter:
    return _with_options(rows.writeStream.format("console"), spec, {})


def _with_options(writer: DataStreamWriter, spec: Sink, options: dict[str, Any]) -> DataStreamWriter:
    return writer.options(**options, **spec.fields["options"])
