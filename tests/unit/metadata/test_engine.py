"""The embedded store's engine on virtual time, in memory: order, group commit, repetition, sessions, failing disks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectionLost,
    DiskFailed,
    DiskFull,
    NodeExists,
    NodeMissing,
    Overloaded,
    SessionLost,
)
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import STALL_MS, Engine, Watcher
from clymq.metadata.local import LocalStore
from clymq.metadata.store import ANY_VERSION, Create, Put, outcome_unknown
from clymq.metadata.tree import ANSWERS_MAX


class CountingFile(StoreFile):
    """A store in memory that counts its commits, and fails the next one when told to."""

    def __init__(self) -> None:
        super().__init__(None)
        self.commits = 0
        self.fail_with: ClymqError | None = None
        self.held: list[Callable[[], None]] | None = None

    def transact(self, work: Callable[[], None], done: Callable[[ClymqError | None], None]) -> None:
        self.commits += 1
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            if not isinstance(error, DiskFull):
                self.failure = error
            done(error)
        elif self.held is not None:
            self.held.append(lambda: StoreFile.transact(self, work, done))
        else:
            super().transact(work, done)


class StallingClock(ManualClock):
    """Time that can pass without any timer running, as it does for a process that is stopped."""

    stalled_ms = 0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.stalled_ms


class World:
    def __init__(self) -> None:
        self.clock = StallingClock()
        self.file = CountingFile()
        self.engine = Engine(self.file, self.clock)

    async def pass_ms(self, milliseconds: int) -> None:
        """Let time pass in small steps, and what it starts come to an end."""
        for _ in range(0, milliseconds, 50):
            self.clock.advance(50)
            await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def started() -> None:
        world = World()
        await world.engine.start()
        try:
            async with asyncio.timeout(30):
                await test(world)
        finally:
            await world.engine.close()

    asyncio.run(started())


def test_writes_of_one_turn_are_one_commit_with_an_outcome_for_each() -> None:
    async def test(world: World) -> None:
        session = await world.engine.open_session(5000)
        before = world.file.commits
        outcomes = await asyncio.gather(
            world.engine.write(session, [Create("/a")]),
            world.engine.write(session, [Create("/a")]),
            world.engine.write(session, [Create("/b"), Create("/no/c")]),
            world.engine.get(session, "/a"),
            world.engine.write(session, [Put("/a", b"1", 0)]),
            return_exceptions=True,
        )
        assert world.file.commits == before + 1
        assert [type(outcome).__name__ for outcome in outcomes] == ["int", "NodeExists", "NodeMissing", "Node", "int"]
        # The read came between the two writes, and the refused transaction left nothing.
        assert (outcomes[3].stat.version, outcomes[4]) == (0, 1)
        assert await world.engine.children(session, "/") == ["a"]

    run(test)


def test_nothing_is_answered_and_nobody_is_told_before_the_commit() -> None:
    async def test(world: World) -> None:
        session = await world.engine.open_session(5000)
        told: list[str] = []
        await world.engine.watch(Watcher(session, "/a", lambda: told.append("watcher")))
        world.file.held = []
        write = asyncio.create_task(world.engine.write(session, [Create("/a")]))
        write.add_done_callback(lambda _: told.append("author"))
        await turns()
        read = asyncio.create_task(world.engine.exists(session, "/a"))
        await turns()
        assert (told, write.done(), read.done()) == ([], False, False)
        (release,), world.file.held = world.file.held, None
        release()
        await asyncio.gather(write, read)
        await turns()
        assert told == ["watcher", "author"]
        assert read.result() is not None

    run(test)


def test_reads_need_no_commit() -> None:
    async def test(world: World) -> None:
        session = await world.engine.open_session(5000)
        before = world.file.commits
        await world.engine.exists(session, "/")
        await world.engine.keep_alive(session)
        assert world.file.commits == before

    run(test)


def test_a_repeated_write_is_answered_as_before_and_not_applied_again() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        await engine.write(session, [Create("/a")], number=1)
        assert await engine.write(session, [Put("/a", b"x", ANY_VERSION)], number=2) == 1
        assert await engine.write(session, [Put("/a", b"x", ANY_VERSION)], number=2) == 1
        await engine.write(session, [Create("/a")], number=1)
        assert (await engine.get(session, "/a")).stat.version == 1
        # Another session's number 2 is another write.
        other = await engine.open_session(5000)
        assert await engine.write(other, [Put("/a", b"y", ANY_VERSION)], number=2) == 2

    run(test)


def test_a_write_that_was_refused_is_judged_anew_when_it_comes_again() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        with pytest.raises(NodeMissing):
            await engine.write(session, [Put("/a", b"", ANY_VERSION)], number=1)
        await engine.write(session, [Create("/a")], number=2)
        assert await engine.write(session, [Put("/a", b"", ANY_VERSION)], number=1) == 1

    run(test)


def test_answers_are_forgotten_when_the_client_has_them_and_are_bounded() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        await engine.write(session, [Create("/a")], number=0)
        for number in range(1, ANSWERS_MAX):
            await engine.write(session, [Put("/a", b"", ANY_VERSION)], number=number)
        with pytest.raises(Overloaded):
            await engine.write(session, [Put("/a", b"", ANY_VERSION)], number=ANSWERS_MAX)
        await engine.write(session, [Put("/a", b"", ANY_VERSION)], number=ANSWERS_MAX, settled_below=ANSWERS_MAX)
        assert world.file.answer(session, 5) is None
        assert world.file.answer(session, ANSWERS_MAX) == ANSWERS_MAX

    run(test)


def test_a_silent_session_ends_after_its_timeout_with_its_nodes_and_its_watches() -> None:
    async def test(world: World) -> None:
        ended: list[str] = []
        session = await world.engine.open_session(2000, lambda: ended.append("session"))
        other = await world.engine.open_session(60_000)
        await world.engine.write(session, [Create("/e", b"", True)], number=1)
        await world.engine.watch(Watcher(session, "/e", lambda: ended.append("own watch")))
        await world.engine.watch(Watcher(other, "/e", lambda: ended.append("watch")))
        await world.pass_ms(1900)
        assert ended == []
        await world.pass_ms(400)
        assert ended == ["own watch", "watch", "session"]
        assert await world.engine.exists(other, "/e") is None
        with pytest.raises(SessionLost):
            await world.engine.keep_alive(session)
        with pytest.raises(SessionLost):
            await world.engine.write(session, [Create("/x")], number=1)
        ended.clear()
        await world.engine.write(other, [Create("/e")])
        assert ended == ["watch"]

    run(test)


def test_every_request_keeps_its_session_alive() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(1000)
        for request in (
            lambda: engine.keep_alive(session),
            lambda: engine.exists(session, "/"),
            lambda: engine.write(session, [Put("/", b"", ANY_VERSION)]),
        ):
            await world.pass_ms(800)
            await request()
        await world.pass_ms(800)
        await engine.keep_alive(session)

    run(test)


def test_after_a_stall_nobody_expires_before_a_full_timeout() -> None:
    async def test(world: World) -> None:
        session = await world.engine.open_session(2000)
        world.clock.stalled_ms += 10 * STALL_MS
        await world.pass_ms(1900)
        await world.engine.keep_alive(session)
        await world.pass_ms(2300)
        with pytest.raises(SessionLost):
            await world.engine.keep_alive(session)

    run(test)


def test_a_session_whose_end_cannot_be_written_lives_on() -> None:
    async def test(world: World) -> None:
        session = await world.engine.open_session(1000)
        await world.pass_ms(950)
        world.file.fail_with = DiskFull("store", "no room")
        await world.pass_ms(100)
        await world.engine.keep_alive(session)
        await world.pass_ms(1300)
        with pytest.raises(SessionLost):
            await world.engine.keep_alive(session)

    run(test)


def test_a_full_disk_refuses_writes_and_leaves_reads() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        world.file.fail_with = DiskFull("store", "no room")
        write, read = await asyncio.gather(
            engine.write(session, [Create("/a")]), engine.exists(session, "/a"), return_exceptions=True
        )
        assert isinstance(write, DiskFull)
        assert not outcome_unknown(write)
        assert read is None
        await engine.write(session, [Create("/a")])

    run(test)


def test_after_a_commit_that_failed_nobody_knows_and_nothing_more_is_done() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        world.file.fail_with = DiskFailed("store", "commit to", "input/output error")
        with pytest.raises(ConnectionLost) as caught:
            await engine.write(session, [Create("/a")])
        assert outcome_unknown(caught.value)
        for call in (engine.exists(session, "/a"), engine.keep_alive(session)):
            with pytest.raises(DiskFailed):
                await call

    run(test)


def test_whoever_runs_the_engine_is_told_once_that_its_disk_has_failed_but_not_of_a_full_one() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        told: list[ClymqError] = []
        engine.on_failed = told.append
        world.file.fail_with = DiskFull("store", "no room")
        with pytest.raises(DiskFull):
            await engine.write(session, [Create("/a")])
        assert told == []
        world.file.fail_with = failure = DiskFailed("store", "commit to", "input/output error")
        for _ in range(2):
            with pytest.raises((ConnectionLost, DiskFailed)):
                await engine.write(session, [Create("/a")])
        assert told == [failure]

    run(test)


def test_sessions_have_the_numbers_that_are_drawn_for_them_and_no_two_the_same() -> None:
    async def test(world: World) -> None:
        drawn = iter([0, 7, 7, 2**63 - 9])
        engine = Engine(StoreFile(None), world.clock, lambda: next(drawn))
        await engine.start()
        try:
            assert [await engine.open_session(5000) for _ in range(4)] == [1, 7, 8, 2**63 - 9]
            await engine.write(2**63 - 9, [Create("/a", ephemeral=True)])
            await engine.close_session(2**63 - 9)
            assert await engine.exists(7, "/a") is None
        finally:
            await engine.close()

    run(test)


def test_a_closed_engine_refuses_what_waits_and_finishes_what_runs() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        world.file.held = []
        running = asyncio.create_task(engine.write(session, [Create("/a")]))
        await turns()
        waiting = asyncio.create_task(engine.write(session, [Create("/b")]))
        await turns()
        closing = asyncio.create_task(engine.close())
        await turns()
        assert not closing.done()
        with pytest.raises(ClosedError):
            await waiting
        world.file.held[0]()
        await asyncio.gather(running, closing)
        with pytest.raises(ClosedError):
            await engine.exists(session, "/a")

    run(test)


def test_a_store_whose_disk_does_not_keep_up_refuses_rather_than_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clymq.metadata.engine.REQUESTS_WAITING_MAX", 3)

    async def test(world: World) -> None:
        session = await world.engine.open_session(5000)
        world.file.held = []
        running = asyncio.create_task(world.engine.write(session, [Create("/a")]))
        await turns()
        waiting = [asyncio.create_task(world.engine.exists(session, "/a")) for _ in range(3)]
        await turns()
        with pytest.raises(Overloaded):
            await world.engine.exists(session, "/a")
        world.file.held[0]()
        await asyncio.gather(running, *waiting)

    run(test)


def test_a_watcher_that_is_not_wanted_any_more_is_not_begun() -> None:
    async def test(world: World) -> None:
        engine, session = world.engine, await world.engine.open_session(5000)
        told: list[int] = []
        watcher = Watcher(session, "/a", lambda: told.append(1))
        beginning = asyncio.create_task(engine.watch(watcher))
        engine.unwatch(watcher)
        await beginning
        await engine.write(session, [Create("/a")])
        assert told == []

    run(test)


def test_a_local_store_lives_on_virtual_time() -> None:
    async def test(world: World) -> None:
        store = LocalStore(world.engine, world.clock, Config(session_timeout_ms=2000))
        vanishing = LocalStore(world.engine, world.clock, Config(session_timeout_ms=2000))
        await store.open()
        await vanishing.open()
        await vanishing.create("/e", ephemeral=True)
        with pytest.raises(NodeExists):
            await store.create("/e", ephemeral=True)
        vanishing.abandon()
        await world.pass_ms(1500)
        assert await store.exists("/e") is not None
        await world.pass_ms(1000)
        assert await store.exists("/e") is None
        await world.pass_ms(100_000)
        assert store.session.confirmed_within(world.clock.monotonic_ms())
        assert not store.session.lost

    run(test)


def test_the_same_run_gives_the_same_sessions_and_transactions() -> None:
    histories = []

    async def test(world: World) -> None:
        sessions = [await world.engine.open_session(1000) for _ in range(3)]
        for n in range(5):
            await world.engine.write(sessions[n % 3], [Create(f"/{n}")])
        histories.append((sessions, [await world.engine.get(sessions[0], f"/{n}") for n in range(5)]))

    run(test)
    run(test)
    assert histories[0] == histories[1]
