"""Sessions run out when they should, and never because the store itself was not there."""

from __future__ import annotations

from clymq.metadata.lifetimes import Lifetimes

STALL_MS = 1000


def looked_at(lifetimes: Lifetimes, start_ms: int, end_ms: int, step_ms: int = 250) -> list[tuple[int, int]]:
    """Look at the clock at each step and return (when, which) of what is overdue, each ended when seen."""
    found = []
    for now_ms in range(start_ms, end_ms + 1, step_ms):
        for session in lifetimes.overdue(now_ms):
            lifetimes.end(session)
            found.append((now_ms, session))
    return found


def test_a_session_that_is_silent_for_its_timeout_is_overdue_and_others_are_not() -> None:
    lifetimes = Lifetimes(0, STALL_MS, STALL_MS)
    lifetimes.begin(1, 2000, 0)
    lifetimes.begin(2, 5000, 0)
    assert looked_at(lifetimes, 0, 4750) == [(2000, 1)]
    assert lifetimes.touch(2, 4800)
    assert looked_at(lifetimes, 5000, 9750) == []
    assert looked_at(lifetimes, 10_000, 10_000) == [(10_000, 2)]


def test_a_session_that_has_ended_cannot_be_touched_into_life() -> None:
    lifetimes = Lifetimes(0, STALL_MS, STALL_MS)
    lifetimes.begin(1, 2000, 0)
    assert lifetimes.end(1) == 2000
    assert lifetimes.end(1) == 0
    assert not lifetimes.touch(1, 10)
    assert len(lifetimes) == 0


def test_after_a_stall_everybody_has_a_full_timeout() -> None:
    lifetimes = Lifetimes(0, STALL_MS, STALL_MS)
    lifetimes.begin(1, 2000, 0)
    lifetimes.begin(2, 3000, 0)
    assert looked_at(lifetimes, 0, 1750) == []
    # Stopped for ten seconds.
    assert looked_at(lifetimes, 11_750, 13_500) == []
    assert looked_at(lifetimes, 13_750, 14_750) == [(13_750, 1), (14_750, 2)]


def test_a_look_that_is_a_little_late_is_no_stall() -> None:
    lifetimes = Lifetimes(0, STALL_MS, STALL_MS)
    lifetimes.begin(1, 2000, 0)
    assert looked_at(lifetimes, 0, 4000, step_ms=STALL_MS) == [(2000, 1)]
