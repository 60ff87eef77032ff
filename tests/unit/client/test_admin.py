"""Administration, and how the active zkserver is found."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clymq import Ack, AsyncAdmin, TopicInfo
from clymq.clock import ManualClock, pause
from clymq.errors import (
    ClosedError,
    ConfigError,
    InvalidName,
    InvalidRequest,
    RequestTimeout,
    UnknownPartition,
    UnknownTopic,
)
from clymq.rpc.memory import MemoryNetwork
from fake_cluster import CLIENT, FakeCluster
from rpc_pair import virtually


def administering(
    main: Callable[[FakeCluster, AsyncAdmin], Awaitable[None]],
    *,
    bootstrap: str = "",
    zkservers: int = 1,
    **options: Any,
) -> None:
    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network, zkservers=zkservers) as cluster:
            around = cluster.surroundings()
            async with AsyncAdmin(bootstrap or cluster.bootstrap, surroundings=around, **options) as admin:
                await main(cluster, admin)

    virtually(run)


def test_a_topic_is_made_with_numbered_or_named_partitions() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        made = await admin.create_topic("numbers", partitions=4, settings={"retention_ms": 5})
        assert isinstance(made, TopicInfo)
        assert [each.partition for each in made.partitions] == ["0", "1", "2", "3"]
        assert {each.ack for each in made.partitions} == {Ack.QUORUM}
        assert (made.name, made.settings) == ("numbers", {"retention_ms": 5})
        named = await admin.create_topic("names", partitions=["xian", "北京"], ack=Ack.LEADER)
        assert {each.partition: each.ack for each in named.partitions} == {"xian": 1, "北京": 1}
        unset = await admin.create_topic("unset", ack=Ack.UNSET)
        assert [each.ack for each in unset.partitions] == [Ack.UNSET]
        assert cluster.asked["SetPartitionState"] == 6
        assert await admin.list_topics() == ["names", "numbers", "unset"]

    administering(main)


def test_the_state_of_a_partition_is_set_and_said() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        await admin.create_topic("t", partitions=0)
        await admin.create_partition("t", "p")
        assert await admin.set_partition_state("t", "p", ack=Ack.QUORUM, replicas=3) == "changed"
        assert await admin.set_partition_state("t", "p", ack=-1) == "HadRaft"
        assert await admin.set_partition_state("t", "p", ack=1) == "changed"
        assert await admin.set_partition_state("t", "p", ack=1) == "HadFetch"
        with pytest.raises(UnknownPartition):
            await admin.set_partition_state("t", "q", ack=1)

    administering(main)


def test_topics_are_altered_described_and_deleted() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        await admin.create_topic("t", settings={"a": 1})
        await admin.alter_topic("t", {"b": 2})
        assert (await admin.describe_topic("t")).settings == {"a": 1, "b": 2}
        await admin.delete_topic("t")
        with pytest.raises(UnknownTopic):
            await admin.describe_topic("t")

    administering(main)


def test_status_has_every_field() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        cluster.create("t")
        status = await admin.status()
        assert set(status) == {"zkservers", "brokers", "partitions", "groups"}
        (partition,) = status["partitions"]
        assert (partition["topic"], partition["leader"], partition["replicas"]) == ("t", "Broker0", [])
        assert {"ack", "online", "epoch", "blocks", "start", "end", "lost_messages"} <= set(partition)

    administering(main)


def test_drain_waits_until_nothing_needs_the_broker() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        cluster.draining = [3, 2, 1]
        await admin.drain("Broker0")
        assert cluster.asked["DrainBroker"] == 4
        cluster.draining = [1] * 1000
        with pytest.raises(RequestTimeout, match="1 blocks still need Broker0"):
            await admin.drain("Broker0")

    administering(main, timeout=3.0)


@pytest.mark.parametrize("bootstrap", ["Broker1:7000", "nobody:1,Broker2:7000", "Zk1:7000", "nobody:1, Zk0:7000"])
def test_any_broker_or_zkserver_leads_to_the_active_one(bootstrap: str) -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        cluster.active = "Zk0"
        await admin.create_topic("t")
        assert "t" in cluster.topics

    administering(main, bootstrap=bootstrap, zkservers=2)


def test_another_zkserver_takes_over() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        await admin.create_topic("one")
        cluster.active = "Zk1"  # the one that was asked says so
        await admin.create_topic("two")
        cluster.active = "Zk0"
        await cluster.stop("Zk1")  # or is gone
        await admin.create_topic("three")
        assert await admin.list_topics() == ["one", "three", "two"]

    administering(main, zkservers=2)


def test_a_call_that_nobody_answers_ends_in_time_and_says_what_it_waited_for() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        began = cluster.clock.monotonic_ms()
        cluster.silent.add("ListTopics")
        with pytest.raises(RequestTimeout, match="ListTopics"):
            await admin.list_topics()
        assert 2900 <= cluster.clock.monotonic_ms() - began < 3200
        await cluster.stop("Zk0")
        with pytest.raises(RequestTimeout, match=r"Status: not within 3 s; last: .*Zk0:7000"):
            await admin.status()

    administering(main, timeout=3.0)


def test_a_frozen_server_does_not_hold_up_the_search_for_ever() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        cluster.network.freeze(CLIENT, "Broker0")
        began = cluster.clock.monotonic_ms()
        assert await admin.list_topics() == []
        assert cluster.clock.monotonic_ms() - began < 3000

    administering(main, bootstrap="Broker0:7000,Broker1:7000")


def test_many_calls_share_one_connection_and_one_search() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        await asyncio.gather(*(admin.list_topics() for _ in range(50)))
        assert cluster.asked["FindController"] == 1
        assert cluster._servers["Zk0"].connections == 1

    administering(main)


def test_wrong_arguments_are_refused_before_anything_is_made() -> None:
    async def main(cluster: FakeCluster, admin: AsyncAdmin) -> None:
        with pytest.raises(InvalidName):
            await admin.create_topic("a/b")
        with pytest.raises(InvalidRequest, match="partitions -1 must be from 0 to 1000000"):
            await admin.create_topic("t", partitions=-1)
        with pytest.raises(InvalidRequest):
            await admin.create_topic("t", partitions="abc")
        with pytest.raises(InvalidRequest):
            await admin.create_topic("t", partitions=["a", "a"])
        with pytest.raises(ConfigError, match="ack = 7: must be"):
            await admin.create_topic("t", ack=7)
        with pytest.raises(ConfigError, match="ack = 'quorum': must be"):
            await admin.set_partition_state("t", "0", ack="quorum")  # type: ignore[arg-type]
        assert not cluster.topics
        assert not cluster.asked
        await admin.close()
        await pause(cluster.clock, 1)
        with pytest.raises(ClosedError):
            await admin.list_topics()

    administering(main)


@pytest.mark.parametrize("bootstrap", ["", ",", "host", "host:x", "host:1,host"])
def test_a_bootstrap_that_is_no_address_is_refused(bootstrap: str) -> None:
    with pytest.raises(InvalidRequest):
        AsyncAdmin(bootstrap)
