"""A Spark session that finds ClyMQ's source in this very Python environment, with what suits one machine."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

LOCAL: Final = "local[*]"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # A task's rows must be the same at each attempt; what coalesces by size may divide them otherwise.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
}
# On a local file system the default manager starts some twenty processes for each micro-batch.
_LOCAL_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def spark_session(name: str, *, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, made if there is none; `settings` win over what is set here."""
    # Workers must be this Python: another one knows neither PySpark nor ClyMQ.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = dict(_SETTINGS)
    if master.startswith("local"):
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINTS
    chosen.update(settings or {})
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


# What PySpark writes about an error that it raises as well.
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j")


def say_nothing(session: SparkSession) -> None:
    """Let Spark keep its log to itself: for a program that reports what goes wrong in its own words."""
    session.sparkContext.setLogLevel("OFF")
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


# Spark gives the process of a source ten seconds to start, which a busy machine may not have.
_DID_NOT_START: Final = "Python worker failed to connect back"
_STARTED: Final = ("Processing", "Waiting")
_TRIES: Final = 6
_START_SECONDS_MAX: Final = 120.0


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query and return when it runs; if its source's process did not come up in time, start it again.

    Nothing was read or written by then, so that a second start is the first one.
    """
    query = writer.start()
    for _ in range(_TRIES - 1):
        deadline = time.monotonic() + _START_SECONDS_MAX
        while query.isActive and not _runs(query) and time.monotonic() < deadline:
            time.sleep(0.05)
        problem = None if query.isActive else query.exception()
        if problem is None or _DID_NOT_START not in str(problem):
            break
        query = writer.start()
    return query


def _runs(query: StreamingQuery) -> bool:
    return query.lastProgress is not None or str(query.status["message"]).startswith(_STARTED)
