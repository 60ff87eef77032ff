"""What a producer promises when things go wrong: order, no duplicate, no loss, and never a surprise afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from clymq import Ack, AsyncProducer, Receipt
from clymq.clock import ManualClock, pause
from clymq.errors import (
    AckMismatch,
    BlockSealed,
    ClymqError,
    DataLost,
    InvalidRequest,
    NotLeader,
    NotReady,
    OutOfSequence,
    Overloaded,
    PartitionUnset,
    ProducerFenced,
    RequestTimeout,
    TooManyProducers,
)
from clymq.protocol.controller import NOT_YET
from clymq.replication.producers import Claim
from clymq.rpc.memory import MemoryNetwork
from fake_cluster import CLIENT, FakeCluster, FakePartition
from rpc_pair import until, virtually
from unit.client.test_producer import producing

EIGHT = [bytes([n]) * 600 for n in range(8)]


def in_flight(cluster: FakeCluster, producer: AsyncProducer) -> list[asyncio.Task[Receipt]]:
    """Push eight batches of one message each."""
    return [asyncio.create_task(producer.push("t", value)) for value in EIGHT]


async def eight_in_flight(cluster: FakeCluster, producer: AsyncProducer) -> list[asyncio.Task[Receipt]]:
    """Push eight batches to a partition that holds its answers back, and wait until it has them."""
    partition = cluster.topics["t"]["0"]
    await producer.push("t", b"first")
    partition.hold = True
    pushing = in_flight(cluster, producer)
    await until(lambda: len(partition.pushes) == 9, cluster.clock)
    return pushing


@pytest.mark.parametrize("problem", [NotLeader("not elected yet"), BlockSealed("block 1 is sealed")])
def test_who_is_refused_by_a_leader_that_was_not_elected_yet_says_so_when_it_asks_again(problem: ClymqError) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.told_term = NOT_YET
        partition.refuse.append(problem)
        await producer.push("t", b"first")
        assert [(asked.failed, asked.term) for asked in partition.lookups] == [("", 0), (partition.leader, NOT_YET)]

    producing(main)


def test_one_that_was_named_before_it_was_elected_and_does_not_answer_may_have_been_elected_and_be_gone() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.told_term = NOT_YET
        partition.refuse.append(RequestTimeout("no answer"))
        await producer.push("t", b"first")
        assert [(asked.failed, asked.term) for asked in partition.lookups] == [("", 0), (partition.leader, 0)]

    producing(main)


@pytest.mark.parametrize("hints", [True, False])
def test_order_is_kept_when_the_leader_changes_with_eight_in_flight(hints: bool) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.hints = hints
        pushing = await eight_in_flight(cluster, producer)
        partition.fail_over("Broker2")
        receipts = await asyncio.gather(*pushing)
        assert partition.values() == [b"first", *EIGHT]
        assert [receipt.offset for receipt in receipts] == list(range(1, 9))
        assert cluster.asked["ProGetBroker"] == 2
        assert cluster.asked["InitProducer"] == 1  # the same bytes, no new epoch

    producing(main, batch_bytes=512)


def test_a_follower_names_the_leader_and_the_producer_goes_there() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        first, second = cluster.topics["t"].values()
        await producer.push("t", b"where", partition="1")  # so that Broker1 is known
        first.leader, first.recorded = "Broker1", "Broker0"
        assert (await producer.push("t", b"x", partition="0")).offset == 0
        assert cluster.asked["ProGetBroker"] == 2
        assert second.values() == [b"where"]

    producing(main, partitions=2)


def test_two_brokers_that_name_each_other_do_not_keep_a_producer_running() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"x", partition="1")
        partition.leader, partition.recorded = "nobody", "Broker0"
        partition.misleading = {"Broker0": "Broker1", "Broker1": "Broker0"}
        pushing = asyncio.create_task(producer.push("t", b"y", partition="0"))
        await pause(cluster.clock, 3000)
        assert cluster.asked["InitProducer"] < 50
        partition.leader, partition.recorded = "Broker2", ""
        await pushing

    producing(main, partitions=2)


def test_a_dead_leader_is_replaced_by_the_one_that_the_controller_names() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        pushing = await eight_in_flight(cluster, producer)
        await cluster.stop("Broker0")
        partition.fail_over("Broker1")
        assert [receipt.offset for receipt in await asyncio.gather(*pushing)] == list(range(1, 9))
        assert partition.values() == [b"first", *EIGHT]

    producing(main, batch_bytes=512)


def test_a_leader_that_falls_silent_is_asked_for_again() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        cluster.network.freeze(CLIENT, "Broker0")
        pushing = in_flight(cluster, producer)
        await pause(cluster.clock, 1)
        partition.fail_over("Broker1")
        await asyncio.gather(*pushing)
        cluster.network.heal(CLIENT, "Broker0")  # what was held back arrives at a broker that leads no more
        await pause(cluster.clock, 20)
        assert partition.values() == [b"first", *EIGHT]

    producing(main, batch_bytes=512)


def test_a_lost_answer_is_asked_for_again_and_nothing_is_stored_twice() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.drop_replies = 5
        receipts = await asyncio.gather(*in_flight(cluster, producer))
        assert partition.values() == [b"first", *EIGHT]
        assert [receipt.offset for receipt in receipts] == list(range(1, 9))
        assert [receipt.duplicate for receipt in receipts] == [True] * 5 + [False] * 3

    producing(main, batch_bytes=512)


def test_a_connection_that_breaks_after_the_store_loses_and_doubles_nothing() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.drop_replies = 8
        pushing = in_flight(cluster, producer)
        await until(lambda: not partition.drop_replies, cluster.clock)
        cluster.network.cut(CLIENT, "Broker0")
        cluster.network.heal(CLIENT, "Broker0")
        receipts = await asyncio.gather(*pushing)
        assert partition.values() == [b"first", *EIGHT]
        assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(n, True) for n in range(1, 9)]

    producing(main, batch_bytes=512)


def test_answers_may_come_in_any_order() -> None:
    chance = random.Random(7)

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.answer_after_ms = lambda: chance.uniform(0, 200)
        values = [b"%04d" % n * 50 for n in range(200)]
        receipts = await asyncio.gather(*(producer.push("t", value) for value in values))
        assert partition.values() == values
        assert [receipt.offset for receipt in receipts] == list(range(200))

    producing(main, batch_bytes=1024)


def test_the_same_bytes_go_again_in_order_after_overloaded() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.refuse += [Overloaded("full"), NotReady("not yet")]
        await asyncio.gather(*in_flight(cluster, producer))
        assert partition.values() == [b"first", *EIGHT]
        assert cluster.asked["ProGetBroker"] == 1  # neither says that the route is wrong

    producing(main, batch_bytes=512)


def test_a_block_that_is_sealed_is_a_pause_and_no_error() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        pushing = []
        for roll in range(3):
            pushing += in_flight(cluster, producer)
            await until(lambda: partition.pushes, cluster.clock)
            partition.roll(f"Broker{roll % 2 + 1}")
        receipts = await asyncio.gather(*pushing)
        assert partition.values() == EIGHT * 3
        assert [receipt.offset for receipt in receipts] == list(range(24))
        assert [block.number for block in partition.sealed] == [1, 2, 3]

    producing(main, batch_bytes=512)


def test_a_timed_out_push_never_surfaces_later() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.stuck = stuck = []
        with pytest.raises(RequestTimeout, match="t/0"):
            await producer.push("t", b"given up")
        partition.stuck = None
        assert (await producer.push("t", b"next")).offset == 1
        for arrive in stuck:
            arrive()  # the copies that were on their way all the time
        assert (await producer.push("t", b"last")).offset == 2
        assert partition.values() == [b"first", b"next", b"last"]

    producing(main, timeout=1.0)


def test_a_push_that_was_given_up_is_fenced_off_even_if_no_other_follows() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.stuck = stuck = []
        with pytest.raises(RequestTimeout):
            await producer.push("t", b"given up")
        await until(lambda: cluster.asked["InitProducer"] == 2, cluster.clock)
        await pause(cluster.clock, 10)
        for arrive in stuck:
            arrive()
        assert partition.values() == [b"first"]

    producing(main, timeout=1.0)


def test_those_behind_a_push_that_timed_out_are_stored_in_order() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.stuck = stuck = []
        early = asyncio.create_task(producer.push("t", b"given up" * 80))
        await until(lambda: len(stuck) == 1, cluster.clock)
        await pause(cluster.clock, 600)
        later = in_flight(cluster, producer)
        await until(lambda: len(stuck) > 1, cluster.clock)
        await until(early.done, cluster.clock)
        assert isinstance(early.exception(), RequestTimeout)
        partition.stuck = None
        receipts = await asyncio.gather(*later)
        for arrive in stuck:
            arrive()
        assert partition.values() == [b"first", *EIGHT]
        assert [receipt.offset for receipt in receipts] == list(range(1, 9))

    producing(main, timeout=1.0, batch_bytes=512)


def test_a_push_without_any_leader_times_out_and_says_why() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.recorded = "Broker0"
        await cluster.stop("Broker0")
        with pytest.raises(RequestTimeout, match=r"t/0 .*not acknowledged within 1\.5 s; last: ConnectFailed"):
            await producer.push("t", b"x")

    producing(main, timeout=1.5)


def test_what_the_partition_has_is_not_sent_again_when_it_lost_track_of_the_number() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        """Half of what is in flight is stored and its answers are lost; then a batch is refused for good."""
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"first")
        partition.drop_replies = 4
        partition.refuse.clear()
        pushing = [asyncio.create_task(producer.push("t", value)) for value in EIGHT[:4]]
        await until(lambda: not partition.drop_replies, cluster.clock)
        partition.refuse.append(InvalidRequest("not this one"))
        pushing += [asyncio.create_task(producer.push("t", value)) for value in EIGHT[4:]]
        outcomes = await asyncio.gather(*pushing, return_exceptions=True)
        assert isinstance(outcomes[4], InvalidRequest)
        kept = [value for n, value in enumerate(EIGHT) if n != 4]
        assert partition.values() == [b"first", *kept]
        offsets = [each.offset for each in outcomes if isinstance(each, Receipt)]
        assert offsets == [1, 2, 3, 4, 5, 6, 7]
        assert partition.epochs == [1, 2]

    producing(main, batch_bytes=512)


def test_another_process_with_the_same_name_ends_this_one() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        first, second = cluster.topics["t"].values()
        await producer.push("t", b"0", partition="0")
        second.hold = True
        waiting = asyncio.create_task(producer.push("t", b"waits", partition="1"))
        await until(lambda: second.pushes, cluster.clock)
        first.init("p")
        with pytest.raises(ProducerFenced):
            await producer.push("t", b"zombie", partition="0")
        with pytest.raises(ProducerFenced):
            await waiting
        with pytest.raises(ProducerFenced):
            await producer.push("t", b"more", partition="1")
        with pytest.raises(ProducerFenced):
            producer.send("t", b"more", partition="0")
        assert first.values() == [b"0"]

    producing(main, partitions=2, name="p")


def test_a_zombie_that_asks_for_a_new_epoch_finds_out_that_it_is_one() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"mine")
        partition.stuck = []
        with pytest.raises(RequestTimeout):
            await producer.push("t", b"given up")
        cluster.silent.add("nothing")
        partition.stuck = None
        for _ in range(2):  # the other process came before our own InitProducer
            partition.init("p")
        with pytest.raises(ProducerFenced):
            for _ in range(3):
                await producer.push("t", b"zombie")
        assert partition.values() == [b"mine"]

    async def run(clock: ManualClock, network: MemoryNetwork) -> None:
        async with FakeCluster(clock, network) as cluster:
            cluster.create("t")
            surroundings = cluster.surroundings()
            async with AsyncProducer(cluster.bootstrap, name="p", timeout=1.0, surroundings=surroundings) as producer:
                await main(cluster, producer)

    virtually(run)


def test_a_zombie_whose_questions_were_lost_does_not_take_the_epoch_of_its_successor_for_its_own() -> None:
    """Chaos, embedded, raft, seed 5001: it fenced its successor, and took the successor's messages for its own."""

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"mine")

        class Refused(deque[ClymqError]):
            def popleft(self) -> ClymqError:
                error = super().popleft()
                if not self:
                    partition.init("p", Claim(life=9))  # the successor comes between two questions of the zombie
                return error

        lost = NotReady("nobody hears it")
        partition.refuse = Refused([OutOfSequence("who knows", expected=2), lost, lost, lost])
        with pytest.raises(ProducerFenced):
            await producer.push("t", b"zombie")
        assert partition.values() == [b"mine"]
        assert partition.epochs == [1, 2]

    producing(main, name="p")


