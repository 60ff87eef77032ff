"""The embedded store over the wire on virtual time: no socket, no thread, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ConnectFailed, SessionLost, TransportError
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.metadata.store import ANY_VERSION, Create, Put, outcome_unknown
from clymq.rpc import Endpoint, Server
from clymq.rpc.memory import MemoryNetwork

CONFIG = Config(session_timeout_ms=3000, store_request_ms_max=1000, connect_ms_max=500, reconnect_ms_max=200)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.engine = Engine(StoreFile(None), self.clock)
        endpoint = Endpoint(self.clock, CONFIG, name="s", role="zkserver", handlers=StoreServer(self.engine).handlers())
        self.server = Server(self.network.transport("server"), endpoint)
        self.clients: list[RemoteStore] = []

    async def open(self, host: str) -> RemoteStore:
        transport = self.network.transport(host)
        store = RemoteStore(transport, self.server.address, self.clock, CONFIG, name=host, chance=lambda: 0.5)
        await self.wait(store.open())
        self.clients.append(store)
        return store

    async def wait(self, work: Awaitable[Any]) -> Any:
        """Let time pass until the work is done."""
        task = asyncio.ensure_future(work)
        for _ in range(10_000):
            if task.done():
                return task.result()
            await self.pass_ms(10)
        raise AssertionError("it does not end")

    async def pass_ms(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 10):
            self.clock.advance(10)
            for _ in range(10):
                await asyncio.sleep(0)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def started() -> None:
        world = World()
        await world.engine.start()
        await world.wait(world.server.start("server:1"))
        try:
            await test(world)
        finally:
            for client in world.clients:
                await world.wait(client.close())
            await world.wait(world.server.close())
            await world.engine.close()

    asyncio.run(started())


def test_an_idle_session_lives_on_through_many_timeouts() -> None:
    async def test(world: World) -> None:
        store = await world.open("a")
        await world.pass_ms(100_000)
        assert store.session.confirmed_within(world.clock.monotonic_ms())

    run(test)


def test_a_partition_shorter_than_the_timeout_costs_nothing_but_waiting() -> None:
    async def test(world: World) -> None:
        store = await world.open("a")
        await world.wait(store.create("/e", ephemeral=True))
        world.network.cut("a", "server")
        with pytest.raises(TransportError):
            await world.wait(store.get("/e"))
        committing = asyncio.ensure_future(store.commit([Put("/e", b"", ANY_VERSION)]))
        await world.pass_ms(500)
        world.network.heal("a", "server")
        await world.wait(committing)
        assert (await world.wait(store.exists("/e"))).version == 1

    run(test)


def test_a_partition_longer_than_the_timeout_ends_the_session_and_the_client_hears_of_it() -> None:
    async def test(world: World) -> None:
        store, other = await world.open("a"), await world.open("b")
        await world.wait(store.create("/e", ephemeral=True))
        watch, lost = await world.wait(other.watch("/e")), []
        store.session.on_lost(lambda: lost.append("lost"))
        world.network.cut("a", "server")
        told = asyncio.ensure_future(watch.changed())
        await world.pass_ms(2000)
        assert not told.done()
        await world.wait(told)
        assert await world.wait(other.exists("/e")) is None
        assert not lost
        with pytest.raises(ConnectFailed):
            await world.wait(store.create("/x"))
        world.network.heal("a", "server")
        await world.pass_ms(1000)
        assert lost == ["lost"]
        with pytest.raises(SessionLost):
            await world.wait(store.create("/x"))

    run(test)


def test_a_frozen_network_leaves_the_outcome_unknown_and_commit_finds_out() -> None:
    async def test(world: World) -> None:
        store = await world.open("a")
        await world.wait(store.create("/a"))
        world.network.freeze("a", "server")
        with pytest.raises(TransportError) as caught:
            await world.wait(store.put("/a", b"1", 0))
        assert outcome_unknown(caught.value)
        committing = asyncio.ensure_future(store.commit([Create("/b")]))
        await world.pass_ms(500)
        world.network.heal("a", "server")
        await world.wait(committing)
        assert (await world.wait(store.exists("/b"))).version == 0

    run(test)
