"""What one point-to-point group has out: leases, what came back, what waits.

The cursor, in the log, says what is finished and how often the rest came back; it outlives every leader. This table is
the leader's alone. Every offset from the cursor's low mark to the `frontier` that the cursor does not count as finished
is in exactly one of these places:

    leased      to one consumer, until its time is over
    acking      named by an Ack that is on its way into the log
    settling    its lease ended in vain, or it is given up; the entry that says so is on its way into the log
    delayed     given back, not to be delivered before a time
    free        to be leased again

From the frontier on nothing was ever leased. So the cost of a call depends on how much is out, not on how many messages
there are; nothing here loops over messages. What is on its way into the log is in no lease and in nobody's reach: when
the entry is applied it is finished, free or delayed, and when that fails it goes back where it was.

The clock is the leader's monotonic one, in milliseconds, and comes with each call.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from clymq.broker.subscriptions.spans import Span, Spans, outside
from clymq.replication.cursors import Cursor
from clymq.replication.handed_over import HandedDelay, HandedGroup, HandedLease

# Ranges in one answer: what came back may be scattered, and each range is a lease.
OFFERS_MAX: Final = 64
# Leases that were acked whole and are remembered, so that an Ack that comes twice is answered twice.
REMEMBERED_MAX: Final = 4096


@dataclass(slots=True, eq=False)
class Lease:
    """Offsets that one consumer has to itself. `left` shrinks as parts of it end."""

    number: int
    consumer: str
    deliveries: int
    """This one included."""
    expires_at: float
    left: Spans


@dataclass(frozen=True, slots=True)
class Offer:
    """A range that could be leased now, and how often it came back."""

    start: int
    end: int
    deliveries: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a lease that was taken out of it."""

    lease: Lease
    span: Span


@dataclass(slots=True)
class Taken:
    """What a request that names leases has got hold of."""

    pieces: list[Piece] = field(default_factory=list)
    again: list[Span] = field(default_factory=list)
    """Being acked already, by a request that came before."""
    unknown: list[int] = field(default_factory=list)

    @property
    def spans(self) -> Spans:
        """Everything that it is about."""
        return Spans([*(piece.span for piece in self.pieces), *self.again])


