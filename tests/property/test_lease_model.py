"""The lease table against its promise: every message that is not finished is in one place, and nobody's twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clymq.broker.subscriptions.leases import GroupLeases, Lease, Taken
from clymq.broker.subscriptions.spans import Span, Spans
from clymq.replication.cursors import Cursor
from clymq.replication.handed_over import decode_group, encode_group

CONSUMERS = ("a", "b", "c")
LEASE_MS = 100


class LeasesModel(RuleBasedStateMachine):
    """A leader and its log: entries that are written are applied later, in order, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.leases = GroupLeases(0, leases_max=20)
        self.numbers = count(1)
        self.now = 0.0
        self.end = 0
        self.log: list[tuple[Callable[[], None], Callable[[], None]]] = []

    # --- What happens ---

    @rule(messages=st.integers(1, 20))
    def push(self, messages: int) -> None:
        self.end += messages

    @rule(
        consumer=st.sampled_from(CONSUMERS), messages=st.integers(1, 10), skip=st.integers(0, 1), cut=st.integers(1, 9)
    )
    def pull(self, consumer: str, messages: int, skip: int, cut: int) -> None:
        offers = self.leases.offers(self.cursor, self.end, messages)
        assert sum(offer.end - offer.start for offer in offers) <= messages
        offers = offers[skip : skip + cut]
        given = self.leases.lease(offers, consumer, now=self.now, lease_ms=LEASE_MS, number=lambda: next(self.numbers))
        for offer, lease in zip(offers, given, strict=True):
            assert lease.deliveries == offer.deliveries + 1
            assert all(each.deliveries == offer.deliveries for each in self.cursor.unfinished(offer.start, offer.end))

    @precondition(lambda self: self.leases.leases)
    @rule(data=st.data(), named=st.booleans())
    def ack(self, data: st.DataObject, named: bool) -> None:
        lease = data.draw(st.sampled_from(self.leases.leases))
        ranges = [self._part(data, lease)] if named else []
        taken = self.leases.take_to_ack(self.cursor, lease.consumer, [lease.number], ranges)
        assert taken.pieces
        assert not taken.unknown
        again = self.leases.take_to_ack(self.cursor, lease.consumer, [lease.number], list(taken.spans))
        assert not again.unknown, "what is being acked may be acked again"
        assert not again.pieces

        def apply() -> None:
            for span in taken.spans:
                assert self.cursor.ack(*span)
            self.leases.acked(taken)

        self.log.append((apply, lambda: self.leases.not_acked(taken)))

    @precondition(lambda self: self.leases.leases)
    @rule(data=st.data(), named=st.booleans(), delay=st.sampled_from([None, 50]))
    def nack(self, data: st.DataObject, named: bool, delay: int | None) -> None:
        lease = data.draw(st.sampled_from(self.leases.leases))
        ranges = [self._part(data, lease)] if named else []
        taken = self.leases.take_to_end(lease.consumer, [lease.number], ranges)
        assert not taken.unknown
        self._end_in_vain(taken, delay)

    @rule(milliseconds=st.integers(1, 150))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.leases.end_delays(self.now)
        self._end_in_vain(self.leases.expire(self.now), None)
        assert all(lease.expires_at > self.now for lease in self.leases.leases)
        at = self.leases.next_at()
        assert at is None or at > self.now

    @rule(consumer=st.sampled_from(CONSUMERS))
    def lose_consumer(self, consumer: str) -> None:
        self._end_in_vain(self.leases.gone(consumer), None)
        assert all(lease.consumer != consumer for lease in self.leases.leases)

    @precondition(lambda self: self.leases.leases)
    @rule(data=st.data(), longer=st.integers(1, 200))
    def extend(self, data: st.DataObject, longer: int) -> None:
        lease = data.draw(st.sampled_from(self.leases.leases))
        assert self.leases.extend(lease.consumer, [lease.number], self.now + longer) == []
        assert self.leases.extend("somebody else", [lease.number], self.now + longer) == [lease.number]

    @precondition(lambda self: self.log)
    @rule(fails=st.booleans())
    def settle(self, fails: bool) -> None:
        apply, fail = self.log.pop(0)
        (fail if fails else apply)()

    @rule()
    def hand_over(self) -> None:
        """All that is on its way is applied, then another leader goes on."""
        self._apply_all()
        before = {lease.number: (lease.consumer, lease.left, lease.deliveries) for lease in self.leases.leases}
        handed = decode_group(encode_group(self.leases.hand_over("g", self.now)))
        self.leases = GroupLeases(self.cursor.low, leases_max=20)
        self.leases.adopt(handed, self.cursor, self.now)
        after = {lease.number: (lease.consumer, lease.left, lease.deliveries) for lease in self.leases.leases}
        assert after == before

    @rule()
    def crash(self) -> None:
        """The next leader knows the log and nothing else."""
        self._apply_all()
        self.leases = GroupLeases(self.cursor.low, leases_max=20)

    @rule(back=st.integers(0, 10))
    def reset(self, back: int) -> None:
        self._apply_all()
        self.cursor.reset(max(0, self.cursor.low - back))
        self.leases.reset(self.cursor.low)

    # --- What must hold ---

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        leases = self.leases
        unfinished = Spans((each.start, each.end) for each in self.cursor.unfinished(0, self.end))
        places: list[Span] = [
            *(span for lease in leases.leases for span in lease.left),
            *leases._acking,
            *leases._settling,
            *(Span(start, end) for _, start, end in leases._delays),
            *leases._free,
            *([Span(leases._frontier, self.end)] if leases._frontier < self.end else []),
        ]
        found: dict[int, int] = {}
        for span in places:
            for offset in range(*span):
                found[offset] = found.get(offset, 0) + 1
        for span in unfinished:
            for offset in range(*span):
                assert found.get(offset) == 1, f"offset {offset} is in {found.get(offset, 0)} places"

    def teardown(self) -> None:
        """In the end everything can be had and finished."""
        self._apply_all()
        for _ in range(10_000):
            if self.cursor.low >= self.end:
                break
            self.now += LEASE_MS + 200
            self.leases.end_delays(self.now)
            self._end_in_vain(self.leases.expire(self.now), None)
            self._apply_all()
            offers = self.leases.offers(self.cursor, self.end, 50)
            given = self.leases.lease(offers, "a", now=self.now, lease_ms=LEASE_MS, number=lambda: next(self.numbers))
            assert given, "what is not finished can be leased"
            taken = self.leases.take_to_ack(self.cursor, "a", [lease.number for lease in given], [])
            for span in taken.spans:
                self.cursor.ack(*span)
            self.leases.acked(taken)
        assert self.cursor.low >= self.end

    # --- Inside ---

    @staticmethod
    def _part(data: st.DataObject, lease: Lease) -> Span:
        span = data.draw(st.sampled_from(list(lease.left)))
        start = data.draw(st.integers(span.start, span.end - 1))
        return Span(start, data.draw(st.integers(start + 1, span.end)))

    def _end_in_vain(self, taken: Taken, delay: int | None) -> None:
        spans = list(taken.spans)
        if not spans:
            return

        def apply() -> None:
            for span in spans:
                self.cursor.fail(*span)
            self.leases.settled(spans, until=None if delay is None else self.now + delay)

        self.log.append((apply, lambda: self.leases.not_settled(taken)))

    def _apply_all(self) -> None:
        for apply, _ in self.log:
            apply()
        self.log = []


TestLeases = LeasesModel.TestCase
