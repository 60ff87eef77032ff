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
    running: set[asyncio.Task[None]] = set()

    def start(call: Call) -> None:
        if not call.correlation and len(running) >= ONE_WAY_RUNNING_MAX:
            logger.warning("%s: %s dropped, %d calls are under way", call.peer, call.verb.name, len(running))
            return
        task = asyncio.create_task(_answer(handler, call))
        running.add(task)
        task.add_done_callback(running.discard)
        call.on_cancel(task.cancel)

    return start


async def _answer(handler: Callable[[Call], Awaitable[Result]], call: Call) -> None:
    result: Result = None
    error: ClymqError | None = None
    try:
        result = await handler(call)
    except asyncio.CancelledError:
        error = UnknownServerError(f"{call.verb.name} was cancelled")
    except ClymqError as raised:
        error = raised
    except Exception as raised:
        logger.exception("%s: %s met an error that it has no name for", call.peer, call.verb.name)
        error = UnknownServerError(f"{call.verb.name}: {type(raised).__name__}: {raised}")
    if call.answered:
        if error is not None and call.correlation:
            logger.warning("%s: %s failed after its answer: %s", call.peer, call.verb.name, error)
    elif error is not None:
        call.fail(error)
    elif result is not None:
        reply, payload = result if isinstance(result, tuple) else (result, ())
        call.reply(reply, payload)
