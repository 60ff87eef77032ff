"""The demo's second half: every message through a streaming query on Spark into another topic, exactly once.

The query runs as a process of its own. When a good part of the result is there the process is killed (SIGKILL), in the
middle of a micro-batch as like as not, and started again from its checkpoint. Each message must be in the result once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clymq import AsyncAdmin, AsyncConsumer

RESULT = "phone_number.checked"
PARTITIONS = 2
ROWS_PER_TRIGGER = 200_000
RESULT_SECONDS_MAX = 120.0


def missing() -> str:
    """Say what Spark lacks on this machine; nothing if it can run."""
    if find_spec("pyspark") is None:
        return "PySpark is not installed: pip install 'clymq[spark]'"
    home = os.environ.get("JAVA_HOME")
    if not (home and shutil.which("java", path=f"{home}/bin")) and shutil.which("java") is None:
        return "Java 17 or newer is missing; on Debian or Ubuntu: apt-get install openjdk-17-jre-headless"
    return ""


async def story(bootstrap: str, topic: str, messages: int, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the query, kill it, run it again, count."""
    async with AsyncAdmin(bootstrap) as admin, AsyncConsumer(bootstrap) as consumer:
        await admin.create_topic(RESULT, partitions=PARTITIONS)
        command = [sys.executable, "-m", "examples.demo_spark", bootstrap, topic, RESULT, str(folder / "checkpoint")]
        began = time.monotonic()
        first = Query(command, folder / "spark.log")
        try:
            seen = await first.until(consumer, messages // 4)
        finally:
            first.kill()
        say(f"Spark: a streaming query was killed (SIGKILL) when its result topic had {seen:,} messages")
        again = Query(command, folder / "spark.log")
        try:
            seen = await again.until(consumer, messages)
            await asyncio.to_thread(again.process.wait, RESULT_SECONDS_MAX)
        finally:
            again.kill()
        seconds = time.monotonic() - began
        values = await read(consumer, await consumer.end_offsets(RESULT))
    distinct = len(set(values))
    say(
        f"Spark: started again from its checkpoint it has written {len(values):,}, {distinct:,} different ones; "
        f"{seconds:.0f} s with two starts of Spark"
    )
    return {
        "spark_received": len(values),
        "spark_lost": messages - distinct,
        "spark_duplicated": len(values) - distinct,
        "spark_seconds": round(seconds, 1),
    }


class Query:
    """A process that runs the query until all that was there when it began is written."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    async def until(self, consumer: AsyncConsumer, messages: int) -> int:
        """Wait until the result has so many messages, and return how many it has."""
        deadline = time.monotonic() + RESULT_SECONDS_MAX
        while True:
            ended = self.process.poll() is not None
            seen = sum((await consumer.end_offsets(RESULT)).values())
            if seen >= messages:
                return seen
            if ended or time.monotonic() > deadline:
                raise SystemExit(f"the query on Spark has written {seen} of {messages} messages: see {self._log}")
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        """Kill Spark and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def read(consumer: AsyncConsumer, ends: dict[str, int]) -> list[bytes]:
    """Return all values of the result."""
    for partition in ends:
        await consumer.assign(RESULT, partition, "earliest")
    values: list[bytes] = []
    deadline = time.monotonic() + RESULT_SECONDS_MAX
    while len(values) < sum(ends.values()) and time.monotonic() < deadline:
        values += (await consumer.pull(50_000, timeout=1.0)).to_arrow().column("value").to_pylist()
    return values


def run_query(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    """Copy what the source holds to the target; the log itself refuses what it has already."""
    from clymq.spark.session import spark_session, start_query  # noqa: PLC0415  (only this process needs Spark)

    spark = spark_session("clymq-demo", settings={"spark.sql.shuffle.partitions": "2"})
    reader = spark.readStream.format("clymq").option("bootstrap.servers", bootstrap).option("subscribe", source)
    rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS_PER_TRIGGER).load()
    writer = rows.select("value").writeStream.format("clymq").option("bootstrap.servers", bootstrap)
    writer = writer.option("topic", target).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    start_query(writer).awaitTermination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The demo's query, as a process of its own.")
    for argument in ("bootstrap", "source", "target", "checkpoint"):
        parser.add_argument(argument)
    arguments = parser.parse_args()
    run_query(arguments.bootstrap, arguments.source, arguments.target, arguments.checkpoint)
