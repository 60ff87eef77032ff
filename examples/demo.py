"""ClyMQ on this machine: a cluster that loses a broker in the middle of a million messages, and nothing else.

`clymq up` starts a zkserver and three brokers on free ports. The topic has a partition for each kind of
acknowledgement: `xian` by a Raft majority, `shanghai` by the leader, `beijing` by nobody. A group of consumers shares
the messages (point to point), two readers take them all (publish-subscribe). In the middle the broker that leads `xian`
is killed (SIGKILL): the others elect a leader, everybody finds it, `clymq up` starts the dead one again. Then the way
in which `xian` is replicated is changed twice, under load. At the end every message is counted.

Then, where there is Spark, all of it goes through a streaming query that is killed too: `demo_spark`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer, Messages, Mode
from clymq.errors import UnknownLease
from examples import demo_spark

TOPIC = "phone_number"
ACKS = {"xian": Ack.QUORUM, "shanghai": Ack.LEADER, "beijing": Ack.NONE}
MESSAGES_OF = {"xian": 600_000, "shanghai": 200_000, "beijing": 200_000}
MESSAGES = sum(MESSAGES_OF.values())
MESSAGES_AT_ONCE = 10_000
KILL_AT, TO_LEADER_AT, TO_QUORUM_AT = 200_000, 450_000, 500_000
"""After so many messages to `xian` its leader is killed, it goes over to fetching followers, and back to Raft."""
GROUP = "billing"
MEMBERS = 3
READERS = 2
TAKE_SECONDS_MAX = 90.0


@dataclass
class Tally:
    """How often each message came."""

    copies: bytearray = field(default_factory=lambda: bytearray(MESSAGES))
    acked: bytearray = field(default_factory=lambda: bytearray(MESSAGES))
    open_at_the_kill: bytes = bytes(MESSAGES)
    """Stored when the broker was killed, and not acked: who had leased them is forgotten, so they may come again."""
    received: int = 0
    redelivered: int = 0
    """Came again for a reason that is known."""

    def add(self, messages: Messages) -> list[int]:
        """Count messages, and return which these are."""
        table = messages.to_arrow()
        self.received += len(messages)
        numbers = [int(value) for value in table.column("value").to_pylist()]
        for number, deliveries in zip(numbers, table.column("delivery_count").to_pylist(), strict=True):
            if self.copies[number] and (deliveries > 1 or self.open_at_the_kill[number]):
                self.redelivered += 1
            else:
                self.copies[number] = min(255, self.copies[number] + 1)
        return numbers

    def finished(self, numbers: list[int]) -> None:
        """Note what was acked: it must not come again, whoever dies."""
        for number in numbers:
            self.acked[number] = 1

    def broker_was_killed(self, pushed: int) -> None:
        """Note what is open, of the first so many messages."""
        self.open_at_the_kill = bytes(n < pushed and not acked for n, acked in enumerate(self.acked))

    @property
    def lost(self) -> int:
        """Messages that never came."""
        return self.copies.count(0)

    @property
    def duplicated(self) -> int:
        """Copies too many, for no reason."""
        return sum(self.copies) + self.lost - MESSAGES


def main() -> int:
    """Run the demo and print what happened."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="A cluster that loses a broker and no message.")
    parser.add_argument("--no-spark", action="store_true", help="the cluster alone, without the part on Spark")
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
            why_not = "--no-spark was given" if arguments.no_spark else demo_spark.missing()
            if why_not:
                say(f"the part on Spark is left out: {why_not}")
            else:
                summary |= asyncio.run(demo_spark.story(bootstrap, TOPIC, MESSAGES, folder, say))
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    summary["seconds"] = round(time.monotonic() - began, 1)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(summary) + "\n")
    if arguments.keep:
        print(f"   look at it: .venv/bin/clymq dump {folder}/Broker0/{TOPIC}~*/xian~*/Block_1")
    print(
        f"demo: sent {summary['sent']} received {summary['received']} lost {summary['lost']} "
        f"duplicated {summary['duplicated']} in {summary['seconds']} s"
    )
    return 1 if any(summary.get(f"{part}{what}") for part in ("", "spark_") for what in ("lost", "duplicated")) else 0


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
    """Make the topic, push and take, kill a broker, change the mode, count."""
    async with AsyncAdmin(bootstrap) as admin:
        brokers = [each["name"] for each in (await admin.status())["brokers"]]
        say(f"a zkserver and {', '.join(brokers)} serve at {bootstrap}")
        await admin.create_topic(TOPIC, partitions=list(ACKS), ack=Ack.UNSET)
        for partition, ack in ACKS.items():
            await admin.set_partition_state(TOPIC, partition, ack=ack)
        say(f"topic {TOPIC}, three replicas: " + ", ".join(f"{name} ack {ack:d}" for name, ack in ACKS.items()))
        shared = Tally()
        takers = [asyncio.create_task(take(bootstrap, f"member{n}", shared)) for n in range(MEMBERS)]
        readers = [asyncio.create_task(read(bootstrap)) for _ in range(READERS)]
        began = time.monotonic()
        killed, slowest = await write(bootstrap, admin, folder, shared)
        rate = MESSAGES / (time.monotonic() - began)
        say(f"all {MESSAGES:,} messages are acknowledged: {rate:,.0f}/s; the longest wait {slowest:.1f} s")
        own = await asyncio.gather(*readers)
        say(f"{READERS} readers have {' and '.join(f'{each.received:,}' for each in own)}")
        await asyncio.gather(*takers)
        say(
            f"{MEMBERS} consumers of the group {GROUP} share {MESSAGES - shared.lost:,}; delivered again "
            f"because of the failure: {shared.redelivered:,}"
        )
        whole = await is_whole_again(admin, killed)
        say(f"{killed} was started again and answers, every partition has three replicas: {whole}")
    tallies = [shared, *own]
    return {
        "sent": MESSAGES,
        "received": min(each.received - each.redelivered for each in tallies),
        "lost": max(each.lost for each in tallies),
        "duplicated": max(each.duplicated for each in tallies),
        "redelivered": shared.redelivered,
        "killed": killed,
        "messages_per_second": round(rate),
    }


