"""SPEC 7 on a cluster of real processes: many partitions, much data, old data, damaged and emptied disks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.errors import OffsetOutOfRange
from clymq.record.batch import Batch
from clymq.record.layout import Kind
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import WaitedTooLong, until, until_asked
from row_load import equal, restored
from rows import CONFIG, LONG_SECONDS, Asking, block_folders, run, values

MiB = 1024 * 1024
SMALL_BLOCK_BYTES = 64 * 1024
REST_SECONDS = 1.5
"""A group that rests for so long has written its checkpoint."""
NO_LEADER_SECONDS = 2.5
"""Many election timeouts."""
GROWTH_BYTES_MAX = 48 * MiB
OPEN_FILES_MAX = 16


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    config = {
        **CONFIG,
        "partitions_per_topic_max": 400,
        "open_files_max": OPEN_FILES_MAX,
        "config_ms": 500,
        "mirror_ms": 200,
        "retention_check_ms": 200,
        "delete_delay_ms": 200,
    }
    with ProcessCluster(3, config=config) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> ProcessCluster:
    return restored(shared)


# --- Much ---


@pytest.mark.quick_skip
def test_rows_38_84_many_partitions_commit_one_that_cannot_delays_no_other_and_sleepers_wake(
    cluster: ProcessCluster, size: str
) -> None:
    async def check() -> None:
        count = 300 if size == "long" else 30
        names = [str(number) for number in range(count)]
        async with (
            AsyncAdmin(cluster.bootstrap, timeout=120) as admin,
            AsyncProducer(cluster.bootstrap, timeout=120) as producer,
        ):
            await admin.create_topic("many", partitions=count)
            await admin.create_partition("many", "stuck")
            await admin.set_partition_state("many", "stuck", ack=Ack.QUORUM, replicas=2)
            await asyncio.gather(*(producer.push("many", b"1", partition=name) for name in (*names, "stuck")))
            # Two of its two replicas are its majority: without one of them it commits nothing, the others all.
            found = {each.partition: each for each in (await admin.describe_topic("many")).partitions}
            leader = await cluster.leading("many", "stuck")
            missing = next(name for name in found["stuck"].replicas if name != leader)
            cluster.kill(missing)
            waiting = asyncio.create_task(producer.push("many", b"2", partition="stuck"))
            await asyncio.gather(*(producer.push("many", b"2", partition=name) for name in names))
            assert not waiting.done()
            await asyncio.to_thread(cluster.start, missing)
            assert (await waiting).offset == 1

            # Groups that rest have written their checkpoints, and hold no file.
            await until(
                lambda: all(1 <= files_held(cluster, name) <= OPEN_FILES_MAX + 2 for name in cluster.brokers),
                "all groups rest",
                seconds_max=LONG_SECONDS,
            )
            leaders = [each.leader for each in (await admin.describe_topic("many")).partitions]
            victim = max(cluster.brokers, key=leaders.count)
            cluster.kill(victim)
            await asyncio.to_thread(cluster.start, victim)
            began = time.monotonic()
            await asyncio.gather(*(producer.push("many", b"3", partition=name) for name in (*names, "stuck")))
            woken = f"{leaders.count(victim)} of {count} groups were led by the broker that was restarted"
            print(f"{woken}; all answered in {time.monotonic() - began:.2f} s")
        async with AsyncConsumer(cluster.bootstrap) as consumer:
            for name in (*names, "stuck"):
                await consumer.assign("many", name, 0)
            read: dict[str, list[bytes]] = {name: [] for name in (*names, "stuck")}
            while sum(map(len, read.values())) < 3 * len(read):
                for message in await consumer.pull(timeout=LONG_SECONDS):
                    read[message.partition].append(message.value)
            assert all(found == [b"1", b"2", b"3"] for found in read.values())

    run(check(), seconds_max=180)


@pytest.mark.quick_skip
def test_row_37_a_broker_s_memory_stays_flat_and_a_follower_that_was_away_becomes_equal(
    cluster: ProcessCluster, size: str
) -> None:
    async def check() -> None:
        total = 10 * 1024 * MiB if size == "long" else 1024 * MiB
        piece = [b"." * (MiB // 8 - 64)] * 64
        settings = {"block_bytes_max": 256 * MiB, "retention_bytes": 512 * MiB}
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap, batch_bytes=MiB, timeout=120) as producer,
        ):
            await admin.create_topic("much", partitions=1, settings=settings)
            leader = await cluster.leading("much", "0")
            away = next(name for name in cluster.brokers if name != leader)
            pushed, figures = 0, []
            while pushed < total:
                await producer.push_many("much", piece)
                pushed += 8 * MiB
                if pushed == total * 3 // 4:
                    cluster.kill(away)
                if pushed >= total // 4 and pushed % (64 * MiB) == 0:
                    figures.append(max(memory_bytes(cluster, name) for name in cluster.brokers if name != away))
            print("largest broker, MiB:", [figure // MiB for figure in figures])
            assert max(figures) - figures[0] < GROWTH_BYTES_MAX
            await asyncio.to_thread(cluster.start, away)
            (described,) = (await admin.describe_topic("much")).partitions
            last = max(int(folder.name.removeprefix("Block_")) for folder in block_folders(cluster, "much", [leader]))
            print(f"{described.blocks} blocks; it has to become equal in block {last}")
            await equal(cluster, "much", last)
            assert memory_bytes(cluster, away) < figures[0] + GROWTH_BYTES_MAX
            await admin.delete_topic("much")

    run(check(), seconds_max=1800 if size == "long" else 180)


def memory_bytes(cluster: ProcessCluster, name: str) -> int:
    """Return what a server has allocated; pages of mapped files are the system's to take back."""
    status = Path(f"/proc/{server_pid(cluster, name)}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


def server_pid(cluster: ProcessCluster, name: str) -> int:
    """Return the process of a server, which may be a child of the command that put it into its network."""
    pid = cluster.processes.pid(name)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else pid


def files_held(cluster: ProcessCluster, name: str) -> int:
    """Return how many files of its data a broker has open, its lock among them."""
    folder = str(cluster.data(name))
    count = 0
    for link in Path(f"/proc/{server_pid(cluster, name)}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(link.readlink()).startswith(f"{folder}/")
    return count


# --- Old ---


@pytest.mark.quick_skip
@pytest.mark.parametrize("limit", ["retention_bytes", "retention_ms"])
def test_row_73_whole_sealed_blocks_leave_the_tree_and_all_replicas(cluster: ProcessCluster, limit: str) -> None:
    async def check() -> None:
        topic = f"old-{limit}"
        allowed = {"retention_bytes": 3 * SMALL_BLOCK_BYTES, "retention_ms": 500}[limit]
        async with (
            AsyncAdmin(cluster.bootstrap) as admin,
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap) as consumer,
        ):
            await admin.create_topic(topic, partitions=1, settings={"block_bytes_max": SMALL_BLOCK_BYTES})
            pushed = 0

            async def rolled() -> bool:
                nonlocal pushed
                await producer.push_many(topic, [b"." * 1024] * 70)
                pushed += 70
                return (await admin.describe_topic(topic)).partitions[0].blocks >= 6

            await until_asked(rolled, "there are six blocks", seconds_max=LONG_SECONDS)
            (before,) = (await admin.describe_topic(topic)).partitions
            assert before.start == 0
            assert len([f for f in block_folders(cluster, topic) if f.name == "Block_1"]) == 3
            await admin.alter_topic(topic, {limit: allowed})

            async def gone() -> bool:
                (now,) = (await admin.describe_topic(topic)).partitions
                return now.start > 0 and not [f for f in block_folders(cluster, topic) if f.name == "Block_1"]

            await until_asked(gone, "the oldest block is nowhere", seconds_max=LONG_SECONDS)
            if limit == "retention_bytes":
                sealed = {folder.name for folder in block_folders(cluster, topic)}
                assert len(sealed) >= 2, "what is within the limit stays"
            await consumer.assign(topic, "0", 0)
            with pytest.raises(OffsetOutOfRange) as refused:
                await consumer.pull(timeout=LONG_SECONDS)
            # The end is that of the sealed blocks at least: how far the active one has come its leader knows.
            assert 0 < refused.value.first <= refused.value.end <= pushed
            await admin.alter_topic(topic, {limit: -1})

            async def what_is_left() -> bool:
                """One more block may leave before the setting is heard of."""
                (now,) = (await admin.describe_topic(topic)).partitions
                try:
                    return len(await values(cluster, topic, offset=now.start)) == pushed - now.start
                except OffsetOutOfRange:
                    return False

            await until_asked(what_is_left, "what is left can be read", seconds_max=LONG_SECONDS)

    run(check())


# --- Damaged ---


@pytest.mark.quick_skip
def test_row_79_rot_in_the_last_acknowledged_batch_and_a_dead_leader_lose_nothing(cluster: ProcessCluster) -> None:
    def rot(folder: Path) -> None:
        """Flip a bit in the last data batch."""
        path = folder / "batches"
        data = bytearray(path.read_bytes())
        position, last = 0, -1
        while position < len(data):
            batch = Batch.parse(data, position)
            last = position if batch.kind == Kind.DATA else last
            position += batch.length
        data[last + 120] ^= 1
        path.write_bytes(data)

    run(lose_and_look(cluster, "rotten", rot))


@pytest.mark.quick_skip
@pytest.mark.parametrize("what", ["block", "disk"])
def test_row_80_an_empty_disk_and_a_dead_leader_mean_no_leader_and_the_block_moves_when_it_is_back(
    cluster: ProcessCluster, what: str
) -> None:
    def wipe(folder: Path) -> None:
        shutil.rmtree(folder if what == "block" else folder.parent.parent.parent)

    async def check() -> None:
        topic = f"wiped-{what}"
        await lose_and_look(cluster, topic, wipe)
        async with Asking(cluster) as asking, AsyncAdmin(cluster.bootstrap) as admin:

            async def moved() -> bool:
                return (await asking.route(topic)).block > 1

            await until_asked(moved, "the block has moved", seconds_max=LONG_SECONDS)
            (partition,) = (await admin.describe_topic(topic)).partitions
            assert sorted(partition.replicas) == sorted(cluster.brokers)
            await equal(cluster, topic, (await asking.route(topic)).block)
            # The sealed block is copied to the empty disk too.
            await equal(cluster, topic, 1)

    run(check())


async def lose_and_look(cluster: ProcessCluster, topic: str, damage: object) -> None:
    """Leave an acknowledged message on two replicas, damage one and kill the other: nobody may lead without it."""
    async with AsyncAdmin(cluster.bootstrap) as admin, AsyncProducer(cluster.bootstrap) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.push(topic, b"1")
        leader = await cluster.leading(topic, "0")
        absent, damaged = (name for name in cluster.brokers if name != leader)
        await equal(cluster, topic)
        cluster.kill(absent)
        await producer.push(topic, b"2")
        (file,) = (folder / "batches" for folder in block_folders(cluster, topic, [damaged]))
        await until(
            lambda: time.time() - file.stat().st_mtime > REST_SECONDS, "the group rests", seconds_max=LONG_SECONDS
        )
        cluster.kill(leader, damaged)
        assert callable(damage)
        damage(file.parent)
        await asyncio.to_thread(cluster.start, absent, damaged)
        with pytest.raises(WaitedTooLong):
            await cluster.leading(topic, "0", seconds_max=NO_LEADER_SECONDS)
        await asyncio.to_thread(cluster.start, leader)
        assert (await producer.push(topic, b"3")).offset == 2
        assert await values(cluster, topic) == [b"1", b"2", b"3"]
