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
    """The judgement: the log stands up to `end`. `damage`: what lies behind it; `loss`: that something is missing."""

    end: End
    commit_index: int
    missing_through: int
    damage: CorruptBatch | None
    loss: CorruptBlock | None


def recover(
    file: File,
    begin: End,
    checkpoint: Checkpoint | None,
    on_batch: Callable[[int, Header, int], None],
) -> Recovered:
    """Read the log from `begin`; without a checkpoint K is not known, and all damage counts as loss.

    `on_batch` is called for each batch that stands, with its position and the latest timestamp before it.
    """
    reading = _Reading(begin.copy(), known=checkpoint is not None)
    size = file.size()
    trusted = size if checkpoint is None else min(size, checkpoint.trusted_position)
    for item in scan(file, begin.position, trusted):
        if isinstance(item, Found):
            reading.batch(item, on_batch)
        else:
            reading.hurt(item.error, given_up=item.given_up)
    if trusted < size:
        reading.hurt(CorruptBatch("sync", "failed for what lies behind", position=trusted))
    commit_index = max(reading.commit_index, checkpoint.commit_index if checkpoint else 0)
    return _judged(file.path, reading, commit_index, checkpoint.missing_through if checkpoint else 0)


class _Reading:
    """What was found so far."""

    def __init__(self, end: End, *, known: bool) -> None:
        self.end = end
        self.known = known
        self.commit_index = 0
        self.damage: CorruptBatch | None = None

    def batch(self, found: Found, on_batch: Callable[[int, Header, int], None]) -> None:
        """Take a whole batch: as the next of the log or, behind damage, as a witness of what was committed."""
        batch = found.batch
        if self.damage is None:
            timestamp_max = self.end.timestamp_max
            try:
                self.end.take(batch)
            except CorruptBatch as error:
                self.damage = error
            else:
                on_batch(found.position, batch, timestamp_max)
                self.commit_index = max(self.commit_index, batch.commit_index)
        # A message may hold bytes that look like a batch: a witness must at least fit in.
        elif self.end.may_precede(batch, found.position - self.end.position):
            self.commit_index = max(self.commit_index, batch.commit_index)

    def hurt(self, error: CorruptBatch, *, given_up: bool = False) -> None:
        """Meet a stretch that is not a whole batch."""
        self.damage = self.damage or error
        self.known = self.known and not given_up


def _judged(path: str, reading: _Reading, commit_index: int, missing_through: int) -> Recovered:
    end, damage = reading.end, reading.damage
    missing = max(commit_index, missing_through)
    if end.index >= missing and (damage is None or reading.known):
        return Recovered(end, commit_index, 0, damage, None)
    # A damaged entry counts as promised, so that what is remembered is never less than what is missing.
    missing = missing if damage is None else max(missing, end.index + 1)
    problem = f"ends at index {end.index}" if damage is None else f"{damage.field}: {damage.problem}"
    loss = CorruptBlock(path, end.position, f"{problem}; entries up to {missing} may have been promised")
    return Recovered(end, commit_index, missing, damage, loss)
