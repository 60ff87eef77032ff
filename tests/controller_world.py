"""A cluster around the controller on virtual time: a store in memory, fake brokers with sessions, and controllers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.controller.chains import Chains, View
from clymq.controller.controller import Controller
from clymq.errors import ClymqError
from clymq.metadata.catalog import Catalog
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.local import LocalStore
from clymq.metadata.nodes import Broker, ZkServer
from clymq.metadata.store import MetadataStore
from clymq.protocol.controller import (
    BecomeLeader,
    BroGetConfig,
    CreatePart,
    CreateTopic,
    SetPartitionState,
    UpdateDup,
)
from clymq.types import Ack
from fake_brokers import FakeBroker, FakeBrokers

T = TypeVar("T")

TICK_MS = 2
TICKS_MAX = 60_000
CONFIG = Config(
    session_timeout_ms=1000,
    controller_tick_ms=100,
    move_wait_ms_max=5000,
    leader_wait_ms_max=500,
    seal_wait_ms_max=300,
    replace_after_ms=3000,
    retention_ms=-1,
    retention_check_ms=500,
    balance_ms=1000,
    config_ms=200,
)


class World:
    """One cluster. Brokers ask for their config every `config_ms` and whenever they are nudged."""

    def __init__(self, clock: ManualClock, config: Config) -> None:
        self.clock = clock
        self.config = config
        self.engine = Engine(StoreFile(None), clock)
        self.brokers = FakeBrokers()
        self.brokers.on_nudge = self._nudged
        self._nudges: set[str] = set()
        self.controllers: dict[str, Controller] = {}
        self.stores: dict[str, LocalStore] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, brokers: int = 3) -> World:
        await self.engine.start()
        await self.store("reader")
        for number in range(brokers):
            await self.add_broker(f"Broker{number}")
        await self.add_controller("ZkServer0")
        return self

    async def close(self) -> None:
        for controller in self.controllers.values():
            await controller.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()

    # Who is there.

    async def store(self, name: str) -> LocalStore:
        store = self.stores[name] = LocalStore(self.engine, self.clock, self.config)
        await store.open()
        return store

    async def add_controller(
        self, name: str, *, wrap: Callable[[MetadataStore], MetadataStore] | None = None, brokers: Any = None
    ) -> Controller:
        store: MetadataStore = await self.store(name)
        await Catalog(store).prepare()
        await Catalog(store).announce_zkserver(ZkServer(name=name, address=f"{name}:1"))
        controller = Controller(
            name,
            wrap(store) if wrap else store,
            brokers or self.brokers,
            self.clock,
            self.config,
            random.Random(name),
        )
        self.controllers[name] = controller
        controller.start(f"{name}:1")
        return controller

    async def kill_controller(self, name: str) -> None:
        """Stop a controller without a word: its session runs out by itself."""
        await self.controllers.pop(name).close()
        self.stores.pop(name).abandon()

    async def add_broker(self, name: str, *, disk_id: str = "", incarnation: int = 1, **facts: Any) -> FakeBroker:
        disk_id = disk_id or f"disk-{name}"
        broker = self.brokers.brokers.get(name)
        if broker is None or broker.disk_id != disk_id:
            broker = self.brokers.brokers[name] = FakeBroker(name, disk_id, incarnation)
        broker.up, broker.deaf, broker.incarnation = True, False, incarnation
        catalog = Catalog(await self.store(name))
        await catalog.prepare()
        await catalog.register_broker(Broker(name=name, address=f"{name}:2", disk_id=disk_id, **facts))
        await catalog.announce_broker(name, incarnation, starting=True)
        self._spawn(self._keep_configured(name, incarnation))
        return broker

    async def kill_broker(self, name: str, *, at_once: bool = True) -> None:
        """Stop a broker; its session ends at once, or runs out."""
        self.brokers[name].up = False
        store = self.stores.pop(name)
        if at_once:
            await store.close()
        else:
            store.abandon()

    # What brokers do by themselves.

    async def configure(self, name: str) -> None:
        broker = self.brokers[name]
        try:
            config = await self.ask(BroGetConfig(name, broker.disk_id))
            broker.host(config)
            for place in broker.mend(self.brokers.brokers):
                whole = UpdateDup(
                    place.topic, place.partition, place.uid, place.block, name, place.end,
                    disk_id=broker.disk_id, whole=True,
                )  # fmt: skip
                await self.ask(whole)
            for place in broker.hosted.values():
                if not place.sealed and place.leader == name and place.term == 0:
                    await self.ask(
                        BecomeLeader(place.topic, place.partition, place.uid, place.block, name, 1, broker.incarnation)
                    )
        except ClymqError:
            return

    def _nudged(self, name: str) -> None:
        """Ask again soon: several nudges are one question."""
        if name not in self._nudges:
            self._nudges.add(name)
            self._spawn(self._configure_soon(name))

    async def _configure_soon(self, name: str) -> None:
        await self.sleep(TICK_MS)
        self._nudges.discard(name)
        await self.configure(name)

    async def _keep_configured(self, name: str, incarnation: int) -> None:
        broker = self.brokers[name]
        while broker.up and broker.incarnation == incarnation:
            if not broker.deaf:
                await self.configure(name)
            await self.sleep(self.config.config_ms)

    # What a test does.

    @property
    def active(self) -> Controller | None:
        return next((each for each in self.controllers.values() if each.is_active), None)

    async def ask(self, request: Any) -> Any:
        await self.until(lambda: self.active is not None, "a controller is active")
        assert self.active is not None
        return await self.active.answer(request)

    async def make(self, topic: str = "t", partition: str = "p", *, ack: int = Ack.QUORUM, dupnum: int = 3) -> View:
        """Make a partition and wait until its brokers host it and its leader has said so."""
        await self.ask(CreateTopic(topic))
        await self.ask(CreatePart(topic, partition))
        await self.ask(SetPartitionState(topic, partition, ack, dupnum))
        return await self.settled(topic, partition)

    async def settled(self, topic: str = "t", partition: str = "p") -> View:
        """Wait until nothing is pending, every broker that is up hosts what it should, and the leader has said so."""

        async def done() -> bool:
            view = await self.view(topic, partition)
            key = (view.partition.value.uid, view.now.block)
            hosting = [self.brokers[name] for name in view.members if self.brokers[name].up]
            if not view.begun or view.partition.value.pending is not None:
                return False
            led = view.now.term > 0 or not self.brokers[view.now.leader].up
            return led and all(key in each.blocks for each in hosting)

        await self.until_true(done, f"{topic}/{partition} is settled")
        return await self.view(topic, partition)

    async def view(self, topic: str = "t", partition: str = "p") -> View:
        return await Chains(self.catalog).view(topic, partition)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.stores["reader"])

    async def sleep(self, delay_ms: float) -> None:
        over = asyncio.Event()
        self.clock.call_later(delay_ms, over.set)
        await over.wait()

    async def until(self, condition: Callable[[], object], what: str, *, within_ms: float = 20_000) -> None:
        async def done() -> bool:
            return bool(condition())

        await self.until_true(done, what, within_ms=within_ms)

    async def until_true(
        self, condition: Callable[[], Awaitable[bool]], what: str, *, within_ms: float = 20_000
    ) -> None:
        deadline_ms = self.clock.monotonic_ms() + within_ms
        while not await condition():
            assert self.clock.monotonic_ms() < deadline_ms, f"not within {within_ms:g} ms: {what}"
            await self.sleep(TICK_MS)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def run(test: Callable[[World], Awaitable[T]], *, brokers: int = 3, **settings: Any) -> T:
    """Run a test in a world of its own; whenever nothing happens any more, time passes."""

    async def main(world: World) -> T:
        try:
            return await test(await world.start(brokers))
        finally:
            await world.close()

    async def drive() -> T:
        clock = ManualClock()
        task = asyncio.ensure_future(main(World(clock, msgspec.structs.replace(CONFIG, **settings))))
        for _ in range(TICKS_MAX):
            for _ in range(12):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            clock.advance(TICK_MS)
        task.cancel()
        raise AssertionError(f"still waiting after {TICKS_MAX * TICK_MS} ms")

    return asyncio.run(drive())
