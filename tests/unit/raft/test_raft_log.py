"""The log keeps what may still be sent or cut, reads the rest from the file, and promises only what is on the disk."""

from __future__ import annotations

import pytest

from clymq.raft.log import KEPT_BELOW_COMMIT, RaftLog
from clymq.raft.messages import Entry, Kind
from raft_cluster import Disk, entries


def log_of(*terms: int, commit: int = 0, kept: int | None = None) -> RaftLog:
    """Return a log with only the last `kept` descriptors in memory, the others in its store."""
    disk = Disk(entries(*terms))
    tail = disk.log if kept is None else disk.log[len(disk.log) - kept :]
    return RaftLog(disk, tail, commit=commit, synced=len(terms))


def following(log: RaftLog, term: int, kind: Kind = Kind.DATA) -> Entry:
    return Entry(log.last_index + 1, term, log.end_position, 10, kind)


def test_an_empty_log_ends_at_zero() -> None:
    log = log_of()
    assert (log.last_index, log.last_term, log.end_position, log.sealed) == (0, 0, 0, False)
    assert (log.term_at(0), log.term_at(1), log.entries_from(1, 100)) == (0, None, ())


def test_the_end_is_that_of_the_last_entry() -> None:
    log = log_of(1, 1, 2)
    assert (log.last_index, log.last_term, log.end_position, log.sealed) == (3, 2, 30, False)


def test_a_seal_at_the_end_seals_the_log_and_nothing_follows_it() -> None:
    log = log_of(1)
    log.append(following(log, 1, Kind.SEAL))
    assert log.sealed
    with pytest.raises(AssertionError, match="nothing follows a seal"):
        log.append(following(log, 1))


def test_the_log_has_no_gaps() -> None:
    log = log_of(1)
    with pytest.raises(AssertionError, match="no gaps"):
        log.append(Entry(3, 1, 20, 10))


def test_terms_are_read_from_memory_or_from_the_file_and_there_is_none_behind_the_end() -> None:
    log = log_of(1, 1, 2, 3, kept=2)
    assert [log.term_at(index) for index in range(6)] == [0, 1, 1, 2, 3, None]


