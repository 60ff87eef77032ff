"""A replica of a fetch block on its disk: a log, and the epoch below which it takes nothing any more.

The fence is kept in the vote file, durable BEFORE this replica tells anybody where it ends. A replica whose vote file
is damaged may have forgotten a fence: it takes nothing until it is fenced again. One that knows of entries that readers
may have seen and that it does not have any more is *lame*: it pulls them again, and does not tell where it ends before.
"""

from __future__ import annotations

from clymq.errors import ReplicaLost, StorageError
from clymq.replication.replica import Replica


class FetchReplica(Replica):
    """A block and its fence. Made like any replica, then `begin`."""

    @property
    def in_doubt(self) -> bool:
        """Whether a fence may be forgotten."""
        return self._vote.damaged

    @property
    def missing_through(self) -> int:
        """The last entry that was lost and is not here again; 0 if nothing is missing, or the block ended before it."""
        missing = self.block.checkpoint.missing_through
        return missing if missing > self.block.last_index and not self.block.sealed else 0

    def fence(self, epoch: int) -> None:
        """Write the epoch down; durable when this returns."""
        try:
            self._vote.save(self._vote.vote._replace(fence_epoch=epoch))
        except StorageError as error:
            raise ReplicaLost(f"{self.folder}: the fence could not be saved: {error}") from error
        self._vote.damaged = False
