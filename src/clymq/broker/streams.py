"""Publish-subscribe, pushed: messages of one partition from an offset on, as fast as the consumer's credit goes.

A stream reads what is on this broker, sealed blocks and the active one if it is led here, and ends with a word about
where to go on when the next offset is elsewhere. It holds no messages: what is sent is a view of the file.
"""

from __future__ import annotations

from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.reading import read_here
from clymq.broker.takers import Delivery, PushSubscription
from clymq.clock import Clock
from clymq.errors import BlockSealed, ClymqError, NotHosted, OffsetOutOfRange
from clymq.protocol.broker import OffsetRange


class Stream:
    """One subscription. `look` whenever something may have changed."""

    def __init__(self, partition: HostedPartition, subscription: PushSubscription, clock: Clock) -> None:
        self.partition = partition
        self.subscription = subscription
        self._clock = clock
        subscription.ready = self.look

    def look(self) -> None:
        """Send what there is, as far as the credit goes."""
        try:
            while self.subscription.bytes_max and self._send():
                pass
        except ClymqError as error:
            self.subscription.fail(error, self._next_block())

    def check(self) -> None:
        """Raise unless the next offset is here, or is the next one that will be."""
        self._end_of(self.subscription.position)

    def _send(self) -> bool:
        """Send one delivery; return whether to look for another."""
        partition, offset = self.partition, self.subscription.position
        end = self._end_of(offset)
        if offset == end:
            self._leave_if_sealed(end)
            return False
        found = read_here(partition, offset, self.subscription.bytes_max)
        if found is None:
            raise NotHosted(
                f"offset {offset} of {partition.topic}/{partition.name} is not here", hint="ask where it is"
            )
        now = self._clock.monotonic_ms()
        delivery = Delivery((), now, found.block, found.data, None, end, offset)
        return self.subscription.send(OffsetRange(offset, found.end), delivery)

    def _end_of(self, offset: int) -> int:
        """Return the end of what can be read here, behind an offset that is here."""
        partition, active = self.partition, self.partition.active
        holding = partition.holding(offset)
        if holding is not active:
            return holding.end
        active.check_reading()
        if not active.start <= offset <= active.end:
            raise OffsetOutOfRange(offset, first=active.start, end=active.end)
        return active.end

    def _next_block(self) -> int:
        """Return the block that the next offset may be in, if it lies behind what is sealed here; 0 if not."""
        sealed = self.partition.sealed
        last = max(sealed, default=0)
        return last + 1 if last and self.subscription.position >= sealed[last].end else 0

    def _leave_if_sealed(self, end: int) -> None:
        """At the end of a block that has ended nothing more will come; the next one may be anywhere."""
        active = self.partition.active
        assert active is not None, "only an active block can be read to its end"
        if active.machine.sealed and end == active.end:
            error = BlockSealed(f"block {active.number} of {self.partition.topic}/{self.partition.name} is sealed")
            self.subscription.fail(error, active.number + 1)
