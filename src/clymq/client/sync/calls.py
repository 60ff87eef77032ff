"""How a blocking class is made of its asynchronous twin."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from clymq.client.sync.thread import LoopThread
from clymq.errors import ClosedError, ClymqError

P = ParamSpec("P")
T = TypeVar("T")


class Twin(Protocol):
    """What every asynchronous client has."""

    async def start(self) -> None:
        """Be ready."""

    async def close(self) -> None:
        """Stop."""


TwinT = TypeVar("TwinT", bound=Twin)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking method of the same name, parameters and description."""

    def call(self: Blocking[Any], /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._wait_for(method(self._twin, *arguments, **options))

    return described_by(method, call)


def described_by(method: Callable[..., object], call: Callable[P, T]) -> Callable[P, T]:
    """Give a function the name, the parameters and the description of another."""
    functools.update_wrapper(call, method)
    return call


class Blocking(Generic[TwinT]):
    """A client whose calls wait. `with`, or `start()` and `close()`."""

    def __init__(self, twin: TwinT) -> None:
        self._twin = twin
        self._thread: LoopThread | None = None
        self._is_closed = False

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the twin's event loop do something and wait for it."""
        try:
            thread = self._loop_thread()
        except BaseException:
            work.close()
            raise
        return thread.run(work)

    def _loop_thread(self) -> LoopThread:
        """Return the thread of the event loop, begun if this object has not needed it yet."""
        if self._thread is None:
            if self._is_closed:
                raise ClosedError(f"{type(self).__name__} is closed")
            self._thread = LoopThread.acquire(self)
        return self._thread

    def start(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._wait_for(self._twin.start())

    def close(self) -> None:
        """Close the twin, and give the thread back; a second call changes nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if thread.is_here:
                thread.run(self._close_twin())
        finally:
            thread.release(self)

    def _close_in(self, thread: LoopThread, seconds_max: float) -> None:
        """Close what the program has left open when it ends: what was accepted is sent, if that does not take long."""
        self._is_closed = True
        with contextlib.suppress(ClymqError, TimeoutError):
            thread.run(asyncio.wait_for(self._close_twin(), seconds_max))

    async def _close_twin(self) -> None:
        await self._twin.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
