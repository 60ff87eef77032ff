"""Peers that mean no good, at a real broker: it keeps its memory, and a client of good will does not notice."""

from __future__ import annotations

import asyncio
import resource
import socket
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.protocol.broker import ConInfo, Pull, Push, StartToGet
from clymq.protocol.connection import Connection
from clymq.protocol.controller import DescribeTopic
from clymq.rpc.transport import parse_address
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until
from clymq.types import Mode
from rows import Asking, run
from rpc_pair import feed, hello, wire

BROKER = "Broker0"
MiB = 1 << 20
HISTORY_BYTES = 64 * MiB
SECONDS_MAX = 300.0
# A push of the healthy client; without load it takes a few milliseconds, and a busy machine adds its own.
LATENCY_SECONDS_MAX = 30.0
# What a client in the test, and the broker's other work, may need beside the connections.
SPARE_FILES = 600


@contextmanager
def many_files() -> Iterator[int]:
    """Let this process, and what it starts, have as many files as are permitted; yield how many."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Scene:
    """A cluster of one broker, a topic with a history, and a client of good will that is busy all the while."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.address = cluster.addresses[BROKER]
        self.latencies: list[float] = []
        self.uid = ""

    def memory(self) -> int:
        """Return the broker's own memory: not what it has mapped of files, which is the system's to take back."""
        status = Path(f"/proc/{self.cluster.processes.pid(BROKER)}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))

    def logged(self, words: str) -> int:
        """Return how often the broker has said something."""
        return self.cluster.processes.log_path(BROKER).read_text().count(words)

    def connections(self) -> int:
        """Return how many sockets the broker has."""
        files = Path(f"/proc/{self.cluster.processes.pid(BROKER)}/fd").iterdir()
        count = 0
        for file in files:
            with suppress(OSError):
                count += str(file.readlink()).startswith("socket:")
        return count

    async def prepare(self) -> None:
        async with AsyncAdmin(self.cluster.bootstrap) as admin:
            await admin.create_topic("well")
            await admin.create_topic("long")
        async with AsyncProducer(self.cluster.bootstrap, batch_bytes=MiB) as producer:
            for _ in range(HISTORY_BYTES // (4 * MiB)):
                await producer.push_many("long", [bytes(1024)] * 4096)
            await producer.push("well", b"warm")
        async with Asking(self.cluster) as asking:
            (found,) = (await asking.controller(DescribeTopic("long"))).partitions
            self.uid = found.uid

    async def live(self, over: asyncio.Event) -> None:
        """Push and pull until it is over; each message comes back."""
        async with AsyncProducer(self.cluster.bootstrap) as producer, AsyncConsumer(self.cluster.bootstrap) as consumer:
            await consumer.assign("well", "0", "latest")
            number = 0
            while not over.is_set() or number < 20:
                number += 1
                began = time.monotonic()
                await producer.push("well", b"%d" % number)
                pulled = await consumer.pull(10, timeout=LATENCY_SECONDS_MAX)
                self.latencies.append(time.monotonic() - began)
                assert [message.value for message in pulled] == [b"%d" % number]

    def judge(self, what: str) -> None:
        """The client has noticed nothing, and says how it went."""
        ordered = sorted(self.latencies)
        print(f"{what}: {len(ordered)} pushed and pulled, p50 {1000 * statistics.median(ordered):.1f} ms, "
              f"worst {1000 * ordered[-1]:.0f} ms")  # fmt: skip
        assert statistics.median(ordered) < LATENCY_SECONDS_MAX / 10
        assert ordered[-1] < LATENCY_SECONDS_MAX


@asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    async with ProcessCluster(brokers=1, network="proxies", config=settings) as cluster:
        made = Scene(cluster)
        await made.prepare()
        yield made


def under_attack(attack: Callable[[Scene], Awaitable[None]], what: str, **settings: Any) -> None:
    """Run an attack beside a client of good will."""

    async def main() -> None:
        async with scene(**settings) as made:
            over = asyncio.Event()
            living = asyncio.create_task(made.live(over))
            try:
                await attack(made)
            finally:
                over.set()
                await living
            made.judge(what)

    run(main(), seconds_max=SECONDS_MAX)


class Attacker:
    """A bare socket, used from a thread."""

    def __init__(self, address: str, *, greet: bool = True) -> None:
        self.socket = socket.create_connection(parse_address(address), timeout=SECONDS_MAX)
        self.connection = Connection(hello("attacker", frame_bytes_max=64 * MiB))
        if greet:
            self.socket.sendall(wire(self.connection.hello()))

    def greeted(self) -> None:
        """Read until the other side has said HELLO."""
        while self.connection.theirs is None:
            data = self.socket.recv(4096)
            assert data, "the connection ended in the handshake"
            feed(self.connection, data)

    def is_dropped(self) -> bool:
        """Whether the other side has ended it, whatever it had said before."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def drip(self) -> None:
        with suppress(OSError):
            self.socket.send(b"\0")


def close_all(attackers: list[Attacker]) -> None:
    for attacker in attackers:
        attacker.socket.close()


def test_ten_thousand_idle_connections_cost_little_and_disturb_nobody(size: str) -> None:
    with many_files() as files_max:
        wanted = min({"quick": 1_000, "normal": 10_000, "long": 10_000}[size], files_max - SPARE_FILES)
        assert wanted >= 500, f"only {files_max} open files are permitted here"

        async def attack(made: Scene) -> None:
            before = made.memory()
            attackers: list[Attacker] = []
            try:
                await asyncio.to_thread(lambda: attackers.extend(Attacker(made.address) for _ in range(wanted)))
                await asyncio.to_thread(lambda: [attacker.greeted() for attacker in attackers])
                assert made.connections() >= wanted
                grown = made.memory() - before
                print(f"{wanted} idle connections: {grown / 1024 / wanted:.1f} KiB each")
                assert grown < 20 * 1024 * wanted + 32 * MiB
            finally:
                close_all(attackers)
            await until(lambda: made.connections() < 100, "all are gone", seconds_max=SECONDS_MAX)

        under_attack(attack, f"{wanted} idle connections", idle_ping_ms=600_000)


def test_slow_peers_are_dropped_and_hold_no_memory() -> None:
    """Some never finish their handshake, some a frame of 60 MB of which they send a byte now and then."""

    async def attack(made: Scene) -> None:
        before = made.memory()
        announced = bytes(60 * MiB)
        strangers = [Attacker(made.address, greet=False) for _ in range(100)]
        slow = [Attacker(made.address) for _ in range(100)]
        try:
            for attacker in slow:
                attacker.greeted()
                head = attacker.connection.ask(1, Push("t", "p", "u", "x", 1, -1), [announced])[0][0]
                await asyncio.to_thread(attacker.socket.sendall, bytes(head) + bytes(400))
            until_seconds = time.monotonic() + SECONDS_MAX
            alive = [*strangers, *slow]
            highest = before
            while alive:
                assert time.monotonic() < until_seconds, f"{len(alive)} slow peers are still connected"
                for attacker in alive:
                    attacker.drip()
                highest = max(highest, made.memory())
                alive = [attacker for attacker in alive if not attacker.is_dropped()]
                await asyncio.sleep(0.1)
            assert highest - before < 64 * MiB
        finally:
            close_all([*strangers, *slow])

    under_attack(attack, "slow peers", handshake_ms_max=2000, frame_ms_max=2000)


def pushes_unread(made: Scene, attacker: Attacker, number: int) -> None:
    """Ask for everything to be pushed, with credit for a terabyte, and read nothing of it."""
    name = f"c{number}"
    attacker.socket.sendall(wire(attacker.connection.ask(1, ConInfo(name))))
    request = StartToGet("long", "0", made.uid, Mode.PSB_PUSH, name, 1, credit_bytes=1 << 40)
    attacker.socket.sendall(wire(attacker.connection.ask(2, request)))


def pulls_unread(made: Scene, attacker: Attacker, number: int) -> None:
    """Ask for the same megabytes again and again, and read no answer."""
    for correlation in range(1, 61):
        pull = Pull("long", "0", made.uid, offset=correlation, bytes_max=8 * MiB)
        with suppress(OSError):
            attacker.socket.sendall(wire(attacker.connection.ask(correlation, pull)))


@pytest.mark.parametrize(
    ("ask", "dropped"), [(pushes_unread, 0), (pulls_unread, 30)], ids=["push delivery", "pull answers"]
)
def test_clients_that_never_read_hold_a_bounded_part_of_the_broker(ask: Callable[..., None], dropped: int) -> None:
    """Push delivery stops when nobody reads; who asks on and on and reads no answer is dropped."""

    async def attack(made: Scene) -> None:
        before = made.memory()
        attackers = [Attacker(made.address) for _ in range(30)]
        try:
            for number, attacker in enumerate(attackers):
                attacker.greeted()
                await asyncio.to_thread(ask, made, attacker, number)
            highest, seen = before, len(made.latencies)
            # Long enough for all that was asked to be answered or given up.
            while len(made.latencies) < seen + 100 or made.logged("it does not read") < dropped:
                highest = max(highest, made.memory())
                await asyncio.sleep(0.05)
            print(f"30 clients that never read: {(highest - before) / MiB:.0f} MiB")
            assert highest - before < 400 * MiB
        finally:
            close_all(attackers)
        await until(lambda: made.memory() - before < 100 * MiB, "what they held is free again", seconds_max=SECONDS_MAX)

    under_attack(attack, f"clients that never read ({ask.__name__})")
