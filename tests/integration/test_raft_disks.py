"""Disks that rot, are emptied, run full or tear a write, under three real processes: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clymq.errors import ClymqError
from clymq.record import Batch
from clymq.storage.checkpoint import read_checkpoint
from clymq.storage.files import RealFiles
from clymq.testing.cluster import RaftCluster
from clymq.testing.raft_load import RaftLoad
from clymq.testing.waiting import WaitedTooLong, until

# Three times as long as the most patient replica waits before it runs for leader.
NO_LEADER_SECONDS = 1.5
FULL_DISK_BYTES = 16 * 1024 * 1024
# How soon replicas find each other again is not what is tested here.
SETTINGS = {"reconnect_ms_max": 200, "disk_reserve_bytes": 1024 * 1024}


def batches_of(path: Path) -> list[tuple[int, Batch]]:
    """Return the batches of a block's file with their positions."""
    data = path.read_bytes()
    found, position = [], 0
    while position < len(data):
        batch = Batch.parse(data, position)
        found.append((position, batch))
        position += batch.length
    return found


async def followers_of(cluster: RaftCluster, load: RaftLoad) -> tuple[str, list[str]]:
    leader = await load.client.leader()
    return leader, [node for node in cluster.nodes if node != leader]


async def rest(cluster: RaftCluster, load: RaftLoad) -> None:
    """Stop pushing, and wait until every node has written a checkpoint of all that there is."""
    await load.stop()
    await asyncio.to_thread(cluster.settle)

    def written() -> bool:
        paths = [cluster.batches(node) for node in cluster.nodes]
        checkpoints = [read_checkpoint(RealFiles(), f"{path.parent}/checkpoint") for path in paths]
        return all(
            each is not None and each.position == path.stat().st_size
            for each, path in zip(checkpoints, paths, strict=True)
        )

    await until(written, "all nodes have written a checkpoint", seconds_max=60)


async def nobody_leads(load: RaftLoad) -> None:
    with pytest.raises(WaitedTooLong):
        await load.client.leader(seconds_max=NO_LEADER_SECONDS)


def set_aside(path: Path, suffix: str) -> list[str]:
    """Return the files that hold what was cut away from a log."""
    return [each.name for each in path.parent.glob(f"{path.name}-*.{suffix}")]


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def flip_in_the_last_message(path: Path, part: str) -> None:
    position, batch = [each for each in batches_of(path) if each[1].count][-1]
    flip(path, position + {"header": 20, "body": batch.length - 3}[part])


# --- Rot ---


@pytest.mark.parametrize("part", [pytest.param("header", marks=pytest.mark.long), "body"])
def test_rot_in_the_last_acknowledged_batch_is_mended_and_a_dead_leader_loses_nothing(
    tmp_path: Path, part: str
) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path, settings=SETTINGS) as cluster, RaftLoad(cluster) as load:
            await load.resumed(batches=20)
            await rest(cluster, load)
            leader, (follower, other) = await followers_of(cluster, load)
            await asyncio.to_thread(cluster.stop, follower)
            flip_in_the_last_message(cluster.batches(follower), part)
            await asyncio.to_thread(cluster.start, follower)
            log = cluster.processes.log_path(follower)
            await until(lambda: "it votes again" in log.read_text(), f"{follower} is mended", seconds_max=60)
            cluster.kill(leader)
            await load.verify(nodes=[follower, other])
            await asyncio.to_thread(cluster.start, leader)
            await load.verify()
            assert set_aside(cluster.batches(follower), "bad")

    asyncio.run(run())


@pytest.mark.quick_skip
def test_rot_in_the_last_acknowledged_batch_and_nobody_to_mend_from_means_no_leader_rather_than_loss(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path, settings=SETTINGS) as cluster, RaftLoad(cluster) as load:
            await load.resumed(batches=20)
            await rest(cluster, load)
            leader, (follower, _) = await followers_of(cluster, load)
            cluster.kill(leader, follower)
            flip_in_the_last_message(cluster.batches(follower), "body")
            # The third one has everything, and nobody to vote for it but a replica that has lost something.
            await asyncio.to_thread(cluster.start, follower)
            await nobody_leads(load)
            await asyncio.to_thread(cluster.start, leader)
            await load.verify()

    asyncio.run(run())


