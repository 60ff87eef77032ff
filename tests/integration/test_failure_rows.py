"""SPEC 7 on a cluster of real processes, row by row: what it does when brokers and zkservers are killed or frozen."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from client_subjects import KINDS, Clients, Kind
from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.errors import ClymqError, RequestTimeout
from clymq.protocol.controller import ConGetBroker, ReadRoute, Sub
from clymq.testing.namespaces import Namespaces
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until, until_asked
from clymq.types import Mode
from rows import (
    CONFIG,
    LONG_SECONDS,
    Asking,
    RawProducer,
    block_folders,
    forwarding,
    is_online,
    pushed,
    refusal,
    roll,
    run,
    tree,
    values,
)

RESUME_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    with ProcessCluster(3, spares=1, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> ProcessCluster:
    """The cluster, whole again whatever the test before has done to it."""
    shared.heal()
    for name in (*shared.zkservers, *shared.brokers):
        shared.processes.thaw(name)
        if not shared.processes.is_running(name):
            shared.start(name)
    return shared


def others(cluster: ProcessCluster, name: str) -> list[str]:
    return [each for each in cluster.brokers if each != name]


# --- Pushing while brokers fail ---


@pytest.mark.quick_skip
def test_row_20_a_push_needs_a_majority_and_without_one_it_fails_and_is_there_once_or_never(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin, AsyncProducer(cluster.bootstrap, timeout=2) as producer:
            await admin.create_topic("majority", partitions=1)
            await producer.push("majority", b"all")
            first, second = others(cluster, await cluster.leading("majority", "0"))
            cluster.kill(first)
            await producer.push("majority", b"two")
            cluster.kill(second)
            assert isinstance(await refusal(producer.push("majority", b"one")), RequestTimeout)
            await asyncio.to_thread(cluster.start, first, second)
            await producer.push("majority", b"again")
            found = await values(cluster, "majority")
            assert found in ([b"all", b"two", b"again"], [b"all", b"two", b"one", b"again"])

    run(check())


@pytest.mark.quick_skip
def test_row_25_a_batch_sent_again_after_a_change_of_leader_and_a_restart_of_all_is_stored_once(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("resent", partitions=1)
            raw = await RawProducer.begin(asking, "resent")
            first, second = raw.batch(b"1"), raw.batch(b"2", cmdindex=2)
            assert (await raw.push(first)).base_offset == 0
            assert (await raw.push(second, cmdindex=2)).base_offset == 1
            leader = await cluster.leading("resent", "0")
            cluster.kill(leader)
            answer = await pushed(raw, second, cmdindex=2)
            assert (answer.base_offset, answer.duplicate) == (1, True)
            cluster.kill(*cluster.brokers)
            await asyncio.to_thread(cluster.start, *cluster.brokers)
            for data, number in ((first, 1), (second, 2)):
                answer = await pushed(raw, data, cmdindex=number)
                assert (answer.base_offset, answer.duplicate) == (number - 1, True)
            assert await values(cluster, "resent") == [b"1", b"2"]

    run(check())


def test_row_26_what_a_leader_could_not_commit_is_accepted_when_it_is_sent_again(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("rolledback", partitions=1)
            raw = await RawProducer.begin(asking, "rolledback")
            leader = await cluster.leading("rolledback", "0")
            followers = others(cluster, leader)
            for name in followers:
                cluster.freeze(name)
            data = raw.batch(b"1")
            # It has it in its file and nowhere else; then it notices that it leads nobody, or is not heard of in time.
            assert (await refusal(raw.push(data, to=leader, seconds=5))).retriable
            for name in followers:
                cluster.thaw(name)
            assert (await pushed(raw, data)).base_offset == 0
            assert await values(cluster, "rolledback") == [b"1"]

    run(check())


@asynccontextmanager
async def pushing(cluster: ProcessCluster, topic: str) -> AsyncIterator[list[tuple[float, int, int | None]]]:
    """Push numbers one after the other; yields when each was acknowledged, which one, and at what offset."""
    acknowledged: list[tuple[float, int, int | None]] = []
    async with AsyncProducer(cluster.bootstrap) as producer:

        async def push() -> None:
            number = 0
            while True:
                receipt = await producer.push(topic, b"%d" % number)
                acknowledged.append((time.monotonic(), number, receipt.offset))
                number += 1

        task = asyncio.create_task(push())
        try:
            await until(lambda: len(acknowledged) > 20 or task.done(), "pushes are answered", seconds_max=LONG_SECONDS)
            yield acknowledged
            count = len(acknowledged)
            await until(lambda: len(acknowledged) > count + 20 or task.done(), "they go on", seconds_max=LONG_SECONDS)
        finally:
            task.cancel()
            errors = await asyncio.gather(task, return_exceptions=True)
        assert not isinstance(errors[0], ClymqError), errors[0]


async def judge(cluster: ProcessCluster, topic: str, acknowledged: list[tuple[float, int, int | None]]) -> None:
    """Every number once and in order, each that was acknowledged at its offset; one more may or may not be there."""
    found = [int(value) for value in await values(cluster, topic)]
    assert found == list(range(len(found)))
    assert len(found) - len(acknowledged) in {0, 1}
    assert [offset for _, _, offset in acknowledged] == list(range(len(acknowledged)))


def test_rows_31_33_39_leaders_are_killed_during_pushes_and_nothing_is_lost_doubled_or_late(
    cluster: ProcessCluster, size: str
) -> None:
    async def check() -> None:
        pauses: list[float] = []
        async with AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("failover", partitions=1)
            async with pushing(cluster, "failover") as acknowledged:
                for _ in range({"quick": 1, "normal": 4, "long": 10}[size]):
                    leader = await cluster.leading("failover", "0")
                    before = (await catalog.chain("failover", "0").active()).block.value
                    killed_at, count = time.monotonic(), len(acknowledged)
                    cluster.kill(leader)
                    # The first answer behind the kill may have been on its way; the second was made after it.
                    await until(lambda: len(acknowledged) > count + 1, "pushes resume", seconds_max=LONG_SECONDS)  # noqa: B023
                    pauses.append(acknowledged[count + 1][0] - killed_at)
                    winner = await cluster.leading("failover", "0")
                    assert winner != leader

                    async def recorded(term: int = before.term, winner: str = winner) -> bool:
                        now = (await catalog.chain("failover", "0").active()).block.value
                        return now.leader == winner and now.term > term

                    await until_asked(recorded, "the tree names the winner", seconds_max=LONG_SECONDS)
                    await asyncio.to_thread(cluster.start, leader)
            await judge(cluster, "failover", acknowledged)
            await equal(cluster, "failover")
        print(f"pushes resumed after {', '.join(f'{pause:.2f} s' for pause in pauses)}")
        assert statistics.median(pauses) < RESUME_SECONDS_MAX

    run(check())


async def equal(cluster: ProcessCluster, topic: str) -> None:
    """Wait until the replicas of a topic's only block hold the same bytes."""
    paths = [folder / "batches" for folder in block_folders(cluster, topic)]
    assert len(paths) == 3
    await until(lambda: len(set(map(Path.read_bytes, paths))) == 1, "all replicas are equal", seconds_max=LONG_SECONDS)


