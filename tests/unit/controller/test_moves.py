"""Chain moves, whole and interrupted: a test for each line of DESIGN 13, and rows 16 to 19, 50 and 83."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clymq.controller.chains import Chains, View
from clymq.controller.moves import Moves
from clymq.controller.nudges import Nudges
from clymq.controller.placement import key_of
from clymq.controller.ring import Ring
from clymq.controller.roster import Attendance
from clymq.errors import (
    ClymqError,
    ConnectionLost,
    InvalidRequest,
    NotEnoughReplicas,
    NotHosted,
    NotLeader,
    ReplicaLost,
    RequestTimeout,
    UnknownPartition,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.store import MetadataStore
from clymq.protocol.controller import (
    AlterTopic,
    CreatePart,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    DrainBroker,
    ForceSeal,
    MovePartition,
    RollBlock,
    SetPartitionState,
    UpdateDup,
)
from clymq.protocol.hosting import AddFetchPartition, AddRaftPartition, CloseAccept, PrepareAccept
from clymq.types import Ack
from controller_world import World, run

FINISHED_MS = 5000


class Interruption:
    """Counts what a controller does to the world, before and after each write and each request, and stops it there."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self.armed = False
        self.count = 0
        self.stopped = asyncio.Event()
        self.released = asyncio.Event()
        self.dead = False

    async def step(self, *_: Any) -> None:
        if not self.armed:
            return
        self.count += 1
        if self.count == self.stop_at:
            self.stopped.set()
            await self.released.wait()
            if self.dead:
                raise ConnectionLost("the controller was killed")


class InterruptedStore:
    """A store whose writes can be stopped, before they are made and before their answer arrives."""

    def __init__(self, store: MetadataStore, interruption: Interruption) -> None:
        self._store = store
        self._interruption = interruption

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any, **options: Any) -> None:
        await self._interruption.step()
        await self._store.commit(*arguments, **options)
        await self._interruption.step()


class InterruptedBrokers:
    """The same for requests to brokers."""

    def __init__(self, brokers: Any, interruption: Interruption) -> None:
        self._brokers = brokers
        self._interruption = interruption

    def know(self, addresses: Any) -> None:
        self._brokers.know(addresses)

    async def ask(self, broker: str, request: Any) -> Any:
        await self._interruption.step()
        try:
            return await self._brokers.ask(broker, request)
        finally:
            await self._interruption.step()


def shape(view: View) -> Any:
    """Return all that matters of a partition, without what differs from run to run."""
    partition, now = view.partition.value, view.now
    return (
        (partition.state, partition.dupnum, partition.epoch, partition.next_block, partition.first_offset),
        (now.block, now.start, now.mode, now.epoch, sorted(view.members)),
        [
            (
                each.block.block,
                each.block.start,
                each.block.end,
                each.block.mode,
                sorted(r.broker for r in each.replicas),
            )
            for each in view.sealed
        ],
    )


# How a partition is made, and what is asked for: each a kind of move.
async def first_block(world: World) -> Callable[[], Awaitable[Any]]:
    await world.ask(CreateTopic("t"))
    await world.ask(CreatePart("t", "q"))
    return lambda: world.ask(SetPartitionState("t", "q", Ack.QUORUM, 3))


