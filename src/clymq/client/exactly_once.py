"""Batches with numbers that the caller chose: stored once each, however often the work that makes them is done again.

Somebody who repeats the same work after a failure (a task of a micro-batch) gives its batches the same numbers each
time. A `SparseWriter` first asks the partition where this producer stands (`InitProducer`): that fences every earlier
attempt, so that nothing of it can be stored from then on, and says which numbers are stored already. Then it pushes
batches with higher numbers, in order and under the new epoch. The flag SPARSE makes a batch count as one number, and
lets numbers jump.

What is behind the numbers that are stored is for the caller to know: either the same number means the same messages in
every attempt, or they are read back. Only quorum partitions can keep the promise; others are refused, because what they
acknowledged may go with their leader.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from clymq.client.cluster import Cluster, worth_retrying
from clymq.client.waiting import Backoff, Deadline, settled
from clymq.clock import pause
from clymq.errors import AckMismatch, ClymqError, InvalidRequest, OutOfSequence
from clymq.protocol.broker import InitProducer, ProducerReady, Push
from clymq.protocol.controller import ProducerRoute
from clymq.protocol.frames import Buffer
from clymq.rpc.asks import Outcome as Answered
from clymq.rpc.peer import Peer
from clymq.types import Ack, check_name

# As many as a partition remembers the places of.
IN_FLIGHT_MAX: Final = 8
# How many bytes may be on their way to one partition, one batch always.
IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024

Pieces = Sequence[Buffer]
Build = Callable[[int, int], Pieces]
"""Makes the bytes of a batch of (number, epoch), in one piece or several."""
Numbered = tuple[int, Build]


class Kept(NamedTuple):
    """Where a batch went: the messages [start, end)."""

    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a producer stands: numbers below `next` are stored, the last of them as `kept` says, in order."""

    epoch: int
    next: int
    kept: tuple[Kept, ...]


class SparseWriter:
    """One producer's numbered batches to one partition; see the module."""

    def __init__(self, cluster: Cluster, topic: str, partition: str, producer: str, *, timeout: float = 30.0) -> None:
        self.topic = topic
        self.partition = partition
        self.producer = check_name(producer, "producer")
        self._cluster = cluster
        self.timeout = timeout

    async def begin(self, last: int) -> Standing:
        """Fence every attempt before this one, and learn what it has stored.

        If a number above `last` is stored already, this work is not a repetition but older than what is there: refused.
        """
        ready = await self._init()
        if ready.next > last + 1:
            raise OutOfSequence(
                f"{self.topic}/{self.partition} has number {ready.next - 1} of producer {self.producer}; "
                f"numbers up to {last} are over",
                expected=ready.next,
                hint="later work was stored under this name: another process uses it, or a checkpoint is older",
            )
        kept = (Kept(each.cmdindex, each.base_offset, each.base_offset + each.count) for each in ready.stored)
        return Standing(ready.epoch, ready.next, tuple(kept))

    async def _init(self) -> ProducerReady:
        def request(route: ProducerRoute) -> InitProducer:
            if route.ack != Ack.QUORUM:
                raise _ack_refused(self.topic, self.partition, route.ack)
            return InitProducer(self.topic, self.partition, route.uid, self.producer)

        deadline = Deadline(self._cluster.clock, self.timeout)
        return (await self._cluster.ask_leader(self.topic, self.partition, request, deadline)).reply

    async def push(self, epoch: int, batches: Sequence[Numbered]) -> None:
        """Send in order, a few at a time; after a failure the same bytes again, from the lowest without an answer."""
        waiting = deque(batches)
        unanswered: dict[int, Pieces] = {}
        deadline = Deadline(self._cluster.clock, self.timeout)
        backoff = Backoff(self._cluster.config, self._cluster.chance)
        problem: ClymqError | None = None
        hints = 0
        while waiting or unanswered:
            route: ProducerRoute | None = None
            before = len(waiting) + len(unanswered)
            try:
                route = await self._cluster.route(self.topic, self.partition)
                await self._send_all(route, epoch, waiting, unanswered, deadline)
            except ClymqError as error:
                problem = error
                if isinstance(error, AckMismatch) or not worth_retrying(error, by_broker=route is not None):
                    raise
                if len(waiting) + len(unanswered) < before:  # it went on for a while
                    deadline = Deadline(self._cluster.clock, self.timeout)
                    backoff.reset()
                if deadline.is_over:
                    left = len(waiting) + len(unanswered)
                    raise deadline.error(f"{left} batches to {self.topic}/{self.partition}", problem) from error
                if route is not None and self._cluster.reroute(
                    self.topic, self.partition, route, error, hints_followed=hints
                ):
                    hints += 1
                    continue
                hints = 0
                await pause(self._cluster.clock, min(backoff.next_ms(), deadline.remaining_ms))

    async def _send_all(
        self,
        route: ProducerRoute,
        epoch: int,
        waiting: deque[Numbered],
        unanswered: dict[int, Pieces],
        deadline: Deadline,
    ) -> None:
        """Send to one leader until all is answered; raise the first failure."""
        peer = await self._cluster.peer(route.address)
        flight = _Flight(unanswered)
        for number, data in list(unanswered.items()):
            self._send(peer, route, number, data, flight)
        while flight.failure is None and (waiting or unanswered):
            while waiting and flight.failure is None and _has_room(unanswered):
                number, build = waiting.popleft()
                unanswered[number] = build(number, epoch)
                self._send(peer, route, number, unanswered[number], flight)
            if flight.failure is None and unanswered:
                changed = flight.next_change()
                if not await settled(self._cluster.clock, changed, self._cluster.config.request_ms_max * 2):
                    raise deadline.error(f"an answer of {route.address}")
        if flight.failure is not None:
            raise flight.failure

    def _send(self, peer: Peer, route: ProducerRoute, number: int, data: Pieces, flight: _Flight) -> None:
        if flight.failure is not None:
            return
        request = Push(
            topic=self.topic,
            partition=self.partition,
            uid=route.uid,
            producer=self.producer,
            cmdindex=number,
            ack=Ack.QUORUM,
            explicit_ack=True,
        )
        try:
            peer.ask_soon(
                request,
                data,
                lambda outcome: flight.answered(number, outcome),
                timeout_ms=self._cluster.config.request_ms_max,
            )
        except ClymqError as error:
            flight.failure = error


class _Flight:
    """What was sent to one leader and has no answer."""

    def __init__(self, unanswered: dict[int, Pieces]) -> None:
        self.failure: ClymqError | None = None
        self._unanswered = unanswered
        self._change: asyncio.Future[None] | None = None

    def next_change(self) -> asyncio.Future[None]:
        self._change = asyncio.get_running_loop().create_future()
        return self._change

    def answered(self, number: int, outcome: Answered) -> None:
        if isinstance(outcome, ClymqError):
            self.failure = self.failure or outcome
        else:
            self._unanswered.pop(number, None)
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


def _has_room(unanswered: dict[int, Pieces]) -> bool:
    if not unanswered:
        return True
    return (
        len(unanswered) < IN_FLIGHT_MAX
        and sum(len(piece) for data in unanswered.values() for piece in data) < IN_FLIGHT_BYTES_MAX
    )


def _ack_refused(topic: str, partition: str, ack: int) -> InvalidRequest:
    return InvalidRequest(
        f"{topic}/{partition} has ack {Ack(ack).name.lower()}: what it acknowledged may go with its leader, so "
        f"exactly-once cannot hold",
        hint="set its state to quorum, or write with delivery=at-least-once",
    )
