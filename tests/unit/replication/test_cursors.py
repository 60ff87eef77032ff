"""Consumers finish messages in any order; the cursor moves over what is finished without a hole."""

from __future__ import annotations

import pytest

from clymq.errors import CorruptBatch, Overloaded
from clymq.replication.cursors import (
    ACKED,
    ACKED_RANGES_MAX,
    COUNTED_RANGES_MAX,
    DEAD_LETTERS_MAX,
    PSB_GROUPS_MAX,
    PTP_GROUPS_MAX,
    Cursor,
    DeadLetter,
    Groups,
    Refused,
    Segment,
)
from clymq.replication.entries import (
    REASON_CHARACTERS_MAX,
    Ack,
    Commit,
    Dead,
    Done,
    EndedLease,
    Prepare,
    Range,
    Reset,
    Timeout,
)
from clymq.replication.machine import DEAD_LETTERS_PER_BLOCK
from unit.replication.leader import Leader

# --- The cursor ---


def acked(*ranges: tuple[int, int]) -> Cursor:
    cursor = Cursor()
    for start, end in ranges:
        assert cursor.ack(start, end)
    return cursor


def test_acks_of_two_and_three_before_one_move_the_cursor_after_one() -> None:
    cursor = acked((2, 3), (1, 2))
    assert (cursor.low, cursor.segments) == (0, [Segment(1, 3, ACKED)])
    cursor.ack(0, 1)
    assert (cursor.low, cursor.segments) == (3, [])


@pytest.mark.parametrize(
    "ranges",
    [[(5, 6), (7, 8), (6, 7)], [(5, 8)], [(6, 8), (5, 7)], [(7, 8), (5, 6), (5, 8)], [(5, 8), (6, 7)]],
)
def test_the_same_messages_acked_in_any_order_make_the_same_cursor(ranges: list[tuple[int, int]]) -> None:
    assert acked(*ranges) == Cursor(0, [Segment(5, 8, ACKED)])


def test_an_ack_below_the_low_mark_changes_nothing() -> None:
    cursor = acked((0, 10), (12, 13))
    cursor.ack(3, 10)
    assert cursor == Cursor(10, [Segment(12, 13, ACKED)])


def test_an_ack_across_the_low_mark_moves_it() -> None:
    assert acked((0, 10), (5, 15)) == Cursor(15, [])


def test_a_lease_that_came_back_is_counted_where_it_is_not_acked() -> None:
    cursor = acked((3, 5))
    cursor.fail(2, 7)
    cursor.fail(6, 8)
    assert cursor.segments == [
        Segment(2, 3, 1),
        Segment(3, 5, ACKED),
        Segment(5, 6, 1),
        Segment(6, 7, 2),
        Segment(7, 8, 1),
    ]


def test_counts_are_forgotten_below_the_low_mark() -> None:
    cursor = Cursor()
    cursor.fail(0, 10)
    cursor.ack(0, 4)
    cursor.fail(0, 6)
    assert cursor == Cursor(4, [Segment(4, 6, 2), Segment(6, 10, 1)])


def test_what_is_unfinished_is_told_with_its_counts() -> None:
    cursor = acked((0, 2), (4, 5))
    cursor.fail(5, 8)
    assert cursor.unfinished(0, 10) == [Segment(2, 4, 0), Segment(5, 8, 1), Segment(8, 10, 0)]
    assert cursor.unfinished(3, 6) == [Segment(3, 4, 0), Segment(5, 6, 1)]
    assert cursor.unfinished(4, 5) == []
    assert cursor.unfinished(0, 2) == []


def full() -> Cursor:
    """Every second message acked, up to the limit."""
    return acked(*((2 * n + 1, 2 * n + 2) for n in range(ACKED_RANGES_MAX)))


def test_an_ack_beyond_the_limit_of_ranges_is_refused_unless_it_merges() -> None:
    cursor = full()
    assert not cursor.ack(5000, 5001)
    assert cursor == full()
    assert cursor.ack(2, 3)
    assert cursor.acked_ranges == ACKED_RANGES_MAX - 1
    assert cursor.ack(5000, 5001)


def test_an_ack_at_the_low_mark_is_never_refused() -> None:
    cursor = full()
    cursor.segments = [Segment(each.start + 1, each.end + 1, ACKED) for each in cursor.segments]
    assert cursor.ack(0, 1)
    assert (cursor.low, cursor.acked_ranges) == (1, ACKED_RANGES_MAX)


def test_a_full_cursor_may_lease_only_its_low_mark_until_the_lowest_hole_closes() -> None:
    cursor = full()
    assert cursor.may_lease(0)
    assert not cursor.may_lease(2)
    cursor.ack(0, 1)
    assert cursor.may_lease(4)


