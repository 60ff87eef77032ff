"""What a driver does in the middle of something else: callbacks that come back, failing disks, peers that lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clymq.errors import (
    ClymqError,
    CorruptBlock,
    DiskFailed,
    FrameTooLarge,
    NotLeader,
    RemoteProtocolError,
    ReplicaLost,
)
from clymq.protocol.consensus import Heartbeats
from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.messages import Append, AppendResponse, Heartbeat, HeartbeatResponse, RequestVote, VoteResponse
from clymq.raft.state import Role
from clymq.record.batch import Batch
from clymq.replication import raft_driver
from clymq.replication.consensus_links import ConsensusLinks, Ways, handlers, to_wire
from clymq.replication.entries import Genesis
from clymq.replication.mend import is_whole
from clymq.replication.raft_partition import Stored
from clymq.storage.memory import MemoryFile
from clymq.storage.vote import SLOT_BYTES, VoteFile
from factory import fill, following, new_block
from raft_hosts import Broker, Hosts, Producer, alone
from unit.replication.test_mend import Whole, disk, mended, sealed

LOG = "/data/g/Block_1/batches"
VOTE = "/data/g/Block_1/vote"


def others(hosts: Hosts, leader: Broker) -> list[Broker]:
    return [broker for broker in hosts.brokers.values() if broker is not leader]


def ready(hosts: Hosts) -> tuple[Broker, Producer]:
    """Return the leader of a group that has stored something, and a producer that it knows."""
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    producer.push(leader)
    hosts.clock.advance(200)
    return leader, producer


# --- Re-entrancy ---


def test_a_push_is_refused_or_answered_and_never_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails within the very call that proposes: what was waiting is told, what comes next is refused."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    monkeypatch.setattr(raft_driver, "PERFORM_BYTES", 1)
    hosts.disks[leader.name].fail("write", path=LOG, full=True)
    outcomes: dict[int, list[object]] = {}
    for number in range(3):
        heard = outcomes[number] = []
        try:
            leader.partitions["g"].push([producer.batch()], heard.append)
            producer.cmdindex += 1
        except ClymqError as error:
            heard.append(error)
    hosts.clock.advance(1000)
    assert [len(heard) for heard in outcomes.values()] == [1, 1, 1], outcomes


def test_an_answer_may_push_more_than_is_performed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    monkeypatch.setattr(raft_driver, "PERFORM_BYTES", 1)
    answers: list[Any] = []

    def again(answer: Stored | ClymqError) -> None:
        answers.append(answer)
        if len(answers) < 10:
            batch = producer.batch()
            producer.cmdindex += 1
            leader.partitions["g"].push([batch], alone(again))

    for _ in range(3):
        batch = producer.batch()
        producer.cmdindex += 1
        leader.partitions["g"].push([batch], alone(again))
    hosts.clock.advance(1000)
    assert not leader.stops
    assert [type(answer) for answer in answers] == [Stored] * 12
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


def test_an_answer_may_close_the_group_and_nobody_leads_it_then() -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    driver, partition = hosts.driver(leader.name), leader.partitions["g"]
    answers: list[object] = []
    led: list[int] = []
    partition.leads = led.append  # type: ignore[method-assign]

    def close(answer: object) -> None:
        answers.append(answer)
        leader.host.remove("g")

    for _ in range(3):
        partition.push([producer.batch()], alone(close))
        producer.cmdindex += 1
    hosts.clock.advance(500)
    assert len(answers) == 3
    assert not led
    assert driver.stopped is not None
    assert driver.replica.block._file is None
    assert not leader.host._unsaved
    applied = driver.applied
    hosts.clock.advance(500)
    assert driver.applied == applied, "a group that is closed applies nothing more"


def test_an_answer_that_reads_damage_does_not_take_the_group_with_it() -> None:
    """The reader's finding replaces the core while entries are being applied to the machine."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.clock.advance(1000)
    driver, partition = hosts.driver(leader.name), leader.partitions["g"]
    answers: list[object] = []

    def read(answer: object) -> None:
        answers.append(answer)
        if len(answers) == 1:
            hosts.disks[leader.name].flip(LOG, driver.replica.block.locate(0) + 130, 1)
            with pytest.raises(NotLeader):
                driver.read(0, 1000)

    for _ in range(3):
        partition.push([producer.batch()], alone(read))
        producer.cmdindex += 1
    hosts.clock.advance(5000)
    assert len(answers) == 3
    assert not leader.stops
    assert not hosts.driver(leader.name).node.lame
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


