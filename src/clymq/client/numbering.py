"""Where a producer stands in one partition: its epoch, its next number, and how much is known to be stored.

Pure: it is told what was asked and what was answered. `InitProducer` makes a new epoch; from what it answers follows
whether another process uses our name, and whether something that was acknowledged is gone.
"""

from __future__ import annotations

from clymq.client.accumulator import Draft
from clymq.errors import DataLost, ProducerFenced
from clymq.protocol.broker import OFFSET_UNKNOWN, ProducerReady, StoredBatch
from clymq.record import Batch, BatchBuilder
from clymq.types import Ack


class NumberedBatch:
    """A draft with a number, as it goes over the wire."""

    __slots__ = ("cmdindex", "data", "draft")

    def __init__(self, draft: Draft, cmdindex: int, data: bytes) -> None:
        self.draft = draft
        self.cmdindex = cmdindex
        self.data = data

    @property
    def last(self) -> int:
        """The number of its last message."""
        return self.cmdindex + self.draft.count - 1

    def place_in(self, stored: tuple[StoredBatch, ...]) -> int:
        """Return its base offset if it is one of the last that the partition has stored."""
        for each in stored:
            if each.cmdindex == self.cmdindex and each.count == self.draft.count:
                return each.base_offset
        return OFFSET_UNKNOWN


class Numbering:
    """See the module."""

    def __init__(self, producer: str, where: str, codec: str) -> None:
        self.producer = producer
        self.uid = ""
        self.epoch: int | None = None
        self.next = 1
        """The number of the next message."""
        self.acknowledged = 0
        """The highest number that is known to be stored."""
        self.lost_messages = 0
        """Acknowledged, and gone with a leader."""
        self.forgotten = False
        """The partition has said that it does not know us."""
        self._where = where
        self._codec = codec
        self._assured = 0  # the highest number that a majority has acknowledged; the mode may have changed since
        self._epochs_asked = 0
        self._end_offset = OFFSET_UNKNOWN

    def begin_partition(self, uid: str) -> None:
        """Take note that this is another partition than before, or the first: nothing of ours is in it."""
        self.uid = uid
        self.epoch = None
        self._epochs_asked = 0
        self.acknowledged = self._assured = 0
        self._end_offset = OFFSET_UNKNOWN

    def ask_epoch(self) -> None:
        """Take note that an epoch is asked for, whatever becomes of the question."""
        self._epochs_asked += 1

    def begin_epoch(self, ready: ProducerReady, ack: int) -> DataLost | None:
        """Go on under a new epoch. Raise `ProducerFenced` if it shows that we are not alone.

        Return the error if what is lost must not have been lost; at ack 1 and 0 it is only counted.
        """
        self._check_alone(ready)
        # A producer that is idle for days is dropped from the table; at -1 that is the only way to be forgotten.
        dropped = self.forgotten and ack == Ack.QUORUM
        compared = self.epoch is not None and not dropped
        lost = max(0, self.acknowledged - ready.next + 1) if compared else 0
        broken = max(0, self._assured - ready.next + 1) if compared else 0
        self.epoch, self.next, self._epochs_asked = ready.epoch, ready.next, 0
        self.acknowledged = ready.next - 1
        self.forgotten = False
        self._assured = ready.next - 1 if ack == Ack.QUORUM else min(self._assured, ready.next - 1)
        self.lost_messages += lost
        if not broken:
            return None
        end = max(0, self._end_offset)
        message = f"{self._where} has lost {broken} messages that a majority had acknowledged"
        return DataLost(message, start=max(0, end - lost), end=end)

    def number(self, draft: Draft) -> NumberedBatch:
        """Give a draft the next numbers."""
        assert self.epoch is not None
        data = draft.builder.build(
            producer=self.producer, cmdindex=self.next, epoch=self.epoch, now=draft.opened.wall_us
        )
        batch = NumberedBatch(draft, self.next, data)
        self.next += draft.count
        return batch

    def number_anew(self, batch: NumberedBatch) -> None:
        """Give a batch the next numbers, and the new epoch; its messages stay as they are."""
        assert self.epoch is not None
        builder = BatchBuilder(self._codec).add_arrow(Batch.parse(batch.data).to_arrow())
        batch.data = builder.build(producer=self.producer, cmdindex=self.next, epoch=self.epoch)
        batch.cmdindex = self.next
        self.next += batch.draft.count

    def stored(self, batch: NumberedBatch, base_offset: int, ack: int | None = None) -> None:
        """Take note that a batch is stored, and by which ack that was said; None: by what the partition told."""
        self.acknowledged = max(self.acknowledged, batch.last)
        if ack == Ack.QUORUM:
            self._assured = max(self._assured, batch.last)
        if base_offset != OFFSET_UNKNOWN:
            self._end_offset = base_offset + batch.draft.count

    def _check_alone(self, ready: ProducerReady) -> None:
        """Find out whether another process has used our name since we last asked: its epochs are not ours.

        The partition itself knows whose an epoch is, and refuses; this is for one that does not ask for our life yet.
        Each of our own requests raises the epoch by at most one, those whose answer was lost included. A partition
        that had forgotten us begins above all whom it ever forgot, so there the number says nothing.
        """
        if self.epoch is None or (self.forgotten and ready.next == 1):
            return
        ours = self.epoch + self._epochs_asked
        if ready.epoch > ours:
            raise ProducerFenced(
                f"epoch {ready.epoch} of producer {self.producer} in {self._where}, but this process made only {ours}",
                hint="another process uses this producer name",
            )
