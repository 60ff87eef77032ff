"""What the controller does without being asked: rows 2, 73 and 76, replacement, copies, and even leaders."""

from __future__ import annotations

from collections import Counter

import pytest
from test_moves import at_block, roll

from clymq.controller.roster import Attendance
from clymq.errors import InvalidRequest, NotEnoughReplicas
from clymq.protocol.controller import (
    BecomeLeader,
    ConGetBroker,
    DrainBroker,
    ReplicaDown,
    Sub,
    UndrainBroker,
    UpdateDup,
)
from clymq.protocol.hosting import AddFetchPartition, AddRaftPartition
from clymq.types import Ack, Mode
from controller_world import World, run


async def rolled(world: World, times: int, *, count: int = 10, time_us: int | None = None) -> None:
    """Fill and roll the active block so many times."""
    for _ in range(times):
        view = await world.settled()
        at_us = world.clock.wall_us() if time_us is None else time_us
        world.brokers.append(view.partition.value.uid, view.now.block, count, time_us=at_us)
        await world.ask(roll(view))
        await world.until_true(lambda block=view.now.block: at_block(world, block + 1), "it has rolled")
    await world.settled()


def test_a_broker_that_is_away_for_a_short_while_is_not_replaced() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        view = await world.make()
        away = next(name for name in view.members if name != view.now.leader)
        await world.kill_broker(away)
        await world.sleep(world.config.replace_after_ms / 2)
        await world.add_broker(away, incarnation=2)
        await world.sleep(world.config.replace_after_ms)
        assert (await world.view()).now.block == 1

    run(test)


def test_what_lies_on_a_broker_that_is_gone_for_too_long_gets_another_place() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        await world.make()
        await rolled(world, 2)
        view = await world.settled()
        gone = view.sealed[0].replicas[1].broker
        await world.kill_broker(gone)
        await world.until_true(lambda: nowhere(world, gone), "nothing needs it any more")
        view = await world.settled()
        assert [len(each.replicas) for each in view.sealed] == [3] * len(view.sealed)
        assert all(not each.block.copies for each in view.sealed)
        assert sorted(each.name for each in view.sealed[0].replicas) == ["dup_0", "dup_1", "dup_2"]
        for sealed in view.sealed:
            for replica in sealed.replicas:
                held = world.brokers[replica.broker].blocks[view.partition.value.uid, sealed.block.block]
                assert held.seal_crc == sealed.block.seal_crc

    run(test)


async def nowhere(world: World, name: str) -> bool:
    view = await world.view()
    named = {*view.members, *(each.broker for sealed in view.sealed for each in sealed.replicas)}
    return name not in named and view.partition.value.pending is None


def test_a_fetch_leader_that_cannot_write_is_led_by_another_even_where_nobody_can_take_its_seat() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        leader = view.now.leader
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.ask(
            ReplicaDown("t", "p", view.partition.value.uid, 1, leader, f"disk-{leader}", "its disk is full")
        )
        await world.until_true(lambda: at_block(world, 2), "another leads")
        after = await world.settled()
        assert after.now.leader != leader
        assert (after.now.start, after.members[-1]) == (10, leader)

    run(test)


def test_row_80_a_lost_replica_begins_anew_where_it_was_if_nobody_else_can_take_it_but_not_for_ever() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid = view.partition.value.uid
        victim = view.members[-1]
        world.brokers.append(uid, 1, 10)
        await world.ask(ReplicaDown("t", "p", uid, 1, victim, f"disk-{victim}", "its folder is gone"))
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        view = await world.settled()
        assert (view.now.start, set(view.members)) == (10, set(world.brokers.brokers))
        assert not any(each.down for each in view.active.replicas)
        # The block before is still lost there: then it is the disk, and a third block would fare no better.
        assert any(each.down for each in view.sealed[0].replicas)
        await world.ask(ReplicaDown("t", "p", uid, 2, victim, f"disk-{victim}", "again"))
        await world.sleep(5_000)
        assert (await world.view()).now.block == 2

    run(test)


