"""The vote survives every crash, and doubt about it is never silent."""

from __future__ import annotations

import pytest

from clymq.errors import CorruptBlock, InvalidRequest
from clymq.storage.memory import MemoryFiles
from clymq.storage.vote import SLOT_BYTES, Vote, VoteFile


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_the_last_vote_is_read_back(files: MemoryFiles) -> None:
    file = VoteFile(files, "/vote", create=True)
    for term in range(1, 8):
        file.save(Vote(term, f"Broker{term % 3}", term * 2))
        again = VoteFile(files, "/vote")
        assert (again.vote, again.damaged) == (Vote(term, f"Broker{term % 3}", term * 2), False)


def test_a_new_file_has_no_vote_and_is_told_from_a_missing_one(files: MemoryFiles) -> None:
    with pytest.raises(CorruptBlock, match="missing"):
        VoteFile(files, "/vote")
    assert VoteFile(files, "/vote", create=True).vote == Vote(0, "", 0)
    assert VoteFile(files, "/vote").vote == Vote(0, "", 0)


@pytest.mark.parametrize("newer", [True, False])
def test_a_slot_that_rots_is_noticed_and_the_other_still_read(files: MemoryFiles, newer: bool) -> None:
    file = VoteFile(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    file.save(Vote(2, "b"))
    newest_slot = 3 % 2
    slot = newest_slot if newer else 1 - newest_slot
    files.flip("/vote", slot * SLOT_BYTES + 20, 0)
    again = VoteFile(files, "/vote")
    assert again.damaged
    assert again.vote == (Vote(1, "a") if newer else Vote(2, "b"))


def test_without_a_whole_slot_the_replica_is_lost(files: MemoryFiles) -> None:
    VoteFile(files, "/vote", create=True).save(Vote(1, "a"))
    files.flip("/vote", 100, 0)
    files.flip("/vote", SLOT_BYTES + 100, 0)
    with pytest.raises(CorruptBlock, match="no slot"):
        VoteFile(files, "/vote")


def test_an_empty_file_is_a_lost_replica_not_a_new_one(files: MemoryFiles) -> None:
    files.open("/vote", create=True)
    with pytest.raises(CorruptBlock, match="no slot"):
        VoteFile(files, "/vote", create=True)


def test_any_bit_of_the_file_that_flips_is_noticed(files: MemoryFiles) -> None:
    file = VoteFile(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    for position in range(2 * SLOT_BYTES):
        files.flip("/vote", position, position % 8)
        assert VoteFile(files, "/vote").damaged, position
        files.flip("/vote", position, position % 8)


def test_a_save_is_synced_before_it_returns_and_leaves_the_other_slot_alone(files: MemoryFiles) -> None:
    file = VoteFile(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    before = files.contents("/vote")
    operations: list[str] = []
    files.on_operation = lambda operation, path: operations.append(operation)
    file.save(Vote(2, "b"))
    assert operations == ["write", "sync"]
    changed = [n for n in range(2) if files.contents("/vote")[n * 512 :][:512] != before[n * 512 :][:512]]
    assert changed == [1]


def test_the_longest_names_of_the_system_fit_and_longer_ones_are_refused(files: MemoryFiles) -> None:
    file = VoteFile(files, "/vote", create=True)
    name = "京" * 66 + "/" + "f" * 32
    file.save(Vote(1, name))
    assert VoteFile(files, "/vote").vote.voted_for == name
    with pytest.raises(InvalidRequest, match="473"):
        file.save(Vote(1, "x" * 473))
