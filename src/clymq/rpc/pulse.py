"""Whether the other side of a connection is alive, judged by what arrives and when.

Three things must not take for ever: the handshake, a frame that has begun, and silence. It is asked now and then
(`Endpoint`), not told of every byte: what it costs does not grow with the traffic.
"""

from __future__ import annotations

from clymq.config import Config
from clymq.errors import ConnectionLost


class Pulse:
    """What is known of the other side's liveliness; the times are those of a monotonic clock."""

    __slots__ = ("_config", "_half_frame_since_ms", "_pinged_at_ms", "_quiet_since_ms", "heard")

    def __init__(self, config: Config, now_ms: float) -> None:
        self._config = config
        self._quiet_since_ms = now_ms
        self._half_frame_since_ms: float | None = None
        self._pinged_at_ms: float | None = None
        self.heard = False
        """Something has arrived since the last look."""

    def frame_ended(self) -> None:
        """A frame is whole: what follows is another one."""
        self._half_frame_since_ms = None

    def look(self, now_ms: float, *, is_open: bool, in_frame: bool) -> ConnectionLost | None:
        """Return why the connection has to end, if it has to."""
        config = self._config
        if self.heard:
            self.heard = False
            self._pinged_at_ms = None
            if is_open:  # before that nothing but the handshake itself is progress
                self._quiet_since_ms = now_ms
        quiet_ms = now_ms - self._quiet_since_ms
        if not is_open:
            overdue = quiet_ms >= config.handshake_ms_max
            return ConnectionLost(f"no handshake within {config.handshake_ms_max} ms") if overdue else None
        if not in_frame:
            self._half_frame_since_ms = None
        elif self._half_frame_since_ms is None:
            self._half_frame_since_ms = now_ms
        elif now_ms - self._half_frame_since_ms >= config.frame_ms_max:
            return ConnectionLost(f"half a frame, and no more within {config.frame_ms_max} ms")
        # Only who was asked can have failed to answer: a process that stood still has not asked anybody.
        if self._pinged_at_ms is not None and now_ms - self._pinged_at_ms >= config.idle_ping_ms:
            return ConnectionLost(f"no sign of life for {quiet_ms:.0f} ms")
        return None

    def wants_ping(self, now_ms: float) -> bool:
        """Return whether it is time to ask for a sign of life; once per silence."""
        if self._pinged_at_ms is not None or now_ms - self._quiet_since_ms < self._config.idle_ping_ms:
            return False
        self._pinged_at_ms = now_ms
        return True
