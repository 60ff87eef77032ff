"""What a returning replica has beyond the end of its block: acknowledged once, and lost with its leader.

A fetch block that was sealed without its leader ends where the furthest of the fenced replicas ended. What the leader
had acknowledged and none of them had pulled is not in the block. It is kept in `*.lost` beside the block and counted,
so that somebody can decide what to do about it; the replica is then a beginning of the block, and mends like any other.
Of a block that ends with entry 2 even the GENESIS may be that of whoever sealed (`fetch_end`): nothing is kept of it.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass

from clymq.errors import CorruptBatch
from clymq.record.layout import FORMAT_BYTES_MAX, HEADER_BYTES, Header
from clymq.replication.mend import SealMark, is_whole
from clymq.storage.block import Block
from clymq.storage.files import Files

log = logging.getLogger("clymq.replication")


@dataclass(frozen=True, slots=True)
class Lost:
    """What was cut away: messages, the bytes of their batches, and where they are kept (None: there was no room)."""

    messages: int = 0
    bytes: int = 0
    path: str | None = None


def give_up_tail(block: Block, seal: SealMark) -> Lost:
    """Cut a replica to what lies before the SEAL that the chain names, unless it ends with that; say what went.

    To be called BEFORE `mend`, when no driver uses the block any more. A SEAL that the chain did not choose goes too.
    """
    if is_whole(block, seal):
        return Lost()
    block.acknowledge_loss()
    return cut_behind(block, min(seal.index - 1, block.last_index - block.sealed) if seal.index > 2 else 0)


def kept_aside(files: Files, folder: str) -> int:
    """Return how many messages lie in what was set aside from a block as lost; 0 if there is nothing.

    It is there BEFORE the cut, and so tells of a loss whose replica has died before anybody could be told.
    """
    names = [name for name in files.names(folder) if name.endswith(".lost")]
    return max((_messages_in(files, f"{folder}/{name}") for name in names), default=0)


def _messages_in(files: Files, path: str) -> int:
    messages = position = 0
    with closing(files.open(path)) as file:
        while position < file.size():
            try:
                header = Header(file.read(position, HEADER_BYTES), batch_bytes_max=FORMAT_BYTES_MAX)
            except CorruptBatch as error:
                log.warning("%s: not counted behind %d bytes: %s", path, position, error)
                break
            messages += header.count
            position += header.length
    return messages


def cut_behind(block: Block, keep: int) -> Lost:
    """Keep the entries up to this one; the others are set aside and counted."""
    if keep >= block.last_index:
        return Lost()
    end, size = block.end_offset, block.end_position
    path = block.give_up(keep + 1)
    lost = Lost(end - block.end_offset, size - block.end_position, path)
    if lost.messages:
        log.error("%s: %d messages, %d bytes are not in the sealed block", block.folder, lost.messages, lost.bytes)
    return lost
