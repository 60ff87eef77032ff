"""The clients of a run, each a process of its own: producers, readers and workers that write down what they see.

    python -m clymq.simulation.chaos.clients producer --name p0 --life 1 --bootstrap ... --journal FILE --place t/0 ...

They use the product's own client and never give up. Producers keep several pushes to each partition in flight; a killed
one comes back as its next life, under the same name. Readers go on at the position that their group has committed.
Workers share the messages of their group, pulled or pushed; most they ack, some they nack, a few they reject.
SIGTERM: a producer makes no more and ends when all is answered, the others end at once; all with exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clymq.client.consumer import AsyncConsumer
from clymq.client.messages import Messages, Run
from clymq.client.producer import AsyncProducer
from clymq.errors import ClosedError, ClymqError, OffsetOutOfRange, ProducerFenced
from clymq.simulation.chaos.events import Journal, now_us
from clymq.types import Mode

PUSH_SECONDS_MAX: Final = 20.0
IN_FLIGHT: Final = 12
VALUES_MAX: Final = 8
VALUE_BYTES_MAX: Final = 200
COMMIT_EVERY: Final = 10
RETRY_SECONDS: Final = 0.2
WORKERS: Final = "workers"
WORK_MAX: Final = 200
# Of the runs of messages that a worker gets.
NACKED: Final = 0.02
REJECTED: Final = 0.01
STALL_US: Final = 1_000_000
# Errors after which a value is known not to be in the log, whatever was tried before.
NEVER_STORED: Final = frozenset({"MessageTooLarge", "InvalidRequest", "InvalidName"})

Place = tuple[str, str]


class ChaosProducer:
    """Pushes to each partition without end, several at a time, in order."""

    def __init__(
        self, name: str, life: int, bootstrap: str, journal: Journal, places: Sequence[Place], pause_ms: float
    ) -> None:
        self._prefix = f"{name}.{life}"
        self._life = life
        self._journal = journal
        self._places = places
        self._pause_seconds = pause_ms / 1000
        self._numbers = itertools.count()
        self._random = random.Random(self._prefix)
        self._client = AsyncProducer(bootstrap, name=name, timeout=PUSH_SECONDS_MAX, linger_ms=1)
        self._pushes: set[asyncio.Task[None]] = set()
        self._fenced = False

    async def run(self, stopping: asyncio.Event) -> None:
        """Push until told to stop; then wait for all answers."""
        async with self._client:
            await asyncio.gather(*(self._push_to(place, stopping) for place in self._places))
            while self._pushes:
                await asyncio.wait(self._pushes)

    async def _push_to(self, place: Place, stopping: asyncio.Event) -> None:
        free = asyncio.Semaphore(IN_FLIGHT)
        while not stopping.is_set() and not self._fenced:
            await free.acquire()
            if stopping.is_set() or self._fenced:
                break
            values = [self._value() for _ in range(self._random.randint(1, VALUES_MAX))]
            operation = f"{self._prefix}:{next(self._numbers)}"
            fields = {"topic": place[0], "partition": place[1], "op": operation, "life": self._life}
            self._journal.write("send", **fields, values=values)
            # Tasks begin in the order in which they are made, so the client is given the values in the order noted.
            task = asyncio.create_task(self._push(place, operation, values))
            self._pushes.add(task)
            task.add_done_callback(self._pushes.discard)
            task.add_done_callback(lambda _: free.release())
            await asyncio.sleep(self._random.uniform(0, 2 * self._pause_seconds))

    def _value(self) -> str:
        pad = "." * self._random.randint(0, VALUE_BYTES_MAX) if self._random.random() < 0.05 else ""
        return f"{self._prefix}:{next(self._numbers)}{pad}"

    async def _push(self, place: Place, operation: str, values: Sequence[str]) -> None:
        topic, partition = place
        fields = {"topic": topic, "partition": partition, "op": operation}
        try:
            receipts = await self._client.push_many(topic, [value.encode() for value in values], partition=partition)
        except ClymqError as error:
            self._journal.write("refused" if error.code in NEVER_STORED else "unknown", **fields, error=error.code)
            self._fenced = self._fenced or isinstance(error, ProducerFenced | ClosedError)
            if not error.retriable:
                self._journal.write("note", text=f"{operation}: {error.code}: {error}")
            return
        self._journal.write("ack", **fields, ranges=[[first, count] for _, first, count in receipts.ranges])


class ChaosReader:
    """Reads each partition from where its group was, pulled or pushed, and commits now and then."""

    def __init__(self, name: str, bootstrap: str, journal: Journal, places: Sequence[Place], *, pushed: bool) -> None:
        self._journal = journal
        self._places = places
        self._group = f"readers.{name}"
        self._pushed = pushed
        self._client = AsyncConsumer(bootstrap, name=name, timeout=PUSH_SECONDS_MAX)
        self._positions: dict[Place, int] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Read until told to stop."""
        async with self._client:
            while not stopping.is_set() and not await self._begin():
                await asyncio.sleep(RETRY_SECONDS)
            polls = 0
            while not stopping.is_set():
                polls += await self._poll()
                if polls >= COMMIT_EVERY:
                    polls = 0
                    await self._commit()

    async def _begin(self) -> bool:
        """Go on where the group was, in those partitions where it has not begun; return whether it has in all."""
        try:
            if self._pushed:
                await self._begin_pushed()
            else:
                for place in self._places:
                    if place not in self._positions:
                        asked = now_us()
                        await self._client.assign(*place, "committed", group=self._group)
                        await self._begun(place, asked)
        except ClymqError as error:
            self._journal.write("note", text=f"begin: {error.code}: {error}")
            return False
        return True

    async def _begin_pushed(self) -> None:
        """Subscribe to the topics as a whole, which begins everywhere at once."""
        asked = now_us()
        topics = sorted({topic for topic, _ in self._places})
        await self._client.subscribe(topics, mode=Mode.PSB_PUSH, group=self._group)
        for place in self._places:
            await self._begun(place, asked)

    async def _begun(self, place: Place, asked: int) -> None:
        offset = await self._client.position(*place)
        fields = {"topic": place[0], "partition": place[1], "offset": offset}
        self._journal.write("committed", **fields, group=self._group, asked=asked)
        self._journal.write("assign", **fields)
        self._positions[place] = offset

    async def _poll(self) -> int:
        """Take what is there; return whether there was anything."""
        try:
            messages = await self._client.pull(timeout=0.5)
        except ClymqError as error:
            self._journal.write("note", text=f"pull: {error.code}: {error}")
            await self._go_on_after(error)
            return 0
        for place, offset, values in runs_of(messages):
            self._journal.write("poll", topic=place[0], partition=place[1], offset=offset, values=values)
            self._positions[place] = offset + len(values)
        return 1 if len(messages) else 0

    async def _go_on_after(self, error: ClymqError) -> None:
        """Ask again from the same positions; where the first of them is gone, from the first that there is."""
        await asyncio.sleep(RETRY_SECONDS)
        if error.retriable:
            return
        if self._pushed:
            await self._begin()
            return
        for (topic, partition), position in self._positions.items():
            offset = position
            if isinstance(error, OffsetOutOfRange) and error.offset == position and error.first > position:
                offset = error.first
            try:
                await self._client.assign(topic, partition, offset, group=self._group)
            except ClymqError as problem:
                self._journal.write("note", text=f"assign {topic}/{partition}: {problem.code}: {problem}")
                continue
            if offset != position:
                self._journal.write("assign", topic=topic, partition=partition, offset=offset)
                self._positions[topic, partition] = offset

    async def _commit(self) -> None:
        positions, asked = dict(self._positions), now_us()
        try:
            await self._client.commit()
        except ClymqError as error:
            self._journal.write("note", text=f"commit: {error.code}: {error}")
            return
        for (topic, partition), offset in positions.items():
            fields = {"topic": topic, "partition": partition, "offset": offset}
            self._journal.write("commit", **fields, group=self._group, asked=asked)


