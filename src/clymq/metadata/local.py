"""`LocalStore`: a client of an engine in the same process, without a socket.

The zkserver that holds the store uses it, and on a `StoreFile(None)` it is the in-memory twin of both real stores, for
tests and for virtual time. It has a session like every client, kept alive by a timer, so that nothing above it has to
know that the store is near.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import ClosedError, SessionLost
from clymq.metadata.engine import Engine, Watcher
from clymq.metadata.paths import ROOT
from clymq.metadata.store import Create, Delete, Node, Operation, Put, Session, Stat
from clymq.metadata.tree import session_name
from clymq.metadata.watch import Watch


class LocalStore:
    """A `MetadataStore` on an engine; the engine is started and closed by whoever made it."""

    def __init__(self, engine: Engine, clock: Clock, config: Config) -> None:
        self._engine = engine
        self._clock = clock
        self._session_timeout_ms = config.session_timeout_ms
        self._number = 0
        self._session: Session | None = None
        self._timer: Timer | None = None
        self._watchers: dict[Watch, Watcher] = {}

    @property
    def session(self) -> Session:
        """The session that `open` began last."""
        if self._session is None:
            raise ClosedError("the store is not open")
        return self._session

    async def open(self) -> None:
        """Begin a session, unless there is one."""
        if self._session is not None and not self._session.lost:
            return
        session = Session("", self._session_timeout_ms, self._clock.monotonic_ms())
        self._number = await self._engine.open_session(self._session_timeout_ms, lambda: self._ended(session))
        session.id = session_name(self._number)
        self._session = session
        self._timer = self._clock.call_later(self._session_timeout_ms / 4, self._beat)

    async def close(self) -> None:
        """End the session."""
        if self._session is None:
            return
        number, lost = self._number, self._session.lost
        self.abandon()
        if not lost:
            with contextlib.suppress(ClosedError):  # the engine was closed before: the session runs out after its start
                await self._engine.close_session(number)

    def abandon(self) -> None:
        """Vanish without a word, as a killed process does: the session lives on until it runs out."""
        if self._timer is not None:
            self._timer.cancel()
        for watch in list(self._watchers):
            watch.close()
        self._session = None

    async def get(self, path: str) -> Node:
        """Read a node, or raise `NodeMissing`."""
        return await self._engine.get(self._open_session(), path)

    async def exists(self, path: str) -> Stat | None:
        """Return what is known of a node, or None where there is none."""
        return await self._engine.exists(self._open_session(), path)

    async def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted, or raise `NodeMissing`."""
        return await self._engine.children(self._open_session(), path)

    async def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node; an ephemeral one goes with the session."""
        await self._write([Create(path, value, ephemeral)])

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace a value if the node has this version; return the new one."""
        return await self._write([Put(path, value, version)])

    async def delete(self, path: str, version: int) -> None:
        """Delete a node without children if it has this version."""
        await self._write([Delete(path, version)])

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Apply all operations, in order, or none."""
        await self._write(operations)

    async def commit(self, operations: Sequence[Operation], *, timeout_ms: float | None = None) -> None:
        """Do as `multi`: with no connection in between there is nothing to be lost and nothing to wait for."""
        del timeout_ms
        await self._write(operations)

    async def watch(self, path: str) -> Watch:
        """Begin to watch a node."""
        watch = Watch(path, self._unwatch)
        watcher = Watcher(self._open_session(), path, watch.notify)
        # Among them BEFORE it begins: if the session ends meanwhile, somebody must tell it.
        self._watchers[watch] = watcher
        try:
            await self._engine.watch(watcher)
        except BaseException:
            watch.close()
            raise
        return watch

    async def sync(self, path: str = ROOT) -> None:
        """Make reads from now on see all that was answered to anybody until now; they do anyway."""
        await self.exists(path)

    async def _write(self, operations: Sequence[Operation]) -> int:
        return await self._engine.write(self._open_session(), operations)

    def _open_session(self) -> int:
        if self.session.lost:
            raise SessionLost(f"session {self.session.id} has ended")
        if self._engine.touch(self._number):
            self.session.confirm(self._clock.monotonic_ms())
        return self._number

    def _beat(self) -> None:
        self._open_session()
        self._timer = self._clock.call_later(self._session_timeout_ms / 4, self._beat)

    def _unwatch(self, watch: Watch) -> None:
        self._engine.unwatch(self._watchers.pop(watch))

    def _ended(self, session: Session) -> None:
        """The engine has ended a session: ours, or one that was left before."""
        if session is not self._session:
            return
        if self._timer is not None:
            self._timer.cancel()
        watchers, self._watchers = self._watchers, {}
        for watch in watchers:
            watch.fail(SessionLost(f"session {session.id} has ended"))
        session.end()
