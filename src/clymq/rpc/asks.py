"""The requests of one side that are under way: their numbers, their deadlines, their place in the window.

Each ends exactly once: by its answer, its deadline, its cancellation, or the end of the connection. One that is given
up after it was sent is followed by a CANCEL, and its place in the window is free at once: the other side reads the
CANCEL before anything that takes the place.

One timer watches all deadlines: it is set for the earliest, and asks whose deadline is not earlier do not touch it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Final

from clymq.clock import Clock, Timer
from clymq.errors import ClosedError, ClymqError, ConnectionLost, RemoteProtocolError, RequestTimeout
from clymq.protocol.connection import Replied
from clymq.protocol.frames import Buffer
from clymq.protocol.handshake import Window
from clymq.protocol.verbs import Verb
from clymq.rpc.window import SendWindow

logger = logging.getLogger("clymq.rpc")

Outcome = Replied[Any] | ClymqError
Done = Callable[[Any], None]
"""Called once, with the `Replied` or the error (an `Outcome`)."""
_NEVER: Final = float("inf")
# Requests that were given up and whose answers are still looked out for, on one connection.
LATE_MAX: Final = 256


class Ask:
    """One request."""

    __slots__ = ("correlation", "deadline_ms", "done", "key", "late", "size", "timeout_ms", "unsent", "verb")

    def __init__(
        self,
        correlation: int,
        verb: Verb,
        key: Hashable,
        unsent: list[Buffer],
        size: int,
        done: Done,
        timeout_ms: float,
        late: Done | None = None,
    ) -> None:
        self.correlation = correlation
        self.verb = verb
        self.key = key
        self.unsent: list[Buffer] | None = unsent
        """The frame, until it is sent."""
        self.size = size
        self.done = done
        self.timeout_ms = timeout_ms
        self.deadline_ms = 0.0
        self.late = late
        """Called with an answer that was under way when the request was given up: it may not be without effect."""


class Asks:
    """All of them, for one connection."""

    __slots__ = ("_cancel", "_clock", "_late", "_pending", "_timer", "_timer_at_ms", "_window", "_write", "address")

    def __init__(
        self,
        address: str,
        clock: Clock,
        grant: Window,
        waiting_max: int,
        *,
        write: Callable[[list[Buffer], int], None],
        cancel: Callable[[int], None],
    ) -> None:
        self.address = address
        self._clock = clock
        self._write = write
        self._cancel = cancel
        self._window = SendWindow(grant, waiting_max)
        self._pending: dict[int, Ask] = {}
        self._late: dict[int, Ask] = {}
        """Those that were given up, the oldest first, and whose answers are not without effect."""
        self._timer: Timer | None = None
        self._timer_at_ms = _NEVER

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, ask: Ask) -> None:
        """Send a request, or keep it until it fits; `Overloaded` if too many wait."""
        may_go = self._window.enter(ask)
        ask.deadline_ms = deadline = self._clock.monotonic_ms() + ask.timeout_ms
        self._pending[ask.correlation] = ask
        if deadline < self._timer_at_ms:
            self._set_timer(deadline)
        if may_go:
            self._send(ask)

    def finish(self, correlation: int, outcome: Outcome) -> None:
        """An answer has come; one that nobody waits for any more is passed over, unless somebody cares for those."""
        ask = self._pending.pop(correlation, None)
        if ask is not None and ask.unsent is None:
            if type(outcome) is Replied and type(outcome.reply) is not ask.verb.reply:
                outcome = RemoteProtocolError(f"{ask.verb.name} was answered with {type(outcome.reply).__name__}")
            for each in self._window.leave(ask):
                self._send(each)  # type: ignore[arg-type]
            self._end(ask, outcome)
        elif ask is not None:
            # It answers what was never sent: that is no answer.
            self._pending[correlation] = ask
        elif correlation in self._late:
            self._came_late(self._late.pop(correlation), outcome)

    def give_up(self, correlation: int, outcome: ClymqError | None) -> None:
        """Nobody waits for this one any more; None: not even for the error."""
        ask = self._pending.pop(correlation, None)
        if ask is None:
            return
        if ask.unsent is None:
            self._cancel(correlation)
            freed = self._window.leave(ask)
            self._look_out_for(ask)
        else:
            freed = self._window.forget(ask)
        for each in freed:
            self._send(each)  # type: ignore[arg-type]
        if outcome is not None:
            self._end(ask, outcome)

    def end_all(self, error: ConnectionLost | ClosedError) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._late.clear()
        pending, self._pending = self._pending, {}
        for ask in pending.values():
            # Each asker has an error of its own: raising one adds to its traceback.
            self._end(ask, type(error)(error.message))

    def _send(self, ask: Ask) -> None:
        buffers, ask.unsent = ask.unsent, None
        assert buffers is not None
        self._write(buffers, ask.size)

    def _end(self, ask: Ask, outcome: Outcome) -> None:
        self._tell(ask, ask.done, outcome)

    def _tell(self, ask: Ask, asker: Done, outcome: Outcome) -> None:
        try:
            asker(outcome)
        except Exception:
            # The other answers in the same read must not be lost to a mistake of one asker.
            logger.exception("%s: the asker of %s failed on its answer", self.address, ask.verb.name)

    def _look_out_for(self, ask: Ask) -> None:
        """Remember who cares for a late answer; most never come, because the CANCEL is heard in time."""
        if ask.late is not None:
            self._late[ask.correlation] = ask
            if len(self._late) > LATE_MAX:
                del self._late[next(iter(self._late))]

    def _came_late(self, ask: Ask, outcome: Outcome) -> None:
        assert ask.late is not None
        if type(outcome) is Replied and type(outcome.reply) is ask.verb.reply:
            self._tell(ask, ask.late, outcome)

    def _set_timer(self, at_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._clock.call_later(at_ms - self._clock.monotonic_ms(), self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._timer_at_ms = _NEVER
        now = self._clock.monotonic_ms()
        # A timer may run a little early; what is due within its coarseness is due.
        over = [ask for ask in self._pending.values() if ask.deadline_ms <= now + 1]
        for ask in over:
            timeout = RequestTimeout(f"{self.address}: no answer to {ask.verb.name} within {ask.timeout_ms:g} ms")
            self.give_up(ask.correlation, timeout)
        if self._pending and self._timer is None:
            self._set_timer(min(ask.deadline_ms for ask in self._pending.values()))
