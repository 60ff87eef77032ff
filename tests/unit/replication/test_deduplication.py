"""Each command is in the log once, and whoever sends it again is told where it is."""

from __future__ import annotations

import pytest

from clymq.errors import (
    BlockSealed,
    CorruptBatch,
    InvalidRequest,
    NotReady,
    OutOfSequence,
    ProducerFenced,
    TooManyProducers,
    UnknownProducer,
)
from clymq.record import Batch
from clymq.replication.entries import EPOCH_MAX, Producer, batch_of
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import KEPT_BATCHES, Claim, Duplicate, Initialised, Producers, StoredBatch, Submitted
from unit.replication.leader import DAY_US, HOUR_US, Leader, data, named


@pytest.fixture
def leader() -> Leader:
    leader = Leader()
    leader.init("p")
    return leader


# --- What is judged how ---


def test_the_first_message_of_a_producer_is_appended(leader: Leader) -> None:
    assert isinstance(leader.push("p", 1), Batch)


def test_a_batch_that_was_applied_is_a_duplicate_with_its_original_offset(leader: Leader) -> None:
    leader.push("p", 1, 3)
    leader.push("p", 4, 2)
    leader.apply()
    assert leader.push("p", 1, 3) == Duplicate(0, 3 + 1)
    assert leader.push("p", 4, 2) == Duplicate(3, 3 + 2)
    assert leader.machine.applied >= 3 + 2


def test_a_batch_that_was_applied_before_this_term_is_answered_at_once(leader: Leader) -> None:
    leader.push("p", 1, 3)
    leader.apply()
    leader.lose_leadership()
    leader.elect()
    assert leader.push("p", 1, 3) == Duplicate(0, 0)


def test_a_duplicate_in_flight_waits_for_the_entry_that_carries_it(leader: Leader) -> None:
    first, second = leader.push("p", 1, 3), leader.push("p", 4, 3)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert leader.push("p", 1, 3) == Duplicate(0, first.index)
    assert leader.push("p", 4, 3) == Duplicate(3, second.index)
    assert len(leader.log) == second.index > leader.machine.applied


def test_a_duplicate_of_what_is_applied_does_not_wait_for_what_is_in_flight(leader: Leader) -> None:
    leader.push("p", 1)
    leader.apply()
    leader.push("p", 2)
    duplicate = leader.push("p", 1)
    assert isinstance(duplicate, Duplicate)
    assert duplicate.index <= leader.machine.applied


def test_more_batches_in_flight_than_are_kept_are_still_waited_for_one_by_one(leader: Leader) -> None:
    first = leader.push("p", 1)
    assert isinstance(first, Batch)
    for cmdindex in range(2, KEPT_BATCHES + 3):
        leader.push("p", cmdindex)
    assert leader.push("p", 1) == Duplicate(-1, first.index)


def test_a_control_batch_cannot_be_pushed(leader: Leader) -> None:
    batch = Batch.parse(batch_of(Producer(producer=named("p"), epoch=9)))
    with pytest.raises(InvalidRequest, match="not pushed"):
        leader.machine.judge(batch)


def test_a_gap_is_refused_with_the_number_expected(leader: Leader) -> None:
    leader.push("p", 1, 3)
    with pytest.raises(OutOfSequence) as caught:
        leader.push("p", 5)
    assert caught.value.expected == 4
    assert caught.value.hint


def test_a_partial_overlap_is_refused_with_the_number_expected(leader: Leader) -> None:
    leader.push("p", 1, 3)
    with pytest.raises(OutOfSequence) as caught:
        leader.push("p", 3, 2)
    assert caught.value.expected == 4


def test_a_refused_batch_leaves_no_trace(leader: Leader) -> None:
    leader.push("p", 1, 3)
    with pytest.raises(OutOfSequence):
        leader.push("p", 5)
    assert isinstance(leader.push("p", 4), Batch)


