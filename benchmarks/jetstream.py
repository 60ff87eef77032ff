"""Another queue on the same machine: NATS JetStream, three servers, a stream of three replicas, synced at each message.

`sync_interval: always` is its promise that is comparable with ack -1. One server alone syncs now and then, as it does
by default: that is comparable with ack 1 and one replica. Server and client come from PyPI, by the extra `bench`; where
they cannot be had there is nothing to compare with, and nothing is guessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import folder
from benchmarks.pushing import Run
from clymq.testing.ports import free_ports

STREAM = "bench"
SERVERS = 3
START_SECONDS_MAX = 60.0
ASK_SECONDS = 5.0


def server_program() -> str | None:
    """Return the path of the server, if it and the client are installed."""
    if importlib.util.find_spec("nats") is None:
        return None
    return shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@contextlib.contextmanager
def servers(program: str, count: int = SERVERS) -> Iterator[list[str]]:
    """Run a cluster, or one server; yield the addresses."""
    ports, routes = free_ports(count), free_ports(count)
    with folder() as data, contextlib.ExitStack() as stack:
        for number, port in enumerate(ports):
            path = Path(data) / f"{number}.conf"
            path.write_text(configuration(number, port, routes, f"{data}/{number}", is_synced=count > 1))
            stack.enter_context(_process([program, "--config", str(path)]))
        yield [f"nats://127.0.0.1:{port}" for port in ports]


def configuration(number: int, port: int, routes: list[int], data: str, *, is_synced: bool) -> str:
    """Return the configuration of one server; `routes`: the ports at which the servers find each other."""
    common = (
        f'server_name: "n{number}"\nlisten: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{data}"{", sync_interval: always" if is_synced else ""} }}\n'
    )
    if len(routes) == 1:
        return common
    others = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
    return common + f'cluster {{ name: "bench", listen: "127.0.0.1:{routes[number]}", routes: [{others}] }}\n'


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _pass_over(_error: Exception) -> None:
    """Servers that are not up yet; what matters is raised."""


class Nats:
    """Publishes to the stream and waits for its word that each message is stored."""

    def __init__(self, client: Any, stream: Any) -> None:
        self._client = client
        self._stream = stream

    @classmethod
    async def open(cls, addresses: list[str]) -> Nats:
        """Connect, and make the stream as soon as the servers have agreed on who leads."""
        library: Any = importlib.import_module("nats")
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            client = None
            try:
                client = await library.connect(servers=addresses, connect_timeout=2, error_cb=_pass_over)
                # Whoever asks before there is a leader is not answered at all.
                stream = client.jetstream(timeout=ASK_SECONDS)
                await stream.add_stream(name=STREAM, subjects=[STREAM], num_replicas=len(addresses), storage="file")
                return cls(client, client.jetstream(timeout=START_SECONDS_MAX))
            except (library.errors.Error, OSError):
                if client is not None:
                    await client.close()
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Publish so many messages of this size."""
        data = os.urandom(size)
        work, numbers = Run(count), iter(range(count))

        async def publish() -> None:
            for number in numbers:
                work.sent[number] = time.perf_counter()
                await self._stream.publish(STREAM, data, timeout=30)
                work.answered(number)

        await asyncio.gather(*(publish() for _ in range(in_flight)))
        return work

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()
