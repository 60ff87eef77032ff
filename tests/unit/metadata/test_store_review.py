"""What a review of the stores found: each test here failed on the code as it was first written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clymq.clock import ManualClock, SystemClock
from clymq.config import Config
from clymq.errors import (
    BrokerReplaced,
    ClymqError,
    ConnectFailed,
    ConnectionLost,
    DamagedNode,
    DamagedStore,
    InvalidRequest,
    NodeNotEmpty,
    Overloaded,
    SessionLost,
    StorageError,
)
from clymq.metadata import nodes
from clymq.metadata.catalog import Catalog
from clymq.metadata.embedded import FILE_NAME, StoreFile
from clymq.metadata.engine import STALL_MS, TICK_MS, Engine
from clymq.metadata.lifetimes import Lifetimes
from clymq.metadata.local import LocalStore
from clymq.metadata.nodes import Broker, Partition, Topic
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.metadata.store import ANY_VERSION, Create, Delete, Operation, outcome_unknown
from clymq.node.zkserver import ZkServerNode
from clymq.protocol.store import Create as CreateStep
from clymq.protocol.store import StoreGet, StoreMulti, StoreOpenSession, StoreWatch, Written
from clymq.rpc import Call, Endpoint, Peer, Server, connect
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.transport import TcpTransport

CONFIG = Config(session_timeout_ms=3000, store_request_ms_max=1000, connect_ms_max=500, reconnect_ms_max=200)


class World:
    """An engine, served in memory on virtual time."""

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.engine = Engine(StoreFile(None if folder is None else str(folder)), self.clock)
        handlers = StoreServer(self.engine).handlers()
        self.endpoint = Endpoint(self.clock, CONFIG, name="s", role="zkserver", handlers=handlers)
        self.server = Server(self.network.transport("server"), self.endpoint)
        self.opened: list[RemoteStore | LocalStore] = []

    async def local(self) -> LocalStore:
        store = LocalStore(self.engine, self.clock, CONFIG)
        await self.wait(store.open())
        self.opened.append(store)
        return store

    async def remote(self, host: str) -> RemoteStore:
        transport = self.network.transport(host)
        store = RemoteStore(transport, self.server.address, self.clock, CONFIG, name=host, chance=lambda: 0.5)
        await self.wait(store.open())
        self.opened.append(store)
        return store

    async def peer(self, host: str) -> Peer:
        ours = Endpoint(self.clock, CONFIG, name=host, role="test")
        made: Peer = await self.wait(connect(self.network.transport(host), self.server.address, ours))
        return made

    async def ask(self, peer: Peer, request: Any) -> Any:
        return (await self.wait(peer.ask(request, timeout_ms=1000))).reply

    async def wait(self, work: Awaitable[Any]) -> Any:
        """Let time pass until the work is done."""
        task = asyncio.ensure_future(work)
        for _ in range(3000):
            if task.done():
                return task.result()
            await self.pass_ms(10)
        task.cancel()
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
            async with asyncio.timeout(30):
                await test(world)
        finally:
            for store in world.opened:
                with contextlib.suppress(ClymqError):
                    await world.wait(store.close())
            await world.wait(world.server.close())
            await world.engine.close()

    asyncio.run(started())


# --- What one request does must not be done to the others ---


@pytest.mark.parametrize(
    "request_",
    [
        StoreGet(2**63, "/"),
        StoreMulti(2**63, ()),
        StoreMulti(1, (CreateStep("/a"),), 2**63),
        StoreMulti(1, (CreateStep("/a"),), 1, 2**64 - 1),
        StoreMulti(-1, ()),
    ],
    ids=["read", "write", "number", "settled", "negative"],
)
def test_a_number_that_sqlite_cannot_hold_is_refused_and_nobody_else_notices(request_: Any) -> None:
    """One such read stopped the engine for good; one such write made it believe that its disk had failed."""

    async def test(world: World) -> None:
        peer = await world.peer("odd")
        store = await world.local()
        with pytest.raises((InvalidRequest, SessionLost)):
            await world.ask(peer, request_)
        await world.wait(store.create("/fine"))
        assert await world.wait(store.children("/")) == ["fine"]

    run(test)


def test_a_listener_of_a_lost_session_that_raises_costs_nobody_an_answer() -> None:
    async def test(world: World) -> None:
        first, second = await world.local(), await world.local()
        told: list[str] = []

        def bad() -> None:
            raise ValueError("a mistake")

        first.session.on_lost(bad)
        first.session.on_lost(lambda: told.append("lost"))
        ending = world.engine.close_session(int(first.session.id, 16))
        await world.wait(asyncio.gather(ending, second.create("/a"), second.create("/b")))
        assert told == ["lost"]

    run(test)


def test_the_end_of_a_session_that_was_left_is_not_the_end_of_the_next() -> None:
    async def test(world: World) -> None:
        store = await world.local()
        store.abandon()
        await world.wait(store.open())
        await world.pass_ms(3 * CONFIG.session_timeout_ms)
        assert not store.session.lost
        await world.wait(store.create("/alive", ephemeral=True))

    run(test)


def test_a_watch_that_begins_while_its_session_ends_is_told() -> None:
    async def test(world: World) -> None:
        store = await world.local()
        ending = world.engine.close_session(int(store.session.id, 16))
        watch, _ = await world.wait(asyncio.gather(store.watch("/"), ending))
        with pytest.raises(SessionLost):
            await world.wait(watch.changed())

    run(test)


def test_an_engine_may_be_closed_in_the_middle_of_a_commit_and_started_again(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine(StoreFile(str(tmp_path)), SystemClock())
        await engine.start()
        session = await engine.open_session(10_000)
        for n in range(3):
            writing = asyncio.create_task(engine.write(session, [Create(f"/{n}")]))
            while engine._running is None:
                await asyncio.sleep(0)
            await engine.close()
            await engine.start()
            await writing
            async with asyncio.timeout(5):
                first = asyncio.create_task(engine.write(session, [Create(f"/again-{n}")]))
                while engine._running is None:
                    await asyncio.sleep(0)
                await engine.write(session, [Create(f"/and-again-{n}")])
                await first
        await engine.close()

    asyncio.run(test())


# --- The disk ---


def damaged(folder: Path, spoil: Callable[[bytearray], None]) -> None:
    """Make a store with some thousand nodes and damage its file."""

    async def fill() -> None:
        engine = Engine(StoreFile(str(folder)), SystemClock())
        await engine.start()
        session = await engine.open_session(10_000)
        await engine.write(session, [Create(f"/n{n}", b"v" * 100) for n in range(2000)])
        await engine.close()

    asyncio.run(fill())
    file = folder / FILE_NAME
    data = bytearray(file.read_bytes())
    spoil(data)
    file.write_bytes(data)


def test_a_page_that_cannot_be_read_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    """The read was put back into the queue, for ever: it was taken for one whose transaction met a full disk."""

    def spoil(data: bytearray) -> None:
        for at in range(4096 * 12, len(data), 4096):
            data[at : at + 4096] = os.urandom(4096)

    damaged(tmp_path, spoil)

    async def test() -> None:
        engine = Engine(StoreFile(str(tmp_path)), SystemClock())
        try:
            await engine.start()
            store = LocalStore(engine, SystemClock(), CONFIG)
            async with asyncio.timeout(5):
                await store.open()
                for n in range(0, 2000, 7):
                    await store.get(f"/n{n}")
        finally:
            await engine.close()

    with pytest.raises((DamagedStore, StorageError)):
        asyncio.run(test())


@pytest.mark.parametrize("page", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_damaged_file_is_a_typed_error_wherever_the_damage_is(tmp_path: Path, page: int) -> None:
    def spoil(data: bytearray) -> None:
        data[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096

    damaged(tmp_path, spoil)

    async def test() -> None:
        engine = Engine(StoreFile(str(tmp_path)), SystemClock())
        try:
            async with asyncio.timeout(5):
                await engine.start()
                session = await engine.open_session(1000)
                await engine.children(session, "/")
                await engine.get(session, "/n1")
                await engine.write(session, [Create("/more")])
        finally:
            await engine.close()

    # ConnectionLost: the commit met the damage, and nobody knows. Nothing at all: that page was not needed.
    with contextlib.suppress(DamagedStore, ConnectionLost):
        asyncio.run(test())


def test_after_the_disk_has_failed_a_write_is_refused_for_certain(tmp_path: Path) -> None:
    """The one that met the failure is unknown; those after it never reach the disk, and say so at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def test() -> None:
        engine = Engine(StoreFile(str(tmp_path)), SystemClock())
        await engine.start()
        session = await engine.open_session(10_000)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
            with pytest.raises(ClymqError):
                for n in range(10):
                    await engine.write(session, [Create(f"/{n}", b"v" * 100_000)])
            with pytest.raises(StorageError):
                await engine.write(session, [Create("/later")])
            with pytest.raises(StorageError):
                await engine.get(session, "/")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            await engine.close()

    asyncio.run(test())


