"""The embedded store's file: an SQLite database, and the one thread that may wait for its disk.

The only module that knows SQLite. It knows rows (nodes, sessions, answers), transactions and savepoints; what they
mean is `clymq.metadata.tree`'s business, and when they happen `clymq.metadata.engine`'s.

* One process: the database is locked exclusively from `open` to `close`; a second one gets `FolderLocked`.
* Durable: `synchronous=FULL` on a write-ahead log, one fsync for each commit; when `transact` says that it is done,
  what was done is on the disk. The folder is 0700 and the file 0600.
* After a commit that failed for any reason but a full disk nobody knows what the file holds: it is not touched again
  (`failure`), and the process has to restart.

    facts     schema, number of the last transaction and of the last session
    nodes     path, parent, value, version, created, modified, owner (a session, 0: persistent)
    sessions  number, timeout_ms
    answers   session, request number, result: writes that were applied and whose answer may not have arrived
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clymq.errors import ClymqError, DamagedStore, DiskFailed, DiskFull, FolderLocked, InvalidRequest

SCHEMA = 1
FILE_NAME = "store.sqlite"
_FULL = {sqlite3.SQLITE_FULL}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

logger = logging.getLogger(__name__)

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, parent TEXT, value BLOB NOT NULL, version INTEGER NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, owner INTEGER NOT NULL
);
CREATE INDEX nodes_by_parent ON nodes (parent, path);
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner != 0;
CREATE TABLE sessions (number INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL);
CREATE TABLE answers (
    session INTEGER NOT NULL, number INTEGER NOT NULL, result INTEGER NOT NULL, PRIMARY KEY (session, number)
) WITHOUT ROWID;
INSERT INTO nodes VALUES ('/', NULL, x'', 0, 0, 0, 0);
"""


class Row(NamedTuple):
    """One node."""

    path: str
    parent: str | None
    value: bytes
    version: int
    created: int
    modified: int
    owner: int


