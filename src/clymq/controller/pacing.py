"""Waiting for something, on the clock that is handed in, but not for ever."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from clymq.clock import Clock
from clymq.errors import NotController, RequestTimeout

T = TypeVar("T")


async def within(clock: Clock, timeout_ms: float, work: asyncio.Future[T], what: str) -> T:
    """Wait for work that goes on without us; when it takes too long, or is stopped, say so."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(_: Any = None) -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_later(timeout_ms, settle)
    work.add_done_callback(settle)
    try:
        await over
    finally:
        timer.cancel()
        work.remove_done_callback(settle)
    if not work.done():
        raise RequestTimeout(f"{what} takes longer than {timeout_ms:g} ms; it goes on")
    if work.cancelled():
        raise NotController(f"{what} was stopped here: another zkserver goes on with it")
    return work.result()
