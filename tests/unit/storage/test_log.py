"""The chain of blocks of one partition: rolls, retention, reads across blocks, what an interrupted change leaves."""

from __future__ import annotations

import msgspec
import pytest

from clymq.config import DAY_MS, Config
from clymq.errors import CorruptBlock, DiskFailed, InvalidRequest, OffsetOutOfRange
from clymq.storage.log import PartitionLog
from clymq.storage.memory import MemoryFiles
from factory import EPOCH, SMALL, control, fill, following, new_log, reopened_log


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> PartitionLog:
    return new_log(files)


def rolled(log: PartitionLog, blocks: int, batches: int = 5) -> list[bytes]:
    values: list[bytes] = []
    for number in range(blocks):
        values += fill(log.active, batches)
        if number < blocks - 1:
            log.roll(control(log.active, seal=True), state=b"s")
    return values


def all_values(log: PartitionLog, offset: int | None = None) -> list[bytes]:
    start = log.start_offset if offset is None else offset
    return [value for batch in log.batches(start, bytes_max=900) for value in batch.values()]


def test_blocks_adjoin_and_are_read_as_one_log(files: MemoryFiles, log: PartitionLog) -> None:
    values = rolled(log, 4)
    assert all_values(log) == values
    assert [block.start_offset for block in log.blocks.values()] == [0, 15, 30, 45]
    again = reopened_log(files)
    again.active.commit_all()
    assert all_values(again) == values
    assert all_values(again, 14)[-46:] == values[14:]


def test_a_block_of_the_right_size_or_age_asks_to_be_rolled_and_goes_on_until_it_is(files: MemoryFiles) -> None:
    log = new_log(files, config=msgspec.structs.replace(SMALL, block_bytes_max=65536, block_age_ms_max=DAY_MS))
    assert log.roll_due(EPOCH + 999 * DAY_MS * 1000) is None, "an empty block has no age"
    log.append([following(log.active, [b"x"], append_time=EPOCH)])
    assert log.roll_due(EPOCH) is None
    assert log.roll_due(EPOCH + int(0.89 * DAY_MS * 1000)) is None
    assert log.roll_due(EPOCH + DAY_MS * 1000) == "age"
    while log.active.end_position < 65536:
        assert log.roll_due(EPOCH) is None
        log.append([following(log.active, [b"x" * 1000])])
    assert log.roll_due(EPOCH) == "size"
    log.append([following(log.active, [b"goes on"])])


def test_partitions_of_one_age_do_not_all_roll_at_once(files: MemoryFiles) -> None:
    config = msgspec.structs.replace(SMALL, block_age_ms_max=DAY_MS)
    due = set()
    for number in range(20):
        log = new_log(files, f"/data/p{number}", config=config)
        log.append([following(log.active, [b"x"], append_time=EPOCH)])
        ages = (step / 1000 for step in range(1001))
        due.add(next(age for age in ages if log.roll_due(EPOCH + int(age * DAY_MS * 1000))))
    assert len(due) > 10
    assert 0.9 <= min(due) <= max(due) <= 1


def test_age_may_be_unlimited(files: MemoryFiles) -> None:
    log = new_log(files, config=msgspec.structs.replace(SMALL, block_age_ms_max=-1))
    log.append([following(log.active, [b"x"])])
    assert log.roll_due(EPOCH * 2) is None


def test_retention_by_time_lets_go_of_old_sealed_blocks_from_the_front(files: MemoryFiles) -> None:
    log = new_log(files, config=msgspec.structs.replace(SMALL, retention_ms=1000))
    for n in range(4):
        log.append([following(log.active, [b"x"], append_time=EPOCH + n * 1_000_000)])
        if n < 3:
            log.roll(control(log.active, seal=True))
    assert log.retention_due(EPOCH + 1_000_000) == []
    assert log.retention_due(EPOCH + 1_000_001) == [1]
    assert log.retention_due(EPOCH + 9_000_000) == [1, 2, 3], "the active block stays"


