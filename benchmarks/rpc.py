"""Requests over TCP to a server in another process, beside the same bytes through a bare socket with tiny acks."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks.report import Row, at_most, beside_raw
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.protocol.broker import ConInfo, ConsumerKnown, Push, Pushed
from clymq.rpc import Answer, Call, Endpoint, Peer, Server, connect
from clymq.rpc.transport import TcpTransport

KiB = 1024
SIZES = (KiB, 16 * KiB, 64 * KiB)
TARGETS = {64 * KiB: 0.6}
IN_FLIGHT_BYTES = 2 * 1024 * KiB
IN_FLIGHT_MAX = 512
SMALL_ACK = b"\0" * 8
CONFIG = Config(partition_window_requests=IN_FLIGHT_MAX, idle_ping_ms=5000)


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    seconds, turns = (0.3, 3) if quick else (1.0, 7)
    rows: list[Row] = []
    with _served(_serve) as (_, address), _served(_serve_bare) as (_, bare):
        for size in SIZES:
            rate = beside_raw(
                f"{size // KiB} KiB requests, pipelined",
                "requests/s",
                lambda size=size: asyncio.run(_push(address, size, seconds)),  # type: ignore[misc]
                lambda size=size: _push_bare(bare, size, seconds),  # type: ignore[misc]
                turns=turns,
                target=TARGETS.get(size),
            )
            rows += [rate, _in_megabytes(rate, size)]
        rows += asyncio.run(_latency(address, 2000 if quick else 10_000))
    rows += _idle(500 if quick else 10_000)
    return rows


def _in_megabytes(rate: Row, size: int) -> Row:
    assert rate.raw is not None
    name = rate.name.replace("requests", "payloads")
    return Row(name, "MB/s", rate.value * size / 1e6, rate.raw * size / 1e6, rate.ratio)


# --- Ours ---


def _endpoint(name: str, handlers: dict[type, Callable[[Call], None]] | None = None) -> Endpoint:
    return Endpoint(SystemClock(), CONFIG, name=name, role="benchmark", handlers=handlers)


def _pushed(call: Call) -> None:
    call.reply(Pushed(base_offset=call.request.cmdindex))


def _known(call: Call) -> None:
    call.reply(ConsumerKnown(heartbeat_ms=1000))


def _serve(pipe: Pipe) -> None:
    async def serve() -> None:
        server = Server(TcpTransport(), _endpoint("server", {Push: _pushed, ConInfo: _known}))
        await server.start("127.0.0.1:0")
        pipe.send(server.address)
        await asyncio.Event().wait()

    _raise_file_limit()
    asyncio.run(serve())


async def _push(address: str, size: int, seconds: float) -> float:
    """Keep a window of pushes under way for a while; return how many were answered per second."""
    peer = await connect(TcpTransport(), address, _endpoint("client"))
    over = asyncio.Event()
    payload = [bytes(size)]
    answered = asked = 0
    until = time.perf_counter() + seconds

    def ask() -> None:
        nonlocal asked
        asked += 1
        peer.ask_soon(Push("topic", "0", "u" * 32, "producer", asked, -1), payload, done, timeout_ms=30_000)

    def done(outcome: Answer[Pushed] | Exception) -> None:
        nonlocal answered
        assert type(outcome) is Answer, outcome
        answered += 1
        if time.perf_counter() < until:
            ask()
        elif answered == asked:
            over.set()

    began = time.perf_counter()
    for _ in range(_in_flight(size)):
        ask()
    await over.wait()
    rate = answered / (time.perf_counter() - began)
    peer.close()
    return rate


def _in_flight(size: int) -> int:
    return min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES // size)


async def _latency(address: str, calls: int) -> list[Row]:
    peer = await connect(TcpTransport(), address, _endpoint("client"))
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        await peer.ask(ConInfo("consumer"), timeout_ms=30_000)
        taken.append((time.perf_counter() - began) * 1e6)
    peer.close()
    cuts = statistics.quantiles(taken, n=100)
    return [Row("one small call at a time, p50", "us", cuts[49]), Row("one small call at a time, p99", "us", cuts[98])]


# --- The bare copy: the same bytes, an ack of eight bytes for each ---


def _serve_bare(pipe: Pipe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pipe.send(f"127.0.0.1:{listening.getsockname()[1]}")
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
                buffer = memoryview(bytearray(256 * KiB))
                arrived = 0
                while count := connection.recv_into(buffer):
                    arrived += count
                    connection.sendall(SMALL_ACK * (arrived // size))
                    arrived %= size


def _push_bare(address: str, size: int, seconds: float) -> float:
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(size.to_bytes(8, "little"))
        payload = bytes(size)
        sent = acked = partial = 0
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            room = _in_flight(size) - (sent - acked)
            if room:
                # As many at once as ours sends in a turn.
                some = min(room, max(1, 256 * KiB // size))
                connection.sendall(payload * some if size < 256 * KiB else payload)
                sent += some
            if room == 0 or sent - acked > _in_flight(size) // 2:
                partial += len(connection.recv(64 * KiB))
                acked, partial = acked + partial // 8, partial % 8
        while acked < sent:
            partial += len(connection.recv(64 * KiB))
            acked, partial = acked + partial // 8, partial % 8
        return sent / (time.perf_counter() - began)


# --- Idle connections ---


def _idle(wanted: int) -> list[Row]:
    limit = _raise_file_limit()
    count = min(wanted, limit - 200)
    with _served(_serve) as (pid, address):
        before = _resident_bytes(pid)
        peers, per_second = asyncio.run(_hold(address, count, pid))
        after, cpu = per_second
    name = f"{peers} idle connections"
    if count < wanted:
        name += f" (the limit of open files, {limit}, allows no more)"
    return [
        at_most(f"{name}: memory", "KiB per connection", lambda: (after - before) / KiB / peers, turns=1, target=32),
        at_most(f"{name}: time per second", "ms of CPU", lambda: cpu * 1000, turns=1),
    ]


async def _hold(address: str, count: int, pid: int) -> tuple[int, tuple[int, float]]:
    """Open connections, leave them alone through a round of pings, and look at the server."""
    endpoint = _endpoint("client")
    transport = TcpTransport()
    peers: list[Peer] = []
    while len(peers) < count:
        some = min(100, count - len(peers))
        peers += await asyncio.gather(*(connect(transport, address, endpoint) for _ in range(some)))
    began, cpu = time.perf_counter(), _cpu_seconds(pid)
    await asyncio.sleep(6)
    per_second = (_cpu_seconds(pid) - cpu) / (time.perf_counter() - began)
    resident = _resident_bytes(pid)
    alive = sum(peer.is_open for peer in peers)
    assert alive == count, f"{alive} of {count} connections are left"
    for peer in peers:
        peer.close()
    await asyncio.sleep(0)
    return alive, (resident, per_second)


def _raise_file_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(serve: Callable[[Pipe], None]) -> Iterator[tuple[int, str]]:
    """Run a server in a process of its own; give its process id and its address."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        assert ours.poll(30), "the server did not start"
        assert process.pid is not None
        yield process.pid, ours.recv()
    finally:
        process.terminate()
        process.join()