class GroupLeases:
    """One group at one leader. `low` is where its cursor stands."""

    def __init__(self, low: int, *, leases_max: int) -> None:
        self.holder: str | None = None
        """Of an ordered group: the consumer that has the partition to itself."""
        self.held_at = 0.0
        """When the holder was last seen to ask, or to have something."""
        self._ordered = False
        self._leases_max = leases_max
        self._begin(low)

    def _begin(self, low: int) -> None:
        self._frontier = low
        self._free = Spans()
        self._acking = Spans()
        self._settling = Spans()
        self._delays: list[tuple[float, int, int]] = []
        self._leases: dict[int, Lease] = {}
        self._of_consumer: dict[str, set[int]] = {}
        self._expiries: list[tuple[float, int]] = []
        self._acked: OrderedDict[int, tuple[str, tuple[Span, ...]]] = OrderedDict()

    def reset(self, low: int) -> None:
        """The cursor was set to another place: all leases are void."""
        self._begin(low)

    # --- To look at ---

    @property
    def leases(self) -> list[Lease]:
        """All that are out."""
        return list(self._leases.values())

    @property
    def is_full(self) -> bool:
        """Whether no further lease can be given."""
        return len(self._leases) >= self._leases_max

    @property
    def is_idle(self) -> bool:
        """Whether nothing is out, on its way or waiting, and nobody holds the partition."""
        return not (self._leases or self._acking or self._settling or self._delays or self.holder)

    def next_at(self) -> float | None:
        """When a lease or a delay ends next."""
        while self._expiries and not self._is_current(*self._expiries[0]):
            heapq.heappop(self._expiries)
        nearest = [heap[0][0] for heap in (self._expiries, self._delays) if heap]
        return min(nearest, default=None)

    def _is_current(self, at: float, number: int) -> bool:
        lease = self._leases.get(number)
        return lease is not None and lease.expires_at == at

    # --- Leasing ---

    @property
    def is_held(self) -> bool:
        """Whether the holder of an ordered group has something, or acks it right now."""
        return bool(self._acking) or self.holder in self._of_consumer

    def let_go(self, before: float) -> bool:
        """Have no holder, if the one that there is has nothing and has not asked since a time; return whether."""
        if self.holder is None or self.is_held or self.held_at > before:
            return False
        self.holder = None
        return True

    def admit(self, consumer: str, *, ordered: bool, now: float = 0.0) -> bool:
        """Say whether a consumer may have something at all; the first to ask an ordered group holds it from then on."""
        self._ordered = ordered
        if not ordered:
            self.holder = None
        elif self.holder is None:
            self.holder = consumer
        if self.holder == consumer:
            self.held_at = now
        return self.holder in {None, consumer}

    def offers(self, cursor: Cursor, end: int, messages_max: int) -> list[Offer]:
        """Return what could be leased, what came back first, no more than so many messages in all."""
        if self._ordered:
            end = min(end, self._first_missing(end))
        has_room = cursor.may_lease(-1)
        offers: list[Offer] = []
        room = min(OFFERS_MAX, self._leases_max - len(self._leases))
        for span in self._sources(cursor.low, end):
            for segment in cursor.unfinished(span.start, span.end):
                if messages_max <= 0 or len(offers) >= room:
                    return offers
                if has_room or segment.start == cursor.low:
                    stop = min(segment.end, segment.start + messages_max)
                    offers.append(Offer(segment.start, stop, segment.deliveries))
                    messages_max -= stop - segment.start
        return offers

    def _sources(self, low: int, end: int) -> Iterable[Span]:
        """Yield what is free and what is new, below `end`."""
        self._free.take(0, low)  # finished since
        yield from self._free.within(0, end)
        if self._frontier < end:
            yield Span(self._frontier, end)

    def _first_missing(self, end: int) -> int:
        """Return the lowest offset that is neither finished nor to be had: an ordered group waits for it."""
        starts = [start for _, start, _ in self._delays]
        if self._settling:
            starts.append(self._settling.start)
        return min(starts, default=end)

    def lease(
        self, offers: Iterable[Offer], consumer: str, *, now: float, lease_ms: float, number: Callable[[], int]
    ) -> list[Lease]:
        """Give these to a consumer, one lease each."""
        return [
            self._register(Lease(number(), consumer, offer.deliveries + 1, now + lease_ms, self._claimed(offer)))
            for offer in offers
        ]

    def _claimed(self, offer: Offer) -> Spans:
        if offer.start >= self._frontier:
            self._free.add(self._frontier, offer.start)  # stepped over, or finished, which the cursor knows
            self._frontier = offer.end
        else:
            self._free.take(offer.start, offer.end)
        return Spans([(offer.start, offer.end)])

    def _register(self, lease: Lease) -> Lease:
        self._leases[lease.number] = lease
        self._of_consumer.setdefault(lease.consumer, set()).add(lease.number)
        self._note_expiry(lease)
        return lease

    def _note_expiry(self, lease: Lease) -> None:
        """Remember when a lease ends. What is out of date stays where it is, up to a bound."""
        if len(self._expiries) > 2 * len(self._leases) + REMEMBERED_MAX:
            self._expiries = [(each.expires_at, each.number) for each in self._leases.values()]
            heapq.heapify(self._expiries)
        heapq.heappush(self._expiries, (lease.expires_at, lease.number))

    def _drop(self, lease: Lease) -> None:
        if self._leases.pop(lease.number, None) is not None:
            numbers = self._of_consumer[lease.consumer]
            numbers.discard(lease.number)
            if not numbers:
                del self._of_consumer[lease.consumer]

    # --- How leases end ---

    def take_to_ack(self, cursor: Cursor, consumer: str, numbers: Sequence[int], ranges: Sequence[Span]) -> Taken:
        """Take what an Ack names; `acked` or `not_acked` must follow for its pieces.

        What is finished already is fine if we remember the lease, or if the ranges are named.
        """
        taken = self._take(consumer, numbers, ranges)
        for piece in taken.pieces:
            self._acking.add(*piece.span)
        if ranges:
            missing = self._missing(taken, ranges)
            taken.again = [span for gap in missing for span in self._acking.within(*gap)]
            lost = any(
                cursor.unfinished(*part)
                for gap in missing
                for part in outside(self._acking.within(*gap), gap.start, gap.end)
            )
            if lost:
                taken.unknown = taken.unknown or list(numbers)
            else:
                taken.unknown = []
        else:
            self._recall(taken, consumer)
        return taken

    @staticmethod
    def _missing(taken: Taken, ranges: Sequence[Span]) -> list[Span]:
        have = list(taken.spans)
        return [gap for span in ranges for gap in outside(have, span.start, span.end)]

    def _recall(self, taken: Taken, consumer: str) -> None:
        """Find leases that are gone among those that were acked whole, or are being acked."""
        unknown, taken.unknown = taken.unknown, []
        for number in unknown:
            known = self._acked.get(number)
            if known is None or known[0] != consumer:
                taken.unknown.append(number)
            else:
                taken.again += [part for span in known[1] for part in self._acking.within(*span)]

    def acked(self, taken: Taken) -> None:
        """The Ack is in the log."""
        for piece in taken.pieces:
            self._acking.take(*piece.span)

    def not_acked(self, taken: Taken, refused: Iterable[Span] | None = None) -> None:
        """The Ack is not in the log, or these parts of it found no room there: they are leased as before."""
        all_of_it = refused is None
        refusals = Spans(refused or ())
        for piece in taken.pieces:
            back = [piece.span] if all_of_it else refusals.within(*piece.span)
            for span in [part for each in back for part in self._acking.within(*each)]:
                self._acked.pop(piece.lease.number, None)
                self._put_back(piece.lease, span)
            self._acking.take(*piece.span)

    def take_to_end(self, consumer: str, numbers: Sequence[int], ranges: Sequence[Span]) -> Taken:
        """Take what a Nack or a Reject names; `settled`, `buried` or `not_settled` must follow."""
        taken = self._take(consumer, numbers, ranges)
        if ranges and self._missing(taken, ranges):
            taken.unknown = taken.unknown or list(numbers)
        return self._settle(taken)

    def expire(self, now: float) -> Taken:
        """Take the leases whose time is over; `settled` or `not_settled` must follow."""
        over: dict[int, None] = {}
        while self._expiries and self._expiries[0][0] <= now:
            at, number = heapq.heappop(self._expiries)
            if self._is_current(at, number):
                over[number] = None
        return self._settle(self._all_of(over))

    def gone(self, consumer: str) -> Taken:
        """Take all leases of a consumer that is gone; `settled` or `not_settled` must follow."""
        if self.holder == consumer:
            self.holder = None
        return self._settle(self._all_of(sorted(self._of_consumer.get(consumer, ()))))

    def settled(self, spans: Iterable[Span], *, until: float | None = None) -> None:
        """The entry is in the log: the spans may be delivered again, not before a time if one is named."""
        for span in [part for each in spans for part in self._settling.take(*each)]:
            if until is None:
                self._free.add(*span)
            else:
                heapq.heappush(self._delays, (until, span.start, span.end))

    def buried(self, spans: Iterable[Span]) -> None:
        """The entry that gives them up is in the log: the cursor counts them as finished."""
        for span in spans:
            self._settling.take(*span)

    def not_settled(self, taken: Taken) -> None:
        """The entry is not in the log: they are leased as before."""
        for piece in taken.pieces:
            for span in self._settling.take(*piece.span):
                self._put_back(piece.lease, span)

    def give_up(self, offer: Offer) -> Span:
        """Take a range that nobody has, to be given up; `buried` or `settled` must follow."""
        span = next(iter(self._claimed(offer)))
        self._settling.add(*span)
        return span

    def end_delays(self, now: float) -> None:
        """Free what has waited long enough."""
        while self._delays and self._delays[0][0] <= now:
            _, start, end = heapq.heappop(self._delays)
            self._free.add(start, end)

    def extend(self, consumer: str, numbers: Sequence[int], expires_at: float) -> list[int]:
        """Let leases end at another time; return those that are unknown."""
        unknown = []
        for number in numbers:
            lease = self._leases.get(number)
            if lease is None or lease.consumer != consumer:
                unknown.append(number)
            else:
                lease.expires_at = expires_at
                self._note_expiry(lease)
        return unknown

    def _take(self, consumer: str, numbers: Sequence[int], ranges: Sequence[Span]) -> Taken:
        taken = Taken()
        for number in dict.fromkeys(numbers):
            lease = self._leases.get(number)
            if lease is None or lease.consumer != consumer:
                taken.unknown.append(number)
            elif ranges:
                near = _overlapping(ranges, lease.left.start, lease.left.end)
                taken.pieces += [Piece(lease, span) for each in near for span in self._cut(lease, *each)]
            else:
                self._remember(lease)
                taken.pieces += [Piece(lease, span) for span in self._cut(lease, lease.left.start, lease.left.end)]
        return taken

    def _all_of(self, numbers: Iterable[int]) -> Taken:
        leases = [self._leases[number] for number in numbers]
        return Taken(
            [Piece(lease, span) for lease in leases for span in self._cut(lease, lease.left.start, lease.left.end)]
        )

    def _cut(self, lease: Lease, start: int, end: int) -> list[Span]:
        taken = lease.left.take(start, end)
        if not lease.left:
            self._drop(lease)
        return taken

    def _remember(self, lease: Lease) -> None:
        self._acked[lease.number] = (lease.consumer, tuple(lease.left))
        if len(self._acked) > REMEMBERED_MAX:
            self._acked.popitem(last=False)

    def _settle(self, taken: Taken) -> Taken:
        for piece in taken.pieces:
            self._acked.pop(piece.lease.number, None)
            self._settling.add(*piece.span)
        return taken

    def _put_back(self, lease: Lease, span: Span) -> None:
        lease.left.add(*span)
        self._register(lease)

    # --- From leader to leader ---

    def hand_over(self, group: str, now: float) -> HandedGroup:
        """Write down what is out. What is on its way into the log is not: it will be there, or be free."""
        consumers = {name: at for at, name in enumerate(self._of_consumer)}
        return HandedGroup(
            group,
            tuple(consumers),
            tuple(
                HandedLease(
                    lease.number,
                    consumers[lease.consumer],
                    lease.deliveries,
                    max(0, round(lease.expires_at - now)),
                    tuple((span.start, span.end) for span in lease.left),
                )
                for lease in self._leases.values()
            ),
            tuple(HandedDelay(max(0, round(until - now)), start, end) for until, start, end in self._delays),
            self.holder or "",
        )

    def adopt(self, handed: HandedGroup, cursor: Cursor, now: float) -> None:
        """Go on with what another leader had out, as far as the cursor does not count it as finished."""
        self._begin(cursor.low)
        self.holder = handed.holder or None
        self.held_at = now
        self._ordered = bool(handed.holder)
        out = Spans()
        for each in handed.leases:
            left = Spans(self._unclaimed(out, cursor, each.ranges))
            if left and each.consumer < len(handed.consumers):
                consumer = handed.consumers[each.consumer]
                self._register(Lease(each.number, consumer, each.deliveries, now + each.left_ms, left))
        for delay in handed.delays:
            for span in self._unclaimed(out, cursor, ((delay.start, delay.end),)):
                heapq.heappush(self._delays, (now + delay.left_ms, span.start, span.end))
        if out:
            self._frontier = max(cursor.low, out.end)
        self._free = Spans(outside(out, cursor.low, self._frontier))

    @staticmethod
    def _unclaimed(out: Spans, cursor: Cursor, ranges: Iterable[tuple[int, int]]) -> list[Span]:
        """Return what of these ranges is not finished and nobody else's, and claim it."""
        found = [
            part
            for start, end in ranges
            for segment in cursor.unfinished(start, end)
            for part in outside(out.within(segment.start, segment.end), segment.start, segment.end)
        ]
        for part in found:
            out.add(*part)
        return found


def _overlapping(spans: Sequence[Span], start: int, end: int) -> Sequence[Span]:
    """Return those of some spans, which ascend and are disjoint, that have anything of [start, end)."""
    first = bisect_right(spans, start, key=lambda span: span.end)
    return spans[first : bisect_left(spans, end, lo=first, key=lambda span: span.start)]
