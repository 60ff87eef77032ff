"""Tells the controller how far groups have come, about once a second: what `status` shows, and nothing is decided by.

Only changes are told, each by the leader of the active block; a new leader tells everything once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.neighbours import ActiveController
from clymq.errors import ClymqError
from clymq.protocol.controller import UpdatePTPOffset

log = logging.getLogger("clymq.broker")

ASK_MS: Final = 5_000.0


class Position(NamedTuple):
    """Where a group stands in a partition. A stored one (PSB) may be set to anything, a cursor (PTP) only grows."""

    partition: HostedPartition
    group: str
    offset: int
    stored: bool


class CursorMirror:
    """Remembers what was told."""

    def __init__(self, controller: ActiveController) -> None:
        self._controller = controller
        self._told: dict[tuple[str, str], int] = {}

    async def tell(self, positions: Iterable[Position]) -> None:
        """Tell what has changed since the last time. What does not arrive is told with the next look."""
        told, self._told = self._told, {}
        for position in positions:
            partition, key = position.partition, (position.partition.uid, position.group)
            before = told.get(key)
            if before == position.offset:
                self._told[key] = before
                continue
            report = UpdatePTPOffset(
                partition.topic,
                partition.name,
                partition.uid,
                position.group,
                position.offset,
                exact=position.stored or (before is not None and position.offset < before),
            )
            try:
                await self._controller.ask(report, timeout_ms=ASK_MS)
                self._told[key] = position.offset
            except ClymqError as error:
                log.debug("a cursor is not mirrored: %s", error)
                if before is not None:
                    self._told[key] = before
