"""Spark on `local[2]` beside the best that a Python source or sink can do: the same Arrow batches from and to memory.

The cluster is one broker in a process of its own, on the same machine: what is measured is the connector. Where Spark's
Kafka connector and a Kafka broker can be had (`spark_kafka`), they do the same work, in turns with ours.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import spark_kafka
from benchmarks.memory import UsedMemory
from benchmarks.peers.kafka import KafkaClient
from benchmarks.processes import folder
from benchmarks.report import Row, at_least, at_most, beside_raw
from clymq import AsyncAdmin, AsyncProducer
from clymq.config import MiB
from clymq.testing import ProcessCluster

SIZES = {100: "100 B", 1000: "1 KB"}
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
}
CONFIG = {
    "election_ms_min": 3000,
    "election_ms_max": 5000,
    "session_timeout_ms": 20_000,
    "retention_check_ms": 1000,
    "delete_delay_ms": 1000,
}
# Topics that are written again and again keep the last of it, as they do in a cluster that has run for a while.
WRITTEN = {"retention_bytes": 256 * MiB, "block_bytes_max": 256 * MiB}
QUICK_TURNS, QUICK_ROWS = 3, 400_000
_numbers = itertools.count()


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    from benchmarks.spark_raw import MemorySource  # noqa: PLC0415 PySpark is loaded when it is needed
    from clymq.spark.session import spark_session  # noqa: PLC0415

    turns, rows = (QUICK_TURNS, QUICK_ROWS) if quick else (7, 2_000_000)
    jars = spark_kafka.connector()
    settings = {**SETTINGS, "spark.jars": ",".join(map(str, jars))} if jars else SETTINGS
    with UsedMemory() as memory, ProcessCluster(brokers=1, network="proxies", config=CONFIG) as cluster:
        spark = spark_session("bench", master="local[2]", settings=settings)
        spark.dataSource.register(MemorySource)
        bench = Bench(spark, cluster.bootstrap, memory, rows, turns)
        try:
            measured = [*bench.tables(), *bench.streams()]
            if jars:
                with spark_kafka.broker() as kafka:
                    # Always of the quick run's size: more takes Kafka's connector minutes, synced as it has to be here.
                    beside = Bench(spark, cluster.bootstrap, memory, QUICK_ROWS, QUICK_TURNS)
                    measured += [] if kafka is None else beside.beside_kafka(kafka)
            return measured
        finally:
            spark.stop()


class Bench:
    """The measurements, on one session and one cluster."""

    def __init__(self, spark: Any, bootstrap: str, memory: UsedMemory, rows: int, turns: int) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._memory_is_used = memory.fill
        self._rows = rows
        self._turns = turns
        self._topics = {size: self._filled(size, rows if size == 100 else rows // 4) for size in SIZES}

    def tables(self) -> list[Row]:
        """Batch reads into nothing, and batch writes from memory."""
        found = []
        for size, name in SIZES.items():
            rows = self._rows if size == 100 else self._rows // 4
            found.append(self._beside(f"read a table, {name}", rows, self._read(size), self._read_raw(size, rows), 0.8))
        for size, name in SIZES.items():
            rows = self._rows if size == 100 else self._rows // 4
            ours, raw = self._write(size, rows, {}), self._write_raw(size, rows)
            found.append(self._beside(f"write a table exactly once, {name}", rows, ours, raw, 0.8))
        rows = self._rows
        ours, raw = self._write(100, rows, {"delivery": "at-least-once"}), self._write_raw(100, rows)
        found.append(self._beside("write a table at least once, 100 B", rows, ours, raw, None))
        return found

    def beside_kafka(self, kafka: KafkaClient) -> list[Row]:
        """Do the same reads and writes by Spark's Kafka connector: theirs at least once, ours exactly once."""
        found = []
        for size, name in SIZES.items():
            rows = self._rows if size == 100 else self._rows // 4
            topic, target = (f"kafka{next(_numbers)}" for _ in range(2))
            for each in (topic, target):
                kafka.create(each, partitions=2)
            self._write_kafka(kafka.address, topic, size, rows)()
            theirs = self._read_kafka(kafka.address, topic)
            title = f"read a table, {name}, {rows:,} rows, beside Spark's Kafka connector"
            found.append(self._beside(title, rows, self._read(size), theirs, 1.5))
            theirs = self._write_kafka(kafka.address, target, size, rows)
            title = f"write a table, {name}, {rows:,} rows, exactly once beside Spark's Kafka connector at least once"
            found.append(self._beside(title, rows, self._write(size, rows, {}), theirs, 1.5))
        return found

    def streams(self) -> list[Row]:
        """Streams at a million rows per trigger (fewer with --quick), and what a small trigger costs."""
        share = self._rows // 2
        read, copy = (
            at_least(f"{what}, {share:,} rows per trigger", "rows/s", measure, turns=2)
            for what, measure in (
                ("stream into nothing, 100 B", lambda: self._stream(share, "noop")),
                ("stream from topic to topic exactly once, 100 B", lambda: self._stream(share, "clymq")),
            )
        )
        small = at_most("a trigger of 100 rows, into nothing", "ms", lambda: self._small("noop"), turns=2)
        small_copy = at_most("a trigger of 100 rows, topic to topic", "ms", lambda: self._small("clymq"), turns=2)
        return [read, copy, small, small_copy]

    def _beside(self, name: str, rows: int, ours: Any, raw: Any, target: float | None) -> Row:
        mine, limit = self._rate(rows, ours), self._rate(rows, raw)
        return beside_raw(name, "rows/s", mine, limit, turns=self._turns, target=target)

    def _rate(self, rows: int, work: Callable[[], None]) -> Callable[[], float]:
        def measure() -> float:
            self._memory_is_used()
            began = time.perf_counter()
            work()
            return rows / (time.perf_counter() - began)

        return measure

    def _filled(self, size: int, rows: int) -> str:
        topic = self._topic()
        values = [number.to_bytes(8, "little") + bytes(size - 8) for number in range(10_000)]

        async def push() -> None:
            async with AsyncProducer(self._bootstrap, batch_bytes=1 << 20) as producer:
                for number in range(rows // 10_000):
                    await producer.push_many(topic, values, partition=str(number % 2))

        asyncio.run(push())
        return topic

    def _topic(self, settings: dict[str, int] | None = None) -> str:
        name = f"bench{next(_numbers)}"

        async def create() -> None:
            async with AsyncAdmin(self._bootstrap) as admin:
                await admin.create_topic(name, partitions=2, settings=settings)

        asyncio.run(create())
        return name

    def _read(self, size: int) -> Callable[[], None]:
        options = {"bootstrap.servers": self._bootstrap, "subscribe": self._topics[size]}

        def read() -> None:
            _drop(self._spark.read.format("clymq").options(**options).load())

        return read

    def _read_raw(self, size: int, rows: int) -> Callable[[], None]:
        return lambda: _drop(self._memory(size, rows))

    def _memory(self, size: int, rows: int) -> Any:
        return self._spark.read.format("memory_arrow").options(size=size, rows=rows).load()

    def _write(self, size: int, rows: int, more: dict[str, str]) -> Callable[[], None]:
        topic = self._topic(WRITTEN)
        options = {"bootstrap.servers": self._bootstrap, "topic": topic, **more}

        def write() -> None:
            memory = self._memory(size, rows).selectExpr("value", "cast(rand() < 0.5 AS int) AS partition")
            memory.write.format("clymq").mode("append").options(**options).save()

        return write

    def _write_raw(self, size: int, rows: int) -> Callable[[], None]:
        def write() -> None:
            memory = self._memory(size, rows).selectExpr("value", "cast(rand() < 0.5 AS int) AS partition")
            memory.write.format("memory_arrow").mode("append").save()

        return write

    def _read_kafka(self, address: str, topic: str) -> Callable[[], None]:
        options = {"kafka.bootstrap.servers": address, "subscribe": topic}
        return lambda: _drop(self._spark.read.format("kafka").options(**options).load())

    def _write_kafka(self, address: str, topic: str, size: int, rows: int) -> Callable[[], None]:
        options = {"kafka.bootstrap.servers": address, "topic": topic, "kafka.acks": "all"}

        def write() -> None:
            memory = self._memory(size, rows).selectExpr("value", "cast(rand() < 0.5 AS int) AS partition")
            memory.write.format("kafka").mode("append").options(**options).save()

        return write

    def _query(self, share: int, sink: str) -> list[Any]:
        """Run a stream over the topic of small messages to its end; return the progress of its micro-batches."""
        reader = self._spark.readStream.format("clymq").option("bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", self._topics[100]).option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", share).load().select("value", "partition")
        with folder() as checkpoint:
            return self._run_query(rows.writeStream.format(sink).option("checkpointLocation", checkpoint), share, sink)

    def _run_query(self, writer: Any, share: int, sink: str) -> list[Any]:
        if sink == "clymq":
            writer = writer.option("bootstrap.servers", self._bootstrap).option("topic", self._topic(WRITTEN))
        writer = writer.trigger(processingTime="0 seconds")
        query = writer.start()
        try:
            batches = min(12, self._rows // share)
            deadline = time.monotonic() + 300
            while len(_with_rows(query)) < batches and time.monotonic() < deadline:
                if not query.isActive:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.05)
            return _with_rows(query)
        finally:
            query.stop()

    def _stream(self, share: int, sink: str) -> float:
        self._memory_is_used()
        batches = self._query(share, sink)
        rates = [float(each.numInputRows / each.durationMs["triggerExecution"] * 1000) for each in batches]
        return max(rates)

    def _small(self, sink: str) -> float:
        times = [float(each.durationMs["triggerExecution"]) for each in self._query(100, sink)[2:]]
        return statistics.median(times)


def _drop(rows: Any) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _with_rows(query: Any) -> list[Any]:
    return [each for each in query.recentProgress if each.numInputRows]
