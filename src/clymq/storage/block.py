"""A block: one log of batches on one disk.

The file `batches` is all there is; what else is kept can be made again from it or says how much of it to believe. What
a block promises its owner (a Raft or fetch driver):

* `append` writes all batches or none, in one system call, and only such as are intact and follow on;
* what lies below the committed position never changes: it is never truncated, and may be mapped;
* after a crash `open` gives back every batch that had been synced, and nothing that was not appended;
* when something is missing that was promised, `loss` says so, at this opening and every later one, until the log has
  been mended past it; and nothing is appended before the owner has taken note with `acknowledge_loss`;
* an error while writing leaves the block as it was; one while syncing ends it, because nobody can know what is on
  the disk then: `failure` is raised from every later append, and what was not synced is not believed again.

A block holds its file open while it is written to, and gives it back when a checkpoint says that it rests; who reads it
then borrows the file, as those of sealed blocks and all indexes, from a cache of bounded size (`handles`).

It knows terms as numbers that do not fall, and nothing of votes or majorities; it never decides to roll, seal or drop.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clymq.config import Config
from clymq.errors import (
    BlockSealed,
    ClosedError,
    CorruptBatch,
    CorruptBlock,
    InvalidRequest,
    OffsetOutOfRange,
    StorageError,
)
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, HEADER_BYTES, Header
from clymq.storage.aside import set_aside
from clymq.storage.checkpoint import EVERYTHING, NUMBER_MAX, Checkpoint, read_checkpoint, write_checkpoint
from clymq.storage.end import End
from clymq.storage.files import File, Files, SyncDone
from clymq.storage.handles import Handles
from clymq.storage.index import Entry, SparseIndex
from clymq.storage.reader import Reader
from clymq.storage.recovery import Recovered, recover
from clymq.storage.replace import copy, make_folders, size_of
from clymq.storage.space import Space

log = logging.getLogger("clymq.storage")


class _SyncMark(NamedTuple):
    """How far a sync that begins now will reach; void once the tail has been cut."""

    generation: int
    position: int
    reached: int


class Block:
    """One block's folder, open. Made by `create` and `open`."""

    def __init__(self, files: Files, folder: str, config: Config, handles: Handles, space: Space | None) -> None:
        self.folder = folder
        self.failure: StorageError | None = None
        self.loss: CorruptBlock | None = None
        self._files = files
        self._config = config
        self._handles = handles
        self._space = space
        self._file: File | None = None
        self._checkpoint = Checkpoint.empty(0)
        self._index = SparseIndex(self._open_index, config.index_interval_bytes)
        self._reader = Reader(self._log, self._index, config)
        self._end = End(0)
        self._commit_index = 0
        self._synced_position = 0
        self._synced_index = 0
        self._generation = 0
        self._syncs_under_way = 0
        self._closing = False
        self._loss_acknowledged = False

    # --- Coming and going ---

    @classmethod
    def create(
        cls,
        files: Files,
        folder: str,
        *,
        start_offset: int,
        config: Config,
        handles: Handles,
        space: Space | None = None,
        durable: str = "/",
    ) -> Block:
        """Make an empty block; its folder and everything above are durable BEFORE this returns.

        `durable`: a folder above of which that is known.
        """
        make_folders(files, folder, durable=durable)
        for path in (f"{folder}/batches", f"{folder}/index"):
            files.open(path, create=True).close()
        if size_of(files, f"{folder}/batches"):
            raise InvalidRequest(f"{folder} holds a block already")
        files.sync_folder(folder)
        # Last: a folder without a checkpoint is one whose making was interrupted.
        write_checkpoint(files, f"{folder}/checkpoint", Checkpoint.empty(start_offset))
        return cls.open(files, folder, config=config, handles=handles, space=space)

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        *,
        config: Config,
        handles: Handles,
        space: Space | None = None,
        verify: bool = False,
        start_offset: int | None = None,
    ) -> Block:
        """Open a block and recover it, from its checkpoint or, with `verify`, from its first byte.

        `start_offset` is where the block before it ends, for a block that cannot tell itself any more.
        """
        block = cls(files, folder, config, handles, space)
        try:
            block._file = files.open(f"{folder}/batches")
            files.open(f"{folder}/index", create=True).close()
            block._recover(verify=verify, start_offset=start_offset)
        except StorageError:
            block.close()
            raise
        return block

    @staticmethod
    def was_created(files: Files, folder: str) -> bool:
        """Whether `create` had finished here; if not, nothing was ever promised for this folder."""
        return files.exists(f"{folder}/checkpoint") or (
            files.exists(f"{folder}/batches") and size_of(files, f"{folder}/batches") > 0
        )

    def rest(self) -> None:
        """Give the descriptors back; reads open them again for as long as they are used. For sealed blocks."""
        if self._file is not None:
            self._index.write_if_possible()
            self.close()

    def close(self) -> None:
        """Let go of the files, as soon as no sync is under way. What was not synced is left to the system."""
        self._closing = True
        if not self._syncs_under_way:
            self._let_go()
            self._handles.drop(self.folder)

    # --- What it holds ---

    @property
    def start_offset(self) -> int:
        """First offset of the block."""
        return self._checkpoint.start_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next message."""
        return self._end.offset

    @property
    def end_position(self) -> int:
        """Bytes of the log."""
        return self._end.position

    @property
    def last_index(self) -> int:
        """Index of the last entry; 0 if there is none."""
        return self._end.index

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self._end.term

    @property
    def last_append_time(self) -> int:
        """Append time of the last entry that was ever here; the next one's is not less."""
        return max(self._end.append_time, self._checkpoint.append_time)

    @property
    def first_append_time(self) -> int | None:
        """Append time of the first entry; None if there is none."""
        return self._reader.first_append_time() if self._end.position else None

    @property
    def sealed(self) -> bool:
        """Whether the last batch is a SEAL."""
        return self._end.sealed

    @property
    def committed_position(self) -> int:
        """Bytes that readers may see."""
        return self._reader.committed_position

    @property
    def commit_index(self) -> int:
        """Highest index known to be committed; above `last_index` after a loss."""
        return self._commit_index

    @property
    def synced_position(self) -> int:
        """Bytes that are known to be on the disk."""
        return self._synced_position

    @property
    def synced_index(self) -> int:
        """Index of the last entry known to be on the disk."""
        return self._synced_index

    @property
    def checkpoint(self) -> Checkpoint:
        """The last checkpoint written."""
        return self._checkpoint

    # --- Writing ---

    def append(self, batches: Sequence[Batch]) -> None:
        """Write stamped batches behind the end, all or none."""
        self._refuse_if_unfit()
        if self._end.sealed:
            raise BlockSealed(f"{self.folder} is sealed at offset {self._end.offset}")
        end, marks, next_mark = self._end.copy(), [], self._index.next_mark
        for batch in batches:
            if end.position >= next_mark:
                marks.append(Entry(batch.base_offset, batch.index, end.position, end.timestamp_max))
                next_mark = end.position + self._config.index_interval_bytes
            if not batch.intact:  # a leader has checked it at the door
                batch.check_crc()
            end.take(batch)
        if self._space is not None:
            # What consensus writes for itself may use the reserve: without it nobody could lead, or seal.
            self._space.claim(sum(batch.length for batch in batches if batch.count))
        try:
            self._held().write(self._end.position, [batch.buffer for batch in batches])
        except StorageError:
            self._cut_back()
            raise
        self._end = end
        for mark in marks:
            self._index.add(mark)

    def seal(self, batch: Batch) -> None:
        """Append the batch that ends this block and make it durable."""
        if not batch.is_seal:
            raise CorruptBatch("flags", "a block ends with a batch that has SEAL")
        self.append([batch])
        self.sync()

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on; durable BEFORE this returns, so that nothing mixes with what comes."""
        if index > self._end.index:
            return
        self._refuse_if_unfit()
        end = self.end_at(index - 1)
        assert end.position >= self.committed_position, "what is committed is never cut"
        known = self._checkpoint
        if index <= known.missing_through <= self._end.index:
            # BEFORE the cut: what was promised has lost to another leader, and is not missing when it is gone.
            self._save(dataclasses.replace(known, missing_through=index - 1))
        self._cut(end)

    def give_up(self, index: int) -> str | None:
        """Remove the entries from `index` on, those that readers saw included: the block ended before them.

        What is there is kept aside as `*.lost`, return where; what was lost before is not missing any more. For a
        block that nobody writes to or syncs.
        """
        if index > self._end.index + 1:
            return None
        self._refuse_if_unfit()
        end, size, kept = self.end_at(index - 1), self._end.position, None
        if end.position < size:
            assert not self._syncs_under_way, "whoever wrote to this block has let go of it"
            kept = set_aside(self._files, self._log(), end.position, size, ".lost", self._config)
            log.warning("%s: cut from %d to %d bytes; the rest is %s", self._path, size, end.position, kept)
        self._forget_checkpoint_behind(end)
        if end.position < self.committed_position:
            self._leave_behind(end.position)
        self._commit_index = min(self._commit_index, end.index)
        self._reader.committed_position = min(self.committed_position, end.position)
        if end.position < size:
            self._cut(end)
        return kept

    def commit(self, index: int, position: int) -> None:
        """Let readers see everything up to the end of this entry. Never goes back."""
        assert position <= self._end.position, "nothing is committed that is not there"
        self._reader.committed_position = max(self._reader.committed_position, position)
        self._commit_index = max(self._commit_index, index)

    def commit_all(self) -> None:
        """Let readers see all of it: for a block of one replica, and for one whose SEAL is committed."""
        self.commit(self._end.index, self._end.position)

    def sync(self) -> None:
        """Wait until all that was appended is on the disk."""
        mark = self._begin_sync()
        error: StorageError | None = None
        try:
            self._held().sync()
        except StorageError as failure:
            error = failure
        error = self._end_sync(mark, error)
        if error is not None:
            raise error

    def sync_soon(self, done: SyncDone) -> None:
        """Begin a sync off the event loop; `done` is called when what is appended by now is on the disk."""
        mark = self._begin_sync()
        self._syncs_under_way += 1

        def finish(error: StorageError | None) -> None:
            self._syncs_under_way -= 1
            outcome = self._end_sync(mark, error)
            if self._closing:
                self.close()
            done(outcome)

        self._files.sync_soon(self._held(), finish)

    def write_checkpoint(self, index: int, state: bytes, *, promised: int = 0) -> None:
        """Keep the state machine as it was after entry `index`, which is committed and synced.

        `promised`: others may count on what is here up to this entry, committed or not. If it is not here any more
        when the block is opened, that is a loss.
        """
        self._refuse_if_unfit()
        end = self.end_at(index)
        assert end.position <= self.committed_position, "a checkpoint is never above what is committed"
        assert end.position <= self._synced_position, "a checkpoint is never above what is synced"
        entries = self._reader.lookup(lambda sparse: sparse.count_before(end.position), self._end.position)
        missing = self._checkpoint.missing_through
        self._index.write()
        self._open_index().sync()
        self._save(
            Checkpoint(
                index=end.index,
                term=end.term,
                position=end.position,
                start_offset=self.start_offset,
                end_offset=end.offset,
                timestamp_max=end.timestamp_max,
                append_time=end.append_time,
                index_entries=entries,
                # In fetch mode more may be shown than is synced; what a power cut may take is not missing after it.
                commit_index=max(end.index, min(self._commit_index, self._synced_index)),
                missing_through=max(
                    missing if missing > self._synced_index else 0, promised if promised > self._commit_index else 0
                ),
                trusted_position=EVERYTHING,
                sealed=end.sealed,
                state=state,
            )
        )
        if end.position == self._end.position and not self._syncs_under_way:
            self._let_go()  # it rests: everything is synced, and the checkpoint says so

    def acknowledge_loss(self) -> None:
        """The owner knows of the loss (its replica is lame): appends may mend it."""
        self._loss_acknowledged = True

    # --- Reading ---

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole committed batches from the one that holds `offset` on; one at least, else up to `bytes_max`."""
        return self.read_at(self.locate(offset), bytes_max, self.committed_position)

    def read_at(self, position: int, bytes_max: int, limit: int) -> memoryview:
        """Return whole batches from a position on, none beyond `limit`; what is not committed is copied."""
        return self._reader.read_at(position, bytes_max, limit)

    def check(self, place: End, bytes_max: int) -> int:
        """Check the committed batches from a place on: one at least, else up to `bytes_max`; return how many bytes.

        Both checksums of each, and that they follow one another. The place, which begins as `End(start_offset)`, moves
        behind them; 0 when it has come to the end of what is committed.
        """
        return self._reader.check(place, bytes_max)

    def is_boundary(self, position: int) -> bool:
        """Whether a batch begins at a position, or the block ends there."""
        return self._reader.is_boundary(position, self._end.position)

    def locate(self, offset: int) -> int:
        """Return the position of the data batch that holds an offset."""
        if not self.start_offset <= offset < self._end.offset:
            raise OffsetOutOfRange(offset, first=self.start_offset, end=self._end.offset)
        return self._reader.locate(offset, self._end.position)

    def locate_time(self, timestamp: int) -> int | None:
        """Return the offset of the first committed message that is not earlier; None if all are."""
        if timestamp > self._end.timestamp_max:
            return None
        return self._reader.locate_time(timestamp, self.committed_position)

    def end_at(self, index: int) -> End:
        """Return where the log ended, or will again when cut, after this entry."""
        if not 0 <= index <= self._end.index:
            raise InvalidRequest(f"there is no entry {index}; the last is {self._end.index}")
        if index == self._end.index:
            return self._end.copy()
        return self._reader.end_at(index, self._end.position)

    def headers(self, index: int) -> Iterator[tuple[int, Header]]:
        """Yield position and header of every entry from `index` on, checked; bodies are not looked at."""
        return self._reader.walk(self.position_of(index), self._end.position)

    def position_of(self, index: int) -> int:
        """Return the position of an entry; that of the end for the next one to come."""
        return self.end_at(index - 1).position

    # --- Inside: recovery ---

    def _recover(self, *, verify: bool, start_offset: int | None) -> None:
        checkpoint = self._read_checkpoint()
        size = self._log().size()
        self._checkpoint = checkpoint or Checkpoint.empty(self._first_offset(start_offset))
        self._reader.start_offset = self.start_offset
        usable = checkpoint is not None and not verify and checkpoint.position <= size
        resumed = usable and self._resume_index(self._checkpoint)
        begin = End.at(self._checkpoint) if resumed else End(self.start_offset)
        found = recover(self._log(), begin, checkpoint, self._index.mark)
        self._end, self._commit_index, self.loss = found.end, found.commit_index, found.loss
        if found.loss is not None or checkpoint is None:
            # BEFORE the cut: the batches that know of the loss may be among those that go.
            self._save(
                dataclasses.replace(
                    self._checkpoint, commit_index=found.commit_index, missing_through=found.missing_through
                )
            )
        self._cut_damage(found, size)
        if self._checkpoint.trusted_position != EVERYTHING:
            self._save(dataclasses.replace(self._checkpoint, trusted_position=EVERYTHING))
        self._reader.committed_position = self._position_committed()
        self._sync_what_was_found(rests=resumed and self._checkpoint.position == self._end.position == size)

    def _read_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, or None when it cannot be trusted and K is therefore not known."""
        try:
            checkpoint = read_checkpoint(self._files, f"{self.folder}/checkpoint")
        except CorruptBlock as error:
            log.error("%s", error)
            return None
        if checkpoint is None:
            log.error("%s: the checkpoint is missing", self.folder)
        return checkpoint

    def _first_offset(self, start_offset: int | None) -> int:
        """Return the offset that the block begins with, when the checkpoint cannot tell."""
        if start_offset is not None:
            return start_offset
        try:
            first = Header(self._log().read(0, HEADER_BYTES), batch_bytes_max=FORMAT_BYTES_MAX)
            if first.base_offset > NUMBER_MAX:
                raise CorruptBatch("base_offset", f"{first.base_offset} is beyond all offsets")
            return first.base_offset
        except CorruptBatch as error:
            problem = f"no checkpoint, and the first batch cannot be read either: {error.problem}"
            raise CorruptBlock(self._path, 0, problem) from None

    def _resume_index(self, checkpoint: Checkpoint) -> bool:
        if self._index.resume(checkpoint.index_entries, checkpoint.position):
            return True
        log.warning("%s/index: is missing or wrong; the whole block is read", self.folder)
        return False

    def _cut_damage(self, found: Recovered, size: int) -> None:
        """Cut away what does not stand, after it was kept aside."""
        end = found.end.position
        if found.loss is not None:
            log.error("%s", found.loss)
        if size <= end:
            return
        suffix = ".bad" if found.loss else ".torn"
        kept = set_aside(self._files, self._log(), end, size, suffix, self._config)
        log.warning("%s: cut from %d to %d bytes (%s); the rest is %s", self._path, size, end, found.damage, kept)
        if found.loss is None:
            self._log().truncate(end)
            return
        self._leave_behind(end)

    def _leave_behind(self, end: int) -> None:
        """Go on with a copy of the first bytes: the rest was committed once, and somebody may look at a map of it."""
        copy(self._files, self._log(), 0, end, f"{self._path}.new")
        self._let_go()
        self._handles.drop(self.folder)
        self._files.rename(f"{self._path}.new", self._path)
        self._files.sync_folder(self.folder)
        self._file = self._files.open(self._path)

    def _forget_checkpoint_behind(self, end: End) -> None:
        """Let the checkpoint promise nothing behind a place, BEFORE the log is cut there: it would be a loss."""
        known = self._checkpoint
        if max(known.index, known.commit_index, known.missing_through) <= end.index:
            return
        kept = known if known.index <= end.index else Checkpoint.empty(self.start_offset)
        self._save(
            dataclasses.replace(
                kept,
                commit_index=min(known.commit_index, end.index),
                missing_through=min(known.missing_through, end.index),
            )
        )

    def _position_committed(self) -> int:
        """Return where the last entry ends that is known to be committed and is there."""
        if self._commit_index == self._checkpoint.index <= self._end.index:
            return self._checkpoint.position
        return self.end_at(min(self._commit_index, self._end.index)).position

    def _sync_what_was_found(self, *, rests: bool) -> None:
        """What was read may be in the cache only, and will be built upon; not so if it ends with its checkpoint.

        Thousands of blocks at rest are opened when a broker starts, and each sync is a wait for the disk.
        """
        try:
            if not rests:
                self._log().sync()
        except StorageError as error:
            self._distrust(min(self._checkpoint.position, self._end.position), error)
            raise
        self._synced_position, self._synced_index = self._end.position, self._end.index

    # --- Inside: writing ---

    def _refuse_if_unfit(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.loss is not None and not self._loss_acknowledged:
            raise self.loss
        if self._closing:
            raise ClosedError(f"{self.folder} is closed")

    def _begin_sync(self) -> _SyncMark:
        if self.failure is not None:
            raise self.failure
        return _SyncMark(self._generation, self._end.position, self._end.index)

    def _end_sync(self, mark: _SyncMark, error: StorageError | None) -> StorageError | None:
        """Note that a sync is done; return the error that it, or one before it, ended with.

        One that failed is never repeated, and none counts after it: the next might succeed and mean nothing.
        """
        if error is not None and self.failure is None:
            self._distrust(self._synced_position, error)
        if self.failure is not None:
            return self.failure
        if mark.generation == self._generation and mark.position > self._synced_position:
            self._synced_position, self._synced_index = mark.position, mark.reached
        return None

    def _cut_back(self) -> None:
        """Remove what a failed write left behind; if even that fails, the block takes nothing more."""
        try:
            self._held().truncate(self._end.position)
            self._held().sync()
        except StorageError as error:
            self.failure = error
            log.error("%s: stopped: %s", self._path, error)

    def _cut(self, end: End) -> None:
        self._generation += 1
        self._reader.forget_places()
        self._reader.lookup(lambda sparse: sparse.truncate(end.position), self._end.position)
        try:
            self._held().truncate(end.position)
            self._held().sync()
        except StorageError as error:
            self._distrust(min(self._synced_position, end.position), error)
            raise
        self._end = end
        self._synced_position, self._synced_index = end.position, end.index

    def _distrust(self, position: int, error: StorageError) -> None:
        """Stop for good. What lies behind a position may look right and be on no disk: say so to the next opening."""
        self.failure = error
        log.error("%s: stopped, nothing behind %d is believed: %s", self._path, position, error)
        known = self._checkpoint
        try:
            self._save(
                dataclasses.replace(
                    known,
                    trusted_position=position,
                    commit_index=max(known.commit_index, self._commit_index),
                    missing_through=max(known.missing_through, self._end.index),
                )
            )
        except StorageError as second:
            log.error("%s: could not be marked as failed: %s", self._path, second)

    def _save(self, checkpoint: Checkpoint) -> None:
        write_checkpoint(self._files, f"{self.folder}/checkpoint", checkpoint)
        self._checkpoint = checkpoint

    @property
    def _path(self) -> str:
        return f"{self.folder}/batches"

    def _log(self) -> File:
        """Return the file to read from."""
        return self._file if self._file is not None else self._handles.get(self._path)

    def _held(self) -> File:
        """Return the file to write to and to sync, which nobody else may close."""
        if self._file is None and not self._closing:
            self._file = self._files.open(self._path)
        return self._log()

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open_index(self) -> File:
        return self._handles.get(f"{self.folder}/index")