def test_an_unknown_producer_is_told_to_initialise(leader: Leader) -> None:
    with pytest.raises(UnknownProducer, match="InitProducer"):
        leader.push("q", 1)


def test_producers_do_not_disturb_each_other(leader: Leader) -> None:
    leader.init("q")
    assert isinstance(leader.push("p", 1, 2), Batch)
    assert isinstance(leader.push("q", 1, 2), Batch)
    assert isinstance(leader.push("p", 3, 2), Batch)
    leader.apply()
    assert leader.push("q", 1, 2) == Duplicate(2, 6)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("cmdindex", [0, 2**63, 2**64 - 1])
def test_numbers_that_could_not_be_counted_on_from_are_refused(leader: Leader, cmdindex: int, sparse: bool) -> None:
    batch = Batch.parse(data("p", 1, sparse=sparse))
    batch.cmdindex = cmdindex  # the builder would refuse 0, but not everybody uses it
    with pytest.raises(InvalidRequest, match="numbers go from 1"):
        leader.machine.judge(batch)


def test_the_highest_number_is_still_stored_and_checkpointed(leader: Leader) -> None:
    leader.push("p", 2**63 - 1, sparse=True)
    leader.apply()
    leader.machine.restore(leader.machine.checkpoint())
    leader.elect()
    assert leader.init("p").next == 2**63


# --- What a duplicate is told ---


def test_offsets_older_than_the_kept_batches_are_answered_as_unknown(leader: Leader) -> None:
    for cmdindex in range(1, KEPT_BATCHES + 2):
        leader.push("p", cmdindex)
    leader.apply()
    leader.lose_leadership()
    leader.elect()
    assert leader.push("p", 1) == Duplicate(-1, 0)
    assert leader.push("p", 2) == Duplicate(1, 0)


@pytest.mark.parametrize(
    ("cmdindex", "count", "sparse", "base_offset"),
    [
        (1, 4, False, 0),
        (2, 3, False, 1),
        (2, 1, False, 1),
        (3, 3, False, -1),  # across two batches, which need not lie together
        (1, 1, True, -1),
        (9, 2, True, 6),
        (9, 3, True, -1),
        (9, 1, False, -1),
        (8, 1, True, -1),  # in a gap: never stored, but it may not come any more
    ],
)
def test_a_duplicate_that_was_cut_differently_is_told_an_offset_only_if_it_is_certain(
    leader: Leader, cmdindex: int, count: int, sparse: bool, base_offset: int
) -> None:
    leader.push("p", 1, 4)
    leader.push("p", 5, 2)
    leader.push("p", 9, 2, sparse=True)
    leader.apply()
    duplicate = leader.push("p", cmdindex, count, sparse=sparse)
    assert isinstance(duplicate, Duplicate)
    assert duplicate.base_offset == base_offset


# --- SPARSE ---


def test_a_sparse_batch_may_leave_a_gap_and_covers_one_number(leader: Leader) -> None:
    assert isinstance(leader.push("p", 2**20, 5, sparse=True), Batch)
    assert isinstance(leader.push("p", 2**20 + 1, 5, sparse=True), Batch)
    leader.apply()
    assert leader.init("p").next == 2**20 + 2


def test_a_sparse_number_must_grow(leader: Leader) -> None:
    sent = leader.push("p", 100, 5, sparse=True)
    assert isinstance(sent, Batch)
    assert leader.push("p", 100, 5, sparse=True) == Duplicate(0, sent.index)
    assert leader.push("p", 99, 5, sparse=True) == Duplicate(-1, sent.index)


def test_a_dense_batch_after_a_sparse_one_follows_its_number(leader: Leader) -> None:
    leader.push("p", 100, 5, sparse=True)
    with pytest.raises(OutOfSequence) as caught:
        leader.push("p", 105)
    assert caught.value.expected == 101
    assert isinstance(leader.push("p", 101, 3), Batch)


# --- Leadership ---


