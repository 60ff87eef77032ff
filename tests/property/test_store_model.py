"""Random operations of several sessions, on a store and on a model of thirty lines that cannot be wrong.

The same sequences run on `LocalStore` and on `RemoteStore` in memory, so that what they do differently shows as well:
outcomes, values, versions, owners, names of children, and whether a watcher was told of every change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.local import LocalStore
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.metadata.store import ANY_VERSION, Check, Create, Delete, Operation, Put
from clymq.metadata.watch import Watch
from clymq.rpc import Endpoint, Server
from clymq.rpc.memory import MemoryNetwork

CONFIG = Config(session_timeout_ms=3000, store_request_ms_max=1000, connect_ms_max=500, reconnect_ms_max=200)
PATHS = ("/", "/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/b/z")
CLIENTS = 3

paths = st.sampled_from(PATHS)
versions = st.sampled_from([ANY_VERSION, 0, 1, 2])
values = st.sampled_from([b"", b"1", b"\x00\xff"])
operations = st.one_of(
    st.builds(Create, paths, values, st.booleans()),
    st.builds(Put, paths, values, versions),
    st.builds(Delete, paths, versions),
    st.builds(Check, paths, versions),
)
steps = st.one_of(
    st.tuples(st.just("multi"), st.lists(operations, max_size=4)),
    st.tuples(st.just("commit"), st.lists(operations, max_size=3)),
    st.tuples(st.just("single"), operations.map(lambda each: [each])),
    st.tuples(st.just("reopen"), st.just([])),
    st.tuples(st.just("break"), st.just([])),
)
plans = st.lists(st.tuples(st.integers(0, CLIENTS - 1), steps), max_size=25)


class Model:
    """A tree: {path: (value, version, owner)}."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[bytes, int, str | None]] = {"/": (b"", 0, None)}

    def children(self, path: str) -> list[str]:
        above = path.rstrip("/") + "/"
        return sorted(
            p[len(above) :] for p in self.nodes if p.startswith(above) and p != "/" and "/" not in p[len(above) :]
        )

    def apply(self, steps: Sequence[Operation], session: str) -> str:
        """Apply all or none; return the code of the refusal, or nothing."""
        if any(step.path == "/" and isinstance(step, Create | Delete) for step in steps):
            return "InvalidPath"
        before = dict(self.nodes)
        for step in steps:
            refusal = self.step(step, session)
            if refusal:
                self.nodes = before
                return refusal
        return ""

    def step(self, step: Operation, session: str) -> str:  # noqa: PLR0911 a return for each refusal
        found = self.nodes.get(step.path)
        if isinstance(step, Create):
            parent = self.nodes.get(step.path.rpartition("/")[0] or "/")
            if parent is None:
                return "NodeMissing"
            if parent[2] is not None:
                return "EphemeralParent"
            if found is not None:
                return "NodeExists"
            self.nodes[step.path] = (step.value, 0, session if step.ephemeral else None)
            return ""
        if found is None:
            return "NodeMissing"
        if step.version not in {ANY_VERSION, found[1]}:
            return "VersionConflict"
        if isinstance(step, Put):
            self.nodes[step.path] = (step.value, found[1] + 1, found[2])
        elif isinstance(step, Delete):
            if self.children(step.path):
                return "NodeNotEmpty"
            del self.nodes[step.path]
        return ""

    def end(self, session: str) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node[2] != session}

    def seen(self, path: str) -> Any:
        """What a watcher of the path can tell apart."""
        return self.nodes.get(path), tuple(self.children(path))


