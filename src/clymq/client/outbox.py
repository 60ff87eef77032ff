"""What a producer has accepted and not yet settled: drafts that fill, drafts that are on their way, and the room left.

A draft is known from its first message until its fate is: stored, refused, or given up. Then everybody who waits for it
is told, once, and its bytes are free again.

A draft lingers for company, but not when somebody waits for it and nothing of its partition is on its way: then it
leaves with what else comes in the same turn of the event loop. While something is, the next one fills, and leaves when
that is settled. So a single push takes as long as the broker does, and many at a time share batches all the same.
What ends a column leaves at once if its caller is the only one: nobody is there to keep it company.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from clymq.client.accumulator import Accumulator, Draft, Lane, Moment
from clymq.client.cluster import Cluster
from clymq.client.gathering import Gathering
from clymq.client.receipts import Delivery, Outcome, Receipts
from clymq.client.sender import PartitionSender, SenderOptions
from clymq.client.waiting import Deadline, settled
from clymq.clock import Clock, Timer
from clymq.errors import BufferFull, ClosedError, ClymqError, ProducerFenced
from clymq.record import BatchBuilder
from clymq.types import Ack, check_name

log = logging.getLogger("clymq.client")

OnDelivery = Callable[[Receipts | ClymqError], None]


class Outbox:
    """See the module. `on_full` is told of each draft that needs no more messages: it leaves, or waits for its turn."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        *,
        producer: str,
        ack: Ack | None,
        codec: str,
        in_flight_max: int,
        timeout: float,
        on_delivery: OnDelivery | None,
    ) -> None:
        self.ended: ClymqError | None = None
        """Why nothing is accepted any more."""
        self.unplaced_bytes = 0
        """Of messages that are accepted but in no draft yet."""
        self.on_full: Callable[[Draft], None] = lambda _draft: None
        self._cluster = cluster
        self._clock = cluster.clock
        self._accumulator = accumulator
        accumulator.is_crowded = self._is_crowded
        self._on_delivery = on_delivery
        self._options = SenderOptions(
            producer=producer,
            ack=ack,
            codec=codec,
            in_flight_max=in_flight_max,
            life=_life(cluster.clock),
            timeout_ms=timeout * 1000,
            settle=self._settle,
            fence=self._fence,
        )
        self._senders: dict[tuple[str, str], PartitionSender] = {}
        self._unsettled: dict[Draft, None] = {}
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._linger: Timer | None = None
        self._hastened: dict[Draft, None] = {}
        self._callers = 0
        self._unreported: ClymqError | None = None

    def batch_bytes(self, topic: str, partition: str) -> int:
        """How large the next batch of a partition may become, as things are."""
        return self._accumulator.size_max(topic, partition)

    @property
    def buffered_bytes(self) -> int:
        """What is accepted and not settled."""
        return self._accumulator.buffered_bytes + self.unplaced_bytes

    @property
    def lost_messages(self) -> int:
        """What was acknowledged and went with a leader."""
        return sum(sender.numbering.lost_messages for sender in self._senders.values())

    # --- Accepting ---

    def check_open(self) -> None:
        """Raise the reason for which nothing is accepted any more, if there is one."""
        if self.ended is not None:
            raise self.ended

    def check_room(self, size: int) -> None:
        """Raise `BufferFull` if so much more does not fit."""
        if not self.fits(size):
            limit = self._accumulator.buffer_bytes_max
            raise BufferFull(f"{self.buffered_bytes} bytes are buffered; {limit} are allowed", hint="wait with drain()")

    def add(self, topic: str, partition: str, *message: Any) -> Draft:
        """Accept one message (value, key, headers, timestamp); it is the last in the draft that is returned."""
        if self.unplaced_bytes:
            self.check_room(0)
        draft = self._accumulator.add(topic, partition, self._now, *message)
        if draft.count == 1:
            self._opened(draft)
        return draft

    def open_lane(self, topic: str, partition: str, value: bytes, value_bytes_max: int) -> tuple[Draft, Lane]:
        """Accept one message that is only a value, and return a lane for more of them; see `Accumulator`."""
        if self.unplaced_bytes:
            self.check_room(0)
        draft, lane = self._accumulator.open_lane(topic, partition, self._now, value, value_bytes_max)
        if draft.count == 1:
            self._opened(draft)
        elif self._linger is None:
            self._set_linger()  # of a draft that was put off: it must be again, if nothing else ends the lane
        return draft, lane

    def add_many(
        self, topic: str, partition: str, count: int, size: int, fill: Callable[[BatchBuilder], object]
    ) -> Draft:
        """Accept what `fill` puts into a builder: so many messages of about so many bytes together."""
        draft = self._accumulator.add_many(topic, partition, self._now, count, size, fill)
        if draft.count == count:
            self._opened(draft)
        return draft

    async def room(self, size: int, deadline: Deadline) -> None:
        """Wait until so much more fits."""
        while not self.fits(size):
            if deadline.is_over:
                raise deadline.error(f"room for {size} bytes in the buffer of producer {self._options.producer}")
            await settled(self._clock, self._something_settled(), deadline.remaining_ms)
        self.check_open()

    async def some_settled(self) -> None:
        """Wait until the fate of something is known; something must be on its way."""
        await self._something_settled()

    async def drain(self) -> None:
        """Wait until half of the buffer is free."""
        while self.buffered_bytes > self._accumulator.buffer_bytes_max // 2:
            await self._something_settled()

    def fits(self, size: int) -> bool:
        """Whether so much more can be accepted; anything can where nothing is buffered."""
        buffered = self.buffered_bytes
        return not buffered or buffered + size <= self._accumulator.buffer_bytes_max

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic_ms(), self._clock.wall_us())

    def _opened(self, draft: Draft) -> None:
        self._unsettled[draft] = None
        if self._linger is None:
            self._set_linger()

    # --- Sending ---

    def hand_over(self) -> None:
        """Give the closed drafts to their senders."""
        if self._accumulator.put_off:
            for draft in self._accumulator.take_put_off():
                self.on_full(draft)
        if not self._accumulator.ready:
            return
        for draft in self._accumulator.take_ready():
            self.on_full(draft)
            self.sender(draft.topic, draft.partition).offer(draft)

    def hasten(self, draft: Draft) -> None:
        """Somebody waits for this draft: do not let it linger unless its partition is busy."""
        self.hand_over()
        if draft.closed or not self.sender(draft.topic, draft.partition).is_idle:
            return
        if not self._hastened:  # not at once: more may come in this turn of the event loop
            asyncio.get_running_loop().call_soon(self._send_hastened)
        self._hastened[draft] = None

    def _send_hastened(self) -> None:
        hastened, self._hastened = self._hastened, {}
        for draft in hastened:
            self._accumulator.close(draft)
        self.hand_over()

    @contextmanager
    def waiting_for(self, drafts: Iterable[Draft]) -> Iterator[None]:
        """Have drafts leave for somebody who waits for them meanwhile, and adds no more: see the module."""
        self._callers += 1
        try:
            for draft in drafts:
                if self._callers == 1:
                    self._accumulator.close(draft)
                else:
                    self.hasten(draft)
            self.hand_over()
            yield
        finally:
            self._callers -= 1

    def send_now(self) -> None:
        """Close every draft, however young, and send it."""
        self._accumulator.close_all()
        self.hand_over()

    async def flush(self) -> None:
        """Send everything now, wait until its fate is known, and raise the first error that nobody was told."""
        self._accumulator.close_all()
        gathering = Gathering()
        for draft in self._unsettled:
            gathering.expect(draft, draft.count)
        self.hand_over()
        await gathering.settled()
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def sender(self, topic: str, partition: str) -> PartitionSender:
        """Return the sender of a partition."""
        place = topic, partition
        sender = self._senders.get(place)
        if sender is None:
            check_name(topic, "topic")
            check_name(partition, "partition")
            sender = self._senders[place] = PartitionSender(self._cluster, topic, partition, self._options)
        return sender

    async def close(self, error: ClosedError) -> None:
        """Settle what is left with this error."""
        if self._linger is not None:
            self._linger.cancel()
        for sender in self._senders.values():
            await sender.close(error)
        self.tell_room()

    def _set_linger(self) -> None:
        due_ms = self._accumulator.next_due_ms()
        if due_ms is not None:
            self._linger = self._clock.call_later(max(0.0, due_ms - self._clock.monotonic_ms()), self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        # A timer may run a little early; what is due within its coarseness is due.
        self._accumulator.close_due(self._clock.monotonic_ms() + 1)
        self.hand_over()
        self._set_linger()

    # --- Settling ---

    def report(self, error: ClymqError, *, unawaited: bool) -> None:
        """Tell `on_delivery`, and the next `flush` if nobody else waits for it."""
        if unawaited:
            self._unreported = self._unreported or error
        self._call_back(error)

    def tell_room(self) -> None:
        """Something was settled: whoever waits for room looks again."""
        waiting, self._waiting_for_room = self._waiting_for_room, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def _settle(self, draft: Draft, outcome: Outcome) -> None:
        del self._unsettled[draft]
        self._accumulator.settle(draft)
        for listener in draft.listeners:
            listener(outcome)
        if isinstance(outcome, Delivery):
            self._call_back(Receipts(draft.count, [(draft.partition, outcome.base_offset, draft.count)], draft.topic))
        else:
            self.report(outcome, unawaited=draft.unawaited)
        self.tell_room()
        # Whatever leaves room for another batch is settled: here, and only here, what was put off can go.
        self._accumulator.close_overdue(draft.topic, draft.partition)
        self.hand_over()
        following = self._accumulator.open_draft(draft.topic, draft.partition)
        if following is not None and following.listeners:
            self.hasten(following)

    def _is_crowded(self, topic: str, partition: str) -> bool:
        sender = self._senders.get((topic, partition))
        return sender is not None and sender.is_crowded

    def _call_back(self, told: Receipts | ClymqError) -> None:
        if self._on_delivery is not None:
            try:
                self._on_delivery(told)
            except Exception:
                # A mistake of the caller's must not stop the other batches.
                log.exception("producer %s: on_delivery failed", self._options.producer)

    def _fence(self, error: ProducerFenced) -> None:
        """Another process uses this name: nothing that is pending here may be sent under it any more."""
        self.ended = self.ended or error
        for sender in self._senders.values():
            sender.fail_all(error)  # BEFORE they are offered what is still open: they would send it
        self.send_now()
        for sender in self._senders.values():
            sender.fail_all(error)

    def _something_settled(self) -> asyncio.Future[None]:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_room.append(waiting)
        return waiting


def _life(clock: Clock) -> int:
    """Return a number for a producer that begins now; two of one name do not begin in the same microsecond."""
    moment = f"{clock.wall_us()}/{clock.monotonic_ms()}"
    return 1 + int.from_bytes(hashlib.sha256(moment.encode()).digest()[:7])