class StoreFile:
    """The database. Rows may be read and written only inside the work that `transact` or `read` runs."""

    def __init__(self, folder: str | None) -> None:
        """Take the folder of the file, or None for a store that lives in memory and has no thread."""
        self.failure: ClymqError | None = None
        self.path = ":memory:" if folder is None else str(Path(folder) / FILE_NAME)
        self._folder = folder
        self._database: sqlite3.Connection | None = None
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Make the file if it is missing, and lock it."""
        if self._folder is not None:
            _make_private(Path(self._folder), Path(self.path))
            self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="clymq-store")
        try:
            self._database = _opened(self.path)
        except sqlite3.Error as error:
            self.close()
            raise self._translated(error, "open") from error
        except DamagedStore:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def transact(self, work: Callable[[], None], done: Callable[[ClymqError | None], None]) -> None:
        """Run work inside a transaction, off the event loop, and say when it is durable, or what stopped it."""
        if self._thread is None:
            done(self._transacted(work))
            return
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._thread, self._transacted, work).add_done_callback(lambda end: done(end.result()))

    def _transacted(self, work: Callable[[], None]) -> ClymqError | None:
        if self.failure is not None:
            return self.failure
        try:
            self._execute("BEGIN IMMEDIATE")
            work()
            self._execute("COMMIT")
        except sqlite3.Error as error:
            translated = self._translated(error, "commit to")
            if not (isinstance(translated, DiskFull) and self._rolled_back()):
                self.failure = translated
            return translated
        except Exception as error:
            # A mistake of ours in the middle of a transaction: whoever waits must hear of it, and nothing may follow.
            logger.exception("the store has met an error that it has no name for")
            self.failure = DiskFailed(self.path, "commit to", f"{type(error).__name__}: {error}")
            return self.failure
        return None

    def read(self, work: Callable[[], None]) -> ClymqError | None:
        """Run work that only reads, here and now; return what stopped it."""
        if self.failure is not None:
            return self.failure
        try:
            work()
        except sqlite3.Error as error:
            return self._translated(error, "read")
        except Exception as error:
            # A mistake of ours; whoever waits must hear of it.
            logger.exception("the store has met an error that it has no name for")
            return DiskFailed(self.path, "read", f"{type(error).__name__}: {error}")
        return None

    def _rolled_back(self) -> bool:
        try:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
        except sqlite3.Error:
            return False
        return True

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is done inside if it raises; the rest of the transaction goes on."""
        self._execute("SAVEPOINT item")
        try:
            yield
        except sqlite3.Error:
            raise
        except BaseException:
            self._execute("ROLLBACK TO item")
            self._execute("RELEASE item")
            raise
        self._execute("RELEASE item")

    # Nodes.

    def node(self, path: str) -> Row | None:
        """Read one node."""
        row = self._execute("SELECT * FROM nodes WHERE path = ?", path).fetchone()
        return None if row is None else Row(*row)

    def add(self, row: Row) -> None:
        """Add a node that is not there."""
        self._execute("INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?)", *row)

    def change(self, path: str, value: bytes, version: int, modified: int) -> None:
        """Write a node's value."""
        self._execute(
            "UPDATE nodes SET value = ?, version = ?, modified = ? WHERE path = ?", value, version, modified, path
        )

    def remove(self, path: str) -> None:
        """Take a node away."""
        self._execute("DELETE FROM nodes WHERE path = ?", path)

    def children(self, path: str) -> list[str]:
        """Return the paths of a node's children, sorted."""
        found = self._execute("SELECT path FROM nodes WHERE parent = ? ORDER BY path", path)
        return [child for (child,) in found]

    def has_children(self, path: str) -> bool:
        """Say whether a node has children."""
        return self._execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", path).fetchone() is not None

    def owned_by(self, session: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes."""
        found = self._execute("SELECT path FROM nodes WHERE owner = ? AND owner != 0 ORDER BY path", session)
        return [path for (path,) in found]

    # Sessions and their answers.

    def sessions(self) -> dict[int, int]:
        """Return every session and its timeout."""
        return dict(self._execute("SELECT number, timeout_ms FROM sessions").fetchall())

    def has_session(self, number: int) -> bool:
        """Say whether a session is known."""
        return self._execute("SELECT 1 FROM sessions WHERE number = ?", number).fetchone() is not None

    def add_session(self, number: int, timeout_ms: int) -> None:
        """Add a session."""
        self._execute("INSERT INTO sessions VALUES (?, ?)", number, timeout_ms)

    def remove_session(self, number: int) -> None:
        """Take a session and its answers away."""
        self._execute("DELETE FROM sessions WHERE number = ?", number)
        self._execute("DELETE FROM answers WHERE session = ?", number)

    def answer(self, session: int, number: int) -> int | None:
        """Return the result of a write that was applied already."""
        row = self._execute("SELECT result FROM answers WHERE session = ? AND number = ?", session, number).fetchone()
        return None if row is None else row[0]

    def keep_answer(self, session: int, number: int, result: int) -> None:
        """Remember the result of a write."""
        self._execute("INSERT INTO answers VALUES (?, ?, ?)", session, number, result)

    def forget_answers(self, session: int, below: int) -> int:
        """Forget the answers that the client has; return how many are left."""
        self._execute("DELETE FROM answers WHERE session = ? AND number < ?", session, below)
        left: int = self._execute("SELECT count(*) FROM answers WHERE session = ?", session).fetchone()[0]
        return left

    # Counters.

    def fact(self, name: str) -> int:
        """Read a counter; 0 if it was never written."""
        row = self._execute("SELECT number FROM facts WHERE name = ?", name).fetchone()
        return 0 if row is None else row[0]

    def keep_fact(self, name: str, number: int) -> None:
        """Write a counter."""
        self._execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, number)

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._database is not None, "the store's file is not open"
        return self._database

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except OverflowError as error:
            raise InvalidRequest(f"a number that cannot be stored: {error}") from None

    def _translated(self, error: sqlite3.Error, operation: str) -> ClymqError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # Python's own errors have none
        if code in _LOCKED:
            return FolderLocked(str(self._folder))
        if code in _FULL:
            return DiskFull(self.path, str(error))
        if code in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            return DamagedStore(self.path, str(error))
        return DiskFailed(self.path, operation, str(error))


def _make_private(folder: Path, file: Path) -> None:
    """Make the folder and the file for their owner only, and durable as names."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        for above in (folder, folder.parent):
            handle = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as error:
        raise DiskFailed(str(file), "make", error.strerror or str(error)) from error


def _opened(path: str) -> sqlite3.Connection:
    # The connection goes between the event loop and the thread, never at the same time: see Engine.
    database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Taken with the first access and kept until the end.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN EXCLUSIVE")
        schema = database.execute("PRAGMA user_version").fetchone()[0]
        if schema not in {0, SCHEMA}:
            raise DamagedStore(path, f"it has schema {schema}, this program knows {SCHEMA}")
        if schema == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database
