"""The embedded store itself: requests in, answers and events out, in one order and never before they are durable.

Requests that arrive while a transaction is being committed, or in the same turn of the event loop, gather; the next
transaction takes them all, each with a savepoint and an outcome of its own: that is group commit. After the commit,
on the event loop and in the order of the requests, watchers are told and then the request is answered. So

* nothing is answered or told BEFORE it is on the disk, and a read sees only what is;
* a watcher hears of a change before its author's answer leaves, and after reads see it;
* a watch begins between two requests: what came before it is not told, what came after it is.

Reads among themselves need no commit and are answered at once. A disk that failed to commit ends the engine: the
writes under way have an unknown outcome, and everything after is refused until a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clymq.clock import Clock, Timer
from clymq.errors import ClosedError, ClymqError, ConnectionLost, DiskFull, Overloaded
from clymq.metadata.embedded import StoreFile
from clymq.metadata.lifetimes import Lifetimes
from clymq.metadata.paths import check_path
from clymq.metadata.store import Node, Operation, Stat, check_operations
from clymq.metadata.tree import Tree

REQUESTS_PER_COMMIT_MAX = 1000
REQUESTS_WAITING_MAX = 100_000
TICK_MS = 250
STALL_MS = 1000

T = TypeVar("T")


@dataclass(eq=False)
class Watcher:
    """Somebody who wants to hear of a path, until `unwatch` or the end of the session."""

    session: int
    path: str
    listener: Callable[[], None]
    wanted: bool = True


@dataclass(eq=False)
class _Request:
    work: Callable[[], Any]
    writes: bool
    answer: asyncio.Future[Any]
    then: Callable[[Any], None] | None = None
    result: Any = None
    error: ClymqError | None = None
    changed: list[str] = field(default_factory=list)


class Engine:
    """One store. Everything but `work` runs on the event loop; sessions are numbers here."""

    def __init__(self, file: StoreFile, clock: Clock, draw_session: Callable[[], int] | None = None) -> None:
        """`draw_session` gives the numbers of sessions, so that nobody can guess another's; else they are counted."""
        self.on_failed: Callable[[ClymqError], None] = lambda _: None
        """Told once, when the disk has failed and everything is refused from then on."""
        self._file = file
        self._clock = clock
        self._tree = Tree(file, draw_session)
        self._lifetimes = Lifetimes(clock.monotonic_ms(), STALL_MS, TICK_MS)
        self._waiting: list[_Request] = []
        self._running: list[_Request] | None = None
        self._scheduled = False
        self._closed = True
        self._idle: asyncio.Future[None] | None = None
        self._timer: Timer | None = None
        self._watchers: dict[str, list[Watcher]] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self._on_end: dict[int, Callable[[], None]] = {}

    async def start(self) -> None:
        """Open the file; every session that it knows has a full timeout from now."""
        self._file.open()
        sessions: dict[int, int] = {}
        problem = self._file.read(lambda: sessions.update(self._file.sessions()))
        if problem is not None:
            self._file.close()
            raise problem
        self._closed = False
        self._lifetimes = Lifetimes(self._clock.monotonic_ms(), STALL_MS, TICK_MS)
        for session, timeout_ms in sessions.items():
            self._lifetimes.begin(session, timeout_ms, self._clock.monotonic_ms())
        self._timer = self._clock.call_later(TICK_MS, self._tick)

    async def close(self) -> None:
        """Finish what is being committed, refuse the rest, and let go of the file. Sessions live on in it."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            _settle(request, ClosedError("the store is closing"))
        if self._running is not None:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
            self._idle = None
        self._file.close()

    # Sessions.

    async def open_session(self, timeout_ms: int, on_end: Callable[[], None] | None = None) -> int:
        """Begin a session; `on_end` is called when it has ended."""

        def begun(session: int) -> None:
            self._lifetimes.begin(session, timeout_ms, self._clock.monotonic_ms())
            if on_end is not None:
                self._on_end[session] = on_end

        return await self._submit(lambda: self._tree.open_session(timeout_ms), writes=True, then=begun)

    def touch(self, session: int) -> bool:
        """Hear of a session, without an answer; False if it has ended or is about to."""
        return self._lifetimes.touch(session, self._clock.monotonic_ms())

    async def keep_alive(self, session: int) -> None:
        """Let a session live another timeout from now, or raise `SessionLost`."""
        await self._read(session, lambda: None)

    async def close_session(self, session: int) -> None:
        """End a session and its ephemeral nodes."""
        await self._submit(
            lambda: self._tree.end_session(session), writes=True, then=lambda _: self._session_ended(session)
        )

    def _session_ended(self, session: int) -> None:
        self._lifetimes.end(session)
        for path in [path for path, watchers in self._watchers.items() if any(w.session == session for w in watchers)]:
            self._keep_watchers(path, [w for w in self._watchers[path] if w.session != session])
        on_end = self._on_end.pop(session, None)
        if on_end is not None:
            on_end()

    # Reads.

    async def get(self, session: int, path: str) -> Node:
        """Read a node."""
        check_path(path)
        return await self._read(session, lambda: self._tree.get(path))

    async def exists(self, session: int, path: str) -> Stat | None:
        """Return what is known of a node."""
        check_path(path)
        return await self._read(session, lambda: self._tree.exists(path))

    async def children(self, session: int, path: str) -> list[str]:
        """Return the names below a node."""
        check_path(path)
        return await self._read(session, lambda: self._tree.children(path))

    async def watch(self, watcher: Watcher) -> None:
        """Call the watcher's listener after every change of its path from now on."""
        check_path(watcher.path)

        def begin(_: None) -> None:
            if watcher.wanted:
                self._watchers.setdefault(watcher.path, []).append(watcher)

        await self._read(watcher.session, lambda: None, begin)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell a watcher nothing more, nor begin to."""
        watcher.wanted = False
        self._keep_watchers(watcher.path, [w for w in self._watchers.get(watcher.path, []) if w is not watcher])

    def _keep_watchers(self, path: str, watchers: list[Watcher]) -> None:
        if watchers:
            self._watchers[path] = watchers
        else:
            self._watchers.pop(path, None)

    # Writes.

    async def write(
        self, session: int, operations: Sequence[Operation], *, number: int | None = None, settled_below: int = 0
    ) -> int:
        """Apply all operations or none; return the version that the last one left.

        `number` tells a request of the session from its repetition, which is answered but not applied again; below
        `settled_below` the client has its answers and will not repeat.
        """
        check_operations(operations)
        self.touch(session)

        def work() -> int:
            self._tree.need_session(session)
            return self._tree.write(session, operations, number, settled_below)

        return await self._submit(work, writes=True)

    # The queue.

    async def _read(self, session: int, work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
        self.touch(session)

        def checked() -> T:
            self._tree.need_session(session)
            return work()

        return await self._submit(checked, writes=False, then=then)

    async def _submit(self, work: Callable[[], T], *, writes: bool, then: Callable[[T], None] | None = None) -> T:
        if self._closed:
            raise ClosedError("the store is closed")
        if self._file.failure is not None:
            # Unlike what was under way when it failed, this never reaches the disk: that much is certain.
            raise self._file.failure.with_traceback(None)
        if len(self._waiting) >= REQUESTS_WAITING_MAX:
            raise Overloaded(f"{REQUESTS_WAITING_MAX} requests wait for the store's disk; this one was not looked at")
        loop = asyncio.get_running_loop()
        request = _Request(work, writes, loop.create_future(), then)
        self._waiting.append(request)
        self._schedule()
        result: T = await request.answer
        return result

    def _schedule(self) -> None:
        if self._waiting and self._running is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if not self._waiting or self._running is not None:
            return
        batch = self._waiting[:REQUESTS_PER_COMMIT_MAX]
        del self._waiting[:REQUESTS_PER_COMMIT_MAX]
        self._running = batch
        if any(request.writes for request in batch):
            self._file.transact(lambda: self._write_all(batch), self._done)
        else:
            self._done(self._file.read(lambda: self._carry_out_all(batch)))

    def _write_all(self, batch: list[_Request]) -> None:
        """Carry out a batch inside a transaction, away from the event loop."""
        self._tree.begin()
        self._carry_out_all(batch)
        self._tree.finish()

    def _carry_out_all(self, batch: list[_Request]) -> None:
        for request in batch:
            self._carry_out(request)

    def _carry_out(self, request: _Request) -> None:
        try:
            if request.writes:
                with self._file.savepoint():
                    request.result = request.work()
            else:
                request.result = request.work()
            request.changed = self._tree.changed
        except ClymqError as error:
            request.error = error
        self._tree.changed = []

    def _done(self, failure: ClymqError | None) -> None:
        """The batch is durable, or was undone, or nobody knows."""
        batch, self._running = self._running, None
        assert batch is not None
        if failure is None:
            self._answer(batch)
        else:
            self._give_up(batch, failure)
        if self._idle is not None:
            self._idle.set_result(None)
        if failure is not None and self._file.failure is not None:
            on_failed, self.on_failed = self.on_failed, lambda _: None
            on_failed(failure)
        self._schedule()

    def _answer(self, batch: list[_Request]) -> None:
        for request in batch:
            for watcher in self._to_tell(request.changed):
                watcher.listener()
            if request.error is None and request.then is not None:
                request.then(request.result)
            _settle(request, request.error)

    def _to_tell(self, changed: list[str]) -> list[Watcher]:
        return [watcher for path in dict.fromkeys(changed) for watcher in self._watchers.get(path, [])]

    def _give_up(self, batch: list[_Request], failure: ClymqError) -> None:
        if self._file.failure is None and any(request.writes for request in batch):
            # A full disk: the writes were undone, and what was there stays readable.
            self._waiting[:0] = [request for request in batch if not request.writes]
            batch = [request for request in batch if request.writes]
        for request in batch:
            if request.writes and not isinstance(failure, DiskFull):
                _settle(request, ConnectionLost(f"nobody knows whether this was stored: {failure.message}"))
            else:
                _settle(request, failure)

    # Time.

    async def _expire(self, session: int, timeout_ms: int) -> None:
        try:
            await self.close_session(session)
        except ClymqError:
            # It could not be ended (a full disk), so it lives on, and its client may still come back.
            self._lifetimes.begin(session, timeout_ms, self._clock.monotonic_ms())

    def _tick(self) -> None:
        for session in self._lifetimes.overdue(self._clock.monotonic_ms()):
            # From here on nothing that the session sends can save it: it is judged behind its end in the queue.
            self._ends.add(task := asyncio.create_task(self._expire(session, self._lifetimes.end(session))))
            task.add_done_callback(self._ends.discard)
        self._timer = self._clock.call_later(TICK_MS, self._tick)


def _settle(request: _Request, error: ClymqError | None) -> None:
    if request.answer.done():
        return  # whoever asked has gone away
    if error is None:
        request.answer.set_result(request.result)
    else:
        request.answer.set_exception(error)
