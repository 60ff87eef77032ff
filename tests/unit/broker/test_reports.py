"""What a broker tells the controller is told until it is heard: once at a time, and only as long as it is true."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from clymq.broker.broker import Broker
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import DiskFailed, LeaderUnavailable
from clymq.protocol.controller import ReplicaDown, RollBlock, UpdateDup


class Deaf:
    """A controller that does not answer until it is told to."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.hears = False
        self.slow: set[str] = set()

    async def ask(self, request: Any, *, timeout_ms: float) -> Any:
        self.asked.append(request)
        if request.partition in self.slow:
            await asyncio.Event().wait()
        if not self.hears:
            raise LeaderUnavailable("no zkserver is active")


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controller = Deaf()
        self.partitions: list[Any] = []
        hosting: Any = SimpleNamespace(partition=None, partitions=self.partitions)
        neighbours: Any = SimpleNamespace()
        controller: Any = self.controller
        self.broker = Broker(
            "B0", "disk", 1, hosting=lambda _: hosting, controller=controller, neighbours=neighbours,
            find_controller=lambda: controller.ask(None), clock=self.clock, config=Config(),
        )  # fmt: skip

    def leads(self, name: str, file: Any) -> None:
        active = SimpleNamespace(number=1, leader="B0", end=5, file=file, machine=SimpleNamespace(sealed=False))
        one = partition(name, active=active)
        one.config, one.uid = Config(), f"{len(self.partitions):032x}"
        self.partitions.append(one)

    async def turns(self, ms: float = 0, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(ms)
            for _ in range(20):
                await asyncio.sleep(0)

    async def close(self) -> None:
        for task in list(self.broker._tasks):
            task.cancel()
        await asyncio.gather(*self.broker._tasks, return_exceptions=True)


def partition(name: str = "p", *, active: Any = None, sealed: dict[int, Any] | None = None) -> Any:
    return SimpleNamespace(topic="t", name=name, uid=f"uid-{name}", epoch=1, active=active, sealed=sealed or {})


def test_what_is_not_heard_is_told_by_one_task_however_often_it_comes_up() -> None:
    """A broker whose controller is away for hours asks for the same roll every second."""

    async def test() -> None:
        world = World()
        one = partition(active=SimpleNamespace(number=1))
        for _ in range(100):
            world.broker.needs_move(one, 1, "size")
            await world.turns(1_000)
        assert len(world.broker._tasks) == 1
        world.controller.hears = True
        await world.turns(1_000)
        assert not world.broker._tasks
        world.broker.needs_move(one, 1, "size")
        await world.turns()
        assert isinstance(world.controller.asked[-1], RollBlock)
        await world.close()

    asyncio.run(test())


def test_a_sealed_replica_that_is_lost_is_reported_beside_an_active_block() -> None:
    async def test() -> None:
        world = World()
        world.controller.hears = True
        one = partition(active=SimpleNamespace(number=2), sealed={1: SimpleNamespace(whole=False)})
        world.broker.replica_down(one, 1, "input/output error")
        await world.turns()
        assert [(type(each), each.block) for each in world.controller.asked] == [(ReplicaDown, 1)]
        await world.close()

    asyncio.run(test())


def test_an_end_whose_report_is_not_answered_keeps_nobody_else_from_being_told() -> None:
    async def test() -> None:
        world = World()
        world.controller.hears = True
        world.controller.slow = {"slow"}

        for name in ("slow", "quick"):
            world.leads(name, SimpleNamespace(end_position=0, first_append_time=None))
        world.broker._spawn(world.broker._report_ends())
        await world.turns()
        await world.turns(Config().mirror_ms)
        told = [each.partition for each in world.controller.asked if isinstance(each, UpdateDup)]
        assert told == ["slow", "quick"]
        await world.close()

    asyncio.run(test())


def test_a_block_that_cannot_say_how_old_it_is_keeps_nobody_from_being_told() -> None:
    class Damaged:
        end_position = 0

        @property
        def first_append_time(self) -> int:
            raise DiskFailed("batches", "read", "input/output error")

    async def test() -> None:
        world = World()
        world.controller.hears = True
        world.leads("damaged", Damaged())
        world.leads("good", SimpleNamespace(end_position=0, first_append_time=None))
        world.broker._spawn(world.broker._report_ends())
        await world.turns()
        await world.turns(Config().mirror_ms)
        assert "good" in [each.partition for each in world.controller.asked]
        await world.close()

    asyncio.run(test())
