"""Batching: by size, by time, bounded; pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.client.accumulator import MESSAGE_BYTES, Accumulator, Draft, Moment, Now
from clymq.config import MiB
from clymq.errors import BufferFull, InvalidRequest
from clymq.record import Batch, BatchBuilder


def accumulator(*, batch_bytes: int = 1000, linger_ms: float = 5, buffer_bytes_max: int = 10_000) -> Accumulator:
    return Accumulator(
        batch_bytes=batch_bytes, linger_ms=linger_ms, buffer_bytes_max=buffer_bytes_max, new_builder=BatchBuilder
    )


def at(monotonic_ms: float) -> Now:
    return lambda: Moment(monotonic_ms, 1_000_000 + int(monotonic_ms * 1000))


def values(draft: Draft) -> list[bytes]:
    return Batch.parse(draft.builder.build(producer="p", cmdindex=1)).values()


def test_a_draft_gathers_the_messages_of_one_partition() -> None:
    drafts = accumulator()
    first = drafts.add("t", "0", at(0), b"a")
    assert drafts.add("t", "0", at(1), b"b") is first
    assert drafts.add("t", "1", at(1), b"c") is not first
    assert (first.count, first.opened.monotonic_ms, first.closed) == (2, 0, False)
    assert values(first) == [b"a", b"b"]


def test_a_message_that_does_not_fit_closes_the_draft() -> None:
    drafts = accumulator(batch_bytes=1000)
    first = drafts.add("t", "0", at(0), bytes(600))
    second = drafts.add("t", "0", at(0), bytes(600))
    assert first is not second
    assert drafts.ready == [first]
    drafts.add("t", "0", at(0), bytes(400))  # the second is full to the last byte
    assert list(drafts.take_ready()) == [first, second]
    assert drafts.ready == []


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    drafts = accumulator(batch_bytes=1000, buffer_bytes_max=100_000)
    small = drafts.add("t", "0", at(0), b"a")
    large = drafts.add("t", "0", at(0), bytes(5000))
    after = drafts.add("t", "0", at(0), b"b")
    assert [small.count, large.count, after.count] == [1, 1, 1]
    assert drafts.ready == [small, large]


def test_a_draft_is_due_when_its_first_message_has_lingered() -> None:
    drafts = accumulator(linger_ms=5)
    assert drafts.next_due_ms() is None
    first = drafts.add("t", "0", at(0), b"a")
    second = drafts.add("t", "1", at(3), b"b")
    drafts.add("t", "0", at(4), b"c")
    assert drafts.next_due_ms() == 5
    drafts.close_due(4.9)
    assert drafts.ready == []
    drafts.close_due(5)
    assert drafts.ready == [first]
    assert drafts.next_due_ms() == 8
    drafts.close(second)
    drafts.close(second)
    assert drafts.ready == [first, second]


def test_a_full_buffer_refuses_and_forgets_nothing() -> None:
    drafts = accumulator(buffer_bytes_max=2000)
    first = drafts.add("t", "0", at(0), bytes(900))
    drafts.add("t", "1", at(0), bytes(900))
    with pytest.raises(BufferFull):
        drafts.add("t", "0", at(0), bytes(900))
    assert (first.count, first.closed) == (1, False)
    drafts.settle(first)
    drafts.add("t", "2", at(0), bytes(900))


def test_one_message_always_fits_where_nothing_is_buffered() -> None:
    drafts = accumulator(buffer_bytes_max=10)
    draft = drafts.add("t", "0", at(0), bytes(5000))
    with pytest.raises(BufferFull):
        drafts.add("t", "0", at(0), b"")
    drafts.settle(draft)
    assert drafts.buffered_bytes == 0


@pytest.mark.parametrize("wrong", [{"value": "text"}, {"value": 5}, {"value": b"", "headers": [("a",)]}])
def test_what_cannot_be_added_leaves_nothing_behind(wrong: dict[str, object]) -> None:
    drafts = accumulator()
    with pytest.raises(InvalidRequest):
        drafts.add("t", "0", at(0), **wrong)  # type: ignore[arg-type]
    assert drafts.next_due_ms() is None
    assert drafts.buffered_bytes == 0
    drafts.close_all()
    assert drafts.ready == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 700), st.integers(0, 9)), max_size=60))
def test_every_message_is_in_one_draft_in_order_and_the_sums_agree(steps: list[tuple[str, int, int]]) -> None:
    drafts = accumulator(buffer_bytes_max=1 << 30)
    now, ready = 0.0, []
    expected: dict[str, list[bytes]] = {"a": [], "b": []}
    for number, (partition, size, passed_ms) in enumerate(steps):
        now += passed_ms
        drafts.close_due(now)
        value = b"%04d" % number + bytes(size)
        drafts.add("t", partition, at(now), value)
        expected[partition].append(value)
        ready += drafts.take_ready()
    drafts.close_all()
    ready += drafts.take_ready()
    assert drafts.buffered_bytes == sum(draft.size_bytes for draft in ready)
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    for draft in ready:
        assert draft.count == len(draft.builder)
        assert draft.size_bytes <= 1000
        found[draft.partition] += values(draft)
    assert found == expected


def test_a_lane_takes_values_for_nothing_and_is_counted_when_its_draft_is_looked_at() -> None:
    drafts = accumulator(batch_bytes=1000, buffer_bytes_max=10_000)
    draft, lane = drafts.open_lane("t", "0", at(0), b"first", 1 << 20)
    reserved = drafts.buffered_bytes
    assert reserved == draft.size_bytes == 1000
    for number in range(10):
        lane.values.append(b"%05d" % number)
        lane.left -= 5 + MESSAGE_BYTES
    assert (draft.count, drafts.buffered_bytes) == (1, reserved), "not counted yet, but reserved"
    assert drafts.add("t", "0", at(0), b"after", key=b"k") is draft
    assert draft.count == 12
    assert drafts.buffered_bytes == draft.size_bytes == 11 * (5 + MESSAGE_BYTES) + 5 + 1 + 4 + MESSAGE_BYTES
    assert lane.left == 0, "it takes nothing more"
    got = values(draft)
    assert got == [b"first", *(b"%05d" % number for number in range(10)), b"after"]


def test_a_lane_ends_with_its_draft_and_gives_back_what_it_did_not_need() -> None:
    drafts = accumulator(batch_bytes=1000, buffer_bytes_max=10_000)
    draft, lane = drafts.open_lane("t", "0", at(0), b"first", 1 << 20)
    lane.values.append(b"second")
    lane.left -= 6 + MESSAGE_BYTES
    drafts.close_all()
    assert (draft.count, draft.closed, lane.left) == (2, True, 0)
    assert drafts.buffered_bytes == 11 + 2 * MESSAGE_BYTES
    drafts.settle(draft)
    assert drafts.buffered_bytes == 0


def test_a_lane_never_reserves_more_than_there_is_and_others_get_what_it_does_not_use() -> None:
    drafts = accumulator(batch_bytes=1000, buffer_bytes_max=600)
    _, lane = drafts.open_lane("t", "0", at(0), b"x" * 100, 1 << 20)
    assert drafts.buffered_bytes == 600
    other = drafts.add("t", "1", at(0), b"y" * 300)
    assert (lane.left, other.count) == (0, 1)
    with pytest.raises(BufferFull):
        drafts.add("t", "1", at(0), b"y" * 300)


def test_a_lane_takes_no_value_that_is_larger_than_a_message_may_be() -> None:
    drafts = accumulator(batch_bytes=100_000, buffer_bytes_max=1_000_000)
    _, lane = drafts.open_lane("t", "0", at(0), b"x", 500)
    assert lane.left == 500


# --- Crowded partitions ---


def crowded(drafts: Accumulator, *partitions: str) -> None:
    drafts.is_crowded = lambda _topic, partition: partition in partitions


def test_a_draft_of_a_crowded_partition_grows_to_four_times_the_size() -> None:
    drafts = accumulator(batch_bytes=1000)
    crowded(drafts, "0")
    first = drafts.add("t", "0", at(0), bytes(600))
    for _ in range(5):
        assert drafts.add("t", "0", at(0), bytes(600)) is first
    assert (first.count, first.closed, drafts.ready) == (6, False, [])
    second = drafts.add("t", "0", at(0), bytes(600))
    assert (second is first, drafts.ready) == (False, [first])


def test_how_much_a_draft_grows_has_an_end() -> None:
    drafts = accumulator(batch_bytes=MiB, buffer_bytes_max=8 * MiB)
    crowded(drafts, "0")
    first = drafts.add("t", "0", at(0), bytes(MiB // 2))
    assert drafts.add("t", "0", at(0), bytes(MiB // 2)) is not first
    assert drafts.ready == [first]


def test_a_draft_that_was_put_off_is_closed_when_there_is_room_again() -> None:
    drafts = accumulator(batch_bytes=1000)
    crowded(drafts, "0")
    grown = drafts.add("t", "0", at(0), bytes(1500))
    drafts.close_overdue("t", "0")
    assert (drafts.ready, grown.overdue) == ([], True)
    crowded(drafts)
    drafts.close_overdue("t", "1")
    drafts.close_overdue("t", "0")
    assert drafts.ready == [grown]


def test_a_draft_that_is_neither_full_nor_due_stays_open_when_there_is_room_again() -> None:
    drafts = accumulator()
    crowded(drafts, "0")
    drafts.add("t", "0", at(0), b"a")
    crowded(drafts)
    drafts.close_overdue("t", "0")
    assert drafts.ready == []


def test_a_draft_of_a_crowded_partition_that_has_lingered_is_put_off_and_due_no_more() -> None:
    drafts = accumulator(linger_ms=5)
    crowded(drafts, "0")
    late = drafts.add("t", "0", at(0), b"a")
    other = drafts.add("t", "1", at(1), b"b")
    drafts.close_due(6)
    assert (drafts.ready, list(drafts.take_put_off())) == ([other], [late])
    assert (late.overdue, drafts.next_due_ms()) == (True, None)
    drafts.close_due(100)
    assert drafts.put_off == []
    crowded(drafts)
    drafts.close_overdue("t", "0")
    assert list(drafts.take_ready()) == [other, late]


def test_each_message_for_a_draft_that_was_put_off_says_so_again() -> None:
    """Whoever may choose should choose another partition, however little is in this draft."""
    drafts = accumulator(linger_ms=5)
    crowded(drafts, "0")
    late = drafts.add("t", "0", at(0), b"a")
    drafts.close_due(5)
    drafts.add("t", "0", at(6), b"b")
    assert drafts.put_off == [late, late]


def test_a_lane_into_a_draft_that_was_put_off_ends_soon() -> None:
    drafts = accumulator(linger_ms=5, batch_bytes=1000)
    crowded(drafts, "0")
    drafts.add("t", "0", at(0), bytes(1000))
    draft, lane = drafts.open_lane("t", "0", at(1), b"a", 10_000)
    assert (lane.left > 1000, drafts.next_due_ms()) == (True, 5)
    lane.left -= 1 + MESSAGE_BYTES
    lane.values.append(b"b")
    drafts.close_due(7)
    assert (lane.left, draft.lane, draft.count, drafts.next_due_ms()) == (0, None, 3, None)
    assert draft.size_bytes == drafts.buffered_bytes == 1002 + 3 * MESSAGE_BYTES


def test_closing_everything_closes_what_was_put_off() -> None:
    drafts = accumulator(batch_bytes=1000)
    crowded(drafts, "0")
    grown = drafts.add("t", "0", at(0), bytes(1500))
    drafts.close_all()
    assert drafts.ready == [grown]
