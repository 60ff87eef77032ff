"""Open files of blocks at rest, and indexes: at most so many, the least recently used is closed first.

A partition that keeps a year of sealed blocks must not keep a year of descriptors, nor a broker with thousands of
partitions that sleep one for each. A block that is written to holds its own file, because a sync of it may be under
way; nothing in here may be in use beyond the call that got it.
"""

from __future__ import annotations

from collections import OrderedDict

from clymq.storage.files import File, Files


class Handles:
    """A bounded cache of open files, by path."""

    def __init__(self, files: Files, open_max: int) -> None:
        self._files = files
        self._open_max = open_max
        self._open: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str) -> File:
        """Return the file, opened if it must be; use it at once, a later `get` may close it."""
        file = self._open.get(path)
        if file is None:
            file = self._files.open(path)
            self._open[path] = file
            while len(self._open) > self._open_max:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    def drop(self, folder: str) -> None:
        """Close the files below a folder that is about to go."""
        for path in [path for path in self._open if path.startswith(f"{folder}/")]:
            self._open.pop(path).close()

    def close(self) -> None:
        """Close everything."""
        while self._open:
            self._open.popitem()[1].close()

    def __len__(self) -> int:
        return len(self._open)