def test_a_sealed_replica_that_has_mended_itself_is_of_use_again() -> None:
    async def test(world: World) -> None:
        await world.make()
        await rolled(world, 1)
        view = await world.settled()
        uid, replica = view.partition.value.uid, view.sealed[0].replicas[0]
        down = ReplicaDown("t", "p", uid, 1, replica.broker, replica.disk_id, "rot")
        await world.ask(down)
        assert (await world.view()).sealed[0].replicas[0].down == "rot"
        await world.ask(UpdateDup("t", "p", uid, 1, replica.broker, 10, disk_id=replica.disk_id, whole=True))
        assert (await world.view()).sealed[0].replicas[0] == replica

    run(test)


def test_a_copy_is_a_replica_only_when_it_is_whole_and_one_that_came_back_makes_it_needless() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        await world.make()
        await rolled(world, 1)
        view = await world.settled()
        holders = [each.broker for each in view.sealed[0].replicas]
        (other,) = set(world.brokers.brokers) - set(holders)
        world.brokers[other].mend = lambda _: []  # type: ignore[method-assign,assignment]
        await world.kill_broker(holders[0])
        await world.until_true(lambda: copying(world, other), "a copy is to be made")
        assert other not in [each.broker for each in (await world.view()).sealed[0].replicas]
        await world.add_broker(holders[0], incarnation=2)
        await world.until_true(lambda: not_copying(world), "the copy is needless")
        assert [each.broker for each in (await world.view()).sealed[0].replicas] == holders

    run(test)


async def copying(world: World, name: str) -> bool:
    return [each.broker for each in (await world.view()).sealed[0].block.copies] == [name]


async def not_copying(world: World) -> bool:
    return not (await world.view()).sealed[0].block.copies


def test_row_76_a_drained_broker_is_needed_for_nothing_and_takes_nothing_until_it_is_undrained() -> None:
    async def test(world: World) -> None:
        await world.make()
        await rolled(world, 2)
        with pytest.raises(NotEnoughReplicas):
            await world.ask(DrainBroker("Broker0"))
        await world.add_broker("Broker3")
        first = await world.ask(DrainBroker("Broker0"))
        assert first.remaining == 3

        async def drained() -> bool:
            return (await world.ask(DrainBroker("Broker0"))).remaining == 0

        await world.until_true(drained, "it is empty")
        assert (await world.ask(DrainBroker("Broker0"))).moved >= 3
        assert await nowhere(world, "Broker0")
        await world.until(lambda: not world.brokers["Broker0"].blocks, "it has dropped everything")
        await rolled(world, 1)
        assert await nowhere(world, "Broker0")
        await world.ask(UndrainBroker("Broker0"))
        assert not (await world.catalog.brokers())["Broker0"].value.draining
        with pytest.raises(InvalidRequest, match="there is no broker nobody"):
            await world.ask(DrainBroker("nobody"))

    run(test)


def test_a_drain_goes_on_under_the_next_controller() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        view = await world.make()
        await world.ask(DrainBroker(view.now.leader))
        await world.kill_controller("ZkServer0")
        await world.add_controller("ZkServer1")
        await world.until_true(lambda: not_a_member(world, view.now.leader), "its active block has moved")

    run(test)


async def not_a_member(world: World, name: str) -> bool:
    return name not in (await world.view()).members


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_leaders_are_kept_even(ack: int) -> None:
    async def test(world: World) -> None:
        partitions = [f"p{number}" for number in range(9)]
        for name in partitions:
            view = await world.make("t", name, ack=ack)
            if ack == Ack.QUORUM:
                uid = view.partition.value.uid
                await world.ask(BecomeLeader("t", name, uid, 1, "Broker0", 5))
        if ack != Ack.QUORUM:
            # Everybody but Broker0 restarts, one after the other, and Broker0 inherits.
            for other in ("Broker1", "Broker2"):
                await world.kill_broker(other)
                await world.sleep(500)
            for other in ("Broker1", "Broker2"):
                await world.add_broker(other, incarnation=2)

        async def even() -> bool:
            views = [await world.view("t", name) for name in partitions]
            leads = Counter(view.now.leader for view in views)
            return len(leads) == 3 and max(leads.values()) - min(leads.values()) <= 2

        await world.until_true(even, "leaders are even")
        blocks = [(await world.view("t", name)).now.block for name in partitions]
        await world.sleep(5 * world.config.balance_ms)
        assert [(await world.view("t", name)).now.block for name in partitions] == blocks

    run(test)


