"""When blocks are synced, and who is told; on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clymq.clock import ManualClock, SystemClock
from clymq.config import Config
from clymq.errors import DiskFailed, StorageError
from clymq.storage.block import Block
from clymq.storage.files import RealFiles
from clymq.storage.flusher import Flusher
from clymq.storage.memory import MemoryFiles
from factory import following, new_block, reopened


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.files = MemoryFiles(clock=self.clock)
        self.files.sync_delay_ms = 10
        self.flusher = Flusher(self.clock, Config(fsync_interval_ms=1000))
        self.told: list[tuple[int, StorageError | None]] = []

    def block(self, number: int = 1) -> Block:
        block = new_block(self.files, f"/data/Block_{number}")
        self.flusher.add(block, lambda error: self.told.append((number, error)))
        return block

    def write(self, block: Block, fsync: str) -> None:
        block.append([following(block, [b"x"])])
        self.flusher.written(block, fsync)


@pytest.fixture
def world() -> World:
    return World()


def test_commit_syncs_at_once_and_tells(world: World) -> None:
    block = world.block()
    world.write(block, "commit")
    assert (block.synced_index, world.told) == (0, [])
    world.clock.advance(10)
    assert (block.synced_index, world.told) == (1, [(1, None)])


def test_what_gathers_during_a_sync_is_synced_together_next(world: World) -> None:
    block = world.block()
    for _ in range(100):
        world.write(block, "commit")
    world.clock.advance(10)
    assert block.synced_index == 1
    world.clock.advance(10)
    assert (block.synced_index, len(world.told)) == (100, 2)
    world.clock.advance(1000)
    assert len(world.told) == 2


def test_interval_syncs_once_within_the_interval_of_the_first_write(world: World) -> None:
    block = world.block()
    for _ in range(5):
        world.write(block, "interval")
        world.clock.advance(100)
    assert block.synced_index == 0
    world.clock.advance(500 + 10)
    assert (block.synced_index, len(world.told)) == (5, 1)
    world.clock.advance(5000)
    assert len(world.told) == 1
    world.write(block, "interval")
    world.clock.advance(1010)
    assert block.synced_index == 6


def test_never_leaves_it_to_the_operating_system(world: World) -> None:
    block = world.block()
    world.write(block, "never")
    world.clock.advance(100_000)
    assert (block.synced_index, world.told) == (0, [])


def test_a_commit_takes_the_place_of_a_waiting_interval(world: World) -> None:
    block = world.block()
    world.write(block, "interval")
    world.write(block, "commit")
    world.clock.advance(2000)
    assert (block.synced_index, len(world.told)) == (2, 1)


def test_a_slow_block_delays_no_other(world: World) -> None:
    slow, quick = world.block(1), world.block(2)
    world.files.sync_delay_ms = 500
    world.write(slow, "commit")
    world.files.sync_delay_ms = 1
    world.write(quick, "commit")
    world.clock.advance(1)
    assert (slow.synced_index, quick.synced_index) == (0, 1)


def test_a_failed_sync_is_told_once_and_never_tried_again(world: World) -> None:
    block = world.block()
    world.files.fail("sync", path="*/batches")
    world.write(block, "commit")
    with pytest.raises(DiskFailed):
        world.clock.advance(10)
        world.write(block, "commit")
    world.clock.advance(100)
    ((number, error),) = world.told
    assert number == 1
    assert isinstance(error, DiskFailed)
    assert block.synced_index == 0


def test_whoever_waits_hears_of_a_failure_that_was_not_a_sync_s(world: World) -> None:
    block = world.block()
    world.write(block, "commit")
    world.write(block, "commit")
    world.files.fail("write", path="*/batches")
    world.files.fail("truncate", path="*/batches")
    with pytest.raises(DiskFailed):
        world.write(block, "commit")
    world.clock.advance(100)
    assert [type(error) for _, error in world.told][-1] is DiskFailed


def test_a_block_may_be_closed_only_when_its_sync_is_over(world: World) -> None:
    block = world.block()
    world.write(block, "commit")
    closed: list[float] = []
    world.flusher.remove(block, lambda: closed.append(world.clock.monotonic_ms()))
    world.clock.advance(9)
    assert closed == []
    world.clock.advance(1)
    assert (closed, world.told) == ([10], [])


def test_a_block_at_rest_is_let_go_at_once(world: World) -> None:
    block = world.block()
    world.write(block, "interval")
    closed: list[int] = []
    world.flusher.remove(block, lambda: closed.append(1))
    world.clock.advance(5000)
    assert (closed, block.synced_index) == ([1], 0)


def test_on_real_files_a_thousand_commits_of_four_blocks_reach_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        files, flusher = RealFiles(), Flusher(SystemClock(), Config(fsync="commit"))
        blocks = [new_block(files, f"{tmp_path}/Block_{n}") for n in range(1, 5)]
        synced = asyncio.Event()
        for block in blocks:
            flusher.add(block, lambda error: synced.set())
        for _ in range(250):
            for block in blocks:
                block.append([following(block, [b"x" * 100])])
                flusher.written(block)
            await asyncio.sleep(0)
        while any(block.synced_index < 250 for block in blocks):
            await asyncio.wait_for(synced.wait(), 20)
            synced.clear()
        for block in blocks:
            flusher.remove(block)
            block.close()
        files.close()

    asyncio.run(run())
    for n in range(1, 5):
        assert reopened(RealFiles(), f"{tmp_path}/Block_{n}").last_index == 250
