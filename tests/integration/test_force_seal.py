"""A block that has lost its majority for good is ended by force, at what one replica holds; the rest is kept aside."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, DataLost, NotLeader, StaleEpoch
from clymq.metadata.catalog import Catalog
from clymq.metadata.remote import RemoteStore
from clymq.protocol.controller import PartitionStatus, ReplicaDown, Status
from clymq.protocol.hosting import CloseAccept
from clymq.rpc.transport import TcpTransport
from clymq.storage.files import RealFiles
from clymq.storage.vote import Vote, VoteFile
from clymq.testing import LocalCluster
from clymq.testing.waiting import until_asked
from rows import LONG_SECONDS, Asking, refusal, roll, run

CONFIG = {
    "session_timeout_ms": 1500,
    "controller_tick_ms": 100,
    "broker_request_ms_max": 1000,
    "leader_wait_ms_max": 1000,
    "config_ms": 500,
    "mirror_ms": 100,
}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, config=CONFIG) as cluster:
        yield cluster


async def push(cluster: LocalCluster, *values: bytes) -> list[int | None]:
    async with AsyncProducer(cluster.bootstrap, timeout=LONG_SECONDS) as producer:
        return [(await producer.push("t", value)).offset for value in values]


async def read(cluster: LocalCluster, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with AsyncConsumer(cluster.bootstrap) as consumer:
        await consumer.assign("t", "0")
        while len(found) < count:
            messages = await consumer.pull(timeout=LONG_SECONDS)
            assert len(messages) > 0
            found += [message.value for message in messages]
    return found


async def until_status(asking: Asking, condition: Callable[[PartitionStatus], bool], what: str) -> PartitionStatus:
    found: list[PartitionStatus] = []

    async def looked() -> bool:
        found[:] = (await asking.controller(Status())).partitions
        return condition(found[0])

    await until_asked(looked, what, seconds_max=LONG_SECONDS)
    return found[0]


def folder(cluster: LocalCluster, broker: str, block: int) -> Path:
    (found,) = (cluster.folder / broker).glob(f"t~*/*/Block_{block}")
    return found


async def until_same(cluster: LocalCluster, block: int) -> None:
    async def same() -> bool:
        return len({(folder(cluster, name, block) / "batches").read_bytes() for name in cluster.brokers}) == 1

    await until_asked(same, "all hold the same block", seconds_max=LONG_SECONDS)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def test_a_raft_block_goes_on_with_the_trusted_replica_and_the_others_are_cut_to_it_when_they_are_back(
    cluster: LocalCluster,
) -> None:
    async def make() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("t", ack=Ack.QUORUM)
        await push(cluster, *numbers(0, 10))

    run(make())
    trusted = next(name for name in cluster.brokers if name != cluster.leader("t", "0"))
    gone = [name for name in cluster.brokers if name != trusted]
    cluster.kill(trusted)
    assert run(push(cluster, *numbers(10, 15))) == list(range(10, 15))

    async def told() -> None:
        async with Asking(cluster) as asking:
            await until_status(asking, lambda found: found.end == 15, "the tree knows of all messages")

    run(told())
    for name in gone:
        cluster.kill(name)
    cluster.start(trusted)

    async def force() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            forced = await admin.force_seal("t", "0", trust=trusted)
            assert forced == {"end": 10, "lost_messages_max": 5}
            assert (await admin.describe_topic("t")).partitions[0].lost_messages == 5
        assert await push(cluster, b"after") == [10]
        assert await read(cluster, 11) == [*numbers(0, 10), b"after"]

    run(force())
    for name in gone:
        cluster.start(name)

    async def whole() -> None:
        async with Asking(cluster) as asking:
            found = await until_status(
                asking, lambda found: len(found.online) == 3 and found.blocks == 3, "there are three replicas again"
            )
            assert found.lost_messages == 5
            await until_same(cluster, 1)
        for name in gone:
            assert sorted(folder(cluster, name, 1).glob("*.lost")), f"{name} has kept what it had"
        assert await push(cluster, b"later") == [11]
        assert await read(cluster, 12) == [*numbers(0, 10), b"after", b"later"]

    run(whole())


def test_a_replica_that_is_fenced_takes_no_part_in_its_group_also_after_a_restart(cluster: LocalCluster) -> None:
    async def make() -> tuple[str, str, int]:
        async with AsyncAdmin(cluster.bootstrap) as admin, Asking(cluster) as asking:
            await admin.create_topic("t", ack=Ack.QUORUM)
            await push(cluster, *numbers(0, 3))
            route = await asking.route("t")
            return route.uid, route.broker, route.epoch

    uid, leader, epoch = run(make())
    fenced = next(name for name in cluster.brokers if name != leader)
    fence = CloseAccept("t", "0", uid, 1, epoch + 1, fence=True)

    async def shut(request: CloseAccept) -> object:
        async with Asking(cluster) as asking:
            try:
                return await asking.server(fenced, request)
            except ClymqError as error:
                return error

    stale = run(shut(CloseAccept("t", "0", uid, 1, epoch, fence=True)))
    assert isinstance(stale, StaleEpoch)
    closed = run(shut(fence))
    assert (closed.sealed, closed.end) == (False, 3)  # type: ignore[attr-defined]
    assert vote(cluster, fenced).fence_epoch == epoch + 1
    before = vote(cluster, fenced)
    cluster.kill(fenced)
    cluster.start(fenced)
    # Two of three are a majority without it, and an ordinary end of the block is theirs to say.
    assert run(push(cluster, *numbers(3, 6))) == [3, 4, 5]

    async def is_out() -> bool:
        refused = await shut(CloseAccept("t", "0", uid, 1, epoch + 1))
        return isinstance(refused, NotLeader) and "fenced" in str(refused)

    async def stays_out() -> None:
        await until_asked(is_out, "it has opened the block again", seconds_max=LONG_SECONDS)

    run(stays_out())
    assert run(shut(fence)) == closed
    cluster.kill(leader)

    async def nobody_leads() -> None:
        """The third one asks for votes in vain; each of its tries would be a vote of the fenced one."""
        async with Asking(cluster) as asking, AsyncProducer(cluster.bootstrap, timeout=3) as producer:
            assert (await refusal(producer.push("t", b"x"))).retriable
            del asking

    run(nobody_leads())
    assert vote(cluster, fenced) == before


def vote(cluster: LocalCluster, broker: str) -> Vote:
    files = RealFiles(sync_threads=1)
    try:
        return VoteFile.open(files, str(folder(cluster, broker, 1) / "vote")).vote
    finally:
        files.close()


def test_a_fetch_block_is_ended_by_force_at_what_a_follower_holds(cluster: LocalCluster) -> None:
    async def make() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("t", ack=Ack.LEADER)
        await push(cluster, *numbers(0, 10))

    run(make())
    leader = cluster.leader("t", "0")
    trusted = next(name for name in cluster.brokers if name != leader)

    async def followed() -> bool:
        return (folder(cluster, trusted, 1) / "batches").stat().st_size == (
            folder(cluster, leader, 1) / "batches"
        ).stat().st_size

    run(until_asked(followed, "the follower has everything", seconds_max=LONG_SECONDS))
    for name in cluster.brokers:
        if name != trusted:
            cluster.kill(name)

    async def force() -> None:
        async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin:

            async def forced() -> bool:
                """The move that the leader's end has begun waits for a second replica; it is the one that is forced."""
                sealed = await admin.force_seal("t", "0", trust=trusted)
                assert sealed["end"] == 10
                return True

            await until_asked(forced, "the block is ended", seconds_max=LONG_SECONDS)
        assert await push(cluster, b"after") == [10]

    run(force())


