"""The least that three processes can do before they may say "stored": check, write, forward, sync, count to two.

No consensus, no de-duplication, no recovery: a leader that only checks a batch's checksum, writes it, sends it to two
followers and answers when its own disk and one other, or both others, have synced it. What ours costs on top of this is
the price of every promise that this one does not make.

A frame is length, number and checksum of the bytes that follow; an answer is a number.

    python -m benchmarks.skeleton DATA [HOST:PORT of each follower]
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial

from crc32c import crc32c

FRAME = struct.Struct("<IQI")
ANSWER = struct.Struct("<Q")
_BUFFER_BYTES = 8 << 20
_ROOM_BYTES = 1 << 20

Frames = list[tuple[int, memoryview]]
Take = Callable[["Receiver", Frames], None]


class Receiver(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and hands over all that are whole, at once."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        at_once(transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 the size is ours to choose
        """Return where the next bytes go."""
        if _BUFFER_BYTES - self._end < _ROOM_BYTES:
            rest = bytes(self._view[self._start : self._end])
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Look for whole frames."""
        self._end += count
        frames: Frames = []
        while self._end - self._start >= FRAME.size:
            length, number, _ = FRAME.unpack_from(self._buffer, self._start)
            end = self._start + FRAME.size + length
            if end > self._end:
                break
            frames.append((number, self._view[self._start : end]))
            self._start = end
        if frames:
            self._take(self, frames)


class Disk:
    """Writes at once, and syncs in a thread as often as it can; what gathers in between is one sync."""

    def __init__(self, path: str, synced: Callable[[int], None]) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        self._synced = synced
        self._written = 0
        self._task: asyncio.Task[None] | None = None

    def write(self, frames: Frames) -> None:
        """Write frames whose checksums are right."""
        for _, frame in frames:
            if crc32c(frame[FRAME.size :]) != FRAME.unpack_from(frame)[2]:
                raise ValueError("a frame is damaged")
        os.writev(self._file, [frame for _, frame in frames])
        self._written += len(frames)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        reached = 0
        while reached < self._written:
            reached = self._written
            await asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._file)
            self._synced(reached)
        self._task = None


class Numbers(asyncio.Protocol):
    """The answers of a follower: how many frames it has synced."""

    def __init__(self, take: Callable[[int], None]) -> None:
        self._take = take
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Answers must not wait for each other."""
        at_once(transport)

    def data_received(self, data: bytes) -> None:
        """The last whole number is the one that counts."""
        self._rest += data
        whole = len(self._rest) // ANSWER.size * ANSWER.size
        if whole:
            self._take(ANSWER.unpack_from(self._rest, whole - ANSWER.size)[0])
            self._rest = self._rest[whole:]


class Leader:
    """Answers a frame when two of three disks have it."""

    def __init__(self, path: str, followers: Sequence[asyncio.WriteTransport]) -> None:
        self.match = [0, 0, 0]
        self._followers = followers
        self._disk = Disk(path, lambda count: self.reached(0, count))
        self._waiting: list[tuple[Receiver, int]] = []
        self._answered = 0

    def take(self, client: Receiver, frames: Frames) -> None:
        """Write and forward."""
        self._waiting += [(client, number) for number, _ in frames]
        self._disk.write(frames)
        data = b"".join(frame for _, frame in frames)
        for follower in self._followers:
            follower.write(data)

    def reached(self, replica: int, count: int) -> None:
        """A disk has come so far."""
        self.match[replica] = count
        agreed = sorted(self.match)[1]
        ready, self._waiting = self._waiting[: agreed - self._answered], self._waiting[agreed - self._answered :]
        self._answered = agreed
        for client in {client for client, _ in ready}:
            client.transport.write(b"".join(ANSWER.pack(number) for each, number in ready if each is client))


def at_once(transport: asyncio.BaseTransport) -> None:
    """Let small messages go without waiting for more, and large ones pile up rather than fail."""
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(transport, asyncio.WriteTransport):
        transport.set_write_buffer_limits(64 << 20)


async def lead(path: str, followers: Sequence[str]) -> Take:
    """Connect to the followers; return what takes a client's frames."""
    transports: list[asyncio.WriteTransport] = []
    leader = Leader(path, transports)
    for number, address in enumerate(followers, start=1):
        host, _, port = address.rpartition(":")
        numbers = Numbers(partial(leader.reached, number))
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda numbers=numbers: numbers, host, int(port))  # type: ignore[misc]
        transports.append(transport)
    return leader.take


def follow(path: str) -> Take:
    """Return what takes a leader's frames."""
    upstream: list[Receiver] = []
    disk = Disk(path, lambda count: upstream[-1].transport.write(ANSWER.pack(count)))

    def take(connection: Receiver, frames: Frames) -> None:
        upstream[:] = [connection]
        disk.write(frames)

    return take


async def serve(path: str, followers: Sequence[str]) -> None:
    """Be a leader if followers are named, else a follower."""
    take = await lead(path, followers) if followers else follow(path)
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(take), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    sys.stdout.write(f"ready skeleton {host}:{port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2:]))