@pytest.mark.quick_skip
@pytest.mark.parametrize("part", [pytest.param("header", marks=pytest.mark.long), "body"])
def test_rot_that_a_reader_meets_makes_another_replica_lead_and_is_mended(tmp_path: Path, part: str) -> None:
    """Long before the end of the log no restart looks; the leader finds it when it is asked for it."""

    async def run() -> None:
        async with (
            RaftCluster(folder=tmp_path, settings=SETTINGS) as cluster,
            RaftLoad(cluster, message_bytes=20_000) as load,
        ):
            await load.resumed(batches=20)
            await rest(cluster, load)
            leader, _ = await followers_of(cluster, load)
            position, batch = next(each for each in batches_of(cluster.batches(leader)) if each[1].count)
            flip(cluster.batches(leader), position + {"header": 20, "body": batch.length - 3}[part])
            with pytest.raises(ClymqError, match="lost part"):
                await load.client.read_from(leader)
            await load.verify()
            assert set_aside(cluster.batches(leader), "bad")

    asyncio.run(run())


# --- An empty disk ---


@pytest.mark.quick_skip
def test_a_wiped_disk_and_a_dead_leader_mean_no_leader_until_the_leader_is_back_with_everything(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with RaftCluster(folder=tmp_path, settings=SETTINGS) as cluster, RaftLoad(cluster) as load:
            await load.resumed(batches=20)
            leader, (follower, other) = await followers_of(cluster, load)
            cluster.kill(follower)
            shutil.rmtree(cluster.data(follower))
            await asyncio.to_thread(cluster.start, follower)
            assert "stays out" in cluster.processes.log_path(follower).read_text()
            await load.resumed(batches=20)
            cluster.kill(leader)
            await nobody_leads(load)
            await asyncio.to_thread(cluster.start, leader)
            await load.resumed(batches=20)
            await load.verify(nodes=[leader, other])
            assert not cluster.batches(follower).exists()

    asyncio.run(run())


# --- A full disk ---


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[Path]:
    """A folder in which the data of each node is on a small disk of its own."""
    mounted: list[Path] = []
    try:
        for node in ("a", "b", "c"):
            place = tmp_path / node
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_BYTES}", "clymq-test", str(place)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
            mounted.append(place)
        yield tmp_path
    finally:
        for place in mounted:
            subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Leave not a byte of room on a disk; return what has to be removed to make some."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for chunk in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(chunk))
            except OSError:
                continue
    return ballast


def test_a_full_disk_stops_nobody_and_is_equal_again_when_there_is_room(small_disks: Path) -> None:
    async def run() -> None:
        async with (
            RaftCluster(folder=small_disks, settings=SETTINGS) as cluster,
            RaftLoad(cluster, message_bytes=2000) as load,
        ):
            for role in ("leader", "follower"):
                await load.resumed(batches=20)
                leader, (follower, _) = await followers_of(cluster, load)
                full = leader if role == "leader" else follower
                ballast = fill(cluster.data(full))
                seconds = await load.resumed(batches=50, elsewhere_than=full)
                print(f"the disk of the {role} full: 50 batches stored by the others after {seconds:.2f} s")
                assert cluster.processes.is_running(full)
                assert "disk full" in cluster.processes.log_path(full).read_text()
                sizes = {node: cluster.batches(node).stat().st_size for node in cluster.nodes}
                assert sizes[full] < max(sizes.values())
                ballast.unlink()
                await cluster.caught_up(full)
            await load.verify()

    asyncio.run(run())


# --- A torn write ---


@pytest.mark.quick_skip
def test_a_torn_write_behind_the_committed_end_is_cut_away_and_the_replica_is_equal_again(tmp_path: Path) -> None:
    """Nobody was promised what a leader has written while nobody heard it."""

    async def run() -> None:
        async with RaftCluster(folder=tmp_path, settings=SETTINGS) as cluster, RaftLoad(cluster) as load:
            await load.resumed(batches=20)
            leader, followers = await followers_of(cluster, load)
            for follower in followers:
                cluster.freeze(follower)
            path = cluster.batches(leader)
            alone = path.stat().st_size
            await until(lambda: path.stat().st_size > alone, "the leader writes alone", seconds_max=20)
            cluster.kill(leader)
            os.truncate(path, path.stat().st_size - batches_of(path)[-1][1].length // 2)
            for follower in followers:
                cluster.thaw(follower)
            await load.resumed()
            await asyncio.to_thread(cluster.start, leader)
            await cluster.caught_up(leader)
            assert set_aside(path, "torn")
            # And half a batch behind the last whole one, on a replica that follows.
            leader, (follower, _) = await followers_of(cluster, load)
            cluster.kill(follower)
            path = cluster.batches(follower)
            with path.open("ab") as file:
                file.write(path.read_bytes()[:100])
            await asyncio.to_thread(cluster.start, follower)
            await cluster.caught_up(follower)
            assert set_aside(path, "torn")
            await load.verify()

    asyncio.run(run())
