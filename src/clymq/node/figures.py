"""How busy a broker's process is: running totals from outside, turned into rates between two reports.

The totals are handed in (the command reads them from the operating system), so that this knows no machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clymq.clock import Clock


class Totals(NamedTuple):
    """What a process has used since it began."""

    cpu_seconds: float = 0.0
    disk_bytes: int = 0
    """Read from disks and written to them."""


class Rates(NamedTuple):
    """What it used between two looks: cores, and bytes of disk traffic per second."""

    cpu: float = 0.0
    disk_io: float = 0.0


class Gauge:
    """Looks at the totals now and then."""

    def __init__(self, clock: Clock, totals: Callable[[], Totals]) -> None:
        self._clock = clock
        self._totals = totals
        self._looked_at_ms = clock.monotonic_ms()
        self._last = totals()

    def look(self) -> Rates:
        """Return the rates since the last look."""
        now_ms, now = self._clock.monotonic_ms(), self._totals()
        seconds = (now_ms - self._looked_at_ms) / 1000
        last, self._last, self._looked_at_ms = self._last, now, now_ms
        if seconds <= 0:
            return Rates()
        return Rates(
            cpu=max(0.0, now.cpu_seconds - last.cpu_seconds) / seconds,
            disk_io=max(0, now.disk_bytes - last.disk_bytes) / seconds,
        )
