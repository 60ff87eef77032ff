"""Restarts, checkpoints and the comings and goings of fetch blocks on one broker."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from clymq.config import load
from clymq.errors import ConfigError, InvalidRequest, NotLeader, ReplicaLost
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.replication.fetch_host import REMIND_MS, REST_MS, TICK_MS
from clymq.replication.machine import PartitionMachine
from fetch_hosts import CONFIG, LOG, Hosts, Producer, values_of

WAIT_MS = CONFIG.fetch_wait_ms_max
COMMIT = msgspec.structs.replace(CONFIG, fsync="commit")


def pushed(hosts: Hosts, count: int, *, pause_ms: int = 5) -> Producer:
    producer = hosts.producer()
    producer.begin()
    for n in range(count):
        producer.push(b"p-%d" % n)
        hosts.clock.advance(pause_ms)
    hosts.clock.advance(20)
    return producer


# --- Restarts ---


def test_a_restarted_follower_goes_on_where_it_was() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 10)
    state = hosts.driver("b").log.machine.checkpoint()
    back = hosts.restart("b")
    assert back.driver.log.machine.checkpoint() == state
    producer.push(b"more")
    hosts.clock.advance(100)
    assert back.asked[0].index == 13
    assert hosts.log_of("b") == hosts.log_of("a")


@pytest.mark.parametrize("seed", range(10))
def test_a_follower_that_lost_power_pulls_again_what_was_torn(seed: int) -> None:
    hosts = Hosts(seed=seed)
    producer = pushed(hosts, 10)
    hosts.restart("b", power=True)
    assert hosts.log_of("a").startswith(hosts.log_of("b"))
    producer.push(b"more")
    hosts.clock.advance(1000)
    assert hosts.log_of("b") == hosts.log_of("a")
    assert hosts.driver("b").log.machine.checkpoint() == hosts.driver("a").log.machine.checkpoint()


def test_a_follower_that_lost_what_readers_saw_is_mended_by_pulling_again() -> None:
    hosts = Hosts()
    pushed(hosts, 10)
    hosts.clock.advance(2000)
    hosts.kill("b")
    hosts.disks["b"].flip(LOG, len(hosts.log_of("b")) - 900, 3)
    hosts.start("b")
    assert hosts.driver("b").log.replica.missing_through > hosts.driver("b").log.block.last_index
    hosts.clock.advance(3000)
    assert not hosts.driver("b").log.replica.missing_through
    assert not hosts.owner("b").downs, "what the checkpoint's state has taken is not taken twice"
    assert hosts.log_of("b") == hosts.log_of("a")
    hosts.restart("b")
    assert not hosts.driver("b").log.replica.missing_through


def test_a_restarted_leader_serves_what_it_has_takes_nothing_and_asks_for_a_move() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 5)
    hosts.disconnect("a", "b")
    producer.push(b"unpulled by b")
    hosts.clock.advance(20)
    hosts.restart("a")
    hosts.cut.clear()
    with pytest.raises(NotLeader):
        producer.push(b"no more")
    with pytest.raises(NotLeader):
        hosts.driver("a").init_producer(b"q" * 16, lambda _: None)
    assert hosts.owner("a").moves == ["a has begun anew"]
    hosts.clock.advance(2 * WAIT_MS)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")
    assert hosts.driver("a").visible_end == 6
    assert Batch.parse(hosts.driver("a").read(0, 100)).values() == [b"p-0"]
    assert isinstance(hosts.seal(), NotLeader), "it may have less than they: a fence finds out who has most"
    closed = hosts.fail_over("a", "b")
    assert closed.end == 6


def test_a_leader_that_lost_power_may_have_less_than_its_followers_and_cuts_none_of_them() -> None:
    hosts = Hosts()
    hosts.clock.advance(3000)
    pushed(hosts, 10)
    full = hosts.log_of("b")
    hosts.kill("a")
    hosts.disks["a"] = hosts.disks["a"].crash(_Nothing())
    # The cache is gone with everything since the last sync.
    hosts.start("a")
    hosts.clock.advance(20_000)
    assert hosts.log_of("b") == hosts.log_of("c") == full
    closed = hosts.fail_over("a", "b", "c")
    assert closed.end == 10
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")


class _Nothing:
    """A power cut that takes all that is not durable."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


def test_an_empty_log_in_another_life_is_not_led_either() -> None:
    hosts = Hosts()
    hosts.group = dataclasses.replace(hosts.group, block=2, leader_incarnation=12345)
    broker = hosts.brokers["a"]
    driver = broker.open(hosts.group, lambda done: done(hosts.genesis))
    assert not driver.leads
    assert driver.log.block.last_index == 0
    assert broker.owner.moves == ["a has begun anew"]


def test_a_leader_that_is_hosted_again_in_the_same_life_does_not_lead_again() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    broker = hosts.brokers["a"]
    broker.host.remove(hosts.group.name)
    hosts.clock.advance(100)
    driver = broker.open(hosts.group, lambda done: done(hosts.genesis))
    assert not driver.leads
    assert broker.owner.moves == ["a has begun anew"]
    assert values_of(driver.log.block) == [b"p-0"]


def test_a_sealed_block_is_opened_again_as_what_it_is() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    closed = hosts.seal()
    hosts.clock.advance(100)
    for name in "abc":
        hosts.restart(name)
    hosts.clock.advance(100)
    assert [hosts.seal(name) for name in "abc"] == [closed] * 3
    assert not hosts.owner("a").moves


