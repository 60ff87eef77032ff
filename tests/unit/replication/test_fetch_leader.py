"""The leader of a fetch block: what it stores, when it answers, and when it must not."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from clymq.errors import (
    AckMismatch,
    BlockSealed,
    ClosedError,
    ClymqError,
    NotLeader,
    OutOfSequence,
    Overloaded,
    ProducerFenced,
    StaleEpoch,
    UnknownProducer,
)
from clymq.protocol.hosting import BlockClosed
from clymq.record import producer_id
from clymq.record.batch import Batch
from clymq.replication.entries import Genesis, Prepare, decode
from clymq.replication.fetch_log import control
from clymq.replication.machine import PartitionMachine
from clymq.replication.raft_partition import Stored
from fetch_hosts import CONFIG, EPOCH, LOG, Hosts, Producer, seal_of, values_of

COMMIT = msgspec.structs.replace(CONFIG, fsync="commit")
NEVER = msgspec.structs.replace(CONFIG, fsync="never")


def alone(hosts: Hosts) -> None:
    """Cut the leader off from its followers."""
    hosts.disconnect("a", "b")
    hosts.disconnect("a", "c")


def begun(hosts: Hosts) -> Producer:
    producer = hosts.producer()
    producer.begin()
    return producer


def batches(hosts: Hosts, name: str = "a") -> list[Batch]:
    data, found = hosts.log_of(name), []
    while data:
        found.append(Batch.parse(data))
        data = data[found[-1].length :]
    return found


# --- The block begins ---


def test_a_block_begins_with_genesis_and_the_leaders_own_entry_under_the_epoch() -> None:
    hosts = Hosts()
    first, second = batches(hosts)
    assert [type(decode(batch.payload())).__name__ for batch in (first, second)] == ["Genesis", "BeLeader"]
    assert (first.index, first.term, second.index, second.term) == (1, EPOCH, 2, EPOCH)
    (elected,) = hosts.owner("a").elected
    assert elected.replica == "a"
    assert not hosts.owner("b").elected


def test_a_leader_that_does_not_know_the_state_before_takes_nothing_until_it_does() -> None:
    hosts = Hosts(1)
    broker = hosts.brokers["a"]
    waiting: list[Any] = []
    hosts.group = dataclasses.replace(hosts.group, block=2)
    broker.open(hosts.group, waiting.append)
    with pytest.raises(ClymqError) as refused:
        broker.driver.init_producer(b"p" * 16, lambda _: None)
    assert refused.value.code == "NotReady"
    with pytest.raises(ClymqError) as refused:
        broker.driver.seal(EPOCH + 1, lambda _: None)
    assert refused.value.code == "NotReady"
    waiting[0](hosts.genesis)
    waiting[0](hosts.genesis)
    hosts.clock.advance(10)
    assert broker.driver.leads
    assert broker.driver.log.block.last_index == 2, "the second answer changes nothing"


# --- Ack 1 ---


def test_ack_1_is_answered_after_the_leaders_write_though_nobody_follows() -> None:
    hosts = Hosts()
    alone(hosts)
    producer = begun(hosts)
    producer.push(b"x", b"y")
    assert not producer.answers, "not before it is written"
    assert b"value" not in hosts.log_of("a")
    hosts.clock.advance(0)
    assert producer.answers == [Stored(0, duplicate=False)]
    assert values_of(hosts.driver("a").log.block) == [b"x", b"y"]


def test_readers_are_answered_before_the_producer() -> None:
    """As in a Raft block."""
    hosts = Hosts(1)
    producer, order = begun(hosts), list[str]()
    hosts.owner("a").advanced = lambda: order.append("reader")  # type: ignore[method-assign]
    hosts.driver("a").push([producer.batch()], 1, lambda _: order.append("producer"))
    hosts.clock.advance(0)
    assert order == ["reader", "producer"]


def test_pushes_of_one_turn_are_one_write() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    writes: list[str] = []
    hosts.disks["a"].on_operation = lambda operation, path: writes.append(operation) if path == LOG else None
    for _ in range(10):
        producer.push()
    hosts.clock.advance(0)
    assert writes == ["write"]
    assert [answer.base_offset for answer in producer.answers] == list(range(10))  # type: ignore[union-attr]


def test_with_fsync_commit_it_is_answered_when_it_is_on_the_disk() -> None:
    hosts = Hosts(config=COMMIT)
    producer = begun(hosts)
    hosts.disks["a"].sync_delay_ms = 100
    producer.push(b"x")
    hosts.clock.advance(99)
    assert not producer.answers
    hosts.clock.advance(2)
    assert producer.answers == [Stored(0, duplicate=False)]
    durable = hosts.disks["a"].crash(_Nothing())
    assert b"x" in durable.contents(LOG)


@pytest.mark.parametrize(("config", "synced_after_ms"), [(CONFIG, 1000), (NEVER, None)])
def test_otherwise_it_is_synced_within_the_interval_or_not_at_all(config: Any, synced_after_ms: int | None) -> None:
    hosts = Hosts(1, config=config)
    producer = begun(hosts)
    hosts.clock.advance(5000)  # a checkpoint syncs what it is about; after it the clock begins anew
    syncs: list[str] = []
    hosts.disks["a"].on_operation = lambda operation, path: syncs.append(path) if operation == "sync" else None
    hosts.driver("a").checkpoint = lambda: True  # type: ignore[method-assign]
    producer.push()
    hosts.clock.advance(990)
    assert LOG not in syncs
    hosts.clock.advance(5000)
    assert (LOG in syncs) == (synced_after_ms is not None)


class _Nothing:
    """A power cut that takes all that is not durable."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


