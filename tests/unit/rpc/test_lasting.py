"""A loop that must not end begins anew after an error that it has no name for; one that keeps failing says so."""

from __future__ import annotations

import asyncio
import logging

import pytest

from clymq.clock import ManualClock
from clymq.errors import ClymqError, UnknownServerError
from clymq.rpc.lasting import CALM_MS, FAILURES_MAX, lasting, log_if_failed


class Loop:
    """Work that fails so often, and then waits to be told to end."""

    def __init__(self, failures: int, clock: ManualClock, lasts_ms: float = 0) -> None:
        self.failures = failures
        self.clock = clock
        self.lasts_ms = lasts_ms
        self.begun = 0
        self.end = asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        self.clock.advance(self.lasts_ms)
        if self.begun <= self.failures:
            raise ZeroDivisionError("a state that cannot be")
        await self.end.wait()


async def kept(loop: Loop) -> tuple[asyncio.Task[None], list[ClymqError]]:
    """Run a loop for a minute of its clock."""
    failed: list[ClymqError] = []
    task = asyncio.create_task(lasting("the loop", loop.run, loop.clock, failed.append))
    for _ in range(600):
        loop.clock.advance(100)
        await asyncio.sleep(0)
    return task, failed


def test_a_loop_that_meets_an_error_without_a_name_begins_anew() -> None:
    async def test() -> None:
        loop = Loop(FAILURES_MAX - 1, ManualClock())
        task, failed = await kept(loop)
        assert (loop.begun, failed) == (FAILURES_MAX, [])
        loop.end.set()
        await task

    asyncio.run(test())


def test_a_loop_that_keeps_failing_says_why_and_is_over() -> None:
    async def test() -> None:
        loop = Loop(1_000, ManualClock())
        task, failed = await kept(loop)
        assert task.done()
        assert loop.begun == FAILURES_MAX
        assert [type(error) for error in failed] == [UnknownServerError]
        assert "the loop keeps failing: ZeroDivisionError: a state that cannot be" in str(failed[0])

    asyncio.run(test())


def test_a_loop_that_fails_now_and_then_is_never_given_up() -> None:
    async def test() -> None:
        loop = Loop(20, ManualClock(), lasts_ms=CALM_MS)
        task, failed = await kept(loop)
        assert (loop.begun, failed) == (21, [])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(test())


def test_the_error_of_a_task_that_nobody_waits_for_is_logged_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("a state that cannot be")

    async def test() -> None:
        task = asyncio.create_task(fail())
        task.add_done_callback(log_if_failed)
        await asyncio.wait({task})
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(test())
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
