"""A cluster on this machine that loses a broker in the middle and nothing else.

`clymq up` starts a zkserver and three brokers on free ports. A producer pushes numbered messages to a topic with three
replicas while a consumer reads them; half-way the broker that leads most partitions is killed (SIGKILL). The others
elect new leaders, producer and consumer find them, `clymq up` starts the dead one again. At the end every message is
counted, and the partitions are whole again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer

TOPIC = "numbers"
PARTITIONS = 4
MESSAGES = 100_000
MESSAGES_AT_ONCE = 2_000
READ_SECONDS_MAX = 60.0


def main() -> int:
    """Run the demo and print what happened."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="A cluster that loses a broker and no message.")
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
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="clymq-demo-"))
    try:
        with cluster(folder) as bootstrap:
            summary = asyncio.run(story(bootstrap, folder))
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    summary["seconds"] = round(time.monotonic() - began, 1)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(summary) + "\n")
    if arguments.keep:
        print(f"   look at it: .venv/bin/clymq dump {folder}/Broker0/{TOPIC}~*/0~*/Block_1")
    print(
        f"demo: sent {summary['sent']} received {summary['received']} lost {summary['lost']} "
        f"duplicated {summary['duplicated']} in {summary['seconds']} s"
    )
    return 0 if summary["lost"] == summary["duplicated"] == 0 else 1


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Run `clymq up` on free ports until the block ends; it takes its servers with it, however it ends."""
    command = [sys.executable, "-m", "clymq.cli", "up", "--port", "0", "--data", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if words[:2] != ["ready", "cluster"]:
                raise SystemExit(f"clymq up did not start: see {folder}/*.log")
            yield words[2]
            process.terminate()
            process.wait(60)
        finally:
            process.kill()


async def story(bootstrap: str, folder: Path) -> dict[str, Any]:
    """Make a topic, push and read, kill a broker half-way, count."""
    async with AsyncAdmin(bootstrap) as admin:
        brokers = [each["name"] for each in (await admin.status())["brokers"]]
        print(f"1. a zkserver and {', '.join(brokers)} serve at {bootstrap}")
        await admin.create_topic(TOPIC, partitions=PARTITIONS)
        print(f"2. topic {TOPIC}: {PARTITIONS} partitions, three replicas each, a majority acknowledges")
        reading = asyncio.create_task(read(bootstrap))
        began = time.monotonic()
        killed, slowest = await write(bootstrap, admin, folder)
        rate = MESSAGES / (time.monotonic() - began)
        print(f"3. {killed}, which led the most, was killed half-way; the longest wait for an answer: {slowest:.1f} s")
        print(f"4. all {MESSAGES:,} messages are acknowledged: {rate:,.0f} messages/s, the failure included")
        copies = await reading
        print(f"5. a consumer that read all the time has {copies.total():,}")
        whole = await is_whole_again(admin, killed)
        print(f"6. {killed} was started again and answers, every partition has three replicas: {whole}")
    lost = sum(number not in copies for number in range(MESSAGES))
    duplicated = copies.total() - len(copies)
    return {"sent": MESSAGES, "received": copies.total(), "lost": lost, "duplicated": duplicated, "killed": killed}


async def write(bootstrap: str, admin: AsyncAdmin, folder: Path) -> tuple[str, float]:
    """Push all messages, each acknowledged; return who was killed in the middle, and the longest wait."""
    killed, slowest = "", 0.0
    async with AsyncProducer(bootstrap) as producer:
        for first in range(0, MESSAGES, MESSAGES_AT_ONCE):
            values = [b"%d" % number for number in range(first, first + MESSAGES_AT_ONCE)]
            began = time.monotonic()
            pushing = asyncio.create_task(producer.push_many(TOPIC, values))
            if not killed and first >= MESSAGES // 2:
                killed = await kill_a_leader(admin, folder)
            await pushing
            slowest = max(slowest, time.monotonic() - began)
    return killed, slowest


async def kill_a_leader(admin: AsyncAdmin, folder: Path) -> str:
    """Kill the broker that leads the most partitions, by its process id."""
    leaders = Counter(each["leader"] for each in (await admin.status())["partitions"])
    name = str(leaders.most_common(1)[0][0])
    os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGKILL)
    return name


async def read(bootstrap: str) -> Counter[int]:
    """Read until there are as many messages as were sent, and a moment longer: one too many would be found."""
    copies: Counter[int] = Counter()
    deadline = time.monotonic() + READ_SECONDS_MAX
    async with AsyncConsumer(bootstrap) as consumer:
        for partition in range(PARTITIONS):
            await consumer.assign(TOPIC, str(partition), "earliest")
        while time.monotonic() < deadline:
            messages = await consumer.pull(10_000, timeout=1.0)
            copies.update(int(message.value) for message in messages)
            if not len(messages) and copies.total() >= MESSAGES:
                break
    return copies


async def is_whole_again(admin: AsyncAdmin, killed: str) -> bool:
    """Wait until the killed broker answers, and say whether no partition misses a replica."""
    status = await admin.status()
    address = next(each["address"] for each in status["brokers"] if each["name"] == killed)
    async with AsyncAdmin(address) as through_it:
        status = await through_it.status()
    return all(len(each["online"]) == 3 and each["leader"] for each in status["partitions"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
