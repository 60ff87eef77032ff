"""What the machine itself can do with the same bytes, by promise: nothing that a queue does can be faster.

    python -m benchmarks.peers.raw WHAT SECONDS     prints {"mb_per_second": ...}

* `copy`: from a socket to a file, without a sync (`copier`);
* `synced`: one writer that appends 1 MiB and syncs, again and again;
* `majority`: three processes that check, write, forward, sync and count to two (`skeleton`);
* `send`: from a file to another process by `sendfile`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from benchmarks.copier import Copy
from benchmarks.peers.system import Promise
from benchmarks.processes import folder, python
from benchmarks.pushing import MEGA, Bare, Pusher
from benchmarks.raft_processes import skeleton

PIECE_BYTES = 64 * 1024
CHUNK_BYTES = 1 << 20
FILE_BYTES = 256 << 20
IN_FLIGHT = 32
TRIED = 200


def writing(promise: Promise) -> str | None:
    """Return what is the limit of writing under a promise; None if nothing here is comparable."""
    if promise.replicas == 1:
        return "synced" if promise.synced else "copy"
    return "majority" if promise.synced else None


def copy(seconds: float) -> float:
    """Return bytes a second."""
    with folder() as data, python(["-m", "benchmarks.copier", f"{data}/copy"]) as server:
        return asyncio.run(_push(Copy(server.address), seconds))


def majority(seconds: float) -> float:
    """Return bytes a second."""

    async def push(address: str) -> float:
        return await _push(await Bare.open(address), seconds)

    with skeleton() as address:
        return asyncio.run(push(address))


async def _push(pusher: Pusher, seconds: float) -> float:
    """Push for about so long: as many as a short try lets one expect."""
    tried = await pusher.push(PIECE_BYTES, IN_FLIGHT, TRIED)
    run = await pusher.push(PIECE_BYTES, IN_FLIGHT, max(TRIED, int(TRIED * seconds / tried.seconds)))
    return len(run.sent) * PIECE_BYTES / run.seconds


def synced(seconds: float) -> float:
    """Return bytes a second."""
    piece, count = os.urandom(CHUNK_BYTES), 0
    with folder() as data, (Path(data) / "synced").open("wb", buffering=0) as file:
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            file.write(piece)
            os.fdatasync(file.fileno())
            count += 1
        return count * CHUNK_BYTES / (time.perf_counter() - began)


def send(seconds: float) -> float:
    """Return bytes a second."""
    with folder() as data:
        path = Path(data) / "sent"
        path.write_bytes(os.urandom(CHUNK_BYTES) * (FILE_BYTES // CHUNK_BYTES))
        ours, theirs = socket.socketpair()
        with ours, theirs, path.open("rb") as file:
            sender = threading.Thread(target=_send, args=(theirs, file.fileno()), daemon=True)
            sender.start()
            buffer, count, began = bytearray(CHUNK_BYTES), 0, time.perf_counter()
            while time.perf_counter() < began + seconds:
                count += ours.recv_into(buffer)
            return count / (time.perf_counter() - began)


def _send(connection: socket.socket, file: int) -> None:
    try:
        while True:
            position = 0
            while position < FILE_BYTES:
                position += os.sendfile(connection.fileno(), file, position, CHUNK_BYTES)
    except OSError:  # the reader has had enough
        return


LIMITS = {"copy": copy, "synced": synced, "majority": majority, "send": send}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"mb_per_second": LIMITS[sys.argv[1]](float(sys.argv[2])) / MEGA}) + "\n")
