"""The log as the core sees it: descriptors of the newest entries in memory, all others in the file.

Above the commit index every descriptor is kept, because any of them may still be sent or cut; below it only some recent
ones, for followers that are a little behind. What lies further back is read from the file, through `LogStore`.

Two marks move along the log: `synced` (the driver says it is on the disk) and `commit`. No promise to another replica
ever reaches beyond `synced`, and an entry that the driver was not handed yet counts for neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, Protocol

from clymq.raft.messages import Entry, Kind

KEPT_BELOW_COMMIT: Final = 1024
_SEAL: Final = int(Kind.SEAL)  # looked at for every entry, and an enum costs


class LogStore(Protocol):
    """The entries that are in the file."""

    def term(self, index: int) -> int:
        """Return the term of an entry."""
        ...

    def entries(self, start: int, end: int, bytes_max: int) -> Sequence[Entry]:
        """Return entries from `start` on, none at or beyond `end`; one at least, else no more than `bytes_max`."""
        ...


class RaftLog:
    """The log of one replica."""

    def __init__(self, store: LogStore, tail: Sequence[Entry], *, commit: int, synced: int) -> None:
        """Begin with the descriptors of the newest entries; `tail` holds at least the last, if there is one."""
        self._store = store
        self._tail = list(tail)
        self._unwritten: list[Entry] = []
        self.truncated_to: int | None = None
        """The driver must cut the file behind this entry before it writes anything."""
        self.commit = commit
        self.synced = synced
        # The end, kept at hand because every proposal and every entry that arrives looks at it.
        self.last_index = 0
        """Index of the last entry; 0 if the log is empty."""
        self.last_term = 0
        """Term of the last entry."""
        self.sealed = False
        """Whether the last entry is a SEAL."""
        self.end_position = 0
        """Where the next entry will lie in the file."""
        self._end_with(self._tail[-1] if self._tail else None)

    def _end_with(self, last: Entry | None) -> None:
        if last is None:
            self.last_index = self.last_term = self.end_position = 0
            self.sealed = False
        else:
            self.last_index, self.last_term, position, length, kind = last
            self.end_position = position + length
            self.sealed = kind == _SEAL

    # --- Reading ---

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, 0 in front of the first; None behind the last."""
        if index > self.last_index:
            return None
        if index == 0:
            return 0
        first = self._tail[0].index
        return self._tail[index - first].term if index >= first else self._store.term(index)

    def end_of(self, index: int) -> int:
        """Return the position where an entry ends; 0 in front of the first."""
        if index == 0:
            return 0
        first = self._tail[0].index
        entry = self._tail[index - first] if index >= first else self._store.entries(index, index + 1, 0)[0]
        return entry.position + entry.length

    def entries_from(self, start: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries from `start` on: one at least, else no more than `bytes_max`."""
        if start > self.last_index:
            return ()
        first = self._tail[0].index
        if start < first:
            return tuple(self._store.entries(start, first, bytes_max))
        rest = self._tail[start - first :]
        if self.end_position - rest[0].position <= bytes_max:
            return tuple(rest)
        end = rest[0].position + bytes_max
        fitting = bisect_right(rest, end, key=lambda entry: entry.position + entry.length)
        return tuple(rest[: max(1, fitting)])

    def first_index_of_term(self, index: int) -> int:
        """Return the first entry of the run of one term that `index` is in, looking no further back than commit + 1."""
        term = self.term_at(index)
        while index > self.commit + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    # --- Writing ---

    def append(self, entry: Entry) -> None:
        """Add an entry behind the last; where it lies is where this log ends, whatever its sender says."""
        index, term, position, length, kind = entry
        assert index == self.last_index + 1, "the log has no gaps"
        assert not self.sealed, "nothing follows a seal"
        if position != self.end_position:
            entry = Entry(index, term, self.end_position, length, kind)
        self._tail.append(entry)
        self._unwritten.append(entry)
        self._end_with(entry)

    def truncate(self, last: int) -> None:
        """Remove everything behind entry `last`."""
        assert last >= self.commit, "what is committed is never cut"
        keep = last - self._tail[0].index + 1
        if keep <= 0 and last > 0:
            # The new last entry is not in memory; its descriptor is needed.
            self._tail = list(self._store.entries(last, last + 1, 0))
        else:
            del self._tail[max(keep, 0) :]
        self._end_with(self._tail[-1] if self._tail else None)
        if self._unwritten and self._unwritten[0].index <= last:
            self._unwritten = [entry for entry in self._unwritten if entry.index <= last]
        else:
            self._unwritten.clear()
            self.truncated_to = last if self.truncated_to is None else min(last, self.truncated_to)
        self.synced = min(self.synced, last)

    def take_unwritten(self) -> tuple[Entry, ...]:
        """Hand over the entries that the driver has not written yet."""
        taken, self._unwritten = tuple(self._unwritten), []
        return taken

    def commit_to(self, index: int) -> None:
        """Move the commit index forward and let go of descriptors that nobody is likely to ask for."""
        assert index <= self.last_index, "nothing is committed that is not there"
        if index > self.commit:
            self.commit = index
            surplus = self.commit - KEPT_BELOW_COMMIT - self._tail[0].index
            if surplus > KEPT_BELOW_COMMIT:
                del self._tail[:surplus]

    def sync_to(self, index: int) -> None:
        """Note how far the log is on the disk."""
        written = self._unwritten[0].index - 1 if self._unwritten else self.last_index
        self.synced = max(self.synced, min(index, written))
