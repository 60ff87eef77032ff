"""How leases end: acks and their kin on their way to the leader of a partition, whoever that is by then.

What is asked for while a request of the same kind is under way goes with the next one: however many acks there are, one
request at a time carries them. Each caller hears of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from clymq.client.cluster import Cluster
from clymq.client.leases import HeldLeases, Piece, joined
from clymq.client.presence import Presence
from clymq.client.waiting import Deadline
from clymq.errors import ClosedError, ClymqError, UnknownLease
from clymq.protocol.broker import Ack, Extend, Nack, OffsetRange, Reject
from clymq.protocol.controller import ProducerRoute
from clymq.protocol.verbs import Done, Request

# One request names no more ranges than this.
RANGES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Acked:
    """They are finished."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """They are to be delivered again; `unread`: nobody has looked at them."""

    delay_ms: int = 0
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """They are to go to the dead letters."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Extended:
    """They are needed for longer."""

    lease_ms: int


End = Acked | Nacked | Rejected | Extended


class _Waiting:
    """Those who wait for one kind of end."""

    __slots__ = ("asked", "task")

    def __init__(self) -> None:
        self.asked: list[tuple[list[Piece], asyncio.Future[None]]] = []
        self.task: asyncio.Task[None] | None = None


class Settler:
    """Ends the leases of one partition."""

    def __init__(
        self,
        cluster: Cluster,
        presence: Presence,
        topic: str,
        partition: str,
        *,
        group: str,
        consumer: str,
        timeout: float,
    ) -> None:
        self.held = HeldLeases()
        self._cluster = cluster
        self._presence = presence
        self._place = topic, partition
        self._group = group
        self._consumer = consumer
        self._timeout = timeout
        self._waiting: dict[End, _Waiting] = {}

    async def settle(self, end: End, ranges: Iterable[tuple[int, int]]) -> None:
        """End what is held of these offsets in this way; `UnknownLease` if something of them is not held."""
        ranges = list(ranges)
        pieces = [piece for start, stop in ranges for piece in self.held.pieces(start, stop)]
        wanted = sum(stop - start for start, stop in ranges)
        if pieces:
            await self._ask(end, pieces)
        if sum(piece.end - piece.start for piece in pieces) < wanted:
            topic, partition = self._place
            spans = ", ".join(f"[{start}, {stop})" for start, stop in ranges[:5])
            raise UnknownLease(
                f"{topic}/{partition} {spans}: not leased to {self._consumer} any more",
                hint="they were settled before, or the lease has run out and they are delivered again",
            )

    async def prolong(self) -> None:
        """Prolong the leases of which less than half is left, by as long as they were."""
        due = self.held.half_over(self._cluster.clock.monotonic_ms())
        await asyncio.gather(*(self._ask(Extended(int(lease_ms)), pieces) for lease_ms, pieces in due.items()))

    async def give_back(self) -> None:
        """Let everything that is held be delivered again."""
        pieces = self.held.all()
        if pieces:
            await self._ask(Nacked(), pieces)

    async def close(self, grace_ms: float) -> None:
        """Let what is under way come to its end, for so long; then give it up."""
        tasks = [each.task for each in self._waiting.values() if each.task is not None]
        if not tasks:
            return
        over = asyncio.Event()
        timer = self._cluster.clock.call_later(grace_ms, over.set)
        all_done = asyncio.gather(*tasks, return_exceptions=True)
        all_done.add_done_callback(lambda _: over.set())
        await over.wait()
        timer.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, end: End, pieces: list[Piece]) -> None:
        waiting = self._waiting.setdefault(end, _Waiting())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.asked.append((pieces, future))
        if waiting.task is None:
            waiting.task = asyncio.create_task(self._run(end, waiting))
        await future

    async def _run(self, end: End, waiting: _Waiting) -> None:
        """Send request after request, each with all that has gathered; `waiting` is forgotten when nothing is left."""
        asked: list[tuple[list[Piece], asyncio.Future[None]]] = []
        try:
            while waiting.asked:
                asked = _some(waiting.asked)
                await self._send(end, asked)
        finally:
            del self._waiting[end]
            for _, future in [*asked, *waiting.asked]:
                _set(future, ClosedError(f"consumer {self._consumer} is closed"))

    async def _send(self, end: End, asked: list[tuple[list[Piece], asyncio.Future[None]]]) -> None:
        pieces = [piece for some, _ in asked for piece in some]
        unknown: set[int] = set()
        error: ClymqError | None = None
        deadline = Deadline(self._cluster.clock, self._timeout)
        try:
            await self._cluster.ask_leader(
                *self._place, self._request(end, pieces), deadline, greet=self._presence.greet
            )
        except UnknownLease as problem:
            error = problem
            unknown = set(problem.leases) or {piece.lease for piece in pieces}
        except ClymqError as problem:
            error = problem
        self._settled(end, pieces, unknown, error)
        for some, future in asked:
            is_hit = error is not None and (not unknown or any(piece.lease in unknown for piece in some))
            _set(future, error if is_hit else None)

    def _settled(self, end: End, pieces: list[Piece], unknown: set[int], error: ClymqError | None) -> None:
        self.held.forget(unknown)
        if error is not None and not unknown:
            return  # nothing is known of what became of it; the leases may still be ours
        if isinstance(end, Extended):
            now_ms = self._cluster.clock.monotonic_ms()
            self.held.extend({piece.lease for piece in pieces}, now_ms, end.lease_ms)
        else:
            self.held.finish(pieces)

    def _request(self, end: End, pieces: list[Piece]) -> Callable[[ProducerRoute], Request[Done]]:
        leases, ranges = joined(pieces)
        spans = tuple(OffsetRange(start, stop) for start, stop in ranges)
        topic, partition = self._place

        def make(route: ProducerRoute) -> Request[Done]:
            who: dict[str, Any] = {
                "topic": topic,
                "partition": partition,
                "uid": route.uid,
                "group": self._group,
                "consumer": self._consumer,
                "leases": leases,
            }
            match end:
                case Acked():
                    return Ack(**who, ranges=spans)
                case Nacked():
                    return Nack(**who, ranges=spans, delay_ms=end.delay_ms, unread=end.unread)
                case Rejected():
                    return Reject(**who, ranges=spans, reason=end.reason)
                case Extended():
                    return Extend(**who, lease_ms=end.lease_ms)

        return make


def _some(asked: list[tuple[list[Piece], asyncio.Future[None]]]) -> list[tuple[list[Piece], asyncio.Future[None]]]:
    """Take from the front as many as one request may carry, at least one."""
    ranges = at = 0
    for pieces, _ in asked:
        ranges += len(pieces)
        if at and ranges > RANGES_MAX:
            break
        at += 1
    some = asked[:at]
    del asked[:at]
    return some


def _set(future: asyncio.Future[None], error: ClymqError | None) -> None:
    if future.done():
        return  # whoever waited was cancelled; the request went its way all the same
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
