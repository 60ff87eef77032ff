"""What a dead letter says: the message as it was, and behind its own headers why it is here and where it came from.

All messages of one DEAD entry go into one batch. They may not fit: their topic's limit was lowered since they were
pushed, or it is the headers that are too much. Then those that are larger than their share of the batch are cut, and
say so by a header; whole they are where they came from. Otherwise they would hold up for ever all that follow.
"""

from __future__ import annotations

from typing import Final

from clymq.record import BatchBuilder, Record
from clymq.replication.cursors import DeadLetter

# What a dead letter has beside its message, at most: names, reason, and the places that a batch keeps them in.
LETTER_BYTES: Final = 2048
# The same of a batch, whatever is in it.
BATCH_BYTES: Final = 2048
# A message, and each of its headers, in the columns of a batch.
ROW_BYTES: Final = 32
HEADER_BYTES: Final = 9

CUT: Final = "clymq-cut"

_Headers = list[tuple[str, bytes | None]]


class Letters:
    """The messages of one DEAD entry, as they are added; never more in memory than a batch and one message."""

    def __init__(self, topic: str, partition: str, group: str, letter: DeadLetter, *, batch_bytes_max: int) -> None:
        self.cut = 0
        """How many messages are not whole."""
        self._origin = {
            "clymq-reason": letter.reason,
            "clymq-topic": topic,
            "clymq-partition": partition,
            "clymq-group": group,
            "clymq-deliveries": str(letter.deliveries),
        }
        self._batch_bytes_max = batch_bytes_max
        self._room = batch_bytes_max - BATCH_BYTES
        self._share = self._room // (letter.range.end - letter.range.start)
        self._records: list[Record] = []
        self._bytes = 0
        self._is_full = False

    def add(self, record: Record) -> None:
        """Add the next message; if all together are too large by that, they are cut, and so are all that follow."""
        letter = record._replace(headers=(*record.headers, *self._headers(record.offset)))
        self._keep(self._fitted(letter) if self._is_full else letter)
        if self._bytes > self._room and not self._is_full:
            self._is_full = True
            records, self._records, self._bytes = self._records, [], 0
            for each in records:
                self._keep(self._fitted(each))

    def build(self, *, producer: str, cmdindex: int, epoch: int, now: int) -> bytes:
        """Return the batch; `MessageTooLarge` if not even the headers fit."""
        builder = BatchBuilder(batch_bytes_max=self._batch_bytes_max, message_bytes_max=self._batch_bytes_max)
        for each in self._records:
            builder.add(each.value, key=each.key, headers=each.headers, timestamp=each.timestamp)
        return builder.build(producer=producer, cmdindex=cmdindex, epoch=epoch, sparse=True, now=now)

    def _keep(self, letter: Record) -> None:
        self._records.append(letter)
        self._bytes += _bytes_of(letter)

    def _headers(self, offset: int) -> _Headers:
        told = {**self._origin, "clymq-offset": str(offset)}
        return [(name, text.encode()) for name, text in told.items()]

    def _fitted(self, letter: Record) -> Record:
        """Return a letter that is no larger than its share: with less of its value, then without key and headers."""
        if _bytes_of(letter) <= self._share:
            return letter
        self.cut += 1
        mark = (CUT, str(len(letter.value)).encode())
        short = letter._replace(value=b"", headers=(*letter.headers, mark))
        if _bytes_of(short) > self._share:
            short = short._replace(key=None, headers=(*self._headers(letter.offset), mark))
        left = max(0, self._share - _bytes_of(short))
        return short._replace(value=letter.value[:left])


def _bytes_of(record: Record) -> int:
    """Return what a message takes in a batch, at most."""
    named = sum(len(name.encode()) + len(content or b"") + HEADER_BYTES for name, content in record.headers)
    return ROW_BYTES + len(record.key or b"") + len(record.value) + named
