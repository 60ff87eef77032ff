"""Waiting on whatever clock it is."""

from __future__ import annotations

import asyncio

import pytest

from clymq.client.waiting import Bell, next_turn
from clymq.clock import ManualClock, SystemClock


async def turns_until_done(task: asyncio.Task[None]) -> int:
    turns = 0
    while not task.done():
        await next_turn()
        turns += 1
    return turns


def test_a_bell_wakes_all_who_wait_in_the_very_next_turn() -> None:
    """Each turn more is a look at all sockets, and a message that somebody waits for comes later by that."""

    async def main() -> None:
        bell = Bell(ManualClock())
        waiting = [asyncio.create_task(bell.wait(1000)) for _ in range(3)]
        await next_turn()
        bell.ring()
        bell.ring()
        assert await turns_until_done(waiting[0]) == 1
        assert all(task.done() for task in waiting)

    asyncio.run(main())


def test_a_bell_that_does_not_ring_is_waited_for_until_the_time_is_over() -> None:
    async def main() -> None:
        clock = ManualClock()
        bell = Bell(clock)
        waiting = asyncio.create_task(bell.wait(1000))
        await next_turn()
        clock.advance(999)
        await next_turn()
        assert not waiting.done()
        clock.advance(1)
        assert await turns_until_done(waiting) == 1
        bell.ring()

    asyncio.run(main())


def test_who_gives_up_waiting_for_a_bell_is_forgotten() -> None:
    async def main() -> None:
        bell = Bell(SystemClock())
        waiting = asyncio.create_task(bell.wait(60_000))
        await next_turn()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not bell._waiting
        bell.ring()

    asyncio.run(main())