# --- Ack 0 ---


def test_ack_0_is_answered_on_receipt_however_slow_the_storage_is() -> None:
    hosts = Hosts(config=COMMIT)
    producer = begun(hosts)
    hosts.disks["a"].sync_delay_ms = 500
    producer.push(b"x", ack=0)
    assert producer.answers == [Stored(-1, duplicate=False)]
    producer.push(b"y", ack=1)
    hosts.clock.advance(499)
    assert len(producer.answers) == 1
    hosts.clock.advance(600)
    assert producer.answers[1:] == [Stored(1, duplicate=False)]


def test_ack_minus_1_is_a_mismatch() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    with pytest.raises(AckMismatch):
        producer.push(ack=-1)


# --- The session ---


def test_a_leader_whose_session_is_not_confirmed_takes_and_acknowledges_nothing() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    hosts.brokers["a"].confirmed = False
    for ack in (0, 1):
        with pytest.raises(NotLeader):
            producer.push(ack=ack)
    with pytest.raises(NotLeader):
        producer.begin()
    hosts.brokers["a"].confirmed = True
    producer.push()
    hosts.clock.advance(1)
    assert producer.answers == [Stored(0, duplicate=False)]


@pytest.mark.parametrize("config", [CONFIG, COMMIT, NEVER])
def test_the_session_is_looked_at_after_the_write_and_before_the_acknowledgement(config: Any) -> None:
    """A leader that stood still between the two may have been replaced."""
    hosts = Hosts(config=config)
    producer = begun(hosts)
    disk = hosts.disks["a"]
    producer.push(b"x")
    last = "sync" if config.fsync == "commit" else "write"
    seen: list[str] = []

    def stand_still(operation: str, path: str) -> None:
        if (operation, path) == (last, LOG):
            seen.append(operation)
            hosts.brokers["a"].confirmed = False

    disk.on_operation = stand_still
    hosts.clock.advance(50)
    assert seen
    (answer,) = producer.answers
    assert isinstance(answer, NotLeader)
    assert answer.retriable
    hosts.brokers["a"].confirmed = True
    producer.cmdindex -= 1
    producer.push(b"x")
    hosts.clock.advance(50)
    assert producer.answers[1:] == [Stored(0, duplicate=True)], "written once, acknowledged when it may be"


def test_a_duplicate_is_not_acknowledged_without_the_session_either() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push()
    hosts.clock.advance(1)
    hosts.brokers["a"].confirmed = False
    producer.cmdindex = 1
    with pytest.raises(NotLeader):
        producer.push()


