"""Topics, partitions and their states: rows 6 to 9, 13 to 16, 19 and 81."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clymq.errors import (
    ConfigError,
    InvalidName,
    InvalidState,
    LeaderUnavailable,
    NotEnoughReplicas,
    PartitionUnset,
    TooManyPartitions,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from clymq.protocol.controller import (
    AlterTopic,
    BroGetConfig,
    CreatePart,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    ProGetBroker,
    SetPartitionState,
    UpdateDup,
)
from clymq.types import Ack
from controller_world import World, run


def test_row_6_a_topic_is_made_once() -> None:
    async def test(world: World) -> None:
        made = await world.ask(CreateTopic("phone_number", {"retention_ms": "60000"}))
        again = await world.ask(CreateTopic("phone_number"))
        same = await world.ask(CreateTopic("phone_number", {"retention_ms": 60_000}))
        assert (made.created, again.created, same.created) == (True, False, False)
        assert made.id == again.id == same.id
        with pytest.raises(TopicExists):
            await world.ask(CreateTopic("phone_number", {"retention_ms": 1}))
        assert (await world.ask(ListTopics())).topics == ("phone_number",)
        assert (await world.ask(DescribeTopic("phone_number"))).settings == {"retention_ms": 60_000}

    run(test)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 201, "a\n", "e\u0301"])
def test_a_name_that_breaks_the_rule_is_refused_with_the_rule(name: str) -> None:
    async def test(world: World) -> None:
        with pytest.raises(InvalidName):
            await world.ask(CreateTopic(name))
        await world.ask(CreateTopic("t"))
        with pytest.raises(InvalidName):
            await world.ask(CreatePart("t", name))

    run(test)


def test_row_7_a_partition_begins_unset_without_a_leader_and_is_never_reset() -> None:
    async def test(world: World) -> None:
        with pytest.raises(UnknownTopic):
            await world.ask(CreatePart("t", "北京"))
        await world.ask(CreateTopic("t"))
        made = await world.ask(CreatePart("t", "北京"))
        view = await world.view("t", "北京")
        assert (view.partition.value.state, view.now.leader, view.now.block) == (Ack.UNSET, "", 0)
        assert len(made.uid) == 32
        await world.ask(SetPartitionState("t", "北京", Ack.QUORUM))
        again = await world.ask(CreatePart("t", "北京"))
        assert (again.uid, again.created) == (made.uid, False)
        assert (await world.view("t", "北京")).now.block == 1

    run(test)


def test_row_8_the_partition_past_the_limit_is_a_clear_error() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        for name in "ab":
            await world.ask(CreatePart("t", name))
        with pytest.raises(TooManyPartitions, match="has 2 partitions; at most 2"):
            await world.ask(CreatePart("t", "c"))
        assert not (await world.ask(CreatePart("t", "b"))).created

    run(test, partitions_per_topic_max=2)


def test_a_topic_that_cannot_get_its_partitions_is_refused_before_there_is_anything_of_it() -> None:
    async def test(world: World) -> None:
        refused: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"partitions": 3}, TooManyPartitions),
            ({"partitions": 1, "dupnum": 0}, InvalidState),
            ({"partitions": 1, "dupnum": 4}, NotEnoughReplicas),
        ]
        for wanted, error in refused:
            with pytest.raises(error):
                await world.ask(CreateTopic("t", **wanted))
            assert (await world.ask(ListTopics())).topics == ()
        assert (await world.ask(CreateTopic("t", partitions=2, dupnum=3))).created
        await world.kill_broker("Broker2")
        with pytest.raises(NotEnoughReplicas):
            await world.ask(CreateTopic("u", partitions=1, dupnum=3))
        # What is there is there, whatever may be wrong with it now.
        assert not (await world.ask(CreateTopic("t", partitions=2, dupnum=3))).created

    run(test, partitions_per_topic_max=2)


def test_row_9_the_leaders_address_or_an_error_that_says_why_there_is_none() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        with pytest.raises(UnknownPartition):
            await world.ask(ProGetBroker("t", "p"))
        await world.ask(CreatePart("t", "p"))
        with pytest.raises(PartitionUnset, match="-2"):
            await world.ask(ProGetBroker("t", "p"))
        view = await world.make()
        route = await world.ask(ProGetBroker("t", "p"))
        assert (route.broker, route.address) == (view.now.leader, f"{view.now.leader}:2")
        assert (route.uid, route.ack, route.block, route.epoch) == (view.partition.value.uid, -1, 1, 1)
        await world.kill_broker(view.now.leader)
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(LeaderUnavailable):
            await world.ask(ProGetBroker("t", "p"))
        assert world.clock.monotonic_ms() - began_ms < 2 * world.config.leader_wait_ms_max

    run(test)


def test_row_9_a_fetch_leader_that_went_down_is_waited_for_until_the_next_leads() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        await world.kill_broker(view.now.leader)
        route = await world.ask(ProGetBroker("t", "p"))
        assert route.broker != view.now.leader
        assert route.block == 2

    run(test)


@pytest.mark.parametrize("option", [Ack.QUORUM, Ack.LEADER, Ack.NONE])
def test_rows_13_14_15_the_first_state_places_replicas_and_names_the_first_as_leader(option: int) -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("phone_number"))
        await world.ask(CreatePart("phone_number", "xian"))
        answer = await world.ask(SetPartitionState("phone_number", "xian", option, 3))
        assert answer.result == "changed"
        view = await world.settled("phone_number", "xian")
        assert view.members == ["Broker0", "Broker1", "Broker2"]
        assert [each.name for each in view.active.replicas] == ["dup_0", "dup_1", "dup_2"]
        assert [each.disk_id for each in view.active.replicas] == [f"disk-{name}" for name in view.members]
        assert (view.now.leader, view.now.mode, view.partition.value.state) == ("Broker0", option, option)
        hosts = [name for name, broker in world.brokers.brokers.items() if broker.blocks]
        assert hosts == view.members
        await world.until_true(lambda: led(world), "its leader is recorded")

    run(test)


async def led(world: World) -> bool:
    return (await world.view("phone_number", "xian")).now.term == 1


@pytest.mark.parametrize(("option", "had"), [(Ack.QUORUM, "HadRaft"), (Ack.LEADER, "HadFetch"), (Ack.NONE, "HadFetch")])
def test_row_16_the_same_state_again_changes_nothing_and_says_so(option: int, had: str) -> None:
    async def test(world: World) -> None:
        before = await world.make(ack=option)
        world.brokers.log.clear()
        for dupnum in (None, 3):
            assert (await world.ask(SetPartitionState("t", "p", option, dupnum))).result == had
        assert (await world.view()).partition.version == before.partition.version
        assert world.brokers.log == []

    run(test)


def test_between_the_two_of_fetch_only_the_stored_ack_changes() -> None:
    async def test(world: World) -> None:
        before = await world.make(ack=Ack.LEADER)
        assert (await world.ask(SetPartitionState("t", "p", Ack.NONE))).result == "changed"
        after = await world.view()
        assert (after.partition.value.state, after.now) == (Ack.NONE, before.now)
        assert (await world.ask(ProGetBroker("t", "p"))).ack == 0

    run(test)


@pytest.mark.parametrize(
    ("option", "dupnum", "error"),
    [
        (2, None, InvalidState),
        (-2, None, InvalidState),
        (-1, 0, InvalidState),
        (-1, -3, InvalidState),
        (-1, 4, NotEnoughReplicas),
    ],
)
def test_row_19_bad_values_are_refused_and_nothing_is_stored(option: int, dupnum: Any, error: Any) -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        await world.ask(CreatePart("t", "unset"))
        before = await world.make()
        for partition in ("unset", "p"):
            with pytest.raises(error):
                await world.ask(SetPartitionState("t", partition, option, dupnum))
        assert (await world.view()).partition.version == before.partition.version
        assert (await world.view("t", "unset")).partition.version == 0

    run(test)


def test_rows_17_and_18_back_and_forth_five_times_the_blocks_adjoin() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        for turn in range(5):
            for option in (Ack.LEADER, Ack.QUORUM):
                world.brokers.append(view.partition.value.uid, view.now.block, turn + 1)
                await world.ask(SetPartitionState("t", "p", option))
                before, view = view, await world.settled()
                assert set(view.members) == set(before.members)
        ends = [(each.block.start, each.block.end) for each in view.sealed]
        assert [start for start, _ in ends] + [view.now.start] == [0] + [end for _, end in ends]
        assert view.now.start == 2 * (1 + 2 + 3 + 4 + 5)
        assert view.partition.value.epoch == 11

    run(test)


def test_without_a_number_of_replicas_there_are_three_or_as_many_as_there_are_brokers() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        await world.ask(CreatePart("t", "p"))
        await world.ask(SetPartitionState("t", "p", -1))
        assert len((await world.view()).members) == min(3, len(world.brokers.brokers))

    for brokers in (1, 2, 5):
        run(test, brokers=brokers)


def test_row_2_a_broker_that_is_gone_is_never_chosen() -> None:
    async def test(world: World) -> None:
        await world.kill_broker("Broker0", at_once=False)
        await world.sleep(2 * world.config.session_timeout_ms)
        await world.ask(CreateTopic("t"))
        for number in range(10):
            await world.ask(CreatePart("t", f"p{number}"))
            await world.ask(SetPartitionState("t", f"p{number}", -1, 2))
            assert "Broker0" not in (await world.view("t", f"p{number}")).members
        with pytest.raises(NotEnoughReplicas, match="2 of 3"):
            await world.ask(SetPartitionState("t", "p0", -1, 3))
        await world.add_broker("Broker0", incarnation=2)
        await world.ask(SetPartitionState("t", "p0", -1, 3))
        assert "Broker0" in (await world.view("t", "p0")).members

    run(test)


def test_settings_are_checked_one_by_one_and_reach_the_brokers() -> None:
    async def test(world: World) -> None:
        await world.make()
        await world.ask(AlterTopic("t", {"lease_ms": "5000", "fsync": "never", "fetch_unclean": True}))
        await world.ask(AlterTopic("t", {"lease_ms": 6000}))
        config = await world.ask(BroGetConfig("Broker0", "disk-Broker0"))
        assert config.blocks[0].settings == {"lease_ms": 6000, "fsync": "never", "fetch_unclean": "true"}
        for bad in ({"lease_ms": 0}, {"fsync": "sometimes"}, {"log": "debug"}, {"message_bytes_max": 2**29}):
            with pytest.raises(ConfigError):
                await world.ask(AlterTopic("t", bad))
        with pytest.raises(UnknownTopic):
            await world.ask(AlterTopic("nowhere", {}))
        assert (await world.ask(DescribeTopic("t"))).settings["lease_ms"] == 6000

    run(test)


def test_a_deleted_topic_is_refused_by_all_verbs_and_its_nodes_go() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        await world.make("other", "p")
        await world.ask(DeleteTopic("t"))
        for request in (ProGetBroker("t", "p"), CreatePart("t", "q"), DescribeTopic("t"), DeleteTopic("t")):
            with pytest.raises(UnknownTopic):
                await world.ask(request)
        assert (await world.ask(ListTopics())).topics == ("other",)
        await world.until(
            lambda: all(len(broker.blocks) == 1 for broker in world.brokers.brokers.values()), "the folders are gone"
        )
        assert view.partition.value.uid

    run(test)


def test_row_81_a_topic_made_anew_has_nothing_of_the_old_one() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        old = view.partition.value.uid
        await world.kill_broker("Broker0")
        await world.ask(DeleteTopic("t"))
        await world.ask(CreateTopic("t"))
        await world.ask(CreatePart("t", "p"))
        await world.ask(SetPartitionState("t", "p", -1, 2))
        assert (await world.view()).partition.value.uid != old
        with pytest.raises(UnknownPartition):
            await world.ask(UpdateDup("t", "p", old, 1, "Broker0", 10))
        await world.add_broker("Broker0", incarnation=2)
        await world.until(lambda: not world.brokers["Broker0"].blocks, "the old folder is gone")

    run(test)


def test_a_deletion_that_was_only_marked_is_finished_by_the_next_controller() -> None:
    async def test(world: World) -> None:
        await world.make()

        async def hold(*_: Any) -> None:
            await asyncio.Event().wait()

        world.brokers.before = hold
        asked = asyncio.ensure_future(world.ask(DeleteTopic("t")))
        await world.until_true(lambda: marked(world), "it is marked")
        await world.kill_controller("ZkServer0")
        await asyncio.gather(asked, return_exceptions=True)
        world.brokers.before = None
        await world.add_controller("ZkServer1")
        await world.until_true(lambda: gone(world), "its nodes are gone")

    run(test)


async def marked(world: World) -> bool:
    return (await world.catalog.topic("t")).value.deleting


async def gone(world: World) -> bool:
    return await world.catalog.topics() == []
