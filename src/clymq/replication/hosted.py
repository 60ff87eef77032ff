"""The file `hosted`: every block that this disk was ever asked to hold.

An empty folder means one of two things: a replica that is about to begin, or one that has lost everything it promised.
This list tells them apart. A block is on it BEFORE its replica gives its first vote or acknowledgement; one that is on
it and not in its folder is lost, and must not vote as if it had never voted before.

Kept whole in memory, replaced as a whole on the disk, with a checksum in its first line. A list that cannot be read
lets nothing begin: what it does not name might have been on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from clymq.errors import CorruptBlock, InvalidRequest
from clymq.storage.files import Files
from clymq.storage.replace import checksum, read_whole, replace, text_of


class Hosted:
    """The blocks by name. Opened by `open`."""

    def __init__(self, files: Files, path: str, names: set[str]) -> None:
        self._files = files
        self._path = path
        self._names = names

    @classmethod
    def open(cls, files: Files, path: str) -> Hosted:
        """Read the list; one that is not there is empty, one that is damaged is `CorruptBlock`."""
        data = read_whole(files, path)
        if data is None:
            return cls(files, path, set())
        head, _, body = data.partition(b"\n")
        if head != checksum(body):
            raise CorruptBlock(path, 0, "the list of hosted blocks fails its checksum")
        return cls(files, path, set(text_of(path, body).split("\n")) - {""})

    def add(self, name: str) -> None:
        """Put a block on the list; durable BEFORE this returns."""
        if not name or "\n" in name:
            raise InvalidRequest(f"{name!r} cannot name a block")
        if name not in self._names:
            self._write(self._names | {name})

    def remove(self, *names: str) -> None:
        """Take blocks off: their replicas are not wanted any more, and their folders are gone."""
        if not self._names.isdisjoint(names):
            self._write(self._names - set(names))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def _write(self, names: set[str]) -> None:
        body = "\n".join(sorted(names)).encode()
        replace(self._files, self._path, [checksum(body), b"\n", body])
        self._names = names
