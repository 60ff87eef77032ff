"""One partition's way from a producer to its leader: in order, several batches in flight, each stored once.

A batch gets its number when it is first sent, and keeps its bytes until the partition says otherwise. Answers come in
any order. When something goes wrong, the same bytes are sent again, in order, from the lowest batch that has no answer:
whoever leads refuses what it has already (DESIGN 5).

`InitProducer` says where this producer stands: before the first push, when the partition contradicts our numbers
(`OutOfSequence`, `UnknownProducer`), and after a batch was given up. What it says is stored is stored; the rest gets
new numbers under the new epoch. A batch that was given up got none, so once the new epoch is in the log, no copy of it
that is still on its way can be stored. That is why a new epoch comes BEFORE the next push.

Invariants: `_unanswered` is in the order of the numbers, which adjoin unless a batch was given up or failed, and then a
new epoch is due; nothing is sent while one is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from clymq.client.accumulator import Draft
from clymq.client.cluster import Cluster, worth_retrying
from clymq.client.numbering import NumberedBatch, Numbering
from clymq.client.receipts import Delivery, Outcome
from clymq.client.waiting import Backoff
from clymq.clock import Timer, pause
from clymq.config import KiB
from clymq.errors import (
    AckMismatch,
    ClosedError,
    ClymqError,
    OutOfSequence,
    ProducerFenced,
    RemoteProtocolError,
    RequestTimeout,
    UnknownProducer,
)
from clymq.protocol.broker import OFFSET_UNKNOWN, PUSH_RUNS, InitProducer, Push
from clymq.protocol.controller import ProducerRoute
from clymq.rpc.asks import Outcome as Answered
from clymq.rpc.peer import Peer
from clymq.types import Ack

log = logging.getLogger("clymq.client")

# So much leaves before the turn of the event loop ends: the broker does its work while more is made ready. Not where a
# sync is waited for: what arrives together there is synced together.
EARLY_BYTES: Final = 64 * KiB
# What is ready at the same time goes as one request, up to here: to ask costs more than to store a small batch.
RUN_BYTES_MAX: Final = 256 * KiB

Run = Sequence[NumberedBatch]
"""Batches that go in one request."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """What all senders of one producer share."""

    producer: str
    ack: Ack | None
    codec: str
    in_flight_max: int
    life: int
    """Of all that have had the producer's name: a number that no other has."""
    timeout_ms: float
    settle: Callable[[Draft, Outcome], None]
    """Called once for each draft that was offered."""
    fence: Callable[[ProducerFenced], None]
    """Called when another process uses this producer's name."""


