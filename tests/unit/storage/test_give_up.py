"""A block that the chain ended earlier is cut there, below what readers saw if need be, and nothing goes unkept."""

from __future__ import annotations

import random

import pytest

from clymq.clock import ManualClock
from clymq.errors import BlockSealed, ClymqError
from clymq.storage.block import Block
from clymq.storage.memory import MemoryFiles
from factory import control, fill, following, new_block, reopened, values_of

FOLDER = "/data/Block_1"
LOG = f"{FOLDER}/batches"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles(clock=ManualClock())


@pytest.fixture
def block(files: MemoryFiles) -> Block:
    block = new_block(files)
    fill(block, 20)
    return block


def kept(files: MemoryFiles) -> list[str]:
    return [name for name in files.names(FOLDER) if name.endswith(".lost")]


@pytest.mark.parametrize("checkpoint", [0, 5, 20])
def test_what_was_committed_is_cut_kept_and_forgotten(files: MemoryFiles, block: Block, checkpoint: int) -> None:
    if checkpoint:
        block.write_checkpoint(checkpoint, b"state")
    values, tail, position = values_of(block), files.contents(LOG), block.position_of(11)
    path = block.give_up(11)
    assert path is not None
    assert files.contents(path) == tail[position:]
    for again in (block, reopened(files)):
        assert (again.last_index, again.commit_index, again.loss) == (10, min(10, again.commit_index), None)
        assert again.committed_position <= position == again.end_position
        assert again.synced_position == position
    again.commit_all()
    assert values_of(again) == values[:30]
    assert again.checkpoint.state == (b"state" if checkpoint == 5 else b"")


def test_the_log_goes_on_from_there(files: MemoryFiles, block: Block) -> None:
    block.write_checkpoint(20, b"state")
    block.give_up(11)
    block.append([following(block, [b"other"])])
    block.append([control(block, seal=True)])
    block.sync()
    block.commit_all()
    block.write_checkpoint(block.last_index, b"")
    assert values_of(reopened(files))[-1] == b"other"
    assert reopened(files).sealed


def test_a_seal_can_be_given_up(block: Block) -> None:
    block.seal(control(block, seal=True))
    with pytest.raises(BlockSealed):
        block.append([following(block, [b"x"])])
    block.give_up(21)
    block.append([following(block, [b"x"])])
    assert (block.sealed, block.last_index) == (False, 21)


def test_what_is_not_there_cannot_be_given_up(files: MemoryFiles, block: Block) -> None:
    assert block.give_up(22) is None
    assert block.give_up(21) is None
    assert block.last_index == 20
    assert not kept(files)


def test_what_was_lost_can_be_given_up(files: MemoryFiles, block: Block) -> None:
    block.write_checkpoint(20, b"state")
    block.close()
    files.flip(LOG, block.position_of(15) + 130, 3)
    damaged = reopened(files, verify=True)
    assert (damaged.loss is not None, damaged.last_index) == (True, 14)
    damaged.acknowledge_loss()
    assert damaged.give_up(15) is None
    again = reopened(files)
    assert (again.loss, again.last_index, again.commit_index) == (None, 14, 14)
    assert not kept(files)


def test_a_view_that_somebody_holds_stays_what_it_was(block: Block) -> None:
    data = block.read(0, 100_000)
    before = bytes(data)
    block.give_up(2)
    assert bytes(data) == before


def test_a_power_cut_while_it_is_cut_leaves_all_of_it_or_the_part_to_keep() -> None:
    """And whatever it leaves is no loss: a second attempt ends the same."""

    files = MemoryFiles(clock=ManualClock())
    block = new_block(files)
    fill(block, 20)
    block.write_checkpoint(20, b"state")
    whole, position = files.contents(LOG), block.position_of(11)
    after: list[MemoryFiles] = []
    files.on_operation = lambda *_: after.extend(files.crash(random.Random(seed)) for seed in range(5))
    block.give_up(11)
    assert len(after) > 30
    for left in after:
        again = reopened(left)
        assert again.loss is None
        assert left.contents(LOG) in {whole, whole[:position]}
        again.give_up(11)
        assert left.contents(LOG) == whole[:position]


def test_a_failed_block_gives_nothing_up(files: MemoryFiles, block: Block) -> None:
    files.fail("sync", path=LOG)
    block.append([following(block, [b"x"])])
    with pytest.raises(ClymqError):
        block.sync()
    with pytest.raises(ClymqError):
        block.give_up(11)
    assert not kept(files)
