"""Batches and blocks on one disk, beside plain `os.writev` and `os.pread` of the same bytes."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from crc32c import crc32c

from benchmarks.report import Row, at_least, at_most, beside_raw, seconds
from clymq.config import Config, GiB, KiB, MiB
from clymq.record import Batch, BatchBuilder, producer_id
from clymq.storage.block import Block
from clymq.storage.files import RealFiles
from clymq.storage.handles import Handles

CONFIG = Config(block_bytes_max=64 * GiB)
FILES = RealFiles()
RANGE_BYTES = MiB


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    turns = 3 if quick else 9
    write_bytes = (64 if quick else 384) * MiB
    return [
        *building(turns),
        *appending(turns, write_bytes),
        *reading(turns, write_bytes),
        *where_the_time_goes(turns),
    ]


# --- Batches ---


def building(turns: int) -> list[Row]:
    """Messages in and out of batches, on one core, nothing on disk."""
    values = [os.urandom(100) for _ in range(10_000)]
    many, one = len(values) / 1e6, values[0]
    builder, producer = BatchBuilder(), producer_id("bench")

    def rate(work: Callable[[], object]) -> float:
        return many / seconds(work, 20)

    batch, small = builder.add_values(values).build(producer=producer, cmdindex=1), batch_of(16 * KiB)
    rows = [
        at_least(
            "build from a list of 100 B messages",
            "M messages/s",
            lambda: rate(lambda: builder.add_values(values).build(producer=producer, cmdindex=1)),
            turns=turns,
            target=5,
        ),
        at_least(
            "read to Python bytes", "M messages/s", lambda: rate(Batch.parse(batch).values), turns=turns, target=5
        ),
        at_least(
            "read to Python bytes, checks included",
            "M messages/s",
            lambda: rate(lambda: Batch.parse(batch).values()),
            turns=turns,
            target=5,
        ),
        at_least(
            "read to Arrow, checks included",
            "M messages/s",
            lambda: rate(lambda: Batch.parse(batch).to_arrow()),
            turns=turns,
            target=100,
        ),
        at_least(
            "read to message objects", "M messages/s", lambda: rate(lambda: list(Batch.parse(batch))), turns=turns
        ),
        at_most(
            "build a batch of one message",
            "us",
            lambda: 1e6 * seconds(lambda: builder.add(one).build(producer=producer, cmdindex=1), 2000),
            turns=turns,
            target=40,
        ),
        at_most(
            "check a batch of 16 KiB at the door",
            "us",
            lambda: 1e6 * seconds(lambda: Batch.parse(small).check(), 2000),
            turns=turns,
        ),
    ]
    for codec in ("lz4", "zstd"):
        packed = BatchBuilder(codec).add_values(values).build(producer=producer, cmdindex=1)
        rows.append(
            at_least(
                f"read to Python bytes, {codec}",
                "M messages/s",
                lambda packed=packed: rate(lambda: Batch.parse(packed).values()),  # type: ignore[misc]
                turns=turns,
            )
        )
    return rows


def batch_of(size: int) -> bytes:
    """Return a batch of at most this many bytes, filled with 100 B messages."""
    messages = (size - 400) // 112
    return BatchBuilder().add_values([os.urandom(100) for _ in range(messages)]).build(producer="p", cmdindex=1)


# --- Blocks ---


@contextmanager
def folder() -> Iterator[str]:
    """Give a folder on the disk and remove it again."""
    path = tempfile.mkdtemp(prefix="clymq-bench-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


def new_block(path: str) -> Block:
    """Make an empty block."""
    return Block.create(FILES, f"{path}/Block_1", start_offset=0, config=CONFIG, handles=Handles(FILES, 8))


def batches_of(size: int, number: int) -> list[Batch]:
    """Return batches as a broker receives them: checked, in memory that may be written to."""
    return [Batch.parse(bytearray(batch_of(size))) for _ in range(number)]


def append_all(block: Block, batches: list[Batch], rounds: int) -> None:
    """Append the batches again and again, `rounds` times, stamped as a leader does, all of a round in one call."""
    for _ in range(rounds):
        index, offset = block.last_index, block.end_offset
        for batch in batches:
            index += 1
            batch.stamp(base_offset=offset, term=1, index=index, append_time=index, commit_index=0)
            offset += batch.count
        block.append(batches)


def append_rate(batches: list[Batch], write_bytes: int) -> float:
    """Return MB/s of appends."""
    length = sum(batch.length for batch in batches)
    rounds = write_bytes // length
    with folder() as path:
        block = new_block(path)
        took = seconds(lambda: append_all(block, batches, rounds))
        block.close()
    return rounds * length / took / 1e6


def raw_append_rate(batches: list[Batch], write_bytes: int) -> float:
    """Return MB/s of plain writev."""
    buffers = [batch.buffer for batch in batches]
    length = sum(map(len, buffers))
    rounds = write_bytes // length

    def write() -> None:
        for _ in range(rounds):
            os.writev(file, buffers)

    with folder() as path:
        file = os.open(f"{path}/raw", os.O_CREAT | os.O_WRONLY, 0o600)
        took = seconds(write)
        os.close(file)
    return rounds * length / took / 1e6


def appending(turns: int, write_bytes: int) -> list[Row]:
    """Appends of three shapes."""
    rows = []
    for name, size, number, target in (
        ("append 1 MiB batches", MiB, 1, 0.80),
        ("append 16 KiB batches one by one", 16 * KiB, 1, 0.45),
        ("append 16 KiB batches, sixteen in one writev", 16 * KiB, 16, 0.70),
    ):
        batches = batches_of(size, number)
        rows.append(
            beside_raw(
                name,
                "MB/s",
                lambda batches=batches: append_rate(batches, write_bytes),  # type: ignore[misc]
                lambda batches=batches: raw_append_rate(batches, write_bytes),  # type: ignore[misc]
                turns=turns,
                target=target,
            )
        )
    return rows


def reading(turns: int, write_bytes: int) -> list[Row]:
    """Reads of a whole block in ranges, from the page cache, and its recovery."""
    with folder() as path:
        block = new_block(path)
        append_all(block, batches_of(16 * KiB, 16), write_bytes // (256 * KiB))
        block.sync()
        raw = os.open(f"{path}/Block_1/batches", os.O_RDONLY)
        size = block.end_position

        def raw_rate(*, check: bool) -> float:
            began = time.perf_counter()
            for position in range(0, size, RANGE_BYTES):
                data = os.pread(raw, RANGE_BYTES, position)
                if check:
                    crc32c(data)
            return size / (time.perf_counter() - began) / 1e6

        def rate(*, check: bool) -> float:
            began, position = time.perf_counter(), 0
            while data := block.read_at(position, RANGE_BYTES, size):
                position += len(data)
                if check:
                    crc32c(data)
            return size / (time.perf_counter() - began) / 1e6

        copied = beside_raw(
            "sequential read of what is not committed (copied)",
            "MB/s",
            lambda: rate(check=False),
            lambda: raw_rate(check=False),
            turns=turns,
            target=None,
        )
        block.commit_all()
        mapped = beside_raw(
            "sequential read (mapped; both sides touch every byte with crc32c)",
            "MB/s",
            lambda: rate(check=True),
            lambda: raw_rate(check=True),
            turns=turns,
            target=0.7,
        )
        rows = [mapped, copied]
        rows.append(at_most("find an offset anywhere", "us", lambda: lookup_cost(block), turns=turns))
        block.close()
        rows.append(at_least("recover without a checkpoint", "MB/s", lambda: recovery_rate(path), turns=3))
        os.close(raw)
    return rows


def lookup_cost(block: Block) -> float:
    """Return the microseconds of one lookup, over many offsets."""
    offsets = range(0, block.end_offset, max(1, block.end_offset // 1000))
    return 1e6 * seconds(lambda: [block.locate(offset) for offset in offsets]) / len(offsets)


def recovery_rate(path: str) -> float:
    """Return MB/s of a recovery that reads everything."""
    began = time.perf_counter()
    block = Block.open(FILES, f"{path}/Block_1", config=CONFIG, handles=Handles(FILES, 8), verify=True)
    rate = block.end_position / (time.perf_counter() - began) / 1e6
    block.close()
    return rate


def where_the_time_goes(turns: int) -> list[Row]:
    """The parts of one append of 16 KiB, and what a sync adds."""
    (batch,) = batches_of(16 * KiB, 1)
    appends = 4000

    def append(block: Block) -> None:
        batch.stamp(base_offset=block.end_offset, term=1, index=block.last_index + 1, append_time=1, commit_index=0)
        block.append([batch])

    def append_cost() -> float:
        with folder() as path:
            block = new_block(path)
            took = seconds(partial(append, block), appends)
            block.close()
        return 1e6 * took

    def write_cost() -> float:
        with folder() as path:
            file, position = FILES.open(f"{path}/raw", create=True), 0
            began = time.perf_counter()
            for _ in range(appends):
                file.write(position, [batch.buffer])
                position += batch.length
            took = time.perf_counter() - began
            file.close()
        return 1e6 * took / appends

    def stamp_cost() -> float:
        stamp = partial(batch.stamp, base_offset=1, term=1, index=1, append_time=1, commit_index=0)
        return 1e6 * seconds(stamp, appends)

    def sync_cost() -> float:
        took = []
        with folder() as path:
            block = new_block(path)
            for _ in range(50):
                append(block)
                took.append(seconds(block.sync))
            block.close()
        return 1e6 * statistics.median(took)

    return [
        at_most("16 KiB append: all of it", "us", append_cost, turns=turns),
        at_most("16 KiB append: of that the write", "us", write_cost, turns=turns),
        at_most("16 KiB append: of that the leader's stamp", "us", stamp_cost, turns=turns),
        at_most("sync after a 16 KiB append, median", "us", sync_cost, turns=turns),
    ]
