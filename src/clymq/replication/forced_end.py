"""What a replica may keep of a block that was ended by force, at what another replica held.

Where an operator has named the replica whose log counts, no majority has agreed on anything: two replicas may hold
different entries under the same numbers, of the same length even, and what one of them knows as committed the other may
never have seen. So a replica that comes back is compared with the block as it ended, byte by byte and from the first
one. From the first batch that differs on everything is set aside as `*.lost` and counted; the rest is a beginning of
the block, and is mended like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from clymq.errors import ClymqError, CorruptBlock, InvalidRequest
from clymq.replication.fetch_lost import Lost, cut_behind
from clymq.replication.mend import SealMark, Source, is_whole
from clymq.storage.block import Block

log = logging.getLogger("clymq.replication")


async def keep_shared(block: Block, seal: SealMark, sources: Sequence[Source], *, bytes_max: int) -> Lost:
    """Cut a replica to what it shares with a whole one; say what went. To be called BEFORE `mend`."""
    block.acknowledge_loss()
    if is_whole(block, seal) or not block.end_position:
        return Lost()
    problem: ClymqError = InvalidRequest(f"{block.folder}: no whole replica is named to compare with")
    for source in sources:
        try:
            shared = await _last_shared(block, source, bytes_max)
        except ClymqError as error:
            log.warning("%s: is compared with another replica: %s", block.folder, error)
            problem = error
        else:
            return cut_behind(block, shared)
    raise problem


async def _last_shared(block: Block, source: Source, bytes_max: int) -> int:
    """Return the last entry up to which both hold the same bytes."""
    shared, position = 0, 0
    while position < block.end_position:
        theirs = memoryview(await source.read(position, bytes_max))
        last, end = _compare(block, shared, position, theirs)
        if end == position or end < min(position + len(theirs), block.end_position):
            return last
        shared, position = last, end
    return shared


def _compare(block: Block, shared: int, position: int, theirs: memoryview) -> tuple[int, int]:
    """Return the last entry from a position on that is the same there, and where it ends."""
    start = position
    try:
        for at, header in block.headers(shared + 1):
            end = at + header.length
            mine = block.read_at(at, header.length, end)
            if end - start > len(theirs) or mine != theirs[at - start : end - start]:
                break
            shared, position = header.index, end
    except CorruptBlock as error:
        log.warning("%s: nothing is kept behind entry %d: %s", block.folder, shared, error)
    return shared, position