# --- Outcomes ---


def test_a_repetition_that_comes_after_its_answer_was_settled_is_not_applied_again() -> None:
    """A connection whose bytes were held up by the network: what it brings was given up long ago."""

    async def test(world: World) -> None:
        late, peer = await world.peer("late"), await world.peer("client")
        session = (await world.ask(peer, StoreOpenSession(3000))).session
        step = (CreateStep("/once"),)
        assert await world.ask(peer, StoreMulti(session, step, 1, 1)) == Written()
        assert await world.ask(peer, StoreMulti(session, (), 2, 2)) == Written()
        await world.ask(peer, StoreMulti(session, (Delete("/once", ANY_VERSION),), 3, 3))
        with pytest.raises(InvalidRequest):
            await world.ask(late, StoreMulti(session, step, 1, 1))
        watching = await world.local()
        assert await world.wait(watching.exists("/once")) is None

    run(test)


def test_a_commit_that_was_sent_once_is_not_called_refused_because_it_was_not_looked_at_the_second_time() -> None:
    async def test(world: World) -> None:
        store = await world.remote("client")
        attempts: list[Call] = []

        async def apply_and_lose_the_answer(request: StoreMulti) -> None:
            await world.engine.write(request.session, request.operations, number=request.number)
            world.network.cut("client", "server")
            world.network.heal("client", "server")

        def lose_the_first_answer(call: Call) -> None:
            attempts.append(call)
            if len(attempts) > 1:
                raise Overloaded("not looked at")
            tasks.append(asyncio.create_task(apply_and_lose_the_answer(call.request)))

        tasks: list[asyncio.Task[None]] = []
        world.endpoint.handlers[StoreMulti] = lose_the_first_answer
        with pytest.raises(ClymqError) as failed:
            await world.wait(store.commit([Create("/applied")]))
        assert await world.wait((await world.local()).exists("/applied")) is not None
        assert outcome_unknown(failed.value)

    run(test)


