"""Where to read, and who may: rows 51 to 55."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_repair import rolled

from clymq.errors import InvalidRequest, NotSubscribed, UnknownPartition, UnknownTopic
from clymq.metadata.chain import Chain
from clymq.protocol.controller import (
    NOT_YET,
    BecomeLeader,
    ConGetBroker,
    CreatePart,
    CreateTopic,
    ListGroups,
    ListSubs,
    ProGetBroker,
    ReplicaDown,
    SetPartitionState,
    Sub,
    UnSub,
    UpdateDup,
    UpdatePTPOffset,
)
from clymq.protocol.hosting import PrepareSend
from clymq.types import Ack, Mode
from controller_world import World, run


async def lookup(world: World, offset: int, **changed: Any) -> Any:
    request = {"option": Mode.PSB_PULL, "partition": "p", "offset": offset, **changed}
    return (await world.ask(ConGetBroker("t", "c", **request))).routes


async def three_blocks(world: World) -> Any:
    await world.make()
    await rolled(world, 2)
    await world.ask(Sub("t", "c", Mode.PSB_PULL))
    return await world.settled()


def test_row_52_an_offset_is_found_in_its_block_or_is_an_explicit_error() -> None:
    async def test(world: World) -> None:
        view = await three_blocks(world)
        for offset, block, end in [(0, 1, 10), (9, 1, 10), (10, 2, 20), (20, 3, -1), (10**9, 3, -1)]:
            (route,) = await lookup(world, offset)
            assert (route.block, route.offset, route.end, route.error) == (block, offset, end, "")
            assert route.address == f"{route.broker}:2"
            assert len(route.replicas) == 2  # of the active block too: they know who leads
            world.brokers[route.broker].cursors.clear()
        assert route.broker == view.now.leader
        (route,) = await lookup(world, -1)
        assert route.error == "OffsetOutOfRange"

    run(test)


def test_row_53_the_best_replica_first_then_the_next_then_an_error_of_that_entry_only() -> None:
    async def test(world: World) -> None:
        view = await three_blocks(world)
        uid, names = view.partition.value.uid, [each.broker for each in view.sealed[0].replicas]
        for name, end in zip(names, (3, 10, 7), strict=True):
            await world.ask(UpdateDup("t", "p", uid, 1, name, end))
        (route,) = await lookup(world, 0)
        assert [route.broker, *(each.broker for each in route.replicas)] == [names[1], names[2], names[0]]
        world.brokers[names[1]].deaf = True
        (route,) = await lookup(world, 0)
        assert route.broker == names[2]
        await world.make("t", "q", dupnum=1)
        (alone,) = (await world.view("t", "q")).members
        for name in world.brokers.brokers:
            if name != alone:
                await world.kill_broker(name)
        world.brokers[alone].deaf = False
        routes = {each.partition: each for each in await lookup(world, 10**6, partition="")}
        assert routes["q"].error == ""
        assert routes["p"].error == ("" if view.now.leader == alone else "LeaderUnavailable")

    run(test)


def test_a_sealed_range_of_which_no_replica_is_left_is_lost_data() -> None:
    async def test(world: World) -> None:
        view = await three_blocks(world)
        uid = view.partition.value.uid
        for each in view.sealed[0].replicas:
            await world.ask(ReplicaDown("t", "p", uid, 1, each.broker, each.disk_id, "rot"))
        (route,) = await lookup(world, 0)
        assert route.error == "DataLost"
        (route,) = await lookup(world, 10)
        assert route.error == ""

    run(test)


def test_a_block_that_retention_takes_while_it_is_looked_up_is_to_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulated cluster, seed 6418: the reader was told of a node in the tree that it had never heard of."""
    replica_end = Chain.replica_end

    async def test(world: World) -> None:
        view, taking = await three_blocks(world), asyncio.Lock()

        async def quicker(self: Chain, block: int, broker: str) -> int:
            async with taking:
                partition = await self.partition()
                if partition.value.first_offset == 0:
                    await self.retain(partition, [view.sealed[0].block])
            return await replica_end(self, block, broker)

        monkeypatch.setattr(Chain, "replica_end", quicker)
        (route,) = await lookup(world, 0)
        assert route.error == "NotReady"
        (route,) = await lookup(world, 0)
        assert (route.error, route.start, route.end) == ("OffsetOutOfRange", 10, 20)

    run(test)


def test_row_51_point_to_point_has_one_entry_per_partition_at_its_cursor_and_says_whose_it_is() -> None:
    async def test(world: World) -> None:
        for name in ("beijing", "shanghai", "xian"):
            await world.make("t", name)
        await world.ask(CreatePart("t", "unset"))
        for number in (1, 2, 3):
            await world.ask(Sub("t", f"consumer{number}", Mode.PTP_PULL))
        uid = (await world.view("t", "xian")).partition.value.uid
        await world.ask(UpdatePTPOffset("t", "xian", uid, "default", 7))
        answer = await world.ask(ConGetBroker("t", "consumer3", Mode.PTP_PULL))
        routes = {each.partition: each for each in answer.routes}
        assert {name: each.offset for name, each in routes.items()} == {
            "beijing": 0, "shanghai": 0, "xian": 7, "unset": 0,
        }  # fmt: skip
        assert routes["unset"].error == "PartitionUnset"
        assert [name for name, each in routes.items() if each.assigned] == ["xian"]
        # Row 55: who leaves gives his share to the others.
        await world.ask(UnSub("t", "consumer3", Mode.PTP_PULL))
        after = await world.ask(ConGetBroker("t", "consumer1", Mode.PTP_PULL))
        assert "xian" in [each.partition for each in after.routes if each.assigned]
        assert after.generation > answer.generation
        (listed,) = (await world.ask(ListGroups("t"))).groups
        assert (listed.partition, listed.group, listed.cursor) == ("xian", "default", 7)

    run(test)


