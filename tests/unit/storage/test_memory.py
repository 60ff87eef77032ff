"""The twin loses what a power cut may lose, and nothing that was synced."""

from __future__ import annotations

import random

import pytest

from clymq.errors import DiskFailed, DiskFull
from clymq.storage.memory import MemoryFiles


def crashes(files: MemoryFiles, count: int = 200) -> list[MemoryFiles]:
    return [files.crash(random.Random(seed)) for seed in range(count)]


def prepared() -> tuple[MemoryFiles, object]:
    files = MemoryFiles()
    file = files.open("/a", create=True)
    files.sync_folder("/")
    return files, file


def test_what_was_synced_is_there_after_every_crash() -> None:
    files, file = prepared()
    file.write(0, [b"A" * 2000])
    file.sync()
    file.write(2000, [b"B" * 2000])
    for after in crashes(files):
        assert after.contents("/a")[:2000] == b"A" * 2000


def test_what_was_not_synced_may_be_there_whole_in_part_or_not_at_all() -> None:
    files, file = prepared()
    file.write(0, [b"A" * 2048])
    seen = {after.contents("/a") for after in crashes(files)}
    assert {b"", b"A" * 2048} < seen
    assert any(b"A" * 512 + bytes(512) in contents for contents in seen)


def test_a_truncate_that_was_not_synced_may_not_have_happened() -> None:
    files, file = prepared()
    file.write(0, [b"A" * 1024])
    file.sync()
    file.truncate(0)
    file.write(0, [b"B" * 512])
    seen = {after.contents("/a") for after in crashes(files)}
    assert {b"A" * 1024, b"B" * 512, b"B" * 512 + b"A" * 512} & seen == seen & {
        b"A" * 1024,
        b"B" * 512,
        b"B" * 512 + b"A" * 512,
    }
    assert b"A" * 1024 in seen
    assert b"B" * 512 in seen


def test_a_name_is_lost_unless_its_folder_was_synced() -> None:
    files = MemoryFiles()
    file = files.open("/new", create=True)
    file.write(0, [b"x"])
    file.sync()
    assert {after.exists("/new") for after in crashes(files)} == {True, False}
    files.sync_folder("/")
    assert {after.exists("/new") for after in crashes(files)} == {True}


def test_a_rename_happens_wholly_or_not() -> None:
    files, file = prepared()
    file.write(0, [b"old"])
    file.sync()
    new = files.open("/b", create=True)
    new.write(0, [b"new"])
    new.sync()
    files.rename("/b", "/a")
    outcomes = {(tuple(after.names("/")), after.contents("/a")) for after in crashes(files)}
    assert outcomes == {(("a",), b"old"), (("a", "b"), b"old"), (("a",), b"new")}


def test_a_sync_that_began_earlier_covers_only_what_was_written_by_then() -> None:
    files, file = prepared()
    file.write(0, [b"A" * 512])
    files.sync_soon(file, lambda _: None)
    file.write(512, [b"B" * 512])
    files.run_syncs()
    sizes = {len(after.contents("/a")) for after in crashes(files)}
    assert sizes == {512, 1024}


def test_the_disk_is_full_at_its_capacity_and_what_fits_is_left_behind() -> None:
    files = MemoryFiles(capacity_bytes=1000)
    file = files.open("/a", create=True)
    file.write(0, [bytes(600)])
    with pytest.raises(DiskFull):
        file.write(600, [bytes(600)])
    assert (file.size(), files.free_bytes("/")) == (1000, 0)
    file.write(0, [bytes(1000)])


def test_a_failed_write_leaves_half_behind_and_the_next_one_works() -> None:
    files, file = prepared()
    files.fail("write", path="/a")
    with pytest.raises(DiskFailed, match="write"):
        file.write(0, [b"abcd"])
    assert file.read(0, 9) == b"ab"
    file.write(0, [b"abcd"])


def test_the_same_seed_gives_the_same_crash() -> None:
    files, file = prepared()
    file.write(0, [b"A" * 9999])
    assert crashes(files, 5)[3].contents("/a") == files.crash(random.Random(3)).contents("/a")
