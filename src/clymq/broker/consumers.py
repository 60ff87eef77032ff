"""Who consumes here, and whether they are still there.

A broker asks each consumer for a sign of life every `consumer_heartbeat_ms`, on the connection that the consumer made;
whatever it asks or answers counts as one. Three misses, and it is gone. A lost connection is no sign of anything: who
connects again within that time under the same name goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import ClymqError, Overloaded, TransportError
from clymq.protocol.broker import PingPong
from clymq.rpc.peer import Peer

MISSES_MAX: Final = 3
# Looks per heartbeat: a silence is noticed half a heartbeat late at most.
LOOKS: Final = 2


class Consumers:
    """The consumers of one broker. `gone` hears of each that is silent for too long, or has left."""

    def __init__(self, clock: Clock, config: Config, gone: Callable[[str], None]) -> None:
        self._clock = clock
        self._heartbeat_ms = config.consumer_heartbeat_ms
        self._per_connection_max = config.subscriptions_max
        self._gone = gone
        self._known: dict[str, _Consumer] = {}
        self._on: Counter[Peer] = Counter()
        """How many are on each connection; one that is in here is watched for its end."""
        self._timer: Timer | None = None
        self._looked_at = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def heard(self, name: str, peer: Peer) -> None:
        """A consumer has asked something on a connection: it is there, and that is where it is asked."""
        now = self._clock.monotonic_ms()
        consumer = self._known.get(name)
        if consumer is not None and consumer.peer is peer:
            consumer.seen(now, self._silence_ms_max)
            return
        if self._on[peer] >= self._per_connection_max:
            raise Overloaded(f"{self._on[peer]} consumers have announced themselves on this connection")
        if consumer is None:
            consumer = self._known[name] = _Consumer(name)
        self._move(consumer, peer)
        consumer.seen(now, self._silence_ms_max)
        self._begin()

    def expect(self, name: str, within_ms: float) -> None:
        """A consumer whose leases came from another leader may show up here; until then nobody asks after it."""
        consumer = self._known.setdefault(name, _Consumer(name))
        if consumer.peer is None:
            consumer.seen(self._clock.monotonic_ms(), max(within_ms, self._silence_ms_max))
            self._begin()

    def leave(self, name: str) -> None:
        """A consumer goes for good; no change if it is not known."""
        consumer = self._known.pop(name, None)
        if consumer is not None:
            self._move(consumer, None)
        self._gone(name)

    def close(self) -> None:
        """Ask nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _silence_ms_max(self) -> float:
        return MISSES_MAX * self._heartbeat_ms

    def _move(self, consumer: _Consumer, peer: Peer | None) -> None:
        """Note on which connection a consumer is; that connection's end is noted too."""
        before, consumer.peer = consumer.peer, peer
        if before is not None:
            self._on[before] -= 1
        if peer is not None:
            if peer not in self._on:
                peer.on_closed(lambda _: self._lost(peer))
            self._on[peer] += 1

    def _lost(self, peer: Peer) -> None:
        for consumer in list(self._known.values()):
            if consumer.peer is peer:
                self._move(consumer, None)
        del self._on[peer]

    # --- Time ---

    def _begin(self) -> None:
        if self._timer is None:
            self._looked_at = self._clock.monotonic_ms()
            self._timer = self._clock.call_later(self._heartbeat_ms / LOOKS, self._look)

    def _look(self) -> None:
        now = self._clock.monotonic_ms()
        slept_ms = now - self._looked_at - self._heartbeat_ms
        self._timer, self._looked_at = None, now
        for consumer in list(self._known.values()):
            if slept_ms > 0:
                consumer.deadline += slept_ms  # this process stood still: that silence was ours
            if now >= consumer.deadline:
                self.leave(consumer.name)
            elif consumer.peer is not None and now - consumer.asked_at >= self._heartbeat_ms * (1 - 1 / (2 * LOOKS)):
                self._ask(consumer, consumer.peer, now)
        if self._known:
            self._timer = self._clock.call_later(self._heartbeat_ms / LOOKS, self._look)

    def _ask(self, consumer: _Consumer, peer: Peer, now: float) -> None:
        consumer.asked_at = now

        def answered(outcome: object) -> None:
            # An error that it sends is a sign of life as well; one that is ours is not.
            if not isinstance(outcome, TransportError):
                consumer.seen(self._clock.monotonic_ms(), self._silence_ms_max)

        with suppress(ClymqError):  # nothing can be asked of it now; it is silence that counts
            peer.ask_soon(PingPong(consumer.name), (), answered, timeout_ms=self._heartbeat_ms)


class _Consumer:
    """One consumer: where it is, when it was last asked, and by when it must be heard of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.asked_at = 0.0
        self.deadline = 0.0

    def seen(self, now: float, silence_ms_max: float) -> None:
        self.deadline = now + silence_ms_max
