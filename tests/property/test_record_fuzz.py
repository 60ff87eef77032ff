"""Hostile batches by the hundred thousand, in a process of its own with little memory: no crash, no hang, no bomb.

`test_fuzz.py` tries them as well; what Arrow allocates, which Python knows nothing of, is looked at here.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = r"""
import faulthandler, resource, sys
import pyarrow as pa
from clymq.simulation.fuzz.batches import BATCH_BYTES_MAX, Batches
from clymq.simulation.fuzz.running import made

inputs, seed = int(sys.argv[1]), int(sys.argv[2])
faulthandler.dump_traceback_later(1800, exit=True)
target = Batches()
target.open()
pool = pa.default_memory_pool()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)
outcomes = {"opened": 0, "refused": 0, "applied": 0}
for number in range(inputs):
    outcomes[target.run(made(target, seed, number))] += 1
peak = pool.max_memory()
# What is unpacked, and for lz4 what its stream reads ahead: each within the limit.
assert peak <= 2 * BATCH_BYTES_MAX, f"arrow allocated {peak}"
print(outcomes["opened"], outcomes["refused"])
"""


def fuzz(inputs: int, seed: int) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(inputs), str(seed)], capture_output=True, text=True, timeout=1900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    opened, refused = map(int, done.stdout.split())
    return opened, refused


def test_mutated_batches_are_read_or_refused(size: str) -> None:
    inputs = {"quick": 10_000, "normal": 100_000, "long": 2_000_000}[size]
    opened, refused = fuzz(inputs, seed=1)
    # The fuzzer must reach both sides: a wall that refuses everything proves nothing.
    assert refused > inputs / 2
    assert opened > inputs / 100


@pytest.mark.long
def test_mutated_batches_of_many_other_seeds_are_read_or_refused() -> None:
    for seed in range(2, 12):
        fuzz(200_000, seed)
