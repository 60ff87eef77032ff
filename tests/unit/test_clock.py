"""The manual clock runs timers at their own time; the system clock is the machine's."""

from __future__ import annotations

import asyncio

from clymq.clock import ManualClock, SystemClock


def test_timers_run_in_order_of_time_then_of_making() -> None:
    clock, ran = ManualClock(), []
    clock.call_later(20, lambda: ran.append(("c", clock.monotonic_ms())))
    clock.call_later(10, lambda: ran.append(("a", clock.monotonic_ms())))
    clock.call_later(10, lambda: ran.append(("b", clock.monotonic_ms())))
    clock.advance(9)
    assert ran == []
    clock.advance(11)
    assert ran == [("a", 10), ("b", 10), ("c", 20)]


def test_a_timer_may_start_another_that_is_due_in_the_same_advance() -> None:
    clock, ran = ManualClock(), []
    clock.call_later(5, lambda: clock.call_later(5, lambda: ran.append(clock.monotonic_ms())))
    clock.advance(10)
    assert ran == [10]


def test_a_cancelled_timer_does_not_run() -> None:
    clock, ran = ManualClock(), []
    timer = clock.call_later(5, lambda: ran.append(1))
    timer.cancel()
    clock.advance(10)
    assert ran == []


def test_wall_time_moves_with_the_clock_and_may_jump_alone() -> None:
    clock = ManualClock(wall_us=1000)
    clock.advance(2)
    assert clock.wall_us() == 3000
    clock.jump_wall(-5000)
    assert (clock.wall_us(), clock.monotonic_ms()) == (-2000, 2)


def test_the_system_clock_calls_back_on_the_event_loop_and_never_early() -> None:
    async def wait() -> float:
        clock, done = SystemClock(), asyncio.Event()
        began = clock.monotonic_ms()
        clock.call_later(20, done.set)
        clock.call_later(1, done.clear).cancel()
        await asyncio.wait_for(done.wait(), 5)
        assert clock.wall_us() > 1_700_000_000_000_000
        return clock.monotonic_ms() - began

    assert asyncio.run(wait()) >= 19