def test_a_fenced_producer_asks_for_no_epoch_which_would_fence_its_successor() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"1")
        async with AsyncProducer(cluster.bootstrap, name="p", surroundings=cluster.surroundings()) as successor:
            await successor.push("t", b"2")
            pushing = [asyncio.create_task(producer.push("t", value)) for value in EIGHT]
            outcomes = await asyncio.gather(*pushing, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {ProducerFenced}
            await pause(cluster.clock, 5000)
            assert (await successor.push("t", b"3")).offset == 2
        assert cluster.topics["t"]["0"].epochs == [1, 2]

    producing(main, name="p", batch_bytes=512)


def test_a_restarted_producer_goes_on_after_the_last_number() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push_many("t", [b"1", b"2", b"3"])
        async with AsyncProducer(cluster.bootstrap, name="p", surroundings=cluster.surroundings()) as again:
            assert (await again.push("t", b"4")).offset == 3
            with pytest.raises(ProducerFenced):
                await producer.push("t", b"old process")
            assert (await again.push("t", b"5")).offset == 4
        assert cluster.topics["t"]["0"].values() == [b"1", b"2", b"3", b"4", b"5"]

    producing(main, name="p")


def test_an_unreplicated_tail_at_ack_1_is_counted_and_the_producer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        for n in range(5):
            await producer.push("t", b"%d" % n)
        partition.lose(2, "Broker1")  # acknowledged by a leader that is gone
        assert (await producer.push("t", b"5")).offset == 3
        assert (await producer.push("t", b"6")).offset == 4
        assert partition.values() == [b"0", b"1", b"2", b"5", b"6"]
        assert producer.lost_messages == 2
        assert "2 acknowledged messages are lost" in caplog.text

    producing(main, ack=Ack.LEADER)


def test_the_loss_of_what_a_majority_acknowledged_is_an_error() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        for n in range(5):
            await producer.push("t", b"%d" % n)
        partition.lose(2, "Broker1")
        with pytest.raises(DataLost) as lost:
            await producer.push("t", b"5")
        assert (lost.value.start, lost.value.end) == (3, 5)
        assert (await producer.push("t", b"6")).offset == 3

    producing(main)


def test_a_producer_that_was_dropped_for_idleness_goes_on() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        for _ in range(5):
            partition.init("restless")  # whoever comes back begins above all who were dropped
        await producer.push("t", b"1")
        assert isinstance(cluster.clock, ManualClock)
        cluster.clock.jump_wall(8 * 24 * 3600 * 1_000_000)
        for n in range(3):
            partition.init(f"other {n}")  # drops who was idle for long
        assert (await producer.push("t", b"2")).offset == 1
        assert partition.values() == [b"1", b"2"]

    producing(main)


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push_many("t", [b"old"] * 10)
        del cluster.topics["t"]
        partition = cluster.create("t")
        assert (await producer.push("t", b"new")).offset == 0
        assert partition.values() == [b"new"]
        assert producer.lost_messages == 0

    producing(main)


def test_what_was_in_flight_to_the_partition_of_old_is_not_taken_for_stored_in_the_new() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.push("t", b"old")
        cluster.topics["t"]["0"].stuck = []
        pushing = asyncio.create_task(producer.push("t", b"in flight"))
        await until(lambda: cluster.topics["t"]["0"].stuck, cluster.clock)
        del cluster.topics["t"]
        partition = cluster.create("t")
        async with AsyncProducer(cluster.bootstrap, name="p", surroundings=cluster.surroundings()) as other:
            await other.push_many("t", [b"of another life"] * 10)
        assert (await pushing).offset == 10
        assert partition.values()[-1] == b"in flight"

    producing(main, name="p")


def test_a_broker_that_has_not_heard_of_the_partition_yet_is_asked_again() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        uid, partition.uid = partition.uid, "not yet"
        route = cluster._producer_route

        def named_already(call: object) -> object:
            found = route(call)  # type: ignore[arg-type]
            return type(found)(uid, found.broker, found.address, found.ack)

        cluster._producer_route = named_already  # type: ignore[method-assign, assignment]
        await cluster.stop("Zk0")
        await cluster.start("Zk0")
        pushing = asyncio.create_task(producer.push("t", b"x", partition="0"))
        await until(lambda: cluster.asked["InitProducer"] >= 2, cluster.clock)
        partition.uid = uid
        assert (await pushing).offset == 0

    producing(main)


@pytest.mark.parametrize("refusal", [TooManyProducers("full"), PartitionUnset("state -2")])
def test_a_refusal_that_no_retry_helps_reaches_the_caller_at_once(refusal: ClymqError) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.refuse.append(refusal)
        began = cluster.clock.monotonic_ms()
        with pytest.raises(type(refusal)):
            await producer.push("t", b"x")
        assert cluster.clock.monotonic_ms() - began < 1000
        assert (await producer.push("t", b"y")).offset == 0

    producing(main)


def test_the_partition_s_own_ack_is_followed_when_it_changes() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"1")
        partition.ack = Ack.LEADER
        partition.refuse.append(AckMismatch("this is a fetch block now"))
        await producer.push("t", b"2")
        assert partition.values() == [b"1", b"2"]

    producing(main)


