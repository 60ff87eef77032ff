"""What a producer is told: where its messages are."""

from __future__ import annotations

from dataclasses import dataclass

from clymq.errors import ClymqError


@dataclass(frozen=True, slots=True)
class Receipt:
    """One message is stored, as safely as its `ack` says."""

    topic: str
    partition: str
    offset: int | None
    """None at ack 0, and for a duplicate of long ago."""
    timestamp: int
    """Microseconds, as consumers will read it."""
    duplicate: bool
    """It was stored by an earlier try whose answer was lost."""


@dataclass(frozen=True, slots=True)
class Receipts:
    """Several messages are stored: `ranges` are (partition, first offset or None, count), in the order given."""

    count: int
    ranges: list[tuple[str, int | None, int]]
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A whole batch is stored."""

    base_offset: int | None
    duplicate: bool


Outcome = Delivery | ClymqError


def merged(ranges: list[tuple[str, int | None, int]]) -> list[tuple[str, int | None, int]]:
    """Join ranges of one partition that adjoin, wherever they stand in the list."""
    out: list[tuple[str, int | None, int]] = []
    last: dict[str, int] = {}
    for partition, first, count in ranges:
        at = last.get(partition)
        if at is not None:
            _, before, length = out[at]
            if (before is None and first is None) or (before is not None and first == before + length):
                out[at] = partition, before, length + count
                continue
        last[partition] = len(out)
        out.append((partition, first, count))
    return out
