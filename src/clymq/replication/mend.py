"""Making a replica of a sealed block whole again, byte for byte, from one that is.

A replica is *whole* when its file ends with the SEAL that the chain names, by index and checksum. Others are behind, or
hold something that lost, or have rotted: they are cut back to what is beyond doubt, and pull the rest verbatim, by
position, from a whole one. Both checksums of every batch are checked on the way in. The one procedure serves followers
that were behind at the seal, replicas that were damaged, and new copies, which begin empty.

It never asks who is whole: its caller names the sources, best first. A source that fails is left for the next one, and
one that sends what does not fit with everything that it sent: it has another log, whose batches may be as long as ours.
When none is left the caller hears the last reason and may come again, nothing is lost by it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from clymq.errors import ClymqError, CorruptBatch, InvalidRequest, ReplicaLost
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, Buffer
from clymq.storage.block import Block

log = logging.getLogger("clymq.replication")


@dataclass(frozen=True, slots=True)
class SealMark:
    """The SEAL that the chain names: its index, and its header's checksum, which covers every byte of it."""

    index: int
    crc: int


class Source(Protocol):
    """A whole replica on another broker."""

    async def read(self, position: int, bytes_max: int) -> Buffer:
        """Return whole batches from a position on: one at least, else no more than `bytes_max`."""
        ...


def is_whole(block: Block, seal: SealMark) -> bool:
    """Whether a replica ends with this SEAL, on its disk."""
    if not block.sealed or block.last_index != seal.index or block.synced_index != seal.index:
        return False
    _, last = next(block.headers(seal.index))
    return last.header_crc == seal.crc


async def mend(block: Block, seal: SealMark, sources: Sequence[Source], *, bytes_max: int) -> None:
    """Make a replica whole; it may be used when this returns. `bytes_max`: what is asked for at once."""
    block.acknowledge_loss()
    if block.synced_position < block.end_position:
        block.sync()
    if is_whole(block, seal):
        return
    _cut_back(block, seal)
    problem: ClymqError = InvalidRequest(f"{block.folder}: no whole replica is named to mend from")
    for source in sources:
        try:
            await _pull(block, seal, source, bytes_max)
        except ClymqError as error:
            if block.failure is not None:
                raise
            log.warning("%s: mending goes on elsewhere: %s", block.folder, error)
            problem = error
            if isinstance(error, CorruptBatch):
                _cut_back(block, seal)
        else:
            _finish(block, seal)
            return
    raise problem


def _cut_back(block: Block, seal: SealMark) -> None:
    """Keep what is beyond doubt: what is committed here is a prefix of every whole replica."""
    if block.last_index >= seal.index and block.commit_index >= seal.index:
        problem = f"entry {block.last_index} is committed here, and the block ends at {seal.index}"
        raise ReplicaLost(f"{block.folder}: {problem}")
    block.truncate(min(block.commit_index, block.last_index) + 1)


async def _pull(block: Block, seal: SealMark, source: Source, bytes_max: int) -> None:
    while block.last_index < seal.index:
        data = await source.read(block.end_position, bytes_max)
        batches = _checked(data)
        if not batches:
            raise CorruptBatch("index", f"the source ends at entry {block.last_index}, before the seal {seal.index}")
        last = batches[-1]
        if last.index > seal.index or (last.index == seal.index) != last.is_seal:
            raise CorruptBatch("index", f"entry {last.index} of the source is not the block that ends at {seal.index}")
        if last.is_seal and last.header_crc != seal.crc:
            raise CorruptBatch("header_crc", "the source ends with another SEAL")
        block.append(batches)


def _checked(data: Buffer) -> list[Batch]:
    batches, position = [], 0
    while position < len(data):
        batch = Batch.parse(data, position, batch_bytes_max=FORMAT_BYTES_MAX)
        batch.check_crc()
        batches.append(batch)
        position += batch.length
    return batches


def _finish(block: Block, seal: SealMark) -> None:
    """On the disk BEFORE it counts as whole. Without a state: no machine runs on a block that has ended."""
    block.sync()
    block.commit_all()
    block.write_checkpoint(seal.index, b"")
