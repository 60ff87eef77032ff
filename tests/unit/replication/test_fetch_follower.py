"""Following and visibility: what followers take, what they prove by it, and what readers see."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from clymq.errors import ClymqError, InvalidRequest, LogTruncated, NotLeader, StaleEpoch
from clymq.protocol.broker import Pull
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.replication.fetch_follower import ANSWER_MS, FULL_DISK_MS
from clymq.replication.fetch_holders import Holders
from clymq.replication.fetch_surroundings import PulledBatches
from fetch_hosts import CONFIG, EPOCH, LOG, Hosts, Producer, values_of

COMMIT = msgspec.structs.replace(CONFIG, fsync="commit")
WAIT_MS = CONFIG.fetch_wait_ms_max


def pushed(hosts: Hosts, count: int, *, name: str = "p", size: int = 10) -> Producer:
    producer = hosts.producer(name)
    producer.begin()
    for n in range(count):
        producer.push(b"%d" % n * size)
        hosts.clock.advance(5)
    hosts.clock.advance(20)
    return producer


def pull_of(hosts: Hosts, **changes: Any) -> Pull:
    """Return the last pull of b, changed."""
    return msgspec.structs.replace(hosts.brokers["b"].asked[-1], **changes)


# --- Following ---


def test_followers_are_equal_and_keep_following() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 20)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")
    producer.push(b"more")
    hosts.clock.advance(5)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")
    machines = [hosts.driver(name).log.machine.checkpoint() for name in "abc"]
    assert machines[0] == machines[1] == machines[2]


def test_an_idle_block_costs_one_pull_per_wait() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.clock.advance(100)
    before = len(hosts.brokers["b"].asked)
    hosts.clock.advance(10 * WAIT_MS)
    assert len(hosts.brokers["b"].asked) - before in {9, 10}


def test_a_follower_that_was_away_catches_up_in_bounded_pieces() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, fetch_bytes_max=4096))
    hosts.kill("b")
    pushed(hosts, 100, size=100)
    back = hosts.start("b")
    hosts.clock.advance(300)
    assert hosts.log_of("b") == hosts.log_of("a")
    assert len(back.asked) > len(hosts.log_of("a")) // 4096


def test_a_batch_larger_than_a_pull_gets_through() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, fetch_bytes_max=1024))
    producer = pushed(hosts, 0)
    producer.push(b"x" * 100_000)
    hosts.clock.advance(50)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")


@pytest.mark.parametrize("damage", ["flip", "position", "epoch", "skip", "term"])
def test_what_is_damaged_or_out_of_place_is_not_taken_and_asked_for_again(damage: str) -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    driver, before = hosts.driver("b"), hosts.log_of("b")
    follower = driver._follower
    assert follower is not None
    answered, struck = follower._answered, []

    def spoil(ticket: int, held: Any, outcome: Any) -> None:
        if isinstance(outcome, PulledBatches) and outcome.payload and not struck:
            struck.append(damage)
            outcome = _spoilt(outcome, damage)
            answered(ticket, held, outcome)
            assert hosts.log_of("b") == before
        else:
            answered(ticket, held, outcome)

    follower._answered = spoil  # type: ignore[method-assign]
    hosts.clock.advance(2 * WAIT_MS)  # the pull under way has the old way to answer
    producer = hosts.producer("q")
    producer.begin()
    producer.push(b"one")
    producer.push(b"two")
    hosts.clock.advance(1000)
    assert struck
    assert not hosts.owner("b").downs
    assert hosts.log_of("a") == hosts.log_of("b")


def _spoilt(outcome: PulledBatches, damage: str) -> PulledBatches:
    payload = bytearray(outcome.payload)
    reply = outcome.reply
    if damage == "flip":
        payload[len(payload) // 2] ^= 4
    elif damage == "position":
        reply = msgspec.structs.replace(reply, position=reply.position + 8)
    elif damage == "epoch":
        reply = msgspec.structs.replace(reply, epoch=reply.epoch + 1)
    else:
        batch = Batch.parse(payload)
        batch.stamp(
            base_offset=batch.base_offset,
            term=batch.term + (damage == "term"),
            index=batch.index + (damage == "skip"),
            append_time=batch.append_time,
            commit_index=0,
        )
    return dataclasses.replace(outcome, reply=reply, payload=payload)


def test_errors_are_met_with_pauses_that_grow_up_to_the_limit() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.brokers["a"].host.remove(hosts.group.name)
    hosts.clock.advance(20)
    before = len(hosts.brokers["b"].asked)
    hosts.clock.advance(60_000)
    asked = len(hosts.brokers["b"].asked) - before
    assert 60 <= asked <= 140, "about one per fetch_retry_ms_max, half of it left to chance"


def test_an_answer_that_never_comes_is_not_waited_for_for_ever() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.disconnect("a", "b")
    producer = hosts.producer("q")
    producer.begin()
    hosts.clock.advance(10)
    hosts.cut.clear()
    hosts.clock.advance(WAIT_MS + ANSWER_MS + 100)
    assert hosts.log_of("a") == hosts.log_of("b")


def test_a_full_disk_makes_a_follower_wait_and_costs_nothing_else() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 1)
    hosts.disks["b"].fail("write", path=LOG, full=True)
    producer.push(b"x")
    hosts.clock.advance(FULL_DISK_MS // 2 - 10)
    assert hosts.log_of("b") != hosts.log_of("a")
    hosts.clock.advance(FULL_DISK_MS)
    assert hosts.log_of("a") == hosts.log_of("b")
    assert not hosts.owner("b").downs


@pytest.mark.parametrize("config", [CONFIG, COMMIT])
def test_a_failed_sync_stops_a_follower_and_the_others_go_on(config: Any) -> None:
    hosts = Hosts(config=config)
    producer = pushed(hosts, 1)
    hosts.disks["b"].fail("sync", path=LOG)
    producer.push(b"x")
    hosts.clock.advance(2000)
    assert len(hosts.owner("b").downs) == 1
    assert hosts.driver("a").visible_end == 2, "a and c are a majority"
    producer.push(b"y")
    hosts.clock.advance(50)
    assert hosts.driver("b").log.block.end_offset == 2


def test_a_log_that_contradicts_itself_stops_the_follower() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.driver("b").log.machine.restore(b"")
    producer = hosts.producer("q")
    producer.begin()
    hosts.clock.advance(50)
    assert [error.code for error in hosts.owner("b").downs] == ["ReplicaLost"]


def test_an_error_without_a_name_stops_the_follower_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts()
    producer = pushed(hosts, 1)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(hosts.driver("b").log, "write", fail)
    producer.push(b"x")
    hosts.clock.advance(50)
    assert [error.code for error in hosts.owner("b").downs] == ["ReplicaLost"]


# --- What a pull proves ---


def test_readers_see_what_a_majority_holds() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 1)
    hosts.disconnect("a", "b")
    hosts.disconnect("a", "c")
    producer.push(b"unseen")
    hosts.clock.advance(100)
    leader = hosts.driver("a")
    assert leader.visible_end == 1
    assert not leader.read(1, 1000)
    advances = hosts.owner("a").advances
    hosts.cut.remove(frozenset("ac"))
    hosts.clock.advance(WAIT_MS + ANSWER_MS + 100)
    assert leader.visible_end == 2
    assert Batch.parse(leader.read(1, 1000)).values() == [b"unseen"]
    assert hosts.owner("a").advances > advances
    assert hosts.driver("c").visible_end == 2, "and the follower knows"


def test_visibility_leader_shows_what_the_leader_has() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, fetch_visibility="leader"))
    producer = pushed(hosts, 0)
    hosts.disconnect("a", "b")
    hosts.disconnect("a", "c")
    producer.push(b"x")
    hosts.clock.advance(0)
    assert Batch.parse(hosts.driver("a").read(0, 1000)).values() == [b"x"]


def test_with_fsync_commit_only_what_is_synced_counts_on_both_sides() -> None:
    hosts = Hosts(config=COMMIT)
    producer = pushed(hosts, 1)
    for name in "bc":
        hosts.disks[name].sync_delay_ms = 300
    producer.push(b"x")
    hosts.clock.advance(299)
    assert hosts.log_of("b") == hosts.log_of("a"), "written"
    assert hosts.driver("a").visible_end == 1
    hosts.clock.advance(10)
    assert hosts.driver("a").visible_end == 2
    hosts.disks["a"].sync_delay_ms, hosts.disks["b"].sync_delay_ms, hosts.disks["c"].sync_delay_ms = 300, 0, 0
    producer.push(b"y")
    hosts.clock.advance(299)
    assert hosts.driver("a").visible_end == 2, "the leader does not hold it yet"
    hosts.clock.advance(10)
    assert hosts.driver("a").visible_end == 3


def test_a_follower_that_holds_less_in_its_next_life_proves_only_that() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    assert hosts.driver("a").held()["b"] == hosts.driver("a").log.block.last_index
    visible = hosts.driver("a").visible_end
    old = hosts.brokers["b"].asked[-1]
    hosts.driver("a").pull(pull_of(hosts, incarnation=77, index=0, position=0), lambda _: None)
    assert hosts.driver("a").held()["b"] == 0
    assert hosts.driver("a").visible_end == visible, "what was seen stays"
    with pytest.raises(StaleEpoch):
        hosts.driver("a").pull(old, lambda _: None)
    assert hosts.driver("a").held()["b"] == 0, "a pull that outlived its process proves nothing"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epoch": EPOCH + 1}, StaleEpoch),
        ({"epoch": EPOCH - 1}, StaleEpoch),
        ({"replica": "z"}, InvalidRequest),
        ({"replica": "a"}, InvalidRequest),
        ({"index": 99}, LogTruncated),
        ({"position": 8}, InvalidRequest),
        ({"index": 1}, InvalidRequest),
    ],
)
def test_a_pull_that_names_what_is_not_so_is_refused_and_proves_nothing(
    changes: dict[str, Any], error: type[ClymqError]
) -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    held = hosts.driver("a").held()
    with pytest.raises(error):
        hosts.driver("a").pull(pull_of(hosts, **changes), lambda _: None)
    assert hosts.driver("a").held() == held


def test_a_follower_answers_no_pulls() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    with pytest.raises(NotLeader):
        hosts.driver("c").pull(pull_of(hosts), lambda _: None)


@pytest.mark.parametrize(("size", "own", "held", "visible"), [(1, 5, (), 5), (2, 5, (3,), 3), (3, 5, (3, 1), 3)])
def test_what_is_visible_is_held_by_a_majority(size: int, own: int, held: tuple[int, ...], visible: int) -> None:
    group = dataclasses.replace(Hosts(1).group, replicas=("a", "b", "c")[:size])
    holders = Holders(group, "majority")
    for name, index in zip("bc", held, strict=False):
        holders.prove(name, 1, index)
    assert holders.visible(own) == visible
    assert holders.visible(0) == 0


# --- The long poll ---


def asked(hosts: Hosts, **changes: Any) -> list[Any]:
    """Pull in the place of b, which is dead."""
    hosts.brokers["b"].alive = False
    answers: list[Any] = []
    hosts.driver("a").pull(pull_of(hosts, incarnation=77, **changes), answers.append)
    return answers


def test_a_pull_waits_until_there_is_something_or_its_time_is_over() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 1)
    (first,) = asked(hosts, wait_ms_max=100)
    assert (first.payload, first.reply.sealed) == (b"", False), "it is told what is visible"
    answers = asked(hosts, wait_ms_max=100)
    hosts.clock.advance(99)
    assert not answers
    hosts.clock.advance(1)
    (empty,) = answers
    assert not empty.payload
    answers = asked(hosts, wait_ms_max=100)
    producer.push(b"x")
    hosts.clock.advance(0)
    (found,) = answers
    assert Batch.parse(found.payload).values() == [b"x"]
    assert found.reply.position == hosts.brokers["b"].asked[-1].position
    hosts.clock.advance(500)
    assert len(answers) == 1


def test_a_pull_ends_at_the_seal_and_when_the_leader_stops() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    asked(hosts)
    answers = asked(hosts)
    assert not answers
    hosts.seal()
    assert answers[0].reply.sealed
    other = Hosts()
    pushed(other, 1)
    asked(other)
    answers = asked(other)
    other.brokers["a"].host.close()
    assert isinstance(answers[0], ClymqError)


def test_a_second_pull_of_a_replica_takes_the_place_of_the_first() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    asked(hosts)
    first, second = asked(hosts), asked(hosts)
    assert len(first) == 1
    assert not second
    with pytest.raises(StaleEpoch):
        hosts.driver("a").pull(pull_of(hosts), lambda _: None)
    assert not second, "one that outlived its process takes nobody's place"


def test_damage_is_never_sent_to_a_follower() -> None:
    hosts = Hosts()
    hosts.kill("b")
    pushed(hosts, 5, size=100)
    hosts.disks["a"].flip(LOG, hosts.driver("a").log.block.end_position - 200, 3)
    hosts.start("b")
    hosts.clock.advance(500)
    assert len(hosts.owner("a").downs) == 1
    assert not hosts.driver("a").leads
    assert hosts.log_of("a").startswith(hosts.log_of("b"))


# --- The end ---


def test_a_follower_stops_at_the_seal_tells_the_leader_and_is_whole() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    closed = hosts.seal()
    assert isinstance(closed, BlockClosed)
    hosts.clock.advance(50)
    assert [hosts.owner(name).wholes for name in "bc"] == [1, 1]
    assert hosts.driver("a").held() == {"b": closed.seal_index, "c": closed.seal_index}
    assert hosts.driver("a").log.visible.index == closed.seal_index
    count = len(hosts.brokers["b"].asked)
    hosts.clock.advance(60_000)
    assert len(hosts.brokers["b"].asked) == count
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")


def test_a_follower_is_whole_only_when_the_seal_is_on_its_disk() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.disks["b"].sync_delay_ms = 200
    hosts.seal()
    hosts.clock.advance(100)
    assert hosts.driver("b").log.block.sealed
    assert not hosts.owner("b").wholes
    hosts.clock.advance(200)
    assert hosts.owner("b").wholes == 1


def test_a_follower_behind_at_the_seal_ends_byte_equal() -> None:
    hosts = Hosts()
    hosts.kill("c")
    pushed(hosts, 30, size=100)
    hosts.seal()
    hosts.start("c")
    hosts.clock.advance(200)
    assert hosts.owner("c").wholes == 1
    assert hosts.log_of("a") == hosts.log_of("c")
    assert len(values_of(hosts.driver("c").log.block)) == 30
