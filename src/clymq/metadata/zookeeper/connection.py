"""One kazoo client for one session, with an asyncio face.

* kazoo begins a new session by itself when one has expired. Calls pass a gate that closes in kazoo's own thread BEFORE
  it can begin another, so that none slips into a session that nobody asked for; then the client is stopped.
* kazoo keeps what is asked while it is disconnected and sends it at some later time. Here a call waits until there is
  a connection, and fails with `ConnectFailed` if none comes: it was not sent, and will not be.
* A ZooKeeper server that is just starting accepts connections and forgets what they ask. kazoo waits for the answer to
  a handshake as long as the session lasts, divided by the servers that it was told of: one server is told as several.
* Reads, which any follower may answer alone, confirm no session; writes and `sync`, which the leader has seen, do. A
  `sync` at every quarter of the timeout keeps the confirmation fresh.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SessionMovedError,
    WriterNotClosedException,
)
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.states import KazooState

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectFailed,
    ConnectionLost,
    EphemeralParent,
    MetadataError,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    RequestTimeout,
    SessionLost,
    VersionConflict,
)
from clymq.metadata.store import Session

# In seconds, as kazoo wants it; as often as it takes, for only the store ends a session.
_RECONNECT = {"max_tries": -1, "delay": 0.02, "backoff": 2, "max_jitter": 0.2, "max_delay": 0.25}

# So many handshakes may go unanswered, at the least, before that costs a session.
_HANDSHAKES_MIN = 3
_LOST_ON_THE_WAY = "the connection to zookeeper was lost before the answer came"
_TRANSLATIONS: dict[type[Exception], Callable[[str], ClymqError]] = {
    NoNodeError: lambda path: NodeMissing(f"there is no node {path}"),
    NodeExistsError: lambda path: NodeExists(f"{path} exists"),
    BadVersionError: lambda path: VersionConflict(f"{path} has another version"),
    NotEmptyError: NodeNotEmpty,
    NoChildrenForEphemeralsError: EphemeralParent,
    ConnectionLoss: lambda path: ConnectionLost(f"{path}: {_LOST_ON_THE_WAY}"),
    ConnectionClosedError: lambda path: ConnectionLost(f"{path}: {_LOST_ON_THE_WAY}"),
    SessionMovedError: lambda path: ConnectionLost(f"{path}: {_LOST_ON_THE_WAY}"),
}

logger = logging.getLogger(__name__)
T = TypeVar("T")


def _named_often(hosts: str) -> str:
    servers, slash, root = hosts.partition("/")
    names = servers.split(",")
    return ",".join(names * -(-_HANDSHAKES_MIN // len(names))) + slash + root


class Connection:
    """From `open` to `close`, or until the session is lost."""

    def __init__(self, hosts: str, clock: Clock, config: Config) -> None:
        self.lost = False
        self.session = Session("", config.session_timeout_ms, clock.monotonic_ms())
        self._clock = clock
        self._hosts = hosts
        self._request_timeout_ms = config.store_request_ms_max
        self._gate = threading.Lock()
        self._closing = False
        self._connected = False
        self._stopping: asyncio.Future[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None
        self._on_end: list[Callable[[ClymqError], None]] = []
        self._client = KazooClient(
            _named_often(hosts), self.session.timeout_ms / 1000, connection_retry=_RECONNECT, logger=logger
        )
        self._note_granted_timeout()
        self._client.add_listener(self._state_changed)

    async def open(self) -> None:
        """Connect and begin the session."""
        self._loop = asyncio.get_running_loop()
        self._client.start_async()
        await self.until_connected()
        # Answered behind the handshake: what was granted is known from here on.
        await self.ask("/", lambda client: client.sync_async("/"), confirms=True)
        identity = self._client.client_id
        if identity is None:
            raise ConnectFailed(f"the connection to zookeeper at {self._hosts} was lost again at once")
        self.session.id = f"{identity[0] & (2**64 - 1):016x}"
        self._beat_later()

    async def close(self) -> None:
        """End the session, if it has not ended, and every thread."""
        self._closing = True
        self._end(ClosedError("the store was closed"))
        if self._stopping is None:
            self._stopping = self._loop.run_in_executor(None, self._stop_client)
        await self._stopping

    def on_end(self, listener: Callable[[ClymqError], None]) -> None:
        """Call the listener with the reason when nothing more can be asked."""
        self._on_end.append(listener)

    @property
    def ended(self) -> bool:
        """Whether nothing more can be asked."""
        return self.lost or self._closing

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until it ends or the connection does."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def until_connected(self, *, patient: bool = False) -> None:
        """Wait until there is a connection; with no patience only for as long as a request may take."""
        if self.lost:
            raise self._lost_error()
        if self._connected:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiter)
        late = ConnectFailed(f"no connection to zookeeper at {self._hosts} within {self._request_timeout_ms} ms")
        timer = None if patient else self._clock.call_later(self._request_timeout_ms, lambda: _fail(waiter, late))
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
            if timer is not None:
                timer.cancel()

    async def ask(self, path: str, send: Callable[[KazooClient], AsyncResult[T]], *, confirms: bool = False) -> T:
        """Send a request and wait for its answer; what kazoo raises becomes an error of ours that names the path."""
        await self.until_connected()
        answer: asyncio.Future[T] = self._loop.create_future()
        asked_at_ms = self._clock.monotonic_ms()
        with self._gate:
            if self.lost:
                raise self._lost_error()
            result = send(self._client)
        result.rawlink(lambda end: self.hop(_settle, answer, end))
        late = RequestTimeout(f"{path}: zookeeper has not answered within {self._request_timeout_ms} ms")
        timer = self._clock.call_later(self._request_timeout_ms, lambda: _fail(answer, late))
        try:
            value = await answer
        except KazooException as error:
            raise self.translated(error, path) from error
        finally:
            timer.cancel()
        if confirms:
            self.session.confirm(asked_at_ms)
        return value

    def translated(self, error: Exception, path: str) -> ClymqError:
        """Return what kazoo says in our words."""
        if isinstance(error, SessionExpiredError):
            return self._lost_error()
        for kind, words in _TRANSLATIONS.items():
            if isinstance(error, kind):
                return words(path)
        return MetadataError(f"{path}: zookeeper answered {type(error).__name__} {error}".rstrip())

    # From kazoo's threads.

    def _state_changed(self, state: KazooState) -> None:
        if state == KazooState.LOST:
            with self._gate:
                self.lost = True
        self.hop(self._on_state, state)

    def hop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back on the event loop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _note_granted_timeout(self) -> None:
        """Learn which timeout the server grants: kazoo knows, and has no name for it.

        Its connection waits for two thirds of that timeout for each answer; nothing else tells.
        """
        connect = self._client._connection._connect

        def connect_and_note(host: str, address: str, port: int) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(host, address, port)
            self.session.timeout_ms = round(read_timeout_ms * 3 / 2)
            return read_timeout_ms, connect_timeout_ms

        self._client._connection._connect = connect_and_note

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except WriterNotClosedException:
            logger.warning("kazoo did not stop in time; its thread ends with the connection")

    # On the event loop.

    def _on_state(self, state: KazooState) -> None:
        self._connected = state == KazooState.CONNECTED and not self.lost
        if self._connected:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
        elif self.lost and not self._closing:
            logger.warning("session %s was lost", self.session.id)
            self._end(self._lost_error())
            if self._stopping is None:
                self._stopping = self._loop.run_in_executor(None, self._stop_client)

    def _end(self, reason: ClymqError) -> None:
        self._connected = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for waiter in self._waiting:
            _fail(waiter, reason)
        listeners, self._on_end = self._on_end, []
        for listener in listeners:
            listener(reason)
        if self.lost:
            self.session.end()

    def _lost_error(self) -> ClymqError:
        if self._closing:
            return ClosedError("the store was closed")
        return SessionLost(f"session {self.session.id} has ended")

    def _beat_later(self) -> None:
        self._timer = self._clock.call_later(self.session.timeout_ms / 4, self._beat)

    def _beat(self) -> None:
        self.spawn(self._confirm())
        self._beat_later()

    async def _confirm(self) -> None:
        # Out of reach, or lost: it shows in the session, and whoever asks for something hears of it.
        with contextlib.suppress(ClymqError):
            await self.ask("/", lambda client: client.sync_async("/"), confirms=True)


def _settle(answer: asyncio.Future[T], result: AsyncResult[T]) -> None:
    if answer.done():
        return
    if result.exception is None:
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)


def _fail(future: asyncio.Future[T], error: ClymqError) -> None:
    if not future.done():
        future.set_exception(error)
