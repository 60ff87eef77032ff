"""What an active block is to its broker, however it is replicated; and readers that wait at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import ClosedError, ClymqError, CorruptBatch, CorruptBlock, OffsetOutOfRange
from clymq.protocol.broker import Pull, Pulled
from clymq.protocol.hosting import BlockClosed, CloseAccept
from clymq.replication.entries import Entry, Reset
from clymq.replication.machine import Elected, PartitionMachine
from clymq.rpc.peer import Call
from clymq.storage.block import Block

Closed = Callable[[BlockClosed | ClymqError], None]
Answer = Callable[[object], None]


class Listener:
    """Whoever shares an active block's messages out, as far as this broker leads it. This one does not care."""

    def leads(self, elected: Elected) -> None:
        """This broker leads the block; the leases are those that the leader before handed over."""

    def advanced(self) -> None:
        """Readers may see more, or the block has ended."""

    def lost(self, error: ClymqError) -> None:
        """Nothing more will come here: it leads no more, or the block is not here any more."""

    def leases(self) -> Sequence[bytes]:
        """Return what is leased now, for the next leader."""
        return ()

    def resets(self, group: str) -> None:
        """The cursor of a group is about to be set to another place: an entry that says so is written."""

    def was_reset(self, group: str) -> None:
        """That entry is in the log, or never will be."""


class ActiveBlock(Protocol):
    """A partition's last block on this broker, leader or not. Refusals are raised, all else is answered."""

    number: int
    start: int
    machine: PartitionMachine
    listener: Listener

    @property
    def end(self) -> int:
        """One past the last message that readers may see."""
        ...

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this broker knows."""
        ...

    @property
    def file(self) -> Block:
        """The log on this broker's disk; to look at."""
        ...

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """Deal with damage that was met in the log, as if a reader had met it."""

    def push(self, call: Call, config: Config) -> None:
        """Store the batch in the payload."""

    def init_producer(self, call: Call) -> None:
        """Give a producer its next epoch."""

    def pull(self, call: Call) -> None:
        """Answer a reader with what is there from an offset on, or let it wait."""

    def pull_by_position(self, call: Call) -> None:
        """Give another replica bytes of the block."""

    def write(self, entry: Entry, answer: Callable[[object], None]) -> None:
        """Put a control entry into the log."""

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole batches that readers may see, from an offset in the block on."""
        ...

    def check_reading(self) -> None:
        """Raise unless the end of what readers may see is known here."""

    def check_sharing(self) -> None:
        """Raise unless messages may be leased here: by the leader, as long as the block has not begun to end."""

    def close_accept(self, request: CloseAccept, answer: Closed) -> None:
        """End the block, or fence this replica of it; a second call is answered like the first."""


def write_for(listener: Listener, write: Callable[[Entry, Answer], None], entry: Entry, answer: Answer) -> None:
    """Write an entry, and tell the listener of a `Reset`: leases of before must not finish anything behind it."""
    if not isinstance(entry, Reset):
        write(entry, answer)
        return
    group = entry.group

    def answered(outcome: object) -> None:
        listener.was_reset(group)
        answer(outcome)

    listener.resets(group)
    try:
        write(entry, answered)
    except ClymqError:
        listener.was_reset(group)
        raise


def roll_due(block: Block, config: Config, now_us: int, early: float) -> str | None:
    """Say why a block should be followed by the next (size, age), or None.

    `early`: a part of a tenth, by which this one is early; blocks of one age would all roll at once.
    """
    if block.end_position >= config.block_bytes_max:
        return "size"
    began = block.first_append_time
    if began is None or config.block_age_ms_max < 0:
        return None
    return "age" if now_us - began >= config.block_age_ms_max * 1000 * (1 - early / 10) else None


class Readers:
    """Pulls that have come to the end of a block and wait: for more, for their time, or for the block's end."""

    def __init__(self, clock: Clock, block: ActiveBlock, read: Callable[[int, int], memoryview]) -> None:
        self._clock = clock
        self._block = block
        self._read = read
        self._waiting: dict[Call, Timer] = {}

    def pull(self, call: Call) -> None:
        """Answer now if there is something to say, else wait."""
        request: Pull = call.request
        block = self._block
        if not block.start <= request.offset <= block.end:
            raise OffsetOutOfRange(request.offset, first=block.start, end=block.end)
        if request.offset < block.end or not request.wait_ms_max or block.machine.sealed:
            self._answer(call)
            return
        self._waiting[call] = self._clock.call_later(request.wait_ms_max, lambda: self._finish(call))
        call.on_cancel(lambda: self._give_up(call))

    def look(self) -> None:
        """More may be visible, or the block has ended."""
        end, sealed = self._block.end, self._block.machine.sealed
        for call in [call for call in self._waiting if sealed or call.request.offset < end]:
            self._finish(call)

    def fail(self, error: ClymqError) -> None:
        """Nothing more will come here: whoever waits asks elsewhere."""
        for call in list(self._waiting):
            self._forget(call)
            call.fail(error)

    def _give_up(self, call: Call) -> None:
        """Nobody waits any more. The call is ended all the same: what was cancelled and runs on is counted."""
        self._forget(call)
        call.fail(ClosedError("nobody waits for it any more"))

    def _forget(self, call: Call) -> None:
        timer = self._waiting.pop(call, None)
        if timer is not None:
            timer.cancel()

    def _finish(self, call: Call) -> None:
        self._forget(call)
        try:
            self._answer(call)
        except ClymqError as error:
            call.fail(error)

    def _answer(self, call: Call) -> None:
        request: Pull = call.request
        block, end = self._block, self._block.end
        data = self._read(request.offset, request.bytes_max) if request.offset < end else memoryview(b"")
        following = block.number + 1 if block.machine.sealed and request.offset >= end else 0
        reply = Pulled(high_watermark=end, log_start=block.start, block=block.number, next_block=following)
        call.reply(reply, [data] if data else ())
