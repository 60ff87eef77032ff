"""Small files that change as a whole, and folders that must be there before anybody relies on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from clymq.errors import CorruptBlock, DiskFailed
from clymq.storage.files import Buffer, File, Files

_CHUNK_BYTES: Final = 4 * 1024 * 1024


def replace(files: Files, path: str, buffers: Sequence[Buffer]) -> None:
    """Give a file new contents so that at every moment it has the old or the new ones: beside, sync, rename, sync."""
    beside = f"{path}.new"
    if files.exists(beside):  # left by a crash
        files.remove(beside)
    file = files.open(beside, create=True)
    try:
        file.write(0, buffers)
        file.sync()
    finally:
        file.close()
    files.rename(beside, path)
    files.sync_folder(parent(path))


def read_whole(files: Files, path: str) -> bytes | None:
    """Return all of a small file, or None if there is none."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def checksum(data: bytes) -> bytes:
    """Return a line that tells a small text file from a damaged one."""
    return b"%08x" % crc32c(data)


def text_of(path: str, data: bytes) -> str:
    """Return what a small text file says; what is no text is damage, even with a right checksum."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CorruptBlock(path, 0, "is no text") from None


def size_of(files: Files, path: str) -> int:
    """Return the bytes of a file that is not open."""
    file = files.open(path)
    try:
        return file.size()
    finally:
        file.close()


def make_folders(files: Files, path: str, *, durable: str = "/") -> None:
    """Make a folder and those above it that are missing; its whole path is durable BEFORE this returns.

    Those that were there are synced as well: whoever made them may have died before that. But for `durable`, a folder
    that this process has made or synced before, and what lies above it: thousands of blocks lie in one data folder.
    """
    above = parent(path)
    if path not in {above, durable}:
        make_folders(files, above, durable=durable)
        if files.exists(path):
            try:
                files.sync_folder(above)
            except DiskFailed:
                if files.names(above):
                    raise
                # Not ours to open, so not ours to have made.
        else:
            files.make_folder(path)
            files.sync_folder(above)


def copy(files: Files, source: File, start: int, length: int, path: str) -> None:
    """Copy part of a file to a new one, synced; its name is durable only with its folder."""
    new = files.open(path, create=True)
    try:
        for at in range(0, length, _CHUNK_BYTES):
            new.write(at, [source.read(start + at, min(_CHUNK_BYTES, length - at))])
        new.sync()
    finally:
        new.close()


def remove_folder(files: Files, path: str) -> None:
    """Remove a folder with the files and folders in it."""
    for name in files.names(path):
        inside = f"{path}/{name}"
        if files.names(inside):
            remove_folder(files, inside)
        else:
            files.remove(inside)
    files.remove(path)


def parent(path: str) -> str:
    """Return the folder that a path lies in."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
