"""The disk that loses its power: after a kill exactly what was not synced is undone. In a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clymq.simulation.chaos.hooks import Control, prepare, undo_unsynced

PROGRAM = """
import os, sys
from pathlib import Path
from clymq.simulation.chaos.hooks import Hooks
from clymq.storage.files import RealFiles

Hooks(Path(sys.argv[1])).install()
file = RealFiles().open(sys.argv[2], create=True)
{steps}
os._exit(9)
"""


def after_power_cut(folder: Path, steps: str, *, keep: float = 0.0) -> bytes:
    path = folder / "batches"
    program = PROGRAM.replace("{steps}", steps)
    done = subprocess.run([sys.executable, "-c", program, str(folder / "hooks"), str(path)], timeout=60)
    assert done.returncode == 9
    undo_unsynced(folder / "hooks", keep=keep)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ("file.write(0, [b'abc']); file.sync()", b"abc"),
        ("file.write(0, [b'abc'])", b""),
        ("file.write(0, [b'abc']); file.sync(); file.write(3, [b'de', b'f']); file.write(6, [b'g'])", b"abc"),
        ("file.write(0, [b'abcdef']); file.sync(); file.write(1, [b'XY'])", b"abcdef"),
        ("file.write(0, [b'abcdef']); file.sync(); file.truncate(2)", b"abcdef"),
        ("file.write(0, [b'abcdef']); file.sync(); file.truncate(2); file.write(2, [b'Z'])", b"abcdef"),
        ("file.write(0, [b'abcdef']); file.truncate(2); file.write(2, [b'Z']); file.sync()", b"abZ"),
        ("file.write(0, [b'ab']); file.sync(); file.write(1, [b'XYZ'])", b"ab"),
    ],
)
def test_a_power_cut_takes_what_was_not_synced(tmp_path: Path, steps: str, left: bytes) -> None:
    assert after_power_cut(tmp_path, steps) == left


def test_a_power_cut_may_tear_the_first_write_that_was_not_synced(tmp_path: Path) -> None:
    steps = "file.write(0, [b'ab']); file.sync(); file.write(2, [b'cdef']); file.write(6, [b'gh'])"
    assert after_power_cut(tmp_path, steps, keep=0.5) == b"abcd"


def test_a_full_disk_refuses_messages_and_takes_votes(tmp_path: Path) -> None:
    prepare(tmp_path / "hooks", Control(disk_full=True))
    steps = """
from clymq.errors import DiskFull
try:
    file.write(0, [b'abc'])
except DiskFull:
    vote = RealFiles().open(sys.argv[2] + ".vote", create=True)
    vote.write(0, [b'vote']); vote.sync()
    assert RealFiles().free_bytes(os.path.dirname(sys.argv[2])) == 0
"""
    assert after_power_cut(tmp_path, steps) == b""
    assert (tmp_path / "batches.vote").read_bytes() == b"vote"


def test_a_slow_disk_has_synced_only_what_was_written_before_it_began(tmp_path: Path) -> None:
    prepare(tmp_path / "hooks", Control(sync_seconds=0.3))
    steps = """
import time
slept = []
def sleep(seconds):
    slept.append(seconds)
    file.write(3, [b'def'])
time.sleep = sleep
file.write(0, [b'abc'])
file.sync()
assert slept == [0.3]
"""
    assert after_power_cut(tmp_path, steps) == b"abc"