def test_retention_by_size_counts_what_is_kept(files: MemoryFiles) -> None:
    log = new_log(files)
    rolled(log, 4)
    sizes = [block.end_position for block in log.blocks.values()]
    for limit, due in ((sum(sizes), []), (sum(sizes) - 1, [1]), (sum(sizes[2:]), [1, 2]), (0, [1, 2, 3])):
        log._config = msgspec.structs.replace(SMALL, retention_bytes=limit, retention_ms=-1)
        assert log.retention_due(EPOCH) == due
    log._config = msgspec.structs.replace(SMALL, retention_bytes=-1, retention_ms=-1)
    assert log.retention_due(EPOCH * 2) == []


def test_dropped_blocks_are_gone_and_a_reader_before_them_is_told_the_range(
    files: MemoryFiles, log: PartitionLog
) -> None:
    values = rolled(log, 4)
    log.drop([1, 2])
    assert files.names("/data/p") == ["Block_3", "Block_4"]
    assert all_values(log) == values[30:]
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(29, 100)
    assert (caught.value.first, caught.value.end) == (30, 60)
    assert reopened_log(files).start_offset == 30


@pytest.mark.parametrize("numbers", [[2], [1, 3], [1, 2, 3, 4], [9]])
def test_only_the_oldest_sealed_blocks_may_be_dropped(log: PartitionLog, numbers: list[int]) -> None:
    rolled(log, 4)
    with pytest.raises(InvalidRequest, match="oldest"):
        log.drop(numbers)
    assert list(log.blocks) == [1, 2, 3, 4]


def test_a_removal_that_was_interrupted_is_finished_at_the_next_opening(files: MemoryFiles, log: PartitionLog) -> None:
    rolled(log, 3)
    files.fail("remove", path="*.deleted/checkpoint")
    with pytest.raises(Exception, match="remove"):
        log.drop([1])
    assert "Block_1.deleted" in files.names("/data/p")
    assert list(reopened_log(files).blocks) == [2, 3]
    assert files.names("/data/p") == ["Block_2", "Block_3"]


def test_a_roll_that_was_interrupted_behind_the_seal_can_be_repeated(files: MemoryFiles, log: PartitionLog) -> None:
    values = fill(log.active, 3)
    files.fail("make folder", path="*/Block_2")
    with pytest.raises(Exception, match="make folder"):
        log.roll(control(log.active, seal=True))
    again = reopened_log(files)
    assert (again.active_number, again.active.sealed) == (1, True)
    again.roll()
    again.append([following(again.active, [b"next"])])
    again.active.commit_all()
    assert all_values(again) == [*values, b"next"]


def test_a_block_whose_making_was_interrupted_is_cleared_away(files: MemoryFiles, log: PartitionLog) -> None:
    fill(log.active, 3)
    files.make_folder("/data/p/Block_2")
    files.open("/data/p/Block_2/batches", create=True)
    assert list(reopened_log(files).blocks) == [1]
    assert files.names("/data/p") == ["Block_1"]


def test_rolling_an_open_block_needs_a_seal(log: PartitionLog) -> None:
    with pytest.raises(InvalidRequest, match="seal"):
        log.roll()


def test_a_folder_without_blocks_is_no_log(files: MemoryFiles) -> None:
    files.make_folder("/data")
    files.make_folder("/data/p")
    with pytest.raises(CorruptBlock, match="no block"):
        reopened_log(files)


def test_a_loss_in_a_sealed_block_is_reported_and_reads_of_it_fail_by_name(
    files: MemoryFiles, log: PartitionLog
) -> None:
    rolled(log, 3)
    block = log.blocks[2]
    path = "/data/p/Block_2/batches"
    files.open(path).truncate(block.position_of(3))
    again = reopened_log(files)
    assert [loss.path for loss in again.losses] == [path]
    with pytest.raises(CorruptBlock, match="Block_2"):
        again.read(25, 100)
    assert again.read(31, 100) is not None


