"""A server that can serve no more ends with an error, so that whoever watches over it starts it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clymq.cli.serving import serve
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import BrokerReplaced, ClymqError, DiskFailed, UnknownServerError
from clymq.metadata.catalog import Catalog
from clymq.metadata.remote import RemoteStore
from clymq.node.broker import BrokerNode
from clymq.node.zkserver import ZkServerNode
from clymq.protocol.controller import BrokerConfig
from clymq.rpc.transport import TcpTransport
from clymq.storage.files import RealFiles
from rows import LONG_SECONDS, run

CONFIG = Config(session_timeout_ms=1000, disk_reserve_bytes=0)


class Failing:
    """A node that fails as soon as it serves."""

    def __init__(self) -> None:
        self.address = "127.0.0.1:1"
        self.closed = False

    async def start(self, address: str) -> None:
        del address

    async def failed(self) -> ClymqError:
        return DiskFailed("store", "commit to", "input/output error")

    async def close(self) -> None:
        self.closed = True


def test_a_command_whose_server_fails_raises_its_reason_once_everything_is_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = Failing()
    with pytest.raises(DiskFailed):
        serve("Zk", "127.0.0.1:0", lambda: node)
    assert node.closed
    assert capsys.readouterr().out == "ready Zk 127.0.0.1:1\n"


def test_a_zkserver_says_that_the_disk_of_its_store_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        transport, clock, chance = TcpTransport(), SystemClock(), random.Random(1)
        node = ZkServerNode.embedded("Zk", None, transport, clock, CONFIG, chance)
        await node.start("127.0.0.1:0")
        try:
            failed = asyncio.ensure_future(node.failed())
            await asyncio.sleep(0)
            assert node._engine is not None
            failure = DiskFailed("store", "commit to", "input/output error")

            def break_down(_work: object, done: object) -> None:
                assert node._engine is not None
                node._engine._file.failure = failure
                done(failure)  # type: ignore[operator]

            monkeypatch.setattr(node._engine._file, "transact", break_down)
            with pytest.raises(ClymqError):
                await node.store.create("/x", b"")
            async with asyncio.timeout(LONG_SECONDS):
                assert await failed is failure
        finally:
            await node.close()

    run(check())


@asynccontextmanager
async def one_broker(folder: object) -> AsyncIterator[tuple[ZkServerNode, BrokerNode]]:
    """A zkserver that serves, and a broker that is not started yet."""
    transport, clock, chance = TcpTransport(), SystemClock(), random.Random(2)
    zkserver = ZkServerNode.embedded("Zk", None, transport, clock, CONFIG, chance)
    await zkserver.start("127.0.0.1:0")
    files = RealFiles(sync_threads=1)
    broker = BrokerNode(
        "Broker0", f"{folder}/data",
        store=lambda: RemoteStore(
            transport, zkserver.address, clock, CONFIG, name="Broker0", chance=chance.random
        ),
        transport=transport, files=files, clock=clock, config=CONFIG, chance=chance,
    )  # fmt: skip
    try:
        yield zkserver, broker
    finally:
        await broker.close()
        await zkserver.close()
        files.close()


class Astray:
    """One broker's hosting, which meets what it has no name for, so often. Other brokers in the process do not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: BrokerNode, *, times: int) -> None:
        self.left = times
        self.applied = 0
        self._apply = broker.broker.hosting.apply
        monkeypatch.setattr(broker.broker.hosting, "apply", self._astray)

    async def _astray(self, config: BrokerConfig) -> None:
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("a state that cannot be")
        self.applied += 1
        await self._apply(config)


def test_a_broker_that_met_an_error_without_a_name_goes_on_hosting(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with one_broker(tmp_path) as (_, broker), asyncio.timeout(LONG_SECONDS):
            astray = Astray(monkeypatch, broker, times=1)
            await broker.start("127.0.0.1:0")
            assert astray.applied

    run(check())


def test_a_broker_that_cannot_host_ends_with_the_reason(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look alive, and everybody would wait for it."""

    async def check() -> None:
        monkeypatch.setattr("clymq.rpc.lasting.FAILURES_MAX", 2)
        async with one_broker(tmp_path) as (_, broker), asyncio.timeout(LONG_SECONDS):
            await broker.start("127.0.0.1:0")
            astray = Astray(monkeypatch, broker, times=0)
            astray.left = 1_000
            broker.broker.ask_again()
            assert "ZeroDivisionError" in str(await broker.failed())
        async with one_broker(tmp_path) as (_, broker), asyncio.timeout(LONG_SECONDS):
            Astray(monkeypatch, broker, times=1_000)
            with pytest.raises(UnknownServerError, match="ZeroDivisionError"):
                await broker.start("127.0.0.1:0")

    run(check())


def test_a_broker_that_finds_another_process_under_its_name_says_so_and_does_not_fight_for_it(tmp_path: object) -> None:
    async def check() -> None:
        async with one_broker(tmp_path) as (zkserver, broker):
            await broker.start("127.0.0.1:0")
            failed = asyncio.ensure_future(broker.failed())
            # Another process takes the name, and then the store ends this one's session.
            catalog = Catalog(zkserver.store)
            await catalog.announce_broker("Broker0", 12345, starting=True)
            assert zkserver._engine is not None
            await zkserver._engine.close_session(int(broker._store.session.id, 16))
            async with asyncio.timeout(LONG_SECONDS):
                assert isinstance(await failed, BrokerReplaced)
            state = await catalog.broker_state("Broker0")
            assert state is not None
            assert state.value.incarnation == 12345

    run(check())
