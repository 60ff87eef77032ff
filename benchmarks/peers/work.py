"""What a child process does with a client: one cell of the tables, and its figures as JSON on the last line.

    python -m benchmarks.peers.work      (the request is the first line of its input)

Readers that run beside a writer are processes of their own, forked before any client is opened.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from benchmarks.contest import Turn
from benchmarks.peers.registry import client_of
from benchmarks.peers.system import Client, Pace, Promise, Task, age_seconds, used

FORK = multiprocessing.get_context("fork")
WAIT_SECONDS_MAX = 120.0
ACKS_BEFORE = 50
ACKS_AFTER = 100
SEEN_AFTER_RECOVERY = 100
# What a pace begins with is not counted: the first messages find cold caches.
WARM_SHARE = 0.1


@dataclass(frozen=True)
class Request:
    """One cell: which queue, where, and what to do with it; `pids` and `folder` are those of its servers."""

    system: str
    address: str
    replicas: int
    synced: bool
    acknowledged: bool
    pids: list[int]
    folder: str
    work: str
    arguments: dict[str, Any]

    def client(self) -> Client:
        """Return a client, which has not connected yet."""
        return client_of(self.system)(self.address, Promise(self.replicas, self.synced, self.acknowledged))


def throughput(request: Request, topic: str, size_bytes: int, seconds: float) -> dict[str, Any]:
    """Write, read what was written, and look at the servers around both."""
    client, folder = request.client(), Path(request.folder)
    client.create(topic)
    before = used(request.pids, folder)
    written = client.produce(Task(topic, size_bytes, seconds))
    between = used(request.pids, folder)
    read = client.consume(Task(topic, size_bytes, seconds, written.count))
    after = used(request.pids, folder)
    client.drop(topic)
    return {
        "produce": asdict(written), "consume": asdict(read), "before": asdict(before), "between": asdict(between),
        "after": asdict(after),
    }  # fmt: skip


def partitions(request: Request, topic: str, size_bytes: int, seconds: float, count: int) -> dict[str, Any]:
    """Write to so many partitions in turn."""
    client = request.client()
    client.create(topic, count)
    written = client.produce(Task(topic, size_bytes, seconds, partitions=count))
    client.drop(topic, count)
    return {"produce": asdict(written)}


def latency(request: Request, topic: str, size_bytes: int, seconds: float, rate: float) -> dict[str, Any]:
    """Write at a fixed rate, and let another process say how old each message is when it comes."""
    count = int(rate * seconds)
    here, there = FORK.Pipe()
    reader = FORK.Process(target=_follow, args=(request, topic, count, there), daemon=True)
    reader.start()
    there.close()  # so that a reader that dies is noticed
    client = request.client()
    client.create(topic)
    here.send("created")
    _receive(here)
    client.write_paced(topic, Pace(rate, count, size_bytes))
    ages: list[float] = _receive(here)
    reader.join(WAIT_SECONDS_MAX)
    client.drop(topic)
    return {"ages_ms": [round(1000 * age, 4) for age in ages[int(count * WARM_SHARE) :]]}


def _follow(request: Request, topic: str, count: int, there: Connection) -> None:
    there.recv()
    ages: list[float] = []

    def taken(message: bytes) -> bool:
        age = age_seconds(message)
        if age is not None:
            ages.append(age)
        return len(ages) >= count

    request.client().follow(topic, lambda: there.send("ready"), taken)
    there.send(ages)


def fan_out(request: Request, topic: str, size_bytes: int, seconds: float, readers: int) -> dict[str, Any]:
    """Write for a while, then let so many processes read all of it at the same time."""
    started = [_start_reader(request, number) for number in range(readers)]
    client = request.client()
    client.create(topic, readers=readers)
    written = client.produce(Task(topic, size_bytes, seconds))
    for _, here in started:
        here.send(Task(topic, size_bytes, seconds, written.count))
    turns: list[Turn] = [_receive(here) for _, here in started]
    for process, _ in started:
        process.join(WAIT_SECONDS_MAX)
    client.drop(topic, readers=readers)
    return {"count": sum(turn.count for turn in turns), "seconds": max(turn.seconds for turn in turns)}


def _start_reader(request: Request, number: int) -> tuple[ForkProcess, Connection]:
    here, there = FORK.Pipe()
    process = FORK.Process(target=_read, args=(request, number, there), daemon=True)
    process.start()
    there.close()
    return process, here


def _read(request: Request, number: int, there: Connection) -> None:
    there.send(request.client().consume(there.recv(), number))


def _receive(here: Connection) -> Any:
    if not here.poll(WAIT_SECONDS_MAX):
        raise TimeoutError("a reader has nothing to say")
    return here.recv()


def fill(request: Request, topic: str, size_bytes: int, count: int, seconds: float) -> dict[str, Any]:
    """Store so many messages, that a server has something to recover."""
    client = request.client()
    client.create(topic)
    return {"produce": asdict(client.produce(Task(topic, size_bytes, seconds, count)))}


def come_back(request: Request, topic: str, size_bytes: int) -> dict[str, Any]:
    """Say when a message is acknowledged again, by the machine's clock, and read some of the old ones."""
    client, deadline = request.client(), time.monotonic() + WAIT_SECONDS_MAX * 10
    _say({"is_ready": True})
    while True:
        try:
            client.write_on(topic, lambda: True)
            break
        except Exception:  # every client's library has errors of its own
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    at = time.monotonic()
    seen = client.consume(Task(topic, size_bytes, WAIT_SECONDS_MAX, SEEN_AFTER_RECOVERY)).count
    return {"at": at, "seen": seen}


def fail_over(request: Request, topic: str) -> dict[str, Any]:
    """Write on while somebody kills the leader; say how long nothing was acknowledged."""
    killed = threading.Event()
    acks: list[float] = []
    after = 0

    def acknowledged() -> bool:
        nonlocal after
        acks.append(time.monotonic())
        if len(acks) == ACKS_BEFORE:
            _say({"is_ready": True})
        after += killed.is_set()
        return after > ACKS_AFTER

    def listen() -> None:
        sys.stdin.readline()
        killed.set()

    threading.Thread(target=listen, daemon=True).start()
    request.client().write_on(topic, acknowledged)
    window = acks[-ACKS_AFTER * 2 :]
    return {"pause_seconds": max(later - earlier for earlier, later in itertools.pairwise(window))}


def create(request: Request, topic: str) -> dict[str, Any]:
    """Make a topic that stays."""
    request.client().create(topic)
    return {}


WORKS: dict[str, Callable[..., dict[str, Any]]] = {
    work.__name__: work for work in (throughput, partitions, latency, fan_out, fill, come_back, fail_over, create)
}


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do what the first line of the input asks for."""
    request = Request(**json.loads(sys.stdin.readline()))
    _say(WORKS[request.work](request, **request.arguments))


if __name__ == "__main__":
    main()
