"""Topics as tables and streams in Spark: `spark.read.format("clymq")` and all that goes with it.

Options, offsets, planning and targets are pure; `link` is the way from Spark's threads to the cluster; `source`,
`stream` and `sink` are what Spark calls. The rest of ClyMQ imports only what needs no PySpark: without it everything
else works. So the names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clymq.spark.offsets import lag
    from clymq.spark.session import spark_session
    from clymq.spark.source import ClymqDataSource

__all__ = ["ClymqDataSource", "lag", "spark_session"]


def __getattr__(name: str) -> object:
    if name == "ClymqDataSource":
        from clymq.spark.source import ClymqDataSource  # noqa: PLC0415

        return ClymqDataSource
    if name == "spark_session":
        from clymq.spark.session import spark_session  # noqa: PLC0415

        return spark_session
    if name == "lag":
        from clymq.spark.offsets import lag  # noqa: PLC0415

        return lag
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
