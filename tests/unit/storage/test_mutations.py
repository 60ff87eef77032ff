"""The power-cut test bites: storage that breaks one rule is caught.

Each mutation takes away one thing that durability rests on. If one of them survives, the test that should have caught
it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clymq.errors import ClymqError
from clymq.record import Batch
from clymq.storage import block, checkpoint, log, replace, vote
from clymq.storage.block import Block
from clymq.storage.end import End
from clymq.storage.memory import MemoryFiles
from clymq.storage.vote import VoteFile
from power_cut import Workload

Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS_MAX = 12


def answer_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: Block) -> None:
        self._end_sync(self._begin_sync(), None)

    patch.setattr(Block, "sync", sync)


def truncate_without_sync(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Block, end: End) -> None:
        self._generation += 1
        self._reader.forget_places()
        self._index.truncate(end.position)
        self._log().truncate(end.position)
        self._end = end
        self._synced_position, self._synced_index = end.position, end.index

    patch.setattr(Block, "_cut", cut)


def _without(patch: pytest.MonkeyPatch, operation: str, where: Callable[[str], bool]) -> None:
    """Let an operation of the disk do nothing where a path matches."""
    original: Callable[..., Any] = getattr(MemoryFiles, operation)

    def skipped(self: MemoryFiles, path: str) -> None:
        if not where(path):
            original(self, path)

    patch.setattr(MemoryFiles, operation, skipped)


def rename_without_sync_of_the_folder(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "sync_folder", lambda path: "Block_" in path)


def new_folders_without_sync_of_their_parent(patch: pytest.MonkeyPatch) -> None:
    _without(patch, "sync_folder", lambda path: path in {"/data", "/data/p"})


def replace_without_sync_of_the_file(patch: pytest.MonkeyPatch) -> None:
    def unsynced(files: MemoryFiles, path: str, buffers: list[bytes]) -> None:
        file = files.open(f"{path}.new", create=True)
        file.truncate(0)
        file.write(0, buffers)
        files.rename(f"{path}.new", path)
        files.sync_folder(replace.parent(path))

    patch.setattr(checkpoint, "replace", unsynced)


def replace_in_place(patch: pytest.MonkeyPatch) -> None:
    def in_place(files: MemoryFiles, path: str, buffers: list[bytes]) -> None:
        file = files.open(path, create=True)
        file.truncate(0)
        file.write(0, buffers)
        file.sync()
        files.sync_folder(replace.parent(path))

    patch.setattr(checkpoint, "replace", in_place)


def vote_without_sync(patch: pytest.MonkeyPatch) -> None:
    def save(self: VoteFile, new: vote.Vote) -> None:
        sequence = self._sequence + 1
        self._files.open(self._path).write(sequence % 2 * vote.SLOT_BYTES, [vote._slot(sequence, new)])
        self._sequence, self.vote = sequence, new

    patch.setattr(VoteFile, "save", save)


def trust_bodies_in_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batch, "check_crc", lambda self: None)


def leave_the_torn_tail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "_cut_damage", lambda self, found, size: None)


def recovery_without_sync(patch: pytest.MonkeyPatch) -> None:
    """What was read from the cache is taken for durable."""
    original = Block._recover

    def recover(self: Block, *, verify: bool, start_offset: int | None) -> None:
        file = self._log()
        sync, file.sync = file.sync, lambda: None
        try:
            original(self, verify=verify, start_offset=start_offset)
        finally:
            file.sync = sync

    patch.setattr(Block, "_recover", recover)


def remove_blocks_in_place(patch: pytest.MonkeyPatch) -> None:
    def drop(self: log.PartitionLog, numbers: list[int]) -> None:
        for number in numbers:
            gone = self._blocks.pop(number)
            for name in self._files.names(gone.folder):
                self._files.remove(f"{gone.folder}/{name}")
                self._files.sync_folder(gone.folder)
            self._files.remove(gone.folder)

    patch.setattr(log.PartitionLog, "drop", drop)


def checkpoint_above_what_is_synced(patch: pytest.MonkeyPatch) -> None:
    def write(self: Block, index: int, state: bytes) -> None:
        self._synced_position, self._synced_index = self._end.position, self._end.index
        self.commit_all()
        original(self, self._end.index, state)

    original = Block.write_checkpoint
    patch.setattr(Block, "write_checkpoint", write)


def forget_the_seal_in_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    original = End.at

    def at(point: checkpoint.Checkpoint) -> End:
        end = original(point)
        end.sealed = False
        return end

    patch.setattr(End, "at", at)


def forget_what_batches_name_as_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Block, "_position_committed", lambda self: self._checkpoint.position)


MUTATIONS: list[Patch] = [
    answer_before_the_sync,
    truncate_without_sync,
    rename_without_sync_of_the_folder,
    new_folders_without_sync_of_their_parent,
    replace_without_sync_of_the_file,
    replace_in_place,
    vote_without_sync,
    trust_bodies_in_recovery,
    leave_the_torn_tail,
    recovery_without_sync,
    remove_blocks_in_place,
    checkpoint_above_what_is_synced,
    forget_the_seal_in_a_checkpoint,
    forget_what_batches_name_as_committed,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_storage_that_breaks_one_rule_is_caught(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    with pytest.raises((AssertionError, ClymqError)):
        for seed in range(SEEDS_MAX):
            Workload(seed).run()


def test_storage_that_breaks_no_rule_is_not() -> None:
    assert block.Block is Block
    Workload(0).run()
