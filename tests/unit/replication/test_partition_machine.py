"""The state is a function of the log: applied in order, checkpointed, handed from block to block."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clymq.config import Config
from clymq.errors import BlockSealed, CorruptBatch, InvalidRequest, NotReady
from clymq.record import Batch, control_batch
from clymq.replication.cursors import (
    ACKED_RANGES_MAX,
    COUNTED_RANGES_MAX,
    DEAD_LETTERS_MAX,
    PSB_GROUPS_MAX,
    PTP_GROUPS_MAX,
    Cursor,
    DeadLetter,
    Group,
    Groups,
    Segment,
)
from clymq.replication.entries import (
    EPOCH_MAX,
    NUMBER_MAX,
    REASON_CHARACTERS_MAX,
    Ack,
    BeLeader,
    Commit,
    EndedLease,
    Genesis,
    HandOver,
    Range,
    Seal,
    Timeout,
    batch_of,
    encode,
)
from clymq.replication.handed_over import HANDED_OVER_BYTES_MAX
from clymq.replication.machine import PRODUCERS_MAX, Elected, PartitionMachine, State, _encode
from clymq.replication.producers import (
    KEPT_BATCHES,
    Duplicate,
    Initialised,
    Producers,
    ProducerState,
    StoredBatch,
)
from unit.replication.leader import DAY_US, UID, Leader, named


def busy() -> Leader:
    """A leader with something in every corner of its state."""
    leader = Leader()
    for name in ("p", "q"):
        leader.init(name)
        leader.push(name, 1, 3)
        leader.push(name, 7, 2, sparse=True)
    leader.apply()
    leader.commit(Ack(group="g", ranges=(Range(0, 2), Range(4, 5))))
    leader.commit(Timeout(ended=(EndedLease("g", Range(2, 6)),)))
    leader.commit(Commit(group="h", offset=5))
    leader.commit(leader.machine.dead("g", Range(2, 3), "poison"))
    return leader


# --- In order ---


@pytest.mark.parametrize("index", [0, 2, 4, 5])
def test_an_entry_is_applied_only_after_the_one_before_it(index: int) -> None:
    leader = Leader()
    before = leader.machine.checkpoint()
    batch = leader.append(batch_of(Commit(group="g", offset=1)))
    with pytest.raises(InvalidRequest, match="after entry 2"):
        leader.machine.apply(index, batch)
    assert leader.machine.checkpoint() == before
    leader.machine.apply(3, batch)
    assert leader.machine.applied == 3


def test_a_control_entry_that_cannot_be_read_stops_the_replica() -> None:
    leader = Leader()
    leader.append(control_batch(b"\x80"))
    with pytest.raises(CorruptBatch, match="kind"):
        leader.apply()
    assert leader.machine.applied == 2


def test_the_flag_of_a_seal_and_its_entry_must_agree() -> None:
    leader = Leader()
    leader.append(control_batch(encode(Commit(group="g", offset=1)), seal=True))
    with pytest.raises(CorruptBatch, match="flags"):
        leader.apply()


# --- Leadership ---


def test_the_winner_of_an_election_is_named_to_every_replica() -> None:
    leader = Leader()
    follower = PartitionMachine()
    answers = [follower.apply(batch.index, batch) for batch in leader.log]
    assert answers == [None, Elected("Broker0", 1, ())]
    assert (leader.machine.leading, follower.leading) == (True, False)


# --- Checkpoints ---


def test_a_restored_machine_is_the_same_to_the_byte_and_goes_on() -> None:
    leader = busy()
    restored = PartitionMachine()
    restored.restore(leader.machine.checkpoint())
    assert restored.applied == leader.machine.applied
    assert restored.checkpoint() == leader.machine.checkpoint()
    leader.push("p", 8)
    leader.apply()
    restored.apply(leader.log[-1].index, leader.log[-1])
    assert restored.checkpoint() == leader.machine.checkpoint()


def test_a_duplicate_is_still_told_its_original_offset_after_a_restore() -> None:
    leader = busy()
    leader.machine.restore(leader.machine.checkpoint())
    leader.elect()
    assert leader.push("q", 1, 3) == Duplicate(5, 0)
    assert leader.push("q", 7, 2, sparse=True) == Duplicate(8, 0)


def test_a_dead_letter_keeps_its_number_after_a_restore() -> None:
    leader = busy()
    leader.machine.restore(leader.machine.checkpoint())
    leader.elect()
    assert leader.machine.dead_letters("g") == {1: DeadLetter(Range(2, 3), "poison")}
    assert leader.machine.dead("g", Range(3, 4), "").seq == 2


def test_what_is_only_submitted_is_not_in_a_checkpoint() -> None:
    leader = busy()
    before = leader.machine.checkpoint()
    leader.push("p", 8)
    assert leader.machine.checkpoint() == before


def test_leadership_does_not_survive_a_restore() -> None:
    leader = busy()
    leader.machine.restore(leader.machine.checkpoint())
    assert not leader.machine.leading


def test_an_empty_checkpoint_is_the_beginning() -> None:
    machine = busy().machine
    machine.restore(b"")
    assert machine.checkpoint() == PartitionMachine().checkpoint()


def test_equal_states_give_equal_bytes_whatever_the_order_they_came_about_in() -> None:
    checkpoints = set()
    for names in ("abc", "cab", "bca"):
        leader = Leader()
        for name in names:
            leader.propose(leader.machine.init_producer(named(name), now=leader.now))
            leader.propose(Ack(group=name, ranges=(Range(5, 6),)))
            leader.propose(Commit(group=name, offset=1))
        leader.apply()
        checkpoints.add(leader.machine.checkpoint())
    assert len(checkpoints) == 1


@pytest.mark.parametrize(("state", "field"), [(b"\xc1", "state"), (b"\x81\xa7applied\xff", "applied")])
def test_a_checkpoint_that_cannot_be_read_is_corrupt_and_nothing_changes(state: bytes, field: str) -> None:
    machine = busy().machine
    before = machine.checkpoint()
    with pytest.raises(CorruptBatch) as caught:
        machine.restore(state)
    assert caught.value.field == field
    assert machine.checkpoint() == before


# --- From block to block ---


def test_the_next_block_goes_on_with_the_state_and_counts_its_entries_anew() -> None:
    leader = busy()
    following = leader.next_block(leader.seal())
    assert following.machine.applied == 2
    assert following.push("q", 1, 3) == Duplicate(5, 0)
    assert following.machine.cursor("g") == leader.machine.cursor("g")
    assert following.machine.position("h") == 5
    assert following.machine.dead_letters("g") == leader.machine.dead_letters("g")


def test_a_duplicate_is_refused_after_many_rolls() -> None:
    leader = busy()
    for _ in range(5):
        leader = leader.next_block(leader.seal())
    assert leader.push("p", 1, 3) == Duplicate(0, 0)
    assert leader.init("p") == Initialised(2, 8, (StoredBatch(1, 3, 0, False), StoredBatch(7, 2, 3, True)))


@pytest.mark.parametrize(
    "write",
    [
        lambda leader: leader.commit(Commit(group="g", offset=1)),
        lambda leader: leader.init("new"),
        lambda leader: leader.push("p", 8),
    ],
    ids=["control", "producer", "data"],
)
def test_leases_reach_the_leaders_of_the_next_block_until_one_of_them_has_written_something(
    write: Callable[[Leader], object],
) -> None:
    """A leader may be gone before it has done anything: then the next one goes on with them."""
    leader = busy()
    following = leader.next_block(leader.seal(leases=(b"one", b"two")))
    assert following.elected == Elected("Broker0", 1, (b"one", b"two"))
    following.lose_leadership()
    assert following.elect() == Elected("Broker0", 2, (b"one", b"two"))
    write(following)
    following.apply()
    following.lose_leadership()
    assert following.elect() == Elected("Broker0", 3, ())


def test_leases_that_a_leader_hands_over_reach_the_next_one() -> None:
    leader = busy()
    leader.commit(HandOver(leases=(b"one",)))
    leader.lose_leadership()
    assert leader.elect() == Elected("Broker0", 2, (b"one",))
    leader.commit(HandOver())
    leader.lose_leadership()
    assert leader.elect() == Elected("Broker0", 3, ())


def test_leases_wait_for_a_leader_through_a_checkpoint() -> None:
    leader = Leader()
    machine = PartitionMachine()
    machine.apply(1, leader.append(batch_of(Genesis(uid=UID, leases=(b"one",)))))
    machine.restore(machine.checkpoint())
    answer = machine.apply(2, leader.append(batch_of(BeLeader(replica="Broker1"))))
    assert answer == Elected("Broker1", 1, (b"one",))


def test_nothing_is_applied_after_a_seal_also_after_a_restore() -> None:
    leader = busy()
    leader.seal()
    for _ in range(2):
        with pytest.raises(BlockSealed):
            leader.push("p", 8)
        batch = leader.append(batch_of(Commit(group="g", offset=1)))
        with pytest.raises(CorruptBatch, match="follows the SEAL"):
            leader.machine.apply(leader.machine.applied + 1, batch)
        leader.machine.restore(leader.machine.checkpoint())


def test_a_seal_drops_producers_that_were_idle_for_too_long() -> None:
    leader = busy()
    leader.now += 5 * DAY_US
    leader.push("p", 8)
    leader.apply()
    leader.now += 5 * DAY_US
    seal = leader.seal()
    assert seal.expired == (named("q"),)
    assert leader.machine.producer(named("q")) is None
    following = leader.next_block(seal)
    assert following.machine.producer(named("q")) is None
    assert following.machine.producer(named("p")) is not None
    assert following.init("q") == Initialised(2, 1, ())


def test_a_seal_is_not_appended_while_entries_before_it_are_not_applied() -> None:
    leader = busy()
    leader.push("p", 8)
    with pytest.raises(NotReady):
        leader.propose(leader.machine.seal(end=leader.end, now=leader.now))


def test_a_seal_that_was_made_too_early_is_not_appended() -> None:
    leader = busy()
    seal = leader.machine.seal(end=leader.end, now=leader.now)
    leader.commit(Commit(group="g", offset=1))
    with pytest.raises(CorruptBatch, match="snapshot"):
        leader.propose(seal)


def test_a_replica_that_has_gone_astray_stops_at_the_seal() -> None:
    leader = busy()
    leader.seal()
    astray = PartitionMachine()
    for batch in leader.log[:-1]:
        astray.apply(batch.index, batch)
    astray._state.groups.psb["h"] += 1
    with pytest.raises(CorruptBatch, match="snapshot"):
        astray.apply(leader.log[-1].index, leader.log[-1])


def test_a_seal_must_name_the_end_of_the_log() -> None:
    leader = busy()
    with pytest.raises(CorruptBatch, match="end"):
        leader.propose(leader.machine.seal(end=leader.end + 1, now=leader.now))


def test_a_replica_that_does_not_lead_can_make_the_seal_of_a_fenced_block() -> None:
    leader = busy()
    follower = PartitionMachine()
    for batch in leader.log:
        follower.apply(batch.index, batch)
    assert follower.seal(end=leader.end, now=leader.now) == leader.seal()


def test_a_genesis_is_the_first_entry_or_none() -> None:
    leader = busy()
    leader.append(batch_of(Genesis(uid=UID)))
    with pytest.raises(CorruptBatch, match="Genesis"):
        leader.apply()


def test_a_genesis_does_not_take_a_checkpoint_for_a_snapshot() -> None:
    with pytest.raises(CorruptBatch, match="snapshot"):
        Leader(snapshot=busy().machine.checkpoint())


def test_the_largest_state_fits_into_a_seal() -> None:
    """The bounds of the tables are chosen for this: a partition that could not be sealed could never move again."""
    high = NUMBER_MAX - 1_000_000
    kept = tuple(StoredBatch(high, EPOCH_MAX, high, True) for _ in range(KEPT_BATCHES))
    producers = {n.to_bytes(16, "big"): ProducerState(EPOCH_MAX, high, high, kept) for n in range(PRODUCERS_MAX)}
    segments = [Segment(high, high, EPOCH_MAX)] * (ACKED_RANGES_MAX + COUNTED_RANGES_MAX)
    names = [f"{n:0200}" for n in range(PSB_GROUPS_MAX)]
    groups = {name: Group(Cursor(high, segments), high) for name in names[:PTP_GROUPS_MAX]}
    letter = DeadLetter(Range(high, high + 1), "京" * REASON_CHARACTERS_MAX, EPOCH_MAX)
    groups[names[0]].dead = {high + n: letter for n in range(DEAD_LETTERS_MAX)}
    state = State(producers=Producers(producers, EPOCH_MAX), groups=Groups(groups, dict.fromkeys(names, high)))
    machine = PartitionMachine()
    machine.restore(_encode(state))
    batch = Batch.parse(batch_of(Seal(end=high, snapshot=machine.seal(end=high, now=0).snapshot)))
    assert batch.body_length < 0.9 * Config().batch_bytes_max
    assert batch.body_length + 1.2 * HANDED_OVER_BYTES_MAX < Config().batch_bytes_max
