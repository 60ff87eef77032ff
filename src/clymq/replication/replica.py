"""What one replica of a block has on its disk: the log, the vote, and the right to have them.

A replica is a broker's name and a disk. It is made empty only once, on a disk that was named for it and has never held
it; whatever is missing after that is a loss, and a replica that has lost its vote stays out (`ReplicaLost`). One that
has lost part of its log is *lame*: it may store, and may not vote, until the others have made it whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, ReplicaLost
from clymq.raft.log import RaftLog
from clymq.raft.messages import Entry, Kind
from clymq.raft.state import HardState
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, Header
from clymq.replication.hosted import Hosted
from clymq.storage.block import Block
from clymq.storage.checkpoint import write_checkpoint
from clymq.storage.files import Files, SyncDone
from clymq.storage.handles import Handles
from clymq.storage.space import Space
from clymq.storage.vote import Vote, VoteFile

# How much of a log's end is read whenever it is opened, and in how many batches at most.
TAIL_BYTES: Final = 64 * 1024
TAIL_BATCHES: Final = 64


class Replica:
    """A block and its vote, open. Made by `open`."""

    def __init__(self, files: Files, folder: str, config: Config, handles: Handles, space: Space | None) -> None:
        self.folder = folder
        self.lame = False
        self._files = files
        self._config = config
        self._handles = handles
        self._space = space

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        *,
        config: Config,
        handles: Handles,
        space: Space | None = None,
        hosted: Hosted,
        name: str,
        named_here: bool,
        start_offset: int = 0,
        verify: bool = False,
    ) -> Replica:
        """Open what is here, or make it if this disk is named as the replica's and was never asked to hold it.

        `name` is the block's on the list of hosted ones. `verify`: everything is read, because a reader met damage.
        """
        replica = cls(files, folder, config, handles, space)
        replica.begin(hosted, name, named_here=named_here, start_offset=start_offset, verify=verify)
        return replica

    def begin(
        self, hosted: Hosted, name: str, *, named_here: bool, start_offset: int, verify: bool, durable: str = "/"
    ) -> None:
        """See `open`. `durable`: a folder above this one that is known to be."""
        if name not in hosted:
            if not named_here:
                raise ReplicaLost(f"{name} was never on this disk", hint="another disk is named as this replica's")
            self._make(start_offset, durable)
            hosted.add(name)  # BEFORE the first vote or acknowledgement
        try:
            self._open(verify=verify)
        except CorruptBlock as error:
            raise ReplicaLost(f"{name} is lost: {error}") from error

    def _make(self, start_offset: int, durable: str) -> None:
        if not Block.was_created(self._files, self.folder):
            Block.create(
                self._files,
                self.folder,
                start_offset=start_offset,
                config=self._config,
                handles=self._handles,
                durable=durable,
            ).close()
        VoteFile.open(self._files, f"{self.folder}/vote", create=True)

    def _open(self, *, verify: bool) -> None:
        if not Block.was_created(self._files, self.folder):
            raise CorruptBlock(self.folder, 0, "the block is missing")
        self._vote = VoteFile.open(self._files, f"{self.folder}/vote")
        self._open_block(verify=verify)
        if self._vote.damaged:
            # After the next save the slots look whole again; what was forgotten is still forgotten.
            self._note_missing(self.block.last_index + (not self.block.sealed))
            self._open_block(verify=verify)

    def _open_block(self, *, verify: bool) -> None:
        self.block = self._opened(verify=verify)
        if not verify and not self._tail_is_whole():
            self.block.close()
            self.block = self._opened(verify=True)
        self.lame = self.lame or self.block.loss is not None or self._vote.damaged
        self.block.acknowledge_loss()

    def _opened(self, *, verify: bool) -> Block:
        return Block.open(
            self._files, self.folder, config=self._config, handles=self._handles, space=self._space, verify=verify
        )

    def _tail_is_whole(self) -> bool:
        """Read the last batches: recovery begins at the checkpoint, and has not seen what was acknowledged before it.

        A group at rest has its checkpoint at its end, and the whole log behind its back.
        """
        block = self.block
        try:
            tail = list(block.headers(max(1, block.last_index - TAIL_BATCHES + 1))) if block.last_index else []
            for position, header in reversed(tail):
                if block.end_position - position > max(TAIL_BYTES, header.length):
                    break
                data = block.read_at(position, header.length, position + header.length)
                Batch.parse(data, batch_bytes_max=FORMAT_BYTES_MAX).check_crc()
        except (CorruptBatch, CorruptBlock):
            return False
        return True

    def verify(self) -> None:
        """Read the block anew from its first byte, because damage was met in it; it is lame if something is gone.

        What was synced may have been acknowledged, which no checkpoint and no batch says: it is written down BEFORE.
        """
        self._note_missing(self.block.synced_index)
        self._open_block(verify=True)

    def _note_missing(self, through: int) -> None:
        """Let every opening be lame, until the log reaches this entry and a checkpoint says so; the block is closed."""
        block, known = self.block, self.block.checkpoint
        noted = dataclasses.replace(
            known,
            commit_index=max(known.commit_index, block.commit_index),
            missing_through=max(known.missing_through, through),
        )
        write_checkpoint(self._files, f"{self.folder}/checkpoint", noted)
        block.close()

    def check_room(self, length: int) -> None:
        """Raise `DiskFull` unless messages of so many bytes fit above the reserve."""
        if self._space is not None:
            self._space.check(length)

    def close(self) -> None:
        """Let go of the files."""
        self.block.close()

    # --- What the core begins with ---

    @property
    def hard_state(self) -> HardState:
        """The promise that was saved last."""
        vote = self._vote.vote
        return HardState(vote.term, vote.voted_for, vote.seal_term)

    @property
    def fence_epoch(self) -> int:
        """The epoch of the last fence; 0 if there was none."""
        return self._vote.vote.fence_epoch

    def save(self, hard: HardState, done: SyncDone) -> None:
        """Make a promise durable, off the event loop, BEFORE anything that depends on it is said."""
        self._vote.save_soon(Vote(hard.term, hard.voted_for, self._vote.vote.fence_epoch, hard.seal_term), done)

    @property
    def is_saving(self) -> bool:
        """Whether a promise is on its way to the disk."""
        return self._vote.is_saving

    def finish_saving(self) -> None:
        """Have the promise that is being saved on the disk when this returns: somebody goes on from there at once."""
        self._vote.finish()

    def raft_log(self) -> RaftLog:
        """Return the log as it is in the file."""
        block = self.block
        commit = min(block.commit_index, block.last_index)
        tail = [descriptor(position, header) for position, header in block.headers(max(1, commit))]
        return RaftLog(_BlockStore(block), tail, commit=commit, synced=block.synced_index)


def descriptor(position: int, header: Header) -> Entry:
    """Return what the core knows of a batch."""
    return Entry(header.index, header.term, position, header.length, Kind.SEAL if header.is_seal else Kind.DATA)


class _BlockStore:
    """The entries in a block file, as the core wants to see them."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def term(self, index: int) -> int:
        return self._block.end_at(index).term

    def entries(self, start: int, end: int, bytes_max: int) -> Sequence[Entry]:
        chosen: list[Entry] = []
        size = 0
        for position, header in self._block.headers(start):
            size += header.length
            if header.index >= end or (chosen and size > bytes_max):
                break
            chosen.append(descriptor(position, header))
        return chosen