class PartitionSender:
    """See the module."""

    def __init__(self, cluster: Cluster, topic: str, partition: str, options: SenderOptions) -> None:
        self.topic = topic
        self.partition = partition
        self.numbering = Numbering(options.producer, f"{topic}/{partition}", options.codec)
        self._cluster = cluster
        self._clock = cluster.clock
        self._options = options
        self._backoff = Backoff(cluster.config, cluster.chance)
        self._queue: deque[Draft] = deque()
        self._unanswered: dict[int, NumberedBatch] = {}
        self._epoch_is_due = True
        self._epoch_until_ms = 0.0
        self._is_fenced = False
        self._generation = 0
        self._failure: tuple[ClymqError, Run] | None = None
        self._problem: ClymqError | None = None
        self._hints = 0
        self._changed = asyncio.Event()
        self._leader: tuple[Peer, ProducerRoute] | None = None
        """Whom new batches can be sent to at once."""
        self._asking: list[asyncio.Future[int]] = []
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None

    # --- What the producer asks ---

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way, or waits for that."""
        return not (self._queue or self._unanswered)

    @property
    def is_crowded(self) -> bool:
        """Whether as much is on its way as may be."""
        return len(self._unanswered) >= self._options.in_flight_max

    def offer(self, draft: Draft) -> None:
        """Send a closed draft, after those before it: at once, if it is known where to and the window is open."""
        self._queue.append(draft)
        self._arm()
        self._go_on()

    async def last_cmdindex(self) -> int:
        """Return the highest number stored, as the partition says if nothing was pushed yet."""
        if self.numbering.epoch is not None:
            return self.numbering.acknowledged
        asking: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asking.append(asking)
        self._begin()
        try:
            return await asking
        finally:
            if asking in self._asking:
                self._asking.remove(asking)

    def fail_all(self, error: ClymqError) -> None:
        """Give everything up for the same reason."""
        if isinstance(error, ProducerFenced):
            self._is_fenced = True
        elif self._unanswered:
            self._need_epoch()
        drafts = [batch.draft for batch in self._unanswered.values()] + list(self._queue)
        self._unanswered = {}
        self._queue.clear()
        for draft in drafts:
            self._options.settle(draft, error)
        for asking in self._asking:
            if not asking.done():
                asking.set_exception(error)

    async def close(self, error: ClosedError) -> None:
        """Stop, and give up what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self.fail_all(error)

    # --- Sending ---

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._changed.set()

    def _has_work(self) -> bool:
        if self._is_fenced:
            return False  # another epoch of ours would fence whoever has taken our name
        if self._queue or self._unanswered or self._asking:
            return True
        # A batch was given up: fence it off even if no other push comes, as long as somebody may still wonder.
        due = self._epoch_is_due and self.numbering.epoch is not None
        return due and self._clock.monotonic_ms() < self._epoch_until_ms

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            if not self._has_work():
                await self._changed.wait()
                continue
            route: ProducerRoute | None = None
            try:
                route = await self._cluster.route(self.topic, self.partition)
                await self._push_to(route)
            except ClymqError as error:
                await self._recover(route, error)

    async def _push_to(self, route: ProducerRoute) -> None:
        """Send to one leader until something goes wrong: what has no answer first, then what is new."""
        peer = await self._cluster.peer(route.address)
        if route.uid != self.numbering.uid:
            self.numbering.begin_partition(route.uid)
            self._epoch_is_due = True
        if self._epoch_is_due:
            await self._begin_epoch(peer, route)
        self._generation += 1
        self._failure = None
        for batch in tuple(self._unanswered.values()):
            self._send(peer, route, [batch])  # each alone: if one is refused it is known which
        self._leader = peer, route
        try:
            while self._failure is None and not self._epoch_is_due:
                self._changed.clear()
                self._fill(peer, route)
                await self._changed.wait()
        finally:
            self._leader = None
        if self._failure is not None:
            raise self._failure[0]

    def _go_on(self) -> None:
        """Send what can be sent now; without a leader to send it to, have one found."""
        if self._is_fenced:
            return  # whoever has fenced us says what becomes of it
        if self._leader is None or self._failure is not None or self._epoch_is_due:
            self._begin()
        else:
            self._fill(*self._leader)

    def _fill(self, peer: Peer, route: ProducerRoute) -> None:
        """Number and send what is new, as far as the window goes; what fits into one request goes as one."""
        early = self._ack(route) != Ack.QUORUM
        run_bytes_max = _run_bytes_max(peer, early=early)
        run: list[NumberedBatch] = []
        failed: list[tuple[Draft, ClymqError]] = []
        while self._queue and len(self._unanswered) < self._options.in_flight_max and self._failure is None:
            draft = self._queue.popleft()
            try:
                batch = self.numbering.number(draft)
            except ClymqError as error:
                failed.append((draft, error))
                continue
            self._unanswered[batch.cmdindex] = batch
            if run and _bytes(run) + len(batch.data) > run_bytes_max:
                self._send(peer, route, run)
                run = []
            run.append(batch)
            if early and _bytes(run) + peer.buffered_bytes >= EARLY_BYTES:
                self._send(peer, route, run)
                run = []
                peer.flush()
        if run:
            self._send(peer, route, run)
        if peer.asks_under_way == 1:
            peer.flush()  # nothing is going to join it: whoever is to send more waits for the answer
        for draft, problem in failed:
            self._options.settle(draft, problem)  # BEHIND what was sent: who is told may offer the next at once

    def _ack(self, route: ProducerRoute) -> int:
        return route.ack if self._options.ack is None else self._options.ack

    def _send(self, peer: Peer, route: ProducerRoute, run: Run) -> None:
        if self._failure is not None:
            return
        options, data, generation = self._options, [batch.data for batch in run], self._generation
        request = Push(
            topic=self.topic,
            partition=self.partition,
            uid=route.uid,
            producer=options.producer,
            cmdindex=run[0].cmdindex,
            ack=self._ack(route),
            explicit_ack=options.ack is not None,
            batches=len(run),
        )
        try:
            peer.ask_soon(
                request,
                data,
                lambda outcome: self._answered(run, data, generation, request.ack, outcome),
                timeout_ms=self._cluster.config.request_ms_max,
            )
        except ClymqError as error:
            self._failure = error, run
            self._changed.set()

    def _answered(self, run: Run, data: list[bytes], generation: int, ack: int, outcome: Answered) -> None:
        if not isinstance(outcome, ClymqError) and len(outcome.reply.more) != len(run) - 1:
            outcome = RemoteProtocolError(f"{1 + len(outcome.reply.more)} answers to {len(run)} batches")
        if isinstance(outcome, ClymqError):
            # Of an earlier generation: what it complains about has been dealt with.
            if generation == self._generation and self._failure is None:
                self._failure = outcome, run
                self._changed.set()
            return
        for batch, sent, place in zip(run, data, (outcome.reply, *outcome.reply.more), strict=True):
            if batch.data is sent and self._unanswered.get(batch.cmdindex) is batch:
                self._stored(batch, place.base_offset, ack, duplicate=place.duplicate)
        if self._queue:
            self._go_on()

    def _stored(self, batch: NumberedBatch, base_offset: int, ack: int | None = None, *, duplicate: bool) -> None:
        del self._unanswered[batch.cmdindex]
        self.numbering.stored(batch, base_offset, ack)
        self._backoff.reset()
        self._hints = 0
        self._problem = None
        offset = None if base_offset == OFFSET_UNKNOWN else base_offset
        self._options.settle(batch.draft, Delivery(offset, duplicate))

    # --- Epochs ---

    def _need_epoch(self) -> None:
        self._epoch_is_due = True
        self._epoch_until_ms = self._clock.monotonic_ms() + self._options.timeout_ms
        self._changed.set()

    async def _begin_epoch(self, peer: Peer, route: ProducerRoute) -> None:
        """Ask where we stand; settle what is stored, and give the rest new numbers, in the same order."""
        numbering, lost_before = self.numbering, self.numbering.lost_messages
        was_here = numbering.epoch is not None
        options = self._options
        request = InitProducer(
            self.topic, self.partition, route.uid, options.producer, life=options.life, epoch=numbering.epoch or 0
        )
        numbering.ask_epoch()
        ready = (await peer.ask(request, timeout_ms=self._cluster.config.request_ms_max)).reply
        error = numbering.begin_epoch(ready, self._ack(route))
        if numbering.lost_messages > lost_before:
            lost = numbering.lost_messages - lost_before
            log.warning("%s/%s: %d acknowledged messages are lost", self.topic, self.partition, lost)
        if error is not None:
            self.fail_all(error)
        self._epoch_is_due = False
        for batch in tuple(self._unanswered.values()):
            # In a partition made anew the numbers of the one before mean nothing.
            if was_here and batch.cmdindex < ready.next:
                self._stored(batch, batch.place_in(ready.stored), duplicate=True)
        rest, self._unanswered = tuple(self._unanswered.values()), {}
        for batch in rest:
            numbering.number_anew(batch)
            self._unanswered[batch.cmdindex] = batch
        for asking in self._asking:
            if not asking.done():
                asking.set_result(numbering.acknowledged)

    # --- When something goes wrong ---

    async def _recover(self, route: ProducerRoute | None, error: ClymqError) -> None:
        """Decide how to go on, and wait for a moment unless it is known where to."""
        self._problem = error
        if isinstance(error, ProducerFenced):
            self._options.fence(error)
        elif isinstance(error, OutOfSequence | UnknownProducer):
            self.numbering.forgotten = isinstance(error, UnknownProducer)
            self._need_epoch()
        elif not self._may_retry(route, error):
            self._refused(error)
        elif route is not None and self._cluster.reroute(
            self.topic, self.partition, route, error, hints_followed=self._hints
        ):
            self._hints += 1
            return
        self._hints = 0
        await pause(self._clock, self._backoff.next_ms())

    def _may_retry(self, route: ProducerRoute | None, error: ClymqError) -> bool:
        if isinstance(error, AckMismatch) and self._options.ack is not None:
            return False  # the caller insisted on this ack; it is never lowered behind its back
        return worth_retrying(error, by_broker=route is not None)

    def _refused(self, error: ClymqError) -> None:
        """No retry helps. If it is about one batch, only that one fails; those behind it get its number."""
        if self._failure is not None and self._failure[0] is error:
            batch, *others = self._failure[1]
            if others:
                return  # it is not known which of them; they are sent again, each alone
            if self._unanswered.get(batch.cmdindex) is batch:
                del self._unanswered[batch.cmdindex]
                self._need_epoch()
                self._options.settle(batch.draft, error)
        else:
            self.fail_all(error)

    # --- Time ---

    def _arm(self) -> None:
        """Set the timer for the oldest draft; all have the same time, so the oldest is always the first."""
        oldest = next((batch.draft for batch in self._unanswered.values()), self._queue[0] if self._queue else None)
        if self._timer is None and oldest is not None:
            at_ms = oldest.opened.monotonic_ms + self._options.timeout_ms
            self._timer = self._clock.call_later(max(0.0, at_ms - self._clock.monotonic_ms()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        # A timer may run a little early; what is due within its coarseness is due.
        opened_ms = self._clock.monotonic_ms() + 1 - self._options.timeout_ms
        for batch in tuple(self._unanswered.values()):
            if batch.draft.opened.monotonic_ms <= opened_ms:
                del self._unanswered[batch.cmdindex]
                self._need_epoch()
                self._give_up(batch.draft)
        while self._queue and self._queue[0].opened.monotonic_ms <= opened_ms:
            self._give_up(self._queue.popleft())
        self._arm()

    def _give_up(self, draft: Draft) -> None:
        seconds = self._options.timeout_ms / 1000
        why = f"; last: {self._problem.code}: {self._problem}" if self._problem is not None else ""
        waited_for = f"{draft.count} messages to {self.topic}/{self.partition} were not acknowledged"
        self._options.settle(draft, RequestTimeout(f"{waited_for} within {seconds:g} s{why}"))


def _run_bytes_max(peer: Peer, *, early: bool) -> int:
    """Return how much one request may carry; 0: no more than one batch."""
    if PUSH_RUNS not in peer.features:
        return 0
    return min(EARLY_BYTES if early else RUN_BYTES_MAX, peer.payload_bytes_max)


def _bytes(run: Run) -> int:
    return sum(len(batch.data) for batch in run)