@pytest.mark.parametrize("kept", [1, 2, 5])
@pytest.mark.parametrize("bytes_max", [1, 10, 25, 1000])
def test_entries_are_at_least_one_and_else_no_more_than_asked_for(kept: int, bytes_max: int) -> None:
    log = log_of(1, 1, 1, 2, 2, kept=kept)
    for start in range(1, 6):
        found = log.entries_from(start, bytes_max)
        assert [entry.index for entry in found] == list(range(start, start + len(found)))
        assert len(found) == 1 or sum(entry.length for entry in found) <= bytes_max
        first_in_memory = 5 - kept + 1
        room = max(1, bytes_max // 10)
        assert len(found) == min(room, (first_in_memory if start < first_in_memory else 6) - start)


def test_no_entries_are_behind_the_end() -> None:
    assert log_of(1, 1).entries_from(3, 100) == ()


def test_the_first_index_of_a_term_is_found_but_not_below_what_is_committed() -> None:
    log = log_of(1, 2, 2, 2, 3, kept=1)
    assert [log.first_index_of_term(index) for index in (1, 2, 4, 5)] == [1, 2, 2, 5]
    log.commit_to(2)
    assert log.first_index_of_term(4) == 3


# --- Cutting ---


def test_a_cut_in_memory_is_told_to_the_driver() -> None:
    log = log_of(1, 1, 2, 2)
    log.truncate(2)
    assert (log.last_index, log.last_term, log.truncated_to, log.synced) == (2, 1, 2, 2)


def test_a_cut_below_what_is_in_memory_reads_the_new_last_descriptor_from_the_file() -> None:
    log = log_of(1, 1, 2, 2, kept=1)
    log.truncate(2)
    assert (log.last_index, log.last_term, log.end_position) == (2, 1, 20)
    assert log.entries_from(1, 1000) == tuple(entries(1))


def test_of_several_cuts_the_deepest_is_told_to_the_driver() -> None:
    log = log_of(1, 1, 1, 1)
    log.truncate(3)
    log.truncate(1)
    assert log.truncated_to == 1
    log = log_of(1, 1, 1, 1)
    log.truncate(1)
    log.append(following(log, 2))
    log.append(following(log, 2))
    log.truncate(2)
    assert log.truncated_to == 1


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_a_log_can_be_cut_to_nothing_whatever_of_it_is_in_memory(kept: int) -> None:
    log = log_of(1, 1, 2, 3, kept=kept)
    log.truncate(0)
    assert (log.last_index, log.truncated_to, log.synced) == (0, 0, 0)


def test_a_cut_among_entries_that_were_never_written_leaves_the_file_alone() -> None:
    log = log_of(1)
    for _ in range(3):
        log.append(following(log, 2))
    log.truncate(3)
    assert log.truncated_to is None
    assert [entry.index for entry in log.take_unwritten()] == [2, 3]


def test_a_cut_in_front_of_all_unwritten_entries_forgets_them() -> None:
    log = log_of(1, 1)
    log.append(following(log, 2))
    log.truncate(1)
    assert (log.truncated_to, log.take_unwritten()) == (1, ())


def test_what_is_committed_is_never_cut() -> None:
    log = log_of(1, 1, commit=1)
    with pytest.raises(AssertionError, match="never cut"):
        log.truncate(0)


# --- The marks ---


def test_unwritten_entries_are_handed_over_once() -> None:
    log = log_of()
    log.append(following(log, 1))
    assert (len(log.take_unwritten()), len(log.take_unwritten())) == (1, 0)


def test_the_commit_index_moves_only_forward_and_never_past_the_end() -> None:
    log = log_of(1, 1, 1)
    log.commit_to(2)
    log.commit_to(1)
    assert log.commit == 2
    with pytest.raises(AssertionError, match="not there"):
        log.commit_to(4)


def test_synced_never_reaches_beyond_the_end_nor_moves_back() -> None:
    log = log_of(1, 1)
    log.append(following(log, 1))
    log.take_unwritten()
    log.sync_to(9)
    assert log.synced == 3
    log.sync_to(1)
    assert log.synced == 3


def test_a_cut_takes_the_synced_mark_along() -> None:
    log = log_of(1, 1, 1)
    log.truncate(1)
    log.append(following(log, 2))
    assert log.synced == 1


def test_an_entry_that_was_not_handed_to_the_driver_is_not_synced_whatever_a_late_sync_says() -> None:
    """A sync of the entries that were cut away may end after others took their place."""
    log = log_of(1, 1, 1)
    log.truncate(1)
    log.append(following(log, 2))
    log.append(following(log, 2))
    log.sync_to(3)
    assert log.synced == 1


def test_descriptors_are_kept_above_the_commit_index_and_some_below_it() -> None:
    count = 3 * KEPT_BELOW_COMMIT
    log = log_of(*[1] * count)
    log.commit_to(2 * KEPT_BELOW_COMMIT + 1)
    assert len(log._tail) == count, "not for every single entry"
    log.commit_to(2 * KEPT_BELOW_COMMIT + 2)
    assert log._tail[0].index == KEPT_BELOW_COMMIT + 2
    assert (log._tail[-1].index, log.term_at(1)) == (count, 1)
    assert log.entries_from(1, 25) == tuple(entries(1, 1))


def test_an_entry_lies_where_this_log_ends_whatever_its_sender_says() -> None:
    log = log_of(1, 1)
    log.append(Entry(3, 1, 777, 10))
    assert log.end_of(3) == 30
    assert log.take_unwritten()[0].position == 20


@pytest.mark.parametrize("kept", [1, 3])
def test_where_an_entry_ends_is_known_in_memory_and_in_the_file(kept: int) -> None:
    log = log_of(1, 1, 1, kept=kept)
    assert [log.end_of(index) for index in range(4)] == [0, 10, 20, 30]
