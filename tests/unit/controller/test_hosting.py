"""What brokers ask and tell: rows 1, 3, 40, 44 and 80, and the truth that they host by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

import pytest
from test_moves import at_block, roll

from clymq.controller.chains import Chains, View
from clymq.controller.ring import Ring
from clymq.errors import BrokerReplaced, ConfigError, LeaderUnavailable, UnknownPartition, VersionConflict
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import NowBlock, Pending, Place, SealedBlock, changed
from clymq.metadata.store import MetadataStore, Node, Operation
from clymq.protocol.controller import (
    BecomeLeader,
    BroGetConfig,
    BroInfo,
    CreatePart,
    CreateTopic,
    DeleteTopic,
    GetNewLeader,
    Property,
    ReplicaDown,
    SetPartitionState,
    Status,
    UpdateDup,
    UpdatePTPOffset,
)
from clymq.protocol.hosting import CloseRaftPartition
from clymq.types import Ack
from controller_world import World, run

R = TypeVar("R")


def info(name: str, **changed: object) -> BroInfo:
    facts = {"address": f"{name}:2", "disk_id": f"disk-{name}", "incarnation": 1}
    return BroInfo(name, **{**facts, **changed})  # type: ignore[arg-type]


def test_rows_1_and_3_a_broker_that_says_who_it_is_is_on_the_ring_once() -> None:
    async def test(world: World) -> None:
        cluster = await world.ask(info("Broker0", properties=Property(power=2, cpu=0.5, disk_free_bytes=7)))
        await world.ask(info("Broker1", rack="r1"))
        once = await world.catalog.brokers()
        for _ in range(3):
            await world.ask(info("Broker1", rack="r1"))
        brokers = await world.catalog.brokers()
        assert brokers["Broker1"].value.rack == "r1"
        assert brokers == once
        ring = Ring({name: each.value.power for name, each in brokers.items()})
        assert len(ring) == 40
        status = {each.name: each for each in (await world.ask(Status())).brokers}
        assert (status["Broker0"].cpu, status["Broker0"].disk_free_bytes, status["Broker0"].power) == (0.5, 7, 2)
        with pytest.raises(ConfigError, match="belongs there"):
            await world.ask(info("Broker0", cluster_id="another"))
        await world.ask(info("Broker0", cluster_id=cluster.cluster_id))

    run(test)


def test_what_a_life_that_is_over_says_of_itself_changes_nothing() -> None:
    """A process that another one has replaced would put its old address and its old disk into the new one's place."""

    async def test(world: World) -> None:
        await world.ask(info("Broker0"))
        before = await world.catalog.brokers()
        with pytest.raises(BrokerReplaced):
            await world.ask(info("Broker0", incarnation=99, address="zombie:1", disk_id="another"))
        assert await world.catalog.brokers() == before

    run(test)


def test_the_config_names_active_and_sealed_blocks_with_disks_and_addresses_and_nothing_else() -> None:
    async def test(world: World) -> None:
        view = await world.make(dupnum=2)
        outsider = next(name for name in world.brokers.brokers if name not in view.members)
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(roll(view))
        await world.until_true(lambda: at_block(world, 2), "it has rolled")
        config = await world.ask(BroGetConfig(view.members[0], f"disk-{view.members[0]}"))
        active, sealed = config.blocks
        assert (active.block, active.start, active.epoch, active.mode, active.sealed) == (2, 10, 2, -1, False)
        assert [(each.broker, each.disk_id, each.address) for each in active.replicas] == [
            (name, f"disk-{name}", f"{name}:2") for name in view.members
        ]
        assert active.before is not None
        assert (active.before.block, active.before.seal_crc) == (1, sealed.seal_crc)
        assert (sealed.block, sealed.start, sealed.end, sealed.sealed, sealed.bytes) == (1, 0, 10, True, 1000)
        assert config.addresses == {name: f"{name}:2" for name in world.brokers.brokers}
        assert (await world.ask(BroGetConfig(outsider, f"disk-{outsider}"))).blocks == ()

    run(test)


