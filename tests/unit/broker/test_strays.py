"""What the tree does not name is set aside at the start, and never looked into."""

from __future__ import annotations

from clymq.broker.strays import forgotten_blocks, remove_orphan, set_aside_strays
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.storage.folder import DataFolder
from clymq.storage.memory import MemoryFiles

MINE, OTHER = "a" * 32, "b" * 32


def disk() -> tuple[MemoryFiles, DataFolder]:
    files = MemoryFiles(clock=ManualClock())
    folder = DataFolder.open(files, "/data", Config(disk_reserve_bytes=0))
    folder.identity(lambda: "disk")
    return files, folder


def block(files: MemoryFiles, partition: str, number: int) -> None:
    files.make_folder(f"{partition}/Block_{number}")
    files.open(f"{partition}/Block_{number}/batches", create=True).close()


def test_a_partition_that_is_not_named_is_renamed_and_one_that_is_stays() -> None:
    files, folder = disk()
    mine = folder.partition("北京", "1", "p", MINE)
    old = folder.partition("北京", "1", "p", OTHER)
    block(files, old, 1)
    orphans = set_aside_strays(files, "/data", {MINE})
    assert orphans == [f"{old}.orphan"]
    assert files.exists(f"{old}.orphan/Block_1/batches")
    assert not files.exists(old)
    assert files.exists(mine)
    assert set_aside_strays(files, "/data", {MINE}) == orphans  # those of before are found again


def test_one_that_comes_back_and_goes_again_is_set_aside_beside_the_first() -> None:
    files, folder = disk()
    first = folder.partition("t", "1", "p", OTHER)
    set_aside_strays(files, "/data", ())
    folder.partition("t", "1", "p", OTHER)
    assert set(set_aside_strays(files, "/data", ())) == {f"{first}.orphan", f"{first}.2.orphan"}


def test_what_belongs_to_no_topic_is_left_alone() -> None:
    files, folder = disk()
    files.make_folder("/data/zkserver")
    before = files.names("/data")
    assert set_aside_strays(files, "/data", ()) == []
    assert files.names("/data") == before
    del folder


def test_an_orphan_is_deleted_and_its_topic_with_it_if_nothing_else_is_there() -> None:
    files, folder = disk()
    mine, old = folder.partition("t", "1", "p", MINE), folder.partition("t", "1", "q", OTHER)
    gone = folder.partition("gone", "2", "p", OTHER)
    block(files, old, 1)
    for path in set_aside_strays(files, "/data", {MINE}):
        remove_orphan(files, path)
    assert files.exists(mine)
    assert not files.exists(f"{old}.orphan")
    assert not files.exists(gone.rpartition("/")[0])


def test_blocks_that_are_not_named_are_found_by_their_numbers() -> None:
    files, folder = disk()
    path = folder.partition("t", "1", "p", MINE)
    for number in (1, 2, 10):
        block(files, path, number)
    files.make_folder(f"{path}/Block_x")
    assert forgotten_blocks(files, path, {2}) == [1, 10]
