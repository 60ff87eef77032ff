"""The vote survives every crash, and doubt about it is never silent."""

from __future__ import annotations

import random

import pytest

from clymq.errors import CorruptBlock, InvalidRequest
from clymq.storage.memory import MemoryFiles
from clymq.storage.vote import SLOT_BYTES, Vote, VoteFile


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_the_last_vote_is_read_back(files: MemoryFiles) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    for term in range(1, 8):
        file.save(Vote(term, f"Broker{term % 3}", term * 2, term - 1))
        again = VoteFile.open(files, "/vote")
        assert (again.vote, again.damaged) == (Vote(term, f"Broker{term % 3}", term * 2, term - 1), False)


def test_a_new_file_has_no_vote_and_is_told_from_a_missing_one(files: MemoryFiles) -> None:
    with pytest.raises(CorruptBlock, match="missing"):
        VoteFile.open(files, "/vote")
    assert VoteFile.open(files, "/vote", create=True).vote == Vote(0, "", 0)
    assert VoteFile.open(files, "/vote").vote == Vote(0, "", 0)


@pytest.mark.parametrize("newer", [True, False])
def test_a_slot_that_rots_is_noticed_and_the_other_still_read(files: MemoryFiles, newer: bool) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    file.save(Vote(2, "b"))
    newest_slot = 3 % 2
    slot = newest_slot if newer else 1 - newest_slot
    files.flip("/vote", slot * SLOT_BYTES + 20, 0)
    again = VoteFile.open(files, "/vote")
    assert again.damaged
    assert again.vote == (Vote(1, "a") if newer else Vote(2, "b"))


def test_without_a_whole_slot_the_replica_is_lost(files: MemoryFiles) -> None:
    VoteFile.open(files, "/vote", create=True).save(Vote(1, "a"))
    files.flip("/vote", 100, 0)
    files.flip("/vote", SLOT_BYTES + 100, 0)
    with pytest.raises(CorruptBlock, match="no slot"):
        VoteFile.open(files, "/vote")


def test_an_empty_file_is_a_lost_replica_not_a_new_one(files: MemoryFiles) -> None:
    files.open("/vote", create=True)
    with pytest.raises(CorruptBlock, match="no slot"):
        VoteFile.open(files, "/vote", create=True)


def test_a_new_file_cannot_vanish_with_a_vote_in_it(files: MemoryFiles) -> None:
    VoteFile.open(files, "/vote", create=True).save(Vote(5, "a"))
    for seed in range(50):
        assert VoteFile.open(files.crash(random.Random(seed)), "/vote").vote == Vote(5, "a")


def test_a_file_whose_making_was_interrupted_is_made_again(files: MemoryFiles) -> None:
    states: list[MemoryFiles] = []
    files.on_operation = lambda operation, path: states.append(files.crash(random.Random(len(states))))
    VoteFile.open(files, "/vote", create=True)
    for state in states:
        assert VoteFile.open(state, "/vote", create=True).vote == Vote()


@pytest.mark.parametrize("damage", ["zeros", "cut"])
def test_a_slot_that_is_gone_is_not_one_that_was_never_written(files: MemoryFiles, damage: str) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    for term in (1, 2, 3, 4):
        file.save(Vote(term, "a"))
    if damage == "zeros":
        files.open("/vote").write(SLOT_BYTES, [bytes(SLOT_BYTES)])
    else:
        files.open("/vote").truncate(SLOT_BYTES)
    assert VoteFile.open(files, "/vote").damaged


def test_any_bit_of_the_file_that_flips_is_noticed(files: MemoryFiles) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    for position in range(2 * SLOT_BYTES):
        files.flip("/vote", position, position % 8)
        assert VoteFile.open(files, "/vote").damaged, position
        files.flip("/vote", position, position % 8)


def test_a_save_is_synced_before_it_returns_and_leaves_the_other_slot_alone(files: MemoryFiles) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    file.save(Vote(1, "a"))
    before = files.contents("/vote")
    operations: list[str] = []
    files.on_operation = lambda operation, path: operations.append(operation)
    file.save(Vote(2, "b"))
    assert operations == ["write", "sync"]
    changed = [n for n in range(2) if files.contents("/vote")[n * 512 :][:512] != before[n * 512 :][:512]]
    assert changed == [1]


def test_the_longest_names_of_the_system_fit_and_longer_ones_are_refused(files: MemoryFiles) -> None:
    file = VoteFile.open(files, "/vote", create=True)
    name = "京" * 66 + "/" + "f" * 32
    file.save(Vote(1, name))
    assert VoteFile.open(files, "/vote").vote.voted_for == name
    with pytest.raises(InvalidRequest, match="465 characters"):
        file.save(Vote(1, "x" * 465))
