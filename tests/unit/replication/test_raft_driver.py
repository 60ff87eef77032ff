"""The driver does what the core says, in the order that durability needs, and survives its disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from clymq.errors import ClymqError, DiskFull, NotLeader, NotReady, OutOfSequence, Overloaded, ReplicaLost
from clymq.raft.messages import Append, AppendResponse, RequestVote, TimeoutNow, VoteResponse
from clymq.record.batch import Batch
from clymq.replication.raft_driver import FULL_DISK_MS
from clymq.replication.raft_partition import Stored
from clymq.storage.vote import Vote, VoteFile
from raft_hosts import CONFIG, Broker, Hosts

LOG = "/data/g/Block_1/batches"
VOTE = "/data/g/Block_1/vote"
SLOW_MS = 10_000


def others(hosts: Hosts, leader: Broker) -> list[Broker]:
    return [broker for broker in hosts.brokers.values() if broker is not leader]


def pushed(hosts: Hosts, count: int, value: bytes = b"value") -> Broker:
    """Push so many batches one by one, and return the leader that took them."""
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    for _ in range(count):
        producer.push(leader, value)
        hosts.clock.advance(20)
    assert producer.answers == [Stored(offset, duplicate=False) for offset in range(count)]
    hosts.clock.advance(500)
    return leader


def log_of(hosts: Hosts, name: str) -> bytes:
    return hosts.disks[name].contents(LOG)


def test_what_is_acknowledged_is_on_every_disk_and_the_same() -> None:
    hosts = Hosts()
    pushed(hosts, 20)
    assert log_of(hosts, "a") == log_of(hosts, "b") == log_of(hosts, "c")
    assert len({hosts.driver(name).applied for name in "abc"}) == 1


def test_a_group_of_one_needs_nobody() -> None:
    hosts = Hosts(1)
    pushed(hosts, 5)
    assert hosts.driver("a").applied == 8  # with GENESIS, BeLeader and the producer's entry


def test_readers_are_answered_before_the_producer() -> None:
    """Whoever waits for a message has waited longer than the one who sent it; each answer costs the next some time."""
    hosts = Hosts()
    leader, producer, order = pushed(hosts, 1), hosts.producer(), list[str]()
    producer.begin()
    leader.partitions["g"].on_advance = lambda: order.append("reader")
    leader.partitions["g"].push([producer.batch()], lambda _: order.append("producer"))
    hosts.clock.advance(100)
    assert order == ["reader", "producer"]


def test_proposals_of_one_turn_are_one_write_one_sync_and_one_message_to_each_follower() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    writes: list[str] = []
    hosts.disks[leader.name].on_operation = lambda operation, path: writes.append(operation) if path == LOG else None
    leader.sent.clear()
    for _ in range(10):
        producer.push(leader)
    hosts.clock.advance(0)
    assert writes.count("write") == 1
    appends = [message for message in leader.sent if isinstance(message, Append)]
    assert [len(message.entries) for message in appends] == [10, 10]
    hosts.clock.advance(100)
    assert len(producer.answers) == 10
    assert writes.count("sync") == 1


def test_batches_that_come_together_are_answered_together_when_the_last_is_applied() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    batches = [producer.batch(cmdindex=producer.cmdindex + at) for at in range(3)]
    answers: list[Any] = []
    leader.partitions["g"].push(batches, answers.append)
    assert not answers
    hosts.clock.advance(100)
    first = batches[0].base_offset
    assert answers == [[Stored(first + at, duplicate=False) for at in range(3)]]
    again = [producer.batch(cmdindex=producer.cmdindex + at) for at in range(4)]
    leader.partitions["g"].push(again, answers.append)
    hosts.clock.advance(100)
    assert answers[1] == [*(Stored(first + at, duplicate=True) for at in range(3)), Stored(first + 3, duplicate=False)]


def test_duplicates_in_flight_are_answered_with_their_originals() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    answers: list[Any] = []
    for _ in range(2):
        batches = [producer.batch(cmdindex=producer.cmdindex + at) for at in range(3)]
        leader.partitions["g"].push(batches, answers.append)
    assert not answers
    hosts.clock.advance(100)
    assert [[stored.duplicate for stored in answer] for answer in answers] == [[False] * 3, [True] * 3]
    assert answers[0][0].base_offset == answers[1][0].base_offset


def test_a_batch_that_is_refused_refuses_those_behind_it_and_not_those_before() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    answers: list[Any] = []
    gap = [producer.batch(cmdindex=producer.cmdindex + at) for at in (0, 1, 3, 4)]
    with pytest.raises(OutOfSequence) as refused:
        leader.partitions["g"].push(gap, answers.append)
    assert refused.value.expected == producer.cmdindex + 2
    hosts.clock.advance(100)
    assert not answers
    alone = [producer.batch(cmdindex=producer.cmdindex + at) for at in range(3)]
    leader.partitions["g"].push(alone, answers.append)
    hosts.clock.advance(100)
    assert [stored.duplicate for stored in answers[0]] == [True, True, False]


def test_the_vote_is_on_the_disk_before_it_is_sent() -> None:
    hosts = Hosts()
    for broker in hosts.brokers.values():
        send = broker.send

        def checked(group: str, message: object, payload: Sequence[bytes], broker: Broker = broker, send=send) -> None:  # type: ignore[no-untyped-def]
            if isinstance(message, VoteResponse) and message.granted and not message.pre:
                durable = broker.files.crash(hosts.chance)
                vote = VoteFile.open(durable, VOTE).vote
                assert (vote.term, vote.voted_for) == (message.term, message.receiver)
            send(group, message, payload)

        broker.send = checked  # type: ignore[method-assign]
    hosts.leader()


def voter_that_saves_slowly(hosts: Hosts) -> tuple[Broker, Vote]:
    """Return a follower that nobody hears any more, and the vote that it was asked for and is saving."""
    leader = hosts.leader()
    voter, candidate = others(hosts, leader)
    hosts.clock.advance(500)
    hosts.cut.add(voter.name)
    hosts.disks[voter.name].sync_delay_ms = SLOW_MS
    voter.sent.clear()
    node = candidate.host.groups["g"].node
    log, term = node.log, node.term + 1
    request = RequestVote(candidate.name, voter.name, term, 1, 0, log.last_index, log.last_term, transfer=True)
    voter.host.receive("g", request)
    hosts.clock.advance(SLOW_MS / 2)
    return voter, Vote(term, candidate.name)


def granted(broker: Broker) -> list[int]:
    return [message.term for message in broker.sent if isinstance(message, VoteResponse) and message.granted]


def test_a_vote_is_saved_off_the_event_loop_and_said_when_it_is_on_the_disk() -> None:
    hosts = Hosts()
    voter, vote = voter_that_saves_slowly(hosts)
    assert granted(voter) == []
    hosts.clock.advance(SLOW_MS)
    assert granted(voter) == [vote.term]


def test_a_vote_that_is_being_saved_is_on_the_disk_when_its_replica_was_closed() -> None:
    hosts = Hosts()
    voter, vote = voter_that_saves_slowly(hosts)
    voter.host.remove("g")
    kept = VoteFile.open(voter.files.crash(hosts.chance), VOTE).vote
    assert kept == vote, "whoever opens it next believes what it reads"
    hosts.clock.advance(SLOW_MS)
    assert granted(voter) == []


def test_a_replica_that_begins_anew_keeps_the_vote_that_is_being_saved() -> None:
    hosts = Hosts()
    voter, vote = voter_that_saves_slowly(hosts)
    driver = voter.host.groups["g"]
    driver._fall_back(DiskFull(LOG, "no room"))
    kept = VoteFile.open(voter.files.crash(hosts.chance), VOTE).vote
    assert kept == vote
    assert driver.node.term == vote.term


def test_a_follower_acknowledges_only_what_is_synced() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    follower = others(hosts, leader)[0]
    hosts.disks[follower.name].sync_delay_ms = 10_000
    before = follower.host.groups["g"].replica.block.synced_index
    producer = hosts.producer(name="q")
    producer.begin()
    producer.push(leader)
    hosts.clock.advance(200)
    matches = [message.match for message in follower.sent if isinstance(message, AppendResponse)]
    assert max(matches) == before < follower.host.groups["g"].node.log.last_index


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_full_disk_costs_neither_data_nor_the_group(victim: str) -> None:
    hosts = Hosts()
    leader = pushed(hosts, 5)
    broken = leader if victim == "leader" else others(hosts, leader)[0]
    hosts.disks[broken.name].fail("write", path=LOG, full=True, times=1_000_000)
    producer = hosts.producer(name="q")
    if victim == "leader":
        with pytest.raises(AssertionError):
            producer.begin()
    new = hosts.leader()
    assert (new is leader) == (victim == "follower")
    producer.begin()
    producer.push(hosts.leader())
    hosts.clock.advance(3000)
    assert [type(answer) for answer in producer.answers] == [Stored]
    assert not broken.stops
    hosts.disks[broken.name]._faults.clear()
    hosts.clock.advance(3000)
    assert log_of(hosts, "a") == log_of(hosts, "b") == log_of(hosts, "c")


def test_a_leader_that_cannot_write_hands_over_at_once() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    hosts.disks[leader.name].fail("write", path=LOG, full=True, times=1_000_000)
    producer = hosts.producer(name="q")
    leader.partitions["g"].init_producer(b"q" * 16, producer.answers.append)
    leader.sent.clear()
    hosts.clock.advance(50)
    assert [type(message) for message in leader.sent if isinstance(message, TimeoutNow)] == [TimeoutNow]
    assert isinstance(producer.answers[0], NotLeader)
    assert hosts.leader(within_ms=100) is not leader


def test_a_replica_that_cannot_write_does_not_campaign_until_there_may_be_room() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    hosts.disks[leader.name].fail("write", path=LOG, full=True)
    leader.partitions["g"].init_producer(b"q" * 16, lambda _: None)
    for broker in others(hosts, leader):
        hosts.kill(broker.name)
    hosts.clock.advance(FULL_DISK_MS - 50)
    assert leader.host.groups["g"].node.role.value == "follower"
    hosts.clock.advance(FULL_DISK_MS)
    assert leader.host.groups["g"].node.role.value == "precandidate"


def test_a_failed_sync_stops_the_replica_and_the_others_go_on() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 5)
    hosts.disks[leader.name].fail("sync", path=LOG)
    leader.partitions["g"].init_producer(b"q" * 16, lambda _: None)
    hosts.clock.advance(100)
    assert "g" in leader.stops
    assert "g" not in leader.host.groups
    assert hosts.leader() is not leader
    producer = hosts.producer(name="z")
    producer.begin()
    producer.push(hosts.leader())
    hosts.clock.advance(100)
    assert [type(answer) for answer in producer.answers] == [Stored]


def test_a_replica_whose_sync_failed_is_lame_when_it_is_opened_again_and_mended_by_the_leader() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 5)
    follower = others(hosts, leader)[0]
    hosts.disks[follower.name].fail("sync", path=LOG)
    producer = hosts.producer(name="q")
    producer.begin()
    assert "g" in follower.stops
    hosts.kill(follower.name)
    back = hosts.start(follower.name)
    assert back.host.groups["g"].node.lame
    hosts.clock.advance(2000)
    assert not back.host.groups["g"].node.lame
    assert log_of(hosts, "a") == log_of(hosts, "b") == log_of(hosts, "c")


def test_a_vote_that_cannot_be_saved_stops_the_replica() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    follower = others(hosts, leader)[0]
    hosts.disks[follower.name].fail("sync", path=VOTE)
    hosts.kill(leader.name)
    hosts.clock.advance(3000)
    assert isinstance(follower.stops["g"], ReplicaLost)
    assert not [m for m in follower.sent if isinstance(m, VoteResponse) and m.granted and not m.pre and m.term > 1]


def test_damage_that_a_leader_meets_makes_it_lame_and_another_leads() -> None:
    """A follower was away, so the leader must read its own file, in which a bit has flipped."""
    hosts = Hosts()
    leader = pushed(hosts, 10)
    away = others(hosts, leader)[0]
    hosts.kill(away.name)
    producer = hosts.producer(name="q")
    producer.begin()
    for _ in range(10):
        producer.push(leader)
        hosts.clock.advance(20)
    hosts.clock.advance(1000)
    block = leader.host.groups["g"].replica.block
    position = block.position_of(block.last_index - 3) + 130
    hosts.disks[leader.name].flip(LOG, position, 3)
    hosts.start(away.name)
    hosts.clock.advance(5000)
    assert not leader.stops
    assert any(".bad" in name for name in hosts.disks[leader.name].names("/data/g/Block_1"))
    assert log_of(hosts, "a") == log_of(hosts, "b") == log_of(hosts, "c")
    assert not any(hosts.driver(name).node.lame for name in "abc")


def test_an_append_with_a_damaged_batch_is_dropped_and_sent_again() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    follower = others(hosts, leader)[0]
    receive = follower.host.receive
    damaged: list[int] = []

    def flipping(group: str, message: object, payload: bytearray | bytes = b"") -> None:
        if payload and isinstance(payload, bytearray) and not damaged:
            damaged.append(1)
            payload[len(payload) // 2] ^= 4
        receive(group, message, payload)  # type: ignore[arg-type]

    follower.host.receive = flipping  # type: ignore[method-assign,assignment]
    producer = hosts.producer(name="q")
    producer.begin()
    hosts.clock.advance(2000)
    assert damaged
    assert not follower.stops
    assert log_of(hosts, "a") == log_of(hosts, "b") == log_of(hosts, "c")


def test_too_much_without_a_majority_is_refused_and_memory_stays_bounded() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, uncommitted_bytes_max=100_000))
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    for broker in others(hosts, leader):
        hosts.kill(broker.name)
    with pytest.raises(Overloaded):
        for _ in range(100):
            producer.push(leader, b"x" * 10_000)
    assert len(producer.answers) == 0
    hosts.clock.advance(1000)
    assert all(isinstance(answer, NotLeader) for answer in producer.answers)


def test_whoever_waits_is_told_when_leadership_is_lost() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    hosts.cut.add(leader.name)
    producer.push(leader)
    hosts.clock.advance(1000)
    (answer,) = producer.answers
    assert isinstance(answer, NotLeader)


def test_a_leader_that_stood_still_answers_nobody_as_leader() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    hosts.clock._monotonic_ms += 10_000  # the process was stopped; nothing has run yet
    with pytest.raises(NotLeader):
        producer.push(leader)


def test_a_sleeping_leader_is_woken_by_a_push() -> None:
    hosts = Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    hosts.clock.advance(5000)
    assert all(hosts.driver(name).node.asleep for name in "abc")
    producer.push(leader)
    hosts.clock.advance(50)
    assert producer.answers == [Stored(0, duplicate=False)]


def test_sleeping_groups_say_nothing_of_their_own_and_wake_when_the_leaders_process_begins_anew() -> None:
    groups = [f"g{n}" for n in range(30)]
    hosts = Hosts(groups=groups)
    for group in groups:
        hosts.leader(group)
    hosts.clock.advance(5000)
    for broker in hosts.brokers.values():
        broker.sent.clear()
    hosts.clock.advance(10_000)
    assert not [message for broker in hosts.brokers.values() for message in broker.sent]
    led = [group for group in groups if hosts.leader(group) is hosts.brokers["a"]]
    hosts.kill("a")
    hosts.start("a")
    for group in led:
        hosts.leader(group, within_ms=2000)


def test_leadership_is_handed_over_before_a_clean_stop() -> None:
    hosts = Hosts(groups=["g", "h"])
    for group in ("g", "h"):
        hosts.leader(group)
    first = hosts.leader("g")
    assert first.host.hand_over()
    hosts.clock.advance(60)
    assert not any(driver.node.role.value == "leader" for driver in first.host.groups.values())
    first.host.close()
    assert not first.host.groups
    assert hosts.leader("g", within_ms=300) is not first


def test_closing_tells_whoever_waits_and_lets_go_of_the_files() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    producer.begin()
    producer.push(leader)
    leader.host.close()
    (answer,) = producer.answers
    assert isinstance(answer, ClymqError)
    hosts.clock.advance(1000)
    assert not leader.host.groups


def test_a_checkpoint_follows_when_the_group_rests_and_is_where_a_restart_begins() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 5)
    hosts.clock.advance(1000)
    block = leader.host.groups["g"].replica.block
    assert block.checkpoint.commit_index == block.commit_index == block.last_index
    hosts.kill(leader.name, power=True)
    back = hosts.start(leader.name)
    assert back.host.groups["g"].applied == block.last_index


def test_a_checkpoint_that_finds_no_room_is_tried_again() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    producer = hosts.producer(name="q")
    hosts.disks[leader.name].fail("write", path="*/checkpoint.new", full=True)
    producer.begin()
    hosts.clock.advance(3000)
    block = leader.host.groups["g"].replica.block
    assert not leader.stops
    assert block.checkpoint.commit_index == block.commit_index


def test_a_disk_that_is_not_named_or_has_lost_its_replica_stays_out() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 1)
    victim = others(hosts, leader)[0]
    hosts.kill(victim.name)
    with pytest.raises(ReplicaLost, match="never on this disk"):
        Broker(hosts, victim.name, type(hosts.disks["a"])(clock=hosts.clock)).open("g", named_here=False)
    for name in ("batches", "index", "checkpoint", "vote"):
        hosts.disks[victim.name].remove(f"/data/g/Block_1/{name}")
    with pytest.raises(ReplicaLost, match="is lost"):
        hosts.start(victim.name)


def test_entries_that_do_not_follow_the_one_before_are_not_taken_from_the_wire() -> None:
    hosts = Hosts()
    leader = pushed(hosts, 3)
    follower = others(hosts, leader)[0]
    driver = follower.host.groups["g"]
    block = leader.host.groups["g"].replica.block
    last = bytes(block.read_at(block.position_of(block.last_index), 1, block.end_position))
    append = Append(leader.name, follower.name, driver.node.term, 1, 0, 1, 1, (), 0, 99)
    before = driver.node.log.last_index
    driver.receive(dataclasses.replace(append), last)
    assert driver.node.log.last_index == before
    assert Batch.parse(last).index != 2


def test_with_every_disk_at_its_reserve_somebody_leads_what_is_stored_is_read_and_room_is_found_again() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, disk_reserve_bytes=1_000_000), space=True)
    for disk in hosts.disks.values():
        disk.capacity_bytes = disk._root.bytes() + 1_010_000
    pushed(hosts, 3)
    producer = hosts.producer(name="q")
    producer.begin()
    refused = 0
    for _ in range(10):
        with pytest.raises((DiskFull, NotReady, NotLeader)) as caught:
            producer.push(hosts.leader(), b"x" * 20_000)
        refused += caught.type is DiskFull
        hosts.clock.advance(500)
    assert refused
    leader = hosts.leader()
    assert len(leader.host.groups["g"].read(0, 1 << 20)) > 0
    assert not any(broker.stops for broker in hosts.brokers.values())
    for disk in hosts.disks.values():
        disk.capacity_bytes = 1 << 40
    hosts.clock.advance(1500)
    producer.begin()
    producer.push(hosts.leader(), b"y")
    hosts.clock.advance(100)
    assert [type(answer) for answer in producer.answers] == [Stored]
