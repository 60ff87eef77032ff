"""A topic as a stream: how far each micro-batch goes, and what happens to topics meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from spark_queue import Queue

from clymq.client.cluster import Cluster
from clymq.client.offsets import committed_offset
from clymq.spark.link import Link
from clymq.spark.offsets import lag
from clymq.spark.session import start_query

STREAM = Callable[..., Any]


def into_memory(rows: Any, folder: Path, name: str, **trigger: Any) -> Any:
    """Start a query whose rows can be looked at by its name; with a checkpoint that a later one goes on from."""
    writer = rows.writeStream.format("parquet").option("path", str(folder / name))
    return start_query(writer.option("checkpointLocation", str(folder / f"{name}-checkpoint")).trigger(**trigger))


def done(query: Any) -> Any:
    assert query.awaitTermination(180)
    return query


def values(spark: Any, folder: Path, name: str) -> list[str]:
    return sorted(
        row.v for row in spark.read.parquet(str(folder / name)).selectExpr("cast(value AS string) AS v").collect()
    )


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)
    return found


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%04d" % number for number in range(start, end)]


def text(messages: list[bytes]) -> list[str]:
    return sorted(message.decode() for message in messages)


def test_a_query_that_ends_takes_what_is_there_in_shares_and_goes_on_from_its_checkpoint(
    spark: Any, queue: Queue, stream: STREAM, tmp_path: Path
) -> None:
    topic = queue.topic(2)
    queue.push(topic, numbered(0, 90), partition="0")
    queue.push(topic, numbered(90, 100), partition="1")

    def run() -> Any:
        rows = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=50, groupId="lake").load()
        return done(into_memory(rows, tmp_path, "rows", availableNow=True))

    progress = [json.loads(each.json) for each in run().recentProgress]
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [50, 50]
    first, last = progress[0]["sources"][0], progress[-1]["sources"][0]
    assert first["endOffset"][topic]["offsets"] == {"0": 45, "1": 5}
    assert first["endOffset"][topic]["id"] == queue.admin(lambda admin: admin.describe_topic(topic)).id
    assert lag(first["endOffset"], first["latestOffset"]) == {topic: {"0": 45, "1": 5}}
    assert lag(last["endOffset"], last["latestOffset"]) == {topic: {"0": 0, "1": 0}}
    assert values(spark, tmp_path, "rows") == text(numbered(0, 100))
    queue.push(topic, numbered(100, 120), partition="1")
    run()
    assert values(spark, tmp_path, "rows") == text(numbered(0, 120))
    # The group is told of a batch when the next one is planned, or the query starts again.
    assert committed(queue, topic, "1", "lake") == 10


def committed(queue: Queue, topic: str, partition: str, group: str) -> int | None:
    link = Link(queue.bootstrap)

    async def ask(cluster: Cluster, deadline: Any) -> int | None:
        return await committed_offset(cluster, topic, partition, group, deadline)

    try:
        return link.run(ask, 30)
    finally:
        link.close()


def test_a_running_query_hears_of_messages_and_of_new_partitions(
    spark: Any, queue: Queue, stream: STREAM, tmp_path: Path
) -> None:
    topic = queue.topic(["a"])
    rows = stream(subscribe=topic, startingOffsets="latest").load()
    query = into_memory(rows, tmp_path, "rows", processingTime="100 milliseconds")
    try:
        until(lambda: query.lastProgress)
        queue.push(topic, numbered(0, 10))
        until(lambda: len(values(spark, tmp_path, "rows")) == 10 if (tmp_path / "rows/_spark_metadata").exists() else 0)
        queue.admin(lambda admin: admin.create_partition(topic, "b"))
        queue.admin(lambda admin: admin.set_partition_state(topic, "b", ack=-1))
        queue.push(topic, numbered(10, 20), partition="b")
        until(lambda: values(spark, tmp_path, "rows") == text(numbered(0, 20)))
    finally:
        query.stop()


def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(
    spark: Any, queue: Queue, stream: STREAM, tmp_path: Path
) -> None:
    topic = queue.topic(1)
    queue.push(topic, numbered(0, 10))
    rows = stream(subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger=15, maxTriggerDelay="6s").load()
    query = into_memory(rows, tmp_path, "rows", processingTime="100 milliseconds")
    try:
        until(lambda: query.lastProgress)
        assert query.lastProgress.numInputRows == 0
        queue.push(topic, numbered(10, 20))
        until(lambda: any(each.numInputRows == 20 for each in query.recentProgress))
        queue.push(topic, numbered(20, 22))
        until(lambda: any(each.numInputRows == 2 for each in query.recentProgress))
    finally:
        query.stop()


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes-on"])
def test_a_topic_that_was_deleted_and_made_anew_is_never_silently_skipped(
    spark: Any, queue: Queue, stream: STREAM, tmp_path: Path, fails: bool
) -> None:
    topic = queue.topic(1)
    queue.push(topic, numbered(0, 30))

    def run() -> Any:
        rows = stream(subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fails).lower()).load()
        return done(into_memory(rows, tmp_path, "rows", availableNow=True))

    run()
    queue.admin(lambda admin: admin.delete_topic(topic))
    until(lambda: topic not in queue.admin(lambda admin: admin.list_topics()))
    queue.admin(lambda admin: admin.create_topic(topic, partitions=1))
    # As many as before: by the numbers alone nothing would be new.
    queue.push(topic, numbered(100, 130))
    if fails:
        with pytest.raises(StreamingQueryException, match=rf"{topic}/0 \[30, 30\).*the topic was deleted"):
            run()
    else:
        run()
        assert values(spark, tmp_path, "rows") == text(numbered(0, 30) + numbered(100, 130))


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "goes-on"])
def test_what_retention_removed_is_named_or_left_out(
    spark: Any, queue: Queue, stream: STREAM, source: STREAM, tmp_path: Path, fails: bool
) -> None:
    # More than a block is kept: the last messages stay, also when their block is sealed behind them.
    settings = {"block_bytes_max": 65536, "retention_bytes": 6 * 65536}
    topic = queue.topic(1, settings=settings)
    queue.push(topic, numbered(0, 10))
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": str(fails).lower()}

    def run() -> Any:
        return done(into_memory(stream(**options).load(), tmp_path, "rows", availableNow=True))

    def described() -> Any:
        return queue.admin(lambda admin: admin.describe_topic(topic)).partitions[0]

    def first_offset() -> int:
        return described().start

    run()
    for start in range(10, 34, 6):
        # Waited for: a block that had grown beyond what is kept would take everything with it.
        end_of_chain = described().epoch
        queue.push(topic, [b"%04d" % number + bytes(30_000) for number in range(start, start + 6)])
        until(lambda before=end_of_chain: described().epoch > before)
    assert until(first_offset) > 10
    queue.push(topic, numbered(34, 39))
    bounded = {**options, "startingOffsets": json.dumps({topic: {"0": 5}})}
    if fails:
        with pytest.raises(StreamingQueryException, match=rf"{topic}/0 \[10, \d+\).*retention.*failOnDataLoss"):
            run()
        with pytest.raises(Exception, match=rf"{topic}/0 \[5, \d+\).*retention.*failOnDataLoss"):
            source(**bounded).load().count()
    else:
        run()
        kept = [value[:4] for value in values(spark, tmp_path, "rows")]
        assert kept[:10] == text(numbered(0, 10))
        assert kept[10:] == text(numbered(int(kept[10]), 39))
        assert 10 < int(kept[10]) <= 34

        def counted() -> tuple[int, int] | None:
            """Count while retention rests: it may take one more block at any time."""
            before, count = first_offset(), source(**bounded).load().count()
            return (before, count) if first_offset() == before else None

        before, count = until(counted)
        assert count == 39 - before


def test_a_sink_without_an_identity_refuses_exactly_once(spark: Any, queue: Queue) -> None:
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from clymq.errors import InvalidRequest  # noqa: PLC0415
    from clymq.spark.options import sink_options  # noqa: PLC0415
    from clymq.spark.sink import StreamWriter  # noqa: PLC0415

    options = sink_options({"bootstrap.servers": queue.bootstrap, "topic": "t"})
    writer = StreamWriter(options, StructType.fromDDL("value binary"), {}, overwrite=False)
    with pytest.raises(InvalidRequest, match="producerName"):
        writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"v"]})]))


def test_update_and_complete_output_are_what_the_sink_cannot_do(stream: STREAM, queue: Queue, tmp_path: Path) -> None:
    topic = queue.topic(1)
    queue.push(topic, numbered(0, 3))
    counts = stream(subscribe=topic, startingOffsets="earliest").load().groupBy("partition").count()
    rows = counts.selectExpr("cast(count AS string) AS value")
    writer = rows.writeStream.format("clymq").option("bootstrap.servers", queue.bootstrap).option("topic", topic)
    writer = writer.option("checkpointLocation", str(tmp_path)).outputMode("complete").trigger(availableNow=True)
    with pytest.raises(Exception, match="cannot be overwritten"):
        done(start_query(writer))