def test_a_log_with_missing_blocks_says_so_to_readers_of_them(files: MemoryFiles, log: PartitionLog) -> None:
    values = rolled(log, 4)
    log.close()
    for name in ("batches", "index", "checkpoint"):
        files.remove(f"/data/p/Block_2/{name}")
    files.remove("/data/p/Block_2")
    again = reopened_log(files)
    again.active.commit_all()
    with pytest.raises(OffsetOutOfRange):
        again.read(20, 100)
    assert all_values(again, 30) == values[30:]


def test_a_bad_checkpoint_of_an_empty_block_keeps_nobody_from_the_others(files: MemoryFiles, log: PartitionLog) -> None:
    values = rolled(log, 2)
    log.roll(control(log.active, seal=True))
    files.flip("/data/p/Block_3/checkpoint", 40, 0)
    again = reopened_log(files)
    assert (again.end_offset, again.active_number) == (30, 3)
    assert all_values(again) == values


def test_a_block_that_cannot_be_opened_is_a_loss_and_no_more(files: MemoryFiles, log: PartitionLog) -> None:
    values = rolled(log, 3)
    files.remove("/data/p/Block_1/checkpoint")
    files.flip("/data/p/Block_1/batches", 0, 0)
    again = reopened_log(files)
    again.active.commit_all()
    assert [loss.path for loss in again.losses] == ["/data/p/Block_1/batches"]
    assert all_values(again) == values[15:]


def test_damage_met_by_a_reader_is_placed_verified_and_remembered(files: MemoryFiles, log: PartitionLog) -> None:
    rolled(log, 3)
    position = log.blocks[2].position_of(3)
    files.flip("/data/p/Block_2/batches", position + 200, 1)
    with pytest.raises(CorruptBlock, match="body_crc") as caught:
        all_values(log)
    assert (caught.value.path, caught.value.position) == ("/data/p/Block_2/batches", position)
    assert log.losses == []
    loss = log.verify(2)
    assert loss is not None
    assert loss.position == position
    assert list(log.blocks) == [1, 2, 3]
    assert len(reopened_log(files).losses) == 1


def test_a_block_that_lost_everything_is_not_the_oldest_for_retention(files: MemoryFiles) -> None:
    config = msgspec.structs.replace(SMALL, retention_ms=1000)
    log = new_log(files, config=config)
    rolled(log, 2)
    log.close()
    files.open("/data/p/Block_1/batches").truncate(0)
    again = reopened_log(files, config=config)
    assert len(again.losses) == 1
    assert again.retention_due(EPOCH + 1000) == []
    assert again.retention_due(EPOCH + 2_000_000) == [1]


def test_a_failed_drop_can_be_repeated(files: MemoryFiles, log: PartitionLog) -> None:
    rolled(log, 3)
    files.fail("rename", path="*/Block_1")
    with pytest.raises(DiskFailed):
        log.drop([1])
    log.drop([1])
    assert list(log.blocks) == [2, 3]


def test_a_roll_while_a_sync_is_under_way_harms_nothing(files: MemoryFiles, log: PartitionLog) -> None:
    values = fill(log.active, 3)
    outcomes: list[object] = []
    log.active.sync_soon(outcomes.append)
    log.roll(control(log.active, seal=True))
    files.run_syncs()
    assert outcomes == [None]
    again = reopened_log(files)
    assert again.losses == []
    assert all_values(again) == values


def test_open_files_of_sealed_blocks_are_bounded(files: MemoryFiles) -> None:
    log = new_log(files, config=msgspec.structs.replace(SMALL, open_files_max=3))
    values = rolled(log, 12, batches=2)
    assert all_values(log) == values
    assert len(log._handles) <= 3


def test_config_bounds_cover_a_block_of_any_allowed_size() -> None:
    assert Config().batch_bytes_max < Config().block_bytes_max
