"""A data folder belongs to one process, and its folders tell whose they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clymq.config import Config
from clymq.errors import DiskFull, FolderLocked, InvalidName
from clymq.storage.files import RealFiles
from clymq.storage.folder import DataFolder
from clymq.storage.memory import MemoryFiles
from clymq.storage.space import Space


def test_two_processes_cannot_open_one_data_folder(tmp_path: Path) -> None:
    folder = DataFolder.open(RealFiles(), f"{tmp_path}/data", Config())
    program = (
        "import sys\n"
        "from clymq.config import Config\n"
        "from clymq.errors import FolderLocked\n"
        "from clymq.storage.files import RealFiles\n"
        "from clymq.storage.folder import DataFolder\n"
        "try:\n    DataFolder.open(RealFiles(), sys.argv[1], Config())\n"
        "except FolderLocked as error:\n    print(error)\n"
        "else:\n    print('opened')\n"
    )

    def attempt() -> str:
        command = [sys.executable, "-c", program, f"{tmp_path}/data"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert "in use by another process" in attempt()
    folder.close()
    assert attempt() == "opened\n"


def test_the_lock_of_a_killed_process_does_not_outlive_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from clymq.config import Config\n"
        "from clymq.storage.files import RealFiles\n"
        "from clymq.storage.folder import DataFolder\n"
        "folder = DataFolder.open(RealFiles(), sys.argv[1], Config())\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, f"{tmp_path}/data"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderLocked):
            DataFolder.open(RealFiles(), f"{tmp_path}/data", Config())
        holder.kill()
    DataFolder.open(RealFiles(), f"{tmp_path}/data", Config()).close()


def test_folders_are_named_by_name_and_id_with_the_full_name_inside() -> None:
    files = MemoryFiles()
    folder = DataFolder.open(files, "/data", Config())
    path = folder.partition("phone_number", "7", "北京", "ab12")
    assert path == "/data/phone_number~7/%E5%8C%97%E4%BA%AC~ab12"
    assert files.contents(f"{path}/name").decode() == "北京"
    assert files.contents("/data/phone_number~7/name") == b"phone_number"
    assert folder.partition("phone_number", "7", "北京", "ab12") == path


def test_long_names_are_cut_in_the_folder_but_not_inside() -> None:
    files = MemoryFiles()
    path = DataFolder.open(files, "/data", Config()).partition("t", "1", "x" * 200, "u")
    assert path == "/data/t~1/" + "x" * 100 + "~u"
    assert files.contents(f"{path}/name") == b"x" * 200


def test_a_name_that_breaks_the_rule_makes_no_folder() -> None:
    files = MemoryFiles()
    folder = DataFolder.open(files, "/data", Config())
    with pytest.raises(InvalidName):
        folder.partition("../x", "1", "p", "u")
    with pytest.raises(InvalidName):
        folder.partition("t", "1", "a/b", "u")
    assert "p~u" not in files.names("/data/t~1")


def test_space_is_asked_for_again_and_again_not_once_for_all() -> None:
    files = MemoryFiles(capacity_bytes=1 << 30)
    files.make_folder("/data")
    space = Space(files, "/data", reserve_bytes=1 << 20)
    space.claim(1 << 20)
    files.capacity_bytes = 1 << 20
    with pytest.raises(DiskFull):
        for _ in range(100):
            space.claim(1 << 20)
