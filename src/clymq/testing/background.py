"""An event loop in a thread of its own, for what must go on while the caller blocks, or has a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines for callers that may be on any thread. `start` it and `close` it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to run."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, seconds_max: float = 60.0) -> T:
        """Run a coroutine there, wait for it here, and return what it returns."""
        assert self._loop is not None, "the background was not started"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds_max)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function there, soon; nobody waits for it here."""
        assert self._loop is not None, "the background was not started"
        self._loop.call_soon_threadsafe(function, *arguments)

    def close(self) -> None:
        """Stop; what is still running there is cancelled and waited for."""
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
