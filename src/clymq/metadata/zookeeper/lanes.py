"""How `commit` knows what became of a transaction whose answer was lost.

A *lane* is an ephemeral node of the session's own. One transaction at a time uses it, and writes its number into it as
its last operation: the number is there if and only if the transaction was applied. ZooKeeper carries out the requests
of one session in the order in which they were sent, and nothing of an old connection once the session has a new one.
So a `sync` and a read of the lane, sent after the transaction, are final: what has not been applied by then never is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from clymq.clock import Clock
from clymq.errors import ConnectFailed, ConnectionLost, NodeExists, RequestTimeout, SessionLost, TransportError
from clymq.metadata.store import ANY_VERSION, Node, Put, Session

LANES_MAX = 16
FOLDER = "/.lanes"


class Reader(Protocol):
    """What a lane needs of the store."""

    @property
    def session(self) -> Session:
        """As `MetadataStore.session`."""
        ...

    async def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """As `MetadataStore.create`."""
        ...

    async def get(self, path: str) -> Node:
        """As `MetadataStore.get`."""
        ...

    async def sync(self, path: str = "/") -> None:
        """As `MetadataStore.sync`."""
        ...


class Lane:
    """One lane; whoever holds it commits one transaction at a time."""

    def __init__(self, store: Reader, clock: Clock, number: int) -> None:
        self._store = store
        self._clock = clock
        self._session = store.session
        self._path = f"{FOLDER}/{self._session.id}-{number}"
        self._made = False
        self._number = 0

    async def commit(self, transact: Callable[[Put], Awaitable[None]], timeout_ms: float) -> None:
        """Call `transact` with the operation that it has to include, until it was applied once."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            self._need_session()
            try:
                await self._make()
                self._number += 1
                self._need_session()
                await transact(Put(self._path, b"%d" % self._number, ANY_VERSION))
            except ConnectFailed:
                # It was not sent, nor will it be.
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise
            except TransportError as error:
                if self._made and await self._applied(deadline_ms, error):
                    return
                if not self._made and self._clock.monotonic_ms() >= deadline_ms:
                    raise ConnectFailed(f"nothing was written: {error.message}") from error
            else:
                return

    async def _make(self) -> None:
        if not self._made:
            with contextlib.suppress(NodeExists):  # ours, from an attempt whose answer was lost
                await self._store.create(self._path, ephemeral=True)
            self._made = True

    async def _applied(self, deadline_ms: float, unknown: TransportError) -> bool:
        """Ask until there is an answer whether the last transaction was applied."""
        while True:
            try:
                self._need_session()
                await self._store.sync(self._path)
                self._need_session()
                return (await self._store.get(self._path)).value == b"%d" % self._number
            except TransportError as error:
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise RequestTimeout(f"nobody knows whether it was applied: {unknown.message}") from error
            except SessionLost as error:
                # The lane went with the session.
                raise ConnectionLost(f"nobody knows whether it was applied: {unknown.message}") from error

    def _need_session(self) -> None:
        """Do nothing in a session that was opened after ours was lost: it knows nothing of the lane."""
        if self._store.session is not self._session:
            raise SessionLost(f"session {self._session.id} has ended")
