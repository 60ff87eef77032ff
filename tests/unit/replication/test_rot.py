"""Rot is found where recovery does not look, never handed to a reader, and mended though nobody pushes."""

from __future__ import annotations

from typing import Any

import pytest

from clymq.errors import NotLeader
from clymq.replication.raft_partition import Stored
from clymq.replication.replica import TAIL_BYTES
from raft_hosts import Broker, Hosts

LOG = "/data/g/Block_1/batches"
CHECKPOINT_MS = 2000


def rested(count: int, value: bytes = b"value") -> tuple[Hosts, Broker, Broker]:
    """Return hosts at rest, with checkpoints at the ends of their logs; the leader and a follower."""
    hosts = Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    for _ in range(count):
        producer.push(leader, value)
        hosts.clock.advance(20)
    hosts.clock.advance(CHECKPOINT_MS)
    follower = next(broker for broker in hosts.brokers.values() if broker is not leader)
    block = hosts.driver(follower.name).replica.block
    assert block.checkpoint.index == block.last_index
    return hosts, leader, follower


def length_of(hosts: Hosts, name: str) -> int:
    return len(hosts.disks[name].contents(LOG))


@pytest.mark.parametrize("from_the_end", [3, 100, 250])
def test_rot_in_the_last_batch_is_found_at_a_restart_though_the_checkpoint_lies_behind_it(from_the_end: int) -> None:
    """The last bytes of the body, and its beginning, and the header."""
    hosts, leader, follower = rested(5)
    hosts.kill(follower.name)
    hosts.disks[follower.name].flip(LOG, length_of(hosts, follower.name) - from_the_end, 3)
    hosts.start(follower.name)
    assert hosts.driver(follower.name).node.lame
    hosts.clock.advance(CHECKPOINT_MS)
    assert not hosts.driver(follower.name).node.lame
    assert hosts.disks[follower.name].contents(LOG) == hosts.disks[leader.name].contents(LOG)


def test_rot_in_what_was_acknowledged_and_never_heard_to_be_committed_is_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader has counted on it, and is gone; one that took the rot for a torn write would elect without it."""
    hosts, leader, follower = rested(5)
    (other,) = (broker for broker in hosts.brokers.values() if broker not in {leader, follower})
    hosts.cut.add(other.name)
    producer, carry = hosts.producer(name="q"), hosts.carry
    producer.begin()
    producer.push(leader)
    hosts.clock.advance(0)  # it is on its way to the follower, and nothing else will be

    def one_way(sender: str, receiver: str, deliver: Any) -> None:
        if (sender, receiver) != (leader.name, follower.name):
            carry(sender, receiver, deliver)

    monkeypatch.setattr(hosts, "carry", one_way)
    hosts.clock.advance(CHECKPOINT_MS)
    assert [type(answer) for answer in producer.answers] == [Stored]
    block = hosts.driver(follower.name).replica.block
    assert block.commit_index < block.last_index
    hosts.kill(leader.name)
    hosts.kill(follower.name)
    hosts.disks[follower.name].flip(LOG, length_of(hosts, follower.name) - 3, 3)
    monkeypatch.undo()
    hosts.cut.clear()
    hosts.start(follower.name)
    assert hosts.driver(follower.name).node.lame
    with pytest.raises(AssertionError, match="no leader"):
        hosts.leader()
    hosts.start(leader.name)
    assert hosts.leader() is not follower
    hosts.clock.advance(CHECKPOINT_MS)
    assert not hosts.driver(follower.name).node.lame
    assert len({hosts.disks[name].contents(LOG) for name in "abc"}) == 1


def test_a_restart_reads_the_end_of_the_log_and_not_the_whole_of_it() -> None:
    hosts, _, follower = rested(40, b"v" * 10_000)
    hosts.kill(follower.name)
    assert length_of(hosts, follower.name) > 4 * TAIL_BYTES
    hosts.disks[follower.name].flip(LOG, length_of(hosts, follower.name) // 2, 3)
    hosts.start(follower.name)
    assert not hosts.driver(follower.name).node.lame


def test_rot_is_never_handed_to_a_reader_and_another_replica_leads() -> None:
    hosts, leader, _ = rested(5)
    driver = hosts.driver(leader.name)
    assert len(driver.read(0, 1 << 20)) > 0
    hosts.disks[leader.name].flip(LOG, length_of(hosts, leader.name) - 3, 3)
    with pytest.raises(NotLeader, match="lost part"):
        driver.read(0, 1 << 20)
    assert driver.node.lame
    assert hosts.leader() is not leader
    hosts.clock.advance(CHECKPOINT_MS)
    assert not driver.node.lame
    assert len({hosts.disks[name].contents(LOG) for name in "abc"}) == 1


@pytest.mark.parametrize("reached", [True, False])
def test_a_lame_replica_that_a_sleeping_leader_could_not_reach_is_mended_when_it_can(
    monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """It is heard before it can be spoken to: its own way to the leader was open first."""
    hosts, leader, follower = rested(5)
    hosts.kill(follower.name)
    hosts.clock.advance(CHECKPOINT_MS)
    hosts.disks[follower.name].flip(LOG, length_of(hosts, follower.name) - 3, 3)
    carry = hosts.carry

    def one_way(sender: str, receiver: str, deliver: Any) -> None:
        if (sender, receiver) != (leader.name, follower.name):
            carry(sender, receiver, deliver)

    monkeypatch.setattr(hosts, "carry", one_way)
    hosts.start(follower.name)
    hosts.clock.advance(CHECKPOINT_MS)
    assert hosts.driver(follower.name).node.lame
    monkeypatch.setattr(hosts, "carry", carry)
    if reached:
        leader.host.reached(follower.name)
    hosts.clock.advance(CHECKPOINT_MS)
    assert not hosts.driver(follower.name).node.lame
    assert hosts.disks[follower.name].contents(LOG) == hosts.disks[leader.name].contents(LOG)
    assert hosts.driver(leader.name).node.asleep
