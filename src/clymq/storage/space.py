"""Free space, kept in reserve: a full disk must still take a vote, a checkpoint and a seal."""

from __future__ import annotations

from typing import Final

from clymq.errors import DiskFull
from clymq.storage.files import Files

# How much may be written before the disk is asked again; others may be filling it too.
_GRANT_BYTES: Final = 16 * 1024 * 1024


class Space:
    """Grants room for messages as long as the reserve of a data folder stays untouched."""

    def __init__(self, files: Files, folder: str, reserve_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._granted = 0

    def claim(self, length: int) -> None:
        """Take room for `length` bytes or raise `DiskFull`."""
        self.check(length)
        self._granted -= length

    def check(self, length: int) -> None:
        """Raise `DiskFull` unless there is room for `length` bytes."""
        if length > self._granted:
            free = self._files.free_bytes(self._folder) - self._reserve_bytes
            if length > free:
                raise DiskFull(self._folder, f"{max(0, free)} bytes above the reserve of {self._reserve_bytes}")
            self._granted = max(length, min(free, _GRANT_BYTES))
