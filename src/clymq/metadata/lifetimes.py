"""How long each session may still live: deadlines in memory, on a clock that is handed in.

A session is overdue when nothing was heard of it for its timeout *while the store was listening*. A store that was
not running (restarted, stopped by a signal, starved) has heard nobody through no fault of theirs; what they sent may
lie unread in its sockets. So a session that is known from the disk begins with a full timeout, and when more time than
`stall_ms` lies between two looks at the clock, everybody gets a full timeout again. Of a shorter pause, what goes
beyond the `tick_ms` after which the next look was due is added to everybody's time.
"""

from __future__ import annotations


class Lifetimes:
    """The deadlines of all sessions."""

    def __init__(self, now_ms: float, stall_ms: float, tick_ms: float) -> None:
        self._stall_ms = stall_ms
        self._tick_ms = tick_ms
        self._looked_at_ms = now_ms
        self._timeouts_ms: dict[int, int] = {}
        self._deadlines_ms: dict[int, float] = {}

    def begin(self, session: int, timeout_ms: int, now_ms: float) -> None:
        """Give a session a full timeout from now."""
        self._timeouts_ms[session] = timeout_ms
        self._deadlines_ms[session] = now_ms + timeout_ms

    def touch(self, session: int, now_ms: float) -> bool:
        """Hear of a session; one that has ended stays so, and the answer is False."""
        if session not in self._timeouts_ms:
            return False
        self._deadlines_ms[session] = now_ms + self._timeouts_ms[session]
        return True

    def end(self, session: int) -> int:
        """Forget a session; return its timeout, 0 if it was forgotten before."""
        self._deadlines_ms.pop(session, None)
        return self._timeouts_ms.pop(session, 0)

    def overdue(self, now_ms: float) -> list[int]:
        """Look at the clock and return the sessions whose time is over."""
        pause_ms = now_ms - self._looked_at_ms
        if pause_ms > self._stall_ms:
            for session, timeout_ms in self._timeouts_ms.items():
                self._deadlines_ms[session] = now_ms + timeout_ms
        elif pause_ms > self._tick_ms:
            for session in self._deadlines_ms:
                self._deadlines_ms[session] += pause_ms - self._tick_ms
        self._looked_at_ms = now_ms
        return [session for session, deadline_ms in self._deadlines_ms.items() if deadline_ms <= now_ms]

    def __len__(self) -> int:
        return len(self._timeouts_ms)
