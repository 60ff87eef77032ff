"""What ClyMQ can do so far, shown on one disk: a log that is written fast, killed in the middle, and loses nothing.

A process appends numbered messages to a partition's log and reports those that are on the disk. It is killed (SIGKILL)
while it writes; another one recovers the log and goes on. All messages are read back and counted. At last a bit of the
log is flipped, to show that damage is found and never delivered.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import CorruptBatch
from clymq.record import Batch, BatchBuilder, control_batch
from clymq.storage.block import Block
from clymq.storage.files import RealFiles
from clymq.storage.folder import DataFolder
from clymq.storage.log import PartitionLog

MESSAGES = 1_000_000
MESSAGES_PER_BATCH = 2_000
KILL_AFTER = MESSAGES // 3
CONFIG = Config(block_bytes_max=32 << 20, disk_reserve_bytes=0)


def main() -> int:
    """Run the demo and print what happened."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Show what ClyMQ can do so far, on one disk.")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out (there is none in it yet)")
    parser.add_argument("--keep", metavar="DIR", help="write to this folder, and leave it for `clymq dump`")
    parser.add_argument("--json", metavar="FILE", help="also write the summary to a file")
    arguments = parser.parse_args()
    if arguments.json and not Path(arguments.json).parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no such folder")
    if arguments.keep and Path(arguments.keep).exists():
        parser.error(f"--keep {arguments.keep}: is there already")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    folder = arguments.keep or tempfile.mkdtemp(prefix="clymq-demo-")
    try:
        summary = story(f"{folder}/data")
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)
    summary["seconds"] = round(time.monotonic() - began, 1)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(summary) + "\n")
    if arguments.keep:
        print(f"6. look at it: .venv/bin/clymq dump '{folder}/data/numbers~1/0~demo/Block_1'")
    print(
        f"demo: sent {summary['sent']} received {summary['received']} lost {summary['lost']} "
        f"duplicated {summary['duplicated']} in {summary['seconds']} s"
    )
    return 0 if summary["lost"] == summary["duplicated"] == 0 else 1


def story(data: str) -> dict[str, float]:
    """Write, kill, recover, go on, read back, damage."""
    promised = write_in_a_process(data, kill_after=KILL_AFTER)
    print(f"1. a writer was killed while it wrote; {promised:,} of its messages were on the disk by its own word")
    with opened(data) as log:
        print(f"2. recovery found {log.end_offset:,} messages in {len(log.blocks)} blocks; losses: {len(log.losses)}")
        assert log.end_offset >= promised, "a promise was broken"
        found = log.end_offset
    began = time.monotonic()
    sent = write_in_a_process(data, kill_after=None)
    rate = (sent - found) / (time.monotonic() - began)
    print(f"3. another writer went on to {sent:,}: {rate:,.0f} messages/s, synced batch by batch")
    with opened(data) as log:
        copies = Counter(int(value) for batch in log.batches(0) for value in batch.values())
        print(f"4. all were read back, from {len(log.blocks)} blocks")
        print(f"5. one bit of the first block flipped: {damage(log.blocks[1])}")
    lost = sum(number not in copies for number in range(sent))
    return {"sent": sent, "received": copies.total(), "lost": lost, "duplicated": copies.total() - len(copies)}


def write_in_a_process(data: str, *, kill_after: int | None) -> int:
    """Let another process write; return how many messages it had reported when it ended or was killed."""
    context = multiprocessing.get_context("spawn")
    reports, sender = context.Pipe(duplex=False)
    writer = context.Process(target=write, args=(data, sender), daemon=True)
    writer.start()
    sender.close()
    reported = 0
    try:
        while True:
            reported = reports.recv()
            if kill_after is not None and reported >= kill_after:
                writer.kill()
                kill_after = None
    except EOFError:
        return reported
    finally:
        writer.kill()
        writer.join()


def write(data: str, reports: Connection) -> None:
    """Append numbered messages from the log's end on; report each batch when it is on the disk."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started it decides
    clock, builder = SystemClock(), BatchBuilder()
    with opened(data) as log:
        while log.end_offset < MESSAGES:
            if log.roll_due(clock.wall_us()):
                log.roll(stamped(control_batch(b"\x80", seal=True), log.active, clock))
            numbers = range(log.end_offset, min(MESSAGES, log.end_offset + MESSAGES_PER_BATCH))
            values = [b"%0100d" % number for number in numbers]
            built = builder.add_values(values).build(producer="demo", cmdindex=numbers[0] + 1, now=clock.wall_us())
            log.append([stamped(built, log.active, clock)])
            log.active.sync()
            reports.send(log.end_offset)


def stamped(data: bytes, block: Block, clock: SystemClock) -> Batch:
    """Do the leader's part: say where in the log a batch belongs."""
    batch = Batch.parse(bytearray(data))
    batch.stamp(
        base_offset=block.end_offset,
        term=1,
        index=block.last_index + 1,
        append_time=max(clock.wall_us(), block.last_append_time),
        commit_index=block.synced_index,
    )
    return batch


@contextmanager
def opened(data: str) -> Iterator[PartitionLog]:
    """Open the demo's one partition, made if it is missing, with all that is on the disk committed."""
    files = RealFiles()
    folder = DataFolder.open(files, data, CONFIG)
    try:
        path = folder.partition("numbers", "1", "0", "demo")
        there = any(name.startswith("Block_") for name in files.names(path))
        make = PartitionLog.open if there else PartitionLog.create
        log = make(files, path, config=CONFIG, handles=folder.handles, space=folder.space)
        log.active.commit_all()
        yield log
        log.close()
    finally:
        folder.close()


def damage(block: Block) -> str:
    """Flip one bit in the middle of a sealed block and read across it."""
    path, position = f"{block.folder}/batches", block.end_position // 2 + 5000
    file = os.open(path, os.O_RDWR)
    byte = os.pread(file, 1, position)[0]
    os.pwrite(file, bytes([byte ^ 1]), position)
    os.close(file)
    data = memoryview(Path(path).read_bytes())
    try:
        while data:
            batch = Batch.parse(data)
            batch.check()
            data = data[batch.length :]
    except CorruptBatch as error:
        return f"found ({error.field} {error.problem})"
    return "NOT FOUND"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
