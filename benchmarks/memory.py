"""Memory as a machine has it that has been up for a while: all of it has been used for files before.

A virtual machine may get memory from its host only when it first touches it, and give back what has been free for some
seconds. To write to a page of this kind costs ten times what it costs otherwise, and whoever runs first, or writes
most, pays for it: figures then say who was given which pages. So before each turn whatever is free goes to the page
cache of a file without content. The kernel takes pages back from there when somebody wants them, as it does on every
machine that has read and written for an hour, and it does so for each in turn.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final, Self

from benchmarks.processes import DATA

# So much stays free: about what the kernel keeps free anyway before it takes pages back.
FREE_BYTES: Final = 1 << 29
# The kernel reads no more than about so much ahead for one call.
STEP_BYTES: Final = 1 << 20
FILE_BYTES: Final = 1 << 42
# A file system that keeps no pages of what is not there would never fill it.
ROUNDS_MAX: Final = 3


class UsedMemory:
    """Keeps what is free small while it is open."""

    def __init__(self) -> None:
        self._files = contextlib.ExitStack()
        self._descriptor = -1
        self._at = 0

    def __enter__(self) -> Self:
        self._descriptor = self._files.enter_context(tempfile.TemporaryFile(dir=DATA)).fileno()
        os.truncate(self._descriptor, FILE_BYTES)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def fill(self) -> None:
        """Use what is free; soon done if little is."""
        left = ROUNDS_MAX * memory_bytes("MemTotal")
        while left > 0 and memory_bytes("MemFree") > FREE_BYTES:
            os.posix_fadvise(self._descriptor, self._at, STEP_BYTES, os.POSIX_FADV_WILLNEED)
            self._at = (self._at + STEP_BYTES) % FILE_BYTES
            left -= STEP_BYTES


def memory_bytes(name: str) -> int:
    """Return one line of what the kernel says of memory: `MemTotal`, `MemFree`, `MemAvailable`."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/meminfo names no {name}")