def test_the_counts_that_are_forgotten_first_are_the_highest() -> None:
    cursor = Cursor()
    for n in range(COUNTED_RANGES_MAX):
        cursor.fail(2 * n + 10, 2 * n + 11)
    assert not cursor.may_lease(10)
    highest = 2 * COUNTED_RANGES_MAX + 8
    cursor.fail(0, 1)
    assert len(cursor.segments) == COUNTED_RANGES_MAX
    assert cursor.unfinished(0, 1) == [Segment(0, 1, 1)]
    assert cursor.unfinished(highest, highest + 1) == [Segment(highest, highest + 1, 0)]


def test_counts_that_acks_cut_apart_stay_bounded() -> None:
    cursor = Cursor()
    cursor.fail(0, 10_000)
    for n in range(ACKED_RANGES_MAX):
        cursor.ack(2 * n + 1, 2 * n + 2)
    assert len(cursor.segments) - cursor.acked_ranges == COUNTED_RANGES_MAX
    assert cursor.acked_ranges == ACKED_RANGES_MAX


# --- Groups in the log ---


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_new_group_begins_at_the_earliest_offset(leader: Leader) -> None:
    assert leader.machine.cursor("g") is None
    assert leader.machine.may_lease("g", 0)
    leader.commit(Ack(group="g", ranges=(Range(1, 2),)))
    assert leader.machine.cursor("g") == Cursor(0, [Segment(1, 2, ACKED)])


def test_a_group_is_prepared_once_where_the_entry_says(leader: Leader) -> None:
    leader.commit(Prepare(group="g", offset=500))
    leader.commit(Prepare(group="g", offset=700))
    assert leader.machine.cursor("g") == Cursor(500)


def test_a_reset_begins_anew_at_any_offset(leader: Leader) -> None:
    leader.commit(Ack(group="g", ranges=(Range(0, 10), Range(12, 13))))
    leader.commit(Reset(group="g", offset=5))
    assert leader.machine.cursor("g") == Cursor(5)


def test_groups_do_not_disturb_each_other(leader: Leader) -> None:
    leader.commit(Ack(group="g", ranges=(Range(0, 10),)))
    leader.commit(Ack(group="h", ranges=(Range(0, 3),)))
    leader.commit(Commit(group="g", offset=77))
    assert leader.machine.cursor("g") == Cursor(10)
    assert leader.machine.cursor("h") == Cursor(3)
    assert leader.machine.position("g") == 77
    assert (leader.machine.ptp_groups(), leader.machine.psb_groups()) == (["g", "h"], ["g"])


def test_a_timeout_counts_a_delivery_for_each_lease_that_ended(leader: Leader) -> None:
    leader.commit(
        Timeout(ended=(EndedLease("g", Range(0, 2)), EndedLease("g", Range(1, 3)), EndedLease("h", Range(0, 1))))
    )
    cursor = leader.machine.cursor("g")
    assert cursor is not None
    assert cursor.segments == [Segment(0, 1, 1), Segment(1, 2, 2), Segment(2, 3, 1)]
    assert leader.machine.cursor("h") == Cursor(0, [Segment(0, 1, 1)])


def test_a_position_may_go_forwards_and_back(leader: Leader) -> None:
    assert leader.machine.position("g") is None
    for offset in (100, 20, 0):
        leader.commit(Commit(group="g", offset=offset))
        assert leader.machine.position("g") == offset


def test_only_the_ranges_without_room_are_refused(leader: Leader) -> None:
    holes = tuple(Range(2 * n + 1, 2 * n + 2) for n in range(ACKED_RANGES_MAX))
    assert leader.commit(Ack(group="g", ranges=holes)) is None
    answer = leader.commit(Ack(group="g", ranges=(Range(9000, 9001), Range(0, 1))))
    assert isinstance(answer, Refused)
    assert answer.ranges == (Range(9000, 9001),)
    assert answer.error.retriable
    assert leader.machine.cursor("g").low == 2  # type: ignore[union-attr]
    assert leader.machine.may_lease("g", 9000)


def test_groups_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    groups = Groups()
    for n in range(PTP_GROUPS_MAX):
        assert groups.apply(Prepare(group=f"g{n}", offset=0)) is None
    refused = (
        Prepare(group="h", offset=0),
        Reset(group="h", offset=0),
        Ack(group="h", ranges=(Range(0, 1),)),
        Dead(group="h", range=Range(0, 1), reason="", seq=1),
    )
    for entry in refused:
        answer = groups.apply(entry)
        assert isinstance(answer, Refused)
        assert isinstance(answer.error, Overloaded)
    groups.apply(Timeout(ended=(EndedLease("h", Range(0, 1)),)))
    assert groups.apply(Ack(group="g0", ranges=(Range(0, 1),))) is None
    assert len(groups.ptp) == PTP_GROUPS_MAX


