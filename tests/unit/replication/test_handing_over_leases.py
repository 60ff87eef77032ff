"""What is leased goes along when a leader gives way, in the log, before anybody else can lead."""

from __future__ import annotations

import pytest

from clymq.errors import BlockSealed, NotLeader, NotReady
from clymq.record.batch import Batch
from clymq.replication.entries import Seal, decode
from clymq.replication.machine import Elected
from clymq.replication.raft_partition import HAND_OVER_MS_MAX, RaftPartition
from raft_hosts import Broker, Hosts


class Begun:
    """A group whose leaders say what they begin with."""

    def __init__(self) -> None:
        self.hosts = Hosts()
        self.elected: list[Elected] = []
        for broker in self.hosts.brokers.values():
            broker.partitions["g"].on_leases = self.elected.append
        self.leader = self.hosts.leader()
        self.other = next(broker for broker in self.hosts.brokers.values() if broker is not self.leader)

    def led_by(self, broker: Broker) -> RaftPartition:
        return broker.partitions["g"]


def test_the_next_leader_is_given_the_leases_of_the_one_that_gives_way() -> None:
    group = Begun()
    group.led_by(group.leader).leases = lambda: (b"one", b"two")
    group.leader.host.groups["g"].transfer(group.other.name)
    with pytest.raises((NotReady, NotLeader)):
        group.led_by(group.leader).check_sharing()
    group.hosts.clock.advance(500)
    assert group.hosts.leader() is group.other
    assert [elected.leases for elected in group.elected] == [(), (b"one", b"two")]
    group.led_by(group.other).check_sharing()


def test_a_leader_that_nobody_relieves_goes_on_and_what_it_handed_over_is_void() -> None:
    group = Begun()
    partition = group.led_by(group.leader)
    partition.leases = lambda: (b"one",)
    silent = group.other.name
    group.hosts.cut.add(silent)
    group.leader.host.groups["g"].transfer(silent)
    with pytest.raises(NotReady):
        partition.check_sharing()
    group.hosts.clock.advance(2 * HAND_OVER_MS_MAX)
    assert group.hosts.leader() is group.leader
    partition.check_sharing()
    group.hosts.cut.clear()
    group.hosts.clock.advance(1_000)
    group.hosts.kill(group.leader.name)
    group.hosts.clock.advance(3_000)
    group.hosts.leader()
    assert group.elected[-1].leases == ()


def test_nothing_is_written_where_nothing_is_leased() -> None:
    group = Begun()
    before = group.leader.host.groups["g"].node.log.last_index
    group.leader.host.groups["g"].transfer(group.other.name)
    group.hosts.clock.advance(500)
    log = group.hosts.leader().host.groups["g"].node.log
    assert log.last_index == before + 1, "the BeLeader of the next one"


def test_a_seal_carries_what_is_leased_when_it_is_written() -> None:
    group = Begun()
    partition = group.led_by(group.leader)
    leases: list[bytes] = [b"one"]
    partition.leases = lambda: leases
    answers: list[object] = []
    partition.seal(answers.append)
    with pytest.raises(BlockSealed):
        partition.check_sharing()
    group.hosts.clock.advance(500)
    assert len(answers) == 1
    block = group.leader.host.groups["g"].replica.block
    seal = decode(Batch.parse(block.read_at(block.position_of(block.last_index), 1, block.end_position)).payload())
    assert isinstance(seal, Seal)
    assert seal.leases == (b"one",)
    with pytest.raises(BlockSealed):
        partition.check_sharing()
