"""The leader is gone: replicas are fenced, the furthest seals, the others follow; what is lost is kept and counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clymq.config import Config
from clymq.errors import BlockSealed, ClymqError, NotLeader, ReplicaLost, StaleEpoch
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.replication.entries import Genesis
from clymq.replication.fetch_lost import Lost
from clymq.replication.mend import SealMark, is_whole
from clymq.replication.raft_partition import Stored
from clymq.storage.vote import VoteFile
from fetch_hosts import CONFIG, EPOCH, FOLDER, LOG, VOTE, Hosts, Producer, seal_of, values_of

COMMIT = msgspec.structs.replace(CONFIG, fsync="commit")
WAIT_MS = CONFIG.fetch_wait_ms_max


def pushed(hosts: Hosts, count: int, *, name: str = "p") -> Producer:
    producer = hosts.producer(name)
    producer.begin()
    for n in range(count):
        producer.push(b"%s-%d" % (name.encode(), n))
        hosts.clock.advance(5)
    hosts.clock.advance(20)
    return producer


def ahead(hosts: Hosts, *, b: int, c: int, leader: int) -> Producer:
    """Let the followers hold so many messages and the leader more, all acknowledged."""
    producer = pushed(hosts, min(b, c))
    for name, count in sorted((("b", b), ("c", c)), key=lambda item: item[1]):
        while producer.cmdindex <= count:
            producer.push(b"p-%d" % (producer.cmdindex - 1))
            hosts.clock.advance(5)
        hosts.disconnect("a", name)
    while producer.cmdindex <= leader:
        producer.push(b"p-%d" % (producer.cmdindex - 1))
        hosts.clock.advance(5)
    assert len([answer for answer in producer.answers if isinstance(answer, Stored)]) == leader
    return producer


def messages(count: int) -> list[bytes]:
    return [b"p-%d" % n for n in range(count)]


# --- The fence ---


def test_the_epoch_is_on_the_disk_before_the_end_is_told() -> None:
    hosts = Hosts()
    pushed(hosts, 3)
    told: list[Any] = []

    def check(answer: Any) -> None:
        durable = hosts.disks["b"].crash(_Nothing())
        assert VoteFile.open(durable, VOTE).vote.fence_epoch == EPOCH + 1
        assert durable.contents(LOG) == hosts.log_of("b"), "and so is what it tells"
        told.append(answer)

    hosts.driver("b").fence(EPOCH + 1, check)
    hosts.clock.advance(10)
    (closed,) = told
    block = hosts.driver("b").log.block
    assert closed == BlockClosed(
        start=0,
        end=3,
        sealed=False,
        bytes=block.end_position,
        last_append_time=block.last_append_time,
        last_index=block.last_index,
    )
    assert hosts.fence("b") == closed, "a second call answers the same"


class _Nothing:
    """A power cut that takes all that is not durable."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


def test_a_fenced_follower_appends_nothing_more_from_the_leader_not_even_what_is_on_its_way() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 3)
    producer.push(b"on its way")
    hosts.clock.advance(1)  # the answer has left the leader
    before = hosts.log_of("b")
    assert isinstance(hosts.fence("b"), BlockClosed)
    producer.push(b"later")
    hosts.clock.advance(60_000)
    assert hosts.log_of("b") == before
    assert len(hosts.log_of("c")) > len(before)


def test_a_lower_epoch_is_refused_and_changes_nothing() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    assert isinstance(hosts.fence("b", EPOCH), StaleEpoch)
    assert isinstance(hosts.fence("b", EPOCH + 3), BlockClosed)
    assert isinstance(hosts.fence("b", EPOCH + 2), StaleEpoch)
    assert isinstance(hosts.seal_after_fence("b", EPOCH + 2), StaleEpoch)
    assert isinstance(hosts.seal_after_fence("c", EPOCH + 3), StaleEpoch), "never fenced"
    assert isinstance(hosts.fence("b", EPOCH + 4), BlockClosed)


