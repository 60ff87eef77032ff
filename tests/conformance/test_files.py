"""One suite for the operating system's files and for their twin in memory."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clymq.clock import ManualClock
from clymq.config import MiB
from clymq.errors import DiskFailed, FolderLocked
from clymq.record.mapped import place_in_file
from clymq.storage.files import Files, RealFiles
from clymq.storage.memory import MemoryFiles
from clymq.storage.replace import make_folders, read_whole, remove_folder, replace


@pytest.fixture(params=["real", "memory"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    made: Files = RealFiles() if request.param == "real" else MemoryFiles()
    yield made
    made.close()


@pytest.fixture
def root(files: Files, tmp_path: Path) -> str:
    if isinstance(files, RealFiles):
        return str(tmp_path)
    files.make_folder("/root")
    return "/root"


def test_bytes_are_read_where_they_were_written(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.write(0, [b"hello ", bytearray(b"wor"), memoryview(b"ld")])
    file.write(6, [b"W"])
    assert (file.size(), file.read(0, 100), file.read(6, 3), file.read(50, 5)) == (11, b"hello World", b"Wor", b"")


def test_a_write_behind_the_end_leaves_zeros_between(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.write(4, [b"x"])
    assert file.read(0, 10) == b"\0\0\0\0x"


def test_more_buffers_than_one_system_call_takes_are_all_written(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.write(3, [b"%04d" % n for n in range(3000)])
    assert file.read(3, 12000) == b"".join(b"%04d" % n for n in range(3000))


def test_truncate_cuts_and_the_next_write_goes_on_there(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(2)
    file.write(2, [b"X"])
    file.sync()
    assert file.read(0, 10) == b"abX"


def test_a_view_shows_the_bytes_and_outlives_file_and_growth(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    block = os.urandom(1 << 20)
    file.write(0, [block] * 9)
    view = file.view(5 << 20, (5 << 20) + 100)
    file.write(9 << 20, [block] * 9)
    later = file.view((17 << 20) + 7, (17 << 20) + 50)
    small = file.view(0, 10)
    file.close()
    assert (bytes(view), bytes(later), bytes(small)) == (block[:100], block[7:50], block[:10])


def test_a_missing_file_is_an_error_that_names_it(files: Files, root: str) -> None:
    with pytest.raises(DiskFailed, match="none"):
        files.open(f"{root}/none")
    with pytest.raises(DiskFailed, match="none"):
        files.remove(f"{root}/none")
    with pytest.raises(DiskFailed, match="none"):
        files.rename(f"{root}/none", f"{root}/b")
    with pytest.raises(DiskFailed, match="none"):
        files.sync_folder(f"{root}/none")
    assert not files.exists(f"{root}/none")
    assert files.names(f"{root}/none") == []


def test_names_are_listed_in_order_and_follow_renames_and_removals(files: Files, root: str) -> None:
    for name in ("c", "a", "b"):
        files.open(f"{root}/{name}", create=True).close()
    files.make_folder(f"{root}/d")
    files.make_folder(f"{root}/d")
    files.rename(f"{root}/a", f"{root}/z")
    files.rename(f"{root}/d", f"{root}/e")
    files.remove(f"{root}/b")
    assert files.names(root) == ["c", "e", "z"]


def test_a_rename_replaces_and_an_open_file_stays_itself(files: Files, root: str) -> None:
    old = files.open(f"{root}/a", create=True)
    old.write(0, [b"old"])
    new = files.open(f"{root}/b", create=True)
    new.write(0, [b"new"])
    files.rename(f"{root}/b", f"{root}/a")
    assert old.read(0, 9) == b"old"
    assert read_whole(files, f"{root}/a") == b"new"


def test_a_folder_with_something_in_it_is_not_removed(files: Files, root: str) -> None:
    files.make_folder(f"{root}/d")
    files.open(f"{root}/d/a", create=True).close()
    with pytest.raises(DiskFailed):
        files.remove(f"{root}/d")
    files.make_folder(f"{root}/d/e")
    remove_folder(files, f"{root}/d")
    assert files.names(root) == []


def test_replace_gives_a_file_new_contents(files: Files, root: str) -> None:
    for contents in (b"one", b"three", b""):
        replace(files, f"{root}/a", [contents])
        assert read_whole(files, f"{root}/a") == contents
    assert files.names(root) == ["a"]
    assert read_whole(files, f"{root}/b") is None


def test_folders_are_made_all_the_way_down(files: Files, root: str) -> None:
    make_folders(files, f"{root}/x/y/z")
    make_folders(files, f"{root}/x/y/z")
    assert files.names(f"{root}/x/y") == ["z"]
    make_folders(files, f"{root}/x/y/u/v", durable=f"{root}/x/y")
    assert files.names(f"{root}/x/y/u") == ["v"]


def test_a_lock_is_held_by_one_until_released(files: Files, root: str) -> None:
    lock = files.lock(f"{root}/lock")
    with pytest.raises(FolderLocked, match=root):
        files.lock(f"{root}/lock")
    lock.release()
    files.lock(f"{root}/lock").release()


def test_a_folder_cannot_be_made_where_a_file_is_nor_a_closed_file_used(files: Files, root: str) -> None:
    file = files.open(f"{root}/a", create=True)
    with pytest.raises(DiskFailed):
        files.make_folder(f"{root}/a")
    file.close()
    with pytest.raises(DiskFailed):
        file.sync()


def test_folders_that_were_there_are_durable_too(files: Files, root: str) -> None:
    files.make_folder(f"{root}/x")
    files.make_folder(f"{root}/x/y")
    make_folders(files, f"{root}/x/y/z")
    if isinstance(files, MemoryFiles):
        assert all(files.crash(random.Random(seed)).exists(f"{root}/x/y/z") for seed in range(30))


def test_free_space_is_a_number(files: Files, root: str) -> None:
    assert files.free_bytes(root) > 0
    with pytest.raises(DiskFailed):
        files.free_bytes(f"{root}/none")


def test_a_sync_off_the_loop_ends_with_a_call_on_it(files: Files, root: str) -> None:
    async def run() -> list[object]:
        file = files.open(f"{root}/a", create=True)
        file.write(0, [b"x"])
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        files.sync_soon(file, done.set_result)
        if isinstance(files, MemoryFiles):
            files.run_syncs()
        return [await asyncio.wait_for(done, 10)]

    assert asyncio.run(run()) == [None]


def test_a_sync_off_the_loop_reports_its_error(files: Files, root: str) -> None:
    async def run() -> object:
        file = files.open(f"{root}/a", create=True)
        if isinstance(files, MemoryFiles):
            files.fail("sync")
        else:
            file.close()
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        files.sync_soon(file, done.set_result)
        if isinstance(files, MemoryFiles):
            files.run_syncs()
        return await asyncio.wait_for(done, 10)

    assert isinstance(asyncio.run(run()), DiskFailed)


def test_real_files_and_folders_are_for_their_owner_only(tmp_path: Path) -> None:
    files = RealFiles()
    make_folders(files, f"{tmp_path}/d/e")
    files.open(f"{tmp_path}/d/e/f", create=True).close()
    files.lock(f"{tmp_path}/d/lock").release()
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d/e").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "d/e/f").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "d/lock").stat().st_mode) == 0o600


def test_the_room_of_a_large_file_is_given_back_by_nobody_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte takes the kernel a third of a second, from whoever lets go of it last: not the event loop."""
    closed_by = {}
    close = os.close

    def note(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        close(descriptor)
        if path.parent == tmp_path:  # a cluster that tests share closes files of its own meanwhile
            closed_by[path.name] = threading.current_thread()

    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x")
    with large.open("wb") as file:
        file.truncate(64 * MiB)
    files = RealFiles()
    monkeypatch.setattr(os, "close", note)
    for path in (small, large):
        files.remove(str(path))
        assert not files.exists(str(path))
    files.close()
    assert list(closed_by) == ["large (deleted)"]
    assert closed_by["large (deleted)"] is not threading.current_thread()
    with pytest.raises(DiskFailed, match="large"):
        files.remove(str(large))


def test_the_room_of_a_large_file_is_given_back_in_small_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who syncs another file, or removes the folder that it was in, waits for one bit and not for a gigabyte.

    Nor for many bits at once, which is why the disk hears of each: it may discard what it is told of before it does
    anything else.
    """
    done: list[str] = []
    cut: list[int] = []
    truncate, sync = os.ftruncate, os.fsync

    def is_ours(descriptor: int) -> bool:  # a cluster that tests share has files of its own
        return Path(f"/proc/self/fd/{descriptor}").readlink().parent == tmp_path

    def note(descriptor: int, length: int) -> None:
        before = os.fstat(descriptor).st_size
        truncate(descriptor, length)
        if is_ours(descriptor):
            done.append("cut")
            cut.append(before - length)

    def note_sync(descriptor: int) -> None:
        sync(descriptor)
        if is_ours(descriptor):
            done.append("synced")

    (tmp_path / "large").write_bytes(bytes(100 * MiB))
    monkeypatch.setattr(os, "ftruncate", note)
    monkeypatch.setattr(os, "fsync", note_sync)
    files = RealFiles()
    files.remove(f"{tmp_path}/large")
    files.close()
    assert max(cut) <= 4 * MiB
    assert sum(cut) >= 96 * MiB
    assert done == ["cut", "synced"] * len(cut)


def test_a_large_file_that_somebody_still_looks_at_stays_as_it_is_for_them(tmp_path: Path) -> None:
    whole = random.Random(5).randbytes(32 * MiB)
    (tmp_path / "large").write_bytes(whole)
    files = RealFiles()
    file = files.open(f"{tmp_path}/large")
    view = file.view(0, len(whole))
    file.close()
    files.remove(f"{tmp_path}/large")
    files.close()
    assert view == whole


def test_on_a_clock_a_sync_takes_as_long_as_it_is_told() -> None:
    clock, ended = ManualClock(), []
    files = MemoryFiles(clock=clock)
    files.sync_delay_ms = 500
    files.sync_soon(files.open("/a", create=True), lambda error: ended.append(clock.monotonic_ms()))
    clock.advance(499)
    assert ended == []
    clock.advance(1)
    assert ended == [500]


def test_a_view_of_a_mapped_file_says_where_it_lies_in_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(8 * MiB))
    file = RealFiles().open(str(path))
    place = place_in_file(file.view(0, 8 * MiB)[1000:][5:70])
    assert place is not None
    assert place.position == 1005
    assert place_in_file(file.view(4096, 5 * MiB)) == (place.memory, 4096)
    assert place_in_file(b"bytes") is None
    assert place_in_file(memoryview(bytearray(10))[2:]) is None
    file.close()
    assert place.memory.send_to(0, 0, 10) is None


def test_a_file_that_cannot_be_closed_well_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has let go of its number, and the next file gets it: nothing of that one may be sent as ours."""
    path = tmp_path / "f"
    path.write_bytes(bytes(8 * MiB))
    file = RealFiles().open(str(path))
    place = place_in_file(file.view(0, 8 * MiB))
    assert place is not None
    close = os.close

    def fail(descriptor: int) -> None:
        is_ours = Path(f"/proc/self/fd/{descriptor}").readlink() == path
        close(descriptor)
        if not is_ours:
            return  # a cluster that tests share has files of its own
        raise OSError(errno.EIO, "not all of it was written")

    monkeypatch.setattr(os, "close", fail)
    with pytest.raises(OSError, match="not all"):
        file.close()
    monkeypatch.undo()
    assert place.memory.send_to(0, 0, 10) is None
    file.close()
