"""A topic as a table: columns, options, bounds, and what is said when something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from spark_queue import Queue

SOURCE = Callable[..., Any]


@pytest.fixture(scope="module")
def calls(queue: Queue) -> str:
    """Return a topic with 100 messages in two partitions: 0 has times 0..49 s, 1 has 1000..1049 s."""
    topic = queue.topic(["xian", "北京"])
    for start, partition in ((0, "xian"), (1000, "北京")):
        queue.push(
            topic,
            [b"%s %d" % (partition.encode(), number) for number in range(50)],
            keys=[None if number % 2 else b"k%d" % number for number in range(50)],
            headers=[{"n": b"%d" % number} if number < 3 else None for number in range(50)],
            timestamps=[(start + number) * 1_000_000 for number in range(50)],
            partition=partition,
        )
    return topic


def test_the_columns_are_those_of_sparks_kafka_source_and_partitions_have_names(source: SOURCE, calls: str) -> None:
    rows = source(subscribe=calls).load()
    assert rows.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "string"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    found = {(row.partition, row.offset): row for row in rows.collect()}
    assert len(found) == 100
    row = found["北京", 4]
    assert (bytes(row.key), bytes(row.value), row.topic, row.timestampType) == (b"k4", "北京 4".encode(), calls, 0)
    assert found["xian", 5].key is None
    assert row.timestamp.timestamp() == 1004


def test_headers_are_a_column_when_asked_for_and_empty_lists_where_there_are_none(source: SOURCE, calls: str) -> None:
    rows = source(subscribe=calls, includeHeaders="true").load().where("partition = 'xian'").orderBy("offset").collect()
    assert [(each.key, bytes(each.value)) for each in rows[1].headers] == [("n", b"1")]
    assert rows[9].headers == []


def test_a_schema_of_the_users_prunes_columns_in_its_own_order(source: SOURCE, calls: str) -> None:
    rows = source(subscribe=calls).schema("offset long, value binary").load()
    assert rows.columns == ["offset", "value"]
    assert {row.offset for row in rows.collect()} == set(range(50))
    with pytest.raises(Exception, match="a topic has no column city"):
        source(subscribe=calls).schema("city string").load().count()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"T": {"xian": 40, "北京": -2}}'}, {"xian": (40, 50), "北京": (0, 50)}),
        ({"endingOffsets": '{"T": {"xian": 3, "北京": -1}}'}, {"xian": (0, 3), "北京": (0, 50)}),
        ({"startingTimestamp": "45000", "endingTimestamp": "1002000"}, {"xian": (45, 50), "北京": (0, 2)}),
        (
            {"startingOffsetsByTimestamp": '{"T": {"xian": 10000, "北京": 1020000}}'},
            {"xian": (10, 50), "北京": (20, 50)},
        ),
        (
            {"startingTimestamp": "1010000", "startingOffsetsByTimestampStrategy": "latest"},
            {"北京": (10, 50)},
        ),
    ],
)
def test_bounds_are_offsets_or_times(source: SOURCE, calls: str, options: Any, expected: Any) -> None:
    options = {name: value.replace('"T"', json.dumps(calls)) for name, value in options.items()}
    rows = source(subscribe=calls, **options).load().select("partition", "offset").collect()
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row.partition, set()).add(row.offset)
    assert found == {partition: set(range(*bounds)) for partition, bounds in expected.items()}


def test_a_start_after_the_last_message_is_an_error_that_says_what_to_do(source: SOURCE, calls: str) -> None:
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy=latest"):
        source(subscribe=calls, startingTimestamp="1010000").load().count()


def test_offsets_must_name_all_partitions_and_only_those_that_are_there(source: SOURCE, calls: str) -> None:
    with pytest.raises(Exception, match=f"startingOffsets.*does not name {calls}/北京"):
        source(subscribe=calls, startingOffsets=json.dumps({calls: {"xian": 1}})).load().count()
    with pytest.raises(Exception, match="endingOffsets asks for what is not there yet"):
        source(subscribe=calls, endingOffsets=json.dumps({calls: {"xian": 51, "北京": 1}})).load().count()


def test_some_partitions_and_topics_by_pattern(source: SOURCE, calls: str) -> None:
    assert source(assign=json.dumps({calls: ["北京"]})).load().count() == 50
    assert source(subscribePattern=f"{calls[:-1]}[{calls[-1]}]").load().count() == 100
    assert source(subscribePattern="no_such_.*").load().count() == 0
    with pytest.raises(Exception, match="no partition 7"):
        source(assign=json.dumps({calls: ["7"]})).load().count()


def test_work_is_divided_as_the_options_say(source: SOURCE, calls: str) -> None:
    assert source(subscribe=calls).load().rdd.getNumPartitions() == 2
    divided = source(subscribe=calls, minPartitions="6").load()
    assert divided.rdd.getNumPartitions() == 6
    assert divided.select("partition", "offset").distinct().count() == 100
    assert source(subscribe=calls, maxRecordsPerPartition="20").load().rdd.getNumPartitions() == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"subscribe": "a", "maxOffsetPerTrigger": "5"}, "maxoffsetpertrigger"),
        ({"subscribe": "a", "assign": '{"a": ["0"]}'}, "exactly one of assign, subscribe and subscribePattern"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets"),
    ],
)
def test_an_option_that_is_wrong_is_named(source: SOURCE, options: Any, named: str) -> None:
    with pytest.raises(Exception, match=named):
        source(**options).load().count()


def test_a_topic_that_is_not_there_is_an_error(source: SOURCE) -> None:
    with pytest.raises(Exception, match="no_such_topic"):
        source(subscribe="no_such_topic").load().count()


def test_sql_sees_a_topic_as_a_view(spark: Any, queue: Queue, calls: str) -> None:
    options = f"OPTIONS (`bootstrap.servers` '{queue.bootstrap}', subscribe '{calls}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW calls USING clymq {options}")
    found = spark.sql("SELECT partition, count(*) AS n FROM calls GROUP BY partition ORDER BY n").collect()
    assert {row.partition: row.n for row in found} == {"xian": 50, "北京": 50}


def test_large_and_packed_batches_are_read_whole_and_in_order(source: SOURCE, queue: Queue) -> None:
    topic = queue.topic(1)
    queue.push(topic, [b"%d" % number for number in range(60_000)])
    rows = source(subscribe=topic).schema("offset long, value binary").load()
    assert [int(row.value) for row in rows.collect()] == list(range(60_000))
