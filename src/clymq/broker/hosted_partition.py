"""The blocks of one partition that are on this broker, and which of them an offset is in."""

from __future__ import annotations

from bisect import bisect_right

from clymq.broker.active_block import ActiveBlock
from clymq.broker.sealed_block import SealedBlock
from clymq.config import Config
from clymq.errors import NotHosted
from clymq.protocol.controller import BlockBefore, HostedBlock


class HostedPartition:
    """See the module. `Hosting` fills it in."""

    def __init__(self, place: HostedBlock, path: str, config: Config) -> None:
        self.topic = place.topic
        self.name = place.partition
        self.uid = place.uid
        self.path = path
        self.epoch = place.epoch
        self.config = config
        """As this topic has it."""
        self.before: BlockBefore | None = None
        """The block before the active one, as the tree knew it last: who holds it may change while this one begins."""
        self.active: ActiveBlock | None = None
        self.sealed: dict[int, SealedBlock] = {}
        """By number; changed by `keep` and `drop`."""
        self._by_start: list[SealedBlock] = []

    def keep(self, block: SealedBlock) -> None:
        """Have a sealed block."""
        self.sealed[block.number] = block
        self._by_start = sorted(self.sealed.values(), key=lambda each: (each.start, each.number))

    def drop(self, number: int) -> SealedBlock:
        """Have a sealed block no longer; return it."""
        block = self.sealed.pop(number)
        self._by_start.remove(block)
        return block

    def sealed_with(self, offset: int) -> SealedBlock | None:
        """Return the sealed block that an offset is in, if it is here; there may be thousands, and each pull asks."""
        at = bisect_right(self._by_start, offset, key=lambda each: each.start) - 1
        return self._by_start[at] if at >= 0 and offset < self._by_start[at].end else None

    def holding(self, offset: int) -> SealedBlock | ActiveBlock:
        """Return the block that an offset is in; the active one for all that lies behind the sealed ones."""
        block = self.sealed_with(offset)
        if block is not None:
            return block
        if self.active is None:
            raise NotHosted(f"offset {offset} of {self.topic}/{self.name} is not here", hint="ask where it is")
        return self.active