def test_an_answer_that_fails_costs_nobody_else_anything() -> None:
    hosts = Hosts(groups=["g", "h"])
    leader, producer = ready(hosts)

    def fail(_: object) -> None:
        raise RuntimeError("a mistake in a handler")

    for _ in range(2):
        leader.partitions["g"].push([producer.batch()], fail)
        producer.cmdindex += 1
    leader.partitions["g"].push([producer.batch()], alone(producer.answers.append))
    hosts.clock.advance(1000)
    assert [type(answer) for answer in producer.answers] == [Stored, Stored]
    assert not leader.stops
    hosts.cut.add(leader.name)
    hosts.clock.advance(1000)
    assert hosts.driver(leader.name).node.role is not Role.LEADER, "it ticks no more"


def test_an_owner_that_closes_its_group_and_then_fails_stops_it_once() -> None:
    hosts = Hosts(groups=["g", "h"])
    leader, producer = ready(hosts)

    def close() -> None:
        leader.host.remove("g")
        raise RuntimeError("a mistake behind it")

    leader.partitions["g"].on_advance = close
    producer.push(leader)
    hosts.clock.advance(500)
    assert set(leader.host.groups) == {"h"}
    assert hosts.leader() is not leader


def test_a_group_that_fails_in_a_way_without_a_name_stops_alone() -> None:
    hosts = Hosts(groups=["g", "h"])
    hosts.leader("h")
    leader = hosts.leader("g")
    hosts.clock.advance(500)
    follower = others(hosts, leader)[0]
    driver = hosts.driver(follower.name)
    driver.wake()

    def broken(_: object) -> None:
        raise RuntimeError("a mistake in the core")

    driver.node.tick = broken  # type: ignore[method-assign,assignment]
    hosts.clock.advance(100)
    assert isinstance(follower.stops["g"], ReplicaLost)
    assert set(follower.host.groups) == {"h"}
    led = hosts.leader("h")
    hosts.kill(next(broker.name for broker in hosts.brokers.values() if broker not in (led, follower)))
    producer = hosts.producer("h")
    producer.begin()


def test_a_leader_that_stood_still_right_after_its_election_begins_no_term() -> None:
    """Elected, then stopped before it could tell its owner: the owner's first proposal finds no leader."""
    hosts = Hosts(groups=["g", "h"])
    hosts.leader("h")
    first = hosts.leader("g")
    hosts.driver(first.name).wake()
    candidate = others(hosts, first)[0]
    receive = candidate.host.receive
    jumped: list[int] = []

    def late(group: str, message: object, payload: bytes = b"") -> None:
        receive(group, message, payload)  # type: ignore[arg-type]
        if isinstance(message, VoteResponse) and not message.pre and message.granted and not jumped:
            jumped.append(message.term)
            driver = candidate.host.groups[group]
            note = driver._note_role

            def stands_still() -> None:
                if len(jumped) == 1:
                    jumped.append(0)
                    hosts.clock._monotonic_ms += 1000
                note()

            driver._note_role = stands_still  # type: ignore[method-assign]

    candidate.host.receive = late  # type: ignore[method-assign,assignment]
    hosts.driver(first.name).transfer(candidate.name)
    hosts.clock.advance(50)
    assert len(jumped) == 2
    hosts.leader("g")
    hosts.leader("h")


def test_a_block_begins_although_leadership_was_about_to_go_when_its_state_came() -> None:
    hosts = Hosts(2)
    begun: list[Any] = []
    for broker in hosts.brokers.values():
        broker.partitions["g"]._begin = begun.append
    hosts.clock.advance(1500)
    leader = next(broker for broker in hosts.brokers.values() if hosts.driver(broker.name).node.role is Role.LEADER)
    (other,) = others(hosts, leader)
    hosts.driver(other.name)._unfit_until = hosts.clock.monotonic_ms() + 1000
    hosts.driver(other.name).tick()
    hosts.driver(leader.name).transfer(other.name)
    begun[-1](Genesis(uid=b"u" * 16))  # while nothing may be proposed
    assert hosts.leader(within_ms=2000) is leader


