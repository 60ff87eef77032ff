"""Hostile batches by the hundred thousand, in a process of its own with little memory: no crash, no hang, no bomb."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = r"""
import faulthandler, random, resource, struct, sys
import pyarrow as pa
from crc32c import crc32c
from clymq.errors import CorruptBatch
from clymq.record import Batch, BatchBuilder, control_batch

inputs, seed = int(sys.argv[1]), int(sys.argv[2])
LIMIT = 1 << 20
faulthandler.dump_traceback_later(600, exit=True)
chance = random.Random(seed)

def seeds():
    for codec in ("none", "lz4", "zstd"):
        yield BatchBuilder(codec).add(b"v").build(producer="p", cmdindex=1)
        builder = BatchBuilder(codec)
        for n in range(40):
            builder.add(chance.randbytes(n), key=chance.randbytes(n % 3) if n % 2 else None,
                        headers={"h%d" % n: b"x" * n, "n": None} if n % 3 == 0 else None, timestamp=n * 7)
        yield builder.build(producer="p", cmdindex=1)
        yield BatchBuilder(codec).add_values([b"z" * 300] * 300).build(producer="p", cmdindex=1)
    yield control_batch(b"\x80" * 50, seal=True)

GOOD = list(seeds())
EDGES = [0, 1, 7, 8, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]

def mutate(data):
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        kind = chance.random()
        # Most of what can go wrong is near the front: the header and Arrow's metadata.
        at = chance.randrange(len(data)) if chance.random() < 0.4 else min(len(data) - 1, chance.randrange(500))
        if kind < 0.4:
            data[at] ^= 1 << chance.randrange(8)
        elif kind < 0.6:
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind < 0.85 and len(data) >= 4:
            at = min(at & ~3, len(data) - 4)
            struct.pack_into("<I", data, at, chance.choice(EDGES))
        elif kind < 0.9:
            del data[at:]
            if not data:
                data = bytearray(1)
        elif kind < 0.95:
            data += chance.randbytes(chance.randrange(64))
        else:
            other = chance.choice(GOOD)
            data[at:] = other[at:]
            data = data or bytearray(1)
    return data

def mend(data):
    if len(data) < 112:
        return data
    length = struct.unpack_from("<I", data, 12)[0]
    end = 112 + (length + 7) // 8 * 8
    struct.pack_into("<I", data, 104, crc32c(bytes(data[112:end]), crc32c(bytes(data[:64]))))
    struct.pack_into("<I", data, 108, crc32c(bytes(data[:108])))
    return data

pool = pa.default_memory_pool()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)
opened = refused = 0
for number in range(inputs):
    if number % 50 == 49:
        data = bytearray(chance.randbytes(chance.randrange(2000)))
    else:
        data = mutate(chance.choice(GOOD))
    if number % 2:
        data = mend(data)
    try:
        batch = Batch.parse(bytes(data), batch_bytes_max=LIMIT)
        batch.check()
        if batch.count:
            records = list(batch)
            assert len(records) == batch.count
            opened += 1
    except CorruptBatch as error:
        assert error.field
        refused += 1
peak = pool.max_memory()
# What is unpacked, and for lz4 what its stream reads ahead: each within the limit.
assert peak <= 2 * LIMIT, f"arrow allocated {peak}"
print(inputs, opened, refused, peak)
"""


def fuzz(inputs: int, seed: int) -> tuple[int, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(inputs), str(seed)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, opened, refused, peak = map(int, done.stdout.split())
    return opened, refused, peak


def test_mutated_batches_are_read_or_refused(size: str) -> None:
    inputs = {"quick": 20_000, "normal": 200_000, "long": 5_000_000}[size]
    opened, refused, _ = fuzz(inputs, seed=1)
    # The fuzzer must reach both sides: a wall that refuses everything proves nothing.
    assert refused > inputs / 2
    assert opened > inputs / 100


@pytest.mark.long
def test_mutated_batches_of_many_other_seeds_are_read_or_refused() -> None:
    for seed in range(2, 12):
        fuzz(200_000, seed)
