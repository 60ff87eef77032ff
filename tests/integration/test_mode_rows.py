"""SPEC 7 on a cluster of real processes: fetch mode, and changes between the modes, under load and interrupted."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.controller.ring import Ring
from clymq.errors import ClymqError, InvalidState, NotEnoughReplicas, NotLeader
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import PartitionPaths
from clymq.protocol.broker import Pull
from clymq.protocol.controller import SetPartitionState, UpdateDup
from clymq.replication.fetch_log import checked
from clymq.storage.files import RealFile
from clymq.testing.local_cluster import LocalCluster
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until, until_asked
from row_load import Load, equal, restored
from rows import CONFIG, LONG_SECONDS, SESSION_MS, Asking, RawProducer, refusal, roll, run, tree, values

MIRROR_MS = 500
SLOW_DISK_SECONDS = 0.5
ANSWER_SECONDS_MAX = 0.05


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    with ProcessCluster(3, config={**CONFIG, "mirror_ms": MIRROR_MS, "config_ms": 1000}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> ProcessCluster:
    return restored(shared)


async def placed(catalog: Catalog, topic: str) -> tuple[str, list[str]]:
    """Return the leader of a topic's only partition and its other replicas, by the tree."""
    active = await catalog.chain(topic, "0").active()
    leader = active.block.value.leader
    return leader, [replica.broker for replica in active.replicas if replica.broker != leader]


# --- Fetch mode ---


def test_row_15_a_fetch_partition_is_led_by_the_first_placed_and_the_others_follow(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            tree(cluster) as catalog,
        ):
            await admin.create_topic("fetched", partitions=0)
            for name, ack in (("one", Ack.LEADER), ("none", Ack.NONE)):
                await admin.create_partition("fetched", name)
                assert await admin.set_partition_state("fetched", name, ack=ack) == "changed"
                order = Ring(cluster.brokers).place(f"fetched{name}dup", 3)
                active = await catalog.chain("fetched", name).active()
                assert (active.block.value.leader, active.block.value.mode) == (order[0], ack)
                assert [replica.broker for replica in active.replicas] == order
                assert await cluster.leading("fetched", name) == order[0]
                receipt = await producer.push("fetched", b"x", partition=name)
                assert receipt.offset == (0 if ack == Ack.LEADER else None)
            folders = [cluster.data(broker).glob("fetched~*/*/Block_1/batches") for broker in cluster.brokers]
            paths = [path for found in folders for path in found]
            assert len(paths) == 6
            await until(
                lambda: len({path.read_bytes() for path in paths}) == 2 and all(path.stat().st_size for path in paths),
                "the followers hold what their leaders hold",
                seconds_max=LONG_SECONDS,
            )

    run(check())


def test_rows_41_44_followers_are_equal_soon_and_go_on_following_and_the_mirrored_end_never_falls(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("followed", partitions=1, ack=Ack.LEADER)
            _, (follower, _) = await placed(catalog, "followed")
            chain, mirrored = catalog.chain("followed", "0"), []
            seconds: list[float] = []
            began = time.monotonic()
            async with Load(cluster, "followed") as load:
                for _ in range(3):
                    await load.goes_on(50)
                    mirrored.append((await chain.mirror()).ends.get(1, 0))
                    seconds.append(await holds_what_the_leader_has_now(cluster, catalog))
                cluster.kill(follower)
                await load.goes_on(50)
                await asyncio.to_thread(cluster.start, follower)
            await equal(cluster, "followed")
            assert min(seconds) < 2
            await load.judge()
            end = len(load.acknowledged)

            async def told() -> bool:
                mirrored.append((await chain.mirror()).ends.get(1, 0))
                return mirrored[-1] == end

            await until_asked(told, "the end is mirrored", seconds_max=LONG_SECONDS)
            assert mirrored == sorted(mirrored)
            route = await asking.route("followed")
            lower = UpdateDup("followed", "0", route.uid, 1, route.broker, 3, leader=True)
            await asking.controller(lower)
            assert (await chain.mirror()).ends[1] == end
            version = await mirror_version(catalog, "followed")
            assert version <= 1000 * (time.monotonic() - began) / MIRROR_MS + 3

    run(check())


async def holds_what_the_leader_has_now(cluster: ProcessCluster, catalog: Catalog) -> float:
    """Wait until all followers hold as many bytes as their leader has at this moment; return how long that took."""
    leader, followers = await placed(catalog, "followed")
    size = _block(cluster, leader, "followed").stat().st_size
    paths = [_block(cluster, name, "followed") for name in followers]
    return await until(
        lambda: all(path.stat().st_size >= size for path in paths), "followers follow", seconds_max=LONG_SECONDS
    )


def _block(cluster: ProcessCluster, broker: str, topic: str, block: int = 1) -> Path:
    (path,) = cluster.data(broker).glob(f"{topic}~*/*/Block_{block}/batches")
    return path


async def mirror_version(catalog: Catalog, topic: str) -> int:
    """Return how often the mirror of a topic's only partition was written."""
    stat = await catalog.store.exists(PartitionPaths.of(topic, "0").mirror)
    assert stat is not None
    return stat.version


@pytest.mark.quick_skip
def test_row_21_a_push_at_ack_1_needs_the_leader_only_and_readers_see_it_by_the_topic_s_visibility(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap) as seeing,
            AsyncConsumer(cluster.bootstrap) as waiting,
            tree(cluster) as catalog,
        ):
            await admin.create_topic("open", partitions=1, ack=Ack.LEADER, settings={"fetch_visibility": "leader"})
            await admin.create_topic("covered", partitions=1, ack=Ack.LEADER)
            leader, followers = await placed(catalog, "open")
            await admin.move_partition("covered", "0", [leader, *followers])
            await seeing.assign("open", "0")
            await waiting.assign("covered", "0")
            cluster.kill(*followers)
            assert (await producer.push("open", b"1")).offset == 0
            assert (await producer.push("covered", b"1")).offset == 0
            assert [message.value for message in await seeing.pull(timeout=LONG_SECONDS)] == [b"1"]
            assert len(await waiting.pull(timeout=0.5)) == 0
            await asyncio.to_thread(cluster.start, followers[0])
            assert [message.value for message in await waiting.pull(timeout=LONG_SECONDS)] == [b"1"]

    run(check())