def test_a_disk_that_has_lost_its_replica_stays_out() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.kill("b")
    for name in hosts.disks["b"].names("/data/g/Block_1"):
        hosts.disks["b"].remove(f"/data/g/Block_1/{name}")
    with pytest.raises(ReplicaLost):
        hosts.start("b")


# --- Checkpoints ---


def test_a_checkpoint_follows_when_a_block_rests_and_a_restart_begins_there() -> None:
    hosts = Hosts()
    pushed(hosts, 20)
    hosts.clock.advance(REST_MS + 4 * TICK_MS + 1000)
    for name in "abc":
        block = hosts.driver(name).log.block
        assert block.checkpoint.index == block.last_index == block.checkpoint.commit_index
        read = hosts.restart(name, power=True).files.bytes_read
        assert hosts.driver(name).log.machine.applied == block.last_index
        assert read < 20_000
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")


@pytest.mark.parametrize("config", [CONFIG, COMMIT, msgspec.structs.replace(CONFIG, fsync="never")])
def test_a_block_that_never_rests_gets_checkpoints_too(config: object) -> None:
    hosts = Hosts(config=msgspec.structs.replace(config, checkpoint_ms_max=2000))
    pushed(hosts, 500, pause_ms=20)
    for name in "abc":
        checkpoint = hosts.driver(name).log.block.checkpoint
        assert checkpoint.index > 200
        machine = PartitionMachine()
        machine.restore(checkpoint.state)
        assert machine.applied == checkpoint.index


def test_a_checkpoint_is_never_above_what_is_visible_and_synced() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 3)
    hosts.clock.advance(3000)
    before = hosts.driver("a").log.block.checkpoint
    hosts.disconnect("a", "b")
    hosts.disconnect("a", "c")
    for _ in range(10):
        producer.push(b"unseen")
        hosts.clock.advance(2000)
    assert hosts.driver("a").log.block.checkpoint == before
    hosts.cut.clear()
    hosts.clock.advance(WAIT_MS + 10_000)
    block = hosts.driver("a").log.block
    assert block.checkpoint.index == block.last_index


def test_a_checkpoint_that_finds_no_room_is_tried_again() -> None:
    hosts = Hosts()
    hosts.disks["a"].fail("write", path="*/checkpoint.new", full=True)
    pushed(hosts, 3)
    hosts.clock.advance(5000)
    block = hosts.driver("a").log.block
    assert not hosts.owner("a").downs
    assert block.checkpoint.index == block.last_index


def test_a_checkpoint_that_fails_takes_the_replica_down() -> None:
    hosts = Hosts()
    hosts.disks["a"].fail("write", path="*/checkpoint.new")
    producer = pushed(hosts, 3)
    hosts.clock.advance(5000)
    assert hosts.owner("a").downs
    with pytest.raises(NotLeader):
        producer.push()


def test_an_idle_block_writes_nothing() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    hosts.clock.advance(5000)
    operations: list[str] = []
    for name in "abc":
        hosts.disks[name].on_operation = lambda operation, path: operations.append(f"{operation} {path}")
    hosts.clock.advance(60_000)
    assert operations == []


# --- Hosting ---


def test_a_block_is_hosted_once_and_removed_without_a_trace() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    broker = hosts.brokers["b"]
    with pytest.raises(InvalidRequest):
        broker.open(hosts.group, lambda done: done(hosts.genesis))
    broker.host.remove(hosts.group.name)
    broker.host.remove(hosts.group.name)
    hosts.clock.advance(20_000)
    assert not broker.host.groups
    assert not broker.host._unsaved


def test_pauses_that_would_shrink_are_refused() -> None:
    with pytest.raises(ConfigError, match="fetch_retry_ms_max"):
        load(flags={"fetch_retry_ms_min": 2000})


def test_what_is_closed_in_good_order_is_on_the_disk() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    for broker in hosts.brokers.values():
        broker.host.close()
    hosts.clock.advance(100)
    assert all(hosts.disks[name].crash(_Nothing()).contents(LOG) == hosts.log_of("a") for name in "abc")


def test_many_blocks_share_a_host() -> None:
    hosts = Hosts(1)
    broker = hosts.brokers["a"]
    for number in range(2, 40):
        hosts.group = dataclasses.replace(hosts.group, block=number)
        broker.open(hosts.group, lambda done: done(hosts.genesis))
    for driver in broker.host.groups.values():
        driver.init_producer(b"p" * 16, lambda _: None)
    hosts.clock.advance(5000)
    assert all(driver.log.block.checkpoint.index == 3 for driver in broker.host.groups.values())
    answers: list[object] = []
    broker.driver.seal(9, answers.append)
    hosts.clock.advance(10)
    assert isinstance(answers[0], BlockClosed)


def test_a_block_that_does_not_understand_itself_stops_and_takes_nobody_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One clock lets all blocks of a process write and save their states: it must not stop for one of them."""
    hosts = Hosts()
    pushed(hosts, 3)
    driver = hosts.driver("a")

    def astray() -> bool:
        raise AssertionError("a state that cannot be")

    monkeypatch.setattr(driver.log, "checkpoint", astray)
    pushed_on = hosts.producer("q")
    pushed_on.begin()
    hosts.clock.advance(REST_MS + 2 * TICK_MS)
    assert isinstance(driver.down, ReplicaLost)
    assert [type(error) for error in hosts.owner("a").downs] == [ReplicaLost]
    hosts.clock.advance(2 * REMIND_MS)
    assert len(hosts.owner("a").downs) > 1  # it still ticks
