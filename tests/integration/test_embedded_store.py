"""The embedded store on a real disk and in a process of its own: locked, private, durable, fair after a stall."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import store_process
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, ConnectionLost, DamagedStore, FolderLocked
from clymq.metadata.embedded import FILE_NAME, StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.remote import RemoteStore
from clymq.metadata.store import ANY_VERSION, Create, Put
from clymq.protocol.store import StoreGet, StoreMulti, StoreOpenSession
from clymq.rpc import Endpoint, connect
from clymq.rpc.transport import TcpTransport
from store_process import StoreProcess
from store_subjects import until

CONFIG = Config(session_timeout_ms=3000, store_request_ms_max=1000, reconnect_ms_min=10, reconnect_ms_max=50)
SECONDS_MAX = 60


def run(test: Callable[..., Awaitable[None]], *arguments: object) -> None:
    async def limited() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test(*arguments)

    asyncio.run(limited())


@contextlib.asynccontextmanager
async def opened(address: str, config: Config = CONFIG) -> AsyncIterator[RemoteStore]:
    chance = random.Random(1).random
    store = RemoteStore(TcpTransport(), address, SystemClock(), config, name="client", chance=chance)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def process(tmp_path: Path) -> StoreProcess:
    process = StoreProcess(tmp_path / "store")
    process.start()
    yield process
    process.kill()


def test_the_folder_and_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine(StoreFile(str(tmp_path / "new" / "store")), SystemClock())
        await engine.start()
        session = await engine.open_session(1000)
        await engine.write(session, [Create("/a")])
        folder = tmp_path / "new" / "store"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        modes = {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
        assert (folder / FILE_NAME).exists()
        await engine.close()
        assert modes == {0o600}

    run(test)


def test_a_second_process_is_told_that_the_store_is_in_use(process: StoreProcess, tmp_path: Path) -> None:
    with pytest.raises(FolderLocked, match="in use"):
        StoreFile(str(tmp_path / "store")).open()
    second = subprocess.run(
        [sys.executable, store_process.__file__, str(tmp_path / "store"), "0"], capture_output=True, text=True
    )
    assert second.returncode == 1
    assert "FolderLocked" in second.stderr
    process.kill()
    file = StoreFile(str(tmp_path / "store"))
    file.open()
    file.close()


def test_the_same_process_cannot_open_a_store_twice(tmp_path: Path) -> None:
    first, second = StoreFile(str(tmp_path)), StoreFile(str(tmp_path))
    first.open()
    with pytest.raises(FolderLocked):
        second.open()
    first.close()


def test_a_file_that_is_no_store_is_damage_and_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(DamagedStore, match="not a database"):
        StoreFile(str(tmp_path)).open()
    assert (tmp_path / FILE_NAME).read_bytes() == b"not a database" * 1000


def test_a_store_of_a_newer_program_is_not_opened(tmp_path: Path) -> None:
    file = StoreFile(str(tmp_path))
    file.open()
    file.close()
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(DamagedStore, match="schema 99"):
        StoreFile(str(tmp_path)).open()


async def write_until_killed(store: RemoteStore, process: StoreProcess, prefix: str, answers: int) -> set[str]:
    """Write much at once, kill the store after so many answers, and return what was answered."""
    answered: set[str] = set()

    async def write(name: str) -> None:
        with contextlib.suppress(ClymqError):
            await store.multi([Create(f"/{name}"), Create(f"/{name}/whole")])
            answered.add(name)
            if len(answered) == answers:
                process.kill()

    await asyncio.gather(*(write(f"{prefix}-{n}") for n in range(400)))
    return answered


def test_what_was_answered_survives_a_kill_and_what_was_not_is_whole_or_absent(process: StoreProcess) -> None:
    async def test() -> None:
        answered: set[str] = set()
        for answers in (1, 40, 150):
            async with opened(process.address) as store:
                answered |= await write_until_killed(store, process, f"{answers}", answers)
                process.start()
        async with opened(process.address) as store:
            names = set(await store.children("/"))
            assert answered <= names
            for name in names:
                assert await store.children(f"/{name}") == ["whole"]

    run(test)


def test_a_store_that_was_killed_and_restarted_later_than_the_timeout_expires_nobody(process: StoreProcess) -> None:
    async def test() -> None:
        async with opened(process.address) as store, opened(process.address) as other:
            await store.create("/e", ephemeral=True)
            before, clock = store.session.id, SystemClock()
            killed_at_ms = clock.monotonic_ms()
            process.kill()

            async def long_enough() -> bool:
                return clock.monotonic_ms() - killed_at_ms > 1.3 * CONFIG.session_timeout_ms

            await until(long_enough, "the store was away for longer than the timeout")
            assert not store.session.confirmed_within(clock.monotonic_ms())
            process.start()
            await store.commit([Create("/after")])
            assert store.session.id == before
            assert not store.session.lost
            stat = await other.exists("/e")
            assert stat is not None
            assert stat.ephemeral_owner == before

    run(test)


def test_a_store_that_was_stopped_for_longer_than_the_timeout_expires_nobody(process: StoreProcess) -> None:
    async def test() -> None:
        async with opened(process.address) as store:
            await store.create("/e", ephemeral=True)
            before, clock = store.session.id, SystemClock()
            stopped_at_ms = clock.monotonic_ms()
            process.signal(signal.SIGSTOP)

            async def long_enough() -> bool:
                return clock.monotonic_ms() - stopped_at_ms > 1.3 * CONFIG.session_timeout_ms

            await until(long_enough, "the store was stopped for longer than the timeout")
            process.signal(signal.SIGCONT)
            await store.commit([Create("/after")])
            assert (store.session.id, store.session.lost) == (before, False)
            assert await store.exists("/e") is not None

    run(test)


def test_what_an_old_connection_still_had_to_say_is_never_carried_out(process: StoreProcess) -> None:
    async def test() -> None:
        endpoint = Endpoint(SystemClock(), CONFIG, name="client", role="client")
        old, new = [await connect(TcpTransport(), process.address, endpoint) for _ in range(2)]
        session = (await old.ask(StoreOpenSession(5000), timeout_ms=1000)).reply.session
        await old.ask(StoreMulti(session, (Create("/a"),), number=1), timeout_ms=1000)
        # The session comes back over another connection; the first sending of a write arrives after its repetition.
        repeated = await new.ask(StoreMulti(session, (Put("/a", b"", ANY_VERSION),), number=2), timeout_ms=1000)
        assert repeated.reply.version == 1
        with pytest.raises(ConnectionLost):
            await old.ask(StoreMulti(session, (Put("/a", b"", ANY_VERSION),), number=3), timeout_ms=1000)
        assert (await new.ask(StoreGet(session, "/a"), timeout_ms=1000)).reply.stat.version == 1
        for peer in (old, new):
            ended = asyncio.Event()
            peer.on_closed(lambda _, ended=ended: ended.set())
            peer.close()
            if peer is new:
                await ended.wait()

    run(test)


def test_a_client_that_is_gone_expires_after_a_restart_too(process: StoreProcess) -> None:
    async def test() -> None:
        async with opened(process.address) as store, opened(process.address) as other:
            await store.create("/e", ephemeral=True)
            store._timer.cancel()
            process.kill()
            await store._link.close()
            process.start()
            clock, restarted_at_ms = SystemClock(), SystemClock().monotonic_ms()

            async def gone() -> bool:
                return await other.exists("/e") is None

            await until(gone, "the session has expired")
            assert clock.monotonic_ms() - restarted_at_ms >= 0.9 * CONFIG.session_timeout_ms

    run(test)


def test_repetitions_are_recognised_after_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        for attempt in range(2):
            engine = Engine(StoreFile(str(tmp_path)), SystemClock())
            await engine.start()
            session = await engine.open_session(60_000) if attempt == 0 else 1
            await engine.write(session, [Create("/a")], number=1)
            assert (await engine.get(session, "/a")).stat.version == 0
            await engine.close()

    run(test)
