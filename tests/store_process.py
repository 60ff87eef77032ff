"""An embedded store in a process of its own, for tests that kill or stop it: `store_process.py FOLDER PORT`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.server import StoreServer
from clymq.rpc import Endpoint, Server
from clymq.rpc.transport import TcpTransport


class StoreProcess:
    """Runs this file as a child. After `start` it serves at `address`, the same one each time."""

    def __init__(self, folder: Path) -> None:
        self.address = "127.0.0.1:0"
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        port = self.address.rpartition(":")[2]
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._folder), port], stdout=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline().split()
        assert line[:1] == ["ready"], line
        self.address = line[1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            process.stdout.close()


async def serve(folder: str, port: str) -> None:
    clock = SystemClock()
    engine = Engine(StoreFile(folder), clock)
    try:
        await engine.start()
    except ClymqError as error:
        sys.exit(f"{error.code}: {error}")
    endpoint = Endpoint(clock, Config(), name="store", role="zkserver", handlers=StoreServer(engine).handlers())
    server = Server(TcpTransport(), endpoint)
    await server.start(f"127.0.0.1:{port}")
    sys.stdout.write(f"ready {server.address}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
