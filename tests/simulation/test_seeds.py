"""Whole replicas by seed: nothing is lost, doubled or invented, and after healing there is progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from clymq.simulation.world import World, simulate

REGRESSIONS = Path(__file__).with_name("regressions.txt")
SEEDS = {"quick": 20, "normal": 200, "long": 5000}


@pytest.mark.parametrize("part", range(4))
def test_seeds_find_no_violation(part: int, size: str) -> None:
    for seed in range(1000 + part, 1000 + SEEDS[size], 4):
        simulate(seed)


@pytest.mark.parametrize(
    "seed", [int(line.split()[0]) for line in REGRESSIONS.read_text().splitlines() if not line.startswith("#")]
)
def test_a_seed_that_once_failed_does_not_fail_again(seed: int) -> None:
    simulate(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in (3, 10):
        assert simulate(seed).trace_hash == simulate(seed).trace_hash
    assert simulate(3).trace_hash != simulate(10).trace_hash


def test_the_seeds_together_meet_every_kind_of_fault() -> None:
    said = ""
    sizes = set()
    for seed in range(60):
        world = World(seed)
        sizes.add(len(world.names))
        world.run()
        said += "\n".join(world.trace)
    assert sizes == {1, 2, 3, 4, 5}
    for event in (
        "power cut",
        "is paused",
        "network is cut",
        "a bit of",
        "disk is wiped",
        "disk of",
        "sync of",
        "seals",
        "starts lame",
    ):
        assert event in said, event
