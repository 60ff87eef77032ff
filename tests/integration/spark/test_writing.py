"""A table into a topic: columns, where rows go, and when the sink refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flaky import FlakySource
from spark_queue import Queue

from clymq.client.partitioning import partition_of


def save(rows: Any, queue: Queue, **options: Any) -> None:
    writer = rows.write.format("clymq").mode("append").option("bootstrap.servers", queue.bootstrap)
    writer.options(**options).save()


def test_all_columns_reach_the_messages(spark: Any, queue: Queue) -> None:
    topic = queue.topic(["a", "b"])
    rows = spark.sql(
        f"""SELECT '{topic}' AS topic, 'v' AS value, 'k' AS key, 'b' AS partition, timestamp '2024-01-02 03:04:05' AS
        timestamp, array(struct('h' AS key, cast('x' AS binary) AS value)) AS headers"""
    )
    save(rows, queue)
    (message,) = queue.pull(topic)
    assert message[:2] == (topic, "b")
    assert (message.key, message.value, message.headers) == (b"k", b"v", (("h", b"x"),))
    assert message.timestamp == 1_704_164_645_000_000


def test_keys_go_where_every_client_sends_them(spark: Any, queue: Queue) -> None:
    topic = queue.topic(3)
    save(spark.range(300).selectExpr("concat('k', id % 20) AS key", "cast(id AS string) AS value"), queue, topic=topic)
    messages = queue.pull(topic)
    assert sorted(int(each.value) for each in messages) == list(range(300))
    assert all(each.partition == partition_of(each.key, ["0", "1", "2"]) for each in messages)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_task_that_is_tried_again_after_it_has_written_does_not_double_its_rows(
    spark: Any, queue: Queue, tmp_path: Path, delivery: str
) -> None:
    spark.dataSource.register(FlakySource)
    topic = queue.topic(2)
    rows = spark.range(2000).selectExpr("cast(id AS string) AS value").repartition(2)
    options = {"bootstrap.servers": queue.bootstrap, "topic": topic, "faults": str(tmp_path), "delivery": delivery}
    rows.write.format("flaky").mode("append").options(**options).save()
    assert len(list(tmp_path.iterdir())) == 2
    copies = 1 if delivery == "exactly-once" else 2
    assert sorted(int(each.value) for each in queue.pull(topic)) == sorted([*range(2000)] * copies)


def test_a_named_batch_written_again_is_recognised_and_an_older_one_refused(spark: Any, queue: Queue) -> None:
    topic = queue.topic(1)
    rows = spark.range(50).selectExpr("cast(id AS string) AS value").coalesce(1)
    for _ in range(3):
        save(rows, queue, topic=topic, producerName="loader", batchId=7)
    assert len(queue.pull(topic)) == 50
    save(rows, queue, topic=topic, producerName="loader", batchId=8)
    assert len(queue.pull(topic)) == 100
    with pytest.raises(Exception, match="are over"):
        save(rows, queue, topic=topic, producerName="loader", batchId=6)
    assert len(queue.pull(topic)) == 100


def test_at_least_once_writes_too(spark: Any, queue: Queue) -> None:
    topic = queue.topic(2)
    rows = spark.range(5000).selectExpr("cast(id AS string) AS key", "cast(id AS string) AS value")
    save(rows, queue, topic=topic, delivery="at-least-once", codec="zstd")
    assert sorted(int(each.value) for each in queue.pull(topic)) == list(range(5000))


def test_more_than_one_batch_is_written_in_several(spark: Any, queue: Queue) -> None:
    topic = queue.topic(1)
    rows = spark.range(20_000).selectExpr("rpad(cast(id AS string), 1000, ' ') AS value").coalesce(1)
    save(rows, queue, topic=topic)
    assert sorted(int(each.value) for each in queue.pull(topic)) == list(range(20_000))


@pytest.mark.parametrize(
    ("sql", "options", "problem"),
    [
        ("SELECT 'v' AS value, 1 AS city", {"topic": "T"}, "column city means nothing"),
        ("SELECT 'k' AS key", {"topic": "T"}, "a column value is required"),
        ("SELECT 'v' AS value", {}, "no topic"),
        ("SELECT cast(null AS string) AS value", {"topic": "T"}, "are null"),
        ("SELECT 'v' AS value, 'z' AS partition", {"topic": "T"}, "no partition z"),
        ("SELECT 'v' AS value", {"topic": "T", "producerName": "p"}, "without batchId"),
        ("SELECT 'v' AS value", {"topic": "T", "subscribe": "a"}, "subscribe"),
        ("SELECT 'v' AS value", {"topic": "no_such_topic"}, "no_such_topic"),
    ],
)
def test_what_cannot_be_written_is_refused_for_its_reason(
    spark: Any, queue: Queue, sql: str, options: Any, problem: str
) -> None:
    topic = queue.topic(1)
    with pytest.raises(Exception, match=problem):
        save(spark.sql(sql), queue, **{name: topic if value == "T" else value for name, value in options.items()})


def test_a_topic_is_never_overwritten(spark: Any, queue: Queue) -> None:
    rows = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.write.format("clymq").mode("overwrite").options(
            **{"bootstrap.servers": queue.bootstrap, "topic": queue.topic(1)}
        ).save()


def test_exactly_once_is_refused_where_acknowledged_messages_may_be_lost(spark: Any, queue: Queue) -> None:
    topic = queue.topic(1, ack=1)
    rows = spark.sql("SELECT 'v' AS value")
    with pytest.raises(Exception, match="exactly-once cannot hold"):
        save(rows, queue, topic=topic)
    save(rows, queue, topic=topic, delivery="at-least-once")
    assert len(queue.pull(topic)) == 1
