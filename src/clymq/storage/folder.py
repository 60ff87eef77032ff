"""A broker's data folder: locked while in use, and where each partition lies in it."""

from __future__ import annotations

from collections.abc import Callable

from clymq.config import Config
from clymq.errors import CorruptBlock
from clymq.storage.files import Files, Lock
from clymq.storage.handles import Handles
from clymq.storage.replace import checksum, make_folders, read_whole, replace, text_of
from clymq.storage.space import Space
from clymq.types import check_name, folder_name


class DataFolder:
    """One data folder, held by this process alone until `close`. Opened by `open`."""

    def __init__(self, files: Files, path: str, config: Config, lock: Lock) -> None:
        self.path = path
        self.handles = Handles(files, config.open_files_max)
        self.space = Space(files, path, config.disk_reserve_bytes)
        self._files = files
        self._lock = lock

    @classmethod
    def open(cls, files: Files, path: str, config: Config) -> DataFolder:
        """Make the folder if it is missing and lock it, or raise `FolderLocked`."""
        path = path.rstrip("/") or "/"
        make_folders(files, path)
        return cls(files, path, config, files.lock(f"{path}/lock"))

    def identity(self, draw: Callable[[], str]) -> str:
        """Return who this disk is: made with the folder, random, and durable BEFORE anything is promised on it.

        A wiped disk is another one, and never speaks in the name of the old.
        """
        return self.kept_line("disk", draw)

    def kept_line(self, name: str, first: Callable[[], str]) -> str:
        """Return the line that a small file holds, written now if there is none; damaged, it is `CorruptBlock`."""
        path = f"{self.path}/{name}"
        data = read_whole(self._files, path)
        if data is None:
            line = first().encode()
            replace(self._files, path, [checksum(line), b" ", line])
            return line.decode()
        head, _, line = data.partition(b" ")
        if head != checksum(line):
            raise CorruptBlock(path, 0, "fails its checksum")
        return text_of(path, line)

    def partition(self, topic: str, topic_id: str, partition: str, uid: str) -> str:
        """Return the folder of a partition, made if it is missing, with the full names beside their short ones."""
        above = self._named(self.path, check_name(topic, "topic"), topic_id)
        return self._named(above, check_name(partition, "partition"), uid)

    def close(self) -> None:
        """Let others have the folder."""
        self.handles.close()
        self._lock.release()

    def _named(self, above: str, name: str, unique_id: str) -> str:
        path = f"{above}/{folder_name(name, unique_id)}"
        make_folders(self._files, path, durable=self.path)
        if read_whole(self._files, f"{path}/name") != name.encode():
            replace(self._files, f"{path}/name", [name.encode()])
        return path
