"""Pushing so many batches with so many under way, and what came of it: by our own rpc, and by a bare socket.

Whoever is measured has `push(size, in_flight, count)` and returns a `Run`. Two of them take turns in one run of the
program, because the machine is not the same from one minute to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from crc32c import crc32c

from benchmarks.report import Row
from benchmarks.skeleton import ANSWER, FRAME, at_once
from clymq.client.sender import EARLY_BYTES, RUN_BYTES_MAX
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, LeaderUnavailable
from clymq.protocol.broker import PUSH_RUNS, InitProducer, Push
from clymq.record import BatchBuilder
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Peer
from clymq.rpc.transport import TcpTransport
from clymq.types import Ack

VALUE = bytes(range(100))
VALUE_BYTES = 112  # with its offset and its timestamp
MEGA = 1e6


def values_for(size: int) -> list[bytes]:
    """Return messages of 100 bytes that make a batch of about this size."""
    return [VALUE] * max(1, (size - 200) // VALUE_BYTES)


class Run:
    """One turn: when each batch was sent, and how long it took."""

    def __init__(self, count: int) -> None:
        self.began = time.perf_counter()
        self.sent = [0.0] * count
        self.taken: list[float] = []
        self.over = asyncio.Event()
        self.problem: ClymqError | None = None

    def failed(self, problem: ClymqError) -> None:
        """A batch was refused: the run says nothing about speed."""
        self.problem = problem
        self.over.set()

    def answered(self, number: int) -> None:
        """An answer has come."""
        now = time.perf_counter()
        self.taken.append(now - self.sent[number])
        if len(self.taken) == len(self.sent):
            self.seconds = now - self.began
            self.over.set()


class Pusher(Protocol):
    """Who is measured."""

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Push so many batches of about this size, with so many under way."""
        ...


class Ours:
    """Pushes batches to a partition's leader over `rpc`, with nothing of the client's own around it."""

    def __init__(self, leader: Peer, place: tuple[str, str, str], ack: int, epoch: int, cmdindex: int) -> None:
        self._leader = leader
        self._place = place
        self._ack = ack
        self._epoch = epoch
        self._cmdindex = cmdindex

    @classmethod
    async def open(
        cls, addresses: Sequence[str], *, place: tuple[str, str, str] = ("0", "0", ""), ack: int = -1
    ) -> Ours:
        """Find who leads a partition, which `place` names: topic, partition and uid."""
        endpoint = Endpoint(SystemClock(), Config(), name="bench", role="client", features=(PUSH_RUNS,))
        peers = [await connect(TcpTransport(), address, endpoint) for address in addresses]
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for peer in peers:
                with contextlib.suppress(ClymqError):
                    answer = await peer.ask(InitProducer(*place, "bench"), timeout_ms=1000)
                    return cls(peer, place, ack, answer.reply.epoch, answer.reply.next)
            await asyncio.sleep(0.05)
        raise LeaderUnavailable("no leader after ten seconds")

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Push so many batches of about this size."""
        values = values_for(size)
        first, step = self._cmdindex, len(values)
        self._cmdindex += count * step
        batches = [
            BatchBuilder().add_values(values).build(producer="bench", cmdindex=first + n * step, epoch=self._epoch)
            for n in range(count)
        ]
        work, numbers = Run(count), iter(range(count))
        run_max = max(1, (RUN_BYTES_MAX if self._ack == Ack.QUORUM else EARLY_BYTES) // len(batches[0]))

        def send(room: int) -> None:
            """Push the next ones as a producer does: what is ready at the same time goes in one request."""
            ready = list(islice(numbers, room))
            for at in range(0, len(ready), run_max):
                run = ready[at : at + run_max]
                now = time.perf_counter()
                for number in run:
                    work.sent[number] = now
                request = Push(*self._place, "bench", first + run[0] * step, self._ack, batches=len(run))
                payload = [batches[number] for number in run]
                self._leader.ask_soon(request, payload, _answer(work, run, send), timeout_ms=30_000)

        send(in_flight)
        await work.over.wait()
        if work.problem is not None:
            raise work.problem
        return work


def _answer(work: Run, run: Sequence[int], send: Callable[[int], None]) -> Callable[[object], None]:
    def done(outcome: object) -> None:
        if isinstance(outcome, ClymqError):
            work.failed(outcome)
        else:
            for number in run:
                work.answered(number)
            send(len(run))

    return done


class Bare(asyncio.Protocol):
    """Sends frames to the skeleton's leader, so many at a time."""

    @classmethod
    async def open(cls, address: str) -> Bare:
        """Connect."""
        host, _, port = address.rpartition(":")
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._rest = b""
        at_once(transport)

    def data_received(self, data: bytes) -> None:
        """Take answers."""
        self._rest += data
        whole = len(self._rest) // ANSWER.size * ANSWER.size
        answers, self._rest = self._rest[:whole], self._rest[whole:]
        for (number,) in ANSWER.iter_unpack(answers):
            self._work.answered(number)
            self._send()

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Send so many frames of this size."""
        data = os.urandom(size)
        checksum = crc32c(data)
        self._work, numbers = Run(count), iter(range(count))

        def send() -> None:
            for number in numbers:
                self._work.sent[number] = time.perf_counter()
                self._transport.write(FRAME.pack(size, number, checksum) + data)
                return

        self._send = send
        for _ in range(in_flight):
            send()
        await self._work.over.wait()
        return self._work


async def take_turns(
    ours: Pusher, theirs: Pusher, size: int, in_flight: int, count: int, turns: int
) -> list[tuple[Run, Run]]:
    """Return pairs of runs, ours first; who goes first changes."""
    pairs = []
    for turn in range(turns + 1):
        if turn % 2:
            mine, other = await ours.push(size, in_flight, count), await theirs.push(size, in_flight, count)
        else:
            other, mine = await theirs.push(size, in_flight, count), await ours.push(size, in_flight, count)
        if turn:  # the first is to warm up
            pairs.append((mine, other))
    return pairs


def rates(name: str, size: int, pairs: list[tuple[Run, Run]], *, target: float) -> list[Row]:
    """Return rows of how much a second, and of how long each batch took."""
    each = [(len(m.sent) / m.seconds, len(t.sent) / t.seconds) for m, t in pairs]
    ratio = statistics.median(mine / theirs for mine, theirs in each)
    mine, theirs = (statistics.median(side) for side in zip(*each, strict=True))
    mega, wanted = size / MEGA, f">= {target:.0%} of raw"
    return [
        Row(name, "MB/s", mine * mega, theirs * mega, ratio, wanted, ratio >= target),
        Row(name, "batches/s", mine, theirs, ratio),
        *latencies(name, pairs),
    ]


def latencies(name: str, pairs: list[tuple[Run, Run]], targets: dict[int, float] | None = None) -> list[Row]:
    """Return rows of how long a batch took, by percentile; `targets` are for the ratio."""
    rows = []
    for percent in (50, 99):
        figures = [tuple(1000 * _percentile(run.taken, percent) for run in pair) for pair in pairs]
        ratio = statistics.median(mine / theirs for mine, theirs in figures)
        mine, theirs = (statistics.median(side) for side in zip(*figures, strict=True))
        target = (targets or {}).get(percent)
        wanted = None if target is None else f"<= {target:.0%} of raw"
        met = None if target is None else ratio <= target
        rows.append(Row(f"p{percent}: {name}", "ms", mine, theirs, ratio, wanted, met))
    return rows


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