@pytest.mark.quick_skip
def test_rows_35_39_all_brokers_are_killed_at_once_and_nothing_is_lost_or_doubled(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("survived", partitions=1)
            async with pushing(cluster, "survived") as acknowledged:
                before = (await catalog.chain("survived", "0").active()).block.value
                cluster.kill(*cluster.brokers)
                await asyncio.to_thread(cluster.start, *cluster.brokers)
            await judge(cluster, "survived", acknowledged)
            await equal(cluster, "survived")
            after = (await catalog.chain("survived", "0").active()).block.value
            assert after.term > before.term
            newcomer = await RawProducer.begin(asking, "survived", name="somebody new")
            assert (newcomer.epoch, newcomer.next) == (1, 1)

    run(check())


@pytest.mark.quick_skip
@pytest.mark.parametrize("kind", KINDS)
def test_row_66_a_failover_costs_one_lookup_however_many_pushes_wait(cluster: ProcessCluster, kind: Kind) -> None:
    async def check() -> None:
        topic = f"lookups-{kind}"
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic(topic, partitions=1)
        await cluster.leading(topic, "0")
        async with forwarding(cluster) as forwarder, Clients(kind, forwarder.address).producer() as producer:
            await asyncio.gather(*(producer.push(topic, b"x") for _ in range(200)))
            assert forwarder.counts["ProGetBroker"] == 1
            cluster.kill(await cluster.leading(topic, "0"))
            await asyncio.gather(*(producer.push(topic, b"x") for _ in range(200)))
            # The zkserver waits for the next leader, and then says who it is.
            assert forwarder.counts["ProGetBroker"] == 2

    run(check())


@pytest.mark.quick_skip
def test_rows_33_39_a_leader_that_is_cut_off_is_replaced_and_comes_back_equal(cluster: ProcessCluster) -> None:
    if cluster.network.kind != Namespaces.kind:
        pytest.skip(f"servers cannot be cut off from each other here: {Namespaces.refusal()}")

    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin, AsyncProducer(cluster.bootstrap) as producer:
            await admin.create_topic("islands", partitions=1)
            await producer.push("islands", b"1")
            leader = await cluster.leading("islands", "0")
            await asyncio.to_thread(cluster.isolate, leader)
            await producer.push("islands", b"2")
            assert await cluster.leading("islands", "0") != leader
            await asyncio.to_thread(cluster.heal)
            await producer.push("islands", b"3")
            await equal(cluster, "islands")
            assert await values(cluster, "islands") == [b"1", b"2", b"3"]

    run(check())


# --- Reading while brokers fail ---


@pytest.mark.quick_skip
def test_row_53_a_sealed_block_is_read_from_who_is_left_and_a_lost_partition_is_an_entry_of_its_own(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
        ):
            await admin.create_topic("partly", partitions=["many"])
            await producer.push_many("partly", [b"x"] * 5, partition="many")
            await roll(asking, "partly", "many")
            await admin.create_partition("partly", "alone")
            await admin.set_partition_state("partly", "alone", ack=-1, replicas=1)
            await producer.push("partly", b"y", partition="alone")
            await asking.controller(Sub("partly", "me", Mode.PSB_PULL))

            async def routes() -> dict[str, ReadRoute]:
                found = await asking.controller(ConGetBroker("partly", "me", Mode.PSB_PULL))
                return {route.partition: route for route in found.routes}

            async def whole() -> bool:
                return all(not route.error for route in (await routes()).values())

            await until_asked(whole, "both partitions can be read", seconds_max=LONG_SECONDS)
            victim = await cluster.leading("partly", "alone")
            cluster.kill(victim)
            await until_asked(lambda: is_online(asking, victim, False), "it is offline", seconds_max=LONG_SECONDS)
            found = await routes()
            assert found["alone"].error == "LeaderUnavailable"
            assert (found["many"].error, found["many"].block) == ("", 1)
            assert victim not in {found["many"].broker, *(each.broker for each in found["many"].replicas)}
            async with AsyncConsumer(cluster.bootstrap) as consumer:
                await consumer.assign("partly", "many", 0)
                assert len(await consumer.pull(max_messages=5, timeout=LONG_SECONDS)) == 5

    run(check())


# --- The control plane ---


def test_row_75_without_a_control_plane_pushes_pulls_and_elections_go_on(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap, timeout=2) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap) as consumer,
        ):
            await admin.create_topic("headless", partitions=1)
            await consumer.assign("headless", "0")
            read: list[bytes] = []

            async def push_and_read(value: bytes) -> None:
                await producer.push("headless", value)
                while value not in read:
                    read.extend(message.value for message in await consumer.pull(timeout=LONG_SECONDS))

            await push_and_read(b"1")
            leader = await cluster.leading("headless", "0")
            cluster.kill(*cluster.zkservers)
            await push_and_read(b"2")
            assert (await refusal(admin.create_topic("later"))).retriable
            cluster.kill(leader)
            assert await cluster.leading("headless", "0") != leader
            await push_and_read(b"3")
            await asyncio.to_thread(cluster.start, *cluster.zkservers)
            await asyncio.to_thread(cluster.start, leader)
            await admin.create_topic("later")
            await push_and_read(b"4")
            assert read == [b"1", b"2", b"3", b"4"]

    run(check())


