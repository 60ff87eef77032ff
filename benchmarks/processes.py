"""Processes for benchmarks: started on free ports of the loopback interface, looked at, and ended, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# Taken out: servers would take it for a setting that they do not know.
DATA = os.environ.pop("CLYMQ_BENCH_DATA", None)
# Longer than the second after which queues give back the room of what was deleted, where they have to be told.
CALM_LOOKS = 5
LOOK_SECONDS = 0.5
CALM_BYTES = 1024 * 1024


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """Make a folder for data, on the disk that `CLYMQ_BENCH_DATA` names or on that of the temporary folder."""
    path = tempfile.mkdtemp(prefix="clymq-bench-", dir=DATA)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Server:
    """A process that said where it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._address = ""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def address(self) -> str:
        """Where it listens: the last word of its first line; the first look waits for that."""
        if not self._address:
            assert self._process.stdout is not None
            self._address = self._process.stdout.readline().split()[-1]
        return self._address


@contextlib.contextmanager
def python(arguments: Sequence[str], log: str = "warning") -> Iterator[Server]:
    """Run Python with these arguments; the process is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | {"CLYMQ_LOG": log},
        stderr=subprocess.DEVNULL if log == "info" else None,
    )  # fmt: skip
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_memory_bytes(pid: int) -> int:
    """Return the memory that is a process's own: not what it maps of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status names no RssAnon")


def settle(processes: Sequence[int], *, share_max: float, seconds_max: float) -> None:
    """Wait until processes have nothing to do: until all together use less than a share of a core for a second."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        before = sum(map(cpu_seconds, processes))
        time.sleep(1)
        if sum(map(cpu_seconds, processes)) - before < share_max:
            return
    raise TimeoutError


def calm_disk(*, seconds_max: float, statistics: Path = Path("/proc/diskstats")) -> bool:
    """Wait until the disks have had next to nothing to write or to discard for some looks; False: they still have.

    A file system may tell the disk of gigabytes that were freed when nobody thinks of them any more, and whoever syncs
    a file then waits.
    """
    os.sync()
    deadline, calm, before = time.monotonic() + seconds_max, 0, _disk_bytes(statistics)
    while calm < CALM_LOOKS:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
        now = _disk_bytes(statistics)
        calm = calm + 1 if now - before < CALM_BYTES else 0
        before = now
    return True


def _disk_bytes(statistics: Path) -> int:
    """Bytes that all disks have written and discarded; a kernel that counts no discards names none."""
    rows = [line.split() for line in statistics.read_text().splitlines()]
    return sum(512 * (int(row[9]) + (int(row[16]) if len(row) > 16 else 0)) for row in rows)


def shares_of_a_core(processes: Sequence[int], seconds: float) -> list[float]:
    """Return how much of a core each process uses for a while."""
    began, before = time.monotonic(), [cpu_seconds(pid) for pid in processes]
    time.sleep(seconds)
    passed = time.monotonic() - began
    return [(cpu_seconds(pid) - spent) / passed for pid, spent in zip(processes, before, strict=True)]
