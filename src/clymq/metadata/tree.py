"""What operations mean: the rules of the tree, on the rows of the embedded store's file.

Everything here runs inside a transaction of `StoreFile` and either does what it says or raises a refusal, upon which
the caller undoes it. It knows no clock, no client and no event loop. `changed` gathers the paths that a watcher of
them has to hear of: a node's own when it comes, changes or goes, and the one above it when it comes or goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clymq.errors import (
    EphemeralParent,
    InvalidRequest,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    Overloaded,
    SessionLost,
    VersionConflict,
)
from clymq.metadata.embedded import Row, StoreFile
from clymq.metadata.paths import name_of, parent_of
from clymq.metadata.store import ANY_VERSION, Check, Create, Delete, Node, Operation, Put, Stat

ANSWERS_MAX = 1000


PERSISTENT: Final = 0
"""Stands where an ephemeral node has the number of its session."""


class Tree:
    """Reads, writes and sessions, each one step of a transaction."""

    def __init__(self, file: StoreFile, draw_session: Callable[[], int] | None = None) -> None:
        self.changed: list[str] = []
        self._file = file
        self._draw_session = draw_session
        self._transaction = 0
        # Of each session, below which number nothing is taken any more. In memory: no connection outlives the process.
        self._settled: dict[int, int] = {}

    def begin(self) -> None:
        """A transaction of the file begins."""
        self._transaction = self._file.fact("transaction")

    def finish(self) -> None:
        """It is about to be committed."""
        self._file.keep_fact("transaction", self._transaction)

    # Reads.

    def get(self, path: str) -> Node:
        """Read a node."""
        row = self._existing(path)
        return Node(row.value, _stat(row))

    def exists(self, path: str) -> Stat | None:
        """Return what is known of a node, if it is there."""
        row = self._file.node(path)
        return None if row is None else _stat(row)

    def children(self, path: str) -> list[str]:
        """Return the names below a node."""
        self._existing(path)
        return [name_of(child) for child in self._file.children(path)]

    # Writes.

    def write(self, session: int, operations: Sequence[Operation], number: int | None, settled_below: int) -> int:
        """Apply all operations, unless this request of this session was applied already; return the last version.

        A request that was refused is not remembered: it changed nothing, and is judged anew if it comes again.
        """
        if number is not None:
            known = self._file.answer(session, number)
            if known is not None:
                return known
            if number < self._settled.get(session, 0):
                # Held up by the network until its repetition was answered, and forgotten with that answer.
                raise InvalidRequest(f"write {number} of session {session_name(session)} was settled before")
            self._settled[session] = max(settled_below, self._settled.get(session, 0))
            if self._file.forget_answers(session, settled_below) >= ANSWERS_MAX:
                raise Overloaded(f"session {session_name(session)} has {ANSWERS_MAX} unsettled writes")
        self._transaction += 1
        version = 0
        for operation in operations:
            version = self._apply(operation, session)
        if number is not None:
            # In the same transaction as the write: either both survive a crash or none.
            self._file.keep_answer(session, number, version)
        return version

    def _apply(self, operation: Operation, session: int) -> int:
        match operation:
            case Create():
                return self._create(operation, session)
            case Put():
                return self._put(operation)
            case Delete():
                return self._delete(operation)
            case Check():
                return self._at_version(operation.path, operation.version).version

    def _create(self, operation: Create, session: int) -> int:
        path, above = operation.path, parent_of(operation.path)
        parent = self._file.node(above)
        if parent is None:
            raise NodeMissing(f"there is no node {above} to create {path} under")
        if parent.owner:
            raise EphemeralParent(path)
        if self._file.node(path) is not None:
            raise NodeExists(f"{path} exists")
        owner = session if operation.ephemeral else 0
        self._file.add(Row(path, above, operation.value, 0, self._transaction, self._transaction, owner))
        self.changed += [path, above]
        return 0

    def _put(self, operation: Put) -> int:
        version = self._at_version(operation.path, operation.version).version + 1
        self._file.change(operation.path, operation.value, version, self._transaction)
        self.changed.append(operation.path)
        return version

    def _delete(self, operation: Delete) -> int:
        self._at_version(operation.path, operation.version)
        if self._file.has_children(operation.path):
            raise NodeNotEmpty(operation.path)
        self._file.remove(operation.path)
        self.changed += [operation.path, parent_of(operation.path)]
        return 0

    def _existing(self, path: str) -> Row:
        row = self._file.node(path)
        if row is None:
            raise NodeMissing(f"there is no node {path}")
        return row

    def _at_version(self, path: str, version: int) -> Row:
        row = self._existing(path)
        if version not in {ANY_VERSION, row.version}:
            raise VersionConflict(f"{path} has version {row.version}, not {version}")
        return row

    # Sessions.

    def open_session(self, timeout_ms: int) -> int:
        """Begin a session; its number is never used again."""
        count = self._file.fact("session") + 1
        self._file.keep_fact("session", count)
        number = count if self._draw_session is None else self._draw_session()
        while number == PERSISTENT or self._file.has_session(number):
            number += 1
        self._file.add_session(number, timeout_ms)
        return number

    def need_session(self, number: int) -> None:
        """Raise `SessionLost` unless there is such a session."""
        if not self._file.has_session(number):
            raise SessionLost(f"session {session_name(number)} has ended")

    def end_session(self, number: int) -> None:
        """End a session, and in the same transaction delete what it owned; one that has ended already is no error."""
        for path in self._file.owned_by(number):
            self._file.remove(path)
            self.changed += [path, parent_of(path)]
        self._file.remove_session(number)
        self._settled.pop(number, None)


def session_name(number: int) -> str:
    """Write a session's number as the rest of the world sees it."""
    return f"{number:016x}"


def _stat(row: Row) -> Stat:
    owner = session_name(row.owner) if row.owner else None
    return Stat(row.version, owner, row.created, row.modified)
