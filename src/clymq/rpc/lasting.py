"""Background work of a server: what must never be over, and what nobody waits for.

A loop that keeps a server in its cluster handles the errors that it knows. One that it has no name for would end the
loop and leave a process that looks alive and does its work no more, which is worse than a dead one: for that one others
stand in. So the loop begins anew after a pause, because most such errors come of one value at one moment. If they go on
the process ends, with the reason, and whoever watches over it starts it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from clymq.clock import Clock, pause
from clymq.errors import ClymqError, UnknownServerError

FAILURES_MAX: Final = 6
"""So many in a row, and the process ends: about six seconds after the first."""
PAUSE_MS: Final = 200.0
CALM_MS: Final = 60_000.0
"""Who has lasted for so long is believed to be well again."""

logger = logging.getLogger("clymq.rpc")


async def lasting(
    what: str, work: Callable[[], Awaitable[None]], clock: Clock, on_failure: Callable[[ClymqError], None]
) -> None:
    """Do `work`, which is a loop, until it returns; `on_failure` hears that it cannot be done."""
    failures = 0
    while True:
        began_ms = clock.monotonic_ms()
        try:
            await work()
            return
        except Exception as error:
            calm = clock.monotonic_ms() - began_ms >= CALM_MS
            failures = 1 if calm else failures + 1
            logger.exception("%s: met an error that it has no name for", what)
            if failures == FAILURES_MAX:
                on_failure(UnknownServerError(f"{what} keeps failing: {type(error).__name__}: {error}"))
                return
        await pause(clock, PAUSE_MS * 2 ** (failures - 1))


def log_if_failed(task: asyncio.Task[None]) -> None:
    """Log at once the error of a task that nobody waits for, and not when its memory is needed for something else."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a task ended by an error that it has no name for", exc_info=error)