def test_a_lost_session_ends_the_leadership_for_good_and_asks_for_a_move_until_it_comes() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    hosts.brokers["a"].host.lose_session()
    (answer,) = producer.answers
    assert isinstance(answer, NotLeader)
    hosts.brokers["a"].confirmed = True  # of another session
    with pytest.raises(NotLeader):
        producer.push(b"y")
    assert not hosts.driver("a").log.machine.leading
    assert hosts.owner("a").moves == ["a has lost its session"]
    hosts.clock.advance(11_000)
    assert len(hosts.owner("a").moves) == 3
    assert isinstance(hosts.seal(), BlockClosed)
    hosts.clock.advance(11_000)
    assert len(hosts.owner("a").moves) == 3


def test_after_a_lost_session_followers_still_get_what_there_is() -> None:
    hosts = Hosts()
    alone(hosts)
    producer = begun(hosts)
    producer.push(b"x")
    hosts.clock.advance(5)
    hosts.brokers["a"].host.lose_session()
    hosts.cut.clear()
    hosts.clock.advance(20_000)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")
    assert hosts.driver("a").visible_end == 1


# --- De-duplication ---


def test_a_leader_that_retires_writes_what_has_arrived_and_is_covered_when_a_majority_has_it() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    alone(hosts)
    producer.push(b"1")
    producer.push(b"2", ack=0)
    hosts.brokers["a"].host.retire()
    assert [type(answer) for answer in producer.answers] == [Stored, Stored]
    assert batches(hosts)[-1].values() == [b"2"]
    with pytest.raises(NotLeader):
        producer.push(b"3")
    assert not hosts.brokers["a"].host.is_covered
    hosts.cut.clear()
    hosts.clock.advance(5_000)
    assert hosts.brokers["a"].host.is_covered
    assert hosts.log_of("b") == hosts.log_of("a")


def test_the_same_batch_twice_is_stored_once_and_answered_twice_with_its_offset() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    hosts.clock.advance(5)
    producer.cmdindex = 1
    producer.push(b"x")
    assert producer.answers == [Stored(0, duplicate=False), Stored(0, duplicate=True)]
    assert values_of(hosts.driver("a").log.block) == [b"x"]


@pytest.mark.parametrize("config", [CONFIG, COMMIT])
def test_a_duplicate_in_flight_waits_for_its_original(config: Any) -> None:
    hosts = Hosts(config=config)
    producer = begun(hosts)
    hosts.disks["a"].sync_delay_ms = 50
    producer.push(b"x")
    producer.cmdindex = 1
    producer.push(b"x")
    assert not producer.answers
    if config is COMMIT:
        hosts.clock.advance(30)
        producer.cmdindex = 2
        producer.push(b"y")  # what is written and not synced is in flight, whatever follows it
        producer.cmdindex = 1
        producer.push(b"x")
        assert not producer.answers
    hosts.clock.advance(200)
    first = [answer for answer in producer.answers if isinstance(answer, Stored) and answer.base_offset == 0]
    assert [answer.duplicate for answer in first] == [False, True, True][: 2 + (config is COMMIT)]
    assert values_of(hosts.driver("a").log.block).count(b"x") == 1


def run_of(producer: Producer, *ahead: int) -> list[Batch]:
    """Batches of one message each, so many numbers ahead."""
    return [producer.batch(cmdindex=producer.cmdindex + at) for at in ahead]


@pytest.mark.parametrize("config", [CONFIG, COMMIT])
def test_batches_that_come_together_are_answered_together(config: Any) -> None:
    hosts = Hosts(config=config)
    producer, answers = begun(hosts), []
    hosts.driver("a").push(run_of(producer, 0, 1, 2), 1, answers.append)
    assert not answers
    hosts.driver("a").push(run_of(producer, 1, 2, 3), 1, answers.append)
    hosts.clock.advance(100)
    assert answers == [
        [Stored(at, duplicate=False) for at in range(3)],
        [Stored(1, duplicate=True), Stored(2, duplicate=True), Stored(3, duplicate=False)],
    ]


def test_batches_that_come_together_at_ack_0_are_answered_on_receipt() -> None:
    hosts = Hosts()
    producer, answers = begun(hosts), []
    hosts.driver("a").push(run_of(producer, 0, 1), 0, answers.append)
    assert answers == [[Stored(-1, duplicate=False)] * 2]
    hosts.clock.advance(100)
    assert len(values_of(hosts.driver("a").log.block)) == 2


