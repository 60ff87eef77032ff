"""`run(handler)`: messages to a function, and what became of them back to the broker.

A handler that returns has finished its message: it is acked, with others that finish meanwhile. One that raises gets
the message again, after a pause that grows with each delivery, until the topic's `delivery_count_max` makes it a
dead letter. Leases are prolonged as long as their messages wait or are being handled, however long that takes.

Read by publish-subscribe there is nothing to ack: positions are stored whenever all that was pulled is finished, and an
error of the handler ends the run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from clymq.client.messages import Message, Messages
from clymq.client.waiting import Deadline, settled
from clymq.clock import Clock, pause
from clymq.errors import ClosedError, ClymqError, InvalidRequest

log = logging.getLogger("clymq.client")

Handler = Callable[[Message], Awaitable[Any] | Any]

# Pulled at once, for each message that may be handled at a time.
AHEAD: Final = 16
PULL_SECONDS: Final = 1.0
# After the first failure, and at most.
RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 30.0
# Leases are looked at this often; those of less than twice this cannot be kept.
LOOK_MS: Final = 250.0
ACKS_UNDER_WAY_MAX: Final = 1000


class Consumed(Protocol):
    """The consumer, as a run sees it."""

    async def pull(self, max_messages: int, timeout: float) -> Messages:
        """Return messages."""

    async def ack(self, x: Message | Messages) -> None:
        """Finish."""

    async def nack(self, x: Message | Messages, *, delay: float = 0.0) -> None:
        """Have it again."""

    async def commit(self) -> None:
        """Store positions."""

    async def give_back(self, messages: list[Message]) -> None:
        """Have others get what nobody has looked at."""

    async def prolong(self) -> None:
        """Keep the leases that are about to end."""

    def is_leased(self, message: Message) -> bool:
        """Whether it has to be acked."""


class Run:
    """See the module."""

    def __init__(
        self, consumer: Consumed, handler: Handler, concurrency: int, clock: Clock, chance: Callable[[], float]
    ) -> None:
        if concurrency < 1:
            raise InvalidRequest(f"concurrency {concurrency} must be at least 1")
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._clock = clock
        self._chance = chance
        self._pulled: deque[Message] = deque()
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(concurrency)
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self._workers: list[asyncio.Task[None]] = []

    @property
    def is_asking(self) -> bool:
        """Whether it is a handler of this run that asks."""
        return asyncio.current_task() in self._workers

    async def serve(self) -> None:
        """Handle messages until `stop`, an error that no retry helps, or cancellation."""
        workers = self._workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        prolonging = asyncio.create_task(self._prolong())
        feeding = asyncio.create_task(self._feed())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await _first_of(feeding, ending)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await self._give_back()
            await self._finish(workers)
        finally:
            for task in (feeding, ending, prolonging, *workers):
                task.cancel()
            await asyncio.gather(feeding, ending, prolonging, *workers, return_exceptions=True)
            await self._give_back()
            await asyncio.gather(*self._settling, return_exceptions=True)
            self._ended.set()
        if self._failure is not None:
            raise self._failure
        if not feeding.cancelled() and feeding.exception() is not None:
            raise feeding.exception() or AssertionError

    async def stop(self, deadline: Deadline) -> None:
        """Begin nothing more; return when what was begun is finished, or when the time is over."""
        self._ending.set()
        ended = asyncio.create_task(self._ended.wait())
        await settled(self._clock, ended, deadline.remaining_ms)
        ended.cancel()

    # --- Feeding ---

    async def _feed(self) -> None:
        while True:
            try:
                messages = await self._consumer.pull(AHEAD * self._concurrency, PULL_SECONDS)
            except ClosedError:
                return
            except ClymqError as error:
                if not error.retriable:
                    raise
                log.warning("messages cannot be had: %s", error)
                continue
            self._pulled += messages
            while self._pulled:
                await self._waiting.put(self._pulled[0])
                self._pulled.popleft()
            if any(not run.lease for run in messages.runs):
                await self._waiting.join()
                if self._failure is not None:
                    return
                await self._consumer.commit()

    async def _prolong(self) -> None:
        while True:
            await pause(self._clock, LOOK_MS)
            await self._consumer.prolong()

    async def _give_back(self) -> None:
        """Let others have what nobody has begun."""
        unread = list(self._pulled)
        self._pulled.clear()
        while not self._waiting.empty():
            unread.append(self._waiting.get_nowait())
            self._waiting.task_done()
        leased = [message for message in unread if self._consumer.is_leased(message)]
        if leased:
            await self._quietly(self._consumer.give_back(leased))

    # --- Handling ---

    async def _work(self) -> None:
        while True:
            message = await self._waiting.get()
            try:
                await self._handle(message)
            finally:
                self._waiting.task_done()

    async def _handle(self, message: Message) -> None:
        try:
            result = self._handler(message)
            if inspect.isawaitable(result):
                await result
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                self._settle(self._failed(message))
                raise
            if not self._consumer.is_leased(message):
                self._failure = error
                self._ending.set()
                return
            where = f"{message.topic}/{message.partition} offset {message.offset}, delivery {message.delivery_count}"
            log.warning("%s: the handler failed: %s: %s", where, type(error).__name__, error)
            self._settle(self._failed(message))
        else:
            if self._consumer.is_leased(message):
                self._settle(self._consumer.ack(message))
        if len(self._settling) > ACKS_UNDER_WAY_MAX:
            await asyncio.gather(*self._settling, return_exceptions=True)

    def _failed(self, message: Message) -> Awaitable[None]:
        seconds = min(RETRY_SECONDS_MAX, RETRY_SECONDS_MIN * 2 ** min(20, message.delivery_count - 1))
        return self._consumer.nack(message, delay=seconds * (0.5 + self._chance() / 2))

    def _settle(self, work: Awaitable[None]) -> None:
        """Tell the broker, without keeping the next message waiting."""
        task = asyncio.create_task(self._quietly(work))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ClymqError as error:
            log.warning("a message is going to be delivered again: %s: %s", error.code, error)

    async def _finish(self, workers: list[asyncio.Task[None]]) -> None:
        """Wait for those handlers that have begun."""
        await self._waiting.join()
        for worker in workers:
            worker.cancel()


def _is_cancelled() -> bool:
    """Whether somebody cancels the task that asks. What a handler awaits may be cancelled too: it has failed then."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Wait until one of them is done."""
    done = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _: done.set())
    await done.wait()
