"""`clymq broker --with-zkserver`: one process that is both; and what a server says whose port is taken."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.cli.zookeeper import find_jars, find_java
from clymq.errors import ConfigError
from clymq.testing.processes import Processes
from clymq.testing.waiting import until_asked
from rows import LONG_SECONDS, run

CLYMQ = (sys.executable, "-c", "from clymq.cli.main import main; main()")
SETTINGS = {"CLYMQ_SESSION_TIMEOUT_MS": "2000", "CLYMQ_CONTROLLER_TICK_MS": "200"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path / "logs") as servers:
        yield servers


def add_broker(servers: Processes, folder: Path, name: str, *arguments: str) -> None:
    data = ("--data", str(folder / name), "--name", name, "--listen", "127.0.0.1:0")
    servers.add(name, (*CLYMQ, "broker", *data, *arguments), environment=SETTINGS)


async def push_and_read(bootstrap: str, topic: str) -> None:
    async with AsyncProducer(bootstrap, timeout=LONG_SECONDS) as producer, AsyncConsumer(bootstrap) as consumer:
        offset = (await producer.push(topic, b"x")).offset
        assert offset is not None
        await consumer.assign(topic, "0", offset)
        assert [message.value for message in await consumer.pull(timeout=LONG_SECONDS)] == [b"x"]


def test_one_process_is_a_cluster_others_join_it_and_it_keeps_its_tree(servers: Processes, tmp_path: Path) -> None:
    """The zkserver's port is chosen by whoever runs it; here it is one that was free a moment ago."""
    zkserver = free_address()
    both = ("--with-zkserver", "--zkserver", zkserver)
    add_broker(servers, tmp_path, "Broker0", *both)
    servers.start("Broker0")

    async def make() -> None:
        # Either address will do.
        async with AsyncAdmin(servers.address("Broker0")) as admin:
            await admin.create_topic("t")
            status = await admin.status()
            assert [(each["name"], each["address"], each["active"]) for each in status["zkservers"]] == [
                ("Broker0", zkserver, True)
            ]
        await push_and_read(zkserver, "t")

    run(make())
    add_broker(servers, tmp_path, "Broker1", "--zkserver", zkserver)
    servers.start("Broker1")

    async def two() -> None:
        async with AsyncAdmin(zkserver) as admin:
            assert [each["name"] for each in (await admin.status())["brokers"]] == ["Broker0", "Broker1"]
            await admin.create_topic("both", replicas=2)
        await push_and_read(servers.address("Broker1"), "both")

    run(two())
    servers.stop("Broker0")
    servers.start("Broker0")

    async def again() -> None:
        await push_and_read(zkserver, "t")
        await push_and_read(zkserver, "both")

    run(again())


@pytest.mark.quick_skip
def test_on_zookeeper_several_carry_the_role_and_another_one_takes_over(servers: Processes, tmp_path: Path) -> None:
    try:
        find_java(), find_jars()
    except ConfigError as error:
        pytest.skip(str(error))
    servers.add("zookeeper", (*CLYMQ, "zookeeper", "--port", "0", "--data", str(tmp_path / "zookeeper")))
    servers.start("zookeeper")
    names = ("Broker0", "Broker1", "Broker2")
    for name in names:
        store = ("--store", "zookeeper", "--zookeeper", servers.address("zookeeper"))
        add_broker(servers, tmp_path, name, "--with-zkserver", *store)
    servers.start(*names)

    async def active(name: str) -> str:
        async with AsyncAdmin(servers.address(name), timeout=LONG_SECONDS) as admin:
            found = (await admin.status())["zkservers"]
            (one,) = (each["name"] for each in found if each["active"])
            return str(one)

    async def make() -> str:
        async with AsyncAdmin(servers.address("Broker0"), timeout=LONG_SECONDS) as admin:
            await admin.create_topic("t")
        await push_and_read(servers.address("Broker0"), "t")
        return await active("Broker0")

    first = run(make())
    servers.kill(first)
    left = next(name for name in names if name != first)

    async def over() -> None:
        async def other() -> bool:
            return await active(left) != first

        await until_asked(other, "another one is active", seconds_max=LONG_SECONDS)
        async with AsyncAdmin(servers.address(left), timeout=LONG_SECONDS) as admin:
            await admin.create_topic("later", replicas=2)
        await push_and_read(servers.address(left), "later")
        await push_and_read(servers.address(left), "t")

    run(over())


@pytest.mark.parametrize("command", ["zkserver", "broker", "broker --with-zkserver"])
def test_a_port_that_is_taken_is_a_wrong_setting_and_is_named(tmp_path: Path, command: str) -> None:
    async def check() -> tuple[str, int | None, bytes, bytes]:
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with taken:
            address = f"127.0.0.1:{taken.sockets[0].getsockname()[1]}"
            where = "--zkserver" if command.endswith("with-zkserver") else "--listen"
            process = await asyncio.create_subprocess_exec(
                *CLYMQ, *command.split(), where, address, "--data", str(tmp_path / "data"),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            out, err = await process.communicate()
            return address, process.returncode, out, err

    address, code, out, err = run(check())
    assert (code, out) == (2, b"")
    last = err.decode().splitlines()[-1]
    assert last.startswith("error: ")
    assert last.endswith("[ConfigError]")
    assert address in last
    assert "in use" in last


def free_address() -> str:
    async def find() -> str:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with server:
            return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    return run(find())
