"""A real process, killed at any instruction: what it said is on the disk is there, and the log goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

from clymq.storage.files import RealFiles
from factory import reopened_log

WRITER = r"""
import sys
sys.path.insert(0, sys.argv[2])
from clymq.storage.files import RealFiles
from factory import control, following, new_log, reopened_log
files, folder = RealFiles(), sys.argv[1]
log = reopened_log(files, folder) if files.names(folder) else new_log(files, folder)
if log.active.sealed:
    log.roll()
while True:
    block = log.active
    log.append([following(block, [b"%d" % (block.end_offset + n) + b"." * 500 for n in range(20)]) ])
    block.sync()
    block.commit_all()
    print(log.end_offset, flush=True)
    if block.last_index % 10 == 0:
        block.write_checkpoint(block.last_index, b"state")
    if block.last_index >= 40:
        log.roll(control(block, seal=True))
    if len(log.blocks) > 4:
        log.drop([min(log.blocks)])
"""


def write_until_killed(folder: Path, after_seconds: float) -> int:
    """Run the writer, kill it after a while, and return the last offset that it had promised."""
    command = [sys.executable, "-c", WRITER, str(folder), str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        first = writer.stdout.readline()
        killer = threading.Timer(after_seconds, writer.kill)
        killer.start()
        promised = [first, *writer.stdout.readlines()]
        assert writer.stderr.read() == ""
        killer.cancel()
    # The last line may have been cut by the kill.
    return int([line for line in promised if line.endswith("\n")][-1])


def test_a_writer_killed_at_any_moment_keeps_its_promises(tmp_path: Path, size: str) -> None:
    chance = random.Random(1)
    for _ in range({"quick": 3, "normal": 15, "long": 300}[size]):
        promised = write_until_killed(tmp_path / "p", chance.uniform(0.0, 0.3))
        log = reopened_log(RealFiles(), str(tmp_path / "p"))
        assert log.losses == []
        assert log.end_offset >= promised
        for block in log.blocks.values():
            block.commit_all()
        values = [value for batch in log.batches(log.start_offset) for value in batch.values()]
        assert [int(value.split(b".")[0]) for value in values] == list(range(log.start_offset, log.end_offset))
        log.close()