class World:
    """A store with several clients, and one more that watches everything."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.engine = Engine(StoreFile(None), self.clock)
        handlers = StoreServer(self.engine).handlers()
        self.server = Server(
            self.network.transport("server"),
            Endpoint(self.clock, CONFIG, name="s", role="zkserver", handlers=handlers),
        )
        self.model = Model()
        self.clients: list[LocalStore | RemoteStore] = []
        self.watches: dict[str, Watch] = {}

    async def start(self) -> None:
        await self.engine.start()
        await self.server.start("server:1")
        for number in range(CLIENTS + 1):
            self.clients.append(self.client(number))
            await self.wait(self.clients[-1].open())
        for path in PATHS:
            self.watches[path] = await self.wait(self.clients[-1].watch(path))

    def client(self, number: int) -> LocalStore | RemoteStore:
        if self.kind == "local":
            return LocalStore(self.engine, self.clock, CONFIG)
        transport = self.network.transport(f"client{number}")
        return RemoteStore(transport, "server:1", self.clock, CONFIG, name=f"c{number}", chance=lambda: 0.5)

    async def wait(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        for _ in range(500):
            await self.settle()
            if task.done():
                return task.result()
            self.clock.advance(10)
        raise AssertionError("it does not end")

    async def settle(self) -> None:
        for _ in range(12):
            self.clock.advance(0)
            await asyncio.sleep(0)

    async def close(self) -> None:
        for client in self.clients:
            with contextlib.suppress(ClymqError):
                await self.wait(client.close())
        await self.wait(self.server.close())
        await self.engine.close()

    async def act(self, number: int, what: str, steps: list[Operation]) -> None:
        store = self.clients[number]
        if what == "reopen":
            await self.wait(store.sync())  # out of reach, `close` leaves the session to run out
            self.model.end(store.session.id)
            await self.wait(store.close())
            await self.wait(store.open())
            return
        if what == "break":
            self.network.cut(f"client{number}", "server")
            await self.settle()
            self.network.heal(f"client{number}", "server")
            return
        work = {"multi": store.multi, "commit": store.commit}.get(what)
        outcome = await self.outcome(work(steps) if work else single(store, steps[0]))
        expected = self.model.apply(steps, store.session.id)
        assert outcome == expected, (what, steps)

    async def outcome(self, work: Awaitable[Any]) -> str:
        try:
            await self.wait(work)
        except ClymqError as error:
            return error.code
        return ""

    async def compare(self, number: int) -> None:
        """Every client reads what the model has."""
        store = self.clients[number]
        for path in PATHS:
            stat = await self.wait(store.exists(path))
            found = self.model.nodes.get(path)
            if found is None:
                assert stat is None, path
                assert await self.outcome(store.get(path)) == await self.outcome(store.children(path)) == "NodeMissing"
                continue
            value, version, owner = found
            node = await self.wait(store.get(path))
            assert (node.value, node.stat.version, node.stat.ephemeral_owner) == (value, version, owner), path
            assert node.stat == stat
            assert await self.wait(store.children(path)) == self.model.children(path)


async def single(store: LocalStore | RemoteStore, step: Operation) -> None:
    match step:
        case Create():
            await store.create(step.path, step.value, ephemeral=step.ephemeral)
        case Put():
            await store.put(step.path, step.value, step.version)
        case Delete():
            await store.delete(step.path, step.version)
        case Check():
            await store.multi([step])


async def carry_out(kind: str, plan: list[tuple[int, tuple[str, list[Operation]]]]) -> None:
    world = World(kind)
    await world.start()
    try:
        for number, (what, steps) in plan:
            before = {path: world.model.seen(path) for path in PATHS}
            for watch in world.watches.values():
                watch._changed.clear()
            await world.act(number, what, steps)
            await world.settle()
            for path, watch in world.watches.items():
                if world.model.seen(path) != before[path]:
                    assert watch._changed.is_set(), f"nobody was told of {path} after {what} {steps}"
        for number in range(CLIENTS):
            await world.compare(number)
    finally:
        await world.close()


@pytest.mark.parametrize("kind", ["local", "remote"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans)
def test_a_store_does_what_the_model_does(kind: str, plan: list[tuple[int, tuple[str, list[Operation]]]]) -> None:
    asyncio.run(carry_out(kind, plan))