def test_a_fence_outlives_a_restart() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 2)
    hosts.fence("b")
    before = hosts.log_of("b")
    hosts.restart("b", power=True)
    producer.push(b"x")
    hosts.clock.advance(20_000)
    assert hosts.log_of("b") == before
    assert isinstance(hosts.fence("b", EPOCH), StaleEpoch)
    assert isinstance(hosts.seal_after_fence("b"), BlockClosed)


def test_a_fence_that_cannot_be_saved_is_an_error_and_nothing_is_told() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.disks["b"].fail("sync", path=VOTE)
    assert isinstance(hosts.fence("b"), ReplicaLost)
    assert hosts.owner("b").downs


def test_a_damaged_vote_file_may_hide_a_fence_so_nothing_is_taken_until_the_next() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 2)
    hosts.fence("b")
    hosts.kill("b")
    hosts.disks["b"].flip(VOTE, 20, 1)  # the slot of the fence
    hosts.start("b")
    assert hosts.driver("b").log.replica.fence_epoch == 0
    before = hosts.log_of("b")
    producer.push(b"x")
    hosts.clock.advance(20_000)
    assert hosts.log_of("b") == before
    assert isinstance(hosts.owner("b").downs[0], ReplicaLost)
    assert isinstance(hosts.fence("b"), ReplicaLost), "it does not count for what it may have told before"
    hosts.fence("c")
    closed = hosts.seal_after_fence("c")
    hosts.fence("b", source="c")
    hosts.clock.advance(100)
    assert hosts.fence("b") == closed


@pytest.mark.parametrize("config", [CONFIG, COMMIT])
def test_a_fenced_leader_acknowledges_nothing_more_and_serves_nobody(config: Any) -> None:
    hosts = Hosts(config=config)
    producer = pushed(hosts, 1)
    hosts.disks["a"].sync_delay_ms = 50
    producer.push(b"on its way")
    if config is COMMIT:
        hosts.clock.advance(1)  # written, not synced
    answers: list[Any] = []
    hosts.driver("a").seal(EPOCH + 1, answers.append) if config is COMMIT else None
    told = hosts.fence("a", EPOCH + 2)
    assert isinstance(told, BlockClosed)
    assert not told.sealed, "a seal under way is given up"
    hosts.clock.advance(1000)
    assert isinstance(producer.answers[-1], ClymqError)
    assert all(isinstance(answer, ClymqError) for answer in answers)
    with pytest.raises(StaleEpoch):
        producer.push(b"later")
    with pytest.raises(NotLeader):
        hosts.driver("a").pull(hosts.brokers["b"].asked[-1], lambda _: None)
    assert isinstance(hosts.seal(epoch=EPOCH + 2), NotLeader)
    closed = hosts.seal_after_fence("a", EPOCH + 2)
    assert isinstance(closed, BlockClosed)
    assert closed.last_index == told.last_index + 1


# --- Sealing after it ---


def test_the_furthest_seals_with_its_state_and_the_others_pull_until_the_seal() -> None:
    hosts = Hosts()
    producer = ahead(hosts, b=10, c=6, leader=10)
    hosts.kill("a")
    closed = hosts.fail_over("b", "c")
    assert (closed.end, closed.sealed) == (10, True)
    assert hosts.log_of("b") == hosts.log_of("c")
    assert hosts.owner("c").wholes == 1
    assert values_of(hosts.driver("c").log.block) == messages(10)
    last = Batch.parse(hosts.log_of("b"), closed.bytes - _last_length(hosts))
    assert last.term == EPOCH + 1
    assert seal_of(hosts.driver("b").log.block).end == 10
    assert hosts.seal_after_fence("b") == closed, "a second call answers the same"
    assert hosts.fence("c") == closed
    assert producer.cmdindex == 11


def _last_length(hosts: Hosts) -> int:
    block = hosts.driver("b").log.block
    return block.end_position - block.position_of(block.last_index)


