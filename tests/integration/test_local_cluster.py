"""A cluster inside the test's own process: soon there, whole, breakable, and gone without a trace; and as a fixture."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.errors import InvalidRequest, NotController, RequestTimeout
from clymq.metadata.catalog import Catalog
from clymq.node.broker import BrokerNode
from clymq.protocol.controller import BrokerConfig
from clymq.testing import LocalCluster
from clymq.testing.waiting import until, until_asked, wait_until
from rows import LONG_SECONDS, descriptors, refusal, run

ROOT = Path(__file__).parents[2]


async def push(cluster: LocalCluster, value: bytes, *, timeout: float = LONG_SECONDS) -> int | None:
    async with AsyncProducer(cluster.bootstrap, timeout=timeout) as producer:
        return (await producer.push("t", value)).offset


async def read(cluster: LocalCluster, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with AsyncConsumer(cluster.bootstrap) as consumer:
        await consumer.assign("t", "0")
        while len(found) < count:
            messages = await consumer.pull(timeout=LONG_SECONDS)
            assert len(messages) > 0
            found += [message.value for message in messages]
    return found


async def make(cluster: LocalCluster) -> None:
    async with AsyncAdmin(cluster.bootstrap) as admin:
        await admin.create_topic("t")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("clymq")}


def test_one_broker_is_there_soon_and_leaves_nothing_behind(clymq_cluster: LocalCluster) -> None:
    """The fixture's cluster is there already, so that what is measured is not the time that Python takes to import."""
    before, open_before = threads(), descriptors()
    began = time.process_time()
    with LocalCluster() as cluster:
        # In processor time, which does not depend on what else the machine is doing.
        assert time.process_time() - began < 1.0
        assert cluster.brokers == ("Broker0",)
        run(make(cluster))
        assert cluster.leader("t", "0") == "Broker0"
        assert run(push(cluster, b"1")) == 0
        assert run(read(cluster, 1)) == [b"1"]
        folder = cluster.folder
        assert folder.is_dir()
    assert not folder.exists()
    assert threads() == before
    assert descriptors() <= open_before