def test_row_5_a_broker_that_restarts_is_told_all_that_it_hosted_and_nobody_else_has_to_speak() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(roll(view))
        await world.until_true(lambda: at_block(world, 2), "it has rolled")
        await world.settled()
        name = view.members[1]
        before = dict(world.brokers[name].blocks)
        await world.kill_broker(name)
        world.brokers[name].hosted.clear()
        await world.add_broker(name, incarnation=2)
        await world.until(lambda: len(world.brokers[name].hosted) == 2, "it hosts both blocks again")
        assert world.brokers[name].blocks == before

    run(test)


def test_many_who_ask_at_once_share_a_reading_that_began_after_they_asked() -> None:
    async def test(world: World) -> None:
        chains = Chains(world.catalog)
        await world.make()
        reads = 0
        read_all = chains._read_all

        async def counted() -> list[View]:
            nonlocal reads
            reads += 1
            return await read_all()

        chains._read_all = counted  # type: ignore[method-assign]
        asked = [asyncio.ensure_future(chains.all_views()) for _ in range(50)]
        await asyncio.sleep(0)
        await world.make("t", "later")
        late = await asyncio.gather(*(chains.all_views() for _ in range(50)))
        await asyncio.gather(*asked)
        assert reads == 4  # for each of the two crowds: who came first, and all the others
        assert all(len(views) == 2 for views in late)

    run(test)


def test_a_topic_that_is_made_anew_while_it_is_read_is_not_paired_with_the_partitions_of_the_new_one() -> None:
    """Its brokers would host them in the folder of the old topic, and not find them there after a restart."""

    async def test(world: World) -> None:
        await world.make()
        chains = Chains(world.catalog)
        old = (await chains.topic("t")).value
        await world.ask(DeleteTopic("t"))
        view = await world.make()
        assert view.topic.id != old.id
        with pytest.raises(VersionConflict):
            await chains.views(old)
        (found,) = await chains.all_views()
        assert found.topic.id == view.topic.id
        with pytest.raises(VersionConflict):
            await chains.views(old)

    run(test)


async def rolled(world: World, times: int) -> None:
    """Make a partition with so many sealed blocks of ten messages."""
    view = await world.make()
    for block in range(1, times + 1):
        world.brokers.append(view.partition.value.uid, block, 10)
        await world.ask(roll(await world.settled()))
        await world.until_true(partial(at_block, world, block + 1), "it has rolled")
    await world.settled()


def test_a_long_chain_is_read_in_few_round_trips() -> None:
    async def test(world: World) -> None:
        await rolled(world, 20)
        store = _RoundTrips(world.catalog.store)
        (found,) = await Chains(Catalog(store)).all_views()  # type: ignore[arg-type]
        assert [sealed.block.block for sealed in found.sealed] == list(range(1, 21))
        assert all(len(sealed.replicas) == 3 for sealed in found.sealed)
        assert store.reads > 80
        assert store.waits < 25

    run(test)