def test_the_seal_is_on_the_disk_before_it_is_told() -> None:
    hosts = Hosts()
    pushed(hosts, 1)
    hosts.fence("b")
    hosts.disks["b"].sync_delay_ms = 100
    answers: list[Any] = []
    hosts.driver("b").seal_after_fence(EPOCH + 1, answers.append)
    hosts.driver("b").seal_after_fence(EPOCH + 1, answers.append)
    hosts.clock.advance(90)
    assert not answers
    hosts.clock.advance(200)
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert hosts.disks["b"].crash(_Nothing()).contents(LOG) == hosts.log_of("b")


def test_readers_see_no_more_through_a_seal_until_the_chain_names_it() -> None:
    """Two seals may be made of one block, when the one who made the first is silent; the chain takes one."""
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=10)
    seen = hosts.driver("c").visible_end
    hosts.kill("a")
    closed = hosts.fail_over("b", "c")
    assert hosts.driver("c").visible_end == seen
    assert hosts.driver("c").accept(SealMark(closed.seal_index, closed.seal_crc + 1)) is False
    assert hosts.driver("c").accept(SealMark(closed.seal_index, closed.seal_crc)) is True
    assert hosts.driver("c").visible_end == 10


def test_a_leader_that_sealed_after_a_fence_shows_no_more_because_others_hold_it() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=15)
    seen = hosts.driver("a").visible_end
    assert seen == 10
    hosts.cut.clear()
    closed = hosts.fail_over("a", "b")
    hosts.clock.advance(2 * WAIT_MS)
    assert hosts.log_of("a") == hosts.log_of("b")
    assert hosts.driver("a").visible_end == seen
    assert hosts.driver("a").accept(SealMark(closed.seal_index, closed.seal_crc))
    assert hosts.driver("a").visible_end == 15


def test_pulls_under_the_fence_are_answered_only_by_who_has_sealed() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=10)
    hosts.kill("a")
    hosts.fence("b")
    hosts.fence("c", source="b")
    hosts.clock.advance(3000)
    assert hosts.driver("c").log.block.end_offset == 6
    assert isinstance(hosts.seal_after_fence("b"), BlockClosed)
    hosts.clock.advance(3000)
    assert hosts.log_of("b") == hosts.log_of("c")


def test_a_replica_beyond_the_sealed_end_keeps_what_it_has_until_the_chain_has_spoken() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=15)
    before = hosts.log_of("a")
    hosts.brokers["a"].alive = False
    hosts.fail_over("b", "c")
    hosts.brokers["a"].alive = True
    hosts.fence("a", source="b")
    hosts.clock.advance(5000)
    assert hosts.log_of("a") == before


def test_a_fenced_leader_that_is_there_after_all_loses_nothing() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=15)
    closed = hosts.fail_over("a", "b", "c")
    assert closed.end == 15
    hosts.cut.clear()
    hosts.clock.advance(2 * WAIT_MS)
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")


def test_a_replica_that_knows_what_it_lost_does_not_count_until_it_has_it_again() -> None:
    hosts = Hosts()
    pushed(hosts, 10)
    hosts.clock.advance(2000)  # a checkpoint knows how much was visible
    hosts.kill("b")
    hosts.disks["b"].flip(LOG, len(hosts.log_of("b")) - 900, 3)
    hosts.disconnect("a", "b")
    hosts.start("b")
    assert hosts.driver("b").log.replica.missing_through
    assert isinstance(hosts.fence("b"), ReplicaLost)
    assert isinstance(hosts.seal_after_fence("b"), ReplicaLost)
    assert VoteFile.open(hosts.disks["b"], VOTE).vote.fence_epoch == EPOCH + 1, "fenced it is all the same"
    hosts.fence("c")
    closed = hosts.seal_after_fence("c")
    assert isinstance(closed, BlockClosed)
    hosts.fence("b", source="c")
    hosts.clock.advance(1000)
    assert hosts.fence("b") == closed
    assert hosts.log_of("b") == hosts.log_of("c")


