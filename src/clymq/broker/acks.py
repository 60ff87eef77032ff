"""Acks on their way into the log: what consumers of a group ack in one turn of the event loop is one entry.

An entry is a batch, a sync and a message to each follower, whatever it finishes; a hundred consumers that ack message
by message would make a hundred of them. Each request is answered for its own part.

Until the entry is written, what is named is neither leased nor in the log. Whoever writes the leases down for the next
leader has to refuse what waits here BEFORE: then it is leased as it was, and the consumer acks it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clymq.broker.active_block import ActiveBlock
from clymq.broker.subscriptions.leases import GroupLeases, Taken
from clymq.broker.subscriptions.spans import Span, Spans
from clymq.clock import Clock
from clymq.errors import ClymqError, UnknownLease
from clymq.protocol.verbs import Done
from clymq.replication import entries
from clymq.replication.cursors import Refused
from clymq.rpc.peer import Call

# One entry names about so many ranges at most; what is more goes into the next.
RANGES_MAX: Final = 25_000


@dataclass(frozen=True, slots=True)
class _Acked:
    """What one request has taken out of its leases."""

    call: Call
    group: GroupLeases
    taken: Taken


class Acks:
    """Those of one partition. `changed` hears of a group that may be served again."""

    def __init__(self, block: ActiveBlock, clock: Clock, changed: Callable[[str], None]) -> None:
        self._block = block
        self._clock = clock
        self._changed = changed
        self._waiting: dict[str, list[_Acked]] = {}
        self._ranges = 0

    def add(self, name: str, group: GroupLeases, taken: Taken, call: Call) -> None:
        """Write what a request has taken, with all else of its group that comes in this turn; then answer it."""
        if not self._waiting:
            self._clock.call_later(0, self._write_all)
        self._waiting.setdefault(name, []).append(_Acked(call, group, taken))
        self._ranges += len(taken.pieces) + len(taken.again)
        if self._ranges >= RANGES_MAX:
            self._write_all()

    def refuse(self, error: ClymqError, name: str | None = None) -> None:
        """Take back what is not written yet, of one group or of all: it is leased as before."""
        for each in list(self._waiting) if name is None else {name} & self._waiting.keys():
            self._settle(each, self._waiting.pop(each), error)

    def _write_all(self) -> None:
        waiting, self._waiting, self._ranges = self._waiting, {}, 0
        for name, acked in waiting.items():
            self._write(name, acked)

    def _write(self, name: str, acked: list[_Acked]) -> None:
        spans = Spans(span for each in acked for span in each.taken.spans)
        ranges = tuple(entries.Range(span.start, span.end) for span in spans)
        try:
            self._block.write(
                entries.Ack(group=name, ranges=ranges), lambda outcome: self._settle(name, acked, outcome)
            )
        except ClymqError as error:
            self._settle(name, acked, error)

    def _settle(self, name: str, acked: list[_Acked], outcome: object) -> None:
        for each in acked:
            _settle(each, outcome)
        self._changed(name)


def _settle(acked: _Acked, outcome: object) -> None:
    """Answer one request for its part of what was written, or was not."""
    group, taken = acked.group, acked.taken
    if isinstance(outcome, ClymqError):
        group.not_acked(taken)
        answer(acked.call, taken, outcome)
        return
    refused = [Span(each.start, each.end) for each in outcome.ranges] if isinstance(outcome, Refused) else []
    mine = Spans(refused)
    is_refused = any(mine.within(*span) for span in taken.spans)
    if is_refused:
        group.not_acked(taken, refused)
    else:
        group.acked(taken)
    answer(acked.call, taken, outcome if is_refused else None)


def answer(call: Call, taken: Taken, outcome: object = None) -> None:
    """Answer a request that named leases; what some of them were unknown for comes last."""
    if isinstance(outcome, Refused):
        call.fail(outcome.error)
    elif isinstance(outcome, ClymqError):
        call.fail(outcome)
    elif taken.unknown:
        numbers = sorted(taken.unknown)
        call.fail(UnknownLease(f"leases {numbers} have ended, or never were this consumer's", leases=numbers))
    else:
        call.reply(Done())
