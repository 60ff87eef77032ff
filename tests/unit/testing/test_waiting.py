"""Waiting ends when it is true, or in time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from clymq.testing.waiting import WaitedTooLong, until, until_asked, wait_until


def test_waiting_ends_as_soon_as_it_is_true() -> None:
    looks = itertools.count()
    assert wait_until(lambda: next(looks) == 2, "the third look", seconds_max=60) < 60
    assert next(looks) == 3


def test_what_is_true_already_is_not_waited_for_even_without_time() -> None:
    wait_until(lambda: True, "nothing", seconds_max=0)


def test_waiting_in_vain_names_what_did_not_happen() -> None:
    with pytest.raises(WaitedTooLong, match="the end of the world: not within 0 s"):
        wait_until(lambda: False, "the end of the world", seconds_max=0)


def test_waiting_on_an_event_loop_lets_others_run() -> None:
    async def run() -> None:
        asyncio.get_running_loop().call_soon(happened.append, True)
        await until(lambda: bool(happened), "somebody else runs", seconds_max=60)

        async def ask() -> bool:
            return len(happened) == 1

        await until_asked(ask, "an answer", seconds_max=60)
        with pytest.raises(WaitedTooLong):
            await until(lambda: False, "never", seconds_max=0)

    happened: list[bool] = []
    asyncio.run(run())