def test_a_lame_replica_seals_only_when_somebody_decides_to_trust_it() -> None:
    hosts = Hosts()
    pushed(hosts, 10)
    hosts.clock.advance(2000)
    hosts.kill("a")
    hosts.kill("b")
    hosts.disks["b"].flip(LOG, len(hosts.log_of("b")) - 900, 3)
    hosts.start("b")
    assert isinstance(hosts.fence("b"), ReplicaLost)
    told = hosts.told(lambda done: hosts.driver("b").fence(EPOCH + 1, done, trusted=True))
    assert isinstance(told, BlockClosed)
    assert (told.end, told.sealed) == (7, False)
    closed = hosts.told(lambda done: hosts.driver("b").seal_after_fence(EPOCH + 1, done, trusted=True))
    assert isinstance(closed, BlockClosed)
    assert closed.end == 7
    hosts.restart("b")
    assert hosts.fence("b") == closed, "what it had lost is not missing any more"
    assert hosts.driver("b").log.block.loss is None


# --- A block that nobody had pulled anything of ---


def unpulled(hosts: Hosts) -> BlockClosed:
    """Take the leader away before anybody has anything, and let b end the block."""
    hosts.fence("b")
    closed = hosts.seal_after_fence("b")
    assert isinstance(closed, BlockClosed)
    return closed


def cut_off(config: Config = CONFIG) -> Hosts:
    """Return a block whose leader has something that its followers never heard of."""
    hosts = Hosts(cut=True, config=config, genesis=Genesis(uid=b"u" * 16, snapshot=_snapshot()))
    pushed(hosts, 3)
    assert hosts.log_of("b") == hosts.log_of("c") == b""
    return hosts


def _snapshot() -> bytes:
    """The state at the end of a block in which p stored one message."""
    before = Hosts(1)
    pushed(before, 1)
    before.seal()
    return seal_of(before.driver("a").log.block).snapshot


def test_whoever_seals_an_empty_log_begins_it_first_so_that_the_next_block_knows_the_state() -> None:
    hosts = cut_off()
    hosts.kill("a")
    closed = unpulled(hosts)
    assert (closed.start, closed.end, closed.seal_index) == (0, 0, 2)
    assert seal_of(hosts.driver("b").log.block).snapshot == _snapshot()
    hosts.cut.clear()
    hosts.fence("c", source="b")
    hosts.clock.advance(100)
    assert hosts.log_of("b") == hosts.log_of("c")
    assert hosts.seal_after_fence("b") == closed


@pytest.mark.parametrize("visibility", ["majority", "leader"])
def test_a_leader_that_returns_to_such_a_block_keeps_nothing_of_its_own(visibility: str) -> None:
    hosts = cut_off(msgspec.structs.replace(CONFIG, fetch_visibility=visibility))
    closed = unpulled(hosts)
    hosts.cut.clear()
    hosts.fence("a", source="b")
    hosts.clock.advance(3000)
    assert not hosts.driver("a").log.block.sealed
    lost = hosts.mend("a", closed, "b")
    assert lost.messages == 3
    assert hosts.log_of("a") == hosts.log_of("b")


def test_a_follower_with_the_leaders_first_entry_does_not_put_the_others_seal_behind_it() -> None:
    hosts = cut_off()
    leader = hosts.driver("a").log.block
    first = Batch.parse(bytes(leader.read_at(0, 1, leader.end_position)))
    hosts.driver("c").log.write([first])
    closed = unpulled(hosts)
    hosts.cut.clear()
    hosts.fence("c", source="b")
    hosts.clock.advance(3000)
    assert not hosts.driver("c").log.block.sealed
    assert hosts.mend("c", closed, "b").messages == 0
    assert hosts.log_of("c") == hosts.log_of("b")


def test_half_of_such_a_block_is_nobodys_after_a_crash() -> None:
    hosts = cut_off()
    hosts.kill("a")
    unpulled(hosts)
    block = hosts.driver("b").log.block
    hosts.disks["b"].open(LOG).truncate(block.position_of(2))
    hosts.restart("b")
    assert hosts.driver("b").log.block.last_index == 0
    assert isinstance(hosts.seal_after_fence("b"), BlockClosed)


