"""Calls of a minute or more, from one topic to another, and all of them in a table."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 as everybody writes it

spark = SparkSession.active()
BOOTSTRAP = os.environ.get("CLYMQ_BOOTSTRAP", "127.0.0.1:7878")

dp.create_sink("long_calls", "clymq", {"bootstrap.servers": BOOTSTRAP, "topic": "long_calls"})


@dp.table
def calls() -> DataFrame:
    """All calls, as a streaming table."""
    options = {"bootstrap.servers": BOOTSTRAP, "subscribe": "phone_number", "startingOffsets": "earliest"}
    messages = spark.readStream.format("clymq").options(**options).load()
    call = F.from_json(F.col("value").cast("string"), "number string, city string, seconds int, at timestamp")
    return messages.select(call.alias("call")).select("call.*")


@dp.append_flow(target="long_calls")
def long_calls() -> DataFrame:
    """Calls of a minute or more, as messages."""
    return (
        spark.readStream.table("calls").where("seconds >= 60").selectExpr("city AS key", "to_json(struct(*)) AS value")
    )
