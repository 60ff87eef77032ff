"""Bytes that recovery cuts away, kept for people to look at: `*.torn`, `*.bad`, `*.lost`.

They are copied and durable BEFORE the cut. Bounded in number and size per block, the oldest leave first, and each
removal is logged: evidence must not become the next full disk.
"""

from __future__ import annotations

import logging
from typing import Final

from clymq.config import Config
from clymq.errors import StorageError
from clymq.storage.files import File, Files
from clymq.storage.replace import copy, parent, size_of

SUFFIXES: Final = (".torn", ".bad", ".lost")

log = logging.getLogger("clymq.storage")


def set_aside(files: Files, source: File, start: int, end: int, suffix: str, config: Config) -> str | None:
    """Copy [start, end) of a file beside it; return the copy's path, or None if the disk has no room for it."""
    assert suffix in SUFFIXES
    folder = parent(source.path)
    length = min(end - start, config.set_aside_bytes_max)
    if length < end - start:
        log.warning("%s: of %d cut bytes only %d are kept", source.path, end - start, length)
    number = 1 + max((_number(name) for name in files.names(folder) if name.endswith(SUFFIXES)), default=0)
    path = f"{source.path}-{number:06d}-at-{start}{suffix}"
    try:
        _make_room(files, folder, length, config)
        copy(files, source, start, length, path)
        files.sync_folder(folder)
    except StorageError as error:
        # Keeping evidence must not keep a broker from starting.
        log.error("%s: cut bytes [%d, %d) could not be kept, or not whole: %s", source.path, start, end, error)
        return None
    return path


def _make_room(files: Files, folder: str, length: int, config: Config) -> None:
    kept = sorted((name for name in files.names(folder) if name.endswith(SUFFIXES)), key=_number)
    sizes = {name: size_of(files, f"{folder}/{name}") for name in kept}
    while kept and (
        len(kept) >= config.set_aside_files_max
        or sum(sizes[name] for name in kept) + length > config.set_aside_bytes_max
    ):
        oldest = kept.pop(0)
        log.warning("%s/%s: removed to make room for newer damage", folder, oldest)
        files.remove(f"{folder}/{oldest}")


def _number(name: str) -> int:
    """Return the running number in `batches-000007-at-4096.torn`; a name of another form is the oldest."""
    parts = name.split("-")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdecimal() else 0
