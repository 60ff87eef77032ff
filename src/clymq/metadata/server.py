"""The embedded store on the wire: one handler for each verb of `clymq.protocol.store`.

A session does not end with a connection, but it speaks over one at a time. When it comes back over another, the one
before is dropped: what it sent and nobody has read yet is never carried out. So the requests of a session reach the
engine in the order in which the client sent them, and when a repeated write is answered, the first sending of it is
over for good.

Events go over the connection that asked for them. One that cannot be sent is not lost in silence: the connection is
dropped, and a client that comes back reads everything again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from clymq.errors import ClosedError, ConnectFailed, ConnectionLost, InvalidRequest
from clymq.metadata.engine import Engine, Watcher
from clymq.metadata.store import Operation
from clymq.protocol.store import (
    NodeChildren,
    NodeExistence,
    NodeValue,
    SessionOpened,
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
    Written,
)
from clymq.protocol.verbs import Done, Reply
from clymq.rpc.handlers import Handler, answering
from clymq.rpc.peer import Call, Peer

SESSION_TIMEOUT_MS_MIN = 500
SESSION_TIMEOUT_MS_MAX = 600_000


class StoreServer:
    """Serves an engine; `handlers` go into the endpoint of the process that holds it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._speaking: dict[int, Peer] = {}
        self._watchers: dict[Peer, dict[tuple[int, str], Watcher]] = {}

    def handlers(self) -> Mapping[type, Handler]:
        """Return what handles each verb."""
        handled: dict[type, Callable[[Call], Awaitable[Reply]]] = {
            StoreOpenSession: self._open_session,
            StoreKeepAlive: self._keep_alive,
            StoreCloseSession: self._close_session,
            StoreGet: self._get,
            StoreExists: self._exists,
            StoreChildren: self._children,
            StoreCreate: self._create,
            StorePut: self._put,
            StoreDelete: self._delete,
            StoreMulti: self._multi,
            StoreSync: self._keep_alive,  # reads see all that was answered anyway
            StoreWatch: self._watch,
            StoreUnwatch: self._unwatch,
        }
        return {verb: self._guarded(answering(_translating(handler))) for verb, handler in handled.items()}

    def _guarded(self, handler: Handler) -> Handler:
        """Let a session speak over its newest connection only."""

        def handle(call: Call) -> None:
            session = getattr(call.request, "session", None)
            if session is not None and self._speaking.get(session) is not call.peer:
                self._move(session, call.peer)
            handler(call)

        return handle

    def _move(self, session: int, peer: Peer) -> None:
        former = self._speaking.get(session)
        self._speaking[session] = peer
        if peer not in self._watchers:
            self._watchers[peer] = {}
            peer.on_closed(lambda _: self._forget(peer))
        if former is not None:
            former.drop(ConnectionLost(f"session {session:x} has come back over another connection"))

    def _forget(self, peer: Peer) -> None:
        for watcher in self._watchers.pop(peer).values():
            self._engine.unwatch(watcher)
        for session in [session for session, speaking in self._speaking.items() if speaking is peer]:
            del self._speaking[session]

    async def _open_session(self, call: Call) -> Reply:
        asked_ms: int = call.request.timeout_ms
        timeout_ms = min(max(asked_ms, SESSION_TIMEOUT_MS_MIN), SESSION_TIMEOUT_MS_MAX)
        return SessionOpened(await self._engine.open_session(timeout_ms), timeout_ms)

    async def _keep_alive(self, call: Call) -> Reply:
        await self._engine.keep_alive(call.request.session)
        return Done()

    async def _close_session(self, call: Call) -> Reply:
        await self._engine.close_session(call.request.session)
        return Done()

    async def _get(self, call: Call) -> Reply:
        return NodeValue(*await self._engine.get(call.request.session, call.request.path))

    async def _exists(self, call: Call) -> Reply:
        return NodeExistence(await self._engine.exists(call.request.session, call.request.path))

    async def _children(self, call: Call) -> Reply:
        return NodeChildren(tuple(await self._engine.children(call.request.session, call.request.path)))

    async def _create(self, call: Call) -> Reply:
        return await self._write(call, [call.request.create])

    async def _put(self, call: Call) -> Reply:
        return await self._write(call, [call.request.put])

    async def _delete(self, call: Call) -> Reply:
        return await self._write(call, [call.request.delete])

    async def _multi(self, call: Call) -> Reply:
        return await self._write(call, call.request.operations)

    async def _write(self, call: Call, operations: Sequence[Operation]) -> Reply:
        request = call.request
        version = await self._engine.write(
            request.session, operations, number=request.number, settled_below=request.settled_below
        )
        return Written(version)

    async def _watch(self, call: Call) -> Reply:
        peer, session, path = call.peer, call.request.session, call.request.path
        watchers = self._watchers.get(peer)
        if watchers is None:
            raise InvalidRequest("the connection is gone")
        if (session, path) not in watchers:
            watchers[session, path] = Watcher(session, path, partial(_tell, peer, StoreEvent(session, path)))
            await self._engine.watch(watchers[session, path])
        await self._engine.keep_alive(session)
        return Done()

    async def _unwatch(self, call: Call) -> Reply:
        watcher = self._watchers.get(call.peer, {}).pop((call.request.session, call.request.path), None)
        if watcher is not None:
            self._engine.unwatch(watcher)
        return Done()


def _translating(handler: Callable[[Call], Awaitable[Reply]]) -> Callable[[Call], Awaitable[Reply]]:
    """Say of a request that came too late what it is to the client: one that was never sent."""

    async def handle(call: Call) -> Reply:
        try:
            return await handler(call)
        except ClosedError as error:
            raise ConnectFailed(error.message) from error

    return handle


def _tell(peer: Peer, event: StoreEvent) -> None:
    if not peer.tell(event):
        peer.drop(ConnectionLost(f"it does not read what it watches: {event.path}"))
