"""Real brokers find and mend what rots on their disks though nobody reads it, below what any restart looks at."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clymq.client.admin import AsyncAdmin
from clymq.client.producer import AsyncProducer
from clymq.simulation.chaos.replicas import Replicas
from clymq.testing.process_cluster import ProcessCluster

CONFIG = {"scrub_bytes_per_second": 8 * 1024 * 1024, "scrub_interval_ms": 500, "config_ms": 500}
UNSCRUBBED = {**CONFIG, "scrub_bytes_per_second": 0}
BATCHES = 200
MESSAGE_BYTES = 2000


async def fill(cluster: ProcessCluster, ack: int) -> None:
    """Make a partition of two blocks, the first of them sealed."""
    async with AsyncAdmin(cluster.bootstrap) as admin, AsyncProducer(cluster.bootstrap, name="p") as producer:
        await admin.create_topic("t", partitions=0)
        await admin.create_partition("t", "0")
        await admin.set_partition_state("t", "0", ack=ack)
        for block in range(2):
            for _ in range(BATCHES):
                await producer.push("t", b"." * MESSAGE_BYTES, partition="0")
            if block == 0:
                await admin.move_partition("t", "0", cluster.brokers)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


async def differences_after_rot(cluster: ProcessCluster, ack: int, *, seconds_max: float) -> list[str]:
    """Let a bit flip in each block of a broker that does not lead; return what is not mended after a while."""
    await fill(cluster, ack)
    leader = await cluster.leading("t", "0")
    follower = next(name for name in cluster.brokers if name != leader)
    store = await cluster.connect()
    try:
        replicas = Replicas(cluster, store, [("t", "0")])
        assert not await replicas.settle()
        for block in (1, 2):
            (path,) = cluster.data(follower).glob(f"t~*/0~*/Block_{block}/batches")
            flip(path, BATCHES * MESSAGE_BYTES // 4)
        return await replicas.settle(seconds_max=seconds_max)
    finally:
        await store.close()


@pytest.mark.parametrize("ack", [-1, 1])
def test_bits_that_flip_where_nobody_reads_are_mended_in_sealed_and_active_blocks(ack: int) -> None:
    with ProcessCluster(3, config=CONFIG) as cluster:
        assert not asyncio.run(differences_after_rot(cluster, ack, seconds_max=60.0))


@pytest.mark.long
def test_without_a_scrubber_they_stay() -> None:
    with ProcessCluster(3, config=UNSCRUBBED) as cluster:
        assert len(asyncio.run(differences_after_rot(cluster, -1, seconds_max=10.0))) == 2