def test_nothing_is_judged_before_the_leaders_first_entry_is_applied() -> None:
    machine = PartitionMachine()
    for _ in range(2):
        with pytest.raises(NotReady):
            machine.judge(Batch.parse(data("p", 1)))
        with pytest.raises(NotReady):
            machine.init_producer(named("p"), now=0)
        machine.lead(1)
    assert not machine.leading


def test_a_resend_is_accepted_after_lost_leadership_if_the_batch_is_lost(leader: Leader) -> None:
    leader.push("p", 1, 3)
    leader.lose_leadership(keep=0)
    leader.elect()
    assert isinstance(leader.push("p", 1, 3), Batch)


def test_a_resend_is_a_duplicate_after_lost_leadership_if_the_batch_survived(leader: Leader) -> None:
    leader.push("p", 1, 3)
    leader.push("p", 4, 3)
    leader.lose_leadership(keep=1)
    leader.elect()
    assert leader.push("p", 1, 3) == Duplicate(0, 0)
    assert isinstance(leader.push("p", 4, 3), Batch)


def test_a_replica_that_lost_leadership_judges_nothing(leader: Leader) -> None:
    leader.lose_leadership()
    assert not leader.machine.leading
    with pytest.raises(NotReady):
        leader.push("p", 1)


def test_a_leader_of_old_does_not_take_its_own_entry_for_a_new_election(leader: Leader) -> None:
    again = PartitionMachine()
    again.lead(leader.term + 1)
    for batch in leader.log:
        again.apply(batch.index, batch)
    assert not again.leading


def test_what_is_submitted_equals_what_is_applied_once_all_of_it_is(leader: Leader) -> None:
    follower = Leader()
    follower.log = leader.log
    leader.push("p", 1, 3)
    leader.propose(leader.machine.init_producer(named("q"), now=leader.now))
    leader.push("p", 4, 3)
    leader.apply()
    follower.apply()
    assert leader.machine.checkpoint() == follower.machine.checkpoint()


def test_a_batch_that_was_never_judged_stops_the_replica(leader: Leader) -> None:
    for bad, field in [
        (data("q", 1), "producer"),
        (data("p", 2), "cmdindex"),
        (data("p", 1, epoch=2), "epoch"),
    ]:
        before = leader.machine.checkpoint()
        batch = leader.append(bad)
        with pytest.raises(CorruptBatch) as caught:
            leader.apply()
        assert caught.value.field == field
        assert leader.machine.checkpoint() == before
        leader.log.remove(batch)


# --- InitProducer and epochs ---


def test_a_new_producer_begins_with_epoch_one_and_number_one() -> None:
    assert Leader().init("p") == Initialised(1, 1, ())


def test_a_restarted_producer_goes_on_after_the_last_number_under_a_new_epoch(leader: Leader) -> None:
    leader.push("p", 1, 3)
    leader.push("p", 4, 2)
    kept = (StoredBatch(1, 3, 0, False), StoredBatch(4, 2, 3, False))
    assert leader.init("p") == Initialised(2, 6, kept)
    assert isinstance(leader.push("p", 6, epoch=2), Batch)


def test_the_old_process_is_fenced_even_for_a_duplicate(leader: Leader) -> None:
    leader.push("p", 1)
    leader.init("p")
    for cmdindex in (1, 2):
        with pytest.raises(ProducerFenced, match="another process"):
            leader.push("p", cmdindex, epoch=1)


def test_the_old_process_is_fenced_from_when_the_new_epoch_is_appended(leader: Leader) -> None:
    sent = leader.push("p", 1, 2)
    assert isinstance(sent, Batch)
    leader.propose(leader.machine.init_producer(named("p"), now=leader.now))
    with pytest.raises(ProducerFenced):
        leader.push("p", 3)
    assert leader.apply() == Initialised(2, 3, (StoredBatch(1, 2, 0, False),))


