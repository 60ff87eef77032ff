"""Who waits for messages of a group: a pull, until it is answered once, or a push subscription, as its credit goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from clymq.broker.subscriptions.leases import Lease
from clymq.clock import Clock, Timer
from clymq.errors import ClosedError, ClymqError
from clymq.protocol import broker as wire
from clymq.protocol.broker import Locator, Pub, Pull, Pulled, StartToGet
from clymq.rpc.peer import Call, Peer

# While so much is unsent on its connection, a push subscription waits.
UNSENT_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Delivery:
    """Leases, and the bytes that cover them or where those are."""

    leases: Sequence[Lease]
    now: float
    block: int
    data: memoryview | None
    locator: Locator | None
    end: int
    """Of the partition."""
    start: int
    """Of what this broker has of it."""

    def on_the_wire(self) -> tuple[wire.Lease, ...]:
        """Return the leases as consumers see them."""
        return tuple(
            wire.Lease(
                lease.number,
                wire.OffsetRange(lease.left.start, lease.left.end),
                lease.deliveries,
                max(0, round(lease.expires_at - self.now)),
            )
            for lease in self.leases
        )


class Taker(Protocol):
    """One that can be given leases."""

    group: str
    consumer: str
    messages_max: int
    lease_ms: int
    ordered: bool

    @property
    def bytes_max(self) -> int:
        """How much it takes now; 0: nothing."""
        ...

    def give(self, delivery: Delivery) -> bool:
        """Hand it leases; return whether they are on their way."""
        ...

    def fail(self, error: ClymqError, next_block: int = 0) -> None:
        """Nothing will come from here any more."""
        ...


class WaitingPull:
    """A `Pull` of a group. `over` is called when it is answered, or nobody waits for it any more."""

    def __init__(self, call: Call, clock: Clock, over: Callable[[WaitingPull], None], bytes_max: int) -> None:
        """`bytes_max`: what an answer can carry, however much is asked for."""
        request: Pull = call.request
        self.group = request.group
        self.consumer = request.consumer
        self.messages_max = request.messages_max
        self.lease_ms = request.lease_ms
        self.ordered = request.ordered
        self.wait_ms_max = request.wait_ms_max
        self._bytes_max = max(1, min(request.bytes_max, bytes_max))
        self._call = call
        self._clock = clock
        self._over = over
        self._done = False
        self._timer: Timer | None = None

    def wait(self, wait_ms: float, empty: Callable[[], Pulled]) -> None:
        """Wait for leases, and be answered without any when the time is over."""
        self._timer = self._clock.call_later(wait_ms, lambda: self.answer_empty(empty()))
        self._call.on_cancel(lambda: self.fail(ClosedError("nobody waits for it any more")))

    @property
    def bytes_max(self) -> int:
        """How much it takes: what it asked for, once."""
        return 0 if self._done else self._bytes_max

    def give(self, delivery: Delivery) -> bool:
        """Answer with leases."""
        self._end()
        reply = Pulled(
            high_watermark=delivery.end,
            log_start=delivery.start,
            block=delivery.block,
            leases=delivery.on_the_wire(),
            locator=delivery.locator,
        )
        self._call.reply(reply, [delivery.data] if delivery.data is not None else ())
        return not self._call.cancelled

    def answer_empty(self, reply: Pulled) -> None:
        """Answer that there is nothing."""
        if not self._done:
            self._end()
            self._call.reply(reply)

    def fail(self, error: ClymqError, next_block: int = 0) -> None:
        """Answer with an error."""
        del next_block
        if not self._done:
            self._end()
            self._call.fail(error)

    def _end(self) -> None:
        if not self._done:
            self._done = True
            if self._timer is not None:
                self._timer.cancel()
            self._over(self)


class PushSubscription:
    """A `StartToGet`: deliveries on the consumer's connection. `ready` is called when it can take more."""

    def __init__(self, peer: Peer, request: StartToGet, push_bytes_max: int) -> None:
        self.group = request.group
        self.consumer = request.consumer
        self.messages_max = request.messages_max
        self.lease_ms = request.lease_ms
        self.ordered = request.ordered
        self.number = request.subscription
        self.topic = request.topic
        self.partition = request.partition
        self.peer = peer
        self.position = request.offset
        """PSB: the next offset; PTP: the end of what was delivered last."""
        self.ready: Callable[[], None] = _nothing
        self.ended: Callable[[], None] = _nothing
        """Called once, when it is over."""
        self.is_over = False
        self._credit_bytes = request.credit_bytes
        self._push_bytes_max = push_bytes_max
        self._draining = False

    @property
    def bytes_max(self) -> int:
        """How much it takes now."""
        if self.is_over or self._draining or self._credit_bytes <= 0:
            return 0
        return min(self._credit_bytes, self._push_bytes_max, self.peer.payload_bytes_max)

    def credit(self, count: int) -> None:
        """The consumer has dealt with so many bytes."""
        if count > 0:
            self._credit_bytes += count
            self.ready()

    def give(self, delivery: Delivery) -> bool:
        """Send leases."""
        leases = delivery.on_the_wire()
        range_ = wire.OffsetRange(leases[0].range.start, leases[-1].range.end)
        return self.send(range_, delivery, leases)

    def send(self, range_: wire.OffsetRange, delivery: Delivery, leases: tuple[wire.Lease, ...] = ()) -> bool:
        """Send a delivery; False: the connection takes nothing now."""
        cost = self.bytes_max if delivery.data is None else len(delivery.data)
        message = Pub(
            self.number,
            self.topic,
            self.partition,
            range_,
            leases,
            high_watermark=delivery.end,
            block=delivery.block,
            locator=delivery.locator,
            cost_bytes=cost,
        )
        if not self.peer.tell(message, [delivery.data] if delivery.data is not None else ()):
            self._wait_for_the_connection()
            return False
        self._credit_bytes -= cost
        self.position = range_.end
        if self.peer.buffered_bytes > UNSENT_BYTES_MAX:
            self._wait_for_the_connection()
        return True

    def _wait_for_the_connection(self) -> None:
        def drained() -> None:
            self._draining = False
            self.ready()

        if not self._draining:
            self._draining = True
            self.peer.when_drained(drained)

    def fail(self, error: ClymqError, next_block: int = 0) -> None:
        """Tell the consumer that it ends here, and where to go on."""
        if self.is_over:
            return
        self.stop()
        self.peer.tell(
            Pub(
                self.number,
                self.topic,
                self.partition,
                wire.OffsetRange(self.position, self.position),
                next_block=next_block,
                error=error.code,
                problem=error.message,
                hint=error.hint or "",
            )
        )

    def stop(self) -> None:
        """End it without a word."""
        if not self.is_over:
            self.is_over = True
            self.ended()


def _nothing() -> None:
    """For whoever does not listen."""
