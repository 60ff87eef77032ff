"""Single pieces of the nemesis: which pairs a ring cuts, what damage does to a file, that every mutation applies."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from clymq.simulation.chaos.faults import Faults, damage_file, ring_cuts
from clymq.simulation.chaos.mutations import OF_BROKERS, applied
from clymq.simulation.chaos.plan import KINDS, Fault


@pytest.mark.parametrize("count", [3, 4, 5])
def test_in_a_ring_everybody_reaches_a_majority_and_no_two_the_same(count: int) -> None:
    brokers = [f"Broker{number}" for number in range(count)]
    cuts = {frozenset(pair) for pair in ring_cuts(brokers)}
    reached = [{other for other in brokers if frozenset((name, other)) not in cuts} for name in brokers]
    assert all(len(some) >= count // 2 + 1 for some in reached)
    assert not all(some == set(brokers) for some in reached)
    assert count == 3 or all(one != other for one, other in combinations(reached, 2))


@pytest.mark.parametrize("seed", range(20))
def test_damage_stays_within_what_is_old(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "batches"
    content = bytes(range(256))
    path.write_bytes(content)
    fault = Fault("damage", "flip" if seed % 2 else "truncate", 0.5, 0.5)
    damage_file({path: 100}, fault, random.Random(seed))
    after = path.read_bytes()
    if fault.who == "flip":
        changed = [at for at, (one, other) in enumerate(zip(content, after, strict=True)) if one != other]
        assert len(changed) == 1
        assert changed[0] < 100
        assert (content[changed[0]] ^ after[changed[0]]).bit_count() == 1
    else:
        assert len(after) < 100
        assert content.startswith(after)


def test_there_is_a_context_for_every_kind_of_fault() -> None:
    assert all(callable(getattr(Faults, kind.replace(" ", "_"), None)) for kind in KINDS)


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_mutation_replaces_what_is_there_and_puts_it_back(name: str) -> None:
    before = [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()]
    with applied(name):
        inside = [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()]
        assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()] == before
    assert OF_BROKERS[name].__doc__
