"""Where to push and where to read: the answers that clients keep until somebody tells them otherwise.

A route is a good guess, not a promise: the broker that it names says so if it is not the right one, with a hint. Only
one thing must hold: nobody waits for ever. A partition without a leader is waited for `leader_wait_ms_max`, then the
answer is an error that says to try again.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.assignment import assign, partitions_of
from clymq.controller.brokers import Brokers
from clymq.controller.chains import Chains, Sealed, View
from clymq.controller.moves import Moves
from clymq.controller.roster import Attendance, Roster
from clymq.controller.subscriptions import POINT_TO_POINT, Subscriptions
from clymq.errors import (
    ClymqError,
    DataLost,
    LeaderUnavailable,
    NotReady,
    OffsetOutOfRange,
    PartitionUnset,
    UnknownPartition,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Replica
from clymq.protocol.controller import ConGetBroker, ConsumerRoutes, ProducerRoute, ProGetBroker, ReadRoute
from clymq.protocol.hosting import PrepareSend

LOOK_MS = 50.0
ACTIVE = -1
"""Where an active block ends: nobody knows yet."""


class Target(NamedTuple):
    """What a consumer reads next: a block, where that ends, the offset, and who holds it, best first."""

    block: int
    end: int
    offset: int
    replicas: tuple[Replica, ...]


class Routes:
    """The verbs that ask where."""

    def __init__(
        self,
        catalog: Catalog,
        chains: Chains,
        attendance: Attendance,
        subscriptions: Subscriptions,
        moves: Moves,
        brokers: Brokers,
        clock: Clock,
        config: Config,
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._subscriptions = subscriptions
        self._moves = moves
        self._brokers = brokers
        self._clock = clock
        self._config = config

    async def for_producer(self, request: ProGetBroker) -> ProducerRoute:
        """Return the active block's leader as recorded, if it is online; else wait for one, for a while."""
        deadline_ms = self._clock.monotonic_ms() + self._config.leader_wait_ms_max
        await self._catalog.sync()
        view = await self._chains.view(request.topic, request.partition)
        if not view.begun and view.partition.value.pending is not None:
            await self._moves.finish(view.key)
            view = await self._chains.view(request.topic, request.partition)
        _check_begun(view)
        roster = await self._attendance.roster()
        while not roster.online(view.now.leader):
            if self._clock.monotonic_ms() >= deadline_ms:
                raise LeaderUnavailable(
                    f"{view} has had no leader for {self._config.leader_wait_ms_max} ms; {view.now.leader} is offline"
                )
            await pause(self._clock, LOOK_MS)
            await self._catalog.sync()
            view = await self._chains.view(request.topic, request.partition)
            roster = await self._attendance.roster()
        now = view.now
        return ProducerRoute(
            uid=view.partition.value.uid,
            broker=now.leader,
            address=roster.address(now.leader),
            ack=view.partition.value.state,
            block=now.block,
            epoch=now.epoch,
            message_bytes_max=int(view.topic.settings.get("message_bytes_max", self._config.message_bytes_max)),
            replicas=tuple(roster.replica_place(each) for each in view.active.replicas),
        )

    async def for_consumer(self, request: ConGetBroker) -> ConsumerRoutes:
        """Return one entry for each partition that a consumer reads; what stands in the way of one is its own."""
        await self._catalog.sync()
        topic = (await self._chains.topic(request.topic)).value
        await self._subscriptions.check(
            request.topic, request.option, request.group, request.consumer, request.partition
        )
        if request.partition:
            views = [await self._chains.view(request.topic, request.partition)]
        else:
            views = await self._chains.views(topic)
        roster = await self._attendance.roster()
        mine: list[str] = []
        generation = 0
        if request.option in POINT_TO_POINT:
            group = await self._subscriptions.group(request.topic, request.group)
            generation = group.generation
            assigned = assign(group.consumers, await self._catalog.partitions(request.topic))
            mine = partitions_of(request.consumer, assigned)
        routes = (self._route(request, view, roster, view.partition.value.name in mine) for view in views)
        return ConsumerRoutes(tuple(await asyncio.gather(*routes)), generation)

    async def _route(self, request: ConGetBroker, view: View, roster: Roster, assigned: bool) -> ReadRoute:
        partition = view.partition.value
        try:
            _check_begun(view)
            target = await self._target(request, view, roster)
            name, offset = await self._prepared(request, view, roster, target)
        except ClymqError as error:
            return ReadRoute(
                partition=partition.name,
                uid=partition.uid,
                offset=request.offset,
                error=error.code,
                problem=str(error),
                assigned=assigned,
            )
        # Followers of an active block serve nothing, but know who leads when nobody can be asked here.
        holders = view.active.replicas if target.end == ACTIVE else target.replicas
        others = [each for each in holders if each.broker != name and roster.online(each.broker)]
        return ReadRoute(
            partition=partition.name,
            uid=partition.uid,
            broker=name,
            address=roster.address(name),
            block=target.block,
            offset=offset,
            replicas=tuple(roster.replica_place(each) for each in others),
            end=target.end,
            assigned=assigned,
        )

    async def _target(self, request: ConGetBroker, view: View, roster: Roster) -> Target:
        """Return the block that is read next, and who holds it, best first."""
        leader = tuple(each for each in view.active.replicas if each.broker == view.now.leader)
        chain = self._chains.of(*view.key)
        if request.option in POINT_TO_POINT:
            cursors = (await chain.mirror()).cursors
            offset = cursors.get(request.group, view.partition.value.first_offset)
            return Target(view.now.block, ACTIVE, offset, leader)
        if request.offset >= view.now.start:
            return Target(view.now.block, ACTIVE, request.offset, leader)
        sealed = _holding(view, request.offset)
        online = [each for each in sealed.replicas if not each.down and roster.online(each.broker)]
        ends = await asyncio.gather(*(chain.replica_end(sealed.block.block, each.broker) for each in online))
        best_first = sorted(zip(ends, online, strict=True), key=lambda each: -each[0])
        return Target(sealed.block.block, sealed.block.end, request.offset, tuple(replica for _, replica in best_first))

    async def _prepared(self, request: ConGetBroker, view: View, roster: Roster, target: Target) -> tuple[str, int]:
        """Have the best replica prepare to send; if it cannot, the next. Return who will, and from which offset."""
        problem: ClymqError = LeaderUnavailable(f"no broker with block {target.block} of {view} is online")
        prepare = PrepareSend(
            topic=request.topic,
            partition=view.partition.value.name,
            uid=view.partition.value.uid,
            block=target.block,
            mode=request.option,
            group=request.group,
            consumer=request.consumer,
            offset=target.offset,
        )
        for replica in target.replicas:
            if roster.online(replica.broker):
                try:
                    return replica.broker, (await self._brokers.ask(replica.broker, prepare)).offset
                except ClymqError as error:
                    # The chain may have moved a moment ago, and the broker not have heard of it: no final answer.
                    unheard = isinstance(error, UnknownPartition)
                    problem = NotReady(f"{replica.broker} does not host it yet: {error}") if unheard else error
        raise problem


def _check_begun(view: View) -> None:
    if not view.begun:
        raise PartitionUnset(f"{view} is in state -2: it takes no message yet", hint="SetPartitionState first")


def _holding(view: View, offset: int) -> Sealed:
    """Return the sealed block that an offset is in."""
    for sealed in view.sealed:
        block = sealed.block
        if block.start <= offset < block.end:
            if all(each.down for each in sealed.replicas):
                raise DataLost(f"{view}: no replica of block {block.block} is left", start=block.start, end=block.end)
            return sealed
    raise OffsetOutOfRange(offset, first=view.partition.value.first_offset, end=view.now.start)
