"""What `clymq.metadata.store` promises, on every store. See `store_subjects` for the stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectFailed,
    EphemeralParent,
    InvalidPath,
    MetadataError,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    SessionLost,
    TransportError,
    ValueTooLarge,
    VersionConflict,
)
from clymq.metadata.store import (
    ANY_VERSION,
    WRITE_BYTES_MAX,
    Check,
    Create,
    Delete,
    MetadataStore,
    Put,
    outcome_unknown,
)
from clymq.metadata.watch import Watch
from store_subjects import ALL, REMOTE, EngineSubject, Subject, on, until, zookeeper

__all__ = ["zookeeper"]  # the fixture

# --- Nodes ---


@on(*ALL)
async def test_a_node_is_created_read_written_and_deleted(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"one")
    node = await store.get("/a")
    assert (node.value, node.stat.version, node.stat.ephemeral_owner) == (b"one", 0, None)
    assert await store.put("/a", b"two", 0) == 1
    assert await store.put("/a", b"", ANY_VERSION) == 2
    written = await store.get("/a")
    assert (written.value, written.stat.version) == (b"", 2)
    assert written.stat.created == node.stat.created < written.stat.modified
    assert await store.exists("/a") == written.stat
    await store.delete("/a", 2)
    assert await store.exists("/a") is None


@on(*ALL)
async def test_a_node_that_is_made_again_is_told_from_the_one_before(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"x")
    before = (await store.get("/a")).stat
    await store.delete("/a", ANY_VERSION)
    await store.create("/a", b"x")
    after = (await store.get("/a")).stat
    assert (before.version, after.version) == (0, 0)
    assert before.created < after.created


@on(*ALL)
async def test_children_are_names_in_order_and_only_the_next_level(subject: Subject) -> None:
    store = await subject.open()
    for path in ("/a", "/a/b", "/a/b/deep", "/a/c", "/a/%E5%8C%97", "/ab"):
        await store.create(path)
    assert await store.children("/a") == ["%E5%8C%97", "b", "c"]
    assert await store.children("/") == ["a", "ab"]
    assert await store.children("/a/c") == []


REFUSALS: list[tuple[Callable[[MetadataStore], Awaitable[object]], type[MetadataError], str]] = [
    (lambda store: store.get("/no"), NodeMissing, "/no"),
    (lambda store: store.children("/no"), NodeMissing, "/no"),
    (lambda store: store.put("/no", b"", ANY_VERSION), NodeMissing, "/no"),
    (lambda store: store.delete("/no", ANY_VERSION), NodeMissing, "/no"),
    (lambda store: store.create("/no/a"), NodeMissing, "/no"),
    (lambda store: store.create("/a"), NodeExists, "/a"),
    (lambda store: store.put("/a", b"", 7), VersionConflict, "/a"),
    (lambda store: store.delete("/a/b", 7), VersionConflict, "/a/b"),
    (lambda store: store.delete("/a", ANY_VERSION), NodeNotEmpty, "/a"),
    (lambda store: store.create("/e/a"), EphemeralParent, "/e/a"),
    (lambda store: store.get("a"), InvalidPath, "a"),
    (lambda store: store.get("/a/"), InvalidPath, "/a/"),
    (lambda store: store.create("/a//b"), InvalidPath, "/a//b"),
    (lambda store: store.create("/a/../b"), InvalidPath, "/a/../b"),
    (lambda store: store.create("/北京"), InvalidPath, "北京"),
    (lambda store: store.create("/a\0"), InvalidPath, "/a"),
    (lambda store: store.create("/"), InvalidPath, "/"),
    (lambda store: store.delete("/", ANY_VERSION), InvalidPath, "/"),
    (lambda store: store.watch("nowhere"), InvalidPath, "nowhere"),
    (lambda store: store.put("/a", bytes(WRITE_BYTES_MAX), ANY_VERSION), ValueTooLarge, "/a"),
    (lambda store: store.multi([Put("/a", bytes(WRITE_BYTES_MAX // 2), -1)] * 2), ValueTooLarge, "/a"),
]


@on(*ALL)
async def test_what_cannot_be_done_is_refused_by_name_and_changes_nothing(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"kept")
    await store.create("/a/b")
    await store.create("/e", ephemeral=True)
    before = await store.get("/a")
    for call, refusal, path in REFUSALS:
        with pytest.raises(refusal) as caught:
            await call(store)
        assert type(caught.value) is refusal
        assert path in str(caught.value)
        assert not outcome_unknown(caught.value)
    assert await store.get("/a") == before
    assert await store.children("/") == ["a", "e"]


@on(*ALL)
async def test_a_value_of_the_largest_size_is_stored(subject: Subject) -> None:
    store = await subject.open()
    value = random.Random(1).randbytes(WRITE_BYTES_MAX - 200)
    await store.create("/large", value)
    assert (await store.get("/large")).value == value


# --- Transactions ---


@on(*ALL)
async def test_a_transaction_does_all_in_order(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"0")
    await store.create("/old")
    await store.multi(
        [Check("/a", 0), Put("/a", b"1", 0), Put("/a", b"2", 1), Create("/b", b"x"), Create("/b/c"), Delete("/old", 0)]
    )
    assert (await store.get("/a")).stat.version == 2
    assert await store.children("/") == ["a", "b"]
    assert await store.children("/b") == ["c"]
    await store.multi([])


@on(*ALL)
async def test_a_transaction_that_fails_does_nothing_and_names_the_first_that_cannot_be(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"0")
    for last, refusal in (
        (Check("/a", 5), VersionConflict),
        (Check("/no", ANY_VERSION), NodeMissing),
        (Create("/a"), NodeExists),
        (Delete("/no", ANY_VERSION), NodeMissing),
        (Create("/no/c"), NodeMissing),
    ):
        for apply in (store.multi, store.commit):
            with pytest.raises(refusal):
                await apply([Create("/b"), Put("/a", b"1", 0), last, Create("/never")])
    assert await store.children("/") == ["a"]
    assert (await store.get("/a")).stat.version == 0


@on(*ALL)
async def test_of_many_who_write_the_same_version_one_succeeds(subject: Subject) -> None:
    stores = [await subject.open() for _ in range(4)]
    await stores[0].create("/a", b"0")
    for version in range(10):
        outcomes = await asyncio.gather(
            *(store.put("/a", b"%d" % n, version) for n, store in enumerate(stores)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict"] * 3 + ["int"]


@on(*ALL)
async def test_many_commits_at_once_are_each_applied_once(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a")
    await asyncio.gather(*(store.commit([Create(f"/a/{n:03}"), Put("/a", b"", ANY_VERSION)]) for n in range(100)))
    assert len(await store.children("/a")) == 100
    assert (await store.get("/a")).stat.version == 100


@on(*ALL)
async def test_what_one_client_was_answered_another_sees_after_a_sync(subject: Subject) -> None:
    writer, reader = await subject.open(), await subject.open()
    await writer.create("/a", b"0")
    for n in range(50):
        await writer.put("/a", b"%d" % n, n)
        await reader.sync("/a")
        assert (await reader.get("/a")).value == b"%d" % n


# --- Sessions ---


@on(*ALL)
async def test_an_ephemeral_node_names_its_session_and_goes_when_it_is_closed(subject: Subject) -> None:
    store, other = await subject.open(), await subject.open()
    await store.create("/e", b"x", ephemeral=True)
    await store.create("/stays")
    await other.sync()
    stat = await other.exists("/e")
    assert stat is not None
    assert stat.ephemeral_owner == store.session.id != other.session.id
    await store.close()
    await other.sync()
    assert await other.children("/") == ["stays"]


@on(*ALL)
async def test_a_closed_store_says_so(subject: Subject) -> None:
    store = await subject.open()
    watch = await store.watch("/a")
    await store.close()
    await store.close()
    for call in (store.get("/a"), store.create("/a"), store.commit([Create("/a")]), watch.changed()):
        with pytest.raises(ClosedError):
            await call


@on(*ALL)
async def test_a_store_can_be_opened_twice_and_again_after_it_was_closed(subject: Subject) -> None:
    store = await subject.open()
    first = store.session
    await store.create("/e", ephemeral=True)
    await store.open()
    assert store.session is first
    await store.close()
    await store.open()
    assert store.session.id != first.id
    assert await store.children("/") == []


@on(*ALL)
async def test_an_idle_session_is_confirmed_again_and_again(subject: Subject) -> None:
    store = await subject.open(session_timeout_ms=2000)
    assert store.session.timeout_ms == 2000
    began_ms = subject.clock.monotonic_ms()
    seen: set[float] = set()

    async def longer_than_the_timeout() -> bool:
        now_ms = subject.clock.monotonic_ms()
        seen.add(store.session.confirmed_at_ms)
        assert store.session.confirmed_at_ms <= now_ms
        return now_ms - began_ms > 2500 and len(seen) >= 4

    await until(longer_than_the_timeout, "the session was confirmed several times")
    assert not store.session.lost
    await store.sync()


@on(*REMOTE)
async def test_a_client_that_is_cut_off_knows_that_its_session_is_not_confirmed(subject: Subject) -> None:
    proxy = await subject.proxy()
    store = await subject.open(through=proxy, session_timeout_ms=1500, store_request_ms_max=200)
    assert store.session.confirmed_within(subject.clock.monotonic_ms())
    proxy.refuse()

    async def doubtful() -> bool:
        return not store.session.confirmed_within(subject.clock.monotonic_ms())

    await until(doubtful, "the session is in doubt")
    assert subject.clock.monotonic_ms() - store.session.confirmed_at_ms >= 1000
    assert not store.session.lost
    proxy.accept()

    async def trusted() -> bool:
        return store.session.confirmed_within(subject.clock.monotonic_ms()) or store.session.lost

    await until(trusted, "the session is confirmed again, or lost")


@on(*REMOTE)
async def test_a_client_that_is_cut_off_gets_an_error_in_time_and_not_silence(subject: Subject) -> None:
    proxy = await subject.proxy()
    store = await subject.open(through=proxy, store_request_ms_max=300)
    await store.create("/a", b"0")
    proxy.refuse()
    with pytest.raises(TransportError):
        await store.get("/a")
    with pytest.raises(ConnectFailed):
        await store.put("/a", b"1", 0)
    proxy.accept()
    await store.commit([Put("/a", b"2", 0)])
    proxy.freeze()
    with pytest.raises(TransportError) as caught:
        await store.put("/a", b"3", 1)
    assert outcome_unknown(caught.value)
    proxy.thaw()


@on(*REMOTE)
async def test_a_client_that_was_cut_off_longer_than_its_timeout_has_lost_its_session(subject: Subject) -> None:
    proxy = await subject.proxy()
    other = await subject.open()
    store = await subject.open(through=proxy, session_timeout_ms=1000, store_request_ms_max=500)
    await store.create("/e", ephemeral=True)
    watch, lost = await store.watch("/e"), asyncio.Event()
    store.session.on_lost(lost.set)
    old = store.session
    proxy.refuse()

    async def gone() -> bool:
        await other.sync()
        return await other.exists("/e") is None

    await until(gone, "the ephemeral node of an expired session is gone")
    assert not lost.is_set()
    proxy.accept()
    async with asyncio.timeout(10):
        await lost.wait()
    assert old.lost
    for call in (store.get("/"), store.create("/x"), store.multi([Create("/x")]), store.commit([Create("/x")])):
        with pytest.raises(SessionLost):
            await call
    with pytest.raises(SessionLost):
        await watch.changed()
    # Only when it is asked for is there another session.
    await store.open()
    assert store.session.id != old.id
    await store.create("/e", ephemeral=True)
    assert await store.children("/") == ["e"]


@on("embedded", "zookeeper")
async def test_a_short_cut_costs_neither_session_nor_ephemeral_nodes(subject: Subject) -> None:
    proxy = await subject.proxy()
    store = await subject.open(through=proxy)
    await store.create("/e", ephemeral=True)
    before = store.session.id
    for _ in range(5):
        proxy.cut()
        await store.commit([Put("/e", b"", ANY_VERSION)])
    stat = await store.exists("/e")
    assert stat is not None
    assert (stat.ephemeral_owner, stat.version, store.session.id) == (before, 5, before)


@on("local", "embedded")
async def test_a_client_that_vanishes_leaves_its_nodes_until_its_session_runs_out(subject: Subject) -> None:
    assert isinstance(subject, EngineSubject)
    other = await subject.open()
    number = await subject.engine.open_session(700)
    await subject.engine.write(number, [Create("/e", b"", True)])
    watch = await other.watch("/e")
    assert await other.exists("/e") is not None
    async with asyncio.timeout(10):
        await watch.changed()
    assert await other.exists("/e") is None
    with pytest.raises(SessionLost):
        await subject.engine.keep_alive(number)


# --- Watches ---


async def told(watch: Watch) -> bool:
    """Say whether a watcher is told of something soon."""
    try:
        async with asyncio.timeout(10):
            await watch.changed()
    except TimeoutError:
        return False
    return True


@on(*ALL)
async def test_a_watch_tells_of_every_kind_of_change(subject: Subject) -> None:
    store, other = await subject.open(), await subject.open()
    watch = await store.watch("/a")
    await other.create("/a", b"0")
    assert await told(watch)
    assert (await store.get("/a")).value == b"0"
    await other.put("/a", b"1", 0)
    assert await told(watch)
    assert (await store.get("/a")).value == b"1"
    await other.create("/a/b")
    assert await told(watch)
    assert await store.children("/a") == ["b"]
    await other.delete("/a/b", 0)
    assert await told(watch)
    assert await store.children("/a") == []
    await other.delete("/a", 1)
    assert await told(watch)
    assert await store.exists("/a") is None
    await other.multi([Create("/a"), Create("/a/b")])
    assert await told(watch)
    assert await store.children("/a") == ["b"]


@on(*ALL)
async def test_a_watch_never_misses_a_change_and_never_tells_before_it_can_be_read(subject: Subject) -> None:
    """Each round changes the node once. A watch that misses it, or tells it before a read sees it, hangs here."""
    store, other = await subject.open(), await subject.open()
    await store.create("/a", b"0")
    watch = await store.watch("/a")
    for n in range(1, 60):
        writing = asyncio.create_task(other.put("/a", b"%d" % n, ANY_VERSION))
        while (await store.get("/a")).value != b"%d" % n:
            assert await told(watch), f"change {n} was missed"
        await writing


@on(*ALL)
async def test_the_last_of_many_changes_is_always_told(subject: Subject) -> None:
    store, other = await subject.open(), await subject.open()
    await store.create("/a", b"0")
    watches = [await store.watch("/a") for _ in range(3)]
    chance = random.Random(7)

    async def write() -> None:
        for n in range(1, 201):
            await other.put("/a", b"%d" % n, ANY_VERSION)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() / 100)

    async def follow(watch: Watch) -> list[int]:
        seen = [int((await store.get("/a")).value)]
        while seen[-1] < 200:
            assert await told(watch), f"nothing after {seen[-1]}"
            seen.append(int((await store.get("/a")).value))
        return seen

    *histories, _ = await asyncio.gather(*map(follow, watches), write())
    assert all(history == sorted(history) for history in histories)


@on(*ALL)
async def test_a_closed_watch_is_told_nothing_and_its_neighbours_are(subject: Subject) -> None:
    store = await subject.open()
    await store.create("/a", b"0")
    closed, kept = await store.watch("/a"), await store.watch("/a")
    closed.close()
    closed.close()
    await store.put("/a", b"1", 0)
    assert await told(kept)
    with pytest.raises(ClosedError):
        await closed.changed()
    kept.close()
    await store.put("/a", b"2", 1)
    again = await store.watch("/a")
    await store.put("/a", b"3", 2)
    assert await told(again)


@on(*REMOTE)
async def test_a_watcher_whose_connection_was_lost_is_told_to_read_again(subject: Subject) -> None:
    proxy = await subject.proxy()
    store, other = await subject.open(through=proxy), await subject.open()
    await store.create("/a", b"0")
    watches = [await store.watch("/a"), await store.watch("/not/there")]
    for n in range(5):
        proxy.refuse()
        await other.put("/a", b"%d" % n, n)
        proxy.accept()
        for watch in watches:
            assert await told(watch)
        assert (await store.get("/a")).value == b"%d" % n
    # And what happens afterwards is told as well; one of these could be told for the last connection, not all.
    for n in range(5, 8):
        await other.put("/a", b"%d" % n, n)
        assert await told(watches[0])


# --- The connection is cut in the middle of a call ---

WRITES: dict[str, tuple[Callable[[MetadataStore], Awaitable[object]], type[MetadataError]]] = {
    "create": (lambda store: store.create("/marker", b"new"), NodeExists),
    "put": (lambda store: store.put("/marker-put", b"new", 0), VersionConflict),
    "delete": (lambda store: store.delete("/marker-delete", 0), NodeMissing),
    "multi": (lambda store: store.multi([Create("/marker", b"new"), Put("/count", b"", 0)]), NodeExists),
}


async def prepared(store: MetadataStore) -> None:
    for path in ("/marker-put", "/marker-delete", "/count"):
        await store.create(path, b"old")


async def state_of(store: MetadataStore) -> list[object]:
    await store.sync()
    return [await store.exists(path) for path in ("/marker", "/marker-put", "/marker-delete", "/count")]


@pytest.mark.parametrize("call", WRITES)
@on(*REMOTE)
async def test_a_write_whose_request_was_lost_is_unknown_and_can_be_tried_again(subject: Subject, call: str) -> None:
    write, _ = WRITES[call]
    other = await subject.open()
    await prepared(other)
    before = await state_of(other)
    proxy = await subject.proxy()
    store = await subject.open(through=proxy)
    proxy.cut_before(b"/marker")
    with pytest.raises(TransportError) as caught:
        await write(store)
    assert outcome_unknown(caught.value)
    assert proxy.struck.is_set()
    assert await state_of(other) == before
    await write(store)
    assert await state_of(other) != before


@pytest.mark.parametrize("call", WRITES)
@on(*REMOTE)
async def test_a_write_whose_answer_was_lost_is_unknown_and_never_applied_twice(subject: Subject, call: str) -> None:
    write, refusal = WRITES[call]
    other = await subject.open()
    await prepared(other)
    before = await state_of(other)
    proxy = await subject.proxy()
    store = await subject.open(through=proxy)
    proxy.hold_after(b"/marker")
    writing = asyncio.create_task(write(store))

    async def applied() -> bool:
        return await state_of(other) != before

    await until(applied, "the write was applied")
    after = await state_of(other)
    proxy.cut()
    with pytest.raises(TransportError) as caught:
        await writing
    assert outcome_unknown(caught.value)
    with pytest.raises(refusal):
        await write(store)
    assert await state_of(other) == after


@on(*REMOTE)
async def test_a_commit_whose_request_was_lost_is_applied_once(subject: Subject) -> None:
    proxy, other = await subject.proxy(), await subject.open()
    store = await subject.open(through=proxy)
    await store.create("/count", b"")
    for n in range(3):
        proxy.cut_before(b"/marker")
        await store.commit([Put("/count", b"", ANY_VERSION), Create(f"/marker-{n}")])
        assert proxy.struck.is_set()
    await other.sync()
    assert (await other.get("/count")).stat.version == 3


@on(*REMOTE)
async def test_a_commit_whose_answer_was_lost_is_applied_once(subject: Subject) -> None:
    proxy, other = await subject.proxy(), await subject.open()
    store = await subject.open(through=proxy)
    await store.create("/count", b"")
    # A create, whose repetition would be refused; and an unconditional put, whose repetition would count twice.
    for n, operation in enumerate((Create("/marker"), Put("/marker", b"x", ANY_VERSION), Delete("/marker", 1))):
        proxy.hold_after(b"/marker")
        committing = asyncio.create_task(store.commit([operation, Put("/count", b"", ANY_VERSION)]))

        async def applied(version: int = n + 1) -> bool:
            await other.sync()
            return (await other.get("/count")).stat.version == version

        await until(applied, "the commit was applied")
        proxy.cut()
        await committing
    await other.sync()
    assert (await other.get("/count")).stat.version == 3
    assert await other.exists("/marker") is None


@on(*REMOTE)
async def test_a_commit_that_is_unknown_when_its_session_is_lost_stays_unknown_and_out_of_the_next_session(
    subject: Subject,
) -> None:
    proxy, other = await subject.proxy(), await subject.open()
    store = await subject.open(through=proxy, session_timeout_ms=1000, store_request_ms_max=300)
    await store.create("/e", ephemeral=True)
    lost = asyncio.Event()
    store.session.on_lost(lost.set)
    proxy.hold_after(b"/marker")
    committing = asyncio.create_task(store.commit([Create("/marker")], timeout_ms=30_000))
    await proxy.struck.wait()
    proxy.refuse()

    async def expired() -> bool:
        await other.sync()
        return await other.exists("/e") is None

    await until(expired, "the session has expired")
    proxy.accept()
    await lost.wait()
    await store.open()
    with pytest.raises(TransportError) as caught:
        await committing
    assert outcome_unknown(caught.value)
    await store.commit([Create("/fresh")])
    assert not store.session.lost
    await store.sync()
    assert await store.children("/") == ["fresh", "marker"]


@on(*REMOTE)
async def test_commits_under_random_cuts_are_each_applied_exactly_once(subject: Subject) -> None:
    proxy, chance = await subject.proxy(), random.Random(3)
    store, other = await subject.open(through=proxy), await subject.open()
    await store.create("/count", b"")
    done = asyncio.Event()

    async def cut() -> None:
        while not done.is_set():
            await asyncio.sleep(chance.random() / 20)
            proxy.cut()

    async def commit(worker: int) -> int:
        refused = 0
        for n in range(15):
            try:
                await store.commit([Create(f"/{worker}-{n}"), Put("/count", b"", ANY_VERSION)], timeout_ms=20_000)
            except ClymqError:
                refused += 1
        return refused

    cutting = asyncio.create_task(cut())
    assert await asyncio.gather(*map(commit, range(4))) == [0] * 4
    done.set()
    await cutting
    await other.sync()
    assert (await other.get("/count")).stat.version == 60
    assert len(await other.children("/")) == 61
