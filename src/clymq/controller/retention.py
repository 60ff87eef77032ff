"""Which sealed blocks may go: by the age of their last append, and by size; oldest first, whole blocks only.

The controller takes them out of the tree and raises the first offset in one transaction; brokers then delete what their
config no longer names. The newest sealed block stays until the block behind it has a leader that has said so: until
then its SEAL is where the next block's GENESIS comes from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from clymq.clock import Clock
from clymq.config import Config
from clymq.controller.chains import Chains, View
from clymq.errors import ClymqError, SessionLost
from clymq.metadata.nodes import SealedBlock

log = logging.getLogger("clymq.controller")

# One transaction names every replica of every block that goes; this many stay well inside what a store takes.
BLOCKS_PER_TRANSACTION = 100


class Retention:
    """Lets old blocks go."""

    def __init__(self, chains: Chains, clock: Clock, config: Config) -> None:
        self._chains = chains
        self._clock = clock
        self._config = config

    async def apply(self, views: Iterable[View]) -> None:
        """Let go what is due in these partitions; one that has moved on meanwhile waits for the next time."""
        for view in views:
            blocks = self.due(view)
            if not blocks:
                continue
            try:
                await self._chains.retain(view, blocks)
                log.info("%s: blocks %d to %d have left; it begins at offset %d",
                         view, blocks[0].block, blocks[-1].block, blocks[-1].end)  # fmt: skip
            except SessionLost:
                raise
            except ClymqError as error:
                log.info("%s: no block leaves for now: %s", view, error)

    def due(self, view: View) -> list[SealedBlock]:
        """Return the blocks of a partition that may go, the oldest first."""
        blocks = [each.block for each in view.sealed]
        if view.now.term == 0:
            blocks = blocks[:-1]
        age_ms = self._setting(view, "retention_ms", self._config.retention_ms)
        size = self._setting(view, "retention_bytes", self._config.retention_bytes)
        oldest_us = self._clock.wall_us() - age_ms * 1000
        kept_bytes = sum(each.block.bytes for each in view.sealed)
        due = []
        for block in blocks[:BLOCKS_PER_TRANSACTION]:
            too_old = age_ms >= 0 and block.last_append_time < oldest_us
            too_much = 0 <= size < kept_bytes
            if not too_old and not too_much:
                break
            due.append(block)
            kept_bytes -= block.bytes
        return due

    def _setting(self, view: View, name: str, default: int) -> int:
        value = view.topic.settings.get(name, default)
        return value if isinstance(value, int) else default
