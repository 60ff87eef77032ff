"""Virtual time, and processes on it that stand still and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from clymq.simulation.checkers import Violation
from clymq.simulation.cluster.loop import Life, LifeClock, VirtualLoop


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


def run_for(loop: VirtualLoop, seconds: float) -> None:
    loop.run_until_complete(loop.create_task(asyncio.sleep(seconds)))


def note(said: list[str], text: str) -> Callable[[], None]:
    return lambda: said.append(text)


async def count(loop: VirtualLoop, said: list[str], name: str) -> None:
    while True:
        said.append(f"{name} at {loop.time():g}")
        await asyncio.sleep(1)


def test_an_hour_passes_at_once_and_timers_of_one_time_run_in_their_order(loop: VirtualLoop) -> None:
    said: list[str] = []
    for name in ("one", "two", "three"):
        loop.call_later(3600, note(said, name))
    run_for(loop, 3601)
    assert said == ["one", "two", "three"]
    assert loop.time() == 3601
    assert loop.turns < 20
    loop.close()


def test_a_world_in_which_nothing_can_happen_any_more_is_a_violation(loop: VirtualLoop) -> None:
    with pytest.raises(Violation, match="nothing will ever happen"):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_failure_that_somebody_has_noted_ends_the_loop_at_once(loop: VirtualLoop) -> None:
    def fail() -> None:
        loop.failure = Violation("broken")

    loop.call_later(1, fail)
    with pytest.raises(Violation, match="broken"):
        run_for(loop, 2)
    assert loop.time() == 1
    loop.failure = None
    run_for(loop, 2)
    loop.close()


def test_a_paused_life_stands_still_and_finds_all_that_was_due_when_it_goes_on(loop: VirtualLoop) -> None:
    said: list[str] = []
    life = Life(loop, "a")
    clock = LifeClock(loop)
    life.spawn(count(loop, said, "a"))
    life.context.run(clock.call_later, 2000, note(said, "a's timer"))
    run_for(loop, 0.5)
    life.pause()
    run_for(loop, 5)
    assert said == ["a at 0"]
    life.resume()
    run_for(loop, 0.1)
    assert said == ["a at 0", "a's timer", "a at 5.5"]
    life.kill()
    run_for(loop, 0.1)
    loop.close()


def test_a_killed_life_never_does_anything_again_and_others_go_on(loop: VirtualLoop) -> None:
    said: list[str] = []
    one, other = Life(loop, "one"), Life(loop, "other")
    one.spawn(count(loop, said, "one"))
    other.spawn(count(loop, said, "other"))
    one.context.run(LifeClock(loop).call_later, 1500, note(said, "one's timer"))
    run_for(loop, 0.5)
    one.kill()
    run_for(loop, 2)
    assert said == ["one at 0", "other at 0", "other at 1", "other at 2"]
    assert one.dead
    assert not other.dead
    other.kill()
    run_for(loop, 0.1)
    loop.close()


def test_what_a_life_begins_belongs_to_it_however_deep(loop: VirtualLoop) -> None:
    said: list[str] = []

    async def parent() -> None:
        task = asyncio.create_task(count(loop, said, "child"))
        await task

    life = Life(loop, "a")
    life.spawn(parent())
    run_for(loop, 1.5)
    life.kill()
    run_for(loop, 5)
    assert said == ["child at 0", "child at 1"]
    loop.close()


def test_a_killed_life_that_was_paused_is_as_dead_as_any(loop: VirtualLoop) -> None:
    said: list[str] = []
    life = Life(loop, "a")
    life.spawn(count(loop, said, "a"))
    run_for(loop, 0.5)
    life.pause()
    run_for(loop, 3)
    life.kill()
    run_for(loop, 3)
    assert said == ["a at 0"]
    assert life.dead
    loop.close()
