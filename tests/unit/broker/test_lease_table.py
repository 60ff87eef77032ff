"""The lease table of one group, sentence by sentence; `property/test_lease_model.py` has the histories."""

from __future__ import annotations

from itertools import count

import pytest

from clymq.broker.subscriptions.leases import OFFERS_MAX, REMEMBERED_MAX, GroupLeases, Lease, Taken
from clymq.broker.subscriptions.spans import Span, Spans
from clymq.replication.cursors import ACKED_RANGES_MAX, Cursor


class Group:
    """A table with its cursor; what is written is applied at once."""

    def __init__(self, end: int = 10, *, leases_max: int = 100) -> None:
        self.cursor = Cursor()
        self.table = GroupLeases(0, leases_max=leases_max)
        self.end = end
        self.now = 0.0
        self.numbers = count(1)

    def lease(self, messages: int, consumer: str = "one", *, lease_ms: float = 100) -> list[Lease]:
        offers = self.table.offers(self.cursor, self.end, messages)
        return self.table.lease(offers, consumer, now=self.now, lease_ms=lease_ms, number=lambda: next(self.numbers))

    def ack(self, numbers: list[int], *ranges: tuple[int, int], consumer: str = "one") -> Taken:
        taken = self.table.take_to_ack(self.cursor, consumer, numbers, [Span(*each) for each in ranges])
        for span in taken.spans:
            assert self.cursor.ack(*span)
        self.table.acked(taken)
        return taken

    def nack(self, numbers: list[int], *ranges: tuple[int, int], until: float | None = None) -> None:
        self.fail(self.table.take_to_end("one", numbers, [Span(*each) for each in ranges]), until=until)

    def fail(self, taken: Taken, *, until: float | None = None) -> None:
        for span in taken.spans:
            self.cursor.fail(*span)
        self.table.settled(taken.spans, until=until)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """What would be offered now."""
        return [(offer.start, offer.end) for offer in self.table.offers(self.cursor, self.end, 1000)]


def spans_of(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.left.start, lease.left.end) for lease in leases]


def test_new_messages_are_leased_in_order_and_once() -> None:
    group = Group()
    assert spans_of(group.lease(4)) == [(0, 4)]
    assert spans_of(group.lease(4, "two")) == [(4, 8)]
    assert spans_of(group.lease(4)) == [(8, 10)]
    assert group.lease(4) == []
    group.end = 12
    assert spans_of(group.lease(4)) == [(10, 12)]


def test_what_came_back_is_leased_before_what_is_new_with_its_own_count() -> None:
    group = Group()
    group.lease(4)
    group.nack([1], (1, 2), (3, 4))
    leases = group.lease(100)
    assert spans_of(leases) == [(1, 2), (3, 4), (4, 10)]
    assert [lease.deliveries for lease in leases] == [2, 2, 1]


def test_what_is_finished_is_stepped_over() -> None:
    group = Group()
    group.cursor.ack(2, 4)
    assert spans_of(group.lease(100)) == [(0, 2), (4, 10)]


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    group = Group()
    group.lease(4)
    assert group.table.next_at() == 100
    assert group.table.expire(99.9).pieces == []
    taken = group.table.expire(100)
    assert list(taken.spans) == [Span(0, 4)]
    assert group.ranges == [(4, 10)], "as long as the log does not know it, nobody has it"
    group.fail(taken)
    assert group.ranges == [(0, 4), (4, 10)]
    assert group.table.next_at() is None


def test_an_extended_lease_ends_later_and_an_unknown_one_is_named() -> None:
    group = Group()
    group.lease(4)
    assert group.table.extend("one", [1, 7], 500) == [7]
    assert group.table.extend("two", [1], 900) == [1]
    assert group.table.expire(499).pieces == []
    assert list(group.table.expire(500).spans) == [Span(0, 4)]


def test_a_lease_that_is_extended_without_end_costs_no_memory_without_end() -> None:
    group = Group()
    group.lease(4)
    for times in range(4 * REMEMBERED_MAX):
        group.table.extend("one", [1], 1_000_000 - times)
    assert len(group.table._expiries) <= REMEMBERED_MAX + 4
    assert group.table.next_at() == 1_000_000 - 4 * REMEMBERED_MAX + 1


