"""`clymq zookeeper` and the store on it: the command to the letter, and what a restart of the server costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clymq.cli.main import run
from clymq.cli.zookeeper import ZookeeperServer, find_jars
from clymq.client.admin import AsyncAdmin
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, ConnectFailed, ConnectionLost, NodeExists
from clymq.metadata.store import Create
from clymq.metadata.zookeeper import ZookeeperStore
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until_asked
from cutting_proxy import CuttingProxy
from store_subjects import until, zookeeper

__all__ = ["zookeeper"]  # the fixture

COMMAND = "from clymq.cli.main import main; main()"
CONFIG = Config(session_timeout_ms=1500, store_request_ms_max=1000)


@contextlib.asynccontextmanager
async def opened(address: str, *, root: str = "/ClyMQ", config: Config = CONFIG) -> AsyncIterator[ZookeeperStore]:
    store = ZookeeperStore(address, SystemClock(), config, root=root)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def command(data: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "zookeeper", "--data", str(data), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_when_it_serves_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    process = command(tmp_path / "data", "--port", "0")
    try:
        word, name, address = process.stdout.readline().split()
        assert (word, name) == ("ready", "zookeeper")
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700

        async def use() -> None:
            async with opened(address) as store:
                await store.create("/a")

        asyncio.run(use())
        process.send_signal(number)
        assert process.wait(20) == 0
        assert process.stdout.read() == ""
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), timeout=1).close()
    finally:
        process.kill()
        process.communicate()


def test_it_listens_on_the_loopback_interface_only(zookeeper: ZookeeperServer) -> None:
    port = int(zookeeper.address.rpartition(":")[2])
    listening = {
        line.split()[1].partition(":")[0]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    }
    assert listening <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert listening


def test_without_java_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(["zookeeper", "--data", str(tmp_path / "data")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "apt-get install openjdk-17-jre-headless" in told.err
    assert not (tmp_path / "data").exists()


def test_without_the_jars_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jars = find_jars()
    assert len(jars) == 5
    monkeypatch.setattr("clymq.cli.zookeeper._places", lambda: iter([tmp_path]))
    for jar in jars[1:]:
        (tmp_path / jar.name).touch()
    assert run(["zookeeper", "--data", str(tmp_path / "data")]) == 2
    assert "pip install" in capsys.readouterr().err


def test_jars_are_found_with_and_without_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clymq.cli.zookeeper._places", lambda: iter([tmp_path / "none", tmp_path]))
    names = ["zookeeper.jar", "zookeeper-jute.jar", "slf4j-api-2.0.jar", "metrics-core.jar", "snappy-java.jar"]
    for name in (*names, "zookeeper-prometheus-metrics-3.9.jar"):
        (tmp_path / name).touch()
    assert sorted(jar.name for jar in find_jars()) == sorted(names)


@pytest.mark.parametrize(
    "flags",
    [
        ["--member", "1"],
        ["--ensemble", "2881:3881,2882:3882"],
        ["--ensemble", "2881,2882", "--member", "1"],
        ["--ensemble", "2881:3881,2882:3882", "--member", "3"],
    ],
)
def test_half_an_ensemble_is_refused_with_the_rule(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["zookeeper", "--data", str(tmp_path / "data"), *flags]) == 2
    assert "go together" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_an_ensemble_of_three_serves_on_without_one_and_not_without_two(tmp_path: Path) -> None:
    async def use(cluster: ProcessCluster) -> None:
        members = cluster.zookeepers
        async with opened(",".join(cluster.processes.address(name) for name in members)) as store:
            await store.create("/before")
            await asyncio.to_thread(cluster.kill, members[0])
            await until_asked(lambda: made(store, "/without-one"), "one is missed by nobody", seconds_max=60)
            await asyncio.to_thread(cluster.kill, members[1])
            with pytest.raises(ClymqError):
                await store.create("/without-two")
            await asyncio.to_thread(cluster.start, *members[:2])
        # They come back at other ports, which brokers reach by the same way as before.
        async with opened(",".join(cluster.processes.address(name) for name in members)) as store:
            await store.get("/without-one")
            assert "before" in await store.children("/")
        async with AsyncAdmin(cluster.bootstrap, timeout=60) as admin:
            await admin.create_topic("t", replicas=1)

    with ProcessCluster(1, 1, "zookeeper", zookeepers=3, folder=tmp_path) as cluster:
        assert cluster.zookeepers == ("zookeeper0", "zookeeper1", "zookeeper2")
        asyncio.run(use(cluster))


async def made(store: ZookeeperStore, path: str) -> bool:
    try:
        await store.create(path)
    except ClymqError as error:
        return isinstance(error, NodeExists)
    return True


def test_a_server_that_cannot_start_says_where_to_look(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ZookeeperServer(tmp_path / "data", taken.getsockname()[1])
        with pytest.raises(ConnectFailed, match="exit code") as caught:
            server.start()
    assert "zookeeper.log" in str(caught.value)


def test_no_server_is_an_error_in_time(tmp_path: Path) -> None:
    async def test() -> None:
        store = ZookeeperStore("127.0.0.1:1", SystemClock(), Config(store_request_ms_max=200))
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            await store.open()
        await store.close()

    asyncio.run(test())


def test_the_root_is_made_and_two_roots_do_not_see_each_other(zookeeper: ZookeeperServer) -> None:
    async def test() -> None:
        async with (
            opened(zookeeper.address, root="/deep/er/one") as one,
            opened(zookeeper.address, root="/deep/er/two") as two,
            opened(zookeeper.address, root="/") as top,
        ):
            await one.create("/a", b"one")
            assert await two.children("/") == []
            assert (await top.get("/deep/er/one/a")).value == b"one"

    asyncio.run(test())


def test_the_timeout_is_the_one_that_the_server_grants(zookeeper: ZookeeperServer) -> None:
    async def test() -> None:
        # It grants 2 to 20 ticks of 500 ms.
        async with opened(zookeeper.address, config=Config(session_timeout_ms=60_000)) as store:
            assert store.session.timeout_ms == 10_000

    asyncio.run(test())


def test_a_handshake_that_is_never_answered_does_not_cost_the_session(zookeeper: ZookeeperServer) -> None:
    """A server that is just starting accepts connections, and forgets what they ask."""

    async def test() -> None:
        config = Config(session_timeout_ms=6000, store_request_ms_max=1000)
        proxy = await CuttingProxy(zookeeper.address).start()
        try:
            async with opened(proxy.address, root="/handshake", config=config) as store:
                before = store.session.id
                proxy.cut()
                proxy.hold_after(b"\0")  # whatever comes first

                async def answers() -> bool:
                    with contextlib.suppress(ConnectFailed, ConnectionLost):
                        await store.sync()
                        return True
                    return False

                await until_asked(answers, "the store answers", seconds_max=4)
                assert proxy.struck.is_set()
                assert (store.session.id, store.session.lost) == (before, False)
        finally:
            await proxy.close()

    asyncio.run(test())


def test_a_server_that_was_killed_and_restarted_later_than_the_timeout_expires_nobody(tmp_path: Path) -> None:
    async def test(server: ZookeeperServer) -> None:
        # Long enough that a busy machine's slow start of Java, and the pauses between two attempts to connect, fit in.
        clock, config = SystemClock(), Config(session_timeout_ms=6000, store_request_ms_max=1000)
        async with opened(server.address, config=config) as store, opened(server.address, config=config) as other:
            await store.create("/e", ephemeral=True)
            before, killed_at_ms = store.session.id, clock.monotonic_ms()
            os.kill(server.pid, signal.SIGKILL)

            async def long_enough() -> bool:
                return clock.monotonic_ms() - killed_at_ms > config.session_timeout_ms

            await until(long_enough, "the server was away for a timeout")
            server.stop()
            await asyncio.to_thread(server.start)
            await store.commit([Create("/after")], timeout_ms=20_000)
            assert (store.session.id, store.session.lost) == (before, False)
            await other.commit([Create("/other")], timeout_ms=20_000)  # it may still be pausing before it connects
            await other.sync()
            found = await other.exists("/e")
            assert found is not None
            assert found.ephemeral_owner == before

    server = ZookeeperServer(tmp_path / "data")
    server.start()
    try:
        asyncio.run(test(server))
    finally:
        server.stop()
