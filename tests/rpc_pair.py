"""Two sides of a connection for tests: without a transport, in memory on virtual time, or on TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from clymq.clock import Clock, ManualClock
from clymq.config import Config
from clymq.protocol.connection import Connection, Event
from clymq.protocol.frames import Buffer
from clymq.protocol.handshake import Hello, Window
from clymq.rpc import Endpoint
from clymq.rpc.memory import MemoryNetwork

T = TypeVar("T")

WINDOW = Window(requests=8, bytes=1 << 20, partition_requests=4, partition_bytes=1 << 19)
TICKS_MAX = 100_000


def hello(name: str = "them", **fields: Any) -> Hello:
    return Hello(**{"name": name, "role": "test", "window": WINDOW, "frame_bytes_max": 1 << 20, **fields})


def feed(connection: Connection, data: bytes, cuts: Iterable[int] = ()) -> list[Event]:
    """Give bytes to a connection, cut at these places and where its memory ends."""
    events: list[Event] = []
    edges = [*sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    at = 0
    for edge in edges:
        while at < edge:
            room = connection.get_buffer()
            count = min(len(room), edge - at)
            room[:count] = data[at : at + count]
            at += count
            del room
            events += connection.received(count)
    return events


def wire(made: tuple[list[Buffer], int]) -> bytes:
    data = b"".join(made[0])
    assert len(data) == made[1]
    return data


def opened(**fields: Any) -> tuple[Connection, Connection]:
    """Return a dialer and an acceptor after their handshake."""
    dialer, acceptor = Connection(hello("dialer", **fields)), Connection(hello("acceptor", **fields))
    feed(acceptor, wire(dialer.hello()))
    feed(dialer, wire(acceptor.hello()))
    return dialer, acceptor


def endpoint(
    clock: Clock, name: str, handlers: dict[type, Callable[[Any], None]] | None = None, **settings: Any
) -> Endpoint:
    return Endpoint(clock, Config(**settings), name=name, role="test", handlers=handlers)


def virtually(main: Callable[[ManualClock, MemoryNetwork], Awaitable[T]]) -> T:
    """Run a coroutine in memory; whenever nothing happens any more, a millisecond passes."""

    async def drive() -> T:
        clock = ManualClock()
        task = asyncio.ensure_future(main(clock, MemoryNetwork(clock)))
        for _ in range(TICKS_MAX):
            for _ in range(10):
                await asyncio.sleep(0)
            if task.done():
                return task.result()
            clock.advance(1)
        task.cancel()
        raise AssertionError(f"still waiting after {TICKS_MAX} ms")

    return asyncio.run(drive())


async def until(condition: Callable[[], object], clock: Clock) -> None:
    """Wait for a condition, looking every millisecond of the clock."""
    while not condition():
        passed = asyncio.Event()
        clock.call_later(1, passed.set)
        await passed.wait()
