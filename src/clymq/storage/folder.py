"""A broker's data folder: locked while in use, and where each partition lies in it."""

from __future__ import annotations

from clymq.config import Config
from clymq.storage.files import Files
from clymq.storage.handles import Handles
from clymq.storage.replace import make_folders, read_whole, replace
from clymq.storage.space import Space
from clymq.types import check_name, folder_name


class DataFolder:
    """One data folder, held by this process alone until `close`."""

    def __init__(self, files: Files, path: str, config: Config) -> None:
        """Make the folder if it is missing and lock it, or raise `FolderLocked`."""
        self.path = path.rstrip("/") or "/"
        make_folders(files, self.path)
        self._lock = files.lock(f"{self.path}/lock")
        self._files = files
        self.handles = Handles(files, config.open_blocks_max)
        self.space = Space(files, self.path, config.disk_reserve_bytes)

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
        make_folders(self._files, path)
        if read_whole(self._files, f"{path}/name") != name.encode():
            replace(self._files, f"{path}/name", [name.encode()])
        return path
