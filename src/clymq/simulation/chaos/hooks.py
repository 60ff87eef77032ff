"""What the nemesis can do inside a server: fill its disk, move its clock, slow or break its connections, cut its power.

The nemesis writes `control` in the server's folder of hooks and sends SIGUSR1; the server reads it. What the server
writes to its files is noted in `writes` until it is synced, with what was there before, so that after a kill the
nemesis can put the disk into the state that a power cut would have left: `undo_unsynced`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from clymq.clock import SystemClock
from clymq.errors import DiskFull
from clymq.simulation.chaos.wires import Wires, replace
from clymq.storage.files import Buffer, RealFile, RealFiles

_CONTROL: Final = "control"
_WRITES: Final = "writes"
_BATCHES: Final = "/batches"
# kind, number of the operation, position or length before, lengths of path and of the bytes that were there
_RECORD: Final = struct.Struct("<cQQII")
_WRITE, _TRUNCATE, _SYNC = b"w", b"t", b"s"


@dataclass(frozen=True, slots=True)
class Control:
    """What a server is to suffer."""

    disk_full: bool = False
    clock_offset_seconds: float = 0.0
    resets: int = 0
    """Connections break when this grows."""
    sync_seconds: float = 0.0
    """A sync of messages takes so much longer."""
    delay_seconds: float = 0.0
    """What it is sent arrives so late."""
    mute: tuple[str, ...] = ()
    """Addresses that it says nothing to, where it is who has connected."""
    deaf: tuple[str, ...] = ()
    """Addresses that it hears nothing from, where it is who has connected."""


def control(folder: Path, wanted: Control, pid: int) -> None:
    """Tell a server; it obeys within a moment."""
    prepare(folder, wanted)
    os.kill(pid, signal.SIGUSR1)


def prepare(folder: Path, wanted: Control) -> None:
    """Leave word for a server that is not running."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_CONTROL}.new"
    new.write_text(json.dumps(asdict(wanted)), encoding="ascii")
    new.replace(folder / _CONTROL)


class Hooks:
    """Inside the server: see the module."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / _CONTROL
        self._now = Control()
        self._wires = Wires()
        self._writes = _Writes(folder / _WRITES)

    def install(self) -> None:
        """Replace what is to be replaced; once, BEFORE the server starts."""
        self._read()
        signal.signal(signal.SIGUSR1, lambda *_: self._told())
        self._hook_clock()
        self._wires.install()
        self._hook_disk()

    def _told(self) -> None:
        """Obey at the next turn of the event loop: a signal comes at any instruction."""
        try:
            asyncio.get_running_loop().call_soon_threadsafe(self._read)
        except RuntimeError:  # it does not run yet
            self._read()

    def _read(self) -> None:
        if not self._path.exists():
            return
        before, self._now = self._now, Control(**json.loads(self._path.read_text(encoding="ascii")))
        now, wires = self._now, self._wires
        wires.delay_seconds = now.delay_seconds
        if (now.mute, now.deaf) != (before.mute, before.deaf):
            wires.cut(mute=frozenset(now.mute), deaf=frozenset(now.deaf))
        if now.resets != before.resets:
            wires.reset()

    def _hook_clock(self) -> None:
        def wall_us(_: SystemClock) -> int:
            return time.time_ns() // 1000 + round(self._now.clock_offset_seconds * 1e6)

        replace(SystemClock, "wall_us", wall_us)

    def _hook_disk(self) -> None:
        write, truncate, sync, free = RealFile.write, RealFile.truncate, RealFile.sync, RealFiles.free_bytes
        writes = self._writes

        def noted_write(this: RealFile, position: int, buffers: Sequence[Buffer]) -> None:
            if self._now.disk_full and this.path.endswith(_BATCHES):  # votes and checkpoints have their reserve
                raise DiskFull(this.path, "the nemesis has filled it")
            writes.before_write(this, position, sum(map(len, buffers)))
            write(this, position, buffers)

        def noted_truncate(this: RealFile, length: int) -> None:
            writes.before_truncate(this, length)
            truncate(this, length)

        def noted_sync(this: RealFile) -> None:
            number = writes.number
            if self._now.sync_seconds and this.path.endswith(_BATCHES):
                time.sleep(self._now.sync_seconds)  # in the thread that syncs
            sync(this)
            writes.synced(this, number)

        def free_bytes(this: RealFiles, path: str) -> int:
            return 0 if self._now.disk_full else free(this, path)

        replace(RealFile, "write", noted_write)
        replace(RealFile, "truncate", noted_truncate)
        replace(RealFile, "sync", noted_sync)
        replace(RealFiles, "free_bytes", free_bytes)


class _Writes:
    """Notes what is written, BEFORE it is, with what was there; what a kill leaves of it says what was not synced."""

    def __init__(self, path: Path) -> None:
        self.number = 0
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def before_write(self, file: RealFile, position: int, length: int) -> None:
        size = file.size()
        before = file.read(position, min(length, size - position)) if position < size else b""
        self._note(_WRITE, file.path, position, struct.pack("<Q", size) + before)

    def before_truncate(self, file: RealFile, length: int) -> None:
        size = file.size()
        before = file.read(length, size - length) if length < size else b""
        self._note(_TRUNCATE, file.path, length, struct.pack("<Q", size) + before)

    def synced(self, file: RealFile, number: int) -> None:
        self._note(_SYNC, file.path, number, b"")

    def _note(self, kind: bytes, path: str, where: int, before: bytes) -> None:
        name = os.fsencode(path)
        with self._lock:
            self.number += 1
            record = _RECORD.pack(kind, self.number, where, len(name), len(before))
            os.write(self._file, record + name + before)


@dataclass(frozen=True, slots=True)
class _Note:
    kind: bytes
    number: int
    path: Path
    where: int
    before: bytes


def undo_unsynced(folder: Path, *, keep: float) -> int:
    """Put the disk of a killed server into the state of a power cut; return how many writes and truncates were undone.

    Of the first write to a file that was not synced a part stays, torn: `keep` of it, from 0 to 1. Names of files that
    were not synced stay: what becomes of them is tested on the disk in memory.
    """
    notes = list(_notes(folder / _WRITES))
    synced = {note.path: note.where for note in notes if note.kind == _SYNC}
    undone = [note for note in notes if note.kind != _SYNC and note.number > synced.get(note.path, 0)]
    undone = [note for note in undone if note.path.exists()]
    first = {note.path: note.number for note in reversed(undone)}
    for note in reversed(undone):
        _undo(note, keep if note.number == first[note.path] else 0.0)
    (folder / _WRITES).unlink(missing_ok=True)
    return len(undone)


def _undo(note: _Note, keep: float) -> None:
    """Put back what was there; of bytes that were added keep a part, if asked to. What came later is undone already."""
    (size_before,) = struct.unpack_from("<Q", note.before)
    with note.path.open("r+b") as file:
        file.seek(note.where)
        file.write(note.before[8:])
        added = file.seek(0, os.SEEK_END) - size_before
        file.truncate(size_before + int(keep * added) if added > 0 and note.kind == _WRITE else size_before)


def _notes(path: Path) -> Iterator[_Note]:
    """Yield what was noted; the last note may be cut short, and then what it announces was not done."""
    if not path.exists():
        return
    data = path.read_bytes()
    position = 0
    while position + _RECORD.size <= len(data):
        kind, number, where, name_length, length = _RECORD.unpack_from(data, position)
        begin = position + _RECORD.size
        position = begin + name_length + length
        if position > len(data):
            return
        name = os.fsdecode(data[begin : begin + name_length])
        yield _Note(kind, number, Path(name), where, data[begin + name_length : position])