async def raft_to_fetch(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q")
    world.brokers.append(view.partition.value.uid, 1, 10)
    return lambda: world.ask(SetPartitionState("t", "q", Ack.LEADER))


async def fetch_to_raft(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q", ack=Ack.LEADER)
    world.brokers.append(view.partition.value.uid, 1, 10)
    return lambda: world.ask(SetPartitionState("t", "q", Ack.QUORUM))


async def fewer_replicas(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q")
    world.brokers.append(view.partition.value.uid, 1, 10)
    return lambda: world.ask(SetPartitionState("t", "q", Ack.QUORUM, 1))


async def silent_replica(world: World) -> Callable[[], Awaitable[Any]]:
    """The second replica is online but does not answer: the third on the ring takes its place."""
    view = await world.make("t", "q", dupnum=1)
    world.brokers.append(view.partition.value.uid, 1, 10)
    second = Ring(list(world.brokers.brokers)).place(key_of("t", "q"), 2)[1]
    world.brokers[second].deaf = True
    return lambda: world.ask(SetPartitionState("t", "q", Ack.QUORUM, 2))


async def leader_gone(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q", ack=Ack.LEADER)
    uid, leader = view.partition.value.uid, view.now.leader
    world.brokers.append(uid, 1, 10)
    world.brokers.append(uid, 1, 5, at=(leader,))

    async def kill() -> None:
        await world.kill_broker(leader)
        await world.until_true(lambda: moved(world, 2), "the block has moved")

    return kill


async def forced(world: World) -> Callable[[], Awaitable[Any]]:
    """Two of three are gone for good, and the one that is left is trusted, though it lacks what they had."""
    view = await world.make("t", "q")
    uid, (left, *gone) = view.partition.value.uid, view.members
    world.brokers.append(uid, 1, 10)
    world.brokers.append(uid, 1, 5, at=tuple(gone))
    for name in gone:
        await world.kill_broker(name)

    async def force() -> None:
        if not await moved(world, 2):
            await world.ask(ForceSeal("t", "q", left))

    return force


async def moved_by_hand(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q", dupnum=2)
    world.brokers.append(view.partition.value.uid, 1, 10)
    target = tuple(sorted(set(world.brokers.brokers) - {view.now.leader}))
    return lambda: world.ask(MovePartition("t", "q", target))


async def drained(world: World) -> Callable[[], Awaitable[Any]]:
    view = await world.make("t", "q", dupnum=2)
    world.brokers.append(view.partition.value.uid, 1, 10)
    leaving = view.now.leader

    async def drain() -> None:
        while (await world.ask(DrainBroker(leaving))).remaining:
            await world.sleep(world.config.controller_tick_ms)

    return drain


async def moved(world: World, block: int) -> bool:
    view = await world.view("t", "q")
    return view.now.block == block and view.partition.value.pending is None


SCENARIOS = [
    first_block,
    raft_to_fetch,
    fetch_to_raft,
    fewer_replicas,
    silent_replica,
    leader_gone,
    forced,
    moved_by_hand,
    drained,
]


async def play(world: World, scenario: Callable[[World], Awaitable[Callable[[], Awaitable[Any]]]], stop_at: int) -> Any:
    """Play a scenario, kill the controller at one point of it, and return how it ended; None: it was over before."""
    begin = await scenario(world)
    interruption = Interruption(stop_at)
    await world.kill_controller("ZkServer0")
    await world.add_controller(
        "ZkServer1",
        wrap=lambda store: InterruptedStore(store, interruption),  # type: ignore[arg-type,return-value]
        brokers=InterruptedBrokers(world.brokers, interruption),
    )
    await world.until(lambda: world.active, "the standby is active")
    interruption.armed = True
    asked = asyncio.ensure_future(begin())
    await world.until(lambda: asked.done() or interruption.stopped.is_set(), "it is over or stopped")
    if not interruption.stopped.is_set():
        await asked
        await world.sleep(50)
        if not interruption.stopped.is_set():
            await world.settled("t", "q")
            return None
    await world.kill_controller("ZkServer1")
    interruption.dead = True
    interruption.released.set()  # whoever has asked it hears that it is gone
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await world.add_controller("ZkServer2")
    await world.until(lambda: world.active, "the next controller is active")
    began_ms = world.clock.monotonic_ms()
    # What was never written down is asked for again by whoever asked; what was is finished without him.
    view = await world.view("t", "q")
    if view.partition.value.pending is None and scenario is not leader_gone:
        await begin()
    await world.until_true(lambda: is_finished(world, scenario), "the move is finished")
    assert world.clock.monotonic_ms() - began_ms < FINISHED_MS
    return shape(await world.settled("t", "q"))


async def is_finished(world: World, scenario: Any) -> bool:
    leaving = {name for name, broker in (await world.catalog.brokers()).items() if broker.value.draining}
    view = await world.view("t", "q")
    holding = {each.broker for sealed in view.sealed for each in sealed.replicas}
    return not leaving & holding and await moved(world, 1 if scenario is first_block else 2)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_row_83_killed_at_every_step_the_move_is_finished_by_the_next_controller_to_the_same_end(scenario: Any) -> None:
    async def whole(world: World) -> Any:
        begin = await scenario(world)
        await begin()
        return shape(await world.settled("t", "q"))

    expected = run(whole)
    steps = 0
    for stop_at in range(1, 200):
        ended = run(lambda world, stop_at=stop_at: play(world, scenario, stop_at))
        if ended is None:
            break
        assert ended == expected, f"killed at step {stop_at}"
        steps += 1
    assert steps > 5


async def drive(world: World, name: str, interruption: Interruption) -> Moves:
    """Return moves of their own, on a session of their own: a controller that believes to be active."""
    store = InterruptedStore(await world.store(name), interruption)
    catalog = Catalog(store)  # type: ignore[arg-type]
    brokers = InterruptedBrokers(world.brokers, interruption)
    attendance = Attendance(catalog, brokers, world.clock)
    spawn = asyncio.ensure_future
    nudges = Nudges(brokers, spawn)
    return Moves(catalog, Chains(catalog), attendance, brokers, world.clock, world.config, spawn, nudges)


@pytest.mark.parametrize("scenario", [raft_to_fetch, fetch_to_raft, silent_replica], ids=lambda each: each.__name__)
def test_two_controllers_at_once_make_one_move_wherever_one_of_them_is_held_up(scenario: Any) -> None:
    async def test(world: World, stop_at: int) -> bool:
        begin = await scenario(world)
        await world.kill_controller("ZkServer0")
        await world.add_controller("ZkServer1")
        first, second = Interruption(0), Interruption(0)
        controllers = [await drive(world, "first", first), await drive(world, "second", second)]
        await world.until(lambda: world.active, "somebody is active")
        # Only the intent is the active one's; the move is pushed forward by the two that believe to be.
        world.brokers.before = held = Held()
        asked = asyncio.ensure_future(begin())
        await world.until(lambda: held.asked, "the intent is written")
        await world.kill_controller("ZkServer1")
        await asyncio.gather(asked, return_exceptions=True)
        world.brokers.before = None
        first.stop_at, first.armed = stop_at, True
        late = controllers[0].begin(("t", "q"))
        await world.until(lambda: late.done() or first.stopped.is_set(), "the first is held up")
        await controllers[1].begin(("t", "q"))
        between = shape(await world.view("t", "q"))
        first.released.set()
        await late
        await world.sleep(50)
        assert shape(await world.view("t", "q")) == between
        assert between[0][2:4] == (2, 3)
        return first.stopped.is_set()

    for stop_at in range(1, 100):
        if not run(lambda world, stop_at=stop_at: test(world, stop_at)):
            assert stop_at > 5
            return


class Held:
    """Holds up every request to a broker."""

    def __init__(self) -> None:
        self.asked = False

    async def __call__(self, *_: Any) -> None:
        self.asked = True
        await asyncio.Event().wait()


# The lines of DESIGN 13, each seen from the tree and the brokers.


def test_the_intent_is_written_before_any_broker_is_spoken_to() -> None:
    async def test(world: World) -> None:
        seen: list[Any] = []

        async def look(_: str, request: Any) -> None:
            if isinstance(request, PrepareAccept):
                pending = (await world.view("t", "p")).partition.value.pending
                seen.append(pending is not None and (pending.block, pending.epoch) == (request.block, request.epoch))

        world.brokers.before = look
        await world.make()
        assert seen == [True] * 3

    run(test)


def test_pending_written_then_nothing_the_next_controller_prepares_again() -> None:
    async def test(world: World) -> None:
        await world.ask(CreateTopic("t"))
        await world.ask(CreatePart("t", "p"))
        world.brokers.before = held = Held()
        asked = asyncio.ensure_future(world.ask(SetPartitionState("t", "p", -1)))
        await world.until(lambda: held.asked, "the intent is written")
        await world.kill_controller("ZkServer0")
        await asyncio.gather(asked, return_exceptions=True)
        world.brokers.before = None
        view = await world.view()
        assert (view.now.block, view.partition.value.epoch) == (0, 0)
        await world.add_controller("ZkServer1")
        view = await world.settled()
        assert (view.now.block, view.now.epoch) == (1, 1)
        assert {name for name, _ in world.brokers.asked(PrepareAccept)} == set(view.members)

    run(test)


def test_a_replica_that_does_not_answer_is_replaced_by_the_next_on_the_ring() -> None:
    async def test(world: World) -> None:
        await world.add_broker("Broker3")
        order = Ring(list(world.brokers.brokers)).order(key_of("t", "p"))
        world.brokers[order[1]].deaf = True
        view = await world.make()
        assert view.members == [order[0], order[2], order[3]]
        assert [each.name for each in view.active.replicas] == ["dup_0", "dup_1", "dup_2"]

    run(test)


def test_row_50_the_seal_whose_reply_was_lost_is_answered_the_same_again() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        world.brokers.append(view.partition.value.uid, 1, 7)
        lost: list[Any] = []

        async def lose(_: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and len(lost) < 3:
                lost.append(request)
                raise RequestTimeout("the reply is lost")

        world.brokers.after = lose
        await world.ask(SetPartitionState("t", "p", Ack.LEADER))
        view = await world.settled()
        assert len(lost) == 3
        assert [(each.block.start, each.block.end) for each in view.sealed] == [(0, 7)]
        assert (view.now.block, view.now.start) == (2, 7)
        assert {request.epoch for _, request in world.brokers.asked(CloseAccept)} == {2}

    run(test)


def test_nudges_that_are_lost_cost_time_only() -> None:
    async def test(world: World) -> None:
        async def lose(_: str, request: Any) -> None:
            if isinstance(request, AddRaftPartition | AddFetchPartition):
                raise RequestTimeout("lost")

        world.brokers.before = lose
        view = await world.make()
        assert all((view.partition.value.uid, 1) in world.brokers[name].blocks for name in view.members)

    run(test)


def test_a_raft_leader_that_is_not_the_recorded_one_seals_as_well() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        other = next(name for name in view.members if name != view.now.leader)
        world.brokers.append(view.partition.value.uid, 1, 5, at=(other,))
        await world.kill_broker(view.now.leader)
        await world.ask(SetPartitionState("t", "p", Ack.LEADER))
        view = await world.view()
        assert (view.sealed[0].block.end, view.now.start) == (5, 5)
        assert view.now.leader != view.members[-1]

    run(test)


def test_a_raft_block_without_a_majority_waits_and_is_sealed_when_the_majority_is_back() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        world.brokers.append(view.partition.value.uid, 1, 5)
        gone = [name for name in view.members if name != view.now.leader]
        for name in gone:
            await world.kill_broker(name)
        with pytest.raises(RequestTimeout, match="it goes on"):
            await world.ask(SetPartitionState("t", "p", Ack.LEADER))
        assert (await world.view()).now.block == 1
        for name in gone:
            await world.add_broker(name, incarnation=2)
        view = await world.settled()
        await world.until_true(lambda: at_block(world, 2), "the move is finished")
        assert (await world.view()).now.start == 5

    run(test)


async def at_block(world: World, block: int, topic: str = "t", partition: str = "p") -> bool:
    view = await world.view(topic, partition)
    return view.now.block == block and view.partition.value.pending is None


def test_moves_of_different_partitions_do_not_wait_for_each_other() -> None:
    async def test(world: World) -> None:
        await world.make("t", "slow")
        await world.make("t", "quick")

        async def hold(_: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and request.partition == "slow":
                await asyncio.Event().wait()

        world.brokers.before = hold
        slow = asyncio.ensure_future(world.ask(SetPartitionState("t", "slow", Ack.LEADER)))
        await world.ask(SetPartitionState("t", "quick", Ack.LEADER))
        assert await at_block(world, 2, "t", "quick")
        assert not slow.done()
        slow.cancel()

    run(test)


# Fetch without its leader.


def test_row_42_the_furthest_replica_seals_and_leads_and_a_majority_holds_the_seal() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        behind, ahead = [name for name in view.members if name != leader]
        world.brokers.append(uid, 1, 10)
        world.brokers.append(uid, 1, 3, at=(leader, ahead))
        world.brokers.append(uid, 1, 4, at=(leader,))
        await world.kill_broker(leader)
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        view = await world.settled()
        assert view.sealed[0].block.end == view.now.start == 13
        assert view.now.leader == ahead
        assert world.brokers[behind].blocks[uid, 1].seal_crc == view.sealed[0].block.seal_crc
        # The dead one keeps its seat, because nobody else is there to take it; it is behind the others.
        assert view.members[-1] == leader
        fences = [request for _, request in world.brokers.asked(CloseAccept)]
        assert all(request.fence and request.epoch == 2 for request in fences)

    run(test)


@pytest.mark.parametrize("ahead_at", [0, 1])
def test_row_42_acks_count_as_messages_do_when_the_furthest_replica_is_looked_for(ahead_at: int) -> None:
    """Found by chaos: with equal ends the first was chosen, and an ack that a majority had held was gone with it."""

    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        world.brokers.append(uid, 1, 10)
        ahead = [name for name in view.members if name != leader][ahead_at]
        for name in (leader, ahead):
            world.brokers[name].blocks[uid, 1].controls = 1
        await world.kill_broker(leader)
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        assert (await world.settled()).now.leader == ahead

    run(test)


def test_row_42_a_dead_leader_is_not_waited_for_when_enough_others_are_fenced() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        leader = view.now.leader

        async def silent(broker: str, request: Any) -> None:
            """A dead machine refuses nothing: whoever asks it waits for as long as it has patience."""
            if broker == leader and not world.brokers[leader].up:
                await world.sleep(3000)

        world.brokers.before = silent
        await world.kill_broker(leader)
        await world.until_true(lambda: at_block(world, 2), "the block has moved", within_ms=1000)

    run(test)


def test_with_too_few_replicas_fenced_the_move_waits_unless_unclean_is_allowed() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        world.brokers.append(uid, 1, 10)
        other, last = [name for name in view.members if name != leader]
        await world.kill_broker(other)
        await world.kill_broker(leader)
        await world.sleep(2000)
        view = await world.view()
        assert view.now.block == 1
        assert view.partition.value.pending is not None
        await world.ask(AlterTopic("t", {"fetch_unclean": True}))
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        view = await world.view()
        assert (view.now.leader, view.now.start) == (last, 10)

    run(test)


def test_where_unclean_is_allowed_and_nobody_is_whole_the_furthest_of_the_lame_ends_the_block() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        behind, ahead = [name for name in view.members if name != leader]
        world.brokers.append(uid, 1, 10)
        world.brokers.append(uid, 1, 3, at=(leader, ahead))
        for name in (behind, ahead):
            world.brokers[name].blocks[uid, 1].lame = True
        await world.ask(UpdateDup("t", "p", uid, 1, leader, 15, leader=True))
        await world.kill_broker(leader)
        await world.sleep(2000)
        assert (await world.view()).now.block == 1
        await world.ask(AlterTopic("t", {"fetch_unclean": True}))
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        sealed = (await world.view()).sealed[0].block
        assert (sealed.end, sealed.trusted, sealed.lost_messages_max) == (13, ahead, 2)

    run(test)


def test_a_leader_that_lives_but_does_not_answer_is_not_fenced_while_its_session_lasts() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        world.brokers[view.now.leader].deaf = True
        with pytest.raises(RequestTimeout):
            await world.ask(SetPartitionState("t", "p", Ack.QUORUM))
        assert not any(request.fence for _, request in world.brokers.asked(CloseAccept))
        world.brokers[view.now.leader].deaf = False
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        assert not any(request.fence for _, request in world.brokers.asked(CloseAccept))

    run(test)


def test_a_fetch_leader_that_restarted_is_another_one_and_its_block_is_fenced() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        leader = view.now.leader
        world.brokers.append(view.partition.value.uid, 1, 10)
        await world.kill_broker(leader)
        await world.add_broker(leader, incarnation=2)
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        view = await world.view()
        assert view.now.start == 10
        assert any(request.fence for _, request in world.brokers.asked(CloseAccept))
        assert view.now.leader_session == world.stores[view.now.leader].session.id

    run(test)


def test_the_seal_does_not_wait_for_a_majority_for_ever() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        leader = view.now.leader
        others = [name for name in view.members if name != leader]
        world.brokers.append(view.partition.value.uid, 1, 10, at=(leader, others[0]))

        async def hold(name: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and request.source:
                raise RequestTimeout("it mends too slowly")

        world.brokers.before = hold
        await world.kill_broker(leader)
        began_ms = world.clock.monotonic_ms()
        await world.until_true(lambda: at_block(world, 2), "the block has moved")
        assert world.clock.monotonic_ms() - began_ms >= world.config.seal_wait_ms_max
        assert (await world.view()).now.start == 10

    run(test)


def test_a_leader_that_says_itself_that_it_does_not_lead_is_fenced() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        world.brokers.append(view.partition.value.uid, 1, 10)

        async def refuse(name: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and not request.fence:
                raise NotLeader(f"{name} has lost its session and leads no more")

        world.brokers.before = refuse
        await world.ask(SetPartitionState("t", "p", Ack.QUORUM))
        assert (await world.view()).now.start == 10
        assert {request.fence for _, request in world.brokers.asked(CloseAccept)} == {True}

    run(test)


@pytest.mark.parametrize("unheard", [NotHosted("block 1 is not here"), UnknownPartition("t/p is not hosted here")])
def test_a_leader_that_has_not_heard_of_its_block_yet_is_waited_for(unheard: ClymqError) -> None:
    """It would hear of it a moment later, begin to lead, and acknowledge what the fenced replicas never get."""

    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        leader, late = view.now.leader, [unheard]

        async def refuse(name: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and name == leader and late:
                if not request.fence:
                    late.pop()
                raise unheard

        world.brokers.before = refuse
        await world.ask(SetPartitionState("t", "p", Ack.QUORUM))
        assert not any(request.fence for _, request in world.brokers.asked(CloseAccept))
        assert (await world.view()).now.block == 2

    run(test)


def test_where_the_furthest_cannot_seal_the_next_does_if_enough_are_fenced_without_it() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        world.brokers.append(uid, 1, 10)
        world.brokers.append(uid, 1, 5, at=(leader,))

        async def refuse(name: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and name == leader and (request.seal or not request.fence):
                raise ReplicaLost("its disk failed")

        world.brokers.before = refuse
        await world.ask(SetPartitionState("t", "p", Ack.QUORUM))
        view = await world.view()
        assert (view.now.start, view.sealed[0].block.end) == (10, 10)
        # With one more away there are not enough left without the furthest, and nothing is given up.
        view = await world.make("t", "q", ack=Ack.LEADER)
        leader = view.now.leader
        world.brokers.append(view.partition.value.uid, 1, 10, at=(leader,))
        await world.kill_broker(next(name for name in view.members if name != leader))
        with pytest.raises(RequestTimeout):
            await world.ask(SetPartitionState("t", "q", Ack.QUORUM))
        assert (await world.view("t", "q")).now.block == 1

    run(test)


def test_an_end_that_does_not_fit_the_chain_is_never_written_into_it() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid = view.partition.value.uid
        for name in view.members:
            world.brokers[name].blocks[uid, 1].start = 7
            world.brokers[name].blocks[uid, 1].end = 9
        with pytest.raises(RequestTimeout):
            await world.ask(SetPartitionState("t", "p", Ack.QUORUM))
        view = await world.view()
        assert (view.now.block, view.sealed) == (1, ())

    run(test, move_wait_ms_max=500)


def test_a_topic_that_is_deleted_takes_its_waiting_moves_with_it() -> None:
    async def test(world: World) -> None:
        await world.make()
        world.brokers.before = held = Held()
        asked = asyncio.ensure_future(world.ask(SetPartitionState("t", "p", Ack.LEADER)))
        await world.until(lambda: held.asked, "the move is under way")
        world.brokers.before = None
        await world.ask(DeleteTopic("t"))
        with pytest.raises(ClymqError):
            await asked
        await world.make(ack=Ack.LEADER)
        await world.sleep(500)
        assert (await world.view()).now.block == 1

    run(test)


# By force, by hand, by size.


def test_force_seal_ends_a_block_at_what_the_trusted_replica_holds_and_records_the_loss() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid = view.partition.value.uid
        trusted, *gone = view.members
        world.brokers.append(uid, 1, 10)
        world.brokers.append(uid, 1, 5, at=tuple(gone))
        await world.ask(UpdateDup("t", "p", uid, 1, gone[0], 15))
        for name in gone:
            await world.kill_broker(name)
        with pytest.raises(RequestTimeout):
            await world.ask(SetPartitionState("t", "p", Ack.LEADER, 1))
        with pytest.raises(InvalidRequest):
            await world.ask(ForceSeal("t", "p", gone[0]))
        forced = await world.ask(ForceSeal("t", "p", trusted))
        assert (forced.end, forced.lost_messages_max) == (10, 5)
        view = await world.view()
        assert (view.now.block, view.now.start) == (2, 10)
        assert (view.sealed[0].block.trusted, view.sealed[0].block.lost_messages_max) == (trusted, 5)
        status = await world.ask(DescribeTopic("t"))
        assert status.partitions[0].lost_messages == 5
        # What comes back later is the same loss and not another one, unless it turns out to be more.
        for messages, lost in ((4, 5), (7, 7)):
            await world.ask(UpdateDup("t", "p", uid, 1, gone[0], 10, lost_messages=messages))
            assert (await world.ask(DescribeTopic("t"))).partitions[0].lost_messages == lost

    run(test)


async def without_majority(world: World) -> tuple[View, str]:
    """A Raft block of three, ten messages everywhere and five more on the two that are gone; who is left."""
    view = await world.make()
    uid, (left, *gone) = view.partition.value.uid, view.members
    world.brokers.append(uid, 1, 10)
    world.brokers.append(uid, 1, 5, at=tuple(gone))
    await world.ask(UpdateDup("t", "p", uid, 1, gone[0], 15))
    for name in gone:
        await world.kill_broker(name)
    return view, left


def test_the_trusted_replica_is_fenced_before_it_is_told_to_seal() -> None:
    async def test(world: World) -> None:
        _, left = await without_majority(world)
        await world.ask(ForceSeal("t", "p", left))
        asked = [request for name, request in world.brokers.asked(CloseAccept) if name == left and request.fence]
        assert [(each.seal, each.trusted) for each in asked[:2]] == [(False, False), (True, True)]

    run(test)


def test_after_a_seal_by_force_those_who_are_there_go_on_and_more_replicas_are_made_when_they_can_be() -> None:
    async def test(world: World) -> None:
        view, left = await without_majority(world)
        await world.ask(ForceSeal("t", "p", left))
        after = await world.view()
        assert (after.members, after.now.leader, after.partition.value.dupnum) == ([left], left, 3)
        for number in (3, 4):
            await world.add_broker(f"Broker{number}")
        await world.until_true(lambda: at_block(world, 3), "it has as many replicas as it should")
        after = await world.settled()
        assert set(after.members) == {left, "Broker3", "Broker4"}
        assert view.partition.value.uid == after.partition.value.uid

    run(test)


def test_brokers_that_turn_out_to_be_gone_do_not_hold_up_what_is_forced() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        left, *gone = view.members
        world.brokers.append(view.partition.value.uid, 1, 10)
        for name in gone:
            await world.kill_broker(name, at_once=False)  # they are thought to be online for a while
        forced = await world.ask(ForceSeal("t", "p", left))
        assert forced.end == 10
        assert (await world.view()).members == [left]

    run(test)


def test_where_a_majority_is_there_force_is_an_ordinary_roll_and_nothing_is_lost() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        uid = view.partition.value.uid
        behind = next(name for name in view.members if name != view.now.leader)
        world.brokers.append(uid, 1, 10, at=tuple(name for name in view.members if name != behind))
        forced = await world.ask(ForceSeal("t", "p", behind))
        assert (forced.end, forced.lost_messages_max) == (10, 0)
        assert (await world.view()).sealed[0].block.trusted == ""

    run(test)


def test_a_majority_that_comes_back_before_the_end_counts_more_than_the_trusted_replica() -> None:
    async def test(world: World) -> None:
        view, left = await without_majority(world)

        async def sealed(broker: str, request: Any) -> None:
            if isinstance(request, CloseAccept) and request.seal:
                world.brokers.after = None
                for name in view.members:
                    if name != left:
                        await world.add_broker(name, incarnation=2)
                raise RequestTimeout(f"{broker}: the reply is lost")

        world.brokers.after = sealed
        forced = await world.ask(ForceSeal("t", "p", left))
        assert (forced.end, forced.lost_messages_max) == (15, 0)
        assert (await world.view()).sealed[0].block.trusted == ""

    run(test)


def test_another_replica_can_be_trusted_when_the_first_one_is_gone_too() -> None:
    async def test(world: World) -> None:
        view, left = await without_majority(world)
        world.brokers[left].deaf = True
        with pytest.raises(RequestTimeout):
            await world.ask(ForceSeal("t", "p", left))
        other = next(name for name in view.members if name != left)
        await world.kill_broker(left)
        await world.add_broker(other, incarnation=2)
        forced = await world.ask(ForceSeal("t", "p", other))
        assert (forced.end, forced.lost_messages_max) == (15, 0)
        assert (await world.view()).sealed[0].block.trusted == other

    run(test, move_wait_ms_max=800)


def test_a_fetch_block_is_ended_by_force_where_too_few_can_be_fenced() -> None:
    async def test(world: World) -> None:
        view = await world.make(ack=Ack.LEADER)
        uid, leader = view.partition.value.uid, view.now.leader
        left = next(name for name in view.members if name != leader)
        world.brokers.append(uid, 1, 10)
        world.brokers.append(uid, 1, 5, at=(leader,))
        for name in view.members:
            if name != left:
                await world.kill_broker(name)
        forced = await world.ask(ForceSeal("t", "p", left))
        assert forced.end == 10
        after = await world.settled()
        assert (after.sealed[0].block.trusted, after.now.leader, after.now.start) == (left, left, 10)

    run(test)


def test_a_block_moved_by_hand_stays_where_it_was_put() -> None:
    async def test(world: World) -> None:
        for number in (3, 4):
            await world.add_broker(f"Broker{number}")
        view = await world.make()
        target = tuple(sorted(set(world.brokers.brokers) - set(view.members[:2])))
        await world.ask(MovePartition("t", "p", target))
        view = await world.settled()
        assert tuple(view.members) == target
        assert view.now.leader == target[0]
        await world.ask(roll(view))
        await world.until_true(lambda: at_block(world, 3), "it has rolled")
        assert set((await world.view()).members) == set(target)
        for bad in ((), (target[0], target[0]), ("nobody",)):
            with pytest.raises((InvalidRequest, NotEnoughReplicas)):
                await world.ask(MovePartition("t", "p", bad))

    run(test)


def roll(view: View, reason: str = "size") -> RollBlock:
    topic, partition = view.key
    return RollBlock(
        topic, partition, view.partition.value.uid, view.now.block, view.now.epoch, view.now.leader, reason
    )


def test_a_roll_asked_for_ten_times_is_one_roll_and_the_leader_stays() -> None:
    async def test(world: World) -> None:
        view = await world.make()
        world.brokers.append(view.partition.value.uid, 1, 10)
        await asyncio.gather(*(world.ask(roll(view)) for _ in range(10)))
        await world.until_true(lambda: at_block(world, 2), "it has rolled")
        await world.ask(roll(view))
        await world.sleep(500)
        after = await world.view()
        assert (after.now.block, after.now.start, after.now.leader) == (2, 10, view.now.leader)
        with pytest.raises(UnknownPartition):
            await world.ask(RollBlock("t", "p", "0" * 32, 2, 2, "Broker0", "size"))

    run(test)


def test_row_65_the_next_block_lands_on_a_broker_that_joined_and_old_blocks_stay() -> None:
    async def test(world: World) -> None:
        partitions = [f"p{number}" for number in range(12)]
        for name in partitions:
            await world.make("t", name)
        await world.add_broker("Broker3")
        for name in partitions:
            await world.ask(roll(await world.view("t", name)))
        for name in partitions:
            await world.until_true(lambda name=name: at_block(world, 2, "t", name), f"{name} has rolled")
        views = [await world.view("t", name) for name in partitions]
        assert any("Broker3" in view.members for view in views)
        for view in views:
            ring = Ring(list(world.brokers.brokers)).place(key_of(*view.key), 3)
            assert sorted(view.members) == sorted(ring)
            assert "Broker3" not in {each.broker for each in view.sealed[0].replicas}

    run(test)


def test_a_move_that_has_just_ended_is_not_taken_for_the_one_that_begins() -> None:
    """Between its last step and its callbacks a task is over and still known; who waited for it would not be served."""

    async def test() -> None:
        begun: list[str] = []

        async def finish(key: tuple[str, str]) -> None:
            begun.append("/".join(key))

        moves: Any = object.__new__(Moves)
        moves._running, moves._finish, moves._spawn = {}, finish, asyncio.create_task
        first = moves.begin(("t", "p"))
        while not first.done():
            await asyncio.sleep(0)
        moves._running["t", "p"] = first
        await moves.begin(("t", "p"))
        assert begun == ["t/p", "t/p"]

    asyncio.run(test())