def test_a_reader_is_told_which_offsets_nobody_has_any_more_and_may_step_over_them(clymq_cluster: LocalCluster) -> None:
    async def check() -> None:
        cluster = clymq_cluster
        async with AsyncAdmin(cluster.bootstrap) as admin, Asking(cluster) as asking, tree_of(cluster) as catalog:
            await admin.create_topic("gone", replicas=1)
            async with AsyncProducer(cluster.bootstrap) as producer:
                await producer.push_many("gone", numbers(0, 5))
                await roll(asking, "gone")
                await producer.push_many("gone", numbers(5, 8))
            uid = (await asking.route("gone")).uid
            (replica,) = await catalog.chain("gone", "0").sealed_replicas(1)
            lost = ReplicaDown("gone", "0", uid, 1, replica.broker, replica.disk_id, "its disk was wiped")
            await asking.controller(lost)
            async with AsyncConsumer(cluster.bootstrap) as consumer:
                await consumer.assign("gone", "0", 2)
                with pytest.raises(DataLost) as told:
                    await consumer.pull(timeout=LONG_SECONDS)
                assert (told.value.start, told.value.end) == (0, 5)
                await consumer.seek("gone", "0", told.value.end)
                assert [each.value for each in await consumer.pull(timeout=LONG_SECONDS)] == numbers(5, 8)

    run(check())


@asynccontextmanager
async def tree_of(cluster: LocalCluster) -> AsyncIterator[Catalog]:
    address = cluster.addresses["ZkServer0"]
    store = RemoteStore(TcpTransport(), address, SystemClock(), Config(), name="test", chance=random.random)
    await store.open()
    try:
        yield Catalog(store)
    finally:
        await store.close()
