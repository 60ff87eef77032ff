"""The stores that the conformance suite runs on, each with what a test may do to it.

zookeeper   a real server, started by the code of `clymq zookeeper`; one for the whole run, a root for each test
embedded    the embedded store on a disk, served over TCP
local       the same engine in the process, without a socket
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from clymq.cli.zookeeper import ZookeeperServer
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.local import LocalStore
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.metadata.store import MetadataStore
from clymq.metadata.zookeeper import ZookeeperStore
from clymq.rpc import Endpoint, Server
from clymq.rpc.transport import TcpTransport
from cutting_proxy import CuttingProxy

REMOTE = ("zookeeper", "embedded")
ALL = (*REMOTE, "local")
TEST_SECONDS_MAX = 60
CONFIG = Config(session_timeout_ms=10_000, store_request_ms_max=2000, reconnect_ms_min=10, reconnect_ms_max=50)


class Subject:
    """One store under test. Whatever it opens is closed with it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = SystemClock()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    async def open(self, *, through: CuttingProxy | None = None, **settings: int) -> MetadataStore:
        """Open a client, maybe behind a proxy, with settings of its own."""
        store = self.client(msgspec.structs.replace(CONFIG, **settings), through)
        await store.open()
        self._closers.append(store.close)
        return store

    async def proxy(self) -> CuttingProxy:
        proxy = await CuttingProxy(self.address).start()
        self._closers.append(proxy.close)
        return proxy

    async def close(self) -> None:
        for close in reversed(self._closers):
            await close()

    address: str

    def client(self, config: Config, through: CuttingProxy | None) -> MetadataStore:
        raise NotImplementedError


class ZookeeperSubject(Subject):
    roots = itertools.count()

    def __init__(self, address: str) -> None:
        super().__init__("zookeeper")
        self.address = address
        self.root = f"/ClyMQ/test-{next(self.roots)}"

    def client(self, config: Config, through: CuttingProxy | None) -> MetadataStore:
        return ZookeeperStore(through.address if through else self.address, self.clock, config, root=self.root)


class EngineSubject(Subject):
    """The embedded store, served at `address` and usable in the process."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind)
        self._folder = folder
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        self.engine = Engine(StoreFile(str(self._folder)), self.clock)
        await self.engine.start()
        endpoint = Endpoint(
            self.clock, CONFIG, name="store", role="zkserver", handlers=StoreServer(self.engine).handlers()
        )
        self.server = Server(TcpTransport(), endpoint)
        await self.server.start(self.address)
        self.address = self.server.address

    async def stop(self) -> None:
        await self.server.close()
        await self.engine.close()

    async def close(self) -> None:
        await super().close()
        await self.stop()

    def client(self, config: Config, through: CuttingProxy | None) -> MetadataStore:
        if self.kind == "local":
            return LocalStore(self.engine, self.clock, config)
        address = through.address if through else self.address
        return RemoteStore(TcpTransport(), address, self.clock, config, name="client", chance=random.Random(1).random)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> ZookeeperServer:
    """A server for the whole run; without Java or the jars the tests fail with what to install."""
    server = ZookeeperServer(tmp_path_factory.mktemp("zookeeper") / "data")
    server.start()
    yield server
    server.stop()


@contextlib.asynccontextmanager
async def subject_of(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if kind == "zookeeper":
        subject: Subject = ZookeeperSubject(request.getfixturevalue("zookeeper").address)
    else:
        subject = EngineSubject(kind, request.getfixturevalue("tmp_path") / "store")
        await subject.start()
    try:
        yield subject
    finally:
        await subject.close()


def on(*kinds: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a coroutine function: it is run with each kind of subject, within a deadline."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def run(kind: str, request: pytest.FixtureRequest, **arguments: object) -> None:
            async with asyncio.timeout(TEST_SECONDS_MAX), subject_of(kind, request) as subject:
                await test(subject, **arguments)

        def synchronous(kind: str, request: pytest.FixtureRequest, **arguments: object) -> None:
            asyncio.run(run(kind, request, **arguments))

        # What pytest has to hand in: the kind, and whatever the test wants beside its subject.
        _, *wanted = inspect.signature(test).parameters.values()
        kind, request, _ = inspect.signature(synchronous).parameters.values()
        synchronous.__name__, synchronous.__doc__ = test.__name__, test.__doc__
        synchronous.__signature__ = inspect.Signature([kind, request, *wanted])
        return pytest.mark.parametrize("kind", kinds)(synchronous)

    return decorate


async def until(condition: Callable[[], Awaitable[bool]], what: str, *, seconds: float = 20) -> None:
    """Wait for a condition; say what did not happen."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within {seconds} s: {what}")
