"""A replica that is not whole becomes so, byte for byte, or says why not."""

from __future__ import annotations

import asyncio
import random

import pytest

from clymq.clock import ManualClock
from clymq.errors import ClymqError, ConnectionLost, CorruptBatch, InvalidRequest, ReplicaLost
from clymq.record.layout import Buffer
from clymq.replication.mend import SealMark, is_whole, mend
from clymq.storage.block import Block
from clymq.storage.memory import MemoryFiles
from factory import control, fill, following, new_block, reopened, values_of

LOG = "/data/Block_1/batches"


class Whole:
    """A source that reads a block, and may fail or lie."""

    def __init__(self, block: Block, *, fail_after: int | None = None, flip: bool = False) -> None:
        self.block = block
        self.reads = 0
        self.fail_after = fail_after
        self.flip = flip

    async def read(self, position: int, bytes_max: int) -> Buffer:
        self.reads += 1
        if self.fail_after is not None and self.reads > self.fail_after:
            raise ConnectionLost("the source is gone")
        data = bytearray(self.block.read_at(position, bytes_max, self.block.end_position))
        if self.flip:
            data[-9] ^= 1
        return data


def disk() -> MemoryFiles:
    return MemoryFiles(clock=ManualClock())


def sealed(batches: int = 20) -> tuple[MemoryFiles, Block, SealMark]:
    files = disk()
    block = new_block(files)
    fill(block, batches)
    block.seal(control(block, seal=True))
    block.commit_all()
    _, last = next(block.headers(block.last_index))
    return files, block, SealMark(block.last_index, last.header_crc)


def mended(block: Block, seal: SealMark, *sources: Whole, bytes_max: int = 1000) -> None:
    asyncio.run(mend(block, seal, sources, bytes_max=bytes_max))


def test_an_empty_copy_becomes_whole_and_equal() -> None:
    files, whole, seal = sealed()
    mine = disk()
    block = new_block(mine)
    assert not is_whole(block, seal)
    mended(block, seal, Whole(whole))
    assert is_whole(block, seal)
    assert mine.contents(LOG) == files.contents(LOG)
    assert values_of(block) == values_of(whole)


def test_what_was_mended_survives_a_power_cut() -> None:
    files, whole, seal = sealed()
    mine = disk()
    mended(new_block(mine), seal, Whole(whole))
    for chance in range(20):
        after = mine.crash(random.Random(chance))
        assert is_whole(reopened(after), seal)
        assert after.contents(LOG) == files.contents(LOG)


def test_a_follower_that_was_behind_pulls_only_the_rest() -> None:
    files, whole, seal = sealed(20)
    mine = disk()
    block = new_block(mine)
    fill(block, 15)
    source = Whole(whole)
    mended(block, seal, source, bytes_max=1)
    assert source.reads == seal.index - 15
    assert mine.contents(LOG) == files.contents(LOG)


def test_entries_that_lost_are_cut_away_first() -> None:
    files, whole, seal = sealed(20)
    mine = disk()
    block = new_block(mine)
    fill(block, 10)
    for _ in range(15):
        block.append([following(block, [b"of a leader that lost"], term=1)])
    block.sync()
    mended(block, seal, Whole(whole))
    assert mine.contents(LOG) == files.contents(LOG)


def test_a_damaged_replica_is_mended_from_the_damage_on() -> None:
    files, whole, seal = sealed()
    mine, block, _ = sealed()
    block.write_checkpoint(block.last_index, b"")
    block.close()
    mine.flip(LOG, block.end_position // 2, 5)
    block = reopened(mine, verify=True)
    assert block.loss is not None
    mended(block, seal, Whole(whole))
    assert is_whole(block, seal)
    assert mine.contents(LOG) == files.contents(LOG)
    block.close()
    assert reopened(mine).loss is None


def test_a_source_that_fails_is_left_for_the_next_and_nothing_is_pulled_twice() -> None:
    files, whole, seal = sealed(20)
    mine = disk()
    block = new_block(mine)
    first, second = Whole(whole, fail_after=7), Whole(whole)
    mended(block, seal, first, second, bytes_max=1)
    assert second.reads == seal.index - 7
    assert mine.contents(LOG) == files.contents(LOG)


def test_damage_from_a_source_is_never_stored() -> None:
    files, whole, seal = sealed()
    mine = disk()
    block = new_block(mine)
    mended(block, seal, Whole(whole, flip=True), Whole(whole))
    assert mine.contents(LOG) == files.contents(LOG)


def test_another_seal_is_refused_and_may_be_tried_again() -> None:
    _, other, _ = sealed(5)
    files, whole, seal = sealed(20)
    wrong = SealMark(other.last_index, 12345)
    mine = disk()
    block = new_block(mine)
    with pytest.raises(CorruptBatch, match="another SEAL"):
        mended(block, wrong, Whole(other))
    mended(block, seal, Whole(whole))
    assert mine.contents(LOG) == files.contents(LOG)


def test_a_source_that_ends_early_or_goes_on_too_long_is_refused() -> None:
    _, whole, seal = sealed(20)
    short = new_block(disk())
    fill(short, 5)
    with pytest.raises(CorruptBatch, match="before the seal"):
        mended(new_block(disk()), seal, Whole(short))
    with pytest.raises(CorruptBatch, match="is not the block"):
        mended(new_block(disk()), SealMark(10, 1), Whole(whole), bytes_max=100_000)


def test_without_a_source_it_says_so() -> None:
    _, _, seal = sealed()
    with pytest.raises(InvalidRequest, match="no whole replica"):
        mended(new_block(disk()), seal)


def test_a_replica_with_more_committed_than_the_seal_is_not_cut_but_lost() -> None:
    _, whole, seal = sealed(5)
    block = new_block(disk())
    fill(block, 10)
    with pytest.raises(ReplicaLost):
        mended(block, seal, Whole(whole))


def test_a_disk_that_fails_while_mending_is_not_tried_with_another_source() -> None:
    _, whole, seal = sealed()
    mine = disk()
    block = new_block(mine)
    mine.fail("sync", path=LOG)
    with pytest.raises(ClymqError):
        mended(block, seal, Whole(whole), Whole(whole))
    assert block.failure is not None
    assert not is_whole(block, seal)


def test_a_whole_replica_is_left_alone() -> None:
    _, block, seal = sealed()
    source = Whole(block)
    mended(block, seal, source)
    assert source.reads == 0
