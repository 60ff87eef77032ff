"""Setting groups of consumers to another place: the earliest, the latest, an offset, a time.

The controller finds the offset; the leader of the active block writes it into the log, which is where groups stand. A
time is looked for block by block, the oldest first, at whoever holds each: messages need not be in order of time, so
the first block that has one that is not earlier has the answer. Asked again, it sets the group to the same place again.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from typing import Final, NamedTuple

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import Brokers
from clymq.controller.chains import Chains, View
from clymq.controller.roster import Attendance, Roster
from clymq.errors import (
    ClymqError,
    InvalidRequest,
    LeaderUnavailable,
    NotSubscribed,
    OffsetOutOfRange,
    PartitionUnset,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Replica
from clymq.protocol.broker import OFFSET_UNKNOWN, FindOffset
from clymq.protocol.controller import GroupList, GroupStatus, ResetGroup
from clymq.protocol.hosting import LATEST, SetGroupPosition
from clymq.types import check_name

LOOK_MS: Final = 50.0
RESETS_AT_ONCE: Final = 64
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class Target(NamedTuple):
    """Where a group is to go: an offset (`LATEST`: the end; None: the first that is there), or a time."""

    offset: int | None = None
    timestamp_us: int | None = None


class Groups:
    """The verb that moves groups."""

    def __init__(
        self, catalog: Catalog, chains: Chains, attendance: Attendance, brokers: Brokers, clock: Clock, config: Config
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._brokers = brokers
        self._clock = clock
        self._config = config

    async def reset_group(self, request: ResetGroup) -> GroupList:
        """Set a group to a place, in one partition or in all of a topic; say where it stands afterwards."""
        check_name(request.group, "group")
        target = parse_target(request.to)
        await self._catalog.sync()
        topic = (await self._chains.topic(request.topic)).value
        if request.partition:
            views = [await self._chains.view(request.topic, request.partition)]
        else:
            views = [view for view in await self._chains.views(topic) if view.begun]
        mode = await self._mode(request.topic, request.group)
        done: list[GroupStatus | NotSubscribed] = []
        for start in range(0, len(views), RESETS_AT_ONCE):
            some = views[start : start + RESETS_AT_ONCE]
            done += await asyncio.gather(*(self._reset(view, request.group, target, mode) for view in some))
        found = tuple(each for each in done if isinstance(each, GroupStatus))
        if not found:
            raise NotSubscribed(f"no group {request.group} reads {request.topic}")
        return GroupList(found)

    async def _mode(self, topic: str, group: str) -> int:
        """Return how a group has subscribed; 0 if it has not: then only the log knows it, if anybody does."""
        found = (await self._catalog.subscriptions(topic)).values()
        return next((each.value.option for each in found if group in each.value.groups), 0)

    async def _reset(self, view: View, group: str, target: Target, mode: int) -> GroupStatus | NotSubscribed:
        """Set the group in one partition; what stands in the way for a moment is waited for, for a while."""
        deadline_ms = self._clock.monotonic_ms() + self._config.leader_wait_ms_max
        uid = view.partition.value.uid
        while True:
            try:
                return await self._attempt(view, group, target, mode)
            except NotSubscribed as error:
                return error
            except ClymqError as error:
                if not error.retriable or self._clock.monotonic_ms() >= deadline_ms:
                    raise
            await pause(self._clock, LOOK_MS)
            await self._catalog.sync()
            view = await self._chains.view(*view.key, uid)

    async def _attempt(self, view: View, group: str, target: Target, mode: int) -> GroupStatus:
        topic, partition = view.key
        if not view.begun:
            raise PartitionUnset(f"{view} is in state -2: nobody reads it yet", hint="SetPartitionState first")
        roster = await self._attendance.roster()
        offset = await self._offset(view, roster, target)
        request = SetGroupPosition(
            topic, partition, view.partition.value.uid, view.now.block, group, offset=offset, mode=mode
        )
        answer = await self._brokers.ask(view.now.leader, request)
        await self._chains.of(*view.key).report_cursor(group, answer.offset, exact=True)
        return GroupStatus(topic, group, partition, answer.offset, answer.end, max(0, answer.end - answer.offset))

    async def _offset(self, view: View, roster: Roster, target: Target) -> int:
        first = view.partition.value.first_offset
        if target.timestamp_us is not None:
            return await self._offset_at(view, roster, target.timestamp_us)
        if target.offset is None:
            return first
        if LATEST < target.offset < first:
            raise OffsetOutOfRange(target.offset, first=first, end=view.now.start)
        return target.offset

    async def _offset_at(self, view: View, roster: Roster, timestamp_us: int) -> int:
        """Return the first offset that is not earlier than a time; `LATEST` if everything is."""
        for sealed in view.sealed:
            holders = [each for each in sealed.replicas if not each.down]
            if not holders:
                continue  # nobody can read it any more, so nobody begins there
            offset = await self._find_in(view, roster, sealed.block.block, holders, timestamp_us)
            if offset != OFFSET_UNKNOWN:
                return offset
        leader = [each for each in view.active.replicas if each.broker == view.now.leader]
        offset = await self._find_in(view, roster, view.now.block, leader, timestamp_us)
        return LATEST if offset == OFFSET_UNKNOWN else offset

    async def _find_in(
        self, view: View, roster: Roster, block: int, holders: Sequence[Replica], timestamp_us: int
    ) -> int:
        request = FindOffset(*view.key, view.partition.value.uid, block, timestamp_us)
        problem: ClymqError = LeaderUnavailable(f"no broker with block {block} of {view} is online")
        for name in (each.broker for each in holders if roster.online(each.broker)):
            try:
                return (await self._brokers.ask(name, request)).offset
            except ClymqError as error:
                problem = error
        raise problem


def parse_target(to: str) -> Target:
    """Read where a group is to go."""
    if to == "earliest":
        return Target()
    if to == "latest":
        return Target(LATEST)
    if to.isascii() and to.isdigit():
        return Target(int(to))
    try:
        time = datetime.datetime.fromisoformat(to)
    except ValueError:
        raise InvalidRequest(f"{to!r} is neither earliest, latest, an offset nor a time in ISO 8601") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return Target(timestamp_us=(time - _EPOCH) // _MICROSECOND)