def test_a_rolled_back_epoch_was_never_given(leader: Leader) -> None:
    leader.propose(leader.machine.init_producer(named("p"), now=leader.now))
    leader.lose_leadership()
    leader.elect()
    assert isinstance(leader.push("p", 1, epoch=1), Batch)


def test_two_processes_that_initialise_at_once_get_different_epochs(leader: Leader) -> None:
    for _ in range(2):
        leader.propose(leader.machine.init_producer(named("p"), now=leader.now))
    assert [leader.apply(1), leader.apply(1)] == [Initialised(2, 1, ()), Initialised(3, 1, ())]
    with pytest.raises(ProducerFenced):
        leader.push("p", 1, epoch=2)


@pytest.mark.parametrize(
    ("present", "claim", "fenced"),
    [
        (Claim(7), Claim(8), False),  # whoever begins fences all before it
        (Claim(7), Claim(7, 1), False),  # it asks again: the answer was lost
        (Claim(7), Claim(7, 2), False),
        (Claim(7), Claim(8, 1), True),  # another life has come since
        (Claim(7), Claim(8, 2), True),  # and was given the same number, when ours was lost with a fetch leader
        (Claim(7), Claim(8, 3), False),  # ours was lost, and nobody has come since
        (Claim(0), Claim(8, 1), True),  # who does not say which life it is has its epochs only
        (Claim(0), Claim(8, 2), False),
        (Claim(7), Claim(0, 1), True),
        (Claim(7), Claim(0, 2), False),
    ],
)
def test_who_asks_again_is_given_an_epoch_unless_another_life_has_come_since(
    leader: Leader, present: Claim, claim: Claim, fenced: bool
) -> None:
    leader.push("p", 1)
    leader.propose(leader.machine.init_producer(named("p"), present, now=leader.now))
    if fenced:
        with pytest.raises(ProducerFenced, match="another process"):
            leader.machine.init_producer(named("p"), claim, now=leader.now)
    else:
        assert leader.machine.init_producer(named("p"), claim, now=leader.now).epoch == 3


def test_the_life_of_a_producer_outlives_its_batches_and_its_block(leader: Leader) -> None:
    leader.propose(leader.machine.init_producer(named("p"), Claim(7), now=leader.now))
    leader.apply()
    leader.push("p", 1, epoch=2)
    leader.apply()
    restored = PartitionMachine()
    restored.restore(leader.machine.checkpoint())
    assert restored._state.producers.by_id[named("p")].life == 7
    with pytest.raises(ProducerFenced):
        leader.machine.init_producer(named("p"), Claim(8, 1), now=leader.now)


@pytest.mark.parametrize("claim", [Claim(-1), Claim(2**63), Claim(1, -1), Claim(1, 2**32)])
def test_numbers_that_no_entry_can_hold_are_refused_before_they_are_in_the_log(leader: Leader, claim: Claim) -> None:
    with pytest.raises(InvalidRequest):
        leader.machine.init_producer(named("p"), claim, now=leader.now)


def test_an_epoch_that_was_never_given_is_unknown(leader: Leader) -> None:
    with pytest.raises(UnknownProducer, match="never given"):
        leader.push("p", 1, epoch=2)


def test_an_epoch_that_does_not_rise_stops_the_replica(leader: Leader) -> None:
    with pytest.raises(CorruptBatch, match="epoch"):
        leader.propose(Producer(producer=named("p"), epoch=1))


def test_epochs_that_are_used_up_are_refused(leader: Leader) -> None:
    leader.commit(Producer(producer=named("p"), epoch=EPOCH_MAX))
    with pytest.raises(InvalidRequest, match="another name"):
        leader.init("p")


# --- Bounds and expiry ---


