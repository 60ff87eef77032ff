"""Of a block that was ended by force a replica keeps what it shares with it and nothing else, committed here or not."""

from __future__ import annotations

import asyncio

import pytest
from test_mend import LOG, Whole, disk, sealed

from clymq.errors import ConnectionLost, InvalidRequest
from clymq.replication.fetch_lost import Lost
from clymq.replication.forced_end import keep_shared
from clymq.replication.mend import SealMark, is_whole, mend
from clymq.storage.block import Block
from clymq.storage.memory import MemoryFiles
from factory import fill, following, new_block, reopened


def other(shared: int, beyond: int, *, commit: bool = True) -> tuple[MemoryFiles, Block]:
    """A replica with some entries of the block, and then its own, as long as those of the block."""
    files = disk()
    block = new_block(files)
    fill(block, shared)
    for number in range(beyond):
        block.append([following(block, [b"other %d" % number], term=2)])
    block.sync()
    if commit:
        block.commit_all()
        block.write_checkpoint(block.last_index, b"state")
    return files, block


def kept(block: Block, seal: SealMark, *sources: Whole, bytes_max: int = 700) -> Lost:
    return asyncio.run(keep_shared(block, seal, sources, bytes_max=bytes_max))


@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
@pytest.mark.parametrize(("shared", "beyond"), [(0, 3), (1, 1), (19, 1), (20, 2), (12, 30)])
def test_what_differs_is_kept_aside_and_counted_and_the_rest_mends(shared: int, beyond: int, bytes_max: int) -> None:
    files, whole, seal = sealed(20)
    mine, block = other(shared, beyond)
    lost = kept(block, seal, Whole(whole), bytes_max=bytes_max)
    assert (lost.messages, block.last_index, block.end_offset) == (beyond, shared, 3 * shared)
    assert lost.path is not None
    assert len(mine.contents(lost.path)) == lost.bytes > 0
    block.close()
    block = reopened(mine)
    assert block.loss is None
    asyncio.run(mend(block, seal, [Whole(whole)], bytes_max=bytes_max))
    assert is_whole(block, seal)
    assert mine.contents(LOG) == files.contents(LOG)


def test_entries_of_the_same_length_under_the_same_numbers_are_told_apart() -> None:
    """A mend by position alone would put the block's end behind them."""
    files, whole, seal = sealed(20)
    mine = disk()
    block = new_block(mine)
    fill(block, 18)
    for each in (18, 19):
        at, header = next(whole.headers(each + 1))
        theirs = bytes(whole.read_at(at, header.length, at + header.length))
        block.append([following(block, [b"X" * 100] * 3)])
        mine_at, mine_header = next(block.headers(each + 1))
        assert mine_header.length == header.length
        assert bytes(block.read_at(mine_at, header.length, mine_at + header.length)) != theirs
    block.sync()
    assert block.end_position == whole.position_of(seal.index)
    assert kept(block, seal, Whole(whole)).messages == 6
    asyncio.run(mend(block, seal, [Whole(whole)], bytes_max=1000))
    assert mine.contents(LOG) == files.contents(LOG)


def test_a_replica_that_is_only_behind_loses_nothing() -> None:
    _, whole, seal = sealed(20)
    for block in (other(7, 0)[1], other(0, 0, commit=False)[1], whole):
        assert kept(block, seal, Whole(whole)) == Lost()


def test_a_source_that_fails_is_left_for_the_next_and_without_any_nothing_is_cut() -> None:
    _, whole, seal = sealed(20)
    _, block = other(5, 5)
    with pytest.raises(ConnectionLost):
        kept(block, seal, Whole(whole, fail_after=0))
    with pytest.raises(InvalidRequest):
        kept(block, seal)
    assert block.last_index == 10
    assert kept(block, seal, Whole(whole, fail_after=1), Whole(whole), bytes_max=1).messages == 5


def test_rot_is_not_shared() -> None:
    _, whole, seal = sealed(20)
    mine, block = other(10, 0)
    at, _ = next(block.headers(4))
    block.close()
    data = bytearray(mine.contents(LOG))
    data[at + 130] ^= 1
    mine.open(LOG).write(at + 130, [bytes([data[at + 130]])])
    block = reopened(mine)
    lost = kept(block, seal, Whole(whole))
    assert (lost.messages, block.last_index) == (21, 3)
