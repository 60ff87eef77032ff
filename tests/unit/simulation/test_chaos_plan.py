"""The plan of a run follows from its seed, and the rule of tolerance keeps a second disk from being damaged."""

from __future__ import annotations

import asyncio

import pytest

from clymq.simulation.chaos.plan import KINDS, WHO, Options, draw, names, shown
from clymq.simulation.chaos.tolerance import Tolerance


def test_the_same_seed_gives_the_same_plan_and_another_seed_another() -> None:
    options = Options(seed=7, minutes=10)
    assert draw(options) == draw(options)
    assert draw(options) != draw(Options(seed=8, minutes=10))
    assert draw(options) != draw(Options(seed=7, minutes=10, mode="fetch"))


def test_a_longer_plan_begins_as_a_shorter_one_does() -> None:
    short, long = draw(Options(seed=1, minutes=1)), draw(Options(seed=1, minutes=5))
    assert long[: len(short)] == short


def test_a_quarter_of_the_turns_draw_nothing_and_every_kind_is_drawn_sooner_or_later() -> None:
    turns = draw(Options(seed=3, minutes=600, store="zookeeper", mode="mixed"))
    nothing = sum(not turn.faults for turn in turns) / len(turns)
    assert 0.22 < nothing < 0.28
    assert {fault.kind for turn in turns for fault in turn.faults} == set(KINDS)
    assert 550 * 60 < sum(turn.seconds + turn.calm_seconds for turn in turns) < 650 * 60


def test_what_is_not_possible_is_not_drawn() -> None:
    drawn = {fault.kind for turn in draw(Options(seed=3, minutes=200)) for fault in turn.faults}
    assert not drawn & {"kill zookeeper", "freeze zookeeper", "switch mode"}
    only = {fault.kind for turn in draw(Options(seed=3, minutes=50, faults=("kill",))) for fault in turn.faults}
    assert only == {"kill"}


def test_a_fault_can_be_asked_for_with_whom_it_strikes_and_a_run_can_be_in_peace() -> None:
    options = Options(seed=3, minutes=50, faults=("kill leader", "power cut all", "ring"))
    assert {fault.name for turn in draw(options) for fault in turn.faults} == {"kill leader", "power cut all", "ring"}
    assert set(options.faults) <= set(names())
    assert not any(turn.faults for turn in draw(Options(seed=3, minutes=50, faults=())))


def test_every_process_fault_strikes_one_a_minority_a_majority_all_and_leaders() -> None:
    faults = [fault for turn in draw(Options(seed=3, minutes=600, store="zookeeper")) for fault in turn.faults]
    for kind in ("kill", "power cut", "freeze", "stop"):
        assert {fault.who for fault in faults if fault.kind == kind} >= set(WHO)
    assert {fault.who for fault in faults if fault.kind == "expire session"} == {"one", "leader", "zkserver"}
    assert {fault.who for fault in faults if fault.kind == "kill zookeeper"} == {"one", "majority", "all"}


def test_two_cuts_of_the_network_are_never_drawn_together() -> None:
    network = {"isolate", "one way", "ring", "loss", "expire session"}
    for turn in draw(Options(seed=5, minutes=600)):
        assert len(network & {fault.kind for fault in turn.faults}) <= 1


def test_faults_of_a_turn_begin_with_processes_and_end_with_what_they_need_to_start() -> None:
    for turn in draw(Options(seed=5, minutes=600, store="zookeeper", mode="mixed")):
        order = [KINDS.index(fault.kind) for fault in turn.faults]
        assert order == sorted(order)


def test_a_plan_can_be_read() -> None:
    lines = list(shown(draw(Options(seed=1, minutes=5, faults=("kill", "ring")))))
    assert any(line.startswith("kill ") for line in lines)
    assert any(line.startswith("nothing") for line in lines)


def test_a_second_disk_is_damaged_only_after_the_first_is_whole_again() -> None:
    whole = True

    async def all_whole() -> bool:
        return whole

    async def check() -> None:
        nonlocal whole
        tolerance = Tolerance(all_whole)
        assert await tolerance.may_damage()
        tolerance.note("Broker0")
        whole = False
        assert not await tolerance.may_damage()
        assert tolerance.damaged == "Broker0"
        with pytest.raises(AssertionError):
            tolerance.note("Broker1")
        whole = True
        assert await tolerance.may_damage()
        tolerance.note("Broker1")

    asyncio.run(check())
