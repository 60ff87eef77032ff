"""A partition's log on this broker: the blocks of its chain that are stored here.

Only the newest is written to; those behind it have ended. The log can tell that it is time for a new block, and which
old ones nobody wants any more, but it acts only when it is told to: the chain is not its own to change. A broker may
hold only some blocks of a chain, so numbers and offsets may have gaps.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from crc32c import crc32c

from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, InvalidRequest, OffsetOutOfRange
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX
from clymq.storage.block import Block
from clymq.storage.files import Files
from clymq.storage.handles import Handles
from clymq.storage.replace import remove_folder
from clymq.storage.space import Space

_BLOCK: Final = re.compile(r"Block_([1-9][0-9]*)")
_DELETED: Final = ".deleted"
# Blocks of one age would all roll at once; each partition is early by its own part of a tenth.
_JITTER: Final = 0.1

log = logging.getLogger("clymq.storage")


class PartitionLog:
    """The blocks of one partition, open. Made by `create` and `open`."""

    def __init__(self, files: Files, folder: str, config: Config, handles: Handles, space: Space | None) -> None:
        self.folder = folder
        self._files = files
        self._config = config
        self._handles = handles
        self._space = space
        self._blocks: dict[int, Block] = {}
        self._unreadable: list[CorruptBlock] = []

    # --- Coming and going ---

    @classmethod
    def create(
        cls,
        files: Files,
        folder: str,
        *,
        config: Config,
        handles: Handles,
        space: Space | None = None,
        number: int = 1,
        start_offset: int = 0,
    ) -> PartitionLog:
        """Make a log with one empty block."""
        partition = cls(files, folder, config, handles, space)
        partition._create_block(number, start_offset)
        return partition

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        *,
        config: Config,
        handles: Handles,
        space: Space | None = None,
    ) -> PartitionLog:
        """Open and recover every block; look at `losses` before trusting what is there."""
        partition = cls(files, folder, config, handles, space)
        partition._remove_remains()
        numbers = sorted(int(match[1]) for match in map(_BLOCK.fullmatch, files.names(folder)) if match)
        for number in numbers:
            partition._open_block(number)
        if not partition._blocks:
            raise CorruptBlock(folder, 0, "there is no block in this folder that can be opened")
        for number in sorted(partition._blocks)[:-1]:
            partition._lay_to_rest(partition._blocks[number])
        return partition

    def close(self) -> None:
        """Let go of every file."""
        for block in self._blocks.values():
            block.close()
            self._handles.drop(block.folder)

    # --- What it holds ---

    @property
    def blocks(self) -> dict[int, Block]:
        """The blocks by number, oldest first."""
        return dict(self._blocks)

    @property
    def active(self) -> Block:
        """The last block."""
        return self._blocks[self.active_number]

    @property
    def active_number(self) -> int:
        """Number of the last block."""
        return max(self._blocks)

    @property
    def start_offset(self) -> int:
        """First offset that is here."""
        return self._blocks[min(self._blocks)].start_offset

    @property
    def end_offset(self) -> int:
        """Offset of the next message."""
        return self.active.end_offset

    @property
    def losses(self) -> list[CorruptBlock]:
        """What recovery found missing, block by block; a block that cannot be opened at all is among it."""
        return [*self._unreadable, *(block.loss for block in self._blocks.values() if block.loss is not None)]

    # --- Writing ---

    def append(self, batches: Sequence[Batch]) -> None:
        """Append stamped batches to the active block."""
        self.active.append(batches)

    def roll(self, seal: Batch | None = None, state: bytes = b"") -> Block:
        """Seal the active block, which is committed by now, and begin the next. Repeatable where it was interrupted.

        `state` is the state machine at the seal, for the sealed block's last checkpoint.
        """
        number, block = self.active_number, self.active
        if not block.sealed:
            if seal is None:
                raise InvalidRequest("the active block is not sealed, and no batch to seal it was given")
            block.seal(seal)
        elif block.synced_position < block.end_position:
            block.sync()
        block.commit_all()
        block.write_checkpoint(block.last_index, state)
        following = self._create_block(number + 1, block.end_offset)
        self._lay_to_rest(block)
        return following

    def roll_due(self, now: int) -> str | None:
        """Say why the active block should be rolled (size, age), or None."""
        if self.active.end_position >= self._config.block_bytes_max:
            return "size"
        began = self.active.first_append_time
        age_max = self._config.block_age_ms_max
        if began is None or age_max < 0:
            return None
        early = _JITTER * crc32c(self.folder.encode()) / 2**32
        return "age" if now - began >= age_max * 1000 * (1 - early) else None

    def verify(self, number: int) -> CorruptBlock | None:
        """Read a block anew from its first byte, because a reader met damage in it; return what is lost."""
        block = self._blocks.pop(number)
        block.close()
        self._handles.drop(block.folder)
        self._open_block(number, verify=True)
        block = self._blocks[number]
        self._blocks = dict(sorted(self._blocks.items()))
        if number != self.active_number:
            self._lay_to_rest(block)
        return block.loss

    def retention_due(self, now: int) -> list[int]:
        """Return the sealed blocks that time or size lets go, oldest first, without a gap."""
        config, due = self._config, []
        kept_bytes = sum(block.end_position for block in self._blocks.values())
        for number in sorted(self._blocks)[:-1]:
            block = self._blocks[number]
            old = 0 <= config.retention_ms * 1000 < now - block.last_append_time
            beyond = 0 <= config.retention_bytes < kept_bytes
            if not old and not beyond:
                break
            due.append(number)
            kept_bytes -= block.end_position
        return due

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove the oldest blocks for good; a crash in between is finished at the next opening."""
        numbers = sorted(numbers)
        if numbers != sorted(self._blocks)[:-1][: len(numbers)]:
            raise InvalidRequest(f"blocks {numbers} are not the oldest sealed ones of {sorted(self._blocks)}")
        for number in numbers:
            block = self._blocks[number]
            self._files.rename(block.folder, block.folder + _DELETED)
            del self._blocks[number]
            block.close()
            self._handles.drop(block.folder)
            self._files.sync_folder(self.folder)
            remove_folder(self._files, block.folder + _DELETED)

    # --- Reading ---

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole committed batches of one block, from the one that holds `offset` on; empty at the end."""
        if offset == self.end_offset:
            return memoryview(b"")
        block = self._block_of(offset)
        try:
            return block.read(offset, bytes_max)
        except OffsetOutOfRange:
            # Between two blocks: lost from the first, or a block of the chain that is stored elsewhere.
            hint = f"[{block.end_offset}, ...) up to the next block is not stored here"
            missing = OffsetOutOfRange(offset, first=self.start_offset, end=self.end_offset, hint=hint)
            raise block.loss or missing from None

    def batches(self, offset: int, *, bytes_max: int = 1 << 20) -> Iterator[Batch]:
        """Yield every committed data batch from an offset on, across blocks, each with its checksums checked."""
        while data := self.read(offset, bytes_max):
            while data:
                batch = self._checked(data, offset)
                if batch.count:
                    yield batch
                    offset = batch.end_offset
                data = data[batch.length :]

    def locate_time(self, timestamp: int) -> int:
        """Return the offset of the first message that is not earlier than a time; the end if all are."""
        for number in sorted(self._blocks):
            offset = self._blocks[number].locate_time(timestamp)
            if offset is not None:
                return offset
        return self.end_offset

    # --- Inside ---

    def _checked(self, data: memoryview, offset: int) -> Batch:
        try:
            batch = Batch.parse(data, batch_bytes_max=FORMAT_BYTES_MAX)
            batch.check_crc()
        except CorruptBatch as error:
            block = self._block_of(offset)
            problem = f"from offset {offset} on: {error.field}: {error.problem}"
            raise CorruptBlock(f"{block.folder}/batches", block.locate(offset), problem) from None
        return batch

    def _block_of(self, offset: int) -> Block:
        numbers = sorted(self._blocks)
        at = bisect_right(numbers, offset, key=lambda number: self._blocks[number].start_offset) - 1
        if at < 0 or offset > self.end_offset:
            raise OffsetOutOfRange(offset, first=self.start_offset, end=self.end_offset)
        return self._blocks[numbers[at]]

    def _path(self, number: int) -> str:
        return f"{self.folder}/Block_{number}"

    def _open_block(self, number: int, *, verify: bool = False) -> None:
        """Open a block; one that cannot be is a loss of its own, and keeps nobody from the others."""
        before = self._blocks.get(number - 1)
        try:
            self._blocks[number] = Block.open(
                self._files,
                self._path(number),
                config=self._config,
                handles=self._handles,
                space=self._space,
                verify=verify,
                start_offset=before.end_offset if before is not None and before.sealed else None,
            )
        except CorruptBlock as error:
            log.error("%s", error)
            self._unreadable.append(error)

    def _create_block(self, number: int, start_offset: int) -> Block:
        path = self._path(number)
        block = Block.create(
            self._files,
            path,
            start_offset=start_offset,
            config=self._config,
            handles=self._handles,
            space=self._space,
        )
        self._blocks[number] = block
        return block

    def _lay_to_rest(self, block: Block) -> None:
        """A block with a successor is sealed and committed; what is not whole is for its owner to mend."""
        if block.sealed:
            block.commit_all()
        block.rest()

    def _remove_remains(self) -> None:
        """Finish removals, and clear away blocks whose making was interrupted."""
        for name in self._files.names(self.folder):
            path = f"{self.folder}/{name}"
            unfinished = _BLOCK.fullmatch(name) and not Block.was_created(self._files, path)
            if name.endswith(_DELETED) or unfinished:
                log.info("%s: removed, it was %s", path, "unfinished" if unfinished else "dropped")
                remove_folder(self._files, path)
        self._files.sync_folder(self.folder)
