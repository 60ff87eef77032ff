"""Readers at the end of an active block: they wait for more, for their time, or for the block's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clymq.broker.active_block import Readers, roll_due
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClosedError, ClymqError, NotLeader, OffsetOutOfRange
from clymq.protocol.broker import Pull, Pulled


class FakeMachine:
    sealed = False


class FakeBlock:
    """A block with messages [10, end), of one byte each."""

    number = 3
    start = 10

    def __init__(self) -> None:
        self.end = 12
        self.machine = FakeMachine()

    def read(self, offset: int, bytes_max: int) -> memoryview:
        return memoryview(b"x" * min(self.end - offset, bytes_max))


class FakeCall:
    """Remembers its answer."""

    def __init__(self, offset: int, wait_ms: int = 1000) -> None:
        self.request = Pull("t", "0", "u", offset=offset, bytes_max=100, wait_ms_max=wait_ms)
        self.answer: tuple[Pulled, bytes] | ClymqError | None = None
        self.cancel: Callable[[], object] = lambda: None

    def reply(self, reply: Pulled, payload: Any = ()) -> None:
        self.answer = (reply, b"".join(payload))

    def fail(self, error: ClymqError) -> None:
        self.answer = error

    def on_cancel(self, callback: Callable[[], object]) -> None:
        self.cancel = callback


class Place:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.block = FakeBlock()
        self.readers = Readers(self.clock, self.block, self.block.read)  # type: ignore[arg-type]

    def pull(self, offset: int, wait_ms: int = 1000) -> FakeCall:
        call = FakeCall(offset, wait_ms)
        self.readers.pull(call)  # type: ignore[arg-type]
        return call


def answered(call: FakeCall) -> tuple[Pulled, bytes]:
    assert isinstance(call.answer, tuple), call.answer
    return call.answer


def test_what_is_there_is_answered_at_once() -> None:
    reply, data = answered(Place().pull(10))
    assert (reply.high_watermark, reply.log_start, reply.next_block, data) == (12, 10, 0, b"xx")


@pytest.mark.parametrize("offset", [9, 13])
def test_an_offset_outside_is_refused_with_what_there_is(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange) as refused:
        Place().pull(offset)
    assert (refused.value.first, refused.value.end) == (10, 12)


def test_at_the_end_a_pull_waits_until_there_is_more() -> None:
    place = Place()
    call = place.pull(12)
    place.readers.look()
    assert call.answer is None
    place.block.end = 13
    place.readers.look()
    assert answered(call)[1] == b"x"


def test_at_the_end_a_pull_is_answered_empty_when_its_time_is_over_and_no_earlier() -> None:
    place = Place()
    call, impatient = place.pull(12), place.pull(12, wait_ms=0)
    assert answered(impatient)[1] == b""
    place.clock.advance(999)
    assert call.answer is None
    place.clock.advance(2)
    assert answered(call)[1] == b""


def test_the_end_of_the_block_is_told_with_the_number_of_the_next() -> None:
    place = Place()
    call = place.pull(12)
    place.block.machine.sealed = True
    place.readers.look()
    assert answered(call)[0].next_block == 4
    assert answered(place.pull(11))[0].next_block == 0, "there is something to read first"


def test_who_waits_when_leadership_is_lost_is_told_and_who_went_is_forgotten() -> None:
    place = Place()
    waiting, gone = place.pull(12), place.pull(12)
    gone.cancel()
    place.readers.fail(NotLeader("no more"))
    assert isinstance(waiting.answer, NotLeader)
    place.clock.advance(5000)
    assert isinstance(gone.answer, ClosedError), "a cancelled call is ended once: what runs on is counted"


class FakeLog:
    def __init__(self, end_position: int, first_append_time: int | None) -> None:
        self.end_position = end_position
        self.first_append_time = first_append_time


@pytest.mark.parametrize(
    ("size", "age_ms", "early", "reason"),
    [
        (99_999, 10, 0.0, None),
        (100_000, 10, 0.0, "size"),
        (10, 999, 0.0, None),
        (10, 1000, 0.0, "age"),
        (10, 951, 0.5, "age"),
        (10, None, 0.0, None),
    ],
)
def test_a_block_is_due_by_size_or_by_age_some_a_little_earlier(
    size: int, age_ms: int | None, early: float, reason: str | None
) -> None:
    config = Config(block_bytes_max=100_000, block_age_ms_max=1000)
    now_us = 5_000_000
    log = FakeLog(size, None if age_ms is None else now_us - 1000 * age_ms)
    assert roll_due(log, config, now_us, early) == reason  # type: ignore[arg-type]
