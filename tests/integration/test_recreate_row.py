"""Row 81: a topic is deleted and created while a broker is down; nothing of the old one is ever served."""

from __future__ import annotations

from pathlib import Path

import pytest

from clymq import Ack, AsyncAdmin, AsyncConsumer, AsyncProducer
from clymq.errors import UnknownPartition
from clymq.protocol.broker import Pull
from clymq.testing import LocalCluster
from clymq.testing.waiting import until_asked
from rows import LONG_SECONDS, Asking, refusal, roll, run

CONFIG = {"session_timeout_ms": 1500, "controller_tick_ms": 100, "config_ms": 300}


async def push(cluster: LocalCluster, *values: bytes) -> None:
    async with AsyncProducer(cluster.bootstrap, timeout=LONG_SECONDS) as producer:
        await producer.push_many("t", list(values))


async def read(cluster: LocalCluster, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with AsyncConsumer(cluster.bootstrap) as consumer:
        await consumer.assign("t", "0")
        while len(found) < count:
            messages = await consumer.pull(timeout=LONG_SECONDS)
            assert len(messages) > 0
            found += [message.value for message in messages]
    return found


def folders(cluster: LocalCluster, broker: str) -> list[Path]:
    return sorted((cluster.folder / broker).glob("t~*/0~*"))


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_row_81_a_topic_made_anew_with_a_broker_down_serves_nothing_of_the_old_one(ack: Ack) -> None:
    with LocalCluster(3, config=CONFIG) as cluster:

        async def make() -> tuple[str, str]:
            async with AsyncAdmin(cluster.bootstrap) as admin, Asking(cluster) as asking:
                await admin.create_topic("t", ack=ack)
                await push(cluster, b"old 1", b"old 2")
                await roll(asking, "t")  # so that there is a sealed block, which any replica would serve
                await push(cluster, b"old 3")
                route = await asking.route("t")
                return route.uid, route.broker

        old, leader = run(make())
        cluster.kill(leader)

        async def again() -> str:
            async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin, Asking(cluster) as asking:
                await admin.delete_topic("t")
                await admin.create_topic("t", ack=ack, replicas=2)
                await push(cluster, b"new 1")
                return (await asking.route("t")).uid

        new = run(again())
        assert new != old
        cluster.start(leader)

        async def check() -> None:
            async with Asking(cluster) as asking:

                async def orphaned() -> bool:
                    return [path.name for path in folders(cluster, leader)] == [f"0~{old}.orphan"]

                await until_asked(orphaned, "the old folder is set aside", seconds_max=LONG_SECONDS)
                for name in cluster.brokers:
                    for offset in (0, 2):
                        refused = await refusal(asking.server(name, Pull("t", "0", old, offset=offset)))
                        assert isinstance(refused, UnknownPartition), name
                # Also where the new one lives on the broker that has the old one's bytes.
                await roll(asking, "t", brokers=cluster.brokers)
            await push(cluster, b"new 2")
            assert await read(cluster, 2) == [b"new 1", b"new 2"]

        run(check())


def test_what_was_set_aside_is_deleted_a_while_later_and_blocks_that_left_meanwhile_too() -> None:
    with LocalCluster(1, config={**CONFIG, "delete_delay_ms": 1000, "retention_check_ms": 100}) as cluster:

        async def make() -> None:
            async with AsyncAdmin(cluster.bootstrap) as admin, Asking(cluster) as asking:
                for topic in ("gone", "kept"):
                    await admin.create_topic(topic, replicas=1)
                async with AsyncProducer(cluster.bootstrap) as producer:
                    await producer.push("kept", b"x")
                await roll(asking, "kept")

                async def led() -> bool:
                    return (await asking.route("kept")).term > 0

                # Until then nobody knows whether the next block has begun with what the last one ended with.
                await until_asked(led, "the next block has a leader", seconds_max=LONG_SECONDS)

        run(make())
        cluster.stop("Broker0")
        data = cluster.folder / "Broker0"
        assert len(list(data.glob("kept~*/0~*/Block_*"))) == 2

        async def meanwhile() -> None:
            async with AsyncAdmin(cluster.bootstrap, timeout=LONG_SECONDS) as admin:
                await admin.delete_topic("gone")
                await admin.alter_topic("kept", {"retention_bytes": 1})

                async def left() -> bool:
                    return (await admin.describe_topic("kept")).partitions[0].start == 1

                await until_asked(left, "the sealed block has left the tree", seconds_max=LONG_SECONDS)

        run(meanwhile())
        cluster.start("Broker0")

        async def deleted() -> bool:
            return not list(data.glob("gone~*")) and len(list(data.glob("kept~*/0~*/Block_*"))) == 1

        run(until_asked(deleted, "what is not named is deleted", seconds_max=LONG_SECONDS))
