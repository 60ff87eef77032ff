from __future__ import annotations

import pyarrow as pa
import pytest

from clymq.client.partitioning import partition_of
from clymq.errors import InvalidRequest, UnknownPartition
from clymq.spark.targets import Targets, check_columns

NAMES = ["a", "b", "c"]


class Known:
    """Three partitions, and a younger one that keys do not go to yet."""

    def __call__(self, topic: str) -> list[str]:
        return NAMES

    def has(self, topic: str, partition: str) -> bool:
        return partition in {*NAMES, "younger", "7", "-1"}


def placed(given: pa.RecordBatch, topic: str | None = "t", turn: int = 0) -> dict[tuple[str, str], list[bytes]]:
    found: dict[tuple[str, str], list[bytes]] = {}
    for place, table in Targets(topic, Known(), turn=turn).divide(given):
        found.setdefault(place, []).extend(table.column("value").to_pylist())
    return found


def rows(**columns: list) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_with_a_key_go_where_every_client_sends_that_key() -> None:
    keys = [b"k%d" % number for number in range(20)]
    expected: dict[tuple[str, str], list[bytes]] = {}
    for key in keys:
        expected.setdefault(("t", partition_of(key, NAMES)), []).append(b"v" + key)
    assert placed(rows(key=keys, value=[b"v" + key for key in keys])) == expected


def test_rows_that_say_nothing_go_to_one_partition_that_changes_with_the_turn() -> None:
    for turn, name in enumerate([*NAMES, "a"]):
        assert placed(rows(value=[b"1", b"2"]), turn=turn) == {("t", name): [b"1", b"2"]}


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.utf8()])
def test_a_number_stands_for_the_partition_that_is_written_like_it(kind: pa.DataType) -> None:
    numbers = pa.array([7, None, -1, 7], pa.int8()).cast(kind)
    given = pa.RecordBatch.from_pydict({"partition": numbers, "value": [b"1", b"2", b"3", b"4"]})
    assert placed(given) == {("t", "7"): [b"1", b"4"], ("t", "-1"): [b"3"], ("t", "a"): [b"2"]}


def test_what_says_where_rows_go_does_not_go_with_them() -> None:
    given = rows(topic=["u", "t"], partition=[7, 7], value=[b"1", b"2"])
    assert {tuple(table.schema.names) for _, table in Targets(None, Known(), turn=0).divide(given)} == {("value",)}


def test_a_partition_wins_over_a_key_and_where_it_is_null_the_key_decides() -> None:
    found = placed(rows(value=["x", "y"], key=["k", "k"], partition=["b", None]))
    assert found["t", "b"][0] == b"x"
    assert b"y" in found["t", partition_of(b"k", NAMES)]


def test_the_topic_comes_from_the_option_or_else_from_the_column() -> None:
    given = rows(value=[b"1", b"2"], topic=["one", "two"])
    assert placed(given, None) == {("one", "a"): [b"1"], ("two", "a"): [b"2"]}
    assert placed(given, "t") == {("t", "a"): [b"1", b"2"]}


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
        placed(rows(**columns), topic)


def test_columns_that_mean_nothing_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="city"):
        check_columns(["value", "city"])
    with pytest.raises(InvalidRequest, match="value"):
        check_columns(["key"])


def test_rows_may_name_a_partition_that_is_younger_than_what_keys_are_divided_among() -> None:
    given = rows(partition=["younger", "a"], value=[b"1", b"2"])
    assert placed(given) == {("t", "younger"): [b"1"], ("t", "a"): [b"2"]}
