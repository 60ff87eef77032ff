"""Time, handed in. Nothing else in ClyMQ knows what time it is.

Two kinds of time: `wall_us`, which people and logs read and which may jump, and `monotonic_ms`, which timeouts use and
which only goes forward. `ManualClock` is the deterministic twin: it moves when told, so that a test or the simulator
can live through a week in a second and through the same week again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is going to happen."""

    def cancel(self) -> None:
        """Make it not happen; no effect once it has."""
        ...


class Clock(Protocol):
    """What the time is, and a call when it has passed."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back after `delay_ms`, from the event loop."""
        ...


async def pause(clock: Clock, delay_ms: float, *, unless: asyncio.Event | None = None) -> None:
    """Wait for a time, on whatever clock it is, or until the event is set."""
    over = unless or asyncio.Event()
    timer = clock.call_later(delay_ms, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


class Turns:
    """Long work on the event loop, cut into pieces: `give_way` between any two of its steps."""

    def __init__(self, clock: Clock, turn_ms_max: float) -> None:
        self._clock = clock
        self._turn_ms_max = turn_ms_max
        self._began = clock.monotonic_ms()

    async def give_way(self) -> None:
        """Let everybody else have a turn, if this one has lasted long enough."""
        if self._clock.monotonic_ms() - self._began >= self._turn_ms_max:
            await pause(self._clock, 0)
            self._began = self._clock.monotonic_ms()


class SystemClock:
    """The machine's clocks; timers run on the running asyncio event loop."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1000

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment."""
        return time.monotonic() * 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back after `delay_ms`, from the event loop."""
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


class ManualClock:
    """Time that stands still until `advance`; timers run in order of their time, then of their making."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000) -> None:
        self._wall_us = wall_us
        self._monotonic_ms = 0.0
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._numbers = itertools.count()

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self._wall_us

    def monotonic_ms(self) -> float:
        """Milliseconds since the clock was made."""
        return self._monotonic_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back once `advance` has passed `delay_ms`."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._monotonic_ms + max(0.0, delay_ms), next(self._numbers), timer))
        return timer

    def advance(self, milliseconds: float) -> None:
        """Let time pass, running each timer at its own time, those that it starts included."""
        target = self._monotonic_ms + milliseconds
        while self._timers and self._timers[0][0] <= target:
            at, _, timer = heapq.heappop(self._timers)
            self._move_to(at)
            timer.run()
        self._move_to(target)

    def jump_wall(self, microseconds: int) -> None:
        """Set the wall clock forward or back, as an administrator or a leap of NTP would."""
        self._wall_us += microseconds

    def _move_to(self, monotonic_ms: float) -> None:
        self._wall_us += round((monotonic_ms - self._monotonic_ms) * 1000)
        self._monotonic_ms = monotonic_ms


class _ManualTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
