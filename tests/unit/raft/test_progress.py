"""A follower is fed as fast as its window allows, and believed only for what its present process was sent."""

from __future__ import annotations

import pytest

from clymq.raft.progress import PATIENCE, Mode, Progress
from raft_cluster import entries


def replicating() -> Progress:
    progress = Progress(next_index=1, now=0)
    progress.meet(5)
    progress.replicate(1)
    return progress


def send(progress: Progress, count: int = 1, now: float = 0) -> int:
    """Send so many entries of 10 bytes; return the append's sequence number."""
    progress.sequence += 1
    progress.sent(entries(*[1] * count), now)
    return progress.sequence


def test_a_probe_is_one_append_at_a_time() -> None:
    progress = Progress(next_index=4, now=0)
    assert progress.mode is Mode.PROBE
    assert progress.may_send(64, 1000)
    send(progress, 0)
    assert not progress.may_send(64, 1000)
    assert progress.next_index == 4


def test_appends_go_out_without_waiting_up_to_a_number_of_messages() -> None:
    progress = replicating()
    for _ in range(3):
        assert progress.may_send(3, 1000)
        send(progress)
    assert not progress.may_send(3, 1000)
    assert progress.next_index == 4


def test_appends_go_out_without_waiting_up_to_a_number_of_bytes() -> None:
    progress = replicating()
    send(progress, 2)
    assert progress.may_send(64, 21)
    assert not progress.may_send(64, 20)


def test_an_acknowledgement_makes_room_in_the_window_for_messages_and_bytes() -> None:
    progress = replicating()
    send(progress, 2)
    send(progress, 3)
    assert progress.matched(1, 0)
    assert not progress.may_send(2, 1000), "the first append is only half acknowledged"
    assert progress.matched(2, 0)
    assert progress.may_send(2, 31)
    assert not progress.may_send(2, 30)
    assert progress.matched(5, 0)
    assert progress.may_send(1, 1)


def test_an_acknowledgement_that_says_nothing_new_does_not_take_anything_back() -> None:
    progress = replicating()
    send(progress, 5)
    assert progress.matched(5, 0)
    assert not progress.matched(3, 0)
    assert not progress.matched(5, 0)
    assert progress.match == 5


def test_the_oldest_append_under_way_is_overdue_after_the_retry_time() -> None:
    progress = replicating()
    assert not progress.overdue(10_000, 300)
    send(progress, now=100)
    send(progress, now=390)
    assert not progress.overdue(399, 300)
    assert progress.overdue(400, 300)
    progress.matched(1, 0)
    assert not progress.overdue(400, 300)


@pytest.mark.parametrize(("answered_after", "patience"), [(10, 300), (150, 300), (400, 800), (5000, PATIENCE * 300)])
def test_a_follower_that_was_slow_to_answer_has_longer_for_the_next(answered_after: float, patience: float) -> None:
    progress = replicating()
    send(progress, now=0)
    progress.matched(1, answered_after)
    send(progress, now=10_000)
    assert not progress.overdue(10_000 + patience - 1, 300)
    assert progress.overdue(10_000 + patience, 300)


def test_probing_empties_the_window_and_believes_only_what_is_sent_from_now_on() -> None:
    progress = replicating()
    old = send(progress)
    progress.probe(1)
    assert progress.may_send(1, 1)
    new = send(progress, 0)
    assert not progress.believes(old)
    assert progress.believes(new)


def test_replicating_goes_on_behind_what_the_follower_holds() -> None:
    progress = Progress(next_index=9, now=0)
    sequence = send(progress, 0)
    progress.replicate(4)
    assert (progress.mode, progress.next_index, progress.believes(sequence)) == (Mode.REPLICATE, 4, True)
    assert progress.may_send(1, 1)


# --- Processes ---


def test_the_first_process_to_answer_is_believed() -> None:
    progress = Progress(next_index=1, now=0)
    sequence = send(progress, 0)
    progress.meet(5)
    assert progress.incarnation == 5
    assert progress.believes(sequence)


def test_the_same_process_again_changes_nothing() -> None:
    progress = replicating()
    sequence = send(progress, 3)
    progress.matched(3, 0)
    progress.meet(5)
    assert (progress.match, progress.mode, progress.believes(sequence)) == (3, Mode.REPLICATE, True)


def test_another_process_has_promised_nothing() -> None:
    progress = replicating()
    sequence = send(progress, 3)
    progress.matched(3, 0)
    progress.told_commit, progress.asleep = 3, True
    progress.meet(6)
    assert (progress.match, progress.told_commit, progress.asleep, progress.mode) == (0, 0, False, Mode.PROBE)
    assert not progress.believes(sequence)
    assert progress.next_index == 4, "it is asked where the former one was"


def test_an_answer_of_a_former_process_is_never_believed_not_even_when_it_arrives_twice() -> None:
    progress = replicating()
    old = send(progress, 3)
    progress.meet(6)
    for _ in range(2):
        send(progress, 0)
        progress.meet(5)
        assert not progress.believes(old)
        assert progress.match == 0
