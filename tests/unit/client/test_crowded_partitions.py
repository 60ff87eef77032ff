"""What a partition cannot keep up with in small batches it gets in fewer and larger ones; nothing waits for ever."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from clymq import AsyncProducer, Receipt
from clymq.clock import Clock
from clymq.errors import RequestTimeout
from fake_cluster import FakeCluster, FakePartition
from unit.client.test_producer import producing

VALUES = [bytes([n]) * 600 for n in range(16)]
"""A batch of 512 bytes holds one of them, a grown one three."""


async def turns(clock: Clock, milliseconds: float = 20) -> None:
    """Let what is due happen: everything lingers for less."""
    passed = asyncio.Event()
    clock.call_later(milliseconds, passed.set)
    await passed.wait()


async def crowd(cluster: FakeCluster, producer: AsyncProducer) -> tuple[FakePartition, list[asyncio.Task[Receipt]]]:
    """Fill the window of the first partition, and push eight more messages behind it."""
    partition = cluster.topics["t"]["0"]
    await producer.push("t", b"first", partition="0")
    partition.hold = True
    tasks = []
    for value in VALUES:
        tasks.append(asyncio.create_task(producer.push("t", value, partition="0")))
        await turns(cluster.clock)
    return partition, tasks


def test_what_waits_behind_a_full_window_goes_in_fewer_batches() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition, tasks = await crowd(cluster, producer)
        assert sum(batch.count > 0 for batch in partition.log) == 1 + 8  # the others wait
        partition.commit()
        receipts = await asyncio.gather(*tasks)
        assert [receipt.offset for receipt in receipts] == list(range(1, 17))
        assert partition.values() == [b"first", *VALUES]
        assert [batch.count for batch in partition.log if batch.count] == [1] * 9 + [3, 3, 2]

    producing(main, batch_bytes=512)


@pytest.mark.parametrize("as_table", [False, True])
def test_a_column_for_a_crowded_partition_is_cut_into_larger_batches(as_table: bool) -> None:
    values = [b"%04d" % n * 25 for n in range(60)]

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.hold = True
        table = pa.table({"value": values})
        pushing = asyncio.create_task(producer.push_arrow("t", table) if as_table else producer.push_many("t", values))
        await turns(cluster.clock)
        partition.hold = False
        partition.commit()
        assert (await pushing).ranges == [("0", 1, 60)]
        assert partition.values() == [b"first", *values]
        counts = [batch.count for batch in partition.log if batch.count][1:]
        small, large = counts[:8], counts[8:]
        assert max(small) * 100 <= 512
        assert max(large) > 2 * max(small)

    producing(main, batch_bytes=512)


def test_what_was_put_off_is_given_up_in_time_where_nobody_answers() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        _, tasks = await crowd(cluster, producer)
        for broker in cluster.brokers:
            await cluster.stop(broker)
        last = asyncio.create_task(producer.push("t", b"last", partition="0"))
        outcomes = await asyncio.gather(*tasks, last, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RequestTimeout] * 17

    producing(main, batch_bytes=512, timeout=10.0)


def test_a_flush_sends_what_was_put_off() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition, tasks = await crowd(cluster, producer)
        producer.send("t", b"sent", partition="0")
        flushing = asyncio.create_task(producer.flush())
        await turns(cluster.clock)
        partition.commit()
        await asyncio.gather(flushing, *tasks)
        assert partition.values() == [b"first", *VALUES, b"sent"]

    producing(main, batch_bytes=512)


@pytest.mark.parametrize("with_key", [False, True])
def test_a_crowded_partition_gets_no_more_of_what_may_go_elsewhere_than_its_share(with_key: bool) -> None:
    """However long it lasts: a message for a batch that was put off passes the turn on, as one that is closed does."""

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        stuck, tasks = await crowd(cluster, producer)
        headers = {"h": b"v"} if with_key else None  # the short way is for values alone
        for _ in range(300):
            producer.send("t", b"anywhere", headers=headers)
            await turns(cluster.clock)
        elsewhere = sum(cluster.topics["t"][name].values().count(b"anywhere") for name in ("1", "2"))
        assert 190 <= elsewhere <= 210
        stuck.commit()
        await asyncio.gather(*tasks, producer.flush())
        assert stuck.values().count(b"anywhere") == 300 - elsewhere

    producing(main, partitions=3, batch_bytes=512)
