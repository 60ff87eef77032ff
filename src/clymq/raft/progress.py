"""What a leader knows of one follower, and how fast it feeds it.

PROBE: it is not known where the two logs part. One append at a time, and the next only when it was answered or has
taken too long. REPLICATE: they are known to agree; appends go out one after the other, without waiting, up to a window
of messages and bytes. A rejection, or an answer that does not come, leads back to PROBE.

A follower is a process, not a name. When another incarnation answers, nothing that was known of the old one holds: its
`match` is 0 again, and answers to appends from before that moment count for nothing.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final

from clymq.raft.messages import Entry

# How many times the least time is waited at most for a follower that is slow to answer.
PATIENCE: Final = 8


class Mode(enum.Enum):
    """How a follower is fed."""

    PROBE = "probe"
    REPLICATE = "replicate"


class Progress:
    """One follower, seen from the leader."""

    def __init__(self, *, next_index: int, now: float) -> None:
        self.mode = Mode.PROBE
        self.match = 0
        self.next_index = next_index
        self.told_commit = 0
        self.asleep = False
        # What the last heartbeat said: how much is committed, and whether this is the time to sleep.
        self.beat: tuple[int, bool] | None = None
        self.beat_at = 0.0
        self.incarnation = 0
        self.heard_at = now
        self.sequence = 0
        self._counts_from = 0
        # How long the last answer took: a follower that is busy must not be sent all of it again.
        self._answer_ms = 0.0
        # (last index, bytes, sent at) of each append that was not answered.
        self._in_flight: deque[tuple[int, int, float]] = deque()
        self._in_flight_bytes = 0

    def meet(self, incarnation: int) -> None:
        """Hear from a process; if it is another than before, forget what that one had."""
        if not self.incarnation:
            self.incarnation = incarnation  # the first: whatever it answers, this leader asked
        elif incarnation != self.incarnation:
            self.incarnation = incarnation
            self.match = self.told_commit = 0
            self.asleep = False
            self.beat = None
            self.probe(self.next_index)

    def believes(self, sequence: int) -> bool:
        """Whether an answer answers something that was sent since the last look: to this process, in this mode."""
        return sequence >= self._counts_from

    def may_send(self, messages_max: int, bytes_max: int) -> bool:
        """Whether another append may go out now."""
        if self.mode is Mode.PROBE:
            return not self._in_flight
        return len(self._in_flight) < messages_max and self._in_flight_bytes < bytes_max

    def sent(self, entries: Sequence[Entry], now: float) -> None:
        """Note an append on its way; the next one will follow it without waiting."""
        size = entries[-1].position + entries[-1].length - entries[0].position if entries else 0
        self.next_index += len(entries)
        self._in_flight.append((self.next_index - 1, size, now))
        self._in_flight_bytes += size

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._in_flight

    def overdue(self, now: float, retry_ms: float) -> bool:
        """Whether the oldest append under way should have been answered by now.

        `retry_ms` is the least time for that. Where answers take longer, it is twice what the last one took, up to
        `PATIENCE` times the least.
        """
        patience_ms = min(max(retry_ms, 2 * self._answer_ms), PATIENCE * retry_ms)
        return bool(self._in_flight) and now - self._in_flight[0][2] >= patience_ms

    def matched(self, match: int, now: float) -> bool:
        """Take an acknowledgement; return whether it says anything new."""
        while self._in_flight and self._in_flight[0][0] <= match:
            _, size, sent_at = self._in_flight.popleft()
            self._in_flight_bytes -= size
            self._answer_ms = now - sent_at
        advanced, self.match = match > self.match, max(self.match, match)
        return advanced

    def replicate(self, next_index: int) -> None:
        """The logs agree up to the entry before: feed without waiting."""
        self.mode = Mode.REPLICATE
        self.next_index = next_index
        self._clear_flight()

    def probe(self, next_index: int) -> None:
        """Look where the logs part; only answers to what is sent from now on count."""
        self.mode = Mode.PROBE
        self.next_index = next_index
        self._counts_from = self.sequence + 1
        self._clear_flight()

    def _clear_flight(self) -> None:
        self._in_flight.clear()
        self._in_flight_bytes = 0
