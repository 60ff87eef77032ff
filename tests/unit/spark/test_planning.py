from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from clymq.spark.offsets import Range, TopicOffsets, ranges_between
from clymq.spark.planning import plan, spread


def at(**offsets: int) -> dict[str, TopicOffsets]:
    return {"t": TopicOffsets("i", offsets)}


def sizes(ranges: list[Range]) -> list[int]:
    return [each.size for each in ranges]


def test_each_partition_is_one_task_and_what_is_empty_is_none() -> None:
    assert plan(at(a=1, b=5), at(a=4, b=5, c=2)) == [Range("t", "i", "a", 1, 4), Range("t", "i", "c", 0, 2)]


def test_a_range_is_divided_when_it_has_too_many_messages() -> None:
    assert sizes(plan(at(), at(a=10), max_records_per_partition=4)) == [3, 3, 4]
    assert sizes(plan(at(), at(a=10), max_records_per_partition=10)) == [10]


def test_large_ranges_are_divided_in_proportion_until_there_are_enough_tasks() -> None:
    assert sizes(plan(at(), at(a=100, b=100), min_partitions=4)) == [50, 50, 50, 50]
    # As in Spark's Kafka source, a small one is left whole and does not count against the large one.
    assert sizes(plan(at(), at(a=100, b=1), min_partitions=3)) == [50, 50, 1]
    assert sizes(plan(at(), at(a=3), min_partitions=10)) == [1, 1, 1]


def test_tasks_of_one_partition_begin_at_different_replicas() -> None:
    ranges = plan(at(), at(a=1000), min_partitions=12)
    assert len({spread(each) % 3 for each in ranges}) == 3


numbers = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10_000))


@given(numbers, numbers, st.none() | st.integers(1, 50), st.none() | st.integers(1, 4000))
def test_the_tasks_together_are_what_lies_between_and_the_same_every_time(begin, more, least, most) -> None:
    start, end = at(**begin), at(**{name: begin.get(name, 0) + size for name, size in more.items()})
    planned = plan(start, end, min_partitions=least, max_records_per_partition=most)
    assert planned == plan(dict(start), dict(end), min_partitions=least, max_records_per_partition=most)
    whole = {(each.topic, each.partition): each for each in ranges_between(start, end)}
    for place, each in whole.items():
        pieces = [piece for piece in planned if (piece.topic, piece.partition) == place]
        assert pieces[0].start == each.start
        assert pieces[-1].end == each.end
        assert all(one.end == other.start for one, other in itertools.pairwise(pieces))
    assert sum(sizes(planned)) == sum(each.size for each in whole.values())
    if most is not None:
        assert all(size <= most for size in sizes(planned))
