"""The least that a broker can do: what comes by a socket goes into a file, and a number says how much of it is there.

One connection at a time, no event loop, no checksums, no sync. The first eight bytes of a connection say how long a
piece is; whenever pieces are written whole, the answer is how many there are so far. What was copied stays, as it does
in a log: to write over pages that the kernel has at hand already is another thing, and a faster one.

    python -m benchmarks.copier FILE
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

from benchmarks.pushing import Run
from benchmarks.skeleton import ANSWER, at_once

_BUFFER_BYTES = 1 << 20


def serve(path: str) -> None:
    """Copy, connection after connection, until the process is ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()[:2]
        sys.stdout.write(f"ready copier {host}:{port}\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            with connection:
                copy(connection, file)
            os.close(file)


def copy(connection: socket.socket, file: int) -> None:
    """Copy what one connection sends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (size,) = ANSWER.unpack(connection.recv(ANSWER.size, socket.MSG_WAITALL))
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    copied = 0
    while count := connection.recv_into(buffer):
        os.write(file, buffer[:count])
        before, copied = copied, copied + count
        if copied // size > before // size:
            connection.sendall(ANSWER.pack(copied // size))


class Copy(asyncio.Protocol):
    """Sends pieces to a copier, so many at a time; each run has a connection of its own."""

    def __init__(self, address: str) -> None:
        self._address = address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._rest = b""
        at_once(transport)

    def data_received(self, data: bytes) -> None:
        """The last whole number says how many pieces are there."""
        self._rest += data
        whole = len(self._rest) // ANSWER.size * ANSWER.size
        if whole:
            (reached,) = ANSWER.unpack_from(self._rest, whole - ANSWER.size)
            self._rest = self._rest[whole:]
            for number in range(len(self._work.taken), reached):
                self._work.answered(number)
                self._send()

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Send so many pieces of this size."""
        host, _, port = self._address.rpartition(":")
        await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        self._transport.write(ANSWER.pack(size))
        data = os.urandom(size)
        self._work, numbers = Run(count), iter(range(count))

        def send() -> None:
            for number in numbers:
                self._work.sent[number] = time.perf_counter()
                self._transport.write(data)
                return

        self._send = send
        for _ in range(in_flight):
            send()
        await self._work.over.wait()
        self._transport.close()
        return self._work


if __name__ == "__main__":
    serve(sys.argv[1])
