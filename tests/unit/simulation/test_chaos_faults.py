"""Single pieces of the nemesis: which pairs a ring cuts, what damage does to a file, that every mutation applies."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from clymq.simulation.chaos.client_faults import ClientFaults
from clymq.simulation.chaos.disk_faults import damage_file, known_to_be_committed, sizes
from clymq.simulation.chaos.faults import GROUPS
from clymq.simulation.chaos.mutations import OF_BROKERS, applied
from clymq.simulation.chaos.network_faults import ring_cuts
from clymq.simulation.chaos.plan import KINDS, Fault
from clymq.simulation.chaos.scene import some_of
from clymq.simulation.chaos.workload import Workload
from clymq.storage.checkpoint import Checkpoint, write_checkpoint
from clymq.storage.files import RealFiles


@pytest.mark.parametrize("count", [3, 4, 5])
def test_in_a_ring_everybody_reaches_a_majority_and_no_two_the_same(count: int) -> None:
    brokers = [f"Broker{number}" for number in range(count)]
    cuts = {frozenset(pair) for pair in ring_cuts(brokers)}
    reached = [{other for other in brokers if frozenset((name, other)) not in cuts} for name in brokers]
    assert all(len(some) >= count // 2 + 1 for some in reached)
    assert not all(some == set(brokers) for some in reached)
    assert count == 3 or all(one != other for one, other in combinations(reached, 2))


class Standing(Workload):
    """Clients without processes: only who is alive, and that nobody dead is struck."""

    def __init__(self, count: int) -> None:
        self.producers = tuple(f"p{number}" for number in range(count))
        self.readers = tuple(f"r{number}" for number in range(count))
        self.workers = tuple(f"w{number}" for number in range(count))
        self.alive = {*self.producers, *self.readers, *self.workers}

    def start(self, *names: str) -> None:
        assert not self.alive.intersection(names)
        self.alive.update(names)

    def kill(self, name: str) -> None:
        self.alive.remove(name)

    def freeze(self, name: str) -> str:
        self.alive.remove(name)
        return name

    def replace(self, name: str) -> str:
        assert name in self.alive
        return f"{name}-1"

    def release(self, process: str) -> None:
        if "-" not in process:
            self.alive.add(process)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("pick", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(
    "kinds",
    [("kill producer", "zombie producer"), ("kill reader", "freeze reader"), ("kill worker", "freeze worker")],
)
def test_two_faults_of_a_turn_never_strike_the_same_client(count: int, pick: float, kinds: tuple[str, str]) -> None:
    async def main() -> None:
        clients = Standing(count)
        everybody = set(clients.alive)
        faults = ClientFaults(clients)
        for _ in range(2):
            async with AsyncExitStack() as stack:
                for kind in kinds:
                    make = getattr(faults, kind.replace(" ", "_"))
                    await stack.enter_async_context(make(Fault(kind, "", pick, 0.5)))
                assert clients.alive != everybody
            assert clients.alive == everybody

    asyncio.run(main())


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


def test_only_what_a_checkpoint_speaks_of_is_cut_off(tmp_path: Path) -> None:
    blocks = [tmp_path / "topic~1" / "0~2" / f"Block_{number}" for number in range(1, 4)]
    for block in blocks:
        block.mkdir(parents=True)
        (block / "batches").write_bytes(bytes(100))
    for block, position in zip(blocks[:2], (60, 400), strict=True):
        write_checkpoint(RealFiles(), str(block / "checkpoint"), replace(Checkpoint.empty(0), position=position))
    old = sizes(tmp_path)
    assert list(old.values()) == [100, 100, 100]
    assert known_to_be_committed(old) == {blocks[0] / "batches": 60, blocks[1] / "batches": 100}


@pytest.mark.parametrize(("who", "count"), [("one", 1), ("minority", 2), ("majority", 3), ("all", 5)])
def test_as_many_are_chosen_as_are_meant(who: str, count: int) -> None:
    names = [f"Broker{number}" for number in range(5)]
    chosen = some_of(names, Fault("kill", who, 0.3, 0.5))
    assert len(set(chosen)) == count
    assert set(chosen) <= set(names)


def test_there_is_one_context_for_every_kind_of_fault() -> None:
    for kind in KINDS:
        assert sum(callable(getattr(group, kind.replace(" ", "_"), None)) for group in GROUPS) == 1


@pytest.mark.parametrize("name", OF_BROKERS)
def test_a_mutation_replaces_what_is_there_and_puts_it_back(name: str) -> None:
    before = [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()]
    with applied(name):
        inside = [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()]
        assert all(one is not other for one, other in zip(before, inside, strict=True))
    assert [vars(owner)[attribute] for owner, attribute, _ in OF_BROKERS[name]()] == before
    assert OF_BROKERS[name].__doc__