def test_positions_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    groups = Groups()
    for n in range(PSB_GROUPS_MAX):
        assert groups.apply(Commit(group=f"g{n}", offset=0)) is None
    assert isinstance(groups.apply(Commit(group="h", offset=0)), Refused)
    assert groups.apply(Commit(group="g0", offset=5)) is None
    assert len(groups.psb) == PSB_GROUPS_MAX


# --- Dead letters ---


def test_a_dead_letter_is_finished_and_remembered_until_it_is_done(leader: Leader) -> None:
    entry = leader.machine.dead("g", Range(0, 2), "3 deliveries")
    leader.commit(entry)
    assert leader.machine.cursor("g") == Cursor(2)
    assert leader.machine.dead_letters("g") == {1: DeadLetter(Range(0, 2), "3 deliveries")}
    leader.commit(Done(group="g", seq=1))
    assert leader.machine.dead_letters("g") == {}


def test_each_dead_letter_has_a_number_of_its_own_also_in_flight(leader: Leader) -> None:
    for offset in range(3):
        leader.propose(leader.machine.dead("g", Range(offset, offset + 1), ""))
    leader.propose(leader.machine.dead("h", Range(0, 1), ""))
    leader.apply()
    assert list(leader.machine.dead_letters("g")) == [1, 2, 3]
    assert list(leader.machine.dead_letters("h")) == [1]


def test_numbers_are_not_used_again_after_done_a_reset_or_a_new_leader(leader: Leader) -> None:
    leader.commit(leader.machine.dead("g", Range(0, 1), ""))
    leader.commit(Done(group="g", seq=1))
    leader.commit(Reset(group="g", offset=0))
    leader.lose_leadership()
    leader.elect()
    assert leader.machine.dead("g", Range(0, 1), "").seq == 2


def test_a_later_block_gives_no_number_that_an_earlier_one_may_have_given_and_lost(leader: Leader) -> None:
    leader.commit(leader.machine.dead("g", Range(0, 1), ""))
    later = leader.machine.dead("g", Range(1, 2), "", block=2)
    assert later.seq > DEAD_LETTERS_PER_BLOCK
    leader.commit(later)
    assert leader.machine.dead("g", Range(2, 3), "", block=2).seq == later.seq + 1
    assert leader.machine.dead("h", Range(0, 1), "", block=2).seq == later.seq
    assert list(leader.machine.dead_letters("g")) == [1, later.seq]


def test_a_number_that_was_used_stops_the_replica(leader: Leader) -> None:
    entry = leader.machine.dead("g", Range(0, 1), "")
    leader.commit(entry)
    with pytest.raises(CorruptBatch, match="seq"):
        leader.commit(entry)


def test_a_done_that_is_repeated_or_of_an_unknown_group_changes_nothing(leader: Leader) -> None:
    leader.commit(leader.machine.dead("g", Range(0, 1), ""))
    for group in ("g", "g", "h"):
        leader.commit(Done(group=group, seq=1))
    assert leader.machine.dead_letters("g") == leader.machine.dead_letters("h") == {}
    assert leader.machine.cursor("h") is None


def test_a_long_reason_is_cut(leader: Leader) -> None:
    leader.commit(leader.machine.dead("g", Range(0, 1), "x" * 5000))
    assert len(leader.machine.dead_letters("g")[1].reason) == REASON_CHARACTERS_MAX


def test_dead_letters_beyond_the_limit_wait_until_the_dlq_has_taken_some() -> None:
    groups = Groups()
    for seq in range(1, DEAD_LETTERS_MAX + 1):
        assert groups.apply(Dead(group="g", range=Range(seq - 1, seq), reason="", seq=seq)) is None
    one_more = Dead(group="h", range=Range(0, 1), reason="", seq=1)
    assert isinstance(groups.apply(one_more), Refused)
    assert groups.ptp["h"].cursor.low == 0
    groups.apply(Done(group="g", seq=1))
    assert groups.apply(Dead(group="h", range=Range(0, 1), reason="", seq=2)) is None


def test_a_dead_letter_whose_range_finds_no_room_is_not_remembered_either() -> None:
    groups = Groups()
    groups.apply(Ack(group="g", ranges=tuple(Range(2 * n + 1, 2 * n + 2) for n in range(ACKED_RANGES_MAX))))
    answer = groups.apply(Dead(group="g", range=Range(9000, 9001), reason="", seq=1))
    assert isinstance(answer, Refused)
    assert answer.ranges == (Range(9000, 9001),)
    assert groups.ptp["g"].dead == {}
    assert groups.apply(Dead(group="g", range=Range(0, 1), reason="", seq=2)) is None