def test_a_full_disk_leaves_such_a_block_empty_and_it_may_be_tried_again() -> None:
    hosts = cut_off()
    hosts.fence("b")
    hosts.disks["b"].fail("write", path=LOG, full=True)
    assert isinstance(hosts.seal_after_fence("b"), ClymqError)
    assert hosts.driver("b").log.machine.applied == 0
    assert isinstance(hosts.seal_after_fence("b"), BlockClosed)


# --- What is lost ---


def test_exactly_what_no_fenced_replica_had_pulled_is_lost_kept_and_counted() -> None:
    hosts = Hosts()
    producer = ahead(hosts, b=10, c=6, leader=15)
    tail = hosts.log_of("a")[len(hosts.log_of("b")) :]
    hosts.kill("a")
    closed = hosts.fail_over("b", "c")
    assert values_of(hosts.driver("b").log.block) == messages(10)
    hosts.cut.clear()
    hosts.start("a")
    assert hosts.owner("a").moves == ["a has begun anew"]
    lost = hosts.mend("a", closed, "b")
    assert (lost.messages, lost.bytes) == (5, len(tail))
    assert lost.path is not None
    assert lost.path.endswith(".lost")
    assert hosts.disks["a"].contents(lost.path) == tail
    assert hosts.log_of("a") == hosts.log_of("b") == hosts.log_of("c")
    assert is_whole(hosts.reopened("a"), SealMark(closed.seal_index, closed.seal_crc))
    assert producer.cmdindex == 16


def test_what_readers_of_a_leader_saw_is_cut_too_if_the_chain_ends_before_it() -> None:
    hosts = Hosts(config=msgspec.structs.replace(CONFIG, fetch_visibility="leader"))
    ahead(hosts, b=10, c=6, leader=15)
    hosts.clock.advance(2000)
    assert hosts.driver("a").visible_end == 15
    assert hosts.driver("a").log.block.checkpoint.commit_index > 0
    hosts.kill("a", power=True)
    closed = hosts.fail_over("b", "c")
    hosts.cut.clear()
    hosts.start("a")
    lost = hosts.mend("a", closed, "b")
    assert lost.messages == 5
    block = hosts.reopened("a")
    assert block.loss is None
    assert values_of(block, block.committed_position) == messages(10)


def test_a_seal_that_the_chain_did_not_choose_is_cut_and_no_message_with_it() -> None:
    """The sealer of the first attempt was silent at the second, and the old leader, which had more, was there."""
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=15)
    hosts.fence("b")
    assert isinstance(hosts.seal_after_fence("b"), BlockClosed)
    closed = hosts.fail_over("a", "c")
    assert closed.end == 15
    lost = hosts.mend("b", closed, "a")
    assert lost.messages == 0
    assert lost.bytes > 0
    assert hosts.log_of("a") == hosts.log_of("b")


def test_a_replica_that_is_whole_or_only_behind_loses_nothing() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=10)
    hosts.kill("a")
    hosts.fence("b")
    closed = hosts.seal_after_fence("b")
    assert isinstance(closed, BlockClosed)
    assert hosts.mend("c", closed, "b") == Lost()
    assert not [name for name in hosts.disks["c"].names(FOLDER) if name.endswith(".lost")]
    assert hosts.log_of("b") == hosts.log_of("c")


def test_a_producer_learns_from_the_next_block_what_was_lost() -> None:
    hosts = Hosts()
    ahead(hosts, b=10, c=6, leader=15)
    hosts.kill("a")
    hosts.fail_over("b", "c")
    machine = hosts.driver("b").log.machine
    (producer,) = machine._state.producers.by_id.values()
    assert producer.last == 10


def test_pushes_to_a_sealed_block_are_refused() -> None:
    hosts = Hosts()
    producer = pushed(hosts, 1)
    hosts.seal()
    with pytest.raises(BlockSealed):
        producer.push()