def test_row_22_a_push_at_ack_0_is_answered_at_once_however_slow_the_disk_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, because a real disk cannot be told to be slow."""
    sync, slow = RealFile.sync, SLOW_DISK_SECONDS

    def sync_slowly(file: RealFile) -> None:
        if file.path.endswith("/batches"):
            time.sleep(slow)
        sync(file)

    async def check(bootstrap: str) -> None:
        async with AsyncAdmin(bootstrap) as admin, AsyncProducer(bootstrap, linger_ms=0) as producer:
            await admin.create_topic("slow", partitions=1, ack=Ack.NONE, replicas=1, settings={"fsync": "commit"})
            await producer.push("slow", b"first")
            monkeypatch.setattr(RealFile, "sync", sync_slowly)
            took: list[float] = []
            for _ in range(20):
                began = time.monotonic()
                await producer.push("slow", b"at once")
                took.append(time.monotonic() - began)
            async with AsyncProducer(bootstrap, ack=Ack.LEADER) as careful:
                began = time.monotonic()
                await careful.push("slow", b"later")
                assert time.monotonic() - began >= slow
            monkeypatch.setattr(RealFile, "sync", sync)
        print(f"ack 0: median {1000 * statistics.median(took):.1f} ms, worst {1000 * max(took):.1f} ms")
        assert statistics.median(took) < ANSWER_SECONDS_MAX

    with LocalCluster(brokers=1) as cluster:
        asyncio.run(check(cluster.bootstrap))


def test_rows_42_74_the_furthest_follower_leads_the_producer_goes_on_and_what_is_lost_is_kept_and_counted(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            tree(cluster) as catalog,
        ):
            await admin.create_topic("tail", partitions=1, ack=Ack.LEADER)
            leader, (behind, ahead) = await placed(catalog, "tail")
            await producer.push("tail", b"0")
            await equal(cluster, "tail")
            # A pull of the follower waits at the leader: what it is answered with is in its socket already.
            cluster.freeze(behind)
            await producer.push("tail", b"1")
            await producer.push("tail", b"2")
            await until(
                lambda: _block(cluster, ahead, "tail").read_bytes() == _block(cluster, leader, "tail").read_bytes(),
                "one follower has it",
                seconds_max=LONG_SECONDS,
            )
            cluster.freeze(ahead)
            for number in range(3, 8):
                assert (await producer.push("tail", b"%d" % number)).offset == number
            cluster.kill(leader)
            cluster.thaw(ahead)
            cluster.thaw(behind)
            end = (await producer.push("tail", b"after")).offset
            assert end in {3, 4}
            assert (await placed(catalog, "tail"))[0] == ahead
            lost = 8 - end
            assert producer.lost_messages == lost
            await asyncio.to_thread(cluster.start, leader)
            await producer.push("tail", b"back")
            await equal(cluster, "tail", 1)
            await equal(cluster, "tail", 2)
            assert await values(cluster, "tail") == [*(b"%d" % number for number in range(end)), b"after", b"back"]
            folder = _block(cluster, leader, "tail").parent
            kept = [batch for path in folder.glob("*.lost") for batch in checked(path.read_bytes())]
            assert [value for batch in kept for value in batch.values()] == [b"%d" % number for number in range(end, 8)]
            await until_asked(lambda: counts_lost(admin, "tail", lost), "the loss is counted", seconds_max=LONG_SECONDS)

    run(check())


async def counts_lost(admin: AsyncAdmin, topic: str, messages: int) -> bool:
    (found,) = [each for each in (await admin.status())["partitions"] if each["topic"] == topic]
    return bool(found["lost_messages"] == messages)


@pytest.mark.parametrize("ack", [Ack.QUORUM, pytest.param(Ack.LEADER, marks=pytest.mark.quick_skip)])
def test_row_43_a_follower_that_was_behind_at_the_seal_ends_equal(cluster: ProcessCluster, ack: Ack) -> None:
    async def check() -> None:
        topic = f"behind{int(ack)}"
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
        ):
            await admin.create_topic(topic, partitions=1, ack=ack)
            await producer.push(topic, b"first")
            leader = await cluster.leading(topic, "0")
            follower = next(name for name in cluster.brokers if name != leader)
            cluster.freeze(follower)
            await producer.push_many(topic, [b"%d" % number for number in range(100)])
            await roll(asking, topic)
            await producer.push(topic, b"last")
            assert _block(cluster, follower, topic).read_bytes() != _block(cluster, leader, topic).read_bytes()
            cluster.thaw(follower)
            await equal(cluster, topic, 1)
            # It is whole only if it also serves what it has.
            await until_asked(
                lambda: serves(asking, follower, topic, 50), "it serves the block", seconds_max=LONG_SECONDS
            )
            assert await values(cluster, topic) == [b"first", *(b"%d" % number for number in range(100)), b"last"]

    run(check())


async def serves(asking: Asking, broker: str, topic: str, offset: int) -> bool:
    route = await asking.route(topic)
    try:
        await asking.server(broker, Pull(topic, "0", route.uid, offset=offset, bytes_max=65536))
    except ClymqError:
        return False
    return True


@pytest.mark.quick_skip
def test_row_85_a_stalled_fetch_leader_acknowledges_none_of_what_waited_in_its_socket(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("stalled", partitions=1, ack=Ack.LEADER)
            raw = await RawProducer.begin(asking, "stalled", ack=Ack.LEADER)
            assert (await raw.push(raw.batch(b"0"))).base_offset == 0

            async def followed() -> bool:
                return await values(cluster, "stalled") == [b"0"]

            # What only the leader has goes with it, and that is allowed at ack 1.
            await until_asked(followed, "a follower has the first message", seconds_max=LONG_SECONDS)
            leader, _ = await placed(catalog, "stalled")
            cluster.freeze(leader)
            waiting = [
                asyncio.create_task(
                    refusal(raw.push(raw.batch(b"%d" % n, cmdindex=n), cmdindex=n, to=leader, seconds=LONG_SECONDS))
                )
                for n in range(2, 7)
            ]

            async def replaced() -> bool:
                return (await placed(catalog, "stalled"))[0] != leader

            await until_asked(replaced, "another block has begun without it", seconds_max=LONG_SECONDS)
            cluster.thaw(leader)
            errors = await asyncio.gather(*waiting)
            assert all(isinstance(error, ClymqError) for error in errors)
            assert await values(cluster, "stalled") == [b"0"]

    run(check())


def test_row_75_without_a_control_plane_fetch_leaders_stop_acknowledging_until_their_session_is_confirmed(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with (
            Asking(cluster) as asking,
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncConsumer(cluster.bootstrap) as consumer,
        ):
            await admin.create_topic("unsure", partitions=1, ack=Ack.LEADER)
            raw = await RawProducer.begin(asking, "unsure", ack=Ack.LEADER)
            await raw.push(raw.batch(b"0"))
            await consumer.assign("unsure", "0")
            read = [message.value for message in await consumer.pull(timeout=LONG_SECONDS)]
            assert read == [b"0"]  # and it knows now where to ask
            leader = await cluster.leading("unsure", "0")
            cluster.kill(*cluster.zkservers)
            stored = 1

            async def refused() -> bool:
                nonlocal stored
                try:
                    await raw.push(raw.batch(b"x", cmdindex=stored + 1), cmdindex=stored + 1, to=leader)
                except NotLeader:
                    return True
                stored += 1
                return False

            took = await until_asked(refused, "the leader acknowledges no more", seconds_max=LONG_SECONDS)
            assert took < 2 * SESSION_MS / 1000, "an unconfirmed session must end what it vouches for"
            for _ in range(10):
                assert await refused()
            while len(read) < stored:
                read += [message.value for message in await consumer.pull(timeout=LONG_SECONDS)]
            await asyncio.to_thread(cluster.start, *cluster.zkservers)
            async with AsyncProducer(cluster.bootstrap) as producer:
                await producer.push("unsure", b"again")
            found = await values(cluster, "unsure")
            # The first that was refused may have been written, and read: the session is looked at behind the write.
            assert stored <= len(read) <= stored + 1
            assert found[: len(read)] == read
            assert found[-1] == b"again"

    run(check())


# --- From mode to mode ---


async def adjoining(catalog: Catalog, topic: str) -> list[int]:
    """Check that each block begins where the one before ends; return their modes."""
    chain = catalog.chain(topic, "0")
    sealed, active = await chain.sealed(), (await chain.active()).block.value
    ranges = [(block.block, block.start, block.end) for block in sealed] + [(active.block, active.start, active.start)]
    assert [number for number, _, _ in ranges] == list(range(1, len(ranges) + 1))
    assert ranges[0][1] == 0
    for (_, _, end), (_, start, _) in pairwise(ranges):
        assert start == end
    return [*(block.mode for block in sealed), active.mode]


@pytest.mark.quick_skip
def test_rows_17_18_modes_change_back_and_forth_under_load_and_every_message_is_there_once_and_in_order(
    cluster: ProcessCluster,
) -> None:
    async def check() -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("switched", partitions=1)
            expected = [Ack.QUORUM]
            async with Load(cluster, "switched") as load:
                for _ in range(5):
                    for ack in (Ack.LEADER, Ack.NONE, Ack.QUORUM):
                        assert await admin.set_partition_state("switched", "0", ack=ack) == "changed"
                        expected += [ack] if ack != Ack.NONE else []
                        await load.goes_on(10)
                again = await admin.set_partition_state("switched", "0", ack=Ack.QUORUM)
                assert again == "HadRaft"
            assert await adjoining(catalog, "switched") == expected
            await load.judge()
            await equal(cluster, "switched", 2)

    run(check())


def test_row_19_a_bad_change_is_refused_and_nothing_is_stored(cluster: ProcessCluster) -> None:
    async def check() -> None:
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin, tree(cluster) as catalog:
            await admin.create_topic("refused", partitions=1)
            before = await catalog.chain("refused", "0").partition()
            for option, dupnum, kind in (
                (-2, None, InvalidState),
                (2, None, InvalidState),
                (-3, None, InvalidState),
                (1, 0, InvalidState),
                (1, -1, InvalidState),
                (1, 4, NotEnoughReplicas),
            ):
                error = await refusal(asking.controller(SetPartitionState("refused", "0", option, dupnum)))
                assert isinstance(error, kind)
            assert await catalog.chain("refused", "0").partition() == before

    run(check())


@pytest.mark.quick_skip
@pytest.mark.parametrize("victim", ["zkserver", "leader", "follower"])
def test_row_19_a_change_that_is_interrupted_is_completed(cluster: ProcessCluster, victim: str) -> None:
    """Both directions, killed as soon as the intent is written; the change is asked for again, as a user would."""

    async def check() -> None:
        topic = f"interrupted-{victim}"
        async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin, tree(cluster) as catalog:
            await admin.create_topic(topic, partitions=1)
            async with Load(cluster, topic) as load:
                for ack in (Ack.LEADER, Ack.QUORUM):
                    leader, followers = await placed(catalog, topic)
                    name = {"zkserver": cluster.zkservers[0], "leader": leader, "follower": followers[0]}[victim]
                    changing = asyncio.create_task(admin.set_partition_state(topic, "0", ack=ack))
                    await until_asked(
                        lambda ack=ack: is_under_way(catalog, topic, ack), "it has begun", seconds_max=LONG_SECONDS
                    )
                    cluster.kill(name)
                    await asyncio.to_thread(cluster.start, name)
                    await asyncio.gather(changing, return_exceptions=True)
                    assert await admin.set_partition_state(topic, "0", ack=ack) in {"changed", "HadRaft", "HadFetch"}
                    await load.goes_on()
                    assert (await catalog.chain(topic, "0").partition()).value.pending is None
            modes = await adjoining(catalog, topic)
            assert (modes[0], modes[-1]) == (Ack.QUORUM, Ack.QUORUM)
            assert Ack.LEADER in modes
            lost = await load.judge_with_loss()
            # Only what a killed fetch leader had acknowledged alone may be missing; it is counted.
            assert lost == load.producer.lost_messages
            assert lost == 0 or victim == "leader"

    run(check(), seconds_max=120)


async def is_under_way(catalog: Catalog, topic: str, mode: int) -> bool:
    """Whether a change has begun, or is over already."""
    chain = catalog.chain(topic, "0")
    partition = await chain.partition()
    return partition.value.pending is not None or (await chain.active()).block.value.mode == mode
