"""What the clients under measurement have to do: the same messages for all of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

DISTINCT = 1000


@dataclass(frozen=True)
class Load:
    """So many messages of this size in a turn; who is much slower gets a part of them, so that a turn does not drag."""

    size_bytes: int
    count: int

    @cached_property
    def some(self) -> list[bytes]:
        """Messages that are no two alike, to be sent over and over."""
        return [os.urandom(self.size_bytes) for _ in range(DISTINCT)]

    def part(self, share: float) -> int:
        """Return a share of the count, in whole thousands."""
        return max(1, int(self.count * share) // DISTINCT) * DISTINCT

    def __str__(self) -> str:
        return f"{self.size_bytes} B"