def test_row_73_blocks_leave_by_age_oldest_first_and_the_first_offset_rises() -> None:
    async def test(world: World) -> None:
        await world.make()
        old_us = world.clock.wall_us() - 10_000_000
        await rolled(world, 2, time_us=old_us)
        await rolled(world, 2)
        await world.until_true(lambda: begins_at(world, 20), "the old ones have left")
        view = await world.view()
        assert [each.block.block for each in view.sealed] == [3, 4]
        uid = view.partition.value.uid
        await world.until(
            lambda: all((uid, 1) not in broker.blocks for broker in world.brokers.brokers.values()), "their files too"
        )
        await world.ask(Sub("t", "c", Mode.PSB_PULL, partition="p"))
        (route,) = (await world.ask(ConGetBroker("t", "c", Mode.PSB_PULL, partition="p", offset=5))).routes
        assert (route.error, route.problem) == ("OffsetOutOfRange", "offset 5 is outside [20, 40)")

    run(test, retention_ms=5000)


async def begins_at(world: World, offset: int) -> bool:
    return (await world.view()).partition.value.first_offset == offset


def test_row_73_blocks_leave_by_size_and_the_last_stays_until_the_next_is_led() -> None:
    async def test(world: World) -> None:
        await world.make()
        await rolled(world, 4)
        await world.until_true(lambda: begins_at(world, 20), "what is too much has left")
        assert [each.block.block for each in (await world.view()).sealed] == [3, 4]

    run(test, retention_bytes=2500)


def test_without_a_limit_nothing_leaves() -> None:
    async def test(world: World) -> None:
        await world.make()
        await rolled(world, 3, time_us=0)
        await world.sleep(3 * world.config.retention_check_ms)
        assert await begins_at(world, 0)

    run(test, retention_ms=-1)


# Nudges. Nobody asks by himself here: the next time would be in ten minutes.


def nudged(world: World) -> set[str]:
    return {name for kind in (AddRaftPartition, AddFetchPartition) for name, _ in world.brokers.asked(kind)}


def test_when_a_broker_is_back_those_who_share_a_block_with_it_are_told_to_look_where_it_is() -> None:
    async def test(world: World) -> None:
        for number in (3, 4):
            await world.add_broker(f"Broker{number}")
        view = await world.make()
        await world.kill_broker(view.members[0])
        await world.until_true(lambda: offline(world, view.members[0]), "it is gone")
        world.brokers.log.clear()
        await world.add_broker(view.members[0], incarnation=2)
        await world.until(lambda: nudged(world), "somebody is nudged", within_ms=2 * world.config.controller_tick_ms)
        await world.sleep(world.config.controller_tick_ms)
        assert nudged(world) == set(view.members)
        world.brokers.log.clear()
        await world.sleep(5 * world.config.controller_tick_ms)
        assert nudged(world) == set()  # once is enough

    run(test, config_ms=600_000)


async def offline(world: World, name: str) -> bool:
    return not (await Attendance(world.catalog, world.brokers, world.clock).roster()).online(name)


def test_a_new_controller_tells_everybody_to_look() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        world.brokers.log.clear()
        await world.kill_controller("ZkServer0")
        await world.add_controller("ZkServer1")
        await world.until(lambda: nudged(world) == set(view.members), "all are nudged")

    run(test, config_ms=600_000)


def test_many_blocks_are_copied_off_a_drained_broker_at_once_and_nobody_waits_for_the_next_question() -> None:
    async def test(world: World) -> None:
        await world.make()
        await rolled(world, 8)
        view = await world.settled()
        await world.add_broker("Broker3")
        leaving = view.members[0]
        began_ms = world.clock.monotonic_ms()
        await world.ask(DrainBroker(leaving))
        await world.until_true(lambda: nowhere(world, leaving), "nothing needs it any more")
        assert world.clock.monotonic_ms() - began_ms < 8 * world.config.controller_tick_ms
        view = await world.settled()
        for sealed in view.sealed:
            assert len({each.broker for each in sealed.replicas}) == 3

    run(test, config_ms=600_000)
