"""Brokers are told when something changes for them: here nobody asks by himself, the next time is in ten minutes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from clymq import Ack, AsyncAdmin, AsyncProducer
from clymq.rpc.transport import parse_address
from clymq.testing import LocalCluster
from rows import LONG_SECONDS, Asking, roll, run

CONFIG = {"session_timeout_ms": 1500, "controller_tick_ms": 100, "config_ms": 600_000}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(4, config=CONFIG) as cluster:
        yield cluster


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_brokers_that_are_all_back_on_other_ports_find_each_other(cluster: LocalCluster, ack: Ack) -> None:
    async def make() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("t", ack=ack)
        async with AsyncProducer(cluster.bootstrap) as producer:
            await producer.push("t", b"1")

    run(make())
    before = cluster.addresses
    for name in cluster.brokers:
        cluster.stop(name)
    with ExitStack() as taken:
        for name in cluster.brokers:
            host, port = parse_address(before[name])
            taken.enter_context(socket.socket()).bind((host, port))  # nobody listens there, and nobody gets it
        for name in cluster.brokers:
            del cluster._addresses[name]  # so that it is not started where it was
            cluster.start(name)
    assert not {before[name] for name in cluster.brokers} & {cluster.addresses[name] for name in cluster.brokers}

    async def check() -> None:
        async with AsyncProducer(cluster.bootstrap, timeout=LONG_SECONDS) as producer:
            assert (await producer.push("t", b"2")).offset == 1

    run(check())


def test_a_broker_is_emptied_without_waiting_for_anybody_to_ask(cluster: LocalCluster) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin, Asking(cluster) as asking:
            await admin.create_topic("t")
            async with AsyncProducer(cluster.bootstrap) as producer:
                for _ in range(3):
                    await producer.push("t", b"x")
                    await roll(asking, "t")
            leaving = (await admin.describe_topic("t")).partitions[0].replicas[0]
            progress = await admin.drain(leaving)
            assert progress["remaining"] == 0
            assert leaving not in (await admin.describe_topic("t")).partitions[0].replicas

    run(check())