async def write(bootstrap: str, admin: AsyncAdmin, folder: Path, shared: Tally) -> tuple[str, float]:
    """Push all messages, each acknowledged as its partition is; return who was killed, and the longest wait."""
    killed, slowest, first = "", 0.0, 0
    async with AsyncProducer(bootstrap) as producer, AsyncConsumer(bootstrap) as looking:
        for partition in ("shanghai", "beijing"):
            await producer.push_many(TOPIC, numbers(first, MESSAGES_OF[partition]), partition=partition)
            first += MESSAGES_OF[partition]
        await until_visible(looking, "shanghai", "beijing")
        say("shanghai and beijing are full, and a majority has fetched them")
        for pushed in range(0, MESSAGES_OF["xian"], MESSAGES_AT_ONCE):
            began = time.monotonic()
            values = numbers(first + pushed, MESSAGES_AT_ONCE)
            pushing = asyncio.create_task(producer.push_many(TOPIC, values, partition="xian"))
            if pushed == KILL_AT:
                killed = await kill_the_leader(admin, folder)
                shared.broker_was_killed(first + pushed + MESSAGES_AT_ONCE)
                say(f"{killed}, which led xian, was killed after {pushed:,} messages to it")
            elif pushed in {TO_LEADER_AT, TO_QUORUM_AT}:
                ack = Ack.LEADER if pushed == TO_LEADER_AT else Ack.QUORUM
                await admin.set_partition_state(TOPIC, "xian", ack=ack)
                say(f"xian goes on at ack {ack:d}: a new block of the chain, nothing copied")
            await pushing
            slowest = max(slowest, time.monotonic() - began)
    return killed, slowest


def numbers(first: int, count: int) -> list[bytes]:
    """Return messages, each of which is its number."""
    return [b"%d" % number for number in range(first, first + count)]


async def until_visible(consumer: AsyncConsumer, *partitions: str) -> None:
    """Wait until readers can see all that was pushed to these partitions."""
    while True:
        ends = await consumer.end_offsets(TOPIC)
        if all(ends[name] == MESSAGES_OF[name] for name in partitions):
            return
        await asyncio.sleep(0.05)


async def kill_the_leader(admin: AsyncAdmin, folder: Path) -> str:
    """Kill the broker that leads `xian`, by its process id."""
    status = await admin.status()
    name = str(next(each["leader"] for each in status["partitions"] if each["partition"] == "xian"))
    os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGKILL)
    return name


async def take(bootstrap: str, name: str, shared: Tally) -> None:
    """Take messages for the group until all are there."""
    deadline = time.monotonic() + TAKE_SECONDS_MAX
    async with AsyncConsumer(bootstrap, name=name) as consumer:
        await consumer.subscribe(TOPIC, mode=Mode.PTP_PULL, group=GROUP)
        while time.monotonic() < deadline and shared.lost:
            messages = await consumer.pull(MESSAGES_AT_ONCE, timeout=0.5)
            numbers = shared.add(messages)
            with suppress(UnknownLease):  # it ended with the leader that gave it: the messages come again
                await consumer.ack(messages)
                shared.finished(numbers)


async def read(bootstrap: str) -> Tally:
    """Read until every message is there, and a moment longer: one too many would be found."""
    tally = Tally()
    deadline = time.monotonic() + TAKE_SECONDS_MAX
    async with AsyncConsumer(bootstrap) as consumer:
        for partition in ACKS:
            await consumer.assign(TOPIC, partition, "earliest")
        while time.monotonic() < deadline:
            messages = await consumer.pull(MESSAGES_AT_ONCE, timeout=1.0)
            tally.add(messages)
            if not len(messages) and tally.received >= MESSAGES:
                break
    return tally


async def is_whole_again(admin: AsyncAdmin, killed: str) -> bool:
    """Wait until the killed broker answers, and say whether no partition misses a replica."""
    status = await admin.status()
    address = next(each["address"] for each in status["brokers"] if each["name"] == killed)
    async with AsyncAdmin(address) as through_it:
        status = await through_it.status()
    return all(len(each["online"]) == 3 and each["leader"] for each in status["partitions"])


def say(what: str) -> None:
    """Tell the next part of the story."""
    print(f"{next(_PARTS)}. {what}", flush=True)


_PARTS = itertools.count(1)

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