# --- What was proposed, and what was stored ---


def test_an_entry_of_another_leader_answers_nobody_who_waits_here() -> None:
    """One message that ends a term, replaces the entry that somebody waits for, and calls it committed."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.cut.add(leader.name)
    driver = hosts.driver(leader.name)
    before = driver.node.log
    index, term = before.last_index + 1, before.last_term
    lost = producer.batch(b"mine")
    leader.partitions["g"].push([lost], alone(producer.answers.append))
    other = producer.batch(b"other")
    other.stamp(
        base_offset=driver.replica.block.end_offset,
        term=term + 1,
        index=index,
        append_time=driver.replica.block.last_append_time,
        commit_index=index - 1,
    )
    peer = others(hosts, leader)[0].name
    append = Append(peer, leader.name, term + 1, 7, 0, index - 1, term, (), index, 1)
    driver.receive(append, bytearray(other.buffer))
    hosts.clock.advance(0)
    assert driver.applied == index
    assert [type(answer) for answer in producer.answers[1:]] == [NotLeader]


# --- Disks ---


def test_a_replica_that_was_mended_is_not_lame_when_its_disk_fills() -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.clock.advance(1000)
    follower = others(hosts, leader)[0]
    hosts.kill(follower.name)
    hosts.disks[follower.name].flip(LOG, 200, 1)
    hosts.start(follower.name, verify=True)
    assert hosts.driver(follower.name).node.lame
    hosts.clock.advance(2000)
    assert not hosts.driver(follower.name).node.lame
    hosts.disks[follower.name].fail("write", path=LOG, full=True)
    producer.push(leader)
    hosts.clock.advance(30)
    assert hosts.driver(follower.name).node.role is Role.FOLLOWER
    assert not hosts.driver(follower.name).node.lame


def test_a_disk_that_cannot_be_read_stops_the_replica() -> None:
    """Else it would begin anew, for ever, and nobody would be told."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    away = others(hosts, leader)[0]
    hosts.kill(away.name)
    for _ in range(5):
        producer.push(leader)
        hosts.clock.advance(20)
    hosts.clock.advance(1000)
    hosts.disks[leader.name].fail("read", path=LOG, times=1_000_000)
    hosts.start(away.name)
    hosts.clock.advance(3000)
    assert isinstance(leader.stops["g"], DiskFailed)
    assert hosts.leader() is not leader


