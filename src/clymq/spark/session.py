"""A Spark session that finds ClyMQ's source in this very Python environment, with what suits one machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

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