def test_a_part_that_is_acked_leaves_the_rest_leased() -> None:
    group = Group()
    group.lease(6)
    group.ack([1], (2, 4))
    assert list(group.table.leases[0].left) == [Span(0, 2), Span(4, 6)]
    assert group.cursor.low == 0
    group.ack([1], (0, 2))
    assert group.cursor.low == 4
    assert list(group.table.expire(100).spans) == [Span(4, 6)]


def test_an_ack_may_be_repeated() -> None:
    group = Group()
    group.lease(6)
    group.ack([1])
    assert group.ack([1]) == Taken()
    assert group.ack([1], (0, 6)) == Taken()
    assert group.ack([99], (0, 6)) == Taken(), "what is finished is finished, whoever did it"


def test_an_ack_of_what_came_back_is_unknown_and_does_the_rest() -> None:
    group = Group()
    group.lease(3)
    group.lease(3)
    group.nack([1])
    assert group.ack([1, 2]).unknown == [1]
    assert group.cursor.unfinished(0, 10)[0].end == 3
    assert group.ack([1], (0, 3)).unknown == [1]
    assert group.ack([2], consumer="two").unknown == [2], "it is not the one who had it"


def test_an_ack_that_is_still_on_its_way_is_not_unknown() -> None:
    group = Group()
    group.lease(3)
    first = group.table.take_to_ack(group.cursor, "one", [1], [])
    second = group.table.take_to_ack(group.cursor, "one", [1], [])
    assert (list(second.spans), second.unknown) == ([Span(0, 3)], [])
    third = group.table.take_to_ack(group.cursor, "one", [1], [Span(1, 2)])
    assert (list(third.spans), third.unknown) == ([Span(1, 2)], [])
    group.table.not_acked(first)
    assert list(group.table.leases[0].left) == [Span(0, 3)], "it failed: the lease is as it was"


def test_parts_of_an_ack_that_found_no_room_stay_leased() -> None:
    group = Group()
    group.lease(6)
    taken = group.table.take_to_ack(group.cursor, "one", [1], [Span(0, 2), Span(4, 6)])
    group.cursor.ack(0, 2)
    group.table.not_acked(taken, [Span(4, 6)])
    assert list(group.table.leases[0].left) == [Span(2, 6)]


def test_only_so_many_acked_leases_are_remembered() -> None:
    group = Group(REMEMBERED_MAX + 10, leases_max=REMEMBERED_MAX + 10)
    for _ in range(REMEMBERED_MAX + 1):
        group.ack([group.lease(1)[0].number])
    assert group.ack([1]).unknown == [1]
    assert group.ack([2]).unknown == []


def test_what_is_delayed_is_not_to_be_had_before_its_time() -> None:
    group = Group(4)
    group.lease(4)
    group.nack([1], (1, 2), until=50)
    assert group.ranges == []
    assert group.table.next_at() == 50
    group.table.end_delays(49)
    assert group.ranges == []
    group.table.end_delays(50)
    assert group.ranges == [(1, 2)]


def test_a_consumer_that_is_gone_has_nothing() -> None:
    group = Group()
    group.lease(2, "one")
    group.lease(2, "two")
    group.lease(2, "one")
    taken = group.table.gone("one")
    assert list(taken.spans) == [Span(0, 2), Span(4, 6)]
    assert [lease.consumer for lease in group.table.leases] == ["two"]
    group.table.not_settled(taken)
    assert len(group.table.leases) == 3, "the log does not know it: they have what they had"


def test_an_ordered_group_has_one_holder_until_it_goes() -> None:
    group = Group()
    assert group.table.admit("one", ordered=True)
    assert not group.table.admit("two", ordered=True)
    group.table.gone("one")
    assert group.table.admit("two", ordered=True)
    assert group.table.admit("one", ordered=False), "the latest word counts"


