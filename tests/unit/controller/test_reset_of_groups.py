"""Groups are set to another place by the leader of the active block; the controller finds out which offset that is."""

from __future__ import annotations

import pytest
from test_repair import rolled

from clymq.controller.groups import Target, parse_target
from clymq.errors import InvalidRequest, NotSubscribed, OffsetOutOfRange, PartitionUnset, UnknownTopic
from clymq.protocol.controller import CreatePart, CreateTopic, ListGroups, ReplicaDown, ResetGroup, Sub, UpdatePTPOffset
from clymq.protocol.hosting import LATEST
from clymq.types import Mode
from controller_world import World, run
from fake_brokers import MESSAGE_US


async def three_blocks(world: World) -> None:
    """Offsets [0, 10) and [10, 20) are sealed, [20, 25) are not; a group has subscribed."""
    await world.make()
    await rolled(world, 2)
    view = await world.settled()
    world.brokers.append(view.partition.value.uid, view.now.block, 5)
    await world.ask(Sub("t", "c", Mode.PTP_PULL, "g"))


def iso(offset: int) -> str:
    return f"1970-01-01T00:00:00.{offset * MESSAGE_US:06d}Z"


@pytest.mark.parametrize(
    ("to", "cursor"),
    [("earliest", 0), ("latest", 25), ("13", 13), ("25", 25), (iso(0), 0), (iso(9), 9), (iso(10), 10), (iso(22), 22),
     (iso(99), 25), ("1970-01-01T01:00:00.010+01:00", 10), ("1970-01-01", 0)],
)  # fmt: skip
def test_a_group_is_set_to_where_it_is_told(to: str, cursor: int) -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        (stands,) = (await world.ask(ResetGroup("t", "g", to))).groups
        assert (stands.topic, stands.group, stands.partition, stands.cursor, stands.end, stands.lag) == (
            "t", "g", "p", cursor, 25, 25 - cursor,
        )  # fmt: skip
        view = await world.view()
        assert world.brokers[view.now.leader].positions[view.partition.value.uid, "g"] == cursor

    run(test)


def test_the_mirror_goes_back_with_a_group_that_was_set_back() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        uid = (await world.view()).partition.value.uid
        await world.ask(UpdatePTPOffset("t", "p", uid, "g", 12))
        await world.ask(ResetGroup("t", "g", "5"))
        assert [each.cursor for each in (await world.ask(ListGroups("t"))).groups] == [5]
        await world.ask(UpdatePTPOffset("t", "p", uid, "g", 3, exact=True))
        assert [each.cursor for each in (await world.ask(ListGroups("t"))).groups] == [3]

    run(test)


def test_a_group_is_set_in_all_partitions_or_in_the_one_that_is_named() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        await world.make("t", "q")
        await world.ask(CreatePart("t", "unset"))
        assert [each.partition for each in (await world.ask(ResetGroup("t", "g", "latest"))).groups] == ["p", "q"]
        assert [each.partition for each in (await world.ask(ResetGroup("t", "g", "latest", "q"))).groups] == ["q"]
        with pytest.raises(PartitionUnset):
            await world.ask(ResetGroup("t", "g", "latest", "unset"))

    run(test)


def test_nobody_is_set_to_what_is_not_there() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        with pytest.raises(OffsetOutOfRange) as refused:
            await world.ask(ResetGroup("t", "g", "26"))
        assert refused.value.end == 25
        with pytest.raises(NotSubscribed):
            await world.ask(ResetGroup("t", "nobody", "earliest"))
        with pytest.raises(UnknownTopic):
            await world.ask(ResetGroup("nowhere", "g", "earliest"))
        view = await world.view()
        assert (view.partition.value.uid, "nobody") not in world.brokers[view.now.leader].positions

    run(test)


def test_a_topic_without_partitions_has_no_group_to_set() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        await world.ask(Sub("t", "c", Mode.PTP_PULL, "g"))
        with pytest.raises(NotSubscribed):
            await world.ask(ResetGroup("t", "g", "earliest"))

    run(test)


def test_a_time_is_found_at_whichever_replica_answers_and_what_is_lost_is_passed_over() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        view = await world.view()
        first = view.sealed[0].replicas[0].broker
        if first != view.now.leader:
            world.brokers[first].deaf = True
        (stands,) = (await world.ask(ResetGroup("t", "g", iso(4)))).groups
        assert stands.cursor == 4
        world.brokers[first].deaf = False
        for replica in view.sealed[0].replicas:
            lost = ReplicaDown("t", "p", view.partition.value.uid, 1, replica.broker, replica.disk_id, "rot")
            await world.ask(lost)
        (stands,) = (await world.ask(ResetGroup("t", "g", iso(4)))).groups
        assert stands.cursor == 10

    run(test)


def test_a_leader_that_is_not_there_yet_is_waited_for() -> None:
    async def test(world: World) -> None:
        await three_blocks(world)
        leader = (await world.view()).now.leader
        world.brokers[leader].deaf = True
        world.clock.call_later(
            world.config.leader_wait_ms_max / 2, lambda: setattr(world.brokers[leader], "deaf", False)
        )
        assert (await world.ask(ResetGroup("t", "g", "7"))).groups[0].cursor == 7

    run(test)


def test_what_is_no_place_is_refused() -> None:
    assert parse_target("earliest") == Target()
    assert parse_target("latest") == Target(LATEST)
    for nonsense in ("", "-1", "newest", "1.5", "2026-13-01", "٣"):
        with pytest.raises(InvalidRequest, match="ISO 8601"):
            parse_target(nonsense)
