"""How leases end without an ack: counted in the log, then delivered again, or given up.

Nothing comes back before the log knows that it was delivered in vain; the count is what tells a message that nobody can
deal with from one that was unlucky. What was delivered too often, or is rejected, is given up by an entry (DEAD) of its
own, in parts that each fit into one batch of the dead-letter topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from clymq.broker.active_block import ActiveBlock
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.letters import BATCH_BYTES, LETTER_BYTES
from clymq.broker.subscriptions.leases import GroupLeases, Offer, Taken
from clymq.broker.subscriptions.spans import Span, outside
from clymq.clock import Clock
from clymq.errors import ClymqError, Overloaded
from clymq.replication.cursors import DEAD_LETTERS_MAX, Refused
from clymq.replication.entries import EndedLease, Range, Timeout

# Pause before an entry that could not be written is tried again.
RETRY_MS: Final = 100.0
# A dead letter that found no room: others are on their way out.
NO_ROOM_MS: Final = 1_000.0
# Dead letters that one look may make; the rest follows a moment later.
BURIALS_MAX: Final = 64
DEAD_LETTERS_SUFFIX: Final = ".dlq"

Answer = Callable[[object], None]


class Endings:
    """Those of one partition. `changed` hears of a group that may be served again, `dead` of new dead letters."""

    def __init__(
        self,
        partition: HostedPartition,
        block: ActiveBlock,
        clock: Clock,
        *,
        changed: Callable[[str], None],
        dead: Callable[[], None],
        is_current: Callable[[str, GroupLeases], bool],
    ) -> None:
        """`is_current`: whether a group's table is still the one that counts; a reset makes another."""
        self._partition = partition
        self._block = block
        self._clock = clock
        self._changed = changed
        self._dead = dead
        self._is_current = is_current
        self.retry_at = 0.0
        """What could not be written is not tried again before this."""

    @property
    def has_dead_letters(self) -> bool:
        """Whether messages may be given up; a topic of dead letters keeps them for ever."""
        return not self._partition.topic.endswith(DEAD_LETTERS_SUFFIX)

    def is_worn(self, deliveries: int) -> bool:
        """Whether that was often enough."""
        return deliveries >= self._partition.config.delivery_count_max and self.has_dead_letters

    def until(self, delay_ms: float) -> float | None:
        """Return when a delay is over; None for none."""
        return self._clock.monotonic_ms() + delay_ms if delay_ms > 0 else None

    def in_vain(self, name: str, group: GroupLeases, taken: Taken, answer: Answer, *, delay_ms: float = 0) -> None:
        """Count what was delivered in vain; then it may be delivered again, after a delay."""
        spans = list(taken.spans)

        def answered(outcome: object) -> None:
            if isinstance(outcome, ClymqError):
                group.not_settled(taken)
            else:
                self._came_back(name, group, spans, self.until(delay_ms))
            answer(outcome)
            self._changed(name)

        try:
            self._block.write(Timeout(ended=tuple(EndedLease(name, Range(*span)) for span in spans)), answered)
        except ClymqError as error:
            self.retry_at = self._clock.monotonic_ms() + RETRY_MS
            answered(error)

    def _came_back(self, name: str, group: GroupLeases, spans: Iterable[Span], until: float | None) -> None:
        """It is counted: what came back too often is given up, the rest is free or waits."""
        cursor = self._block.machine.cursor(name)
        if cursor is None or not self._is_current(name, group):
            return
        for span in spans:
            unfinished = cursor.unfinished(*span)
            group.buried(outside([Span(each.start, each.end) for each in unfinished], *span))
            for segment in unfinished:
                part = Span(segment.start, segment.end)
                if self.is_worn(segment.deliveries):
                    self._bury_some(name, group, part, segment.deliveries)
                else:
                    group.settled([part], until=until)

    def give_up(self, name: str, group: GroupLeases, worn: Iterable[Offer]) -> None:
        """Give up what nobody has, because it came back too often."""
        for offer in worn:
            self._bury_some(name, group, group.give_up(offer), offer.deliveries)

    def reject(self, name: str, group: GroupLeases, taken: Taken, reason: str, answer: Answer) -> None:
        """Give up what a consumer rejects; answered when all of it is in the log, or with what went wrong."""
        parts: list[tuple[Span, int]] = []
        outcomes: list[object] = []
        for piece in taken.pieces:
            some = list(islice(self._parts(piece.span), DEAD_LETTERS_MAX - len(parts)))
            parts += [(part, piece.lease.deliveries) for part in some]
            end = some[-1].end if some else piece.span.start
            if end < piece.span.end:
                group.settled([Span(end, piece.span.end)], until=self.until(NO_ROOM_MS))
                outcomes = [Overloaded("more is rejected than dead letters can wait; the rest comes again")]
        total = len(parts) + len(outcomes)

        def answered(outcome: object) -> None:
            outcomes.append(outcome)
            if len(outcomes) == total:
                answer(next((each for each in outcomes if isinstance(each, ClymqError | Refused)), None))

        for part, deliveries in parts:
            self._bury(name, group, part, reason, deliveries, answered)

    def _bury_some(self, name: str, group: GroupLeases, span: Span, deliveries: int) -> None:
        """Give up a range that is settling; of a long one a part at a time."""
        parts = list(islice(self._parts(span), BURIALS_MAX))
        if parts[-1].end < span.end:
            group.settled([Span(parts[-1].end, span.end)], until=self.until(RETRY_MS))
        for part in parts:
            self._bury(name, group, part, f"delivered {deliveries} times", deliveries, _ignore)

    def _parts(self, span: Span) -> Iterator[Span]:
        """Cut a range so that each part fits into one batch, whatever its messages are by what is allowed now."""
        config = self._partition.config
        room = config.batch_bytes_max - BATCH_BYTES
        count = max(1, room // (config.message_bytes_max + LETTER_BYTES))
        return (Span(at, min(at + count, span.end)) for at in range(span.start, span.end, count))

    def _bury(self, name: str, group: GroupLeases, span: Span, reason: str, deliveries: int, answer: Answer) -> None:
        def answered(outcome: object) -> None:
            if isinstance(outcome, ClymqError | Refused):
                group.settled([span], until=self.until(NO_ROOM_MS))
            else:
                group.buried([span])
                self._dead()
            answer(outcome)
            self._changed(name)

        try:
            block = self._block
            entry = block.machine.dead(name, Range(*span), reason, deliveries, block=block.number)
            block.write(entry, answered)
        except ClymqError as error:
            answered(error)


def _ignore(_: object) -> None:
    """For whoever does not wait for the answer."""
