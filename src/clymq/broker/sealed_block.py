"""A sealed block on this broker: whole and served, or on its way there.

It never changes once it is whole, so any whole replica may serve it. One that is not mends: its owner runs `mend` with
the others as sources. A whole one holds no descriptors; it borrows them for each read. Everything that leaves it is
checked: one that turns out to have rotted is closed, and read from its first byte when its owner opens it again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, InvalidRequest, NotReady, OffsetOutOfRange, StorageError
from clymq.protocol.controller import HostedBlock
from clymq.protocol.hosting import BlockClosed, ReplicaPlace
from clymq.replication.fetch_log import checked
from clymq.replication.fetch_lost import Lost, give_up_tail, kept_aside
from clymq.replication.forced_end import keep_shared
from clymq.replication.mend import SealMark, Source, is_whole, mend
from clymq.storage.block import Block
from clymq.storage.checkpoint import write_checkpoint
from clymq.storage.files import Files
from clymq.storage.folder import DataFolder
from clymq.types import Ack

log = logging.getLogger("clymq.broker")


class SealedBlock:
    """One sealed block. `place` is what the chain says of it."""

    def __init__(self, place: HostedBlock, path: str, files: Files, folder: DataFolder, config: Config) -> None:
        self.number = place.block
        self.start = place.start
        self.end = place.end
        self.replicas: tuple[ReplicaPlace, ...] = place.replicas
        self.whole = False
        self._place = place
        self._path = path
        self._files = files
        self._folder = folder
        self._config = config
        self._block: Block | None = None
        self._rotted = False

    @property
    def is_open(self) -> bool:
        """Whether it was looked at; one that could not be is opened again later."""
        return self._block is not None

    @property
    def file(self) -> Block | None:
        """The log on this broker's disk, if it is whole; to look at."""
        return self._block if self.whole else None

    @property
    def failure(self) -> StorageError | None:
        """Why nothing more can be written to it, as long as it is open."""
        return self._block.failure if self._block is not None else None

    @property
    def seal(self) -> SealMark:
        """The SEAL that it ends with."""
        return SealMark(self._place.seal_index, self._place.seal_crc)

    def open(self) -> tuple[bool, int]:
        """Look at what is on the disk, made empty if there is nothing; return whether it is whole, and what is lost.

        Lost is what was acknowledged here and is not in the block: it is kept aside and counted, whenever it was cut.
        To tell of it twice does no harm, and a process may die between the cut and the telling.
        """
        if not Block.was_created(self._files, self._path):
            Block.create(
                self._files, self._path, start_offset=self.start, config=self._config, handles=self._folder.handles
            ).close()
        block = Block.open(
            self._files,
            self._path,
            config=self._config,
            handles=self._folder.handles,
            space=self._folder.space,
            verify=self._rotted,
            start_offset=self.start,
        )
        try:
            lost = give_up_tail(block, self.seal) if self._place.mode != Ack.QUORUM else Lost()
            self._settle(block)
        except (CorruptBatch, CorruptBlock) as error:
            try:
                if self._rotted:  # and yet it was read from its first byte
                    raise
                self._note_rot(block, error)
            finally:
                block.close()
            return self.open()
        except StorageError:
            block.close()
            raise
        self._block, self._rotted = block, False
        return self.whole, max(lost.messages, kept_aside(self._files, self._path))

    async def mend(self, sources: list[Source], on_lost: Callable[[int], None]) -> None:
        """Become whole from one of these. `on_lost` hears of messages that were here and are not in the block."""
        assert self._block is not None
        if self._place.trusted and self._place.mode == Ack.QUORUM:
            lost = await keep_shared(self._block, self.seal, sources, bytes_max=self._config.append_bytes_max)
            if lost.messages:
                on_lost(lost.messages)
        await mend(self._block, self.seal, sources, bytes_max=self._config.append_bytes_max)
        self._settle(self._block)

    def _settle(self, block: Block) -> None:
        self.whole = is_whole(block, self.seal)
        if self.whole:
            block.commit_all()
            block.rest()

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole batches from an offset on."""
        if not self.start <= offset < self.end:
            raise OffsetOutOfRange(offset, first=self.start, end=self.end)
        return self._checked(lambda block: block.read(offset, bytes_max))

    def locate_time(self, timestamp_us: int) -> int | None:
        """Return the first offset that is not earlier than a time; None if all are."""
        return self._served().locate_time(timestamp_us)

    def read_at(self, position: int, bytes_max: int) -> memoryview:
        """Return whole batches from a position on, for a replica that mends; position -1: the SEAL alone."""

        def read(block: Block) -> memoryview:
            at = block.position_of(block.last_index) if position < 0 else position
            try:
                return block.read_at(at, bytes_max, block.end_position)
            except CorruptBlock:
                # Who asks in the middle of a batch has another log; that says nothing against this one.
                if not block.is_boundary(at):
                    raise InvalidRequest(f"no batch of block {self.number} begins at position {at}") from None
                raise

        return self._checked(read)

    def _checked(self, read: Callable[[Block], memoryview]) -> memoryview:
        """Read what is whole in every batch; if it is not, this replica serves nothing until it is mended."""
        block = self._served()
        try:
            data = read(block)
            checked(data)
        except (CorruptBatch, CorruptBlock) as error:
            self.damaged(error)
            raise NotReady(f"block {self.number} is damaged here", hint="ask another replica") from error
        return data

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """A read has met damage: serve nothing until this replica is read from its first byte and mended."""
        self._note_rot(self._served(), error)
        self.close()

    def _note_rot(self, block: Block, error: CorruptBatch | CorruptBlock) -> None:
        """Let it be read from its first byte when it is opened anew."""
        log.error("%s has rotted: %s", self._path, error)
        # BEFORE it is opened anew: that all of it was committed no batch may be left to say.
        end = self._place.seal_index
        noted = dataclasses.replace(block.checkpoint, commit_index=end, missing_through=end)
        write_checkpoint(self._files, f"{self._path}/checkpoint", noted)
        self._rotted = True

    def closed(self) -> BlockClosed:
        """Say how it ended, as it was said when it was sealed."""
        place = self._place
        return BlockClosed(
            start=place.start,
            end=place.end,
            seal_index=place.seal_index,
            seal_crc=place.seal_crc,
            bytes=place.bytes,
            last_append_time=place.last_append_time,
            last_index=place.seal_index,
        )

    def close(self) -> None:
        """Let go of the files; it serves nothing until it is opened again."""
        block, self._block, self.whole = self._block, None, False
        if block is not None:
            block.close()
            self._folder.handles.drop(self._path)

    def _served(self) -> Block:
        if not self.whole or self._block is None:
            raise NotReady(f"block {self.number} is not whole here", hint="ask another replica")
        return self._block