def test_those_before_one_that_is_refused_are_written_all_the_same() -> None:
    hosts = Hosts()
    producer, answers = begun(hosts), []
    with pytest.raises(OutOfSequence):
        hosts.driver("a").push(run_of(producer, 0, 1, 3), 1, answers.append)
    hosts.clock.advance(100)
    assert not answers
    assert len(values_of(hosts.driver("a").log.block)) == 2


def test_gaps_unknown_and_fenced_producers_are_refused_and_nothing_is_stored() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    before = hosts.log_of("a")
    producer.cmdindex = 3
    with pytest.raises(OutOfSequence):
        producer.push()
    with pytest.raises(UnknownProducer):
        hosts.producer("q").push()
    other = hosts.producer("p")
    other.begin()
    producer.cmdindex = 1
    with pytest.raises(ProducerFenced):
        producer.push()
    hosts.clock.advance(10)
    assert hosts.log_of("a").startswith(before)
    assert not any(batch.count for batch in batches(hosts))


def test_a_restarted_producer_goes_on_and_learns_where_its_last_batches_are() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x", b"y")
    hosts.clock.advance(5)
    answer = hosts.producer("p").begin()
    assert (answer.epoch, answer.next, answer.kept[0].base_offset) == (2, 3, 0)


def test_the_next_block_knows_what_this_one_stored() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    hosts.clock.advance(5)
    assert isinstance(hosts.seal(), BlockClosed)
    seal = seal_of(hosts.driver("a").log.block)
    machine = PartitionMachine()
    genesis = control(Genesis(uid=b"u" * 16, snapshot=seal.snapshot))
    genesis.stamp(base_offset=1, term=2, index=1, append_time=1, commit_index=0)
    machine.apply(1, genesis)
    state = machine.producer(producer_id("p"))
    assert state is not None
    assert (state.last, state.kept[0].base_offset) == (1, 0)


# --- Control entries ---


def test_a_control_entry_is_answered_when_the_leader_has_it_or_when_a_majority_does() -> None:
    hosts = Hosts()
    hosts.clock.advance(10)
    alone(hosts)
    answers: list[tuple[str, object]] = []
    hosts.driver("a").write(Prepare(group="g", offset=0), lambda answer: answers.append(("held", answer)))
    hosts.driver("a").write(
        Prepare(group="h", offset=0), lambda answer: answers.append(("visible", answer)), visible=True
    )
    hosts.clock.advance(100)
    assert [name for name, _ in answers] == ["held"]
    hosts.cut.clear()
    hosts.clock.advance(20_000)
    assert answers == [("held", None), ("visible", None)]


def test_a_group_of_one_needs_nobody() -> None:
    hosts = Hosts(1)
    producer = begun(hosts)
    answers: list[object] = []
    hosts.driver("a").write(Prepare(group="h", offset=0), answers.append, visible=True)
    producer.push(b"x")
    hosts.clock.advance(5)
    assert answers == [None]
    assert hosts.driver("a").visible_end == 1


# --- Bounds and disks ---


def test_what_waits_for_the_disk_is_bounded() -> None:
    hosts = Hosts(config=msgspec.structs.replace(COMMIT, uncommitted_bytes_max=10_000))
    producer = begun(hosts)
    hosts.disks["a"].sync_delay_ms = 10_000
    with pytest.raises(Overloaded):
        for _ in range(100):
            producer.push(b"x" * 1000)
    hosts.clock.advance(30_000)
    assert len(producer.answers) < 15
    producer.push(b"again")


def test_much_in_one_turn_is_written_before_it_ends() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    for _ in range(3):
        producer.push(b"x" * 600_000)
    assert hosts.driver("a").log.block.end_offset == 2
    assert len(producer.answers) == 2


def test_a_full_disk_ends_the_leadership_and_what_is_there_is_still_served_and_sealed() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    hosts.clock.advance(20)
    hosts.disks["a"].fail("write", path=LOG, full=True)
    producer.push(b"lost")
    hosts.clock.advance(5)
    assert isinstance(producer.answers[-1], NotLeader)
    assert [type(error).__name__ for error in hosts.owner("a").downs] == ["DiskFull"]
    with pytest.raises(NotLeader):
        producer.push(b"y")
    assert bytes(hosts.driver("a").read(0, 1000))
    closed = hosts.seal()
    assert isinstance(closed, BlockClosed)
    assert closed.end == 1
    hosts.clock.advance(50)
    assert hosts.log_of("b") == hosts.log_of("a")
    hosts.clock.advance(6_000)
    assert len(hosts.owner("a").downs) == 2, "said again"