def test_row_54_prepare_send_is_asked_for_and_may_be_repeated() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        for _ in range(3):
            (route,) = await lookup(world, 12)
            assert route.offset == 12
        asked = [request for _, request in world.brokers.asked(PrepareSend)]
        assert {(each.block, each.mode, each.group, each.consumer) for each in asked} == {(2, 4, "default", "c")}

    run(test)


def test_row_55_subscriptions_are_checked_and_survive_the_controller() -> None:
    async def test(world: World) -> None:
        with pytest.raises(UnknownTopic):
            await world.ask(Sub("t", "c", Mode.PSB_PULL))
        await world.make()
        with pytest.raises(NotSubscribed):
            await lookup(world, 0)
        with pytest.raises(UnknownPartition):
            await world.ask(Sub("t", "c", Mode.PSB_PULL, partition="nowhere"))
        with pytest.raises(InvalidRequest, match="is no mode"):
            await world.ask(Sub("t", "c", 5))
        first = await world.ask(Sub("t", "c", Mode.PSB_PULL, partition="p"))
        again = await world.ask(Sub("t", "c", Mode.PSB_PULL, partition="p"))
        assert (first.created, again.created, first.name) == (True, False, "PSB_PULL/p")
        await world.ask(Sub("t", "d", Mode.PSB_PULL, partition="p"))
        await world.kill_controller("ZkServer0")
        await world.add_controller("ZkServer1")
        (route,) = await lookup(world, 0)
        assert route.error == ""
        (listed,) = (await world.ask(ListSubs("t"))).subscriptions
        assert listed.groups == {"default": {"c": True, "d": True}}
        for _ in range(2):
            await world.ask(UnSub("t", "c", Mode.PSB_PULL, partition="p"))
        with pytest.raises(NotSubscribed):
            await lookup(world, 0)
        await world.ask(UnSub("t", "d", Mode.PSB_PULL, partition="p"))
        assert (await world.ask(ListSubs())).subscriptions == ()
        await world.ask(CreateTopic("empty"))
        with pytest.raises(UnknownTopic):
            await world.ask(ListSubs("nowhere"))

    run(test)


def test_row_66_who_was_failed_by_a_leader_waits_for_a_newer_one() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        route = await world.ask(ProGetBroker("t", "p"))
        assert (route.broker, route.block, route.term) == (view.now.leader, 1, 1)
        other = next(name for name in view.members if name != route.broker)
        elected = BecomeLeader("t", "p", route.uid, 1, other, 2, 1)
        for known_term in (route.term, 0):  # it may have learned of the leader from a broker, without the term
            asked = asyncio.ensure_future(world.ask(ProGetBroker("t", "p", route.broker, 1, known_term)))
            await world.sleep(world.config.leader_wait_ms_max / 2)
            assert not asked.done()
            await world.ask(elected)
            newer = await asked
            assert (newer.broker, newer.term) == (elected.broker, elected.term)
            route, elected = newer, BecomeLeader("t", "p", route.uid, 1, view.now.leader, 3, 1)

    run(test)


def test_who_came_before_a_leader_was_elected_is_sent_to_it_as_soon_as_it_is() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        await world.ask(CreatePart("t", "p"))
        await world.ask(SetPartitionState("t", "p", Ack.QUORUM, 3))
        named = await world.ask(ProGetBroker("t", "p"))
        assert named.term == NOT_YET
        again = ProGetBroker("t", "p", named.broker, named.block, named.term)
        for _ in ("elected while it waits", "elected before it asks"):
            began_ms = world.clock.monotonic_ms()
            elected = await world.ask(again)
            assert (elected.broker, elected.term) == (named.broker, 1)
            assert world.clock.monotonic_ms() - began_ms < world.config.leader_wait_ms_max / 2

    run(test)


def test_who_is_wrong_about_a_failure_is_told_so_after_a_while_and_who_is_late_gets_the_newer_one_at_once() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        began_ms = world.clock.monotonic_ms()
        again = await world.ask(ProGetBroker("t", "p", view.now.leader, 1, 1))
        assert again.broker == view.now.leader
        assert world.clock.monotonic_ms() - began_ms >= world.config.leader_wait_ms_max
        await rolled(world, 1)
        began_ms = world.clock.monotonic_ms()
        assert (await world.ask(ProGetBroker("t", "p", view.now.leader, 1, 1))).block == 2
        assert world.clock.monotonic_ms() - began_ms < world.config.leader_wait_ms_max / 2

    run(test)


def test_a_route_says_where_its_block_begins_and_which_offsets_an_error_is_about() -> None:
    async def test(world: World) -> None:
        view = await three_blocks(world)
        assert [(await lookup(world, offset))[0].start for offset in (5, 15, 25)] == [0, 10, 20]
        (route,) = await lookup(world, -1)
        assert (route.error, route.start, route.end) == ("OffsetOutOfRange", 0, 20)
        for each in view.sealed[0].replicas:
            await world.ask(ReplicaDown("t", "p", view.partition.value.uid, 1, each.broker, each.disk_id, "rot"))
        (route,) = await lookup(world, 3)
        assert (route.error, route.start, route.end) == ("DataLost", 0, 10)

    run(test)
