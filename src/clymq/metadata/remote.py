"""`RemoteStore`: a client of the embedded store, over the wire.

The connection is made again whenever it is lost (`clymq.rpc.client.Link`); the session goes on over the next one. The
first thing said on it is that the session is alive, then every watch is set again, and then every watcher is told to
read again. A write of `commit` carries a number, and is sent again with the same number until it is answered: the
store applies it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectionLost,
    MetadataError,
    RequestTimeout,
    SessionLost,
    TransportError,
)
from clymq.metadata.paths import ROOT, check_path
from clymq.metadata.store import (
    Create,
    Delete,
    Node,
    Operation,
    Put,
    Session,
    Stat,
    check_operations,
    outcome_unknown,
)
from clymq.metadata.tree import session_name
from clymq.metadata.watch import Watch
from clymq.protocol.store import (
    StoreChildren,
    StoreCloseSession,
    StoreCreate,
    StoreDelete,
    StoreEvent,
    StoreExists,
    StoreGet,
    StoreKeepAlive,
    StoreMulti,
    StoreOpenSession,
    StorePut,
    StoreSync,
    StoreUnwatch,
    StoreWatch,
)
from clymq.protocol.verbs import Reply, Request
from clymq.rpc.client import Link
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Call, Peer
from clymq.rpc.transport import Transport

COMMITS_MAX = 256

R = TypeVar("R", bound=Reply)


class RemoteStore:
    """A `MetadataStore` at an address where a `StoreServer` serves."""

    def __init__(
        self,
        transport: Transport,
        address: str,
        clock: Clock,
        config: Config,
        *,
        name: str,
        chance: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._config = config
        self._address = address
        self._transport = transport
        self._chance = chance
        self._endpoint = Endpoint(clock, config, name=name, role="store client", handlers={StoreEvent: self._happened})
        self._link: Link | None = None
        self._number = 0
        self._session: Session | None = None
        self._timer: Timer | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._watches: dict[str, dict[Watch, None]] = {}
        self._commits = asyncio.Semaphore(COMMITS_MAX)
        self._numbers = itertools.count(1)
        self._unsettled: dict[int, None] = {}

    @property
    def session(self) -> Session:
        """The session that `open` began last."""
        if self._session is None:
            raise ClosedError("the store is not open")
        return self._session

    async def open(self) -> None:
        """Connect, and begin a session, unless there is one."""
        if self._session is not None and not self._session.lost:
            return
        if self._link is None:
            self._link = Link(
                self._transport, self._address, self._endpoint, chance=self._chance, on_open=self._connected
            )
            self._link.start()
        asked_at_ms = self._clock.monotonic_ms()
        try:
            opened = await self._sent(StoreOpenSession(self._config.session_timeout_ms))
        except BaseException:
            await self.close()
            raise
        self._number = opened.session
        self._session = Session(session_name(opened.session), opened.timeout_ms, asked_at_ms)
        self._beat_later(self._session)

    async def close(self) -> None:
        """End the session and the connection."""
        session, link = self._session, self._link
        if link is None:
            return
        self._end(ClosedError("the store was closed"))
        if session is not None and not session.lost and link.peer is not None:
            # Out of reach: then the session runs out by itself.
            with contextlib.suppress(TransportError):
                await self._sent(StoreCloseSession(self._number))
        self._session, self._link = None, None
        await link.close()

    # Reads.

    async def get(self, path: str) -> Node:
        """Read a node, or raise `NodeMissing`."""
        found = await self._ask(StoreGet(self._open_session(), check_path(path)))
        return Node(found.value, found.stat)

    async def exists(self, path: str) -> Stat | None:
        """Return what is known of a node, or None where there is none."""
        return (await self._ask(StoreExists(self._open_session(), check_path(path)))).stat

    async def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted, or raise `NodeMissing`."""
        return list((await self._ask(StoreChildren(self._open_session(), check_path(path)))).names)

    async def sync(self, path: str = ROOT) -> None:
        """Make reads from now on see all that was answered to anybody until now."""
        await self._ask(StoreSync(self._open_session(), check_path(path)))

    async def watch(self, path: str) -> Watch:
        """Begin to watch a node."""
        session = self._open_session()
        watch = Watch(check_path(path), self._unwatch)
        # Among them BEFORE the store knows: its first event must find somebody to tell.
        self._watches.setdefault(path, {})[watch] = None
        try:
            await self._ask(StoreWatch(session, path))
        except BaseException:
            watch.close()
            raise
        return watch

    # Writes.

    async def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node; an ephemeral one goes with the session."""
        create = Create(path, value, ephemeral)
        check_operations([create])
        await self._ask(StoreCreate(self._open_session(), create))

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace a value if the node has this version; return the new one."""
        put = Put(path, value, version)
        check_operations([put])
        return (await self._ask(StorePut(self._open_session(), put))).version

    async def delete(self, path: str, version: int) -> None:
        """Delete a node without children if it has this version."""
        delete = Delete(path, version)
        check_operations([delete])
        await self._ask(StoreDelete(self._open_session(), delete))

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Apply all operations, in order, or none."""
        check_operations(operations)
        await self._ask(StoreMulti(self._open_session(), tuple(operations)))

    async def commit(self, operations: Sequence[Operation], *, timeout_ms: float | None = None) -> None:
        """Do as `multi`, but go on through lost connections until the outcome is known."""
        check_operations(operations)
        deadline_ms = self._clock.monotonic_ms() + (timeout_ms or 2 * self.session.timeout_ms)
        async with self._commits:
            number = next(self._numbers)
            self._unsettled[number] = None
            try:
                await self._commit(self._open_session(), tuple(operations), number, deadline_ms)
            finally:
                del self._unsettled[number]

    async def _commit(self, session: int, operations: tuple[Operation, ...], number: int, deadline_ms: float) -> None:
        unknown: ClymqError | None = None
        while True:
            settled_below = next(iter(self._unsettled))
            try:
                await self._ask(StoreMulti(session, operations, number, settled_below))
            except TransportError as error:
                unknown = error if outcome_unknown(error) else unknown
                if self._clock.monotonic_ms() < deadline_ms:
                    continue
                if unknown is None:
                    raise
                raise RequestTimeout(f"nobody knows whether it was applied: {unknown.message}") from error
            except ClymqError as error:
                judged = isinstance(error, MetadataError) and not isinstance(error, SessionLost)
                if unknown is None or judged:
                    raise
                # What the store remembered of the session's writes went with the session, or it was not looked at.
                raise ConnectionLost(f"nobody knows whether it was applied: {unknown.message}") from error
            return

    # Requests.

    async def _ask(self, request: Request[R]) -> R:
        """Ask in a session; the answer is about that session, which need not be the present one any more."""
        session, number, asked_at_ms = self.session, self._number, self._clock.monotonic_ms()
        asked_of = getattr(request, "session", number)
        if asked_of != number:
            raise SessionLost(f"session {session_name(asked_of)} has ended")
        try:
            reply = await self._sent(request)
        except SessionLost as error:
            self._lose(session, error)
            raise
        session.confirm(asked_at_ms)
        return reply

    async def _sent(self, request: Request[R]) -> R:
        if self._link is None:
            raise ClosedError("the store is not open")
        answer = await self._link.ask(request, timeout_ms=self._config.store_request_ms_max)
        reply: R = answer.reply
        return reply

    def _open_session(self) -> int:
        if self.session.lost:
            raise SessionLost(f"session {self.session.id} has ended")
        return self._number

    # The session, and what it hears.

    def _connected(self, peer: Peer) -> None:
        """There is a connection, and nothing was said on it yet."""
        if self._session is not None and not self._session.lost:
            self._spawn(self._come_back(peer, self._session))

    async def _come_back(self, peer: Peer, session: Session) -> None:
        asked_at_ms, number = self._clock.monotonic_ms(), self._number
        timeout_ms = self._config.store_request_ms_max
        try:
            await peer.ask(StoreKeepAlive(number), timeout_ms=timeout_ms)
            for path in list(self._watches):
                await peer.ask(StoreWatch(number, path), timeout_ms=timeout_ms)
        except SessionLost as error:
            self._lose(session, error)
        except ClymqError as error:
            # The link makes another connection, and on that one we come here again.
            peer.drop(ConnectionLost(f"the session cannot go on over it: {error.message}"))
        else:
            session.confirm(asked_at_ms)
            for watch in itertools.chain.from_iterable(self._watches.values()):
                watch.notify()

    def _beat_later(self, session: Session) -> None:
        self._timer = self._clock.call_later(session.timeout_ms / 4, lambda: self._beat(session))

    def _beat(self, session: Session) -> None:
        self._spawn(self._keep_alive())
        self._beat_later(session)

    async def _keep_alive(self) -> None:
        # Out of reach, or lost: it shows in the session, and whoever asks for something hears of it.
        with contextlib.suppress(ClymqError):
            try:
                await self._ask(StoreKeepAlive(self._open_session()))
            except RequestTimeout as error:
                # Perhaps a new connection gets through; the session cannot wait until this one is known to be dead.
                if self._link is not None and self._link.peer is not None:
                    self._link.peer.drop(ConnectionLost(f"it does not answer: {error.message}"))

    def _happened(self, call: Call) -> None:
        event: StoreEvent = call.request
        if event.session == self._number:
            for watch in self._watches.get(event.path, ()):
                watch.notify()

    def _unwatch(self, watch: Watch) -> None:
        watches = self._watches[watch.path]
        watches.pop(watch, None)
        if not watches:
            del self._watches[watch.path]
            self._spawn(self._stop_watching(watch.path))

    async def _stop_watching(self, path: str) -> None:
        # An event that nobody waits for does no harm: it need not be asked twice.
        with contextlib.suppress(ClymqError):
            if path not in self._watches:
                await self._ask(StoreUnwatch(self._open_session(), path))

    def _lose(self, session: Session, error: SessionLost) -> None:
        if session is self._session and not session.lost:
            self._end(error)
            session.end()

    def _end(self, reason: ClymqError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in [task for task in self._tasks if task is not asyncio.current_task()]:
            task.cancel()
        watches, self._watches = self._watches, {}
        for watch in itertools.chain.from_iterable(watches.values()):
            watch.fail(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