def test_an_ordered_group_leases_nothing_behind_what_is_to_come_again() -> None:
    group = Group()
    group.table.admit("one", ordered=True)
    group.lease(4)
    taken = group.table.take_to_end("one", [1], [Span(1, 2)])
    assert group.ranges == []
    group.fail(taken, until=50)
    assert group.ranges == []
    group.table.end_delays(50)
    assert group.ranges == [(1, 2), (4, 10)]


def test_a_reset_makes_every_lease_void_also_those_on_their_way() -> None:
    group = Group()
    group.lease(4)
    group.lease(2)
    acking = group.table.take_to_ack(group.cursor, "one", [1], [])
    ending = group.table.take_to_end("one", [2], [])
    group.cursor.reset(2)
    group.table.reset(2)
    group.table.not_acked(acking)
    group.table.not_settled(ending)
    assert group.table.leases == []
    assert group.ranges == [(2, 10)]
    group.table.settled(ending.spans)
    assert group.ranges == [(2, 10)]


def test_there_is_a_bound_on_leases_and_on_ranges_of_one_answer() -> None:
    group = Group(10 * OFFERS_MAX, leases_max=3)
    for _ in range(3):
        group.lease(1)
    assert group.table.is_full
    assert group.lease(1) == []
    wide = Group(10 * OFFERS_MAX, leases_max=1000)
    wide.lease(10 * OFFERS_MAX)
    wide.nack([1], *((at, at + 1) for at in range(0, 10 * OFFERS_MAX, 2)))
    assert len(wide.lease(1000)) == OFFERS_MAX


def test_with_a_thousand_acked_ranges_only_the_lowest_hole_is_leased() -> None:
    group = Group(3 * ACKED_RANGES_MAX)
    for at in range(1, 2 * ACKED_RANGES_MAX, 2):
        assert group.cursor.ack(at, at + 1)
    assert group.ranges == [(0, 1)]
    group.ack([group.lease(1)[0].number])
    assert len(group.ranges) == OFFERS_MAX


def test_the_next_leader_goes_on_with_what_the_cursor_does_not_count_as_finished() -> None:
    group = Group()
    group.lease(4, lease_ms=100)
    group.lease(2, "two", lease_ms=200)
    group.nack([1], (0, 1), until=70)
    handed = group.table.hand_over("g", 50)
    group.cursor.ack(2, 3)
    following = GroupLeases(0, leases_max=100)
    following.adopt(handed, group.cursor, 1000)
    assert [(lease.number, lease.consumer, list(lease.left), lease.expires_at) for lease in following.leases] == [
        (1, "one", [Span(1, 2), Span(3, 4)], 1050),
        (2, "two", [Span(4, 6)], 1150),
    ]
    assert following.next_at() == 1020
    offers = following.offers(group.cursor, 10, 100)
    assert [(offer.start, offer.end) for offer in offers] == [(6, 10)]


def test_the_holder_of_an_ordered_group_is_handed_over() -> None:
    group = Group()
    group.table.admit("one", ordered=True)
    following = GroupLeases(0, leases_max=100)
    following.adopt(group.table.hand_over("g", 0), group.cursor, 0)
    assert not following.admit("two", ordered=True)
    assert following.admit("one", ordered=True)


@pytest.mark.parametrize("ranges", [[(0, 3), (5, 6)], [(0, 10)], [(2, 3), (4, 5), (6, 7)]])
def test_spans_are_sets_of_offsets(ranges: list[tuple[int, int]]) -> None:
    spans, offsets = Spans(), set()
    for start, end in ranges:
        spans.add(start, end)
        offsets |= {*range(start, end)}
    for start in range(12):
        for end in range(start, 12):
            some = Spans(spans)
            taken = {offset for span in some.take(start, end) for offset in range(*span)}
            assert taken == offsets & {*range(start, end)}
            assert {offset for span in some for offset in range(*span)} == offsets - taken
            some.add(start, end)
            assert {offset for span in some for offset in range(*span)} == offsets | {*range(start, end)}
            assert all(one.end < other.start for one, other in zip(list(some)[:-1], list(some)[1:], strict=True))
