"""What a producer promises while nothing goes wrong; on virtual time, against a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from clymq import Ack, AsyncProducer, Producer, Receipt, Receipts
from clymq.client.accumulator import GROWTH
from clymq.client.partitioning import partition_of
from clymq.client.producer import IN_FLIGHT_MAX, PIECES_AHEAD
from clymq.client.sender import EARLY_BYTES
from clymq.clock import ManualClock, pause
from clymq.errors import (
    BufferFull,
    ClosedError,
    ClymqError,
    ConfigError,
    InvalidName,
    InvalidRequest,
    MessageTooLarge,
    RequestTimeout,
    UnknownTopic,
)
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.peer import Peer
from fake_cluster import FakeCluster
from rpc_pair import until, virtually


def producing(
    main: Callable[[FakeCluster, AsyncProducer], Awaitable[None]],
    *,
    partitions: int = 1,
    ack: int = Ack.QUORUM,
    explicit_ack: Ack | None = None,
    **options: Any,
) -> None:
    """Run a test with a producer and the topic `t`, whose partitions have this ack."""

    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t", partitions, ack=ack)
            options.setdefault("surroundings", cluster.surroundings())
            async with AsyncProducer(cluster.bootstrap, ack=explicit_ack, **options) as producer:
                await main(cluster, producer)

    virtually(run)


def test_a_pushed_message_is_stored_and_its_receipt_says_where() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        first = await producer.push("t", b"one", key=b"k", headers={"h": b"v"}, timestamp=7)
        second = await producer.push("t", b"two")
        assert first == Receipt("t", "0", 0, 7, False)
        assert (second.offset, second.duplicate) == (1, False)
        partition = cluster.topics["t"]["0"]
        assert partition.values() == [b"one", b"two"]
        records = [record for batch in partition.log if batch.count for record in batch]
        assert (records[0].key, records[0].timestamp, records[0].headers) == (b"k", 7, (("h", b"v"),))
        assert records[1].timestamp == second.timestamp

    producing(main)


def test_pushes_that_come_together_leave_as_one_batch() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"first")
        receipts = await asyncio.gather(*(producer.push("t", b"%d" % n) for n in range(100)))
        assert [receipt.offset for receipt in receipts] == list(range(1, 101))
        assert cluster.asked["Push"] == 2
        assert cluster.topics["t"]["0"].values() == [b"first", *(b"%d" % n for n in range(100))]

    producing(main)


def test_a_thousand_pushes_cost_one_lookup_for_each_partition() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        for _ in range(250):
            await asyncio.gather(*(producer.push("t", b"x", partition=str(p)) for p in range(4)))
        assert cluster.asked["ProGetBroker"] == 4
        assert cluster.asked["InitProducer"] == 4
        cluster.topics["t"]["0"].fail_over("Broker2")
        await producer.push("t", b"x", partition="0")
        assert cluster.asked["ProGetBroker"] <= 5

    producing(main, partitions=4, linger_ms=0)


def test_a_batch_leaves_when_it_has_lingered() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"warm")
        began = cluster.clock.monotonic_ms()
        producer.send("t", b"x")
        await until(lambda: cluster.asked["Push"] == 2, cluster.clock)
        assert 40 <= cluster.clock.monotonic_ms() - began < 60

    producing(main, linger_ms=40)


def test_a_push_does_not_linger_when_nothing_is_on_its_way() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        producer.send("t", b"lingers")
        await producer.push("t", b"warm")
        began = cluster.clock.monotonic_ms()
        for number in range(10):
            await producer.push("t", b"%d" % number)
        assert cluster.clock.monotonic_ms() - began < 1000
        assert cluster.topics["t"]["0"].values() == [b"lingers", b"warm", *(b"%d" % n for n in range(10))]

    producing(main, linger_ms=60_000)


def test_pushes_gather_while_another_is_on_its_way_and_leave_when_it_is_stored() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"warm")
        partition.hold = True
        pushing = [asyncio.create_task(producer.push("t", b"first"))]
        await until(lambda: len(partition.pushes) == 2, cluster.clock)
        for number in range(5):
            pushing.append(asyncio.create_task(producer.push("t", b"%d" % number)))
            await pause(cluster.clock, 1)
        assert len(partition.pushes) == 2
        partition.hold = False
        partition.commit()
        await asyncio.gather(*pushing)
        assert len(partition.pushes) == 3
        assert partition.values() == [b"warm", b"first", *(b"%d" % n for n in range(5))]

    producing(main, linger_ms=60_000)


def test_columns_of_several_callers_share_a_batch_while_another_is_on_its_way() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"warm")
        partition.hold = True
        pushing = [asyncio.create_task(producer.push_many("t", [b"first"]))]
        await until(lambda: len(partition.pushes) == 2, cluster.clock)
        for number in range(5):
            pushing.append(asyncio.create_task(producer.push_many("t", [b"%d" % number] * 2)))
            await pause(cluster.clock, 1)
        assert len(partition.pushes) == 2
        partition.hold = False
        partition.commit()
        receipts = await asyncio.gather(*pushing)
        assert [each.ranges for each in receipts] == [[("0", 1, 1)], *([("0", 2 + 2 * n, 2)] for n in range(5))]
        assert len(partition.pushes) == 3
        assert partition.values() == [b"warm", b"first", *(b"%d" % (n // 2) for n in range(10))]

    producing(main, linger_ms=60_000)


def test_the_end_of_a_column_waits_for_nobody_where_nobody_else_pushes() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"warm")
        partition.hold = True
        pushing = asyncio.create_task(producer.push_many("t", [bytes(88)] * 10))
        await until(lambda: len(partition.pushes) == 1 + 3, cluster.clock)  # of four, four and two messages
        partition.hold = False
        partition.commit()
        assert (await pushing).ranges == [("0", 1, 10)]

    producing(main, batch_bytes=400, linger_ms=60_000)


def test_a_column_does_not_take_what_lingers_for_other_partitions_with_it() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"warm", partition="0")
        producer.send("t", b"lingers", partition="1")
        await producer.push_many("t", [b"a", b"b"], partition="0")
        assert cluster.topics["t"]["1"].values() == []
        await producer.flush()
        assert cluster.topics["t"]["1"].values() == [b"lingers"]

    producing(main, partitions=2, linger_ms=60_000)


def test_a_short_column_is_stored_as_it_was_when_it_was_pushed() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        values: list[bytes] = [b"a", b"b"]
        changing = bytearray(b"c")
        pushing = asyncio.gather(producer.push_many("t", values), producer.push_many("t", [changing, b"d"]))
        await asyncio.sleep(0)
        await producer.last_cmdindex("t", "0")
        values.append(b"too late")
        changing[:] = b"!"
        await pushing
        assert cluster.topics["t"]["0"].values() == [b"a", b"b", b"c", b"d"]

    producing(main, linger_ms=60_000)


def test_what_is_pushed_to_many_partitions_at_once_leaves_in_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []

    def flush(peer: Peer) -> None:
        flushed.append(peer.asks_under_way)

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        everywhere = [str(number) for number in range(8)]
        await asyncio.gather(*(producer.push("t", b"warm", partition=name) for name in everywhere))
        monkeypatch.setattr(Peer, "flush", flush)
        await asyncio.gather(*(producer.push("t", b"x", partition=name) for name in everywhere))
        assert set(flushed) == {1}, "one that is alone does not wait for the end of the turn, the others do"
        assert len(flushed) <= 3, "once for each broker at most"

    producing(main, partitions=8, linger_ms=60_000)


@pytest.mark.parametrize(("ack", "early"), [(Ack.QUORUM, False), (Ack.LEADER, True), (Ack.NONE, True)])
def test_much_leaves_before_the_turn_ends_unless_it_is_synced_together(
    ack: Ack, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    def flush(peer: Peer) -> None:
        if peer.asks_under_way > 1:
            flushed.append(peer.buffered_bytes)

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"warm")
        monkeypatch.setattr(Peer, "flush", flush)
        await producer.push_many("t", [bytes(10_000)] * 30)
        assert bool(flushed) == early
        assert all(size >= EARLY_BYTES for size in flushed)

    producing(main, ack=ack)


def test_a_full_batch_does_not_linger() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        began = cluster.clock.monotonic_ms()
        await asyncio.gather(*(producer.push("t", bytes(500)) for _ in range(10)))
        assert cluster.clock.monotonic_ms() - began < 1000
        assert len(cluster.topics["t"]["0"].pushes) == 10

    producing(main, linger_ms=60_000, batch_bytes=512)


def test_a_long_column_is_not_made_ready_faster_than_it_leaves() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"warm")
        partition.hold = True
        pushing = asyncio.create_task(producer.push_many("t", [b"%03d" % n * 100 for n in range(100)]))
        await until(lambda: len(partition.pushes) == 1 + IN_FLIGHT_MAX, cluster.clock)
        await pause(cluster.clock, 50)
        assert producer._outbox.buffered_bytes <= PIECES_AHEAD * GROWTH * 312
        partition.hold = False
        partition.commit()
        assert (await pushing).ranges == [("0", 1, 100)]
        assert partition.values()[1:] == [b"%03d" % n * 100 for n in range(100)]

    producing(main, batch_bytes=400, linger_ms=60_000)


def test_no_more_batches_are_in_flight_than_allowed() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"0")
        partition.hold = True
        pushing = [asyncio.create_task(producer.push("t", bytes([n]) * 600)) for n in range(9)]
        await until(lambda: len(partition.pushes) >= 4, cluster.clock)
        await pause(cluster.clock, 50)
        assert len(partition.pushes) == 4  # the one before, and three
        partition.commit()
        await asyncio.gather(*pushing)
        assert partition.values() == [b"0", *(bytes([n]) * 600 for n in range(9))]

    producing(main, in_flight_max=3, batch_bytes=512)


def test_keys_choose_the_partition_and_keep_their_order() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        names = sorted(cluster.topics["t"])
        receipts = await asyncio.gather(*(producer.push("t", b"%d" % n, key=b"k%d" % (n % 7)) for n in range(70)))
        for n, receipt in enumerate(receipts):
            assert receipt.partition == partition_of(b"k%d" % (n % 7), names)
        for name, partition in cluster.topics["t"].items():
            expected = [b"%d" % n for n in range(70) if partition_of(b"k%d" % (n % 7), names) == name]
            assert partition.values() == expected

    producing(main, partitions=4)


def test_messages_without_a_key_stay_together_until_the_batch_leaves_and_go_round() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        places = []
        for _ in range(8):
            receipts = await asyncio.gather(*(producer.push("t", b"x") for _ in range(5)))
            assert len({receipt.partition for receipt in receipts}) == 1
            places.append(receipts[0].partition)
        assert sorted(places) == ["0", "0", "1", "1", "2", "2", "3", "3"]

    producing(main, partitions=4)


def test_new_partitions_are_found_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clymq.client.cluster.PARTITIONS_MS_MAX", 500.0)

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"x")
        cluster.create("t", 2)
        assert {(await producer.push("t", b"x")).partition for _ in range(4)} == {"0"}
        await pause(cluster.clock, 500)
        await producer.push("t", b"x")  # asks in the background
        await pause(cluster.clock, 10)
        assert {(await producer.push("t", b"x")).partition for _ in range(4)} == {"0", "1"}
        assert cluster.asked["DescribeTopic"] == 2

    producing(main)


def test_push_many_answers_with_ranges() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        values = [b"%05d" % n for n in range(5000)]
        receipts = await producer.push_many("t", values, partition="1")
        assert receipts == Receipts(5000, [("1", 0, 5000)], "t")
        assert cluster.topics["t"]["1"].values() == values
        assert 1 < cluster.asked["Push"] < 20
        again = await producer.push_many("t", values, timestamps=[7] * 5000)
        assert again.count == 5000
        assert {partition for partition, _, _ in again.ranges} == {"0", "1"}

    producing(main, partitions=2, batch_bytes=8192)


def test_push_many_follows_the_keys() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        keys = [None if n % 5 == 0 else b"k%d" % (n % 11) for n in range(1000)]
        values = [b"%d" % n for n in range(1000)]
        headers = [{"n": b"%d" % n} if n % 2 else None for n in range(1000)]
        receipts = await producer.push_many("t", values, keys=keys, headers=headers)
        assert receipts.count == sum(count for _, _, count in receipts.ranges) == 1000
        stored = {
            record.value: (name, record.key, record.headers)
            for name, partition in cluster.topics["t"].items()
            for batch in partition.log
            if batch.count
            for record in batch
        }
        for n, key in enumerate(keys):
            name, stored_key, stored_headers = stored[b"%d" % n]
            assert stored_key == key
            assert key is None or name == partition_of(key, ["0", "1", "2"])
            assert stored_headers == ((("n", b"%d" % n),) if n % 2 else ())

    producing(main, partitions=3)


def test_push_arrow_divides_a_table_by_its_keys() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        keys = [None if n % 5 == 0 else b"k%d" % (n % 11) for n in range(3000)]
        table = pa.table({"value": pa.array([b"%d" % n for n in range(3000)]), "key": pa.array(keys, pa.binary())})
        receipts = await producer.push_arrow("t", table)
        assert receipts.count == 3000
        for name, partition in cluster.topics["t"].items():
            keyed = [r for batch in partition.log if batch.count for r in batch if r.key is not None]
            assert all(partition_of(record.key or b"", ["0", "1", "2"]) == name for record in keyed)
            numbers = [int(record.value) for record in keyed]
            assert numbers == sorted(numbers)
        plain = await producer.push_arrow("t", table.select(["value"]), partition="2")
        assert [count for _, _, count in plain.ranges] == [3000]

    producing(main, partitions=3, batch_bytes=4096)


def test_send_returns_at_once_and_flush_waits_for_all() -> None:
    told: list[Receipts | ClymqError] = []

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        for n in range(1000):  # the partitions of the topic are not known yet
            producer.send("t", b"%d" % n, key=b"%d" % (n % 3))
        await producer.flush()
        for n in range(1000, 2000):
            producer.send("t", b"%d" % n, key=b"%d" % (n % 3))
        await producer.flush()
        values = [value for partition in cluster.topics["t"].values() for value in partition.values()]
        assert sorted(map(int, values)) == list(range(2000))
        for partition in cluster.topics["t"].values():
            for key in range(3):
                numbers = [int(value) for value in partition.values() if int(value) % 3 == key]
                assert numbers == sorted(numbers)
        assert sum(receipts.count for receipts in told if isinstance(receipts, Receipts)) == 2000
        assert len(told) < 20

    producing(main, partitions=2, on_delivery=told.append)


def test_a_full_buffer_is_said_and_drains() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.hold = True
        sent = 0
        with pytest.raises(BufferFull) as full:
            while True:
                producer.send("t", bytes(1000))
                sent += 1
        assert full.value.retriable
        assert sent == 9  # 10,000 bytes, and some for each
        waiting = asyncio.create_task(producer.push("t", b"patient"))
        draining = asyncio.create_task(producer.drain())
        await until(lambda: len(partition.pushes) > 1, cluster.clock)
        assert not draining.done()
        assert not waiting.done()
        partition.commit()
        await draining
        producer.send("t", bytes(1000))
        await producer.flush()
        await waiting
        assert len(partition.values()) == 1 + 9 + 1 + 1

    producing(main, buffer_bytes_max=10_000)


def test_messages_that_wait_for_their_partitions_count_against_the_buffer() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        sent = 0
        with pytest.raises(BufferFull):
            while True:
                producer.send("t", bytes(1000))
                sent += 1
        assert sent == 9
        await producer.drain()
        await producer.flush()
        assert len(cluster.topics["t"]["0"].values()) == 9

    producing(main, buffer_bytes_max=10_000)


def test_flush_raises_the_first_error_of_what_was_sent_once() -> None:
    told: list[Receipts | ClymqError] = []

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        producer.send("nowhere", b"x")
        with pytest.raises(UnknownTopic):
            await producer.flush()
        await producer.flush()
        assert [getattr(each, "code", "") for each in told] == ["UnknownTopic"]
        with pytest.raises(UnknownTopic):
            await producer.push("nowhere", b"x")
        await producer.flush()  # the pusher was told

    producing(main, on_delivery=told.append)


def test_a_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Receipts | ClymqError) -> None:
        raise ValueError("a mistake of the caller's")

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"one")
        await producer.push("t", b"two")
        assert cluster.topics["t"]["0"].values() == [b"one", b"two"]

    producing(main, on_delivery=fail)
    assert "on_delivery failed" in caplog.text


def test_ack_0_has_no_offset() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        assert (await producer.push("t", b"x")).offset is None
        assert (await producer.push_many("t", [b"y"] * 3)).ranges == [("0", None, 3)]
        assert len(cluster.topics["t"]["0"].values()) == 4

    producing(main, ack=Ack.NONE)


def test_pushes_that_wait_for_the_partitions_or_for_room_are_not_overtaken() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        pushing = []
        for n in range(200):
            pushing.append(asyncio.create_task(producer.push("t", b"%03d" % n * 30)))
            if n % 7 == 0:
                await asyncio.sleep(0)
            if n % 50 == 0:
                await pause(cluster.clock, 1)
        await asyncio.gather(*pushing)
        assert cluster.topics["t"]["0"].values() == [b"%03d" % n * 30 for n in range(200)]
        assert cluster.asked["DescribeTopic"] == 1

    producing(main, buffer_bytes_max=2000, batch_bytes=512)


def test_cancelling_a_push_keeps_the_order_of_the_others() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"warm")
        partition.hold = True
        pushing = [asyncio.create_task(producer.push("t", b"%d" % n)) for n in range(5)]
        await pause(cluster.clock, 1)
        pushing[2].cancel()
        await pause(cluster.clock, 1)
        partition.hold = False
        partition.commit()
        done = await asyncio.gather(*pushing, return_exceptions=True)
        assert isinstance(done[2], asyncio.CancelledError)
        assert partition.values() == [b"warm", b"0", b"1", b"2", b"3", b"4"]
        offsets = [each.offset for each in done if isinstance(each, Receipt)]
        assert offsets == [1, 2, 4, 5]

    producing(main, linger_ms=20)


def test_close_sends_what_was_accepted() -> None:
    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t")
            producer = AsyncProducer(cluster.bootstrap, linger_ms=60_000, surroundings=cluster.surroundings())
            await producer.start()
            for n in range(10):
                producer.send("t", b"%d" % n)
            pushing = asyncio.create_task(producer.push("t", b"last"))
            await until(lambda: cluster.asked["DescribeTopic"], clock)
            await pause(clock, 1)
            await producer.close()
            assert (await pushing).offset == 10
            assert len(cluster.topics["t"]["0"].values()) == 11
            with pytest.raises(ClosedError):
                await producer.push("t", b"x")
            with pytest.raises(ClosedError):
                producer.send("t", b"x")
            await producer.close()

    virtually(run)


def test_close_settles_what_cannot_be_sent_within_the_timeout() -> None:
    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            partition = cluster.create("t")
            producer = AsyncProducer(cluster.bootstrap, timeout=2.0, surroundings=cluster.surroundings())
            await producer.push("t", b"first")
            partition.hold = True
            pushing = [asyncio.create_task(producer.push("t", b"x")) for _ in range(3)]
            producer.send("t", b"y")
            await until(lambda: len(partition.pushes) == 2, clock)
            began = clock.monotonic_ms()
            with pytest.raises(RequestTimeout):
                await producer.close()
            assert clock.monotonic_ms() - began < 2500
            outcomes = await asyncio.gather(*pushing, return_exceptions=True)
            assert [type(each) for each in outcomes] == [RequestTimeout] * 3

    virtually(run)


def test_last_cmdindex_counts_messages_that_are_stored() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        assert await producer.last_cmdindex("t", "0") == 0
        await producer.push_many("t", [b"x"] * 5)
        assert await producer.last_cmdindex("t", "0") == 5
        other = AsyncProducer(cluster.bootstrap, name=producer.name, surroundings=cluster.surroundings())
        async with other:
            assert await other.last_cmdindex("t", "0") == 5

    producing(main)


def test_wrong_values_are_refused_where_they_are_given() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        for wrong in ("text", None, 5):
            with pytest.raises(InvalidRequest):
                producer.send("t", wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                await producer.push("t", wrong)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            await producer.push("t", bytes(1024 * 1024 + 1))
        with pytest.raises(InvalidRequest, match="lengths"):
            await producer.push_many("t", [b"x"], keys=[b"k", b"l"])
        with pytest.raises(InvalidRequest):
            await producer.push_many("t", ["text"])  # type: ignore[list-item]
        with pytest.raises(InvalidName):
            await producer.push("a/b", b"x")
        assert (await producer.push("t", b"fine")).offset == 0
        assert cluster.topics["t"]["0"].values() == [b"fine"]

    producing(main)


@pytest.mark.parametrize(
    "options",
    [{"linger_ms": -1}, {"batch_bytes": 0}, {"buffer_bytes_max": 0}, {"in_flight_max": 9}, {"timeout": 0},
     {"codec": "gzip"}, {"ack": 7}, {"ack": -2}, {"ack": Ack.UNSET}, {"ack": "quorum"}],
)  # fmt: skip
def test_an_option_out_of_bounds_is_named(options: dict[str, Any]) -> None:
    for kind in (AsyncProducer, Producer):
        with pytest.raises(ConfigError, match=next(iter(options))):
            kind("h:1", **options)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_batches_can_be_packed(codec: str) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push_many("t", [b"x" * 100] * 50)
        partition = cluster.topics["t"]["0"]
        assert partition.values() == [b"x" * 100] * 50
        assert partition.log[-1].codec == codec

    producing(main, codec=codec)


def test_the_producer_can_make_topics() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.create_topic("new", partitions=["xian"])
        await producer.create_partition("new", "北京")
        assert await producer.set_partition_state("new", "北京", ack=Ack.LEADER) == "changed"
        assert (await producer.push("new", b"x", partition="北京")).offset == 0

    producing(main)