@pytest.mark.parametrize("config", [CONFIG, COMMIT])
def test_a_failed_sync_ends_the_leadership_and_nothing_is_sealed_by_it(config: Any) -> None:
    hosts = Hosts(config=config)
    producer = begun(hosts)
    hosts.disks["a"].fail("sync", path=LOG)
    producer.push(b"x")
    hosts.clock.advance(1100)
    assert len(hosts.owner("a").downs) == 1
    assert isinstance(producer.answers[0], NotLeader if config is COMMIT else Stored)
    with pytest.raises(NotLeader):
        producer.push(b"y")
    assert isinstance(hosts.seal(), ClymqError)
    assert isinstance(hosts.fence("a"), ClymqError)


def test_damage_that_a_reader_meets_is_never_delivered_and_ends_the_leadership() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x" * 500)
    hosts.clock.advance(50)
    hosts.disks["a"].flip(LOG, hosts.driver("a").log.block.end_position - 100, 3)
    with pytest.raises(NotLeader):
        hosts.driver("a").read(0, 1000)
    assert len(hosts.owner("a").downs) == 1
    assert not hosts.driver("a").leads


# --- Sealing ---


def test_a_planned_seal_takes_what_was_pushed_and_nothing_more() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    answers: list[Any] = []
    hosts.driver("a").seal(EPOCH + 1, answers.append, [b"lease"])
    with pytest.raises(BlockSealed):
        producer.push(b"y")
    hosts.clock.advance(50)
    assert producer.answers == [Stored(0, duplicate=False)]
    block = hosts.driver("a").log.block
    (closed,) = answers
    assert closed == BlockClosed(
        start=0,
        end=1,
        seal_index=block.last_index,
        seal_crc=next(block.headers(block.last_index))[1].header_crc,
        bytes=block.end_position,
        last_append_time=block.last_append_time,
        last_index=block.last_index,
    )
    assert seal_of(block).leases == (b"lease",)
    assert hosts.seal() == closed, "a second call answers the same"
    assert hosts.seal("b") == closed, "so does a follower that has it"
    assert hosts.driver("a").visible_end == 1


@pytest.mark.parametrize("config", [CONFIG, COMMIT, NEVER])
def test_a_seal_is_answered_when_it_is_on_the_disk(config: Any) -> None:
    hosts = Hosts(config=config)
    producer = begun(hosts)
    hosts.disks["a"].sync_delay_ms = 100
    producer.push(b"x")
    answers: list[Any] = []
    hosts.driver("a").seal(EPOCH + 1, answers.append)
    hosts.driver("a").seal(EPOCH + 1, answers.append)
    hosts.clock.advance(99)
    assert not answers
    hosts.clock.advance(200)
    first, second = answers
    assert first == second
    assert producer.answers == [Stored(0, duplicate=False)]
    assert hosts.disks["a"].crash(_Nothing()).contents(LOG) == hosts.log_of("a")


def test_a_seal_of_a_lower_epoch_or_at_a_follower_is_refused() -> None:
    hosts = Hosts()
    assert isinstance(hosts.seal(epoch=EPOCH), StaleEpoch)
    assert isinstance(hosts.seal("b"), NotLeader)


def test_a_seal_that_finds_no_disk_says_so() -> None:
    hosts = Hosts()
    begun(hosts)
    hosts.disks["a"].fail("write", path=LOG)
    assert isinstance(hosts.seal(), ClymqError)
    assert hosts.owner("a").downs


def test_closing_tells_whoever_waits() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    producer.push(b"x")
    hosts.brokers["a"].host.close()
    (answer,) = producer.answers
    assert isinstance(answer, ClosedError)
    hosts.clock.advance(1000)
    assert not hosts.brokers["a"].host.groups


def test_a_follower_refuses_pushes_and_says_who_leads() -> None:
    hosts = Hosts()
    producer = begun(hosts)
    with pytest.raises(NotLeader) as refused:
        producer.push(broker="b")
    assert refused.value.hint == "a"
    with pytest.raises(NotLeader):
        hosts.driver("b").read(0, 100)
