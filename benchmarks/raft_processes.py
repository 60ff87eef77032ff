"""Consensus over three real processes: batches on two of three disks before the answer, beside a bare skeleton.

Both run at the same time on the same disk and take turns; the one that does not work sleeps. Ours does everything that
a broker's ack -1 promises (`clymq.testing.raft_node`), the skeleton only what `benchmarks.skeleton` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from crc32c import crc32c

from benchmarks.report import Row
from benchmarks.skeleton import ANSWER, FRAME, at_once
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, LeaderUnavailable
from clymq.protocol.broker import InitProducer, Push
from clymq.record import BatchBuilder
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Peer
from clymq.rpc.transport import TcpTransport

NAMES = ("a", "b", "c")
VALUE = bytes(range(100))
IDLE_GROUPS = 1000


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    return [*asyncio.run(throughput(quick)), *idle(100 if quick else IDLE_GROUPS, 4 if quick else 10)]


async def throughput(quick: bool) -> list[Row]:
    """Let both take turns, size by size."""
    turns = 3 if quick else 7
    rows: list[Row] = []
    with cluster() as addresses, skeleton() as bare:
        ours, theirs = await Ours.open(addresses), await Bare.open(bare)
        for size, in_flight, count in ((16, 64, 3000), (64, 32, 1500)):
            pairs = await take_turns(ours, theirs, size * 1024, in_flight, count // (4 if quick else 1), turns)
            rows += _rates(f"{size} KiB, {in_flight} in flight", size, pairs)
        pairs = await take_turns(ours, theirs, 1024, 1, 200 if quick else 800, turns)
        rows += _latencies("1 KiB, one at a time", pairs)
    return rows


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


class Ours:
    """Pushes to the group's leader, so many at a time."""

    def __init__(self, leader: Peer, epoch: int, cmdindex: int) -> None:
        self._leader = leader
        self._epoch = epoch
        self._cmdindex = cmdindex

    @classmethod
    async def open(cls, addresses: list[str]) -> Ours:
        """Find who leads."""
        endpoint = Endpoint(SystemClock(), Config(), name="bench", role="client")
        peers = [await connect(TcpTransport(), address, endpoint) for address in addresses]
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for peer in peers:
                with contextlib.suppress(ClymqError):
                    answer = await peer.ask(InitProducer("0", "0", "", "bench"), timeout_ms=1000)
                    return cls(peer, answer.reply.epoch, answer.reply.next)
            await asyncio.sleep(0.05)
        raise LeaderUnavailable("no leader after ten seconds")

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Push so many batches of about this size."""
        values = [VALUE] * max(1, (size - 200) // 112)
        first, step = self._cmdindex, len(values)
        self._cmdindex += count * step
        batches = [
            BatchBuilder().add_values(values).build(producer="bench", cmdindex=first + n * step, epoch=self._epoch)
            for n in range(count)
        ]
        work, numbers = Run(count), iter(range(count))

        def send() -> None:
            for number in numbers:
                work.sent[number] = time.perf_counter()
                request = Push("0", "0", "", "bench", first + number * step, -1)
                self._leader.ask_soon(request, [batches[number]], _answer(work, number, send), timeout_ms=30_000)
                return

        for _ in range(in_flight):
            send()
        await work.over.wait()
        if work.problem is not None:
            raise work.problem
        return work


def _answer(work: Run, number: int, send: Callable[[], None]) -> Callable[[object], None]:
    def done(outcome: object) -> None:
        if isinstance(outcome, ClymqError):
            work.failed(outcome)
        else:
            work.answered(number)
            send()

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
    ours: Ours, bare: Bare, size: int, in_flight: int, count: int, turns: int
) -> list[tuple[Run, Run]]:
    """Return pairs of runs, ours first; who goes first changes."""
    pairs = []
    for turn in range(turns + 1):
        if turn % 2:
            mine, theirs = await ours.push(size, in_flight, count), await bare.push(size, in_flight, count)
        else:
            theirs, mine = await bare.push(size, in_flight, count), await ours.push(size, in_flight, count)
        if turn:  # the first is to warm up
            pairs.append((mine, theirs))
    return pairs


def _rates(name: str, size: int, pairs: list[tuple[Run, Run]]) -> list[Row]:
    rates = [(len(m.sent) / m.seconds, len(t.sent) / t.seconds) for m, t in pairs]
    ratio = statistics.median(mine / theirs for mine, theirs in rates)
    mine, theirs = (statistics.median(side) for side in zip(*rates, strict=True))
    mega = size * 1024 / 1e6
    return [
        Row(f"fsynced on a majority: {name}", "MB/s", mine * mega, theirs * mega, ratio, ">= 60% of raw", ratio >= 0.6),
        Row(f"fsynced on a majority: {name}", "batches/s", mine, theirs, ratio),
        *_percentiles(name, pairs, target=None),
    ]


def _latencies(name: str, pairs: list[tuple[Run, Run]]) -> list[Row]:
    return _percentiles(name, pairs, target=1.7)


def _percentiles(name: str, pairs: list[tuple[Run, Run]], target: float | None) -> list[Row]:
    rows = []
    for percent in (50, 99):
        figures = [tuple(1000 * _percentile(run.taken, percent) for run in pair) for pair in pairs]
        ratio = statistics.median(mine / theirs for mine, theirs in figures)
        mine, theirs = (statistics.median(side) for side in zip(*figures, strict=True))
        row = Row(f"p{percent}: {name}", "ms", mine, theirs, ratio)
        if target is not None and percent == 50:
            row = Row(row.name, row.unit, mine, theirs, ratio, f"<= {target:.0%} of raw", ratio <= target)
        rows.append(row)
    return rows


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


# --- Sleeping groups ---


def idle(groups: int, seconds: int) -> list[Row]:
    """What groups that sleep cost three real processes."""
    rows = []
    for number in (10, groups):
        with cluster(groups=number, log="info") as addresses, contextlib.suppress(TimeoutError):
            assert addresses
            processes = _children(addresses)
            _settle(processes)
            began, before = time.monotonic(), [_cpu_seconds(pid) for pid in processes]
            time.sleep(seconds)
            passed = time.monotonic() - began
            used = [(_cpu_seconds(pid) - spent) / passed for pid, spent in zip(processes, before, strict=True)]
            rows.append(Row(f"{number} idle groups, three processes", "% of a core per process", 100 * max(used)))
    return rows


def _settle(processes: list[int], *, within: float = 60) -> None:
    """Wait until nothing but heartbeats goes on: until a second costs little."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        before = sum(map(_cpu_seconds, processes))
        time.sleep(1)
        if sum(map(_cpu_seconds, processes)) - before < 0.06:
            return
    raise TimeoutError