def test_a_full_table_refuses_new_producers_and_keeps_the_live_ones() -> None:
    leader = Leader(producers_max=2)
    leader.init("p")
    leader.propose(leader.machine.init_producer(named("q"), now=leader.now))
    with pytest.raises(TooManyProducers, match="producers_max"):
        leader.machine.init_producer(named("r"), now=leader.now)
    leader.apply()
    assert leader.init("p").epoch == 2
    assert isinstance(leader.push("q", 1), Batch)


def test_a_producer_idle_for_too_long_makes_room(leader: Leader) -> None:
    leader.push("p", 1)
    leader.apply()
    leader.now += 7 * DAY_US + 1
    assert leader.machine.init_producer(named("q"), now=leader.now).expired == (named("p"),)
    leader.init("q")
    assert leader.machine.producer(named("p")) is None
    with pytest.raises(UnknownProducer):
        leader.push("p", 2)


def test_idle_time_counts_from_the_last_batch_even_if_it_is_in_flight(leader: Leader) -> None:
    leader.now += 7 * DAY_US
    leader.push("p", 1)
    leader.now += HOUR_US
    assert leader.machine.init_producer(named("q"), now=leader.now).expired == ()


def test_a_producer_that_comes_back_in_time_is_not_dropped_by_its_own_entry(leader: Leader) -> None:
    leader.push("p", 1)
    leader.apply()
    leader.now += 8 * DAY_US
    assert leader.machine.init_producer(named("p"), now=leader.now).expired == ()
    answer = leader.init("p")
    assert (answer.epoch, answer.next) == (2, 2)


def test_a_dropped_producer_comes_back_above_its_old_epoch(leader: Leader) -> None:
    leader.init("p")
    leader.push("p", 1, epoch=2)
    leader.apply()
    leader.now += 8 * DAY_US
    leader.init("q")
    assert leader.init("p") == Initialised(3, 1, ())
    with pytest.raises(ProducerFenced):
        leader.push("p", 1, epoch=2)


def test_a_dropped_producer_is_unknown_from_when_the_list_is_appended(leader: Leader) -> None:
    leader.push("p", 1)
    leader.now += 8 * DAY_US
    leader.propose(leader.machine.init_producer(named("q"), now=leader.now))
    with pytest.raises(UnknownProducer):
        leader.push("p", 2)
    leader.propose(leader.machine.init_producer(named("p"), now=leader.now))
    assert leader.apply() == Initialised(2, 1, ())


def test_a_replica_drops_whom_the_entry_names_whatever_its_own_limits_are(leader: Leader) -> None:
    leader.now += 8 * DAY_US
    leader.init("q")
    other = PartitionMachine(producers_max=1, producer_idle_ms_max=1)
    for batch in leader.log:
        other.apply(batch.index, batch)
    assert other.checkpoint() == leader.machine.checkpoint()


def test_a_producer_that_is_not_there_is_not_dropped_again(leader: Leader) -> None:
    answer = leader.commit(Producer(producer=named("p"), epoch=2, expired=(named("q"),)))
    assert answer == Initialised(2, 1, ())


def test_the_in_flight_table_forgets_what_is_applied_and_who_is_dropped() -> None:
    leader = Leader()
    leader.init("p")
    submitted = leader.machine._submitted
    assert submitted is not None
    for cmdindex in range(1, 100):
        leader.push("p", cmdindex)
        leader.apply()
    assert len(submitted._in_flight[named("p")]) == 1
    leader.now += 8 * DAY_US
    leader.init("q")
    assert submitted._in_flight == {}


def test_nothing_is_pushed_behind_a_seal_in_flight(leader: Leader) -> None:
    leader.propose(leader.machine.seal(end=leader.end, now=leader.now))
    with pytest.raises(BlockSealed):
        leader.push("p", 1)
    with pytest.raises(BlockSealed):
        leader.machine.init_producer(named("q"), now=leader.now)


def test_the_leaders_table_is_its_own_copy() -> None:
    applied = Producers()
    Submitted(applied).initialise(Producer(producer=named("p"), epoch=1), 0)
    assert applied == Producers()