def test_watches_are_set_again_even_if_the_store_stumbles_when_the_client_comes_back() -> None:
    async def test(world: World) -> None:
        store, other = await world.remote("client"), await world.local()
        watch = await world.wait(store.watch("/"))
        serve = world.endpoint.handlers[StoreWatch]
        stumbles = [Overloaded("busy"), ConnectFailed("the store is closing")]

        def stumble(call: Call) -> None:
            if stumbles:
                raise stumbles.pop()
            serve(call)

        world.endpoint.handlers[StoreWatch] = stumble
        world.network.cut("client", "server")
        await world.wait(other.create("/missed"))
        world.network.heal("client", "server")
        await world.wait(watch.changed())
        await world.wait(other.create("/next"))
        await world.wait(watch.changed())
        assert await world.wait(store.children("/")) == ["missed", "next"]

    run(test)


def test_refusals_of_the_store_come_over_the_wire_as_themselves() -> None:
    async def test(world: World) -> None:
        store = await world.remote("client")
        await world.wait(store.multi([Create("/a"), Create("/a/b"), Create("/e", b"", ephemeral=True)]))
        with pytest.raises(NodeNotEmpty) as refused:
            await world.wait(store.delete("/a", ANY_VERSION))
        assert refused.value.path == "/a"
        assert refused.value.hint

    run(test)


# --- Time ---


def test_a_stall_shorter_than_a_second_does_not_count_against_a_short_session() -> None:
    for stalled_ms in range(0, 3000, 100):
        lifetimes = Lifetimes(0, STALL_MS, TICK_MS)
        lifetimes.begin(1, 500, 0)
        now = 0.0
        while now < 1000:  # heard of every 125 ms, looked at every 250
            now += 125
            lifetimes.touch(1, now)
            if now % 250 == 0:
                assert lifetimes.overdue(now) == []
        assert lifetimes.overdue(now + 250 + stalled_ms) == [], stalled_ms
        # And who is gone for good is found out, stalls or not.
        assert any(lifetimes.overdue(now + stalled_ms + 250 * n) for n in range(2, 20))


