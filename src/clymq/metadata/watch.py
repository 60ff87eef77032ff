"""A watch on one node: persistent, level-triggered, and saying only "read again".

    watch = await store.watch("/Brokers")
    while True:
        names = await store.children("/Brokers")
        ...
        await watch.changed()

The promise, the same on every store: `changed` returns after every change of the node's value, of its existence and
of the set of its children that happened since the watch began, or since `changed` last returned; and a read that
begins after it returned sees at least that change. Several changes may be told as one, and it may return where nothing
changed: always after the connection was lost and found again, because nobody knows what happened meanwhile. While the
store is out of reach it waits. When the session is lost it raises `SessionLost`; a watch does not outlive its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clymq.errors import ClosedError, ClymqError


class Watch:
    """What `MetadataStore.watch` returns; one caller waits on it at a time."""

    def __init__(self, path: str, on_close: Callable[[Watch], None]) -> None:
        self.path = path
        self._on_close = on_close
        self._changed = asyncio.Event()
        self._error: ClymqError | None = None

    async def changed(self) -> None:
        """Wait until the node may have changed."""
        await self._changed.wait()
        if self._error is not None:
            raise self._error
        self._changed.clear()

    def close(self) -> None:
        """Stop watching; who waits gets `ClosedError`."""
        if self._error is None:
            self.fail(ClosedError(f"the watch of {self.path} was closed"))
            self._on_close(self)

    def notify(self) -> None:
        """The node may have changed, and reads see it. For stores to call."""
        self._changed.set()

    def fail(self, error: ClymqError) -> None:
        """Nothing more will be told. For stores to call."""
        self._error = self._error or error
        self._changed.set()
