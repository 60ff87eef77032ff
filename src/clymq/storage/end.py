"""Where a log ends, and the rule for what may come next."""

from __future__ import annotations

from typing import Final

from clymq.errors import CorruptBatch
from clymq.record.layout import HEADER_BYTES, Header
from clymq.storage.checkpoint import NUMBER_MAX, TIMESTAMP_NONE, Checkpoint

# One more batch, whatever it counts, and there would be offsets that no checkpoint can say.
_OFFSET_MAX: Final = NUMBER_MAX - 2**32


class End:
    """The place behind the last batch of a block: everything that the next batch must follow on from."""

    __slots__ = ("append_time", "index", "offset", "position", "sealed", "term", "timestamp_max")

    def __init__(self, offset: int) -> None:
        """Begin an empty block whose first message will have this offset."""
        self.position = 0
        self.index = 0
        self.term = 0
        self.offset = offset
        self.timestamp_max = TIMESTAMP_NONE
        self.append_time = 0
        self.sealed = False

    @classmethod
    def at(cls, checkpoint: Checkpoint) -> End:
        """Return the end that a checkpoint was taken at."""
        end = cls(checkpoint.end_offset)
        end.position, end.index, end.term = checkpoint.position, checkpoint.index, checkpoint.term
        end.timestamp_max, end.append_time = checkpoint.timestamp_max, checkpoint.append_time
        end.sealed = checkpoint.sealed
        return end

    def copy(self) -> End:
        """Return another one at the same place."""
        end = End(self.offset)
        end.position, end.index, end.term, end.sealed = self.position, self.index, self.term, self.sealed
        end.timestamp_max, end.append_time = self.timestamp_max, self.append_time
        return end

    def take(self, batch: Header) -> None:
        """Move behind a batch, or raise `CorruptBatch` naming the field that does not follow on."""
        if (
            batch.index != self.index + 1
            or batch.base_offset != self.offset
            or batch.term < self.term
            or batch.append_time < self.append_time
            or batch.commit_index >= batch.index
            or self.offset > _OFFSET_MAX
            or self.sealed
        ):
            raise self._does_not_follow(batch)
        self.index = batch.index
        self.term = batch.term
        self.append_time = batch.append_time
        self.position += batch.length
        if batch.count:
            self.offset += batch.count
            if batch.last_timestamp > self.timestamp_max:
                self.timestamp_max = batch.last_timestamp
        elif batch.is_seal:
            self.sealed = True

    def may_precede(self, batch: Header, gap: int) -> bool:
        """Whether a batch that lies `gap` bytes further on can belong to this log, with others in between."""
        return (
            self.index < batch.index <= self.index + 1 + gap // HEADER_BYTES
            and batch.commit_index < batch.index
            and batch.base_offset >= self.offset
            and batch.term >= self.term
            and batch.append_time >= self.append_time
        )

    def _does_not_follow(self, batch: Header) -> CorruptBatch:
        if self.sealed:
            return CorruptBatch("index", f"{batch.index} follows the seal at {self.index}", position=self.position)
        if batch.index != self.index + 1:
            return CorruptBatch("index", f"{batch.index} does not follow {self.index}", position=self.position)
        if batch.base_offset != self.offset:
            problem = f"{batch.base_offset} does not follow on; the log ends at {self.offset}"
            return CorruptBatch("base_offset", problem, position=self.position)
        if self.offset > _OFFSET_MAX:
            return CorruptBatch("base_offset", f"{batch.base_offset} is beyond all offsets", position=self.position)
        if batch.commit_index >= batch.index:
            return CorruptBatch("commit_index", f"{batch.commit_index} in entry {batch.index}", position=self.position)
        field, before = ("term", self.term) if batch.term < self.term else ("append_time", self.append_time)
        return CorruptBatch(field, f"{getattr(batch, field)} is below {before}", position=self.position)