def test_a_damage_that_nobody_but_this_process_knows_to_be_a_loss_is_one() -> None:
    """The last entry is on two disks and acknowledged; no checkpoint and no later entry says so yet."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.clock.advance(1000)
    behind, up_to_date = others(hosts, leader)
    hosts.cut.add(behind.name)
    producer.push(leader)
    hosts.clock.advance(30)
    assert isinstance(producer.answers[-1], Stored)
    driver = hosts.driver(leader.name)
    last = driver.replica.block.position_of(driver.replica.block.last_index)
    hosts.disks[leader.name].flip(LOG, last + 130, 1)
    with pytest.raises(NotLeader):
        driver.read(driver.replica.block.end_offset - 1, 1000)
    hosts.kill(up_to_date.name)
    if "g" not in leader.host.groups:
        hosts.kill(leader.name)
        hosts.start(leader.name)
    assert hosts.driver(leader.name).node.lame
    hosts.kill(leader.name, power=True)
    hosts.start(leader.name)
    assert hosts.driver(leader.name).node.lame
    hosts.cut.clear()
    with pytest.raises(AssertionError, match="no leader"):
        hosts.leader(within_ms=3000)
    hosts.start(up_to_date.name)
    hosts.leader()
    hosts.clock.advance(1000)
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


def test_a_vote_that_was_lost_stays_lost_when_the_next_one_is_saved() -> None:
    """One slot rots; a save makes both whole, and a restart must not take that for a good memory."""
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.clock.advance(1000)
    follower = others(hosts, leader)[0]
    hosts.kill(follower.name)
    newest = VoteFile.open(hosts.disks[follower.name], VOTE)._sequence % 2
    hosts.disks[follower.name].flip(VOTE, newest * SLOT_BYTES + 100, 1)
    hosts.cut.add(follower.name)
    hosts.start(follower.name)
    driver = hosts.driver(follower.name)
    assert driver.node.lame
    driver.receive(RequestVote(leader.name, follower.name, driver.node.term + 1, 1, 0, 0, 0))
    hosts.clock.advance(10)
    assert not VoteFile.open(hosts.disks[follower.name], VOTE).damaged
    hosts.kill(follower.name)
    hosts.start(follower.name)
    assert hosts.driver(follower.name).node.lame
    hosts.cut.clear()
    producer.push(hosts.leader())
    hosts.clock.advance(3000)
    assert not hosts.driver(follower.name).node.lame
    hosts.kill(follower.name)
    hosts.start(follower.name)
    assert not hosts.driver(follower.name).node.lame


def test_a_group_whose_last_checkpoint_meets_damage_is_closed_once_and_the_others_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = Hosts(groups=["g", "h"])
    leader, producer = ready(hosts)
    producer.push(leader)
    hosts.clock.advance(50)
    driver = hosts.driver(leader.name)

    def damaged(*_: object, **__: object) -> None:
        raise CorruptBlock(LOG, 0, "met by a checkpoint, and gone when it is read again")

    monkeypatch.setattr(driver.replica.block, "write_checkpoint", damaged)
    leader.host.close()
    hosts.clock.advance(50)
    assert not leader.host.groups


def test_a_sleeping_leader_that_meets_damage_wakes_and_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    hosts.clock.advance(3000)
    driver = hosts.driver(leader.name)
    assert driver.node.asleep
    hosts.disks[leader.name].flip(LOG, 200, 1)
    monkeypatch.setattr(driver.replica.block, "_commit_index", driver.replica.block.commit_index + 1)

    def damaged(*_: object, **__: object) -> None:
        raise CorruptBlock(LOG, 200, "met by a checkpoint")

    monkeypatch.setattr(driver.replica.block, "write_checkpoint", damaged)
    driver.checkpoint()
    assert hosts.leader(within_ms=500) is not leader
    hosts.clock.advance(3000)
    assert not driver.node.lame


def test_a_replica_that_cannot_be_opened_holds_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    hosts.kill(leader.name)
    files, opened = hosts.disks[leader.name], list[MemoryFile]()
    original = files.open

    def noted(path: str, *, create: bool = False) -> MemoryFile:
        file = original(path, create=create)
        opened.append(file)
        return file

    monkeypatch.setattr(files, "open", noted)
    files.remove(LOG)
    with pytest.raises(ClymqError):
        hosts.start(leader.name)
    assert opened
    assert [file.path for file in opened if not file._closed] == []


def test_damage_that_a_tick_meets_is_this_groups_own() -> None:
    """A leader that was restarted reads the terms of old entries from its file, when it looks where a log parts."""
    hosts = Hosts(groups=["g", "h"])
    leader, producer = ready(hosts)
    for _ in range(10):
        producer.push(leader)
        hosts.clock.advance(20)
    away = others(hosts, leader)[0]
    hosts.kill(away.name)
    hosts.clock.advance(1000)
    driver = hosts.driver(leader.name)
    driver.wake()

    def damaged(_: object) -> None:
        raise CorruptBlock(LOG, 0, "met while it ticks")

    driver.node.tick = damaged  # type: ignore[method-assign,assignment]
    hosts.clock.advance(1000)
    assert isinstance(leader.stops["g"], CorruptBlock)
    assert set(leader.host.groups) == {"h"}
    assert hosts.leader("h")


def test_a_sealed_block_tells_its_end_after_it_was_lost_and_mended() -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    for _ in range(5):
        producer.push(leader)
        hosts.clock.advance(20)
    answers: list[object] = []
    leader.partitions["g"].seal(answers.append)
    hosts.clock.advance(1000)
    assert answers == [Stored(6, duplicate=False)]
    follower = others(hosts, leader)[0]
    driver = hosts.driver(follower.name)
    hosts.disks[follower.name].flip(LOG, 700, 1)
    with pytest.raises(NotLeader):
        driver.read(0, 100_000)
    assert driver.node.lame
    assert driver.committed_offset < 6
    hosts.clock.advance(5000)
    assert not driver.node.lame
    assert driver.committed_offset == 6


# --- Groups that come and go ---


def test_a_group_that_is_opened_again_in_one_process_is_another_incarnation_and_is_mended() -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    for _ in range(10):
        producer.push(leader)
        hosts.clock.advance(20)
    hosts.clock.advance(1000)
    follower = others(hosts, leader)[0]
    old = hosts.driver(follower.name)
    follower.host.remove("g")
    assert "g" not in follower.host.groups
    hosts.disks[follower.name].flip(LOG, 500, 1)
    follower.open("g", verify=True)
    new = hosts.driver(follower.name)
    assert new.node.lame
    assert new.node._state.incarnation != old.node._state.incarnation
    producer.push(leader)
    hosts.clock.advance(3000)
    assert not new.node.lame
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


def test_a_broker_that_is_heard_for_the_first_time_wakes_the_groups_that_slept_without_it() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join(["b", "c"], 0)
    made.hear(PairHeartbeat("b", 5, ()), 250)
    assert made.silent(310) == set()
    made.sleeps("g", "a", ["b", "c"])
    assert made.hear(PairHeartbeat("c", 9, ()), 400) == {"g"}


def test_a_lame_replica_that_comes_late_is_mended_by_a_group_that_slept_without_it() -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    hosts.clock.advance(1000)
    late = others(hosts, leader)[0]
    hosts.kill(late.name)
    hosts.disks[late.name].flip(LOG, 200, 1)
    for broker in others(hosts, late):
        hosts.kill(broker.name)
    for broker in others(hosts, late):
        hosts.start(broker.name)
    hosts.leader()
    hosts.clock.advance(3000)
    hosts.start(late.name, verify=True)
    assert hosts.driver(late.name).node.lame
    hosts.clock.advance(3000)
    assert not hosts.driver(late.name).node.lame


def test_what_brokers_say_that_share_no_group_is_not_kept() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join(["b"], 0)
    for number in range(1000):
        made.hear(PairHeartbeat(f"stranger {number}", 5, ()), 1)
    assert set(made.brokers) == {"b"}


def test_heartbeats_of_a_group_that_has_left_do_not_travel_later() -> None:
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    made.join(["b"], 0)
    made.gather("g", [Heartbeat("a", "b", 1, 1, 0, 0)])
    made.leave("g", ["b"])
    made.join(["b"], 10_000)
    ((_, beat),) = made.beat(10_000)
    assert not beat.beats


def test_a_replica_that_begins_anew_in_a_sleeping_group_is_fed_although_a_message_is_lost() -> None:
    """Its answer says that it is asleep, and that it is another process: the leader must not sleep on."""
    hosts = Hosts()
    leader, _ = ready(hosts)
    hosts.clock.advance(3000)
    follower = others(hosts, leader)[0]
    node = hosts.driver(leader.name).node
    assert node.asleep
    answer = HeartbeatResponse(follower.name, leader.name, node.term, 12345, 0, node.log.commit, asleep=True)
    hosts.cut.add(follower.name)
    leader.host.receive("g", answer)
    hosts.clock.advance(10)
    hosts.cut.clear()
    assert not node.asleep


# --- Peers that lie ---


def test_a_message_for_somebody_else_is_not_taken() -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    one, two = others(hosts, leader)
    driver = hosts.driver(one.name)
    term = driver.node.term
    driver.receive(RequestVote(leader.name, two.name, term + 5, 1, 0, 100, 100, transfer=True))
    assert driver.node.term == term


@pytest.mark.parametrize("match", [1_000_000, -1])
def test_an_acknowledgement_of_what_never_was_is_not_believed(match: int) -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    hosts.driver(leader.name).wake()
    liar = others(hosts, leader)[0]
    node = hosts.driver(leader.name).node
    sender = node._role._followers[liar.name].incarnation  # type: ignore[union-attr]
    leader.host.receive("g", AppendResponse(liar.name, leader.name, node.term, sender, 0, match, match, 99))
    hosts.clock.advance(500)
    assert not leader.stops
    producer.push(hosts.leader())
    hosts.clock.advance(1000)
    assert isinstance(producer.answers[-1], Stored)
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


@pytest.mark.parametrize("term", [-1, 2**63, 2**64])
def test_a_term_that_fits_in_no_file_is_not_entered(term: int) -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    follower = others(hosts, leader)[0]
    before = hosts.driver(follower.name).node.term
    follower.host.receive("g", RequestVote(leader.name, follower.name, term, 1, 0, 100, 100, transfer=True))
    hosts.clock.advance(500)
    assert not follower.stops
    assert hosts.driver(follower.name).node.term == before


def test_entries_that_do_not_fit_the_log_are_the_senders_fault_and_not_the_disks() -> None:
    hosts = Hosts()
    leader, producer = ready(hosts)
    follower = others(hosts, leader)[0]
    hosts.cut.add(leader.name)
    driver = hosts.driver(follower.name)
    block = driver.replica.block
    batch = producer.batch()
    batch.stamp(
        base_offset=block.end_offset + 7,
        term=driver.node.term,
        index=block.last_index + 1,
        append_time=block.last_append_time,
        commit_index=0,
    )
    follower.host.receive(
        "g",
        Append(leader.name, follower.name, driver.node.term, 1, 0, block.last_index, block.last_term, (), 0, 99),
        bytearray(batch.buffer),
    )
    hosts.clock.advance(20)
    assert not follower.stops
    hosts.cut.clear()
    hosts.clock.advance(2000)
    assert not hosts.driver(follower.name).node.lame
    assert hosts.disks["a"].contents(LOG) == hosts.disks["b"].contents(LOG) == hosts.disks["c"].contents(LOG)


class FakeLink:
    """A link whose other end takes frames of no size."""

    address = "b:1"

    def tell(self, message: object, payload: object = (), **_: bool) -> bool:
        raise FrameTooLarge(f"{message} {payload}")


def test_a_message_that_fits_into_no_frame_is_lost_and_the_group_goes_on() -> None:
    links = ConsensusLinks.__new__(ConsensusLinks)
    links._links = {"b": Ways(FakeLink(), FakeLink())}  # type: ignore[arg-type]
    links.send("g", Append("a", "b", 1, 1, 0, 0, 0, (), 0, 1), [b"x"])
    links.beat("b", PairHeartbeat("a", 1, ()))


def test_a_broker_is_not_heard_in_the_name_of_another() -> None:
    hosts = Hosts()
    leader, _ = ready(hosts)
    one, two = others(hosts, leader)
    term = hosts.driver(one.name).node.term
    vote = RequestVote(leader.name, one.name, term + 1, 1, 0, 100, 100, transfer=True)
    serve = handlers(one.host)
    for request in (to_wire("g", vote), Heartbeats(leader.name, 1)):
        with pytest.raises(RemoteProtocolError, match=two.name):
            serve[type(request)](SimpleNamespace(request=request, payload=b"", peer=SimpleNamespace(name=two.name)))  # type: ignore[arg-type]
    assert hosts.driver(one.name).node.term == term
    serve[type(to_wire("g", vote))](
        SimpleNamespace(request=to_wire("g", vote), payload=b"", peer=SimpleNamespace(name=leader.name))  # type: ignore[arg-type]
    )
    assert hosts.driver(one.name).node.term == term + 1


# --- Mending ---


def test_what_is_whole_but_for_its_sync_is_synced_and_not_lost() -> None:
    _, whole, seal = sealed()
    block = new_block(disk())
    fill(block, 20)
    block.append([Batch.parse(bytearray(whole.read_at(whole.position_of(seal.index), 1, whole.end_position)))])
    block.commit_all()
    assert not is_whole(block, seal)
    mended(block, seal, Whole(whole))
    assert is_whole(block, seal)


def test_nothing_is_kept_of_a_source_that_turns_out_to_be_another_log() -> None:
    """Its batches have the lengths of ours: what comes from the next source would fit behind them."""
    files, whole, seal = sealed(20)
    stale = new_block(disk())
    fill(stale, 10)
    for _ in range(3):
        same_length = [b"." * 100] * 3
        stale.append([following(stale, same_length)])
    assert stale.end_position == whole.position_of(stale.last_index + 1)
    mine = disk()
    block = new_block(mine)
    mended(block, seal, Whole(stale), Whole(whole), bytes_max=1)
    assert mine.contents(LOG.replace("/g", "")) == files.contents(LOG.replace("/g", ""))