class ChaosWorker:
    """Shares a topic's messages with the other workers of its group."""

    def __init__(self, name: str, bootstrap: str, journal: Journal, topics: Sequence[str], mode: Mode) -> None:
        self._journal = journal
        self._topics = topics
        self._mode = mode
        self._random = random.Random(name)
        self._client = AsyncConsumer(bootstrap, name=name, timeout=PUSH_SECONDS_MAX)
        self._stalls = _Stalls()

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until told to stop."""
        async with self._client, self._stalls:
            while not stopping.is_set() and not await self._subscribe():
                await asyncio.sleep(RETRY_SECONDS)
            while not stopping.is_set():
                try:
                    messages = await self._client.pull(max_messages=WORK_MAX, timeout=0.5)
                except ClymqError as error:
                    self._journal.write("note", text=f"pull: {error.code}: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await asyncio.gather(*(self._work(run) for run in messages.runs))

    async def _subscribe(self) -> bool:
        try:
            await self._client.subscribe(list(self._topics), mode=self._mode, group=WORKERS)
        except ClymqError as error:
            self._journal.write("note", text=f"subscribe: {error.code}: {error}")
            return False
        return True

    async def _work(self, run: Run) -> None:
        """End the lease of a run: by ack, or now and then otherwise."""
        values = [message.value.decode(errors="replace") for message in Messages([run])]
        fields = {"topic": run.topic, "partition": run.partition, "group": WORKERS}
        leases, leased = self._leases(run)
        lease = {"count": run.delivery_count, "leased": leased, "leases": leases}
        self._journal.write("deliver", **fields, offset=run.start, values=values, **lease)
        draw = self._random.random()
        try:
            if draw < NACKED:
                await self._client.nack(Messages([run]))
                return
            if draw < NACKED + REJECTED:
                first = dataclasses.replace(run, end=run.start + 1)
                await self._client.reject(Messages([first]), "a worker does not like it")
                run = dataclasses.replace(run, start=run.start + 1)
        except ClymqError as error:
            self._journal.write("note", text=f"nack or reject: {error.code}: {error}")
            return
        if run.start < run.end:
            await self._ack(run, fields)

    def _leases(self, run: Run) -> tuple[list[tuple[int, int, int]], int | None]:
        """Return the leases of a run, as number, start and end, and when they have come; None if they are gone already.

        The client does not tell its users, so we look inside. What has come while this process stood still may have
        been on its way since then.
        """
        try:
            held = self._client._lessee((run.topic, run.partition)).settler.held
        except ClymqError:
            return [], None
        pieces = held.pieces(run.start, run.end)
        if not pieces:
            return [], None
        terms = [held._terms[piece.lease] for piece in pieces]
        began_ms = min(term.expires_ms - term.lease_ms for term in terms)
        return [(*piece,) for piece in pieces], self._stalls.before(round(1000 * began_ms))

    async def _ack(self, run: Run, fields: dict[str, str]) -> None:
        """Ack a run. It is noted BEFORE it is asked for: if no good answer comes it may have happened all the same."""
        what = {**fields, "offset": run.start, "messages": run.end - run.start}
        asked = self._journal.write("done", **what, asked=now_us(), unsure=True)
        try:
            await self._client.ack(Messages([run]))
        except ClymqError as error:
            self._journal.write("note", text=f"ack: {error.code}: {error}")
        else:
            self._journal.write("done", **what, asked=asked)


class _Stalls:
    """Notices when this process stood still."""

    def __init__(self) -> None:
        self._last = now_us()
        self._stall = 0, 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def before(self, when: int) -> int:
        """Return the time, or when a stall began that ended just before it."""
        self._look()
        begin, end = self._stall
        return min(when, begin) if begin <= when <= end + STALL_US else when

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(STALL_US / 1e7)

    def _look(self) -> None:
        now = now_us()
        if now - self._last > STALL_US:
            self._stall = self._last, now
        self._last = now


def runs_of(messages: Messages) -> list[tuple[Place, int, list[str]]]:
    """Return messages as runs of adjoining offsets: partition, first offset, values."""
    found: list[tuple[Place, int, list[str]]] = []
    for message in messages:
        place = message.topic, message.partition
        value = message.value.decode(errors="replace")
        if found and found[-1][0] == place and found[-1][1] + len(found[-1][2]) == message.offset:
            found[-1][2].append(value)
        else:
            found.append((place, message.offset, [value]))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Be one client until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["producer", "reader", "worker"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--as-process", default="")
    parser.add_argument("--life", type=int, default=1)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--pushed", action="store_true")
    parser.add_argument("--pause-ms", type=float, default=20.0)
    parser.add_argument("--place", action="append", required=True)
    arguments = parser.parse_args(argv)
    asyncio.run(_run(arguments))
    return 0


async def _run(arguments: argparse.Namespace) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    places = [(topic, partition) for topic, _, partition in (place.partition("/") for place in arguments.place)]
    with Journal(arguments.journal, arguments.name) as journal:
        client: ChaosProducer | ChaosReader | ChaosWorker
        if arguments.role == "producer":
            client = ChaosProducer(
                arguments.name, arguments.life, arguments.bootstrap, journal, places, arguments.pause_ms
            )
        elif arguments.role == "reader":
            client = ChaosReader(arguments.name, arguments.bootstrap, journal, places, pushed=arguments.pushed)
        else:
            mode = Mode.PTP_PUSH if arguments.pushed else Mode.PTP_PULL
            topics = sorted({topic for topic, _ in places})
            client = ChaosWorker(arguments.name, arguments.bootstrap, journal, topics, mode)
        print(f"ready {arguments.as_process or arguments.name} none:0", flush=True)
        await client.run(stopping)


if __name__ == "__main__":
    sys.exit(main())
