"""Waiting for something to become true, with a deadline: what tests of real processes do instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

POLL_SECONDS: Final = 0.005


class WaitedTooLong(AssertionError):
    """What was waited for did not happen in time."""


def wait_until(condition: Callable[[], bool], what: str, *, seconds_max: float) -> float:
    """Look until `condition` holds and return how many seconds that took; `what` names it when it never does."""
    began = time.monotonic()
    for _ in _looks(began, what, seconds_max):
        if condition():
            break
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


async def until(condition: Callable[[], bool], what: str, *, seconds_max: float) -> float:
    """Do the same without stopping the event loop."""
    began = time.monotonic()
    for _ in _looks(began, what, seconds_max):
        if condition():
            break
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


async def until_asked(condition: Callable[[], Awaitable[bool]], what: str, *, seconds_max: float) -> float:
    """Do the same where looking means to ask somebody."""
    began = time.monotonic()
    for _ in _looks(began, what, seconds_max):
        if await condition():
            break
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began


def _looks(began: float, what: str, seconds_max: float) -> Iterator[None]:
    """Yield until the time is over, and once more: what became true during the last pause counts."""
    while True:
        over = time.monotonic() - began > seconds_max
        yield
        if over:
            raise WaitedTooLong(f"{what}: not within {seconds_max:g} s")