# --- The tree ---


class Interleaved:
    """A store that lets somebody else act right before its n-th write."""

    def __init__(self, store: LocalStore, meanwhile: Callable[[], Awaitable[None]], before_write: int = 1) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self._before_write = before_write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, operations: Sequence[Operation], *, timeout_ms: float | None = None) -> None:
        self._before_write -= 1
        if self._before_write == 0:
            await self._meanwhile()
        await self._store.commit(operations, timeout_ms=timeout_ms)


def test_a_slow_deletion_of_a_topic_does_not_touch_the_topic_that_was_made_after_it() -> None:
    async def test(world: World) -> None:
        first, second = Catalog(await world.local()), await world.local()
        await world.wait(first.prepare())
        made, _ = await world.wait(first.create_topic(Topic(name="t", id="1")))
        await world.wait(first.create_partition("t", Partition(name="p", uid="old")))
        await world.wait(first.put_topic(nodes.Topic(name="t", id="1", deleting=True), made.version))

        async def delete_and_make_again() -> None:
            await first.delete_topic("t")
            await first.create_topic(Topic(name="t", id="2"))
            await first.create_partition("t", Partition(name="p", uid="new"))

        slow = Catalog(Interleaved(second, delete_and_make_again))  # type: ignore[arg-type]
        with contextlib.suppress(ClymqError):
            await world.wait(slow.delete_topic("t"))
        assert (await world.wait(first.chain("t", "p").partition())).value.uid == "new"

    run(test)


def test_a_broker_that_comes_back_does_not_push_out_the_one_that_has_just_replaced_it() -> None:
    """Both states have version 0: a deletion by version cannot tell one life from another."""

    async def test(world: World) -> None:
        newer, session = Catalog(await world.local()), await world.local()
        await world.wait(newer.prepare())
        await world.wait(newer.register_broker(Broker(name="b", address="x:1")))
        left = await world.local()
        await world.wait(Catalog(left).announce_broker("b", 1, starting=True))

        async def replaced() -> None:
            await newer.announce_broker("b", 2, starting=True)

        back = Catalog(Interleaved(session, replaced))  # type: ignore[arg-type]
        with pytest.raises(BrokerReplaced):
            await world.wait(back.announce_broker("b", 1, starting=False))
        state = await world.wait(newer.broker_state("b"))
        assert state.value.incarnation == 2

    run(test)


def test_a_value_that_is_nested_without_end_is_a_damaged_node() -> None:
    with pytest.raises(DamagedNode):
        nodes.decode(Topic, "/t", b'{"name": "t", "id": "1", "x": ' + b"[" * 100_000)


# --- A zkserver ---


def test_a_zkserver_that_cannot_start_says_why_and_can_be_closed_again(tmp_path: Path) -> None:
    """Closing the server twice raised a ValueError, and that was what people were shown."""

    class Unreachable(LocalStore):
        async def open(self) -> None:
            raise ConnectFailed("nobody there")

    async def test() -> None:
        engine, clock = Engine(StoreFile(None), SystemClock()), SystemClock()
        store = Unreachable(engine, clock, CONFIG)
        node = ZkServerNode("z", TcpTransport(), clock, CONFIG, store, engine, random.Random(1))
        with pytest.raises(ConnectFailed, match="nobody there"):
            await node.start("127.0.0.1:0")
        await node.close()

    asyncio.run(test())


def test_a_killed_wrapper_takes_its_zookeeper_with_it(tmp_path: Path) -> None:
    """`clymq zookeeper` that is killed by SIGKILL left its Java process running, with the port and the data."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho $$ > " + str(tmp_path / "pid") + "\nexec sleep 300\n")
    java.chmod(0o755)
    script = textwrap.dedent(
        """
        from pathlib import Path
        from clymq.cli import zookeeper
        zookeeper.find_jars = lambda: []
        zookeeper.ZookeeperServer(Path(__import__("sys").argv[1])).start()
        """
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    wrapper = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data")], env=environment)
    try:
        pid = int(waited(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    finally:
        wrapper.send_signal(signal.SIGKILL)
        wrapper.wait()
    try:
        waited(lambda: not is_running(pid))
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise


def waited(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen within 10 s")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False
