"""What a block's log is worth after a crash: which part of it stands, and whether anything promised is missing.

Let K be the highest index known to be committed: from the checkpoint, or named in any whole batch, wherever it lies.
Damage above K was promised to nobody: a torn write. Damage at or below K, or a log that ends below K, is loss. The
judgement is made here and nothing is changed; `Block` acts on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clymq.errors import CorruptBatch, CorruptBlock
from clymq.record.layout import Header
from clymq.storage.checkpoint import Checkpoint
from clymq.storage.end import End
from clymq.storage.files import File
from clymq.storage.scan import Found, scan


@dataclass(frozen=True, slots=True)
class Recovered:
    """The judgement: the log stands up to `end`; `loss` if something promised is missing, else at most a torn write."""

    end: End
    commit_index: int
    torn: CorruptBatch | None
    loss: CorruptBlock | None


def recover(
    file: File,
    begin: End,
    checkpoint: Checkpoint | None,
    on_batch: Callable[[int, Header, int], None],
    *,
    batch_bytes_max: int,
) -> Recovered:
    """Read the log from `begin`; without a checkpoint K is not known, and all damage counts as loss.

    `on_batch` is called for each batch that stands, with its position and the latest timestamp before it.
    """
    end, size = begin.copy(), file.size()
    known = checkpoint is not None
    commit_index = checkpoint.commit_index if checkpoint else 0
    damage: CorruptBatch | None = None
    for item in scan(file, begin.position, size, batch_bytes_max=batch_bytes_max):
        if not isinstance(item, Found):
            damage = damage or item.error
            known = known and not item.given_up
            continue
        commit_index = max(commit_index, item.batch.commit_index)
        if damage is None:
            timestamp_max = end.timestamp_max
            try:
                end.take(item.batch)
            except CorruptBatch as error:
                damage = error
            else:
                on_batch(item.position, item.batch, timestamp_max)
    if end.index < commit_index or (damage and not known):
        problem = damage.problem if damage else f"ends at index {end.index}"
        # The damaged entry itself counts as promised, so that what is remembered is never less than what is missing.
        commit_index = max(commit_index, end.index + 1) if damage else commit_index
        loss = CorruptBlock(file.path, end.position, f"{problem}; entries up to {commit_index} were committed")
        return Recovered(end, commit_index, None, loss)
    return Recovered(end, commit_index, damage, None)