def test_what_a_change_leaves_behind_is_what_a_reader_finds_and_need_not_be_read() -> None:
    """Chaos, ZooKeeper, fetch, seed 4005: a chain that was mended block by block was read whole for each block."""

    async def test(world: World) -> None:
        await rolled(world, 10)
        for name in list(world.controllers):
            await world.kill_controller(name)
        store = _RoundTrips(world.catalog.store)
        chains = Chains(Catalog(store))  # type: ignore[arg-type]
        view = await chains.view("t", "p")
        assert store.reads > 40

        async def left_behind(change: Awaitable[View]) -> View:
            changed_view, store.reads = await change, 0
            assert await chains.view("t", "p") == changed_view
            assert store.reads <= 3  # topic, partition and who leads
            assert await Chains(world.catalog).view("t", "p") == changed_view
            return changed_view

        for sealed in view.sealed:
            former = sealed.replicas[0]
            copied = changed(sealed.block, copies=(Place(broker="Broker8", disk_id="d8"),))
            view = await left_behind(chains.rewrite(view, copied))
            good = changed(former, broker="Broker8", disk_id="d8")
            view = await left_behind(chains.rewrite(view, sealed.block, added=[good], removed=[former]))
        view = await left_behind(chains.mark_down(view, 3, view.sealed[2].replicas[1], "rot"))
        view = await left_behind(chains.mark_down(view, 11, view.active.replicas[1], "rot"))
        view = await left_behind(chains.put(view, changed(view.partition.value, dupnum=2)))
        view = await left_behind(chains.retain(view, [each.block for each in view.sealed[:2]]))
        pending = Pending(block=12, epoch=12, mode=1, dupnum=1, replicas=(Place(broker="Broker2", disk_id="d2"),))
        view = await left_behind(chains.intend(view, pending))
        ended = SealedBlock(block=11, start=100, end=110, mode=-1, seal_index=9, seal_crc=7)
        view = await left_behind(chains.move(view, NowBlock(block=12, start=110, mode=1, epoch=12), ended))
        assert [each.block.block for each in view.sealed] == list(range(3, 12))

        stale = view._replace(partition=view.partition._replace(version=0))
        with pytest.raises(VersionConflict):
            await chains.retain(stale, [view.sealed[0].block])
        assert await chains.view("t", "p") == view

    run(test)


