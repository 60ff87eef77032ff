"""The tree in typed words, on the in-memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import (
    BrokerReplaced,
    DamagedNode,
    MetadataError,
    NodeMissing,
    UnknownPartition,
    UnknownTopic,
    VersionConflict,
)
from clymq.metadata import nodes
from clymq.metadata.catalog import Catalog
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.local import LocalStore
from clymq.metadata.nodes import (
    Broker,
    NowBlock,
    Partition,
    Pending,
    Place,
    Replica,
    SealedBlock,
    Subscription,
    Topic,
    ZkServer,
)
from clymq.metadata.reading import Versioned
from clymq.types import Ack

PLACES = tuple(Place(broker=f"Broker{n}", disk_id=f"disk{n}") for n in range(3))


class World:
    """One engine in memory, and as many clients as a test wants."""

    def __init__(self) -> None:
        self.engine = Engine(StoreFile(None), SystemClock())

    async def catalog(self) -> Catalog:
        store = LocalStore(self.engine, SystemClock(), Config())
        await store.open()
        return Catalog(store)


def run(test: Callable[[World], Awaitable[None]]) -> None:
    async def started() -> None:
        world = World()
        await world.engine.start()
        try:
            async with asyncio.timeout(30):
                await test(world)
        finally:
            await world.engine.close()

    asyncio.run(started())


async def with_partition(world: World) -> Catalog:
    catalog = await world.catalog()
    await catalog.prepare()
    await catalog.create_topic(Topic(name="t", id="1"))
    await catalog.create_partition("t", Partition(name="北京", uid="u1"))
    return catalog


def test_the_first_cluster_id_that_is_proposed_is_the_cluster_id() -> None:
    async def test(world: World) -> None:
        catalogs = [await world.catalog() for _ in range(5)]
        ids = await asyncio.gather(*(each.cluster_id(f"id{n}") for n, each in enumerate(catalogs)))
        assert len(set(ids)) == 1
        assert await catalogs[0].cluster_id("late") == ids[0]

    run(test)


def test_folders_are_made_once() -> None:
    async def test(world: World) -> None:
        catalogs = [await world.catalog() for _ in range(3)]
        await asyncio.gather(*(each.prepare() for each in catalogs))
        assert await catalogs[0].store.children("/") == ["Brokers", "Topics", "ZkServers"]

    run(test)


def test_one_of_many_zkservers_is_elected_and_each_election_has_a_higher_epoch() -> None:
    async def test(world: World) -> None:
        catalogs = [await world.catalog() for _ in range(3)]
        await catalogs[0].prepare()
        assert await catalogs[0].controller() is None
        elected = await asyncio.gather(*(each.elect(f"z{n}", "h:1") for n, each in enumerate(catalogs)))
        assert sorted(each is None for each in elected) == [False, True, True]
        winner = next(n for n, each in enumerate(elected) if each)
        found = await catalogs[0].controller()
        assert found is not None
        assert (found.value, found.value.epoch) == (elected[winner], 1)
        await catalogs[winner].store.close()
        after = await catalogs[winner - 1].elect("later", "h:2")
        assert after is not None
        assert after.epoch == 2

    run(test)


def test_zkservers_are_there_as_long_as_their_sessions() -> None:
    async def test(world: World) -> None:
        catalog, other = await world.catalog(), await world.catalog()
        await catalog.prepare()
        await catalog.announce_zkserver(ZkServer(name="z", address="a:1"))
        await catalog.announce_zkserver(ZkServer(name="z", address="a:1"))
        # A new session of the same zkserver takes the place of the old one.
        await other.announce_zkserver(ZkServer(name="z", address="a:2"))
        await catalog.store.close()
        assert {name: each.value.address for name, each in (await other.zkservers()).items()} == {"z": "a:2"}

    run(test)


def test_a_broker_registers_again_with_new_facts_and_stays_drained() -> None:
    async def test(world: World) -> None:
        catalog = await world.catalog()
        await catalog.prepare()
        broker = Broker(name="Broker 0", address="h:1", disk_id="d")
        await catalog.register_broker(broker)
        await catalog.register_broker(broker)
        found = (await catalog.brokers())["Broker 0"]
        assert found == Versioned(broker, 0)
        await catalog.put_broker(msgspec.structs.replace(broker, draining=True), 0)
        await catalog.register_broker(msgspec.structs.replace(broker, address="h:2"))
        found = (await catalog.brokers())["Broker 0"]
        assert (found.value.address, found.value.draining) == ("h:2", True)

    run(test)


def test_a_broker_that_starts_takes_the_place_of_its_former_life_which_then_must_stop() -> None:
    async def test(world: World) -> None:
        old, new = await world.catalog(), await world.catalog()
        await old.prepare()
        with pytest.raises(NodeMissing):
            await old.announce_broker("b", 1, starting=True)
        await old.register_broker(Broker(name="b", address="h:1"))
        assert await old.online() == {}
        await old.announce_broker("b", 1, starting=True)
        await old.announce_broker("b", 1, starting=False)
        await new.announce_broker("b", 2, starting=True)
        assert {name: state.incarnation for name, state in (await new.online()).items()} == {"b": 2}
        with pytest.raises(BrokerReplaced, match="incarnation 2"):
            await old.announce_broker("b", 1, starting=False)
        await old.store.close()
        assert list(await new.online()) == ["b"]

    run(test)


def test_a_broker_that_lost_its_session_replaces_what_it_left() -> None:
    async def test(world: World) -> None:
        before, after = await world.catalog(), await world.catalog()
        await before.prepare()
        await before.register_broker(Broker(name="b", address="h:1"))
        await before.announce_broker("b", 7, starting=True)
        await after.announce_broker("b", 7, starting=False)
        state = await after.broker_state("b")
        assert state is not None
        assert state.owner == after.store.session.id

    run(test)


def test_topics_and_partitions_are_created_once_and_nothing_is_reset() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        topic, made = await catalog.create_topic(Topic(name="t", id="2"))
        assert (topic.value.id, made) == ("1", False)
        partition, made = await catalog.create_partition("t", Partition(name="北京", uid="u2"))
        assert (partition.value.uid, partition.value.state, made) == ("u1", Ack.UNSET, False)
        active = await catalog.chain("t", "北京").active()
        assert (active.block.value, active.replicas) == (NowBlock(), ())
        assert await catalog.topics() == ["t"]
        assert await catalog.partitions("t") == ["北京"]

    run(test)


def test_what_is_not_there_is_unknown_by_name() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        chain = catalog.chain("t", "nowhere")
        for call, error in (
            (catalog.topic("no"), UnknownTopic),
            (catalog.partitions("no"), UnknownTopic),
            (catalog.subscriptions("no"), UnknownTopic),
            (catalog.create_partition("no", Partition(name="p", uid="u")), UnknownTopic),
            (catalog.create_subscription("no", Subscription(name="s", option=2)), UnknownTopic),
            (chain.partition(), UnknownPartition),
            (chain.active(), UnknownPartition),
            (chain.sealed(), UnknownPartition),
            (chain.mirror(), UnknownPartition),
            (chain.report_cursor("g", 1), UnknownPartition),
        ):
            with pytest.raises(error, match=r"no|nowhere"):
                await call

    run(test)


def test_a_topic_is_deleted_only_after_it_was_marked_and_takes_no_partition_then() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        with pytest.raises(MetadataError, match="not marked"):
            await catalog.delete_topic("t")
        topic = await catalog.topic("t")
        await catalog.put_topic(msgspec.structs.replace(topic.value, deleting=True), topic.version)
        with pytest.raises(UnknownTopic, match="being deleted"):
            await catalog.create_partition("t", Partition(name="p", uid="u"))
        await catalog.delete_topic("t")
        assert await catalog.topics() == []
        again, made = await catalog.create_topic(Topic(name="t", id="2"))
        assert (again.value.id, made) == ("2", True)

    run(test)


def test_subscriptions_are_kept_changed_and_removed() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        subscription = Subscription(name="s/1".replace("/", " "), option=2, groups={"g": {"c": True}})
        assert await catalog.create_subscription("t", subscription)
        assert not await catalog.create_subscription("t", subscription)
        assert await catalog.subscriptions("t") == {"s 1": Versioned(subscription, 0)}
        changed = msgspec.structs.replace(subscription, partition="北京")
        await catalog.put_subscription("t", changed, 0)
        with pytest.raises(VersionConflict):
            await catalog.put_subscription("t", subscription, 0)
        await catalog.delete_subscription("t", "s 1", 1)
        assert await catalog.subscriptions("t") == {}

    run(test)


# --- The chain ---


async def moved(catalog: Catalog, *, places: tuple[Place, ...] = PLACES, mode: int = Ack.QUORUM, end: int = 0) -> None:
    """Move the chain as a controller does."""
    chain = catalog.chain("t", "北京")
    partition, active = await chain.partition(), await chain.active()
    pending = Pending(
        block=partition.value.next_block, epoch=partition.value.epoch + 1, mode=mode, dupnum=3, replicas=places
    )
    intended = await chain.intend(partition, pending)
    now, sealed = active.block.value, None
    if now.block:
        sealed = SealedBlock(block=now.block, start=now.start, end=end, mode=now.mode, seal_index=9, seal_crc=8)
    following = NowBlock(block=pending.block, start=end, mode=mode, epoch=pending.epoch)
    await chain.move(intended, active, following, sealed)


def test_a_move_seals_the_active_block_and_begins_the_next_in_one_step() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        chain = catalog.chain("t", "北京")
        await moved(catalog)
        assert await chain.sealed() == []
        first = await chain.active()
        assert [(each.name, each.broker, each.disk_id) for each in first.replicas] == [
            ("dup_0", "Broker0", "disk0"), ("dup_1", "Broker1", "disk1"), ("dup_2", "Broker2", "disk2"),
        ]  # fmt: skip
        other = (*PLACES[1:], Place(broker="Broker9", disk_id="disk9"))
        await moved(catalog, places=other, mode=Ack.LEADER, end=100)
        partition = (await chain.partition()).value
        assert (partition.state, partition.dupnum, partition.epoch, partition.next_block) == (Ack.LEADER, 3, 2, 3)
        assert partition.pending is None
        now = await chain.active()
        assert (now.block.value.block, now.block.value.start, now.block.value.mode) == (2, 100, Ack.LEADER)
        assert [each.broker for each in now.replicas] == ["Broker1", "Broker2", "Broker9"]
        (sealed,) = await chain.sealed()
        assert (sealed.block, sealed.start, sealed.end, sealed.seal_index, sealed.seal_crc) == (1, 0, 100, 9, 8)
        assert await chain.sealed_replicas(1) == first.replicas
        assert await chain.replica_end(1, "Broker0") == 100

    run(test)


def test_of_two_who_finish_the_same_move_one_does() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        chain = catalog.chain("t", "北京")
        pending = Pending(block=1, epoch=1, mode=Ack.QUORUM, dupnum=3, replicas=PLACES)
        intended = await chain.intend(await chain.partition(), pending)
        with pytest.raises(VersionConflict):
            await chain.intend(Versioned(intended.value, 0), pending)
        active, now = await chain.active(), NowBlock(block=1, mode=Ack.QUORUM, epoch=1)
        await chain.move(intended, active, now, None)
        with pytest.raises(VersionConflict):
            await chain.move(intended, active, now, None)
        assert (await chain.partition()).value.next_block == 2

    run(test)


def test_a_leader_that_was_recorded_meanwhile_stops_a_move_made_from_what_was_read_before() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        await moved(catalog)
        chain = catalog.chain("t", "北京")
        active = await chain.active()
        pending = Pending(block=2, epoch=2, mode=Ack.QUORUM, dupnum=3, replicas=PLACES)
        intended = await chain.intend(await chain.partition(), pending)
        assert await chain.become_leader("u1", 1, 5, "Broker1", 77)
        sealed = SealedBlock(block=1, start=0, end=1, mode=-1, seal_index=1, seal_crc=1)
        with pytest.raises(VersionConflict):
            await chain.move(intended, active, NowBlock(block=2), sealed)
        assert await chain.sealed() == []

    run(test)


def test_only_a_higher_term_of_the_active_block_becomes_leader() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        await moved(catalog)
        chain = catalog.chain("t", "北京")
        assert await chain.become_leader("u1", 1, 3, "Broker1", 11)
        assert not await chain.become_leader("u1", 1, 3, "Broker2", 12)
        assert not await chain.become_leader("u1", 2, 9, "Broker2", 12)
        assert await chain.become_leader("u1", 1, 4, "Broker0", 10)
        now = (await chain.active()).block.value
        assert (now.leader, now.leader_incarnation, now.term) == ("Broker0", 10, 4)
        with pytest.raises(UnknownPartition, match="anew"):
            await chain.become_leader("u0", 1, 9, "Broker2", 12)

    run(test)


def test_of_many_leaders_the_highest_term_stays() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        await moved(catalog)
        chain = catalog.chain("t", "北京")
        await asyncio.gather(*(chain.become_leader("u1", 1, term, f"Broker{term}", 0) for term in range(1, 9)))
        assert (await chain.active()).block.value.leader == "Broker8"

    run(test)


def test_retention_takes_blocks_and_raises_the_first_offset_in_one_step() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        for end in (0, 100, 250, 300):
            await moved(catalog, end=end)
        chain = catalog.chain("t", "北京")
        blocks, stale = await chain.sealed(), await chain.partition()
        assert [each.end for each in blocks] == [100, 250, 300]
        await chain.retain(stale, blocks[:2])
        assert (await chain.partition()).value.first_offset == 250
        assert [each.block for each in await chain.sealed()] == [3]
        with pytest.raises(VersionConflict):
            await chain.retain(stale, blocks[2:])
        assert [each.block for each in await chain.sealed()] == [3]

    run(test)


def test_copies_of_a_sealed_block_come_and_go() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        for end in (0, 100):
            await moved(catalog, end=end)
        chain = catalog.chain("t", "北京")
        replica = Replica(name="dup_3", broker="Broker7", disk_id="d7")
        (sealed,), (former, *_) = await chain.sealed(), await chain.sealed_replicas(1)
        await chain.rewrite(await chain.partition(), sealed, added=[replica], removed=[former])
        assert [each.broker for each in await chain.sealed_replicas(1)] == ["Broker1", "Broker2", "Broker7"]

    run(test)


def test_mirrors_never_fall_and_never_stop_a_move() -> None:
    async def test(world: World) -> None:
        catalog = await with_partition(world)
        await moved(catalog)
        chain = catalog.chain("t", "北京")
        await asyncio.gather(*(chain.report_end(1, f"Broker{end % 3}", end) for end in (30, 10, 20)))
        await chain.report_end(1, "nobody", 5)
        await chain.report_cursor("g", 8)
        await chain.report_cursor("g", 4)
        mirror = await chain.mirror()
        assert (mirror.ends, mirror.cursors) == ({1: 30}, {"g": 8})
        assert await chain.replica_end(1, "Broker1") == 10
        await moved(catalog, end=31)
        await chain.report_end(1, "Broker1", 31)
        assert await chain.replica_end(1, "Broker1") == 31

    run(test)


# --- Values ---


def test_fields_from_a_newer_program_are_passed_over_and_missing_ones_take_their_defaults() -> None:
    broker = nodes.decode(Broker, "/b", b'{"name": "b", "address": "h:1", "colour": {"deep": [1]}}')
    assert nodes.changed(broker, unknown=()) == Broker(name="b", address="h:1")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"name": 1}', b"\xff", b'{"name": "b"}'])
def test_a_damaged_value_is_an_error_that_names_the_node(data: bytes) -> None:
    with pytest.raises(DamagedNode, match="/Brokers/b is damaged"):
        nodes.decode(Broker, "/Brokers/b", data)


def test_every_value_survives_its_way_through_json() -> None:
    pending = Pending(block=1, epoch=2, mode=-1, dupnum=3, replicas=PLACES, reason="size")
    for value in (
        Partition(name="p", uid="u", pending=pending),
        nodes.Mirror(cursors={"g": 1}, ends={7: 8}),
        nodes.BrokerState(incarnation=2**63),
        Topic(name="t", id="1", settings={"retention_ms": 5, "fsync": "commit", "fetch_unclean": True}),
    ):
        assert nodes.decode(type(value), "/x", nodes.encode(value)) == value


def test_nodes_of_a_partition_are_told_apart_by_name() -> None:
    assert nodes.block_number("Block_12") == 12
    assert [nodes.block_number(node) for node in ("NowBlock", "Mirror", "Block_", "Block_x", "xBlock_1")] == [None] * 5
    assert (
        nodes.PartitionPaths.of("a b", "北京").sealed_block(3) == "/Topics/a%20b/Partitions/%E5%8C%97%E4%BA%AC/Block_3"
    )
