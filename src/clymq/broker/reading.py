"""Where bytes of a partition are: in a block on this broker, or in one elsewhere, as the controller says.

Only active blocks that are led here and whole sealed ones are read here. Where others are is asked and remembered for a
while; a place that turns out to be wrong is found out by whoever goes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clymq import errors
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.neighbours import ActiveController
from clymq.clock import Clock
from clymq.errors import ClymqError, NotHosted, OffsetOutOfRange, StorageError, UnknownServerError
from clymq.protocol.broker import Locator
from clymq.protocol.controller import ConGetBroker, ReadRoute
from clymq.record.layout import FORMAT_BYTES_MAX, Header, whole_batches
from clymq.types import Mode

REMEMBERED_MS: Final = 5_000.0
REMEMBERED_MAX: Final = 1_024
ASK_MS: Final = 5_000.0


@dataclass(frozen=True, slots=True)
class Found:
    """Whole batches of one block; they cover the offsets from the one that was asked for up to `end`."""

    data: memoryview
    block: int
    end: int

    def up_to(self, end: int) -> memoryview:
        """Return the batches that are needed for the offsets below `end`."""
        if end >= self.end:
            return self.data
        position = 0
        while position < len(self.data):
            header = Header(self.data, position, batch_bytes_max=FORMAT_BYTES_MAX)
            position += header.length
            if header.end_offset >= end:
                break
        return self.data[:position]


def read_here(partition: HostedPartition, offset: int, bytes_max: int) -> Found | None:
    """Read on this broker, if what is asked for is here."""
    sealed = partition.sealed_with(offset)
    if sealed is not None:
        try:
            return _found(sealed.read(offset, bytes_max), sealed.number)
        except (StorageError, errors.NotReady):
            return None  # not whole here, or not any more
    active = partition.active
    if active is None or not active.start <= offset < active.end:
        return None
    return _found(active.read(offset, bytes_max), active.number)


def _found(data: memoryview, block: int) -> Found:
    last, _ = whole_batches(data)
    return Found(data, block, Header(data, last, batch_bytes_max=FORMAT_BYTES_MAX).end_offset)


class Locating:
    """Asks the controller where blocks are that are not here."""

    def __init__(self, me: str, controller: ActiveController, clock: Clock) -> None:
        self._me = me
        self._controller = controller
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, int, Locator]] = {}

    def known(self, partition: HostedPartition, offset: int) -> Locator | None:
        """Return where an offset is, if that was asked a moment ago."""
        now = self._clock.monotonic_ms()
        for (uid, _), (at, start, locator) in self._known.items():
            if uid == partition.uid and start <= offset < locator.end and now - at < REMEMBERED_MS:
                return locator
        return None

    async def find(self, partition: HostedPartition, offset: int) -> Locator:
        """Ask where an offset is; one that is gone is `OffsetOutOfRange`, with the first that is there."""
        known = self.known(partition, offset)
        if known is not None:
            return known
        request = ConGetBroker(
            partition.topic,
            self._me,
            Mode.PSB_PULL,
            partition=partition.name,
            offset=offset,
            broker=self._me,
        )
        routes = (await self._controller.ask(request, timeout_ms=ASK_MS)).routes
        route = next((each for each in routes if each.uid == partition.uid), None)
        if route is None:
            raise NotHosted(f"offset {offset} of {partition.topic}/{partition.name} is nowhere")
        if route.error:
            raise _error_of(route, offset)
        locator = Locator(route.block, route.broker, route.address, route.end)
        if route.end > offset:
            self._remember(partition.uid, offset, locator)
        return locator

    def _remember(self, uid: str, offset: int, locator: Locator) -> None:
        now = self._clock.monotonic_ms()
        if len(self._known) >= REMEMBERED_MAX:
            self._known = {key: each for key, each in self._known.items() if now - each[0] < REMEMBERED_MS}
        if len(self._known) < REMEMBERED_MAX:
            self._known[uid, locator.block] = (now, offset, locator)


def _error_of(route: ReadRoute, offset: int) -> ClymqError:
    """Return the error that stands in a route, as the class that its code names."""
    if route.error == OffsetOutOfRange.code:
        return OffsetOutOfRange(offset, first=max(0, route.start), end=max(0, route.end))
    kind = getattr(errors, route.error, None)
    if isinstance(kind, type) and issubclass(kind, ClymqError):
        try:
            return kind(route.problem)
        except TypeError:
            pass  # it has fields that a route does not carry
    return UnknownServerError(f"{route.error}: {route.problem}")
