"""Where to read: which block of a partition holds an offset, and who has it.

Reading needs a subscription. One that reads without having subscribed gets it here, and undoes it when it leaves.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Final

from clymq import errors
from clymq.client.cluster import LOOK_AGAIN_MS_MAX, Cluster
from clymq.client.waiting import Deadline
from clymq.errors import (
    ClymqError,
    DataLost,
    NotSubscribed,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownServerError,
)
from clymq.protocol.broker import OFFSET_UNKNOWN, FindOffset, OffsetFound
from clymq.protocol.controller import ConGetBroker, ReadRoute, Sub, UnSub
from clymq.types import Mode

log = logging.getLogger("clymq.client")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ReadRoutes:
    """The routes of one reader in one partition."""

    def __init__(
        self, cluster: Cluster, topic: str, partition: str, *, consumer: str, group: str, mode: Mode = Mode.PSB_PULL
    ) -> None:
        self._has_to_leave = False
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._consumer = consumer
        self._group = group
        self._mode = mode

    async def find(self, offset: int, deadline: Deadline) -> ReadRoute:
        """Return the block that holds an offset and who has it; raise what stands in the way."""
        request = ConGetBroker(
            topic=self._topic,
            consumer=self._consumer,
            option=self._mode,
            group=self._group,
            partition=self._partition,
            offset=offset,
        )
        try:
            routes = (await self._cluster.ask_controller(request, deadline)).routes
        except NotSubscribed:
            subscribe = Sub(self._topic, self._consumer, self._mode, self._group, self._partition)
            self._has_to_leave = True  # BEFORE it is asked for: who is cancelled meanwhile does not hear the answer
            await self._cluster.ask_controller(subscribe, deadline)
            routes = (await self._cluster.ask_controller(request, deadline)).routes
        for route in routes:
            if route.partition == self._partition:
                if route.error:
                    raise _error_of(route, offset)
                return route
        raise UnknownPartition(f"{self._topic} has no partition {self._partition}")

    async def leave(self) -> None:
        """Undo the subscription, if there was none before. Nobody waits for long if no controller answers."""
        if not self._has_to_leave:
            return
        self._has_to_leave = False
        request = UnSub(self._topic, self._consumer, self._mode, self._group, self._partition)
        try:
            await self._cluster.ask_controller(request, Deadline(self._cluster.clock, LOOK_AGAIN_MS_MAX / 1000))
        except ClymqError as error:
            log.info("consumer %s: %s/%s stays subscribed: %s", self._consumer, self._topic, self._partition, error)

    async def offset_at(self, time_us: int, first: int, deadline: Deadline) -> int:
        """Return the offset of the first message that is not earlier than a time; the end if all are.

        Messages need not be in order of time, so blocks are asked one by one, the oldest first.
        """
        offset = first
        while True:
            route = await self.find(offset, deadline)
            found = await self._ask_holders(route, time_us, deadline)
            if found.offset != OFFSET_UNKNOWN:
                return found.offset
            if route.end < 0:
                return found.end
            offset = route.end

    async def _ask_holders(self, route: ReadRoute, time_us: int, deadline: Deadline) -> OffsetFound:
        """Ask those who have a block, one after the other."""
        problem: ClymqError | None = None
        request = FindOffset(self._topic, self._partition, route.uid, route.block, time_us)
        for address in dict.fromkeys((route.address, *(each.address for each in route.replicas))):
            try:
                return (await self._cluster.ask(address, request, timeout_ms=deadline.remaining_ms)).reply
            except ClymqError as error:
                problem = error
        assert problem is not None
        raise problem


def microseconds(moment: datetime) -> int:
    """Return a time as messages have it; one without a zone is in that of this machine."""
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def error_named(code: str, problem: str, hint: str | None = None) -> ClymqError:
    """Return an error as the class that its code names."""
    kind = getattr(errors, code, None)
    if isinstance(kind, type) and issubclass(kind, ClymqError):
        try:
            return kind(problem, hint=hint)
        except TypeError:
            pass  # it has fields that are not known here
    return UnknownServerError(f"{code}: {problem}", hint=hint)


def _error_of(route: ReadRoute, offset: int) -> ClymqError:
    """Return the error that stands in a route."""
    start = route.offset if route.start < 0 else route.start
    if route.error == OffsetOutOfRange.code:
        return OffsetOutOfRange(offset, first=start, end=max(start, route.end), hint=route.problem)
    if route.error == DataLost.code and route.start >= 0:
        return DataLost(route.problem, start=route.start, end=route.end)
    return error_named(route.error, route.problem)
