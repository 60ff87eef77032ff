"""Three real processes, real disks, real sockets: whatever happens to them, what was acknowledged is there, once.

Every test pushes all the time, several batches in flight, and ends with the same judgement (`RaftLoad.verify`): no
acknowledged message lost, moved or doubled, each in the order of its producer, and the block files of all replicas
equal byte for byte. `pytest -rP` shows the times that were measured.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from clymq.errors import ClymqError
from clymq.protocol.broker import InitProducer, Pull, Push
from clymq.record import BatchBuilder
from clymq.testing.cluster import RaftCluster
from clymq.testing.history import Message, problems, value_of
from clymq.testing.namespaces import Namespaces
from clymq.testing.raft_client import RaftClient
from clymq.testing.raft_load import RaftLoad
from clymq.types import Ack

RESUME_SECONDS_MAX = 2.0
HAND_OVER_SECONDS_MAX = 1.0
# Of each producer, between one fault and the next.
LOAD_BATCHES = 20
LOAD_BATCHES_OF_MANY = 5

Choose = Callable[[RaftCluster, RaftClient], Awaitable[Sequence[str]]]


async def the_leader(cluster: RaftCluster, client: RaftClient) -> Sequence[str]:
    return [await client.leader()]


async def a_follower(cluster: RaftCluster, client: RaftClient) -> Sequence[str]:
    leader = await client.leader()
    return [next(node for node in cluster.nodes if node != leader)]


async def all_three(cluster: RaftCluster, client: RaftClient) -> Sequence[str]:
    return cluster.nodes


def told(what: str, seconds: Sequence[float]) -> float:
    """Print what was measured and return the median."""
    median = statistics.median(seconds)
    each = " ".join(f"{second:.2f}" for second in seconds)
    print(f"{what}: median {median:.2f} s, longest {max(seconds):.2f} s, of {len(seconds)}: {each}")
    return median


async def killed(
    cluster: RaftCluster, load: RaftLoad, choose: Choose, times: int, *, batches: int = LOAD_BATCHES
) -> list[float]:
    """Kill, and start again, over and over; return how long pushes stood still each time.

    Where nobody is left, they stand still until the processes are there again; the time counts from then.
    """
    seconds = []
    for _ in range(times):
        names = await choose(cluster, load.client)
        cluster.kill(*names)
        if len(names) < len(cluster.nodes):
            seconds.append(await load.resumed())
            await asyncio.to_thread(cluster.start, *names)
            await cluster.caught_up(*names)
        else:
            await asyncio.to_thread(cluster.start, *names)
            seconds.append(await load.resumed())
        await load.resumed(batches=batches)
    return seconds


@pytest.mark.parametrize(
    ("choose", "times"),
    [
        (the_leader, {"quick": 1, "normal": 3, "long": 50}),
        (a_follower, {"quick": 1, "normal": 2, "long": 50}),
        (all_three, {"quick": 1, "normal": 2, "long": 50}),
    ],
    ids=["the_leader", "a_follower", "all_three"],
)
def test_kills_lose_nothing_and_pushes_go_on(tmp_path: Path, size: str, choose: Choose, times: dict[str, int]) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path) as cluster, RaftLoad(cluster, producers_per_group=2) as load:
            seconds = await killed(cluster, load, choose, times[size])
            median = told(f"{choose.__name__} killed, pushes resumed", seconds)
            print(f"{await load.verify()} messages, all there")
            assert median <= RESUME_SECONDS_MAX

    asyncio.run(run())


@pytest.mark.quick_skip
def test_kills_lose_nothing_in_any_of_fifty_groups(tmp_path: Path, size: str) -> None:
    times = {"normal": 1, "long": 50}[size]

    async def run() -> None:
        async with (
            RaftCluster(groups=50, folder=tmp_path) as cluster,
            RaftLoad(cluster, pause_ms=100) as load,
        ):
            for choose in (the_leader, a_follower, all_three) if size == "long" else (the_leader, all_three):
                seconds = await killed(cluster, load, choose, times, batches=LOAD_BATCHES_OF_MANY)
                told(f"fifty groups, {choose.__name__} killed, pushes resumed in all", seconds)
            print(f"{await load.verify()} messages, all there")

    asyncio.run(run())


@pytest.mark.quick_skip
def test_a_node_that_stops_cleanly_hands_its_leadership_over_first(tmp_path: Path, size: str) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path) as cluster, RaftLoad(cluster) as load:
            seconds = []
            for _ in range({"normal": 1, "long": 50}[size]):
                leader = await load.client.leader()
                stopping = asyncio.create_task(asyncio.to_thread(cluster.stop, leader))
                seconds.append(await load.resumed(elsewhere_than=leader))
                await stopping
                await asyncio.to_thread(cluster.start, leader)
                await cluster.caught_up(leader)
            median = told("the leader stopped, pushes resumed", seconds)
            # The last two have nobody to hand over to, and end well all the same.
            for node in cluster.nodes:
                await asyncio.to_thread(cluster.stop, node)
            await asyncio.to_thread(cluster.start, *cluster.nodes)
            await load.resumed()
            await load.verify()
            assert median <= HAND_OVER_SECONDS_MAX

    asyncio.run(run())


# --- Networks that are cut ---


@pytest.mark.parametrize("kind", ["proxies", "namespaces"])
def test_a_leader_that_is_cut_off_is_replaced_and_comes_back_equal(tmp_path: Path, kind: str, size: str) -> None:
    refusal = Namespaces.refusal()
    if kind == "namespaces" and refusal is not None:
        pytest.skip(f"no network namespaces here: {refusal}")

    async def run() -> None:
        async with RaftCluster(folder=tmp_path, network=kind) as cluster, RaftLoad(cluster) as load:
            assert cluster.network.kind == kind
            for cut in (isolated, deaf, mute) if size != "quick" else (isolated,):
                seconds = []
                for _ in range({"quick": 1, "normal": 1, "long": 50}[size]):
                    leader = await load.client.leader()
                    cut(cluster, leader)
                    seconds.append(await load.resumed())
                    assert await load.client.leader() != leader
                    cluster.heal()
                    await cluster.caught_up(leader)
                told(f"{kind}, the leader {cut.__name__}, pushes resumed", seconds)
            await load.verify()

    asyncio.run(run())


def isolated(cluster: RaftCluster, node: str) -> None:
    cluster.isolate(node)


def deaf(cluster: RaftCluster, node: str) -> None:
    """It is heard, and hears nobody: it must notice by itself that it leads no more."""
    for other in cluster.nodes:
        if other != node:
            cluster.partition(other, node, one_way=True)


def mute(cluster: RaftCluster, node: str) -> None:
    """It hears the others, and they do not hear it."""
    for other in cluster.nodes:
        if other != node:
            cluster.partition(node, other, one_way=True)


# --- Time that stands still ---


def test_a_frozen_leader_acknowledges_and_shows_nothing_after_it_is_thawed_that_the_new_one_does_not_have(
    tmp_path: Path, size: str
) -> None:
    async def run() -> None:
        async with (
            RaftCluster(folder=tmp_path) as cluster,
            RaftLoad(cluster) as load,
            RaftClient(cluster, name="zombie") as zombie,
        ):
            promised: list[Message] = []
            refused = 0
            for number in range({"quick": 1, "normal": 1, "long": 50}[size]):
                leader = await load.client.leader()
                epoch = await begun(zombie, leader, f"zombie{number}")
                cluster.freeze(leader)
                asked = asyncio.gather(*pushed(zombie, leader, f"zombie{number}", epoch), return_exceptions=True)
                shown = asyncio.ensure_future(zombie.ask(leader, pull(), timeout_ms=60_000))
                await load.resumed()
                assert await load.client.leader() != leader
                cluster.thaw(leader)
                for answer in await asked:
                    if isinstance(answer, Message):
                        promised.append(answer)
                    else:
                        assert isinstance(answer, ClymqError), answer
                        refused += 1
                with pytest.raises(ClymqError, match="lead"):
                    await shown
                await cluster.caught_up(leader)
            print(f"a leader thawed: {refused} pushes refused, {len(promised)} acknowledged")
            await load.stop()
            stored = await load.client.read()
            assert problems([*promised, *load.producers[0].acknowledged], stored) == []
            assert promised == []
            await load.verify()

    asyncio.run(run())


def pull() -> Pull:
    return Pull(topic="0", partition="0", uid="0")


async def begun(client: RaftClient, node: str, producer: str) -> int:
    request = InitProducer(topic="0", partition="0", uid="0", producer=producer)
    return (await client.ask(node, request)).reply.epoch


def pushed(client: RaftClient, node: str, producer: str, epoch: int) -> list[Awaitable[Message]]:
    async def push(cmdindex: int) -> Message:
        value = value_of(producer, cmdindex)
        batch = BatchBuilder().add_values([value]).build(producer=producer, cmdindex=cmdindex, epoch=epoch)
        request = Push(topic="0", partition="0", uid="0", producer=producer, cmdindex=cmdindex, ack=Ack.QUORUM)
        answer = await client.ask(node, request, [batch], timeout_ms=60_000)
        return Message(answer.reply.base_offset, value)

    return [push(cmdindex) for cmdindex in range(1, 9)]


@pytest.mark.quick_skip
def test_a_frozen_follower_stops_nobody_and_comes_back_equal(tmp_path: Path) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path) as cluster, RaftLoad(cluster) as load:
            leader = await load.client.leader()
            follower = next(node for node in cluster.nodes if node != leader)
            cluster.freeze(follower)
            await load.resumed()
            cluster.thaw(follower)
            await cluster.caught_up(follower)
            await load.verify()

    asyncio.run(run())


# --- The cluster itself ---


def test_a_cluster_can_be_used_without_an_event_loop(tmp_path: Path) -> None:
    with RaftCluster(folder=tmp_path) as cluster:
        leader = cluster.leader()
        assert cluster.bootstrap == ",".join(cluster.addresses[node] for node in cluster.nodes)
        cluster.kill(leader)
        assert cluster.leader() != leader
        cluster.start(leader)
        cluster.settle()
        pids = [cluster.processes.pid(node) for node in cluster.nodes]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
