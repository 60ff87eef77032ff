"""The two metadata stores side by side: how long one change takes, and how many fit into a second.

Each server is a process of its own with its data on the disk of the temporary folder, as the client is. Beside the
changes that are made one by one stands what the disk itself allows: small appends, each synced, one after another.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.report import Row
from clymq.cli.zookeeper import ZookeeperServer
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.metadata.store import Create, MetadataStore
from clymq.metadata.zookeeper import ZookeeperStore
from clymq.rpc import Endpoint, Server
from clymq.rpc.transport import TcpTransport

VALUE = b"x" * 200
PIPELINED = 64


def run(quick: bool) -> list[Row]:
    """Measure both stores; `quick` for a look."""
    calls = 200 if quick else 2000
    with tempfile.TemporaryDirectory() as folder:
        disk = synced_appends(Path(folder) / "raw", calls)
        rows = asyncio.run(measure("embedded", embedded(Path(folder) / "embedded"), calls, disk))
        rows += asyncio.run(measure("zookeeper", zookeeper(Path(folder) / "zookeeper"), calls, disk))
    return rows


async def measure(name: str, opened: AsyncIterator[MetadataStore], calls: int, disk: float) -> list[Row]:
    """Return the rows of one store."""
    async with asynccontextmanager(lambda: opened)() as store:
        await store.create("/a")
        created = await one_by_one(calls, lambda n: store.create(f"/a/{n}", VALUE))
        rate = calls / sum(created)
        return [
            Row(f"{name}: create, one by one", "creates/s", rate, disk, rate / disk),
            Row(f"{name}: create, {PIPELINED} at once", "creates/s", await pipelined(store, 5 * calls)),
            *latencies(f"{name}: create", created),
            *latencies(f"{name}: get", await one_by_one(calls, lambda n: store.get(f"/a/{n}"))),
            *latencies(f"{name}: put", await one_by_one(calls, lambda n: store.put(f"/a/{n}", VALUE, 0))),
            *latencies(f"{name}: commit", await one_by_one(calls, lambda n: store.commit([Create(f"/c{n}", VALUE)]))),
        ]


async def one_by_one(calls: int, call: Callable[[int], Awaitable[object]]) -> list[float]:
    """Return how many seconds each call took."""
    taken = []
    for n in range(calls):
        began = time.perf_counter()
        await call(n)
        taken.append(time.perf_counter() - began)
    return taken


async def pipelined(store: MetadataStore, calls: int) -> float:
    """Return creates per second with so many under way at any time."""
    numbers = iter(range(calls))

    async def work() -> None:
        for n in numbers:
            await store.create(f"/a/p{n}", VALUE)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(PIPELINED)))
    return calls / (time.perf_counter() - began)


def latencies(name: str, taken: list[float]) -> list[Row]:
    """Return the middle and the last hundredth."""
    hundredths = statistics.quantiles(taken, n=100)
    return [
        Row(f"{name}, p50", "ms", hundredths[49] * 1000),
        Row(f"{name}, p99", "ms", hundredths[98] * 1000),
    ]


def synced_appends(path: Path, calls: int) -> float:
    """Return how many appends of the value's size the disk syncs per second."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        began = time.perf_counter()
        for _ in range(calls):
            os.write(handle, VALUE)
            os.fdatasync(handle)
        return calls / (time.perf_counter() - began)
    finally:
        os.close(handle)


async def zookeeper(folder: Path) -> AsyncIterator[MetadataStore]:
    """Run a real ZooKeeper and a client of it."""
    server = ZookeeperServer(folder)
    await asyncio.to_thread(server.start)
    try:
        store = ZookeeperStore(server.address, SystemClock(), Config())
        await store.open()
        yield store
        await store.close()
    finally:
        server.stop()


async def embedded(folder: Path) -> AsyncIterator[MetadataStore]:
    """Run the embedded store in a process of its own and a client of it."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.store", str(folder), stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        address = (await server.stdout.readline()).decode().strip()
        chance = random.Random(1).random
        store = RemoteStore(TcpTransport(), address, SystemClock(), Config(), name="bench", chance=chance)
        await store.open()
        yield store
        await store.close()
    finally:
        server.terminate()
        await server.wait()


async def serve(folder: str) -> None:
    """Be the embedded store."""
    clock = SystemClock()
    engine = Engine(StoreFile(folder), clock)
    await engine.start()
    endpoint = Endpoint(clock, Config(), name="store", role="zkserver", handlers=StoreServer(engine).handlers())
    server = Server(TcpTransport(), endpoint)
    await server.start("127.0.0.1:0")
    print(server.address, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
