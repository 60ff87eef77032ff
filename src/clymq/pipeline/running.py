"""A pipeline as Spark's streaming queries: one for each sink, and one for the dead letters of each source.

Each query has a checkpoint of its own below the pipeline's, under its name, and goes on from there. When one fails, the
others are stopped: what they have done is in their checkpoints, and the pipeline as a whole has failed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from clymq.errors import ConfigError, InvalidRequest, PipelineFailed
from clymq.pipeline.decoding import bad_rows, good_rows
from clymq.pipeline.definition import ONCE, Definition, Source, Watermark
from clymq.pipeline.names import dead_letter_query
from clymq.pipeline.sinks import writer_of
from clymq.spark.session import start_query

# How many messages are looked at to find out what is in them.
SAMPLE_MESSAGES: Final = 1000
LOOK_SECONDS: Final = 0.25


class Running:
    """The queries of a pipeline, from `start` until all have ended."""

    def __init__(self, spark: SparkSession, definition: Definition, bootstrap: str) -> None:
        self._spark = spark
        self._definition = definition
        self._bootstrap = bootstrap
        self.queries: dict[str, StreamingQuery] = {}

    def start(self) -> None:
        """Start every query; if one cannot be started, none is left running."""
        writers = self.writers()
        try:
            for name, writer in writers.items():
                self.queries[name] = start_query(writer)
        except Exception as error:
            self.stop()
            if isinstance(error, PySparkException):
                raise PipelineFailed(f"{name}: {reason_of(error)}") from error
            raise

    def writers(self) -> dict[str, DataStreamWriter]:
        """Return all queries, not started: what is wrong with views and expressions is found here."""
        definition = self._definition
        writers: dict[str, DataStreamWriter] = {}
        schemas = {source.name: self._schema(source) for source in definition.sources}
        for source in definition.sources:
            rows = good_rows(self._messages(source), source, schemas[source.name])
            self._view(f"sources.{source.name}", source.name, rows, source.watermark)
        for at, step in enumerate(definition.steps):
            rows = _analysed(f"steps[{at}].sql", step.sql, partial(self._spark.sql, step.sql))
            self._view(f"steps[{at}]", step.name, rows, step.watermark)
        for at, sink in enumerate(definition.sinks):
            rows = self._spark.table(sink.view)
            _analysed(f"sinks[{at}].mode", sink.mode, partial(self._check_mode, rows, sink.mode))
            write = partial(writer_of, rows, sink, self._bootstrap)
            writers[sink.name] = self._set_up(_analysed(f"sinks[{at}]", sink.name, write), sink.name)
        for source in definition.dead_letters:
            bad = bad_rows(self._messages(source), source, schemas[source.name])
            assert source.dead_letter is not None
            options = {"bootstrap.servers": self._bootstrap, "topic": source.dead_letter}
            name = dead_letter_query(source.name)
            writers[name] = self._set_up(bad.writeStream.format("clymq").options(**options), name)
        return writers

    def wait(self, stopping: Callable[[], bool], on_look: Callable[[dict[str, StreamingQuery]], None]) -> None:
        """Return when all queries have ended, or were told to; raise if one has failed."""
        while not stopping():
            on_look(self.queries)
            active = False
            for name, query in self.queries.items():
                problem = query.exception() if not query.isActive else None
                if problem is not None:
                    self.stop()
                    raise PipelineFailed(f"query {name} failed: {reason_of(problem)}")
                active = active or query.isActive
            if not active:
                break
            time.sleep(LOOK_SECONDS)
        self.stop()
        on_look(self.queries)

    def stop(self) -> None:
        """Stop what runs: a micro-batch that is under way is given up, and done again after the next start."""
        for query in self.queries.values():
            if query.isActive:
                query.stop()

    # --- Inside ---

    def _messages(self, source: Source) -> DataFrame:
        reader = self._reader(self._spark.readStream.format("clymq"), source, {"startingOffsets": "earliest"})
        messages: DataFrame = reader.load()
        return messages

    def _reader(self, reader: Any, source: Source, defaults: dict[str, str]) -> Any:
        what = {"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}
        return reader.options(**{"bootstrap.servers": self._bootstrap, **defaults, **source.options, **what})

    def _schema(self, source: Source) -> StructType | None:
        if source.decode in {"raw", "text"}:
            return None
        if source.schema is not None:
            place = f"sources.{source.name}.schema"
            given: StructType = _analysed(place, source.schema, partial(StructType.fromDDL, source.schema))
            return given
        return self._inferred(source)

    def _inferred(self, source: Source) -> StructType:
        """Return what the first messages look like; kept beside the checkpoint, because it must not change later."""
        kept = Path(self._definition.checkpoint) / f"{source.name}.schema.json"
        if "://" not in self._definition.checkpoint and kept.exists():
            return StructType.fromJson(json.loads(kept.read_text()))
        messages = self._reader(self._spark.read.format("clymq"), source, {}).load()
        sample = [row[0] for row in messages.selectExpr("cast(value AS string)").limit(SAMPLE_MESSAGES).collect()]
        if not sample:
            raise InvalidRequest(
                f"sources.{source.name} has no schema and its topics are empty: nothing can be inferred",
                hint="give it a schema",
            )
        found = self._spark.read.json(self._spark.sparkContext.parallelize(sample, 1), mode="DROPMALFORMED").schema
        if not found.fields:
            raise InvalidRequest(f"sources.{source.name}: its first {len(sample)} messages are not JSON objects")
        if "://" not in self._definition.checkpoint:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(found.jsonValue()))
        return found

    def _view(self, place: str, name: str, rows: DataFrame, watermark: Watermark | None) -> None:
        if watermark is not None:
            rows = _analysed(
                f"{place}.watermark", watermark.column, lambda: rows.withWatermark(watermark.column, watermark.delay)
            )
        rows.createOrReplaceTempView(name)

    def _check_mode(self, rows: DataFrame, mode: str) -> None:
        """Let Spark say now what it would say when the query starts, about counts without a watermark and the like."""
        jvm: Any = self._spark._jvm
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        output = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
        plan = rows._jdf.queryExecution().analyzed()
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, output)

    def _set_up(self, writer: DataStreamWriter, name: str) -> DataStreamWriter:
        definition = self._definition
        place = f"{definition.checkpoint.rstrip('/')}/{name}"
        writer = writer.queryName(f"{definition.name}/{name}").option("checkpointLocation", place)
        if definition.trigger == ONCE:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=definition.trigger)


def reason_of(error: object) -> str:
    """Return what an error of Spark's says, without the traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("clymq.")]
    return (ours or lines or [type(error).__name__])[-1 if ours else 0]


def _analysed(place: str, value: str, work: Callable[[], Any]) -> Any:
    """Do what makes Spark look at names and types; a mistake is said with its place in the file."""
    try:
        return work()
    except (AnalysisException, PySparkException) as error:
        raise ConfigError(place, value, reason_of(error)) from None