_PROCESSES: dict[str, int] = {}


def _children(addresses: list[str]) -> list[int]:
    return [_PROCESSES[address] for address in addresses]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- Processes ---


@contextlib.contextmanager
def cluster(groups: int = 1, log: str = "warning") -> Iterator[list[str]]:
    """Run three processes that share groups; yield their addresses."""
    ports = dict(zip(NAMES, _free_ports(len(NAMES)), strict=True))
    with _folder() as data, contextlib.ExitStack() as stack:
        started = []
        for name in NAMES:
            arguments = ["-m", "clymq.testing.raft_node", "--name", name, "--listen", f"127.0.0.1:{ports[name]}"]
            arguments += ["--data", f"{data}/{name}", "--groups", str(groups)]
            for peer in NAMES:
                arguments += [] if peer == name else ["--peer", f"{peer}=127.0.0.1:{ports[peer]}"]
            started.append(stack.enter_context(_process(arguments, log)))
        yield [_address(process) for process in started]


@contextlib.contextmanager
def skeleton() -> Iterator[str]:
    """Run the skeleton's three processes; yield its leader's address."""
    with _folder() as data, contextlib.ExitStack() as stack:
        followers = [stack.enter_context(_process(["-m", "benchmarks.skeleton", f"{data}/{n}"])) for n in (1, 2)]
        arguments = ["-m", "benchmarks.skeleton", f"{data}/0", *(_address(follower) for follower in followers)]
        yield _address(stack.enter_context(_process(arguments)))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="clymq-bench-", dir=os.environ.get("CLYMQ_BENCH_DATA"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _process(arguments: list[str], log: str = "warning") -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ | {"CLYMQ_LOG": log},
        stderr=subprocess.DEVNULL if log == "info" else None,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    _PROCESSES[address] = process.pid
    return address


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