class _RoundTrips:
    """A store that is far away; counts how often somebody had to wait for it, with nothing else on its way."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._on_the_way = 0
        self.reads = 0
        self.waits = 0

    async def get(self, path: str) -> Node:
        return await self._ask(self._store.get(path))

    async def children(self, path: str) -> list[str]:
        return await self._ask(self._store.children(path))

    async def commit(self, operations: Sequence[Operation]) -> None:
        await self._store.commit(operations)

    async def _ask(self, question: Awaitable[R]) -> R:
        self.reads += 1
        self.waits += self._on_the_way == 0
        self._on_the_way += 1
        try:
            for _ in range(50):
                await asyncio.sleep(0)
            return await question
        finally:
            self._on_the_way -= 1


def test_the_mirror_does_not_grow_with_the_chain() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        chain = world.catalog.chain("t", "p")
        for block in range(1, 50):
            await chain.report_end(block, "Broker0", block)
        assert (await chain.mirror()).ends == {48: 48, 49: 49}
        assert view.now.block == 1

    run(test)


def test_row_40_a_broker_that_is_no_longer_a_replica_is_told_to_close_the_block() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        await world.ask(SetPartitionState("t", "p", Ack.QUORUM, 1))
        (stays,) = (await world.settled()).members
        await world.until(lambda: len(world.brokers.asked(CloseRaftPartition)) == 2, "both were told")
        closed = world.brokers.asked(CloseRaftPartition)
        assert {name for name, _ in closed} == set(view.members) - {stays}
        assert {request.block for _, request in closed} == {1}

    run(test)


def test_only_the_active_block_and_a_higher_term_change_who_leads() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid = view.partition.value.uid
        first, second, _ = view.members

        async def report(block: int, broker: str, term: int) -> str:
            await world.ask(BecomeLeader("t", "p", uid, block, broker, term, 1))
            return (await world.ask(GetNewLeader("t", "p", uid))).broker

        assert await report(1, second, 5) == second
        assert await report(1, first, 5) == second
        assert await report(1, first, 4) == second
        assert await report(2, first, 9) == second
        assert await report(1, first, 6) == first
        with pytest.raises(UnknownPartition):
            await world.ask(BecomeLeader("t", "p", "0" * 32, 1, second, 9))
        with pytest.raises(UnknownPartition):
            await world.ask(GetNewLeader("t", "p", "0" * 32))

    run(test)


def test_a_partition_without_a_block_has_no_leader_to_tell() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        made = await world.ask(CreatePart("t", "p"))
        with pytest.raises(LeaderUnavailable):
            await world.ask(GetNewLeader("t", "p", made.uid))

    run(test)


def test_row_44_the_end_of_a_block_never_falls_and_that_of_a_replica_is_as_told() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid, chain = view.partition.value.uid, world.catalog.chain("t", "p")
        for end in (10, 20, 15):
            await world.ask(UpdateDup("t", "p", uid, 1, "Broker0", end))
        assert (await chain.mirror()).ends == {1: 20}
        assert await chain.replica_end(1, "Broker0") == 15
        await world.ask(UpdatePTPOffset("t", "p", uid, "g", 12))
        await world.ask(UpdatePTPOffset("t", "p", uid, "g", 8))
        await world.ask(UpdateDup("t", "p", uid, 1, "Broker0", 15, lost_messages=3))
        status = await world.ask(Status())
        group = status.groups[0]
        assert (group.group, group.cursor, group.end, group.lag) == ("g", 12, 20, 8)
        assert (status.partitions[0].end, status.partitions[0].lost_messages) == (20, 3)

    run(test)


def down(view: object, block: int, name: str, disk_id: str = "") -> ReplicaDown:
    uid = view.partition.value.uid  # type: ignore[attr-defined]
    return ReplicaDown("t", "p", uid, block, name, disk_id or f"disk-{name}", "its disk was wiped")


def test_row_80_a_lost_replica_moves_the_active_block_to_somebody_else() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        view = await world.make()
        lost = view.members[1]
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(down(view, 1, lost))
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        after = await world.settled()
        assert lost not in after.members
        assert after.now.start == 10

    run(test)


def test_row_80_without_anybody_else_the_next_block_begins_there_and_then_stays_until_there_is_another_disk() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        lost = view.members[1]
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(down(view, 1, lost))
        await world.until_true(lambda: at_block(world, 2), "the next block begins, with an empty log for everybody")
        assert set((await world.settled()).members) == set(view.members)
        # Lost again on the same disk: it is the disk, and moving once more would help nobody.
        await world.ask(down(view, 2, lost))
        await world.sleep(1000)
        assert (await world.view()).now.block == 2
        await world.kill_broker(lost)
        await world.add_broker(lost, disk_id="another", incarnation=2)
        await world.until_true(lambda: at_block(world, 3), "the block has moved")
        after = await world.settled()
        assert {each.broker: each.disk_id for each in after.active.replicas}[lost] == "another"
        # The sealed ones get copies on the new disk, registered when they are whole.
        await world.until_true(lambda: copied(world, lost, "another"), "the sealed blocks are copied")

    run(test)


async def copied(world: World, broker: str, disk_id: str) -> bool:
    return all(
        (broker, disk_id) in [(each.broker, each.disk_id) for each in sealed.replicas] and not sealed.block.copies
        for sealed in (await world.view()).sealed
    )


def test_a_report_about_a_disk_that_the_replica_is_not_on_changes_nothing() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        await world.ask(down(view, 1, "Broker0", "some other disk"))
        await world.ask(down(view, 7, "Broker0"))
        assert not any(each.down for each in (await world.view()).active.replicas)

    run(test)


def test_a_replica_that_was_lost_is_asked_to_say_so_if_it_is_whole_after_all() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        lost = view.members[1]
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(down(view, 1, lost))
        await world.until_true(lambda: at_block(world, 2), "the next block begins")
        config = await world.ask(BroGetConfig(lost, f"disk-{lost}"))
        assert [(each.block, each.down) for each in config.blocks if each.sealed] == [(1, True)]
        other = await world.ask(BroGetConfig(view.members[0], f"disk-{view.members[0]}"))
        assert not any(each.down for each in other.blocks)
        uid = view.partition.value.uid
        await world.ask(UpdateDup("t", "p", uid, 1, lost, 10, disk_id=f"disk-{lost}", whole=True))
        assert not any(each.down for each in (await world.view()).sealed[0].replicas)

    run(test)


def test_a_thousand_reports_at_once_are_all_heard() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid = view.partition.value.uid
        reports = [UpdateDup("t", "p", uid, 1, f"Broker{number % 3}", number) for number in range(60)]
        await asyncio.gather(*(world.ask(each) for each in reports))
        assert (await world.catalog.chain("t", "p").mirror()).ends == {1: 59}

    run(test)
