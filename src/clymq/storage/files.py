"""The disk: the only code that opens, writes, syncs, maps or renames files.

`Files` and `File` are what the rest of storage sees; `RealFiles` is the operating system, `clymq.storage.memory` the
in-memory twin with faults. Rules that both keep:

* a write goes to a stated position and is done whole, or raises and may leave any part of itself behind;
* nothing is durable before `sync` (a file's bytes) or `sync_folder` (the names in a folder) has returned;
* what the operating system refuses becomes a typed error: `DiskFull`, or `DiskFailed` naming operation and path;
* files are created 0600, folders 0700.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Final, Protocol

from clymq.errors import DiskFailed, DiskFull, FolderLocked, StorageError
from clymq.record.mapped import FileMemory, address_of

Buffer = bytes | bytearray | memoryview
SyncDone = Callable[[StorageError | None], None]

log = logging.getLogger("clymq.storage")

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
# One system call takes at most this many buffers (IOV_MAX on Linux).
_BUFFERS_MAX: Final = 1024
# A file is mapped anew only when at least so much has been added: a smaller tail is cheaper to copy.
_REMAP_BYTES: Final = 4 * 1024 * 1024
# What is said of files that cannot be sent: by their file system, for want of memory, or because it is forbidden.
_CANNOT_BE_SENT: Final = {
    errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOMEM, errno.ENOBUFS, errno.EPERM, errno.EACCES
}  # fmt: skip
_OF_THE_SOCKET: Final = {
    errno.EAGAIN, errno.EINTR, errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ECONNREFUSED,
}  # fmt: skip
# A file of this size or more is let go of by a thread of its own when it is removed.
_LARGE_BYTES: Final = 16 * 1024 * 1024
# So much of it at a time: what others wait for.
_CUT_BYTES: Final = 4 * 1024 * 1024


class File(Protocol):
    """One open file."""

    @property
    def path(self) -> str:
        """Where it was opened."""
        ...

    def size(self) -> int:
        """Bytes that it has now."""
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, in one system call where it can be."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Copy bytes out; fewer than `length` only at the end of the file."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return [start, end) without copying where that pays; the caller swears that it will never be truncated."""
        ...

    def truncate(self, length: int) -> None:
        """Cut the file; durable only after `sync`."""
        ...

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        ...

    def close(self) -> None:
        """Let go of it; views that were given out stay valid."""
        ...


class Lock(Protocol):
    """A folder held against other processes."""

    def release(self) -> None:
        """Let others have it."""
        ...


