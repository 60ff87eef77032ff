"""What every replica of a fetch block does with its file, whoever leads: write, hold, show, keep its state, end it.

Three marks in one log, each at or behind the one before:

    written     in the file
    held        what this replica answers for: written; with `fsync = commit`, synced
    visible     what readers see; the block calls it committed

One process writes the log, in one life, and all others copy it: until its SEAL every replica's log is a beginning of
that one sequence, and nothing of it is ever cut while the block is in use. So the state machine takes an entry without
asking who else has it (a leader when it holds it, the others when it is written): no entry that was taken is ever
replaced by another one, and when the block is sealed after a fence the state at its end is there.

A checkpoint must lie below what is visible and synced, where the machine never stands while there is traffic. So the
state is taken at one moment, and written down as soon as that moment has become visible and synced.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from clymq.errors import ClosedError, ClymqError, CorruptBatch, DiskFull, ReplicaLost, StorageError
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, Buffer
from clymq.replication.entries import Entry, Genesis, batch_of
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_surroundings import FetchPlace
from clymq.replication.machine import Answer, PartitionMachine
from clymq.storage.block import Block

# Ends of the last entries that are remembered; for others the file is asked.
_MARKS_MAX: Final = 256
_RESTORE_BYTES: Final = 1024 * 1024

log = logging.getLogger("clymq.replication")


@dataclass(frozen=True, slots=True)
class Mark:
    """The place behind an entry: the bytes and the offset that follow it."""

    index: int
    position: int
    offset: int


class FetchLog:
    """A replica's block, its machine and its three marks. `on_sync` hears of every sync of the block that ends."""

    def __init__(self, place: FetchPlace, replica: FetchReplica, machine: PartitionMachine) -> None:
        self.replica = replica
        self.machine = machine
        self.on_sync: Callable[[StorageError | None], None] = lambda _error: None
        self._place = place
        self._clock = place.around.clock
        self._fsync = place.config.fsync
        self._marks: dict[int, Mark] = {}
        self._state: tuple[int, bytes] | None = None
        self._syncing: deque[tuple[int, Callable[[ClymqError | None], None]]] = deque()
        self._closed = False
        if not place.group.was_raft:
            self._drop_half_made(place.group.epoch)
        self._restore()
        self._visible = self.mark_of(min(self.block.commit_index, self.block.last_index))
        place.around.flusher.add(self.block, self._synced)

    @property
    def block(self) -> Block:
        """The file."""
        return self.replica.block

    # --- The marks ---

    @property
    def held(self) -> Mark:
        """The last entry that this replica answers for."""
        block = self.block
        durable = self._fsync == "commit" or block.failure is not None
        return self.mark_of(min(block.synced_index, block.last_index) if durable else block.last_index)

    @property
    def visible(self) -> Mark:
        """The last entry that readers see."""
        return self._visible

    def show(self, index: int) -> bool:
        """Let readers see everything up to this entry, as far as it is here; return whether that is more."""
        index = min(index, self.block.last_index)
        if index <= self._visible.index:
            return False
        self._visible = self.mark_of(index)
        self.block.commit(index, self._visible.position)
        return True

    def mark_of(self, index: int) -> Mark:
        """Return the place behind an entry that is here."""
        mark = self._marks.get(index)
        if mark is None:
            end = self.block.end_at(index)
            mark = Mark(index, end.position, end.offset)
        return mark

    # --- Writing ---

    def write(self, batches: Sequence[Batch]) -> None:
        """Append stamped batches, all or none, and see to their sync."""
        block = self.block
        position = block.end_position
        block.append(batches)
        for batch in batches:
            position += batch.length
            self._marks[batch.index] = Mark(batch.index, position, batch.end_offset)
        while len(self._marks) > _MARKS_MAX:
            del self._marks[next(iter(self._marks))]
        self._place.around.flusher.written(block, self._fsync)

    def apply(self, batch: Batch) -> Answer:
        """Let the machine take an entry that this replica holds; what it has taken already is passed over."""
        if batch.index <= self.machine.applied:
            return None
        try:
            return self.machine.apply(batch.index, batch)
        except ClymqError as error:
            raise ReplicaLost(f"{self.block.folder}: entry {batch.index} cannot be applied: {error}") from error

    def seal(self, term: int, leases: Sequence[bytes] = ()) -> None:
        """End the block behind what is written, all of which the machine has taken."""
        assert self.machine.applied == self.block.last_index, "a SEAL carries the state at the end"
        batch = self._seal(max(term, self.block.last_term), leases)
        self.write([batch])
        self.apply(batch)

    def begin_and_seal(self, genesis: Genesis, term: int) -> None:
        """Make an empty block one of nothing but its two ends, in one write."""
        first = self._stamped(genesis, term)
        self.apply(first)
        last = self._seal(term)
        try:
            self.write([first, last])
        except StorageError:
            self._restore()
            raise
        self.apply(last)

    def _seal(self, term: int, leases: Sequence[bytes] = ()) -> Batch:
        now = self._clock.wall_us()
        return self._stamped(self.machine.seal(end=self.block.end_offset, now=now, leases=leases), term)

    def _stamped(self, entry: Entry, term: int) -> Batch:
        """Return the batch of the entry that comes after what the machine has taken."""
        batch = control(entry)
        batch.stamp(
            base_offset=self.block.end_offset,
            term=term,
            index=self.machine.applied + 1,
            append_time=max(self._clock.wall_us(), self.block.last_append_time),
            commit_index=self._visible.index,
        )
        return batch

    def when_synced(self, done: Callable[[ClymqError | None], None]) -> None:
        """Sync at once; `done` hears when all that is written by now is on the disk, or why it never will be."""
        block = self.block
        if self._closed:
            done(ClosedError(f"{block.folder} is closed"))
        elif block.failure is not None:
            done(block.failure)
        elif block.synced_index >= block.last_index:
            done(None)
        else:
            self._syncing.append((block.last_index, done))
            self._place.around.flusher.written(block, "commit")

    def _synced(self, error: StorageError | None) -> None:
        self.on_sync(error)
        while self._syncing and (error is not None or self._syncing[0][0] <= self.block.synced_index):
            self._syncing.popleft()[1](error)

    # --- Reading ---

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole visible batches from the one that holds an offset on; none where nothing is visible yet."""
        if self._visible.offset <= offset <= self.block.end_offset:
            return memoryview(b"")
        data = self.block.read(offset, bytes_max)
        checked(data)
        return data

    def read_at(self, position: int, bytes_max: int) -> memoryview:
        """Return whole batches from a position on, for another replica; what fails its checks never leaves."""
        data = self.block.read_at(position, bytes_max, self.block.end_position)
        checked(data)
        return data

    def describe(self) -> BlockClosed:
        """Say where this replica ends; of a sealed block, how."""
        block = self.block
        crc = next(block.headers(block.last_index))[1].header_crc if block.sealed else 0
        return BlockClosed(
            start=block.start_offset,
            end=block.end_offset,
            sealed=block.sealed,
            seal_index=block.last_index if block.sealed else 0,
            seal_crc=crc,
            bytes=block.end_position,
            last_append_time=block.last_append_time,
            last_index=block.last_index,
        )

    # --- The state ---

    def checkpoint(self) -> bool:
        """Keep the machine's state as of now, once that is visible and synced; return whether that is done."""
        block, known = self.block, self.block.checkpoint
        if self._state is None:
            if known.index >= self.machine.applied and known.commit_index >= block.commit_index:
                return True
            self._state = (self.machine.applied, self.machine.checkpoint())
            self._place.around.flusher.written(block, "commit")
        index, state = self._state
        if index > min(block.synced_index, block.last_index, self._visible.index):
            return False
        self._state = None
        try:
            block.write_checkpoint(index, state)
        except DiskFull as error:
            # The one before still stands, and the log with it.
            log.warning("%s: no checkpoint: %s", block.folder, error)
            return False
        return True

    def close(self) -> None:
        """Let go of the files once what is written is on its way to the disk."""
        self._closed = True
        flusher, block = self._place.around.flusher, self.block
        if block.failure is None and block.synced_index < block.last_index:
            flusher.written(block, "commit")
        flusher.remove(block, self.replica.close)
        while self._syncing:
            self._syncing.popleft()[1](ClosedError(f"{block.folder} is closed"))

    def forget_loss(self) -> None:
        """Take for lost what is missing, because somebody has decided so: the state is what the log says."""
        self.block.give_up(self.block.last_index + 1)
        self._restore()

    def _drop_half_made(self, epoch: int) -> None:
        """Of the two ends of a block that was sealed empty only the first may be left after a crash: it is nobody's."""
        block = self.block
        if block.last_index == 1 and block.last_term > epoch and not block.sealed:
            block.truncate(1)

    def _restore(self) -> None:
        """Bring the machine to the end of the log: from the checkpoint, then entry by entry."""
        self.machine.restore(self.block.checkpoint.state)
        for batch in self._stored(self.machine.applied + 1):
            self.apply(batch)

    def _stored(self, index: int) -> Iterator[Batch]:
        block = self.block
        position = block.position_of(index) if index <= block.last_index else block.end_position
        while position < block.end_position:
            batches = checked(block.read_at(position, _RESTORE_BYTES, block.end_position))
            yield from batches
            position += sum(batch.length for batch in batches)


def checked(data: Buffer) -> list[Batch]:
    """Take whole batches apart, both checksums of each checked."""
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        batch = Batch.parse(data, position, batch_bytes_max=FORMAT_BYTES_MAX)
        batch.check_crc()
        if batches and batch.index != batches[-1].index + 1:
            raise CorruptBatch("index", f"{batch.index} does not follow {batches[-1].index}")
        batches.append(batch)
        position += batch.length
    return batches


def control(entry: Entry) -> Batch:
    """Return the batch of an entry, to be stamped."""
    return Batch.parse(bytearray(batch_of(entry)))
