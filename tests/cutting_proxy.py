"""A TCP proxy between a client and its server that fails on command, at a place that the test names.

It runs on the event loop of the test. Bytes pass until told otherwise:

    proxy.cut_before(b"/x")     the connection is cut instead of passing on the bytes that hold this
    proxy.hold_after(b"/x")     these bytes still reach the server; its answers, from then on, do not come back
    proxy.cut()                 all connections are cut now
    proxy.refuse(); proxy.accept()
    proxy.freeze(); proxy.thaw()    connections stay, and nothing passes in either direction
"""

from __future__ import annotations

import asyncio


class CuttingProxy:
    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None
        self._cut_before: bytes | None = None
        self._hold_after: bytes | None = None
        self._refusing = False
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.struck = asyncio.Event()
        """Set when `cut_before` or `hold_after` has met its bytes."""
        self.connections_made = 0

    async def start(self) -> CuttingProxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.thaw()
        pairs = set(self._pairs)
        self.cut()
        await asyncio.gather(*(pair.ended.wait() for pair in pairs))
        await self._server.wait_closed()

    def cut_before(self, marker: bytes) -> None:
        self._cut_before = marker
        self.struck.clear()

    def hold_after(self, marker: bytes) -> None:
        self._hold_after = marker
        self.struck.clear()

    def cut(self) -> None:
        for pair in set(self._pairs):
            pair.cut()

    def refuse(self) -> None:
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def freeze(self) -> None:
        self.thawed.clear()

    def thaw(self) -> None:
        self.thawed.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections_made += 1
        pair = _Pair(self, writer)
        self._pairs.add(pair)
        try:
            if not self._refusing:
                await pair.run(reader, self._host, self._port)
        except OSError:
            pass
        finally:
            pair.cut()
            self._pairs.discard(pair)
            pair.ended.set()

    def may_pass(self, pair: _Pair, data: bytes) -> bool:
        """Look at what a client sends."""
        if self._cut_before is not None and self._cut_before in data:
            self._cut_before = None
            self.struck.set()
            return False
        if self._hold_after is not None and self._hold_after in data:
            self._hold_after = None
            pair.holding = True
            self.struck.set()
        return True


class _Pair:
    """One connection of a client and the one to the server that belongs to it."""

    def __init__(self, proxy: CuttingProxy, client: asyncio.StreamWriter) -> None:
        self.holding = False
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._client = client
        self._server: asyncio.StreamWriter | None = None

    async def run(self, from_client: asyncio.StreamReader, host: str, port: int) -> None:
        from_server, self._server = await asyncio.open_connection(host, port)
        answers = asyncio.create_task(self._answers(from_server))
        try:
            while data := await from_client.read(65536):
                await self._proxy.thawed.wait()
                if not self._proxy.may_pass(self, data):
                    return
                self._server.write(data)
        finally:
            self.cut()
            await asyncio.gather(answers, return_exceptions=True)

    async def _answers(self, from_server: asyncio.StreamReader) -> None:
        while data := await from_server.read(65536):
            await self._proxy.thawed.wait()
            if not self.holding:
                self._client.write(data)
        self.cut()

    def cut(self) -> None:
        for writer in (self._client, self._server):
            if writer is not None:
                writer.transport.abort()