class Files(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; `create` makes it if it is missing."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        ...

    def make_folder(self, path: str) -> None:
        """Make one folder; no change if it is there."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: files created, renamed and removed."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same folder, replacing a file that has it."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder that is empty."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written below `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Take a lock file, or raise `FolderLocked` at once if another holds it."""
        ...

    def sync_soon(self, file: File, done: SyncDone) -> None:
        """Sync off the event loop, then call `done` on it, with the error if there was one."""
        ...

    def close(self) -> None:
        """Wait for syncs that are under way and let go of every thread."""
        ...


_Sync = tuple[File, SyncDone, asyncio.AbstractEventLoop]


class RealFiles:
    """The operating system's files; `sync_soon` runs on a few threads of its own."""

    def __init__(self, *, sync_threads: int = 4) -> None:
        self._sync_threads = sync_threads
        self._syncs: SimpleQueue[_Sync | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._removed: SimpleQueue[int | None] = SimpleQueue()
        self._remover: threading.Thread | None = None

    def open(self, path: str, *, create: bool = False) -> RealFile:
        """Open a file for reading and writing; `create` makes it if it is missing."""
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        with _translated("open", path):
            return RealFile(path, os.open(path, flags, FILE_MODE))

    def open_to_read(self, path: str) -> RealFile:
        """Open a file that this process may not change."""
        with _translated("open", path):
            return RealFile(path, os.open(path, os.O_RDONLY))

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this name."""
        return os.path.lexists(path)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        with _translated("list", folder):
            try:
                return sorted(os.listdir(folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def make_folder(self, path: str) -> None:
        """Make one folder; no change if it is there."""
        with _translated("make folder", path):
            try:
                os.mkdir(path, FOLDER_MODE)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: files created, renamed and removed."""
        with _translated("sync folder", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same folder, replacing a file that has it."""
        with _translated("rename", old):
            os.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder that is empty.

        The name is gone at once. The room of a large file is given back by a thread, bit by bit: the kernel takes up to
        half a second for a gigabyte, from whoever lets go of it last, and whoever syncs a file or removes the folder
        meanwhile waits for the bit that is going.
        """
        with _translated("remove", path):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
                return
            held = _open_if_large(path)
            try:
                os.unlink(path)
            finally:
                if held is not None:
                    self._let_go_elsewhere(held)

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written below `path`."""
        with _translated("measure", path):
            figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def lock(self, path: str) -> _RealLock:
        """Take a lock file, or raise `FolderLocked` at once if another holds it."""
        with _translated("lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise FolderLocked(os.path.dirname(path)) from None
            raise _typed("lock", path, error) from error
        return _RealLock(descriptor)

    def sync_soon(self, file: File, done: SyncDone) -> None:
        """Sync off the event loop, then call `done` on it, with the error if there was one."""
        if not self._threads:
            names = (f"clymq-sync-{number}" for number in range(self._sync_threads))
            self._threads = [threading.Thread(target=self._run_syncs, name=name, daemon=True) for name in names]
            for thread in self._threads:
                thread.start()
        # A plain queue: a third of the cost of an executor, on the way of every acknowledgement.
        self._syncs.put((file, done, asyncio.get_running_loop()))

    def close(self) -> None:
        """Wait for syncs that are under way and let go of every thread."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._syncs.put(None)
        if self._remover is not None:
            threads.append(self._remover)
            self._remover = None
            self._removed.put(None)
        for thread in threads:
            thread.join()

    def _let_go_elsewhere(self, descriptor: int) -> None:
        if self._remover is None:
            self._remover = threading.Thread(target=self._let_go, name="clymq-remove", daemon=True)
            self._remover.start()
        self._removed.put(descriptor)

    def _let_go(self) -> None:
        while (descriptor := self._removed.get()) is not None:
            _shrink_to_nothing(descriptor)
            os.close(descriptor)

    def _run_syncs(self) -> None:
        while (sync := self._syncs.get()) is not None:
            file, done, loop = sync
            error = _sync_for_error(file)
            with suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
                loop.call_soon_threadsafe(done, error)


class RealFile:
    """One file descriptor, and a map of what is known to stay."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map: memoryview | None = None

    def size(self) -> int:
        """Bytes that it has now."""
        with _translated("measure", self.path):
            return os.fstat(self._descriptor).st_size

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, in one system call where it can be."""
        try:
            for first in range(0, len(buffers), _BUFFERS_MAX):
                some = buffers[first : first + _BUFFERS_MAX]
                length = sum(map(len, some))
                if os.pwritev(self._descriptor, some, position) < length:
                    self._write_piece_by_piece(position, some)
                position += length
        except OSError as error:
            raise _typed("write", self.path, error) from error

    def read(self, position: int, length: int) -> bytes:
        """Copy bytes out; fewer than `length` only at the end of the file."""
        try:
            data = os.pread(self._descriptor, length, position)
        except OSError as error:
            raise _typed("read", self.path, error) from error
        if len(data) == length or not data:
            return data
        return data + self.read(position + len(data), length - len(data))

    def view(self, start: int, end: int) -> memoryview:
        """Return [start, end) without copying where that pays; the caller swears that it will never be truncated."""
        mapped = self._map
        if mapped is None or len(mapped) < end:
            if end - (0 if mapped is None else len(mapped)) < _REMAP_BYTES:
                return memoryview(self.read(start, end - start))
            with _translated("map", self.path):
                size = os.fstat(self._descriptor).st_size
                mapped = memoryview(_Map.of(self, self._descriptor, size) if size else b"")
            self._map = mapped
        return mapped[start:end]

    def truncate(self, length: int) -> None:
        """Cut the file; durable only after `sync`."""
        with _translated("truncate", self.path):
            os.ftruncate(self._descriptor, length)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        if self._descriptor < 0:
            raise DiskFailed(self.path, "sync", "the file is closed")
        with _translated("sync", self.path):
            os.fdatasync(self._descriptor)

    def send_to(self, socket: int, position: int, count: int) -> int | None:
        """See `FileMemory`. Whether an error is the socket's or the file's only its number says."""
        if self._descriptor < 0:
            return None
        try:
            return os.sendfile(socket, self._descriptor, position, count)
        except OSError as error:
            if error.errno in _OF_THE_SOCKET:
                raise
            if error.errno in _CANNOT_BE_SENT:
                return None
            log.error("%s cannot be sent from %d on: %s", self.path, position, error.strerror)
            return 0

    def close(self) -> None:
        """Let go of it; views that were given out stay valid, because a map outlives its descriptor."""
        descriptor, self._descriptor, self._map = self._descriptor, -1, None
        if descriptor >= 0:
            os.close(descriptor)

    def _write_piece_by_piece(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write again what was written short, until it is there or the reason comes to light."""
        for buffer in buffers:
            rest = memoryview(buffer)
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                position += written
                rest = rest[written:]


class _Map(mmap.mmap, FileMemory):
    """A file in memory. It can be sent from the file as long as that is open."""

    _file: RealFile

    @classmethod
    def of(cls, file: RealFile, descriptor: int, size: int) -> _Map:
        mapped = cls(descriptor, size, prot=mmap.PROT_READ)
        mapped._file = file
        mapped.address = address_of(mapped)
        return mapped

    def send_to(self, socket: int, position: int, count: int) -> int | None:
        return self._file.send_to(socket, position, count)


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_if_large(path: str) -> int | None:
    """Return a descriptor that keeps the room of a large file when its name is gone; None for any other."""
    try:
        if os.lstat(path).st_size >= _LARGE_BYTES:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        pass  # it is removed all the same, or that says why not
    return None


def _shrink_to_nothing(descriptor: int) -> None:
    """Cut a file without a name shorter and shorter, if nobody else has it open or mapped: only then a lease is had."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        for length in range(os.fstat(descriptor).st_size, 0, -_CUT_BYTES):
            os.ftruncate(descriptor, length)
            os.fsync(descriptor)  # else the disk hears of many cuts at once, and discards them before anything else


def _sync_for_error(file: File) -> StorageError | None:
    try:
        file.sync()
    except StorageError as error:
        return error
    return None


def _typed(operation: str, path: str, error: OSError) -> StorageError:
    problem = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(path, problem)
    return DiskFailed(path, operation, problem)


@contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _typed(operation, path, error) from error