def test_what_readers_get_of_a_log_leaves_from_its_file(
    clymq_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on its way from the block to the socket has made a copy of it."""
    values = [number.to_bytes(4, "big") * 2500 for number in range(1000)]
    sendfile, taken = os.sendfile, 0

    def note(to: int, descriptor: int, position: int, count: int) -> int:
        nonlocal taken
        sent = sendfile(to, descriptor, position, count)
        taken += sent
        return sent

    monkeypatch.setattr(os, "sendfile", note)

    async def test() -> None:
        async with AsyncProducer(clymq_cluster.bootstrap) as producer, AsyncConsumer(clymq_cluster.bootstrap) as reader:
            await producer.create_topic("from-its-file")
            await producer.push_many("from-its-file", values)
            await reader.assign("from-its-file", "0")
            found: list[bytes] = []
            while len(found) < len(values):
                found += [message.value for message in await reader.pull(timeout=LONG_SECONDS)]
            assert found == values

    run(test())
    assert taken > 0.8 * 10_000 * len(values)


def test_a_failed_start_leaves_nothing_behind_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise NotController("not today")

    monkeypatch.setattr(Catalog, "register_broker", fail)
    before, open_before = threads(), descriptors()
    cluster = LocalCluster()
    with pytest.raises(NotController):
        cluster.open()
    assert not cluster.folder.exists()
    assert threads() == before
    assert descriptors() <= open_before


def test_servers_are_stopped_and_started_with_what_they_had() -> None:
    async def check() -> None:
        async with LocalCluster(config={"session_timeout_ms": 1500}) as cluster:
            await make(cluster)
            assert await push(cluster, b"1") == 0
            addresses = cluster.addresses
            for name in ("Broker0", "ZkServer0"):
                await asyncio.to_thread(cluster.stop, name)
                await asyncio.to_thread(cluster.start, name)
            assert cluster.addresses == addresses
            assert await push(cluster, b"2") == 1
            assert await read(cluster, 2) == [b"1", b"2"]

    run(check())


@pytest.mark.quick_skip
def test_a_killed_leader_is_replaced_and_a_frozen_one_acknowledges_nothing() -> None:
    async def check() -> None:
        async with LocalCluster(3, config={"session_timeout_ms": 1500}) as cluster:
            await make(cluster)
            assert await push(cluster, b"1") == 0
            leader = await asyncio.to_thread(cluster.leader, "t", "0")
            await asyncio.to_thread(cluster.kill, leader)
            assert await push(cluster, b"2") == 1
            second = await asyncio.to_thread(cluster.leader, "t", "0")
            assert second != leader
            cluster.freeze(second)  # one of three is left
            assert isinstance(await refusal(push(cluster, b"3", timeout=1.0)), RequestTimeout)
            await asyncio.to_thread(cluster.kill, second)
            await asyncio.to_thread(cluster.start, leader)
            assert await push(cluster, b"4") in {2, 3}
            await asyncio.to_thread(cluster.start, second)
            found = await read(cluster, 3)
            assert [value for value in found if value != b"3"] == [b"1", b"2", b"4"]

    run(check())


@pytest.mark.quick_skip
def test_a_leader_that_can_serve_no_more_is_as_if_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a process of its own it would end; here it must not stay and look alive."""

    async def astray(_: BrokerConfig) -> None:
        raise ZeroDivisionError("a state that cannot be")

    with LocalCluster(3, config={"session_timeout_ms": 1000, "controller_tick_ms": 100}) as cluster:
        run(make(cluster))
        assert run(push(cluster, b"1")) == 0
        leader = cluster.leader("t", "0")
        node = cluster._servers[leader]._node
        assert isinstance(node, BrokerNode)
        monkeypatch.setattr("clymq.rpc.lasting.FAILURES_MAX", 1)
        monkeypatch.setattr(node.broker.hosting, "apply", astray)
        cluster._servers[leader]._background.call(node.broker.ask_again)
        assert run(push(cluster, b"2")) is not None
        wait_until(lambda: cluster.leader("t", "0") != leader, "another leads", seconds_max=LONG_SECONDS)
        assert "a state that cannot be" in caplog.text
        cluster.kill(leader)
        cluster.start(leader)
        assert run(read(cluster, 2)) == [b"1", b"2"]


@pytest.mark.quick_skip
def test_a_leader_that_is_cut_off_is_replaced_and_follows_after_the_heal() -> None:
    async def check() -> None:
        async with LocalCluster(3, config={"session_timeout_ms": 1500}) as cluster:
            await make(cluster)
            assert await push(cluster, b"before") == 0
            leader = await asyncio.to_thread(cluster.leader, "t", "0")
            others = [name for name in cluster.brokers if name != leader]
            for other in others:
                cluster.partition(leader, other)
            assert await push(cluster, b"meanwhile") == 1
            assert await asyncio.to_thread(cluster.leader, "t", "0") in others
            cluster.heal()
            await until(lambda: replicas_agree(cluster), "all replicas are equal", seconds_max=LONG_SECONDS)
            assert await read(cluster, 2) == [b"before", b"meanwhile"]

    run(check())


def replicas_agree(cluster: LocalCluster) -> bool:
    return len({stored(cluster, name) for name in cluster.brokers}) == 1


def stored(cluster: LocalCluster, broker: str) -> bytes:
    """All that a broker has of the topic, block by block."""
    blocks = sorted((cluster.folder / broker).glob("t~*/*/Block_*/batches"))
    assert blocks
    return b"".join(block.read_bytes() for block in blocks)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_broker_that_is_cut_off_from_the_zkserver_is_offline_until_the_heal(is_frozen: bool) -> None:
    async def check() -> None:
        async with (
            LocalCluster(2, config={"session_timeout_ms": 500}) as cluster,
            AsyncAdmin(cluster.bootstrap) as admin,
        ):

            async def online(*names: str) -> bool:
                return [each["name"] for each in (await admin.status())["brokers"] if each["online"]] == list(names)

            await until_asked(lambda: online("Broker0", "Broker1"), "both are there", seconds_max=LONG_SECONDS)
            if is_frozen:
                cluster.freeze("Broker1")
            cluster.partition("Broker1", "ZkServer0")
            cluster.thaw("Broker1")
            await until_asked(lambda: online("Broker0"), "Broker1 is offline", seconds_max=LONG_SECONDS)
            cluster.heal()
            await until_asked(lambda: online("Broker0", "Broker1"), "Broker1 is back", seconds_max=LONG_SECONDS)

    run(check())


@pytest.mark.quick_skip
def test_servers_that_are_started_again_are_still_cut_off_from_each_other() -> None:
    async def check() -> None:
        async with LocalCluster(2, config={"session_timeout_ms": 1500}) as cluster:
            await make(cluster)  # on both: neither is a majority alone
            assert await push(cluster, b"1") == 0
            cluster.partition("Broker0", "Broker1")
            assert isinstance(await refusal(push(cluster, b"2", timeout=1.0)), RequestTimeout)
            for name in cluster.brokers:
                await asyncio.to_thread(cluster.kill, name)
                await asyncio.to_thread(cluster.start, name)
            assert isinstance(await refusal(push(cluster, b"3", timeout=1.0)), RequestTimeout)
            cluster.heal()
            assert await push(cluster, b"4") is not None

    run(check())


@pytest.mark.parametrize("other", ["Broker7", "Broker0"])
def test_a_server_is_not_cut_off_from_a_stranger_or_from_itself(clymq_cluster: LocalCluster, other: str) -> None:
    with pytest.raises(InvalidRequest, match=other):
        clymq_cluster.partition("Broker0", other)


def test_the_fixtures_serve_a_user_s_test_as_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    example = next(code for code in re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL) if "clymq_bootstrap" in code)
    (tmp_path / "test_mine.py").write_text(example, encoding="utf-8")
    run_pytest = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    plugin = ["-p", "clymq.testing.plugin"] if not plugin_is_installed() else []

    async def check() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *run_pytest, *plugin, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        told, _ = await process.communicate()
        return process.returncode, told.decode()

    code, told = run(check())
    assert (code, "1 passed" in told) == (0, True), told


def plugin_is_installed() -> bool:
    from importlib.metadata import entry_points  # noqa: PLC0415

    return any(each.value == "clymq.testing.plugin" for each in entry_points(group="pytest11"))
