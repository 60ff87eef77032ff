"""Who we are to others: a name, a role, the settings, and the handlers of what we serve.

One endpoint serves all connections of a process, those that it accepted and those that it made: either side of any of
them may ask. It also looks after them: one timer for all, so that ten thousand idle connections cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.protocol.handshake import Hello, Window
from clymq.protocol.receive_buffer import LargeChunks

LOOK_MS_MIN: Final = 10.0
LOOK_MS_MAX: Final = 1000.0


class LookedAfter(Protocol):
    """A connection, as far as time matters to it."""

    def look(self, now_ms: float) -> None:
        """Notice what should have happened by now."""
        ...


class Endpoint:
    """See the module; `handlers` are by the type of the message."""

    def __init__(
        self,
        clock: Clock,
        config: Config,
        *,
        name: str,
        role: str,
        incarnation: int = 0,
        features: tuple[str, ...] = (),
        handlers: Mapping[type, Callable[[Any], None]] | None = None,
    ) -> None:
        self.clock = clock
        self.config = config
        self.name = name
        self.on_settled: Callable[[], None] | None = None
        """Called when all frames that arrived together were handled: what they began may now be done in one go."""
        self.handlers: dict[type, Callable[[Any], None]] = dict(handlers or {})
        self.hello = Hello(
            name=name,
            role=role,
            window=Window(
                requests=config.window_requests,
                bytes=config.window_bytes,
                partition_requests=config.partition_window_requests,
                partition_bytes=config.partition_window_bytes,
            ),
            frame_bytes_max=config.frame_bytes_max,
            incarnation=incarnation,
            features=features,
        )
        self.large_chunks = LargeChunks()
        """For the large frames of all connections."""
        self._connections: dict[LookedAfter, None] = {}
        self._timer: Timer | None = None
        soonest_ms = min(config.handshake_ms_max, config.frame_ms_max, config.idle_ping_ms)
        self._look_ms = min(LOOK_MS_MAX, max(LOOK_MS_MIN, soonest_ms / 4))

    def look_after(self, connection: LookedAfter) -> None:
        """Call `look` now and then, until `forget`."""
        self._connections[connection] = None
        if self._timer is None:
            self._timer = self.clock.call_later(self._look_ms, self._look)

    def forget(self, connection: LookedAfter) -> None:
        """Stop looking after a connection."""
        self._connections.pop(connection, None)
        if not self._connections and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.large_chunks.clear()

    def _look(self) -> None:
        self._timer = self.clock.call_later(self._look_ms, self._look)
        now = self.clock.monotonic_ms()
        for connection in tuple(self._connections):
            connection.look(now)
        self.large_chunks.rest()
