"""`Files` in memory, which can lose power, run full, fail, lie about a bit, and be slow: deterministically.

It models what a disk behind a page cache may do. A file has its bytes as programs see them and a list of changes that
are not durable yet; `sync` makes them so. A folder has its names in the same two ways. `crash` gives the file system
that a power cut could leave: of each file any part of the changes that were not durable, cut at sectors; of each folder
the changes up to some point, in order, as a journal would keep them. A file that was synced but whose name was not may
be gone.

`on_operation` runs after every single change, so that a test can cut the power there.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from clymq.clock import Clock
from clymq.errors import DiskFailed, DiskFull, FolderLocked, StorageError
from clymq.storage.files import Buffer, File, SyncDone

SECTOR_BYTES: Final = 512


class Chance(Protocol):
    """The part of `random.Random` that a crash needs; handed in, so that a seed decides everything."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def randint(self, a: int, b: int) -> int:
        """Return a whole number in [a, b]."""
        ...


class MemoryFiles:
    """A file system in memory with one root folder, `/`."""

    def __init__(self, *, clock: Clock | None = None, capacity_bytes: int = 1 << 62) -> None:
        self.capacity_bytes = capacity_bytes
        self.sync_delay_ms = 0.0
        self.bytes_read = 0
        self.on_operation: Callable[[str, str], None] = lambda _operation, _path: None
        self._clock = clock
        self._root = _Folder()
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._waiting: list[Callable[[], None]] = []

    # --- Files ---

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        """Open a file for reading and writing; `create` makes it if it is missing."""
        self._fail_if_told("open", path)
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if isinstance(node, _Folder):
            raise DiskFailed(path, "open", "is a folder")
        if node is None:
            if not create:
                raise DiskFailed(path, "open", "no such file")
            node = _Inode()
            folder.change(("add", name, node))
            self.on_operation("create", path)
        return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of this name."""
        return self._find(path) is not None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        node = self._find(folder)
        return sorted(node.entries) if isinstance(node, _Folder) else []

    def make_folder(self, path: str) -> None:
        """Make one folder; no change if it is there."""
        self._fail_if_told("make folder", path)
        if path.strip("/"):
            folder, name = self._parent(path)
            if isinstance(folder.entries.get(name), _Inode):
                raise DiskFailed(path, "make folder", "is a file")
            if name not in folder.entries:
                folder.change(("add", name, _Folder()))
                self.on_operation("make folder", path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable: files created, renamed and removed."""
        self._fail_if_told("sync folder", path)
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise DiskFailed(path, "sync folder", "no such folder")
        node.sync()
        self.on_operation("sync folder", path)

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name in the same folder, replacing a file that has it."""
        self._fail_if_told("rename", old)
        folder, old_name = self._parent(old)
        new_folder, new_name = self._parent(new)
        if old_name not in folder.entries:
            raise DiskFailed(old, "rename", "no such file")
        assert folder is new_folder, "a rename across folders is not needed, so not modelled"
        folder.change(("rename", old_name, new_name))
        self.on_operation("rename", old)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder that is empty."""
        self._fail_if_told("remove", path)
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise DiskFailed(path, "remove", "no such file")
        if isinstance(node, _Folder) and node.entries:
            raise DiskFailed(path, "remove", "the folder is not empty")
        folder.change(("remove", name, None))
        self.on_operation("remove", path)

    def free_bytes(self, path: str) -> int:
        """Bytes that may still be written."""
        if self._find(path) is None:
            raise DiskFailed(path, "measure", "no such file or folder")
        return max(0, self.capacity_bytes - self._root.bytes())

    def lock(self, path: str) -> _MemoryLock:
        """Take a lock file, or raise `FolderLocked` at once if another holds it."""
        self.open(path, create=True)
        if path in self._locks:
            raise FolderLocked(path.rpartition("/")[0])
        self._locks.add(path)
        return _MemoryLock(self._locks, path)

    def sync_soon(self, file: File, done: SyncDone) -> None:
        """Sync what is written by now; done after `sync_delay_ms` of the clock, or when `run_syncs` is called."""
        assert isinstance(file, MemoryFile)
        marked = file.node.changes_made

        def finish() -> None:
            error = None
            try:
                file.sync_through(marked)
            except StorageError as failure:
                error = failure
            done(error)

        if self._clock is None:
            self._waiting.append(finish)
        else:
            self._clock.call_later(self.sync_delay_ms, finish)

    def run_syncs(self) -> int:
        """Finish the syncs that wait, those that they start included; return how many there were."""
        count = 0
        while self._waiting:
            self._waiting.pop(0)()
            count += 1
        return count

    def close(self) -> None:
        """Finish the syncs that wait."""
        self.run_syncs()

    # --- Faults ---

    def crash(self, chance: Chance) -> MemoryFiles:
        """Return the file system that a power cut could leave now; this one is not changed."""
        after = MemoryFiles(clock=self._clock, capacity_bytes=self.capacity_bytes)
        after._root = self._root.after_crash(chance)
        return after

    def fail(self, operation: str, *, path: str = "*", full: bool = False, times: int = 1) -> None:
        """Let the next `times` operations of this kind on a matching path fail; a failed write leaves half behind."""
        self._faults.append(_Fault(operation, path, full, times))

    def flip(self, path: str, position: int, bit: int) -> None:
        """Flip one bit of a file, on the disk and in the cache alike."""
        node = self._find(path)
        assert isinstance(node, _Inode)
        node.flip(position, bit)

    def contents(self, path: str) -> bytes:
        """Return a file's bytes as programs see them."""
        node = self._find(path)
        assert isinstance(node, _Inode)
        return bytes(node.content)

    def _fail_if_told(self, operation: str, path: str) -> None:
        for fault in self._faults:
            if fault.operation == operation and fnmatch.fnmatchcase(path, fault.path):
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                raise DiskFull(path, "told to") if fault.full else DiskFailed(path, operation, "told to")

    # --- The tree ---

    def _find(self, path: str) -> _Folder | _Inode | None:
        node: _Folder | _Inode | None = self._root
        for name in path.strip("/").split("/"):
            if name:
                node = node.entries.get(name) if isinstance(node, _Folder) else None
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.strip("/").rpartition("/")
        node = self._find(folder)
        if not isinstance(node, _Folder):
            raise DiskFailed(path, "open", "no such folder")
        return node, name