def test_an_ack_that_the_caller_insists_on_is_never_lowered() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.refuse.extend([NotReady("not yet")])
        await producer.push("t", b"1")
        partition.refuse.append(AckMismatch("this is a fetch block"))
        with pytest.raises(AckMismatch):
            await producer.push("t", b"2")
        assert partition.values() == [b"1"]

    producing(main, explicit_ack=Ack.QUORUM)


def test_pushes_go_on_while_no_controller_answers() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        await producer.push("t", b"1", partition="0")
        await producer.push("t", b"1", partition="1")
        await cluster.stop("Zk0")
        await producer.push("t", b"2", partition="0")
        cluster.network.cut(CLIENT, "Broker0")
        cluster.network.heal(CLIENT, "Broker0")  # the connection is gone, the leader is not
        await producer.push("t", b"3", partition="0")
        partition.fail_over("Broker1")
        await producer.push("t", b"4", partition="0")
        assert partition.values() == [b"1", b"2", b"3", b"4"]

    producing(main, partitions=2)


async def make_trouble(cluster: FakeCluster, partition: FakePartition, chance: random.Random) -> None:
    for _ in range(25):
        await pause(cluster.clock, chance.uniform(5, 150))
        match chance.randrange(6):
            case 0:
                partition.fail_over(chance.choice(cluster.brokers))
            case 1:
                partition.hold = True
            case 2:
                partition.commit()
            case 3:
                partition.drop_replies = chance.randrange(1, 9)
            case 4:
                partition.refuse.append(Overloaded("full"))
            case 5:
                partition.commit()
                partition.roll(chance.choice(cluster.brokers))
    partition.commit()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_message_is_stored_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.answer_after_ms = lambda: chance.uniform(0, 30)
        troubling = asyncio.create_task(make_trouble(cluster, partition, chance))
        pushing = []
        for n in range(300):
            pushing.append(asyncio.create_task(producer.push("t", b"%04d" % n * 40)))
            if chance.random() < 0.3:
                await pause(cluster.clock, 1)
        await troubling
        receipts = await asyncio.gather(*pushing)
        values = partition.values()
        assert values == [b"%04d" % n * 40 for n in range(300)]
        for n, receipt in enumerate(receipts):
            assert receipt.offset is None or values[receipt.offset] == b"%04d" % n * 40

    producing(main, batch_bytes=1024, timeout=60.0)
