"""SPEC 7 on a cluster of real processes, row by row: what it does while nobody fails, and rows 1-9 on both stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from client_subjects import KINDS, Clients, Kind
from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.cli.zookeeper import find_jars, find_java
from clymq.controller.ring import Ring
from clymq.errors import (
    BlockSealed,
    ConfigError,
    LeaderUnavailable,
    NotLeader,
    OutOfSequence,
    PartitionUnset,
    ProducerFenced,
    TooManyPartitions,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from clymq.metadata import nodes
from clymq.protocol.broker import Push
from clymq.protocol.controller import (
    BroInfo,
    ConGetBroker,
    CreatePart,
    CreateTopic,
    ProducerRoute,
    ProGetBroker,
    ReadRoute,
    Status,
    Sub,
)
from clymq.protocol.hosting import CloseAccept, CloseRaftPartition, PrepareSend, PrepareState
from clymq.testing.namespaces import Namespaces
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.store_cluster import StoreKind
from clymq.testing.waiting import until_asked
from clymq.types import Mode
from rows import (
    CONFIG,
    LONG_SECONDS,
    SESSION_MS,
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


@pytest.fixture(scope="module", params=["embedded", pytest.param("zookeeper", marks=pytest.mark.quick_skip)])
def both(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    """A cluster on each of the two stores; with ZooKeeper there is a second zkserver, standing by."""
    store: StoreKind = request.param
    if store == "zookeeper":
        try:
            find_java(), find_jars()
        except ConfigError as error:
            pytest.skip(str(error))
    with ProcessCluster(3, 2 if store == "zookeeper" else 1, store, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(3, config=CONFIG) as cluster:
        yield cluster


# --- Rows 1-9, on both stores ---


def test_row_1_a_broker_registers_its_facts_for_good_and_its_presence_for_its_session(both: ProcessCluster) -> None:
    async def check() -> None:
        async with tree(both) as catalog:
            brokers = {name: found.value for name, found in (await catalog.brokers()).items()}
            assert {name: broker.address for name, broker in brokers.items()} == {
                name: both.addresses[name] for name in both.brokers
            }
            assert len({broker.disk_id for broker in brokers.values()}) == len(both.brokers)
            for name in both.brokers:
                facts = await catalog.store.exists(nodes.broker_path(name))
                presence = await catalog.store.exists(nodes.state_path(name))
                assert facts is not None
                assert presence is not None
                assert (bool(facts.ephemeral_owner), bool(presence.ephemeral_owner)) == (False, True)

    run(check())


def test_row_3_three_brokers_are_thirty_nodes_of_the_ring_however_often_they_say_who_they_are(
    both: ProcessCluster,
) -> None:
    async def check() -> None:
        async with Asking(both) as asking, AsyncAdmin(both.bootstrap) as admin, tree(both) as catalog:
            for name, found in (await catalog.brokers()).items():
                broker, state = found.value, await catalog.broker_state(name)
                assert state is not None
                for _ in range(2):
                    await asking.controller(BroInfo(name, broker.address, broker.disk_id, state.value.incarnation))
            ring = Ring([broker.name for broker in (await asking.controller(Status())).brokers])
            assert len(ring) == 30
            topic = await admin.create_topic("phone_number", partitions=["xian", "shanghai", "beijing"])
            for partition in topic.partitions:
                assert list(partition.replicas) == ring.place(f"phone_number{partition.partition}dup", 3)

    run(check())


def test_row_6_a_topic_is_created_once(both: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(both) as asking, AsyncAdmin(both.bootstrap) as admin:
            first = await asking.controller(CreateTopic("once", {"lease_ms": 500}))
            second = await asking.controller(CreateTopic("once", {"lease_ms": 500}))
            assert (first.created, second.created, second.id) == (True, False, first.id)
            assert isinstance(await refusal(asking.controller(CreateTopic("once", {"lease_ms": 700}))), TopicExists)
            assert (await admin.describe_topic("once")).settings == {"lease_ms": 500}

    run(check())


def test_row_7_a_partition_is_created_unset_and_never_reset(both: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(both) as asking, AsyncAdmin(both.bootstrap) as admin:
            assert isinstance(await refusal(asking.controller(CreatePart("nothing", "0"))), UnknownTopic)
            await admin.create_topic("parts", partitions=0)
            made = await asking.controller(CreatePart("parts", "北京"))
            described = (await admin.describe_topic("parts")).partitions[0]
            assert (described.ack, described.leader, described.blocks) == (Ack.UNSET, "", 0)
            await admin.set_partition_state("parts", "北京", ack=Ack.QUORUM)
            again = await asking.controller(CreatePart("parts", "北京"))
            assert (made.created, again.created, again.uid) == (True, False, made.uid)
            assert (await admin.describe_topic("parts")).partitions[0].ack == Ack.QUORUM

    run(check())


def test_row_8_the_partition_past_the_limit_is_refused_with_the_limit(both: ProcessCluster) -> None:
    async def check() -> None:
        limit = CONFIG["partitions_per_topic_max"]
        async with AsyncAdmin(both.bootstrap) as admin:
            await admin.create_topic("full", partitions=limit, ack=Ack.UNSET)
            error = await refusal(admin.create_partition("full", "one more"))
            assert isinstance(error, TooManyPartitions)
            assert str(limit) in str(error)
            assert len((await admin.describe_topic("full")).partitions) == limit

    run(check())


@pytest.mark.quick_skip
def test_row_9_who_leads_is_answered_or_the_reason_why_nobody_does(both: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(both) as asking, AsyncAdmin(both.bootstrap) as admin:
            await admin.create_topic("led", partitions=["unset"], ack=Ack.UNSET)
            error = await refusal(asking.route("led", "unset"))
            assert isinstance(error, PartitionUnset)
            assert "-2" in str(error)
            for partition, replicas in (("three", 3), ("one", 1)):
                await admin.create_partition("led", partition)
                await admin.set_partition_state("led", partition, ack=Ack.QUORUM, replicas=replicas)
            leader = await both.leading("led", "three")
            await until_asked(
                lambda: leads(asking, "led", "three", leader), "the tree knows the leader", seconds_max=LONG_SECONDS
            )
            alone = await both.leading("led", "one")
            both.kill(alone)
            await until_asked(lambda: is_online(asking, alone, False), f"{alone} is offline", seconds_max=LONG_SECONDS)
            error = await refusal(asking.server(await asking.active(), ProGetBroker("led", "one")))
            assert isinstance(error, LeaderUnavailable)
            route = await asking.route("led", "three")
            assert route.broker != alone
            await asyncio.to_thread(both.start, alone)

    run(check())


async def leads(asking: Asking, topic: str, partition: str, broker: str) -> bool:
    route = await asking.route(topic, partition)
    return (route.broker, route.address) == (broker, asking.cluster.addresses[broker])


@pytest.mark.quick_skip
def test_row_2_a_killed_broker_is_never_chosen_and_one_that_is_back_in_time_stays(both: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(both) as asking, AsyncAdmin(both.bootstrap) as admin, tree(both) as catalog:
            both.kill("Broker2")
            await until_asked(lambda: is_online(asking, "Broker2", False), "it is offline", seconds_max=LONG_SECONDS)
            topic = await admin.create_topic("without", partitions=6, replicas=2)
            assert {name for each in topic.partitions for name in each.replicas} == {"Broker0", "Broker1"}
            await asyncio.to_thread(both.start, "Broker2")
            before = await catalog.broker_state("Broker2")
            assert before is not None
            both.kill("Broker2")
            await asyncio.to_thread(both.start, "Broker2")
            began = time.monotonic()
            after = await catalog.broker_state("Broker2")
            assert after is not None
            assert after.value.incarnation != before.value.incarnation
            # The session of its former life runs out, and takes nothing of the present one with it.
            while time.monotonic() - began < 1.2 * SESSION_MS / 1000:
                assert await is_online(asking, "Broker2", True)
                assert await catalog.broker_state("Broker2") == after

    run(check())


def test_row_4_another_zkserver_or_the_same_one_restarted_goes_on_and_brokers_do_not_notice(
    both: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            Asking(both) as asking,
            AsyncAdmin(both.bootstrap) as admin,
            AsyncProducer(both.bootstrap) as producer,
        ):
            await admin.create_topic("before", partitions=1)
            await producer.push("before", b"1")
            pids = [both.processes.pid(name) for name in both.brokers]
            active = await asking.active()
            both.kill(active)
            if len(both.zkservers) == 1:
                await asyncio.to_thread(both.start, active)
            await admin.create_topic("after", partitions=["shanghai"])
            await producer.push("before", b"2")
            await producer.push("after", b"3")
            if not both.processes.is_running(active):
                await asyncio.to_thread(both.start, active)
            assert [both.processes.pid(name) for name in both.brokers] == pids
            assert await values(both, "before") == [b"1", b"2"]

    run(check())


@pytest.mark.quick_skip
def test_row_5_brokers_that_come_back_serve_what_they_had_with_no_word_from_a_producer(both: ProcessCluster) -> None:
    async def check() -> None:
        async with AsyncAdmin(both.bootstrap) as admin, AsyncProducer(both.bootstrap) as producer:
            await admin.create_topic("kept", partitions=["x", "y"])
            for name in ("x", "y"):
                await producer.push_many("kept", [b"%d" % number for number in range(20)], partition=name)
        async with AsyncConsumer(both.bootstrap) as consumer:
            await consumer.assign("kept", "x", group="readers")
            assert len(await consumer.pull(max_messages=7, timeout=LONG_SECONDS)) == 7
            await consumer.commit()
        both.kill(*both.brokers)
        await asyncio.to_thread(both.start, *both.brokers)
        async with AsyncConsumer(both.bootstrap) as consumer:
            await consumer.assign("kept", "x", "committed", group="readers")
            assert await consumer.position("kept", "x") == 7
        for name in ("x", "y"):
            assert await values(both, "kept", name) == [b"%d" % number for number in range(20)]

    run(check())


@pytest.mark.quick_skip
def test_row_2_a_broker_that_is_cut_off_from_the_store_is_offline_until_it_is_back(both: ProcessCluster) -> None:
    holder = "zookeeper" if both.store == "zookeeper" else both.zkservers[0]
    if both.store == "embedded" and both.network.kind != Namespaces.kind:
        pytest.skip(f"servers cannot be cut off from each other here: {Namespaces.refusal()}")

    async def check() -> None:
        async with Asking(both) as asking:
            both.partition("Broker1", holder)
            await until_asked(lambda: is_online(asking, "Broker1", False), "it is offline", seconds_max=LONG_SECONDS)
            both.heal()
            await until_asked(lambda: is_online(asking, "Broker1", True), "it is back", seconds_max=LONG_SECONDS)

    run(check())


# --- States and replicas ---


def test_rows_13_14_31_a_raft_partition_has_three_hosts_and_one_leader_and_the_tree_knows_them(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            began = time.monotonic()
            await admin.create_topic("raft", partitions=1)
            chain = catalog.chain("raft", "0")
            leader = await cluster.leading("raft", "0")

            async def recorded() -> bool:
                now = (await chain.active()).block.value
                return (now.leader, now.term > 0) == (leader, True)

            await until_asked(recorded, "the leader is in the tree", seconds_max=5)
            assert time.monotonic() - began < 5
            active = await chain.active()
            assert [replica.name for replica in active.replicas] == ["dup_0", "dup_1", "dup_2"]
            assert {replica.broker for replica in active.replicas} == set(cluster.brokers)
            uid = (await chain.partition()).value.uid
            for name in cluster.brokers:
                found = await asking.server(name, PrepareState("raft", "0", uid, state=-1, block=1, epoch=1))
                assert (found.block, found.leader) == (1, leader)

    run(check())


@pytest.mark.quick_skip
def test_row_16_the_same_state_again_changes_nothing(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin, AsyncProducer(cluster.bootstrap) as producer:
            before = await admin.create_topic("same", partitions=1)
            await producer.push("same", b"1")
            files = {path: path.stat().st_ino for folder in block_folders(cluster, "same") for path in folder.iterdir()}
            assert await admin.set_partition_state("same", "0", ack=Ack.QUORUM) == "HadRaft"
            assert await admin.set_partition_state("same", "0", ack=Ack.QUORUM, replicas=3) == "HadRaft"
            after = await admin.describe_topic("same")
            assert (after.partitions[0].epoch, after.partitions[0].blocks) == (
                before.partitions[0].epoch,
                before.partitions[0].blocks,
            )
            assert {path: path.stat().st_ino for path in files} == files
            await producer.push("same", b"2")
            assert await values(cluster, "same") == [b"1", b"2"]

    run(check())


# --- Pushing ---


def test_row_23_a_follower_names_the_leader_and_the_producer_follows(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("hinted", partitions=1)
            raw = await RawProducer.begin(asking, "hinted")
            leader = await cluster.leading("hinted", "0")
            follower = next(name for name in cluster.brokers if name != leader)
            error = await refusal(raw.push(raw.batch(b"no"), to=follower))
            assert isinstance(error, NotLeader)
            assert error.hint in {leader, cluster.addresses[leader]}
            wrong = ProducerRoute(raw.uid, follower, cluster.addresses[follower], ack=-1)
            async with (
                forwarding(cluster, {"hinted": wrong}) as forwarder,
                AsyncProducer(forwarder.address) as producer,
            ):
                assert (await producer.push("hinted", b"yes")).offset == 0
            assert await values(cluster, "hinted") == [b"yes"]

    run(check())


@pytest.mark.quick_skip
def test_row_24_what_cannot_be_stored_is_refused_for_its_reason_and_nothing_is(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("strict", partitions=1, replicas=1)
            raw = await RawProducer.begin(asking, "strict")
            host = await cluster.leading("strict", "0")
            other = next(name for name in cluster.brokers if name != host)
            data = raw.batch(b"no")
            assert isinstance(await refusal(raw.push(data, to=other)), UnknownPartition)
            absent = Push("absent", "0", "0" * 32, "raw", 1, ack=-1)
            assert isinstance(await refusal(asking.server(host, absent, [data])), UnknownPartition)
            gap = raw.batch(b"no", cmdindex=5)
            assert isinstance(await refusal(raw.push(gap, cmdindex=5)), OutOfSequence)
            assert await values(cluster, "strict") == []
            async with AsyncProducer(cluster.bootstrap, timeout=3) as producer:
                assert isinstance(await refusal(producer.push("absent", b"no")), UnknownTopic)

    run(check())


def test_rows_25_27_72_a_batch_sent_again_also_before_it_is_answered_is_stored_once(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("again", partitions=1)
            raw = await RawProducer.begin(asking, "again")
            leader = await cluster.leading("again", "0")
            first = raw.batch(b"1", b"2")
            answers = await asyncio.gather(*(raw.push(first, to=leader) for _ in range(3)))
            assert [answer.base_offset for answer in answers] == [0, 0, 0]
            assert [answer.duplicate for answer in answers] == [False, True, True]
            second = raw.batch(b"3", cmdindex=3)
            assert (await raw.push(second, cmdindex=3)).base_offset == 2
            answer = await raw.push(first)
            assert (answer.base_offset, answer.duplicate) == (0, True)
            assert await values(cluster, "again") == [b"1", b"2", b"3"]

    run(check())


@pytest.mark.quick_skip
def test_row_28_fifty_producers_to_eight_partitions_are_each_answered_once(cluster: ProcessCluster) -> None:
    async def check() -> None:
        names = [str(number) for number in range(8)]
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("crowd", partitions=8)

        async def produce(number: int) -> list[tuple[str, int | None]]:
            async with AsyncProducer(cluster.bootstrap) as producer:
                pushes = (producer.push("crowd", b"%d" % number, partition=name) for name in names)
                return [(receipt.partition, receipt.offset) for receipt in await asyncio.gather(*pushes)]

        places = [place for made in await asyncio.gather(*map(produce, range(50))) for place in made]
        assert sorted(places) == sorted((name, offset) for name in names for offset in range(50))
        for name in names:
            assert sorted(await values(cluster, "crowd", name), key=int) == [b"%d" % number for number in range(50)]

    run(check())


@pytest.mark.parametrize("kind", KINDS)
def test_row_66_a_thousand_pushes_cost_one_lookup(cluster: ProcessCluster, kind: Kind) -> None:
    async def check() -> None:
        topic = f"cached-{kind}"
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic(topic, partitions=1)
        await cluster.leading(topic, "0")
        async with forwarding(cluster) as forwarder, Clients(kind, forwarder.address).producer() as producer:
            for _ in range(4):
                await asyncio.gather(*(producer.push(topic, b"x") for _ in range(250)))
            assert forwarder.counts["ProGetBroker"] == 1

    run(check())


def test_row_71_a_restarted_producer_goes_on_and_its_former_life_is_fenced(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("lives", partitions=1)
        async with AsyncProducer(cluster.bootstrap, name="p") as old:
            await old.push_many("lives", [b"1", b"2"])
            async with AsyncProducer(cluster.bootstrap, name="p") as new:
                assert await new.last_cmdindex("lives", "0") == 2
                assert (await new.push("lives", b"3")).offset == 2
                assert isinstance(await refusal(old.push("lives", b"never")), ProducerFenced)
                assert (await new.push("lives", b"4")).offset == 3
        assert await values(cluster, "lives") == [b"1", b"2", b"3", b"4"]

    run(check())


# --- Blocks ---


@pytest.mark.quick_skip
def test_row_50_a_closed_block_takes_nothing_and_says_the_same_end_twice(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("closed", partitions=1)
            raw = await RawProducer.begin(asking, "closed")
            await raw.push(raw.batch(b"1"))
            leader, route = await cluster.leading("closed", "0"), await asking.route("closed")
            close = CloseAccept("closed", "0", route.uid, route.block, route.epoch + 1)
            ends = [await asking.server(leader, close) for _ in range(2)]
            assert ends[0] == ends[1]
            assert (ends[0].start, ends[0].end) == (0, 1)
            error = await refusal(raw.push(raw.batch(b"no", cmdindex=2), cmdindex=2, to=leader))
            assert isinstance(error, BlockSealed)
            # The controller finds it sealed, with that end, and goes on from there.
            assert await roll(asking, "closed") == route.block + 1
            async with AsyncProducer(cluster.bootstrap, name="raw") as producer:
                assert (await producer.push("closed", b"2")).offset == 1
            assert await values(cluster, "closed") == [b"1", b"2"]

    run(check())


@pytest.mark.quick_skip
def test_row_25_a_batch_sent_again_after_a_roll_is_stored_once(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("rolled", partitions=1)
            raw = await RawProducer.begin(asking, "rolled")
            first = raw.batch(b"1")
            assert (await raw.push(first)).base_offset == 0
            await roll(asking, "rolled")
            answer = await pushed(raw, first)
            assert (answer.base_offset, answer.duplicate) == (0, True)
            assert await values(cluster, "rolled") == [b"1"]

    run(check())


@pytest.mark.quick_skip
def test_row_40_a_broker_that_is_told_to_close_a_group_refuses_and_the_second_time_nothing_changes(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("left", partitions=1, replicas=1)
            raw = await RawProducer.begin(asking, "left")
            await raw.push(raw.batch(b"1"))
            route = await asking.route("left")
            other = next(name for name in cluster.brokers if name != route.broker)
            await roll(asking, "left", brokers=(other,))
            close = CloseRaftPartition("left", "0", route.uid, route.block, route.epoch)
            for _ in range(2):
                await asking.server(route.broker, close)
                error = await refusal(raw.push(raw.batch(b"no", cmdindex=2), cmdindex=2, to=route.broker))
                assert isinstance(error, BlockSealed | UnknownPartition)
            assert await values(cluster, "left") == [b"1"]

    run(check())


def test_row_64_a_reader_passes_from_block_to_block_and_broker_to_broker(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap) as consumer,
        ):
            await admin.create_topic("chain", partitions=1, replicas=1)
            await consumer.assign("chain", "0")
            read: list[int] = []
            for block, broker in enumerate((*cluster.brokers, cluster.brokers[0])):
                await roll(asking, "chain", brokers=(broker,))
                await producer.push_many("chain", [b"%d" % number for number in range(10 * block, 10 * block + 10)])
                while len(read) < 10 * block + 5:  # the reader is in the midst of a block when it ends
                    read += [
                        int(message.value) for message in await consumer.pull(max_messages=5, timeout=LONG_SECONDS)
                    ]
            while len(read) < 40:
                read += [int(message.value) for message in await consumer.pull(timeout=LONG_SECONDS)]
            assert read == list(range(40))
            assert await values(cluster, "chain") == [b"%d" % number for number in range(40)]

    run(check())


@pytest.mark.quick_skip
def test_row_52_an_offset_is_found_in_its_block_or_nowhere(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
        ):
            await admin.create_topic("found", partitions=1)
            await producer.push_many("found", [b"x"] * 10)
            await roll(asking, "found")
            await producer.push_many("found", [b"y"] * 10)
            await asking.controller(Sub("found", "me", Mode.PSB_PULL))

            async def blocks() -> bool:
                found = [await self_route(offset) for offset in (0, 9, 10, 19)]
                return [(each.error, each.block, each.offset) for each in found] == [
                    ("", 1, 0), ("", 1, 9), ("", 2, 10), ("", 2, 19),
                ]  # fmt: skip

            async def self_route(offset: int) -> ReadRoute:
                asked = ConGetBroker("found", "me", Mode.PSB_PULL, partition="0", offset=offset)
                return (await asking.controller(asked)).routes[0]

            await until_asked(blocks, "all offsets are found", seconds_max=LONG_SECONDS)
            assert len((await self_route(0)).replicas) == 2
            nowhere = await self_route(-1)
            assert nowhere.error == "OffsetOutOfRange"

    run(check())


@pytest.mark.quick_skip
def test_rows_51_54_a_group_has_an_entry_at_its_cursor_for_each_partition_and_preparing_again_changes_nothing(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
        ):
            await admin.create_topic("shared", partitions=["a", "b"])
            for name, count in (("a", 3), ("b", 5)):
                await producer.push_many("shared", [b"x"] * count, partition=name)
            await asking.controller(Sub("shared", "me", Mode.PTP_PULL))
            asked = ConGetBroker("shared", "me", Mode.PTP_PULL)
            for _ in range(2):
                routes = {route.partition: route for route in (await asking.controller(asked)).routes}
                assert {name: (route.error, route.offset) for name, route in routes.items()} == {
                    "a": ("", 0),
                    "b": ("", 0),
                }
                assert routes["a"].broker == await cluster.leading("shared", "a")
            uid, leader = routes["b"].uid, routes["b"].broker
            make = PrepareSend("shared", "b", uid, block=1, mode=Mode.PTP_PULL, group="late", consumer="me", offset=2)
            again = PrepareSend("shared", "b", uid, block=1, mode=Mode.PTP_PULL, group="late", consumer="me", offset=4)
            assert [(await asking.server(leader, each)).offset for each in (make, again)] == [2, 2]
            nowhere = PrepareSend(
                "shared", "b", "0" * 32, block=1, mode=Mode.PSB_PULL, group="", consumer="me", offset=0
            )
            assert isinstance(await refusal(asking.server(leader, nowhere)), UnknownPartition)

    run(check())


def test_row_56_a_reader_begins_anywhere_again_and_waits_at_the_end(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap) as consumer,
        ):
            await admin.create_topic("read", partitions=1)
            await producer.push_many("read", [b"%d" % number for number in range(50)])
            for start in (0, 37, 0):
                await consumer.assign("read", "0", start)
                messages = await consumer.pull(timeout=LONG_SECONDS)
                assert [int(message.value) for message in messages] == list(range(start, 50))
            assert len(await consumer.pull(timeout=0.05)) == 0
            waiting = asyncio.create_task(consumer.pull(timeout=LONG_SECONDS))
            await producer.push("read", b"50")
            assert [message.value for message in await waiting] == [b"50"]

    run(check())


# --- The end ---


@pytest.mark.quick_skip
def test_row_68_a_clean_stop_frees_everything_at_once_and_loses_nothing(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            tree(cluster) as catalog,
        ):
            await admin.create_topic("clean", partitions=1)
            for number in range(5):
                await producer.push("clean", b"%d" % number)
            leader = await cluster.leading("clean", "0")
            address = cluster.addresses[leader]
            await asyncio.to_thread(cluster.stop, leader)
            assert await catalog.broker_state(leader) is None
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*address.split(":"))
            await producer.push("clean", b"without it")
            await asyncio.to_thread(cluster.start, leader)
            assert cluster.addresses[leader] == address
            assert await values(cluster, "clean") == [*(b"%d" % number for number in range(5)), b"without it"]

    run(check())
