"""The batches of one group that are in memory: on their way into the file, or written and not applied yet.

Everything here is also in the file, or was never written; it saves reading back what has just been in hand. Bounded:
what does not fit any more is read from the file when it is needed.
"""

from __future__ import annotations

from typing import Final

from clymq.errors import CorruptBatch
from clymq.raft.messages import Append, Entry
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX, Buffer
from clymq.replication.replica import descriptor

RECENT_BYTES_MAX: Final = 32 * 1024 * 1024


class Recent:
    """Batches by index, and, while they are not written, by index and term: two leaders may have sent one each."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.arrived_bytes = 0
        self._arrived: dict[tuple[int, int], Batch] = {}
        self._written: dict[int, Batch] = {}
        self._written_bytes = 0

    def arrive(self, batch: Batch) -> None:
        """A batch was proposed, or received."""
        self._arrived[batch.index, batch.term] = batch
        self.arrived_bytes += batch.length

    def receive(self, message: Append, payload: Buffer, end_position: int) -> Append:
        """Take the batches that came with an append; return it with a descriptor of each.

        `end_position`: where they will lie if they follow on this replica's log; where else, that log will say. Raise
        `CorruptBatch`, with nothing taken, if one is damaged or is not the entry that is due.
        """
        view, position, length = memoryview(payload), 0, len(payload)
        expected, term_max = message.previous_index + 1, message.term
        arrived: dict[tuple[int, int], Batch] = {}
        entries: list[Entry] = []
        while position < length:
            batch = Batch(view, position, batch_bytes_max=FORMAT_BYTES_MAX)
            batch.check_crc()
            index, term = batch.index, batch.term
            if index != expected or term > term_max:
                raise CorruptBatch("index", f"entry {index} of term {term} where {expected} was due")
            arrived[index, term] = batch
            entries.append(descriptor(end_position + position, batch))
            position += batch.length
            expected += 1
        self._arrived.update(arrived)
        self.arrived_bytes += length
        return Append(
            message.sender,
            message.receiver,
            message.term,
            message.sender_incarnation,
            message.receiver_incarnation,
            message.previous_index,
            message.previous_term,
            tuple(entries),
            message.commit,
            message.sequence,
        )

    def take(self, entry: Entry) -> Batch:
        """Return the batch of an entry that is about to be written."""
        batch = self._arrived.pop((entry.index, entry.term))
        if self._written_bytes + batch.length <= self._bytes_max:
            self._written[batch.index] = batch
            self._written_bytes += batch.length
        return batch

    def settle(self) -> None:
        """Everything that was to be written is: what is left of the arrived was not wanted."""
        self._arrived.clear()
        self.arrived_bytes = 0

    def get(self, index: int) -> Batch | None:
        """Return a batch that was written, if it is here."""
        return self._written.get(index)

    def pop(self, index: int) -> Batch | None:
        """Return it for the last time."""
        batch = self._written.pop(index, None)
        if batch is not None:
            self._written_bytes -= batch.length
        return batch

    def cut(self, last: int) -> None:
        """Forget the written ones behind an entry."""
        for index in [index for index in self._written if index > last]:
            self.pop(index)

    def clear(self) -> None:
        """Forget everything."""
        self.settle()
        self._written.clear()
        self._written_bytes = 0
