from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.errors import InvalidRequest
from clymq.spark.offsets import (
    Range,
    TopicOffsets,
    from_json,
    lag,
    limited,
    message_count,
    ranges_between,
    to_json,
)


def at(topic_id: str = "i", **offsets: int) -> dict[str, TopicOffsets]:
    return {"t": TopicOffsets(topic_id, offsets)}


def test_what_spark_keeps_names_the_topic_by_its_id_and_reads_back_the_same() -> None:
    offsets = {"b": TopicOffsets("2", {"y": 5, "x": 4}), "a": TopicOffsets("1", {"0": 0})}
    text = json.dumps(to_json(offsets))
    assert text == '{"a": {"id": "1", "offsets": {"0": 0}}, "b": {"id": "2", "offsets": {"x": 4, "y": 5}}}'
    assert from_json(json.loads(text)) == offsets


@pytest.mark.parametrize("wrong", [{"t": {"0": 5}}, {"t": 5}, {"t": {"id": "i", "offsets": {"0": None}}}])
def test_offsets_of_another_source_are_refused(wrong) -> None:
    with pytest.raises(InvalidRequest):
        from_json(wrong)


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    assert ranges_between(at(a=3), at(a=5, b=2)) == [Range("t", "i", "a", 3, 5), Range("t", "i", "b", 0, 2)]


def test_a_topic_made_anew_is_read_from_its_beginning_even_where_its_numbers_are_lower() -> None:
    assert ranges_between(at("old", a=100), at("new", a=5)) == [Range("t", "new", "a", 0, 5)]


def test_what_is_empty_or_goes_back_is_no_range() -> None:
    assert ranges_between(at(a=3, b=9), at(a=3, b=5)) == []


def test_a_limit_is_shared_in_proportion_and_small_backlogs_are_not_starved() -> None:
    start, end = at(a=0, b=0), at(a=990, b=10)
    assert limited(start, end, 100) == at(a=99, b=1)
    assert limited(start, end, 10) == at(a=9, b=1)  # a share below one is one
    assert limited(start, end, 1000) == end


sizes = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 5000), min_size=1)


@given(sizes, sizes, st.integers(1, 3000))
def test_a_limited_position_lies_between_and_goes_on_until_the_end(begin, more, rows_max) -> None:
    start, end = at(**begin), at(**{name: begin.get(name, 0) + size for name, size in more.items()})
    steps = 0
    while (reached := limited(start, end, rows_max)) != start and message_count(start, end):
        count = message_count(start, reached)
        assert 0 < count <= rows_max + len(more)
        start, steps = reached, steps + 1
        assert steps < 40_000
    assert message_count(start, end) == 0


def test_the_lag_is_what_lies_between_the_end_of_a_batch_and_the_end_of_the_topics() -> None:
    assert lag(to_json(at(a=3)), to_json(at(a=5, b=2))) == {"t": {"a": 2, "b": 2}}
    assert lag(to_json(at(a=5)), to_json(at(a=5))) == {"t": {"a": 0}}