class MemoryFile:
    """One open file of `MemoryFiles`."""

    def __init__(self, files: MemoryFiles, path: str, node: _Inode) -> None:
        self.path = path
        self.node = node
        self._files = files
        self._closed = False

    def size(self) -> int:
        """Bytes that it has now."""
        self._check_open("measure")
        return len(self.node.content)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other; past the capacity, only what fits."""
        self._check_open("write")
        data = b"".join(buffers)
        room = self._files.free_bytes("/") + max(0, len(self.node.content) - position)
        try:
            self._files._fail_if_told("write", self.path)
        except StorageError:
            self.node.change(_Write(position, data[: len(data) // 2]))
            raise
        self.node.change(_Write(position, data[:room]))
        self._files.on_operation("write", self.path)
        if room < len(data):
            raise DiskFull(self.path, "no space left")

    def read(self, position: int, length: int) -> bytes:
        """Copy bytes out; fewer than `length` only at the end of the file."""
        self._check_open("read")
        self._files._fail_if_told("read", self.path)
        data = bytes(self.node.content[position : position + length])
        self._files.bytes_read += len(data)
        return data

    def view(self, start: int, end: int) -> memoryview:
        """Return [start, end); here always a copy."""
        return memoryview(self.read(start, end - start))

    def truncate(self, length: int) -> None:
        """Cut the file; durable only after `sync`."""
        self._check_open("truncate")
        self._files._fail_if_told("truncate", self.path)
        self.node.change(_Truncate(length))
        self._files.on_operation("truncate", self.path)

    def sync(self) -> None:
        """Make everything written so far durable."""
        self.sync_through(self.node.changes_made)

    def sync_through(self, change: int) -> None:
        """Make the changes up to this one durable, as a sync that began then would at the least."""
        self._check_open("sync")
        self._files._fail_if_told("sync", self.path)
        self.node.sync_through(change)
        self._files.on_operation("sync", self.path)

    def close(self) -> None:
        """Let go of it; what is done with it from now on is an error, as it is with a real one."""
        self._closed = True

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise DiskFailed(self.path, operation, "the file is closed")


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class _Fault:
    def __init__(self, operation: str, path: str, full: bool, times: int) -> None:
        self.operation = operation
        self.path = path
        self.full = full
        self.times = times


class _Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


class _Truncate(NamedTuple):
    length: int

    def apply(self, content: bytearray) -> None:
        if len(content) < self.length:
            content.extend(bytes(self.length - len(content)))
        del content[self.length :]


class _Inode:
    """A file's bytes: as seen, as durable, and the numbered changes between the two."""

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.content = bytearray(content)
        self.durable = bytearray(content)
        self.changes_made = 0
        self._pending: list[tuple[int, _Write | _Truncate]] = []

    def change(self, change: _Write | _Truncate) -> None:
        self.changes_made += 1
        change.apply(self.content)
        self._pending.append((self.changes_made, change))

    def sync_through(self, number: int) -> None:
        while self._pending and self._pending[0][0] <= number:
            self._pending.pop(0)[1].apply(self.durable)

    def flip(self, position: int, bit: int) -> None:
        for content in (self.content, self.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def after_crash(self, chance: Chance) -> _Inode:
        """Keep nothing, everything, a beginning, or any sectors of what was not durable."""
        draw = chance.random()
        if not self._pending or draw < 0.2:
            return _Inode(self.durable)
        if draw < 0.4:
            return _Inode(self.content)
        return self._beginning(chance) if draw < 0.7 else self._some_sectors(chance)

    def _beginning(self, chance: Chance) -> _Inode:
        content = bytearray(self.durable)
        whole = chance.randint(0, len(self._pending) - 1)
        for _, change in self._pending[:whole]:
            change.apply(content)
        torn = self._pending[whole][1]
        if isinstance(torn, _Write):
            end = torn.position + chance.randint(0, len(torn.data))
            end -= end % SECTOR_BYTES
            _Write(torn.position, torn.data[: max(0, end - torn.position)]).apply(content)
        return _Inode(content)

    def _some_sectors(self, chance: Chance) -> _Inode:
        sizes = [len(self.durable), len(self.content)]
        size = sizes[chance.randint(0, 1)]
        content = bytearray()
        for start in range(0, size, SECTOR_BYTES):
            source = self.durable if chance.random() < 0.5 else self.content
            sector = bytes(source[start : min(start + SECTOR_BYTES, size)])
            content += sector + bytes(min(SECTOR_BYTES, size - start) - len(sector))
        return _Inode(content)


_Change = tuple[str, str, "_Folder | _Inode | str | None"]


class _Folder:
    """A folder's names: as seen, as durable, and the changes between the two in order."""

    def __init__(self) -> None:
        self.entries: dict[str, _Folder | _Inode] = {}
        self._durable: dict[str, _Folder | _Inode] = {}
        self._pending: list[_Change] = []

    def change(self, change: _Change) -> None:
        _apply(change, self.entries)
        self._pending.append(change)

    def sync(self) -> None:
        self._durable = dict(self.entries)
        self._pending.clear()

    def bytes(self) -> int:
        return sum(node.bytes() if isinstance(node, _Folder) else len(node.content) for node in self.entries.values())

    def after_crash(self, chance: Chance) -> _Folder:
        entries = dict(self._durable)
        for change in self._pending[: chance.randint(0, len(self._pending))]:
            _apply(change, entries)
        after = _Folder()
        after.entries = {name: node.after_crash(chance) for name, node in entries.items()}
        after._durable = dict(after.entries)
        return after


def _apply(change: _Change, entries: dict[str, _Folder | _Inode]) -> None:
    kind, name, other = change
    if kind == "add":
        assert isinstance(other, _Folder | _Inode)
        entries[name] = other
    elif kind == "rename":
        assert isinstance(other, str)
        entries[other] = entries.pop(name)
    else:
        entries.pop(name, None)
