"""A process that stood still, and what is told before a block ends."""

from __future__ import annotations

import pytest

from clymq.errors import CorruptBatch, NotLeader
from clymq.raft.groups import PairHeartbeat
from clymq.replication.entries import EndedLease, Range, Timeout
from raft_hosts import Hosts


@pytest.mark.parametrize("asleep", [False, True])
def test_a_leader_that_stood_still_is_none_though_it_reads_old_heartbeats_first(asleep: bool) -> None:
    """DESIGN 5: it steps down BEFORE it answers anything. What its sockets hold was said while it still led."""
    hosts = Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    said = {}
    for name in set("abc") - {leader.name}:
        host = hosts.brokers[name].host
        said[name] = PairHeartbeat(name, host._coalescer._incarnation, ())
    if asleep:
        hosts.clock.advance(3_000)
    else:
        producer.push(leader)
        hosts.clock.advance(5)
    driver = hosts.driver(leader.name)
    assert driver.node.asleep == asleep
    hosts.cut.add(leader.name)
    leader.host._let_time_pass = lambda: None  # type: ignore[method-assign]
    hosts.clock.advance(900)
    assert hosts.leader() is not leader
    for beat in said.values():
        leader.host.receive_beat(beat)
    with pytest.raises(NotLeader):
        driver.check_leading()


def test_who_waits_is_told_before_a_seal_writes_down_what_is_leased() -> None:
    """What a message given back has to wait, for instance, is known when the entry that gives it back is answered."""
    hosts = Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    partition, order = leader.partitions["g"], list[str]()

    def leases() -> tuple[bytes, ...]:
        order.append("leases are written down")
        return ()

    partition.leases = leases
    partition.write(Timeout(ended=(EndedLease("group", Range(0, 1)),)), lambda _: order.append("told"))
    partition.seal(lambda _: order.append("sealed"))
    hosts.clock.advance(100)
    assert order == ["told", "leases are written down", "sealed"]


@pytest.mark.parametrize("what", ["close", "damage"])
def test_a_reader_that_ends_the_group_leaves_no_push_without_an_answer(what: str) -> None:
    hosts = Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    driver, partition = hosts.driver(leader.name), leader.partitions["g"]

    def advanced() -> None:
        if what == "close":
            driver.close()
        elif driver.stopped is None and driver._led is not None:
            driver.damaged(CorruptBatch("crc", "read"))

    partition.on_advance = advanced
    for _ in range(5):
        producer.push(leader)
    hosts.clock.advance(1_000)
    assert len(producer.answers) == 5
