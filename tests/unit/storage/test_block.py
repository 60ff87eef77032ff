"""What a block promises its owner, one sentence a test."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from clymq.config import Config
from clymq.errors import (
    BlockSealed,
    ClosedError,
    CorruptBatch,
    CorruptBlock,
    DiskFailed,
    DiskFull,
    InvalidRequest,
    OffsetOutOfRange,
)
from clymq.record import Batch
from clymq.storage.block import Block
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles
from clymq.storage.space import Space
from factory import EPOCH, SMALL, built, control, fill, following, new_block, reopened, stamped, values_of

LOG = "/data/Block_1/batches"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def block(files: MemoryFiles) -> Block:
    return new_block(files)


# --- Appending ---


def test_a_new_block_is_empty_and_starts_where_it_was_told(files: MemoryFiles) -> None:
    block = new_block(files, start_offset=700)
    assert (block.start_offset, block.end_offset, block.last_index, block.end_position) == (700, 700, 0, 0)
    assert reopened(files).start_offset == 700


def test_a_block_at_rest_is_opened_without_a_sync_and_one_that_is_not_with_one(files: MemoryFiles) -> None:
    block = new_block(files)
    fill(block, 4)
    block.write_checkpoint(block.last_index, b"")
    block.close()
    operations: list[str] = []
    files.on_operation = lambda operation, path: operations.append(operation)
    block = reopened(files)
    assert "sync" not in operations
    assert (block.synced_index, block.synced_position) == (block.last_index, block.end_position)
    block.append([following(block, [b"more"])])
    block.close()
    reopened(files).close()
    assert operations.count("sync") == 1


def with_a_promise(files: MemoryFiles) -> Block:
    """Return a block with four committed entries and three more that others count on."""
    block = new_block(files)
    fill(block, 4)
    for _ in range(3):
        block.append([following(block, [b"promised"])])
    block.sync()
    block.write_checkpoint(4, b"", promised=7)
    return block


def test_damage_in_what_was_promised_is_a_loss_though_it_was_never_heard_to_be_committed(files: MemoryFiles) -> None:
    block = with_a_promise(files)
    end = block.end_position
    block.close()
    assert reopened(files).loss is None
    files.flip(LOG, end - 3, 3)
    block = reopened(files)
    assert block.loss is not None
    assert (block.commit_index, block.checkpoint.missing_through) == (4, 7)


def test_what_was_promised_and_lost_to_another_leader_is_not_missing(files: MemoryFiles) -> None:
    block = with_a_promise(files)
    states: list[MemoryFiles] = []
    files.on_operation = lambda operation, path: states.append(files.crash(random.Random(len(states))))
    block.truncate(6)
    assert len(states) > 3
    for state in (*states, files.crash(random.Random(0))):
        assert reopened(state).loss is None, "wherever the power was cut"
    files.on_operation = lambda _operation, _path: None
    block.append([following(block, [b"another's"], term=2)])
    block.sync()
    block.close()
    files.flip(LOG, block.end_position - 3, 3)
    block = reopened(files)
    assert (block.loss, block.last_index) == (None, 5), "nobody was promised the other one yet"


def test_many_batches_go_out_in_one_write(files: MemoryFiles, block: Block) -> None:
    batches = [
        stamped(built([b"a", b"b"]), index=1, offset=0),
        stamped(built([b"c"]), index=2, offset=2),
        stamped(built([b"d"]), index=3, offset=3),
    ]
    operations: list[str] = []
    files.on_operation = lambda operation, path: operations.append(operation)
    block.append(batches)
    assert operations == ["write"]
    assert (block.end_offset, block.last_index) == (4, 3)
    block.commit_all()
    assert values_of(block) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"index": 3}, "index"),
        ({"index": 1}, "index"),
        ({"offset": 0}, "base_offset"),
        ({"offset": 2}, "base_offset"),
        ({"term": 4}, "term"),
        ({"append_time": EPOCH - 1}, "append_time"),
    ],
)
def test_a_batch_that_does_not_follow_on_is_refused_and_nothing_is_written(
    block: Block, change: dict[str, int], field: str
) -> None:
    block.append([following(block, [b"x"], term=5)])
    good = {"index": 2, "offset": 1, "term": 5, "append_time": EPOCH}
    position = block.end_position
    with pytest.raises(CorruptBatch) as caught:
        block.append([stamped(built([b"y"]), **(good | change))])
    assert caught.value.field == field
    assert block.end_position == position
    block.append([stamped(built([b"y"]), **good)])


def test_nothing_is_appended_behind_a_seal(files: MemoryFiles, block: Block) -> None:
    fill(block, 2)
    block.seal(control(block, seal=True))
    assert block.sealed
    with pytest.raises(BlockSealed):
        block.append([following(block, [b"x"])])
    again = reopened(files)
    assert again.sealed
    with pytest.raises(BlockSealed):
        again.append([following(again, [b"x"])])


def test_a_block_is_sealed_only_by_a_seal(block: Block) -> None:
    with pytest.raises(CorruptBatch, match="SEAL"):
        block.seal(control(block))


def test_a_batch_behind_a_seal_in_one_append_is_refused_whole(block: Block) -> None:
    seal = control(block, seal=True)
    with pytest.raises(CorruptBatch, match="seal"):
        block.append([seal, stamped(built([b"x"]), index=2, offset=0)])
    assert (block.sealed, block.last_index) == (False, 0)


def test_control_batches_use_no_offset(block: Block) -> None:
    block.append([control(block)])
    block.append([following(block, [b"a"])])
    block.append([control(block)])
    block.append([following(block, [b"b"])])
    block.commit_all()
    assert block.end_offset == 2
    assert values_of(block) == [b"a", b"b"]
    assert Batch.parse(block.read(1, 1)).base_offset == 1


# --- Full and failing disks ---


def test_a_full_disk_takes_nothing_keeps_everything_and_goes_on_when_there_is_room(
    files: MemoryFiles, block: Block
) -> None:
    values = fill(block, 3)
    files.capacity_bytes = len(files.contents(LOG)) + 800
    batch = following(block, [b"x" * 5000])
    with pytest.raises(DiskFull):
        block.append([batch])
    assert len(files.contents(LOG)) == block.end_position
    assert values_of(block) == values
    files.capacity_bytes = 1 << 30
    block.append([batch])
    block.commit_all()
    assert values_of(block) == [*values, b"x" * 5000]


def test_a_write_that_fails_half_way_is_cut_back(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 3)
    files.fail("write", path=LOG)
    with pytest.raises(DiskFailed):
        block.append([following(block, [b"x" * 500])])
    assert len(files.contents(LOG)) == block.end_position
    block.append([following(block, [b"y"])])
    again = reopened(files)
    again.commit_all()
    assert values_of(again) == [*values, b"y"]


def test_a_write_that_cannot_be_cut_back_ends_the_block(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    files.fail("write", path=LOG)
    files.fail("truncate", path=LOG)
    with pytest.raises(DiskFailed):
        block.append([following(block, [b"x" * 500])])
    with pytest.raises(DiskFailed):
        block.append([following(block, [b"y"])])
    again = reopened(files)
    assert (again.loss, again.last_index) == (None, 3), "what was refused was promised to nobody"


def test_what_a_refused_write_left_behind_does_not_come_back(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    first = following(block, [b"a" * 600])
    second = stamped(built([b"b" * 600]), index=5, offset=first.end_offset)
    files.fail("write", path=LOG, full=True)
    with pytest.raises(DiskFull):
        block.append([first, second])
    for seed in range(60):
        assert reopened(files.crash(random.Random(seed))).last_index == 3


def test_an_index_that_cannot_be_written_stops_nothing(files: MemoryFiles, block: Block) -> None:
    files.fail("write", path="*/index", full=True, times=1000)
    values = fill(block, 1500)
    assert values_of(block) == values
    assert block.locate(4000) == block.position_of(1334)


def test_a_flipped_bit_in_the_index_stops_neither_checkpoints_nor_truncates(files: MemoryFiles, block: Block) -> None:
    fill(block, 60)
    block.write_checkpoint(60, b"")
    for entry in range(30):
        files.flip("/data/Block_1/index", 40 * entry + 17, 2)
    block.append([following(block, [b"x"])])
    block.append([following(block, [b"y"])])
    block.truncate(62)
    block.sync()
    block.commit_all()
    block.write_checkpoint(61, b"")
    assert reopened(files).last_index == 61


def test_a_failed_sync_is_never_repeated_and_is_remembered(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 3)
    block.append([following(block, [b"x"])])
    files.fail("sync", path=LOG)
    with pytest.raises(DiskFailed):
        block.sync()
    with pytest.raises(DiskFailed):
        block.sync()
    with pytest.raises(DiskFailed):
        block.append([following(block, [b"y"])])
    assert values_of(block) == values
    for _ in range(2):
        again = reopened(files)
        assert again.loss is not None
        assert (again.last_index, again.committed_position) == (3, block.committed_position)
        with pytest.raises(CorruptBlock):
            again.append([following(again, [b"y"])])
    again.acknowledge_loss()
    again.append([following(again, [b"mended"])])
    again.sync()
    assert reopened(files).loss is None


def test_no_sync_counts_after_one_that_failed(files: MemoryFiles, block: Block) -> None:
    block.append([following(block, [b"x"])])
    outcomes: list[object] = []
    block.sync_soon(outcomes.append)
    block.sync_soon(outcomes.append)
    files.fail("sync", path=LOG)
    files.run_syncs()
    assert [type(outcome) for outcome in outcomes] == [DiskFailed, DiskFailed]
    assert block.synced_index == 0


def test_what_was_shown_before_it_was_synced_is_no_loss_when_the_power_takes_it(
    files: MemoryFiles, block: Block
) -> None:
    fill(block, 4)
    block.append([following(block, [b"read by somebody"])])
    block.commit(5, block.end_position)
    block.write_checkpoint(4, b"")
    for seed in range(20):
        assert reopened(files.crash(random.Random(seed))).loss is None, "in fetch mode nobody waits for the disk"


def test_a_failed_sync_of_recovery_is_remembered_too(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    block.write_checkpoint(2, b"")
    files.fail("sync", path=LOG)
    with pytest.raises(DiskFailed):
        reopened(files)
    again = reopened(files)
    assert again.loss is not None
    assert again.last_index == 2


def test_closing_waits_for_a_sync_that_is_under_way(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    outcomes: list[object] = []
    block.sync_soon(outcomes.append)
    block.rest()
    files.run_syncs()
    assert (outcomes, block.failure) == ([None], None)
    assert reopened(files).loss is None
    with pytest.raises(ClosedError):
        block.append([following(block, [b"x"])])


def test_making_a_block_where_one_is_changes_nothing(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    with pytest.raises(InvalidRequest, match="already"):
        new_block(files, start_offset=7)
    assert reopened(files).end_offset == 9


def test_a_batch_that_was_changed_on_the_way_is_not_stored(block: Block) -> None:
    batch = following(block, [b"x" * 100])
    batch.buffer[300] ^= 1
    with pytest.raises(CorruptBatch, match="body_crc"):
        block.append([batch])
    assert block.end_position == 0


def test_a_lower_limit_for_batches_does_not_turn_stored_ones_into_damage(files: MemoryFiles, block: Block) -> None:
    values = [b"x" * 100_000, b"y"]
    for value in values:
        block.append([following(block, [value])])
    block.sync()
    lower = Config(batch_bytes_max=65536, message_bytes_max=1024, index_interval_bytes=1024)
    again = reopened(files, config=lower)
    again.commit_all()
    assert values_of(again) == values


def test_the_reserve_of_the_disk_is_kept_for_the_seal(files: MemoryFiles) -> None:
    files.make_folder("/data")
    files.capacity_bytes = 20_000
    space = Space(files, "/data", reserve_bytes=10_000)
    block = Block.create(files, "/data/Block_1", start_offset=0, config=SMALL, handles=Handles(files, 8), space=space)
    with pytest.raises(DiskFull, match="reserve"):
        for _ in range(100):
            block.append([following(block, [b"x" * 500])])
    assert 8000 < block.end_position < 10_000
    block.seal(control(block, seal=True))
    block.commit_all()
    block.write_checkpoint(block.last_index, b"state")
    assert reopened(files).sealed


# --- Reading ---


def test_lookup_finds_inside_both_edges_and_refuses_what_is_outside(block: Block) -> None:
    values = fill(block, 200)
    for offset in (0, 1, 2, 3, 299, 300, 598, 599):
        batch = Batch.parse(block.read(offset, 1))
        assert batch.base_offset <= offset < batch.end_offset
        assert batch.values() == values[batch.base_offset : batch.end_offset]
    for offset in (-1, 600, 10**9):
        with pytest.raises(OffsetOutOfRange) as caught:
            block.read(offset, 1)
        assert (caught.value.first, caught.value.end) == (0, 600)


def test_lookup_does_not_scan(files: MemoryFiles, block: Block) -> None:
    fill(block, 2000)
    size = block.end_position
    again = reopened(files)
    files.bytes_read = 0
    again.locate(3333)
    assert files.bytes_read < 4096 < size / 100


def test_lookup_by_time_finds_the_first_message_that_is_not_earlier(files: MemoryFiles, block: Block) -> None:
    times = [100, 300, 200, 50, 300, 500, 400]
    for time in times:
        block.append([following(block, [b"a", b"b"], timestamp=time)])
        block.append([control(block)])
    assert block.locate_time(0) is None, "nothing is committed"
    block.commit_all()
    for wanted in range(0, 520, 10):
        expected = next((2 * n for n, time in enumerate(times) if time >= wanted), None)
        assert block.locate_time(wanted) == expected
    block.sync()
    block.write_checkpoint(block.last_index, b"")
    assert reopened(files).locate_time(301) == 10


def test_a_producer_s_bad_batch_does_not_look_like_a_bad_disk(block: Block) -> None:
    data = bytearray(built([b"x" * 100] * 9, codec="zstd", timestamp=50))
    data[130:140] = bytes(10)
    struct.pack_into("<I", data, 104, crc32c(bytes(data[112:]), crc32c(bytes(data[:64]))))
    struct.pack_into("<I", data, 108, crc32c(bytes(data[:108])))
    block.append([stamped(bytes(data), index=1, offset=0)])
    block.commit_all()
    assert block.locate_time(50) == 0
    with pytest.raises(CorruptBatch) as caught:
        Batch.parse(block.read(0, 100)).values()
    assert (caught.value.start, caught.value.end) == (0, 9)


def test_a_file_that_has_become_shorter_is_damage_not_the_end_of_the_log(files: MemoryFiles, block: Block) -> None:
    fill(block, 10)
    files.open(LOG).truncate(block.position_of(6) + 150)
    with pytest.raises(CorruptBlock, match="ends in the middle"):
        values_of(block)


def test_entries_that_are_not_there_are_the_caller_s_mistake(block: Block) -> None:
    fill(block, 3)
    for wrong in (lambda: block.end_at(99), lambda: block.end_at(-1), lambda: block.truncate(0)):
        with pytest.raises(InvalidRequest, match="there is no entry"):
            wrong()


def test_lookup_by_time_reads_little_of_a_large_block(files: MemoryFiles, block: Block) -> None:
    for n in range(2000):
        block.append([following(block, [b"x" * 50, b"y"], timestamp=1000 + n)])
    block.commit_all()
    files.bytes_read = 0
    assert block.locate_time(2500) == 3000
    assert files.bytes_read < 8192


def test_a_read_ends_at_whole_batches_and_holds_at_least_one(block: Block) -> None:
    fill(block, 10, size=500)
    one = Batch.parse(block.read(0, 1)).length
    assert len(block.read(0, 1)) == one
    assert len(block.read(0, 2 * one + 5)) == 2 * one
    assert len(block.read(0, 10**9)) == block.end_position


def test_what_is_not_committed_is_not_read_by_consumers_but_by_followers(block: Block) -> None:
    fill(block, 1)
    position = block.end_position
    block.append([following(block, [b"x"])])
    assert len(block.read(3, 100)) == 0
    assert Batch.parse(block.read_at(position, 1, block.end_position)).values() == [b"x"]
    block.commit_all()
    assert Batch.parse(block.read(3, 100)).values() == [b"x"]


def test_a_reader_in_step_searches_only_once(files: MemoryFiles, block: Block) -> None:
    fill(block, 300)
    again = reopened(files)
    again.commit_all()
    offset, data = 0, again.read(0, 2000)
    files.bytes_read = 0
    read = 0
    while offset < 900:
        batch = Batch.parse(data)
        offset, data, read = batch.end_offset, data[batch.length :], read + batch.length
        if not data and offset < 900:
            data = again.read(offset, 2000)
    assert files.bytes_read < 2.2 * read


def test_a_damaged_header_met_by_a_read_is_named_with_file_and_position(files: MemoryFiles, block: Block) -> None:
    fill(block, 50)
    position = block.position_of(20)
    files.flip(LOG, position + 1, 3)
    with pytest.raises(CorruptBlock) as caught:
        block.read(0, 1 << 20)
    assert (caught.value.path, caught.value.position) == (LOG, position)


# --- Truncating ---


def test_truncate_removes_the_tail_and_appends_go_on_there(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 20)
    block.append([following(block, [b"gone"] * 5, timestamp=EPOCH + 9)])
    block.append([following(block, [b"gone"])])
    block.truncate(21)
    assert (block.last_index, block.end_offset) == (20, 60)
    assert block.locate_time(EPOCH + 1) is None
    block.append([following(block, [b"new"], term=7)])
    block.commit_all()
    assert values_of(block) == [*values, b"new"]
    block.sync()
    again = reopened(files)
    again.commit_all()
    assert values_of(again) == [*values, b"new"]
    assert again.last_term == 7


def test_truncate_removes_a_seal_that_was_not_committed(block: Block) -> None:
    fill(block, 2)
    block.append([control(block, seal=True)])
    block.truncate(3)
    assert not block.sealed
    block.append([following(block, [b"x"])])


def test_truncate_to_nothing_and_of_nothing(block: Block) -> None:
    block.append([following(block, [b"a"])])
    block.truncate(2)
    assert block.last_index == 1
    block.truncate(1)
    assert (block.last_index, block.end_offset, block.end_position) == (0, 0, 0)
    block.append([following(block, [b"b"])])


def test_what_is_committed_is_never_truncated(block: Block) -> None:
    fill(block, 5)
    with pytest.raises(AssertionError, match="committed"):
        block.truncate(5)


def test_truncate_is_durable_before_it_returns(files: MemoryFiles, block: Block) -> None:
    block.append([following(block, [b"a" * 2000])])
    block.sync()
    operations: list[tuple[str, int]] = []
    files.on_operation = lambda operation, path: operations.append((operation, len(files.contents(LOG))))
    block.truncate(1)
    assert operations == [("truncate", 0), ("sync", 0)]


def test_a_sync_that_began_before_a_truncate_says_nothing_of_what_came_after(files: MemoryFiles, block: Block) -> None:
    block.append([following(block, [b"a"] * 10)])
    block.sync_soon(lambda error: None)
    block.truncate(1)
    block.append([following(block, [b"b"] * 10, term=2)])
    files.run_syncs()
    assert (block.synced_position, block.synced_index) == (0, 0)


# --- Checkpoints ---


def test_a_checkpoint_is_never_above_what_is_committed_and_synced(block: Block) -> None:
    fill(block, 3)
    block.append([following(block, [b"x"])])
    with pytest.raises(AssertionError, match="committed"):
        block.write_checkpoint(4, b"")
    block.commit_all()
    with pytest.raises(AssertionError, match="synced"):
        block.write_checkpoint(4, b"")
    block.sync()
    block.write_checkpoint(4, b"state")
    assert block.checkpoint.state == b"state"


def test_a_checkpoint_brings_back_the_state_and_all_figures(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 100)
    block.write_checkpoint(60, b"state at 60")
    again = reopened(files)
    assert (again.checkpoint.index, again.checkpoint.state) == (60, b"state at 60")
    assert (again.checkpoint.end_offset, again.end_offset, again.last_index) == (180, 300, 100)
    again.commit_all()
    assert values_of(again) == values


def test_recovery_reads_only_what_lies_behind_the_checkpoint_however_large_the_block(files: MemoryFiles) -> None:
    read = []
    for number, batches in ((1, 200), (2, 400), (3, 6400)):
        block = new_block(files, f"/data/Block_{number}")
        fill(block, batches)
        block.write_checkpoint(batches - 10, b"state")
        files.bytes_read = 0
        again = reopened(files, f"/data/Block_{number}")
        assert (again.last_index, again.loss) == (batches, None)
        read.append(files.bytes_read)
    assert max(read) == min(read) < block.end_position / 50


def test_what_batches_name_as_committed_is_committed_after_recovery(files: MemoryFiles, block: Block) -> None:
    for commit_index in (0, 0, 1, 2, 3, 4):
        block.append([following(block, [b"x"], commit_index=commit_index)])
    block.sync()
    block.commit(2, block.position_of(3))
    block.write_checkpoint(2, b"")
    again = reopened(files)
    assert (again.commit_index, again.committed_position) == (4, block.position_of(5))
    with pytest.raises(AssertionError, match="committed"):
        again.truncate(4)
    again.truncate(5)


@pytest.mark.parametrize("batches", [0, 1, 2, 3, 50_000])
def test_recovery_of_few_and_many_batches_gives_the_exact_next_offset(files: MemoryFiles, batches: int) -> None:
    block = new_block(files)
    one = bytearray(built([b"a", b"b"]))
    for start in range(0, batches, 1000):
        chunk = range(start, min(start + 1000, batches))
        block.append([stamped(bytes(one), index=n + 1, offset=2 * n) for n in chunk])
    block.sync()
    again = reopened(files)
    assert (again.end_offset, again.last_index, again.loss) == (2 * batches, batches, None)


# --- Damage ---


def test_damage_above_everything_committed_is_cut_and_kept_as_torn(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 10)
    position = block.end_position
    block.append([following(block, [b"torn" * 100])])
    files.flip(LOG, position + 200, 0)
    damaged = files.contents(LOG)[position:]
    again = reopened(files)
    assert (again.loss, again.last_index, again.end_position) == (None, 10, position)
    (kept,) = [name for name in files.names("/data/Block_1") if name.endswith(".torn")]
    assert files.contents(f"/data/Block_1/{kept}") == damaged
    again.append([following(again, [b"next"])])
    again.commit_all()
    assert values_of(again) == [*values, b"next"]


def test_damage_below_the_checkpoint_s_index_is_loss_kept_as_bad(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 10)
    position = block.position_of(6)
    block.write_checkpoint(10, b"")
    files.flip(LOG, position + 150, 0)
    again = reopened(files, verify=True)
    assert again.loss is not None
    assert (again.loss.path, again.loss.position) == (LOG, position)
    assert (again.last_index, again.end_position) == (5, position)
    assert [name[-4:] for name in files.names("/data/Block_1") if "-at-" in name] == [".bad"]
    again.commit_all()
    assert values_of(again) == values[:15]


def test_damage_at_or_below_a_commit_index_named_behind_it_is_loss(files: MemoryFiles, block: Block) -> None:
    fill(block, 5)
    position = block.end_position
    block.append([following(block, [b"six"])])
    block.append([following(block, [b"seven"], commit_index=6)])
    files.flip(LOG, position + 20, 0)
    again = reopened(files)
    assert again.loss is not None
    assert again.commit_index == 6


def test_a_message_cannot_pass_for_a_witness_of_what_was_committed(files: MemoryFiles, block: Block) -> None:
    fill(block, 5)
    position = block.end_position
    evil = b"".join(
        bytes(stamped(built([b"e"]), index=index, offset=0, commit_index=commit).buffer)
        for index, commit in ((7, 2**62), (2**60, 2**60 - 1), (7, 6), (3, 2))
    )
    block.append([following(block, [evil])])
    for bit in (position + 20, position + 300):  # in the header, and in the body
        files.flip(LOG, bit, 0)
        again = reopened(_copy_of(files))
        assert again.commit_index <= 5
        assert again.checkpoint.missing_through < 20
        files.flip(LOG, bit, 0)


def _copy_of(files: MemoryFiles) -> MemoryFiles:
    class Everything:
        def random(self) -> float:
            return 0.3

        def randint(self, a: int, b: int) -> int:
            return b

    return files.crash(Everything())


def test_a_batch_names_only_what_is_before_it_as_committed(block: Block) -> None:
    with pytest.raises(CorruptBatch, match="commit_index"):
        block.append([following(block, [b"x"], commit_index=1)])


def test_damage_just_above_every_named_commit_index_is_torn(files: MemoryFiles, block: Block) -> None:
    fill(block, 5)
    position = block.end_position
    block.append([following(block, [b"six"])])
    block.append([following(block, [b"seven"], commit_index=5)])
    files.flip(LOG, position + 20, 0)
    again = reopened(files)
    assert (again.loss, again.last_index) == (None, 5)


def test_a_log_shorter_than_what_was_committed_is_loss(files: MemoryFiles, block: Block) -> None:
    fill(block, 10)
    block.write_checkpoint(10, b"")
    files.open(LOG).truncate(block.position_of(8))
    again = reopened(files)
    assert again.loss is not None
    assert (again.last_index, again.commit_index) == (7, 10)
    assert again.committed_position == again.end_position


def test_a_loss_is_remembered_through_restarts_until_the_log_is_mended(files: MemoryFiles, block: Block) -> None:
    fill(block, 5)
    kept = files.contents(LOG)
    block.append([following(block, [b"six"])])
    block.append([following(block, [b"seven"], commit_index=6)])
    whole = files.contents(LOG)
    files.flip(LOG, len(kept) + 20, 0)
    for _ in range(3):
        again = reopened(files)
        assert again.loss is not None, "forgotten"
        with pytest.raises(CorruptBlock):
            again.append([following(again, [b"six"])])
    again.acknowledge_loss()
    mended = Batch.parse(whole, len(kept))
    again.append([mended])
    again.sync()
    assert reopened(files).loss is None
    assert files.contents(LOG) == whole[: len(kept) + mended.length]


def test_with_a_damaged_checkpoint_any_damage_is_loss_and_none_is_none(files: MemoryFiles, block: Block) -> None:
    fill(block, 10)
    block.write_checkpoint(3, b"state")
    files.flip("/data/Block_1/checkpoint", 30, 1)
    again = reopened(files)
    assert (again.loss, again.last_index, again.checkpoint.index) == (None, 10, 0)
    files.flip("/data/Block_1/checkpoint", 30, 1)
    files.flip(LOG, block.position_of(10) + 20, 1)
    assert reopened(files).loss is not None
    assert reopened(files).loss is not None, "forgotten"


def test_a_block_without_checkpoint_and_readable_first_batch_is_not_opened(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    files.remove("/data/Block_1/checkpoint")
    files.flip(LOG, 0, 0)
    with pytest.raises(CorruptBlock, match="first batch"):
        reopened(files)


def test_recovery_stops_at_a_batch_that_does_not_follow_on(files: MemoryFiles, block: Block) -> None:
    fill(block, 5)
    position = block.end_position
    block.append([following(block, [b"six"])])
    stray = stamped(built([b"stray"]), index=9, offset=99)
    files.open(LOG).write(block.end_position, [stray.buffer])
    again = reopened(files)
    assert (again.last_index, again.loss) == (6, None)
    assert again.end_position > position


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_an_index_that_is_missing_or_wrong_is_made_anew(files: MemoryFiles, block: Block, damage: str) -> None:
    values = fill(block, 300)
    block.write_checkpoint(290, b"")
    path = "/data/Block_1/index"
    if damage == "missing":
        files.remove(path)
    elif damage == "short":
        files.open(path).truncate(80)
    else:
        files.flip(path, len(files.contents(path)) - 10, 1)
    again = reopened(files)
    assert again.loss is None
    again.commit_all()
    for offset in (0, 450, 899):
        batch = Batch.parse(again.read(offset, 1))
        assert batch.values() == values[batch.base_offset : batch.end_offset]


def test_an_index_entry_that_rots_later_is_noticed_when_it_is_used(files: MemoryFiles, block: Block) -> None:
    values = fill(block, 300)
    block.write_checkpoint(300, b"")
    for entry in range(1, 20):
        files.flip("/data/Block_1/index", 40 * entry + 16, 5)
    for offset in range(0, 900, 50):
        batch = Batch.parse(block.read(offset, 1))
        assert batch.values() == values[batch.base_offset : batch.end_offset]


def test_set_aside_files_are_bounded_in_number_and_size(files: MemoryFiles) -> None:
    config = Config(index_interval_bytes=1024, set_aside_files_max=3, set_aside_bytes_max=3000, disk_reserve_bytes=0)
    new_block(files, config=config)
    for _ in range(6):
        block = reopened(files, config=config)
        files.open(LOG).write(block.end_position, [b"garbage!" * 50])
    reopened(files, config=config)
    names = [name for name in files.names("/data/Block_1") if name.endswith(".torn")]
    assert [int(name.split("-")[1]) for name in names] == [4, 5, 6]
    files.open(LOG).write(0, [b"garbage!" * 1000])
    reopened(files, config=config)
    names = [name for name in files.names("/data/Block_1") if name.endswith(".torn")]
    assert sum(len(files.contents(f"/data/Block_1/{name}")) for name in names) <= 3000


def test_a_disk_too_full_to_keep_the_damage_still_lets_the_block_open(files: MemoryFiles, block: Block) -> None:
    fill(block, 3)
    files.open(LOG).write(block.end_position, [b"garbage!" * 500])
    files.capacity_bytes = 4096
    again = reopened(files)
    assert (again.loss, again.last_index) == (None, 3)


def test_a_stored_batch_with_any_bit_flipped_is_never_delivered(files: MemoryFiles, block: Block) -> None:
    fill(block, 1, messages=1, size=16)
    for bit in range(block.end_position * 8):
        files.flip(LOG, bit // 8, bit % 8)
        with pytest.raises((CorruptBatch, CorruptBlock)):
            values_of(block)
        files.flip(LOG, bit // 8, bit % 8)
    assert len(values_of(block)) == 1


def test_the_search_behind_damage_ends_even_when_every_message_looks_like_a_batch(files: MemoryFiles) -> None:
    block = new_block(files)
    fill(block, 1)
    hostile = bytearray(112)
    # Headers that are right in themselves and promise the largest body there may be.
    struct.pack_into("<4sBBBBIII", hostile, 0, b"CLYB", 1, 0, 0, 0, 1, 16 << 20, 16 << 20)
    struct.pack_into("<Q", hostile, 40, 1)
    struct.pack_into("<I", hostile, 108, crc32c(bytes(hostile[:108])))
    position = block.end_position
    files.open(LOG).write(position, [b"damaged!", bytes(hostile) * 20_000])
    files.bytes_read = 0
    again = reopened(files)
    # Nobody knows what lies behind: that is loss, not a torn write.
    assert again.loss is not None
    assert files.bytes_read < 40 * 112 * 20_000
