"""A block that is large enough is followed by the next, under load, and readers notice nothing."""

from __future__ import annotations

import asyncio

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.testing.local_cluster import LocalCluster

MESSAGES = 3_000


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_blocks_roll_by_size_while_pushes_go_on(ack: Ack) -> None:
    async def scenario(bootstrap: str) -> None:
        async with AsyncAdmin(bootstrap) as admin, AsyncProducer(bootstrap) as producer:
            settings = {"block_bytes_max": 65_536}
            await admin.create_topic("rolls", partitions=["a"], ack=ack, settings=settings)
            for number in range(MESSAGES // 100):
                values = [b"%06d" % (100 * number + n) + b"." * 200 for n in range(100)]
                await producer.push_many("rolls", values, partition="a")
            blocks = 0
            for _ in range(200):
                (partition,) = (await admin.describe_topic("rolls")).partitions
                blocks = partition.blocks
                if blocks >= 2:
                    break
                await producer.push_many("rolls", [b"more"], partition="a")
        assert blocks >= 2
        async with AsyncConsumer(bootstrap) as consumer:
            await consumer.assign("rolls", "a", offset=0)
            values = []
            while len(values) < MESSAGES:
                values += [message.value for message in await consumer.pull(timeout=5.0)]
        assert [int(value[:6]) for value in values[:MESSAGES]] == list(range(MESSAGES))

    with LocalCluster(brokers=3, config={"mirror_ms": 50}) as cluster:
        asyncio.run(scenario(cluster.bootstrap))
