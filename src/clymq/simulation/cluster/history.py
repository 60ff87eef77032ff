"""What clients sent, were told and have read; and whether all of it fits the log that is there in the end.

A value names its producer and counts, for each partition: no value is ever sent twice on purpose, so a value that is
in the log twice was doubled, and one out of its order was reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from clymq.simulation.cluster.checkers import Ends, Fail, Tree

Place = tuple[str, str]
"""A topic and a partition."""


@dataclass(frozen=True)
class Receipted:
    """A value that was acknowledged at an offset, or at one that is not told."""

    value: str
    offset: int | None
    quorum: bool
    """The producer had asked for a majority."""


@dataclass
class Log:
    """What is there in the end: from an offset on, value after value."""

    first: int
    values: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.values)

    def at(self, offset: int) -> str | None:
        """Return the value at an offset; None behind the end."""
        return self.values[offset - self.first] if self.first <= offset < self.end else None


class History:
    """Everything that clients know. Small enough to keep whole."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._sent: dict[tuple[str, Place], int] = {}
        self.receipts: dict[Place, list[Receipted]] = {}
        self._read: dict[Place, dict[int, str]] = {}
        self._committed: dict[tuple[str, Place], int] = {}
        self.lost = 0

    # --- What happens ---

    def next_values(self, producer: str, place: Place, count: int) -> list[str]:
        """Return values that were never sent."""
        first = self._sent.get((producer, place), 0)
        self._sent[producer, place] = first + count
        return [f"{producer} {number}" for number in range(first, first + count)]

    def acknowledged(self, place: Place, values: list[str], first: int | None, *, quorum: bool) -> None:
        """A producer was told that these are stored."""
        for number, value in enumerate(values):
            offset = None if first is None else first + number
            self.receipts.setdefault(place, []).append(Receipted(value, offset, quorum))

    def read(self, place: Place, offset: int, value: str, *, strictly: bool) -> None:
        """A consumer got a value at an offset; with `strictly`, no two may ever differ."""
        before = self._read.setdefault(place, {}).setdefault(offset, value)
        if before != value:
            self._read[place][offset] = value
            if strictly:
                self._fail(f"OneValuePerOffset: {place} at {offset} was read as {before!r}, and as {value!r}")

    def committed(self, group: str, place: Place, position: int) -> None:
        """A group's position was stored."""
        self._committed[group, place] = max(position, self._committed.get((group, place), 0))

    def found(self, group: str, place: Place, position: int, *, strictly: bool) -> None:
        """A group's stored position was looked up."""
        known = self._committed.get((group, place), 0)
        if position < known and strictly:
            self._fail(f"CursorNeverGoesBack: {group} had committed {known} of {place}, and finds {position}")

    # --- In the end ---

    def judge(
        self,
        place: Place,
        log: Log,
        uid: str,
        ends: Ends,
        tree: Tree,
        holders: Collection[tuple[str, int]],
        *,
        strictly: bool,
    ) -> None:
        """Compare all that clients know of a partition with its log."""
        self._judge_order(place, log)
        if strictly:
            self._judge_reads(place, log)
        lost_from = lambda offset: ends.may_be_lost_from(uid, offset)  # noqa: E731
        self._judge_receipts(place, log, lost_from, tree, holders, strictly=strictly)

    def _judge_order(self, place: Place, log: Log) -> None:
        """Each value once, and those of one producer in the order in which it sent them."""
        last: dict[str, int] = {}
        for offset, value in enumerate(log.values, log.first):
            producer, _, number = value.rpartition(" ")
            before = last.get(producer, -1)
            if int(number) <= before:
                what = "Duplicated" if int(number) == before else "Reordered"
                self._fail(f"ProducerOrder: {what}: {value!r} of {place} at {offset}, behind {producer} {before}")
            last[producer] = int(number)
            if int(number) >= self._sent.get((producer, place), 0):
                self._fail(f"NothingInvented: {value!r} of {place} at {offset} was never sent")

    def _judge_reads(self, place: Place, log: Log) -> None:
        for offset, value in self._read.get(place, {}).items():
            if offset >= log.first and log.at(offset) != value:
                self._fail(f"ReadStays: {place} at {offset} was read as {value!r}, in the end it is {log.at(offset)!r}")

    def _judge_receipts(
        self,
        place: Place,
        log: Log,
        may_be_lost_from: Callable[[int], set[int]],
        tree: Tree,
        holders: Collection[tuple[str, int]],
        *,
        strictly: bool,
    ) -> None:
        to_count = 0
        for receipt in self.receipts.get(place, ()):
            offset = receipt.offset
            if offset is None or offset < log.first or log.at(offset) == receipt.value:
                continue
            blocks = may_be_lost_from(offset)
            if receipt.quorum or not blocks:
                self._fail(
                    f"NoAckedLoss: {receipt.value!r} was acknowledged at {offset} of {place}, which holds "
                    f"{log.at(offset)!r}"
                )
                return
            self.lost += 1
            # Who had it counts it when it is back, and is told how the block ended; not if retention was quicker, or
            # if it was away for so long that its copy was made elsewhere.
            to_count += any((tree.leaders.get(block, ""), block) in holders for block in blocks & tree.sealed.keys())
        # All blocks together: two failovers in a row can lose the same offsets, and a receipt names no block.
        counted = sum(tree.mirror.lost.values())
        if strictly and counted < to_count:
            self._fail(f"LossIsCounted: {to_count} messages of {place} are lost, {counted} are counted")
