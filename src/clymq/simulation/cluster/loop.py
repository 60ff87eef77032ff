"""An event loop whose time is virtual, and processes that live on it: each can be paused, and killed, by name.

Time jumps to the next timer when nothing is ready, so that a minute of waiting costs nothing, and nothing happens at
the same moment in another order than before: timers of one time run in the order in which they were set.

A `Life` is one run of one process. Which life a callback belongs to is a context variable, which asyncio hands on to
every task, timer and future that is made; so nothing in the product has to know. What belongs to a paused life is
held back until it goes on, as under SIGSTOP; what belongs to a dead one never happens.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from clymq.clock import Timer
from clymq.simulation.checkers import Violation

T = TypeVar("T")

WALL_US: Final = 1_700_000_000_000_000
# So many turns of the loop, at one and the same time, has a killed process to let go of what it held.
LAST_TURNS: Final = 40

_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. It has no selector: nothing outside of it ever happens."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.problems: list[dict[str, Any]] = []
        """What nobody caught."""
        self.failure: Exception | None = None
        """Raised out of the loop as soon as it is set: who noticed cannot raise it through the product."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, problem: self.problems.append(problem))

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, let it be the time of the next timer."""
        if self.failure is not None:
            raise self.failure
        self.turns += 1
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self._ready and timers:
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])
        if not self._ready:
            raise Violation("Liveness: nothing will ever happen again")
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                self._run(handle)

    def _run(self, handle: Any) -> None:
        life = handle._context.get(_LIFE)
        if life is None or life.runs:
            handle._run()
        elif not life.dead:
            life.held.append(handle)

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = _Task(work, loop=loop, context=context)
        task.number = next(self._numbers)  # type: ignore[attr-defined]
        life = _LIFE.get()
        if life is not None:
            life.own(task)
        return task

    def go_on(self, held: list[asyncio.Handle]) -> None:
        """Run what was held back, in its order."""
        self._ready.extend(held)


class _Task(asyncio.Task[T]):
    """A task whose hash is its number: sets of tasks have the same order in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Life:
    """One run of one process, from its start until it is killed or the world ends."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.muted = False
        """It is being killed: nothing that it does from now on reaches anybody."""
        self.held: list[asyncio.Handle] = []
        self.context = contextvars.Context()
        self.context.run(_LIFE.set, self)
        self.on_killed: list[Callable[[], None]] = []
        self._loop = loop
        self._tasks: dict[asyncio.Task[Any], None] = {}

    @property
    def runs(self) -> bool:
        """Whether what belongs to it happens."""
        return not (self.paused or self.dead)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in it."""
        return self.context.copy().run(self._loop.create_task, work)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Take note of a task that was begun in it."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def pause(self) -> None:
        """Let it stand still."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on; all that should have happened meanwhile happens now."""
        if self.paused:
            self.paused = False
            held, self.held = self.held, []
            self._loop.go_on(held)

    def kill(self) -> None:
        """End it. Nobody hears another word; its tasks end within this moment, and then nothing is left of it."""
        if self.muted:
            return
        self.muted = True
        for told in self.on_killed:
            told()
        self.resume()
        self._die_after(LAST_TURNS)

    def _die_after(self, turns: int) -> None:
        if turns and self._tasks:
            for task in tuple(self._tasks) if turns % 5 == 0 else ():
                task.cancel()  # again and again: nobody is waited for
            self._loop.call_soon(self._die_after, turns - 1, context=contextvars.Context())
            return
        self.dead = True
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]


class LifeClock:
    """The time as one process knows it: its wall clock may be wrong, its monotonic clock is not."""

    def __init__(self, loop: VirtualLoop, *, skew_us: int = 0) -> None:
        self._loop = loop
        self._skew_us = skew_us

    def wall_us(self) -> int:
        return WALL_US + self._skew_us + round(self._loop.time() * 1_000_000)

    def monotonic_ms(self) -> float:
        return self._loop.time() * 1000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)


def current_life() -> Life | None:
    """Return whose code is running."""
    return _LIFE.get()
