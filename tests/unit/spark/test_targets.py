from __future__ import annotations

import random

import pyarrow as pa
import pytest

from clymq.client.partitioning import partition_of
from clymq.errors import InvalidRequest, MessageTooLarge, UnknownPartition
from clymq.spark.targets import Targets, batches, check_columns

NAMES = ["a", "b", "c"]


class Known:
    """Three partitions, and a younger one that keys do not go to yet."""

    def __call__(self, topic: str) -> list[str]:
        return NAMES

    def has(self, topic: str, partition: str) -> bool:
        return partition in {*NAMES, "younger"}


def targets(topic: str | None = "t", *, turn: int = 0, bytes_max: int = 1 << 30) -> Targets:
    return Targets(topic, Known(), turn=turn, bytes_max=bytes_max)


def rows(**columns: list) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def placed(made: Targets) -> dict[tuple[str, str], list[bytes]]:
    return {place: table.column("value").to_pylist() for place, table in made.take().items()}


def test_rows_with_a_key_go_where_every_client_sends_that_key() -> None:
    made = targets()
    keys = [b"k%d" % number for number in range(20)]
    made.add(rows(key=keys, value=[b"v" + key for key in keys]))
    expected: dict[tuple[str, str], list[bytes]] = {}
    for key in keys:
        expected.setdefault(("t", partition_of(key, NAMES)), []).append(b"v" + key)
    assert placed(made) == expected


def test_rows_that_say_nothing_go_to_one_partition_that_changes_with_the_turn() -> None:
    for turn, name in enumerate([*NAMES, "a"]):
        made = targets(turn=turn)
        made.add(rows(value=[b"1", b"2"]))
        assert placed(made) == {("t", name): [b"1", b"2"]}


def test_a_partition_wins_over_a_key_and_where_it_is_null_the_key_decides() -> None:
    made = targets()
    made.add(rows(value=["x", "y"], key=["k", "k"], partition=["b", None]))
    found = placed(made)
    assert found["t", "b"][0] == b"x"
    assert b"y" in found["t", partition_of(b"k", NAMES)]


def test_the_topic_comes_from_the_option_or_else_from_the_column() -> None:
    made = targets(None)
    made.add(rows(value=[b"1", b"2"], topic=["one", "two"]))
    assert placed(made) == {("one", "a"): [b"1"], ("two", "a"): [b"2"]}
    made = targets("t")
    made.add(rows(value=[b"1", b"2"], topic=["one", "two"]))
    assert placed(made) == {("t", "a"): [b"1", b"2"]}


@pytest.mark.parametrize(
    ("topic", "columns", "error"),
    [
        (None, {"value": [b"1"]}, InvalidRequest),
        (None, {"value": [b"1", b"2"], "topic": ["t", None]}, InvalidRequest),
        ("t", {"value": [b"1", None]}, InvalidRequest),
        ("t", {"value": [b"1"], "partition": ["z"]}, UnknownPartition),
    ],
)
def test_rows_that_cannot_be_placed_are_refused(topic, columns, error) -> None:
    with pytest.raises(error):
        targets(topic).add(rows(**columns))


def test_what_a_task_holds_is_bounded() -> None:
    made = targets(bytes_max=1000)
    with pytest.raises(MessageTooLarge, match="bufferBytesMax"):
        made.add(rows(value=[b"x" * 2000]))


def test_columns_that_mean_nothing_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="city"):
        check_columns(["value", "city"])
    with pytest.raises(InvalidRequest, match="value"):
        check_columns(["key"])


def test_rows_that_fit_are_one_batch_in_their_order() -> None:
    table = pa.table({"value": [b"3", b"1", b"2"]})
    (only,) = batches(table, stable_order=False)
    assert only.column("value").to_pylist() == [b"3", b"1", b"2"]


def test_more_rows_make_the_same_batches_in_whatever_order_they_come() -> None:
    chance = random.Random(5)
    messages = [
        {
            "key": chance.choice([None, b"k%d" % chance.randrange(5)]),
            "value": b"%d" % chance.randrange(200),
            "headers": chance.choice([None, [], [{"key": "h", "value": b"%d" % chance.randrange(3)}]]),
        }
        for _ in range(500)
    ]
    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", kind)])

    def cut() -> list[list[dict]]:
        chance.shuffle(messages)
        half = len(messages) // 2
        parts = [pa.Table.from_pylist(part, schema) for part in (messages[:half], messages[half:])]
        return [
            each.to_pylist()
            for each in batches(pa.concat_tables(parts), stable_order=False, batch_bytes=2000, cut_bytes=2000)
        ]

    first = cut()
    assert len(first) > 5
    assert sum(map(len, first)) == 500
    for _ in range(5):
        assert cut() == first


def test_a_stable_order_is_kept() -> None:
    values = [b"%05d" % (7919 * number % 1000) for number in range(1000)]
    cut = batches(pa.table({"value": values}), stable_order=True, batch_bytes=4000, cut_bytes=4000)
    assert len(cut) > 3
    assert [value for each in cut for value in each.column("value").to_pylist()] == values


def test_rows_may_name_a_partition_that_is_younger_than_what_keys_are_divided_among() -> None:
    made = targets()
    made.add(rows(partition=["younger", "a"], value=[b"1", b"2"]))
    assert placed(made) == {("t", "younger"): [b"1"], ("t", "a"): [b"2"]}
