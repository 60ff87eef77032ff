"""Handlers that wait: a coroutine function as a handler of calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from clymq.errors import ClymqError, UnknownServerError
from clymq.protocol.frames import Buffer
from clymq.protocol.verbs import Reply
from clymq.rpc.peer import Call

logger = logging.getLogger("clymq.rpc")

ONE_WAY_RUNNING_MAX: Final = 1024

Handler = Callable[[Call], None]
Result = Reply | tuple[Reply, Sequence[Buffer]] | None


def answering(handler: Callable[[Call], Awaitable[Result]]) -> Handler:
    """Make a handler of a coroutine function that returns the reply, with its payload if there is one, or raises.

    It is cancelled when nobody waits for its answer any more. Of one-way messages, for which it returns None, those
    past `ONE_WAY_RUNNING_MAX` under way are dropped: nothing else bounds them.
    """
    running: dict[asyncio.Task[None], Call] = {}

    def over(task: asyncio.Task[None]) -> None:
        call = running.pop(task)
        # Cancelled before it began, none of its lines has run; and one that returned None has not answered either.
        if not call.answered:
            call.fail(UnknownServerError(f"{call.verb.name} has no answer"))

    def start(call: Call) -> None:
        if not call.correlation and len(running) >= ONE_WAY_RUNNING_MAX:
            logger.warning("%s: %s dropped, %d calls are under way", call.peer, call.verb.name, len(running))
            return
        task = asyncio.create_task(_answer(handler, call))
        running[task] = call
        task.add_done_callback(over)
        call.on_cancel(task.cancel)

    return start


async def _answer(handler: Callable[[Call], Awaitable[Result]], call: Call) -> None:
    error: ClymqError | None = None
    try:
        result = await handler(call)
        if result is not None and not call.answered:
            reply, payload = result if isinstance(result, tuple) else (result, ())
            call.reply(reply, payload)
    except asyncio.CancelledError:
        error = UnknownServerError(f"{call.verb.name} was cancelled")
    except ClymqError as raised:
        error = raised
    except Exception as raised:
        logger.exception("%s: %s met an error that it has no name for", call.peer, call.verb.name)
        error = UnknownServerError(f"{call.verb.name}: {type(raised).__name__}: {raised}")
    if error is None:
        return
    if not call.answered:
        call.fail(error)
    elif call.correlation:
        logger.warning("%s: %s failed after its answer: %s", call.peer, call.verb.name, error)
