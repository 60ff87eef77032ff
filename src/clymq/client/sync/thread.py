"""The thread behind the blocking classes: one event loop for all of them.

It begins with the first object that needs it and ends with the last that is closed. What a program leaves open is
closed when it ends, and does not keep it from ending. Threads do not survive a fork: in the child, objects made before
it say so, and new ones get a thread of their own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakSet

from clymq.errors import ClosedError, InvalidRequest

T = TypeVar("T")

# At exit nobody waits longer than this for what was left open.
EXIT_SECONDS_MAX: Final = 2.0


class User(Protocol):
    """Who needs the thread."""

    def _close_in(self, thread: LoopThread, seconds_max: float) -> None:
        """Let go of everything, within so long; the program ends."""


class LoopThread:
    """An event loop in a thread; `run` has it do work and waits for the outcome."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="clymq-client", daemon=True)
        self._users: WeakSet[User] = WeakSet()
        self._count = 0
        self._thread.start()

    @staticmethod
    def acquire(user: User) -> LoopThread:
        """Return the thread of this process, begun if there is none; give it back with `release`."""
        with _Shared.lock:
            if _Shared.thread is None:
                _Shared.thread = LoopThread()
            _Shared.thread._users.add(user)
            _Shared.thread._count += 1
            return _Shared.thread

    def release(self, user: User) -> None:
        """Need it no longer; whoever is the last waits until the thread is gone."""
        with _Shared.lock:
            self._users.discard(user)
            self._count -= 1
            is_last = self._count == 0
            if is_last and _Shared.thread is self:
                _Shared.thread = None
        if is_last and self.is_here:
            self.end()

    @property
    def is_here(self) -> bool:
        """Whether the thread runs in this process: it does not after a fork."""
        return self._process == os.getpid() and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Raise unless somebody can wait for it here."""
        if not self.is_here:
            raise ClosedError("the client's thread is gone", hint="after a fork, make a new client in the new process")
        if self.is_current:
            raise InvalidRequest(
                "a blocking call from the client's own thread would wait for itself",
                hint="callbacks such as on_delivery must not wait",
            )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work there and return what it returns. An interrupt here cancels it there."""
        try:
            self.check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # no effect unless we were interrupted

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call something there, soon; do not wait."""
        self._loop.call_soon_threadsafe(callback, *arguments)

    def close_all(self, seconds_max: float) -> None:
        """Close what was left open, each within so long, and end."""
        for user in list(self._users):
            user._close_in(self, seconds_max)
        self.end(seconds_max)

    def end(self, seconds_max: float | None = None) -> None:
        """Cancel what still runs and wait until the thread is gone."""
        try:
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            return  # it has ended already
        if not self.is_current:
            self._thread.join(seconds_max)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_ended())

    async def _until_ended(self) -> None:
        await self._ended.wait()


class _Shared:
    """The one thread of this process."""

    lock = threading.Lock()
    thread: LoopThread | None = None


def _after_fork() -> None:
    _Shared.lock = threading.Lock()
    _Shared.thread = None


def _at_exit() -> None:
    thread, _Shared.thread = _Shared.thread, None
    if thread is not None and thread.is_here:
        thread.close_all(EXIT_SECONDS_MAX)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