# --- Growth; the last test, for the cluster keeps the broker ---


@pytest.mark.quick_skip
def test_row_65_a_new_broker_takes_next_blocks_under_load_and_no_file_is_moved(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            names = [str(number) for number in range(8)]
            await admin.create_topic("grown", partitions=8)
            await admin.create_topic("load", partitions=1)
            async with AsyncProducer(cluster.bootstrap) as producer:
                for name in names:
                    await producer.push("grown", b"before", partition=name)
            blocks = {folder: folder.stat().st_ino for folder in block_folders(cluster, "grown")}
            async with pushing(cluster, "load") as acknowledged:
                await asyncio.to_thread(cluster.start, "Broker3")
                await until_asked(lambda: is_online(asking, "Broker3", True), "it is there", seconds_max=LONG_SECONDS)
                for name in [*names]:
                    await roll(asking, "grown", name)
                await roll(asking, "load")
            await judge(cluster, "load", acknowledged)
            described = (await admin.describe_topic("grown")).partitions
            assert any("Broker3" in partition.replicas for partition in described)
            assert {folder: folder.stat().st_ino for folder in blocks} == blocks
            assert not [folder for folder in block_folders(cluster, "grown", ["Broker3"]) if folder.name == "Block_1"]
            async with AsyncProducer(cluster.bootstrap) as producer:
                for name in names:
                    await producer.push("grown", b"after", partition=name)
                    assert await values(cluster, "grown", name) == [b"before", b"after"]

    run(check())
