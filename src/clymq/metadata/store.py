"""`MetadataStore`: a small tree of versioned nodes with sessions, watches and transactions.

What ClyMQ asks of ZooKeeper and of its own embedded store alike; one conformance suite holds both to it. This module
says what is promised and holds what all stores share; it knows neither of them.

Order and visibility. Writes are atomic and applied in one order. A read sees everything that this client has been
answered, and everything that any client was answered before the last `sync`: a read that decides something comes
after one.

Outcomes. A call that returns was applied, durably. A `MetadataError` (`NodeMissing`, `NodeExists`, `VersionConflict`,
`SessionLost`, ...) and `ConnectFailed` mean that it was *not* applied. `ConnectionLost` and `RequestTimeout` mean that
nobody knows: it may have been applied or be applied yet. `outcome_unknown` tells the two apart. `commit` is for writes
that must not stay unknown: it goes on through lost connections until the outcome is known, and what it is given is
applied once or not at all, however often it had to ask.

Sessions. `open` begins one; `close` ends it and its ephemeral nodes at once; only the store itself ends it otherwise,
when it has not heard from the client for `timeout_ms`. Then every call raises `SessionLost` until `open` is called
again: nothing is ever done in a session that the caller does not know of.

Watches. See `clymq.metadata.watch`: nothing is missed, nothing is told early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from clymq.errors import ClymqError, ConnectionLost, InvalidPath, RequestTimeout, ValueTooLarge
from clymq.metadata.paths import ROOT, check_path
from clymq.metadata.watch import Watch
from clymq.protocol.store import ANY_VERSION, Check, Create, Delete, Put, Stat

__all__ = [
    "ANY_VERSION",
    "WRITE_BYTES_MAX",
    "Check",
    "Create",
    "Delete",
    "MetadataStore",
    "Node",
    "Operation",
    "Put",
    "Session",
    "Stat",
    "check_operations",
    "outcome_unknown",
]

logger = logging.getLogger(__name__)

Operation = Create | Put | Delete | Check

# ZooKeeper drops the connection of a client that sends more than 1 MiB - 1 in one request, its frame included.
WRITE_BYTES_MAX = 1_000_000
_OPERATION_BYTES = 64


class Node(NamedTuple):
    """A node as it was read."""

    value: bytes
    stat: Stat


class Session:
    """One session, as its client knows it."""

    def __init__(self, session_id: str, timeout_ms: int, confirmed_at_ms: float) -> None:
        self.id = session_id
        self.timeout_ms = timeout_ms
        self.confirmed_at_ms = confirmed_at_ms
        self.lost = False
        self._listeners: list[Callable[[], None]] = []

    def confirm(self, asked_at_ms: float) -> None:
        """The store has answered what was asked at that time: it counts from no earlier moment.

        The moment of asking, not of the answer: the answer may have lain in a buffer while the session ran out.
        """
        self.confirmed_at_ms = max(self.confirmed_at_ms, asked_at_ms)

    def confirmed_within(self, now_ms: float, numerator: int = 2, denominator: int = 3) -> bool:
        """Say whether the last confirmation is younger than two thirds of the timeout."""
        return not self.lost and (now_ms - self.confirmed_at_ms) * denominator < self.timeout_ms * numerator

    def on_lost(self, listener: Callable[[], None]) -> None:
        """Call the listener, once, when the store has ended the session; at once if it has already."""
        if self.lost:
            listener()
        else:
            self._listeners.append(listener)

    def end(self) -> None:
        """The store has ended it. For stores to call."""
        if not self.lost:
            self.lost = True
            listeners, self._listeners = self._listeners, []
            for listener in listeners:
                try:
                    listener()
                except Exception:
                    # Whoever ends the session has others to tell, and answers to give.
                    logger.exception("session %s: a listener failed on its end", self.id)


class MetadataStore(Protocol):
    """A client of a store. The constructor does no I/O; `open` before, `close` after."""

    @property
    def session(self) -> Session:
        """The session that `open` began last."""
        ...

    async def open(self) -> None:
        """Connect and begin a session, a new one if the last was lost; nothing happens while there is one."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral nodes are gone when this returns, if the store could be reached."""
        ...

    async def get(self, path: str) -> Node:
        """Read a node, or raise `NodeMissing`."""
        ...

    async def exists(self, path: str) -> Stat | None:
        """Return what is known of a node, or None where there is none."""
        ...

    async def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted, or raise `NodeMissing`."""
        ...

    async def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node; an ephemeral one goes with the session."""
        ...

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace a value if the node has this version (`ANY_VERSION`: whatever it has); return the new version."""
        ...

    async def delete(self, path: str, version: int) -> None:
        """Delete a node without children if it has this version."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Apply all operations, in order, or none; the error is that of the first that cannot be."""
        ...

    async def commit(self, operations: Sequence[Operation], *, timeout_ms: float | None = None) -> None:
        """Do as `multi`, but go on through lost connections until the outcome is known.

        Applied once or not at all. What is left of unknown outcomes: `RequestTimeout` after `timeout_ms` (default:
        twice the session's timeout), and `ConnectionLost` when the session was lost before the store could be asked.
        """
        ...

    async def watch(self, path: str) -> Watch:
        """Begin to watch a node: its value, its coming and going, and the names of its children."""
        ...

    async def sync(self, path: str = ROOT) -> None:
        """Make reads from now on see all that was answered to anybody until now."""
        ...


def outcome_unknown(error: ClymqError) -> bool:
    """Say whether a write that failed with this error may have been applied, or be applied yet."""
    return isinstance(error, ConnectionLost | RequestTimeout)


def check_operations(operations: Sequence[Operation]) -> Sequence[Operation]:
    """Return the operations if every path and the size of them all are allowed, else raise the refusal."""
    size, largest = 0, ("", -1)
    for operation in operations:
        check_path(operation.path)
        if operation.path == ROOT and isinstance(operation, Create | Delete):
            raise InvalidPath(ROOT, "the root is always there")
        value_bytes = len(operation.value) if isinstance(operation, Create | Put) else 0
        size += _OPERATION_BYTES + len(operation.path) + value_bytes
        largest = max(largest, (operation.path, value_bytes), key=lambda each: each[1])
    if size > WRITE_BYTES_MAX:
        raise ValueTooLarge(largest[0], size, WRITE_BYTES_MAX)
    return operations
