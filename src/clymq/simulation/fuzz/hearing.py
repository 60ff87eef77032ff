"""Errors that nobody had a name for: they are logged and survived, and here they count as found."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from clymq.simulation.fuzz.target import Violated

SHOWN_CHARACTERS_MAX = 3_000


class Hearing(logging.Handler):
    """Listens to all loggers for what comes with a traceback; `start` it and `close` it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: list[str] = []
        self._before: tuple[list[logging.Handler], int, int] | None = None

    def start(self) -> None:
        """Begin to listen; let nobody else write."""
        root = logging.getLogger()
        self._before = root.handlers, root.level, root.manager.disable
        logging.disable(logging.NOTSET)
        root.handlers = [self]
        root.setLevel(logging.ERROR)

    def close(self) -> None:
        """Stop."""
        if self._before is not None:
            root = logging.getLogger()
            root.handlers, level, disabled = self._before
            root.setLevel(level)
            logging.disable(disabled)
            self._before = None
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what has a traceback."""
        if record.exc_info and record.exc_info[0] is not None:
            self._heard.append(logging.Formatter("%(name)s %(message)s").format(record))

    def of_loop(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Hear of what an event loop was left with."""
        error = context.get("exception")
        self._heard.append(f"{context['message']}: {type(error).__name__}: {error}")

    def check(self) -> None:
        """Raise if anything was heard since the last time."""
        heard, self._heard = self._heard, []
        if heard:
            raise Violated(f"an error without a name: ...{heard[0][-SHOWN_CHARACTERS_MAX:]}")
