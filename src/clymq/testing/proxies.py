"""A network of proxies: each process reaches each other one through a port that this test holds.

Works without any permission. The ports are bound once and stay, so that processes may come and go at any free port of
their own: nobody else can take a port that a test relies on. It runs on a thread of its own; what a test does meanwhile
does not slow it down, and calls may come from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from clymq.testing.background import Background

HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 64 * 1024


class Proxies:
    """See the module."""

    kind = "proxies"

    def __init__(self, names: Sequence[str], *, host: str = HOST, targets: Sequence[str] | None = None) -> None:
        """`host`: where processes find the ports. `targets`: who is reached through them, if not all are."""
        pairs = [(source, target) for source in names for target in targets or names if source != target]
        self._host = host
        self._background = Background("clymq-proxies")
        self._ports = pairs
        self._ways = {way: _Way() for one, other in pairs for way in ((one, other), (other, one))}
        self._servers: dict[tuple[str, str], asyncio.Server] = {}
        self._serving: dict[str, str] = {}
        self._open: dict[asyncio.StreamWriter, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- Begin and end ---

    def start(self) -> None:
        """Listen for every pair."""
        self._background.start()
        self._background.run(self._listen())

    def close(self) -> None:
        """Drop all connections and let go of the ports."""
        if self._servers:
            self._background.run(self._drop(self._servers))
            self._background.run(self._stop_listening())
        self._background.close()

    async def _listen(self) -> None:
        for pair in self._ports:
            self._servers[pair] = await asyncio.start_server(partial(self._accept, *pair), self._host, 0)

    async def _stop_listening(self) -> None:
        servers, self._servers = self._servers, {}
        for server in servers.values():
            server.close()
            await server.wait_closed()

    # --- What processes need ---

    def command(self, name: str, command: Sequence[str]) -> Sequence[str]:
        """Return `command`: every process is in the same place."""
        del name
        return command

    def listen_address(self, name: str) -> str:
        """Return where a process must listen: at any free port."""
        del name
        return f"{HOST}:0"

    def serves(self, name: str, address: str) -> None:
        """Lead to this address from now on."""
        self._serving[name] = address

    def address(self, source: str, target: str) -> str:
        """Return the port that leads from one process to the other."""
        return f"{self._host}:{self._servers[source, target].sockets[0].getsockname()[1]}"

    # --- Faults ---

    def partition(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Keep back all bytes between two processes, or those from `source` to `target`."""
        self._background.run(self._cut([(source, target)] if one_way else [(source, target), (target, source)]))

    def heal(self) -> None:
        """Let all bytes through, those that were kept back first, and at once."""
        self._background.run(self._heal())

    def delay(self, source: str, target: str, milliseconds: float) -> None:
        """Let what `source` sends to `target` be late, until `heal`."""
        self._ways[source, target].delay_seconds = milliseconds / 1000

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two processes; they may connect again."""
        self._background.run(self._drop([(one, other), (other, one)]))

    # --- On the other thread ---

    async def _cut(self, pairs: Sequence[tuple[str, str]]) -> None:
        for pair in pairs:
            self._ways[pair].open.clear()

    async def _heal(self) -> None:
        for way in self._ways.values():
            way.delay_seconds = 0.0
            way.open.set()

    async def _drop(self, pairs: Collection[tuple[str, str]]) -> None:
        for writer, pair in tuple(self._open.items()):
            if pair in pairs:
                writer.transport.abort()

    def _accept(self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # In a task of our own: what asyncio would make of a coroutine complains when it is cancelled (in 3.11).
        task = asyncio.create_task(self._serve(source, target, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection, from the first byte to the last. While the pair is cut, it is not even made."""
        there, back = self._ways[source, target], self._ways[target, source]
        beyond: asyncio.StreamWriter | None = None
        self._open[writer] = (source, target)
        try:
            await there.open.wait()
            await back.open.wait()
            host, _, port = self._serving.get(target, "").rpartition(":")
            answers, beyond = await asyncio.open_connection(host, int(port))
            self._open[beyond] = (source, target)
            await asyncio.gather(there.carry(reader, beyond), back.carry(answers, writer))
        except (OSError, ValueError):
            # The process is not there, or one of the two is gone: the other one finds out by the end of its side.
            pass
        finally:
            for each in (writer, beyond):
                if each is not None:
                    self._open.pop(each, None)
                    each.transport.abort()
                    with suppress(OSError):
                        await each.wait_closed()


class _Way:
    """From one process to another."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.delay_seconds = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on, and the end of them, as long as the way is open; keep them back while it is not."""
        while True:
            data = await reader.read(_CHUNK_BYTES)
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            await self.open.wait()
            if not data:
                break
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()
