"""Waiting, on the clock that was handed in: until a deadline, for work that several wait for, and before a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any, Generic, TypeVar

from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import ClymqError, RequestTimeout

T = TypeVar("T")


class Deadline:
    """A moment after which nobody waits any more."""

    __slots__ = ("_clock", "at_ms", "seconds")

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.at_ms = clock.monotonic_ms() + seconds * 1000

    @property
    def remaining_ms(self) -> float:
        """What is left of it; never negative."""
        return max(0.0, self.at_ms - self._clock.monotonic_ms())

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return self.remaining_ms <= 0.0

    def error(self, waited_for: str, problem: ClymqError | None = None) -> RequestTimeout:
        """Return the error that says what was waited for, and what stood in the way last."""
        why = f"; last: {problem.code}: {problem}" if problem is not None else ""
        return RequestTimeout(f"{waited_for}: not within {self.seconds:g} s{why}")


class Backoff:
    """Pauses that grow from `retry_ms_min` to `retry_ms_max`, each drawn from the upper half of its length."""

    __slots__ = ("_chance", "_config", "_pause_ms")

    def __init__(self, config: Config, chance: Callable[[], float]) -> None:
        self._config = config
        self._chance = chance
        self._pause_ms: float = config.retry_ms_min

    def reset(self) -> None:
        """Something worked: the next pause is short again."""
        self._pause_ms = self._config.retry_ms_min

    def next_ms(self) -> float:
        """Return how long to wait now."""
        pause_ms = self._pause_ms * (0.5 + self._chance() / 2)
        self._pause_ms = min(self._pause_ms * 2, self._config.retry_ms_max)
        return pause_ms


async def settled(clock: Clock, future: asyncio.Future[Any], timeout_ms: float) -> bool:
    """Wait until a future is done or the time is over; return which. The future goes on whatever happens here."""
    if future.done():
        return True
    over = asyncio.Event()

    def done(_future: asyncio.Future[Any]) -> None:
        over.set()

    timer = clock.call_later(timeout_ms, over.set)
    future.add_done_callback(done)
    try:
        await over.wait()
    finally:
        timer.cancel()
        future.remove_done_callback(done)
    return future.done()


class Bell:
    """Wakes all who wait for it, each in the next turn of the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake them."""
        for waiting in self._waiting:
            _end(waiting)

    async def wait(self, timeout_ms: float) -> None:
        """Wait until it rings or the time is over."""
        waiting = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(timeout_ms, lambda: _end(waiting))
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Shared(Generic[T]):
    """Work that several may wait for: done once at a time for each key, and not stopped by one who leaves."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    async def result(
        self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]], timeout_ms: float, waited_for: str
    ) -> T:
        """Return what the work returns, begun if nobody has; `RequestTimeout` if that takes too long for us."""
        task = self.begin(key, work)
        if await settled(self._clock, task, timeout_ms):
            return task.result()
        raise RequestTimeout(f"{waited_for}: not within {timeout_ms:.0f} ms")

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin the work, unless it is under way."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    async def close(self) -> None:
        """Stop all of it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            task.exception()  # whoever waited for it has seen it; if nobody is left, nobody cares


class _NextTurn:
    """Awaited, it comes back in the next turn of the event loop; no time passes by any clock."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def next_turn() -> None:
    """Let everybody else who can go on do so."""
    await _NextTurn()
