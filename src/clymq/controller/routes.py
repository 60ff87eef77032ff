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
    NodeMissing,
    NotReady,
    OffsetOutOfRange,
    PartitionUnset,
    UnknownPartition,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Replica
from clymq.protocol.controller import NOT_YET, ConGetBroker, ConsumerRoutes, ProducerRoute, ProGetBroker, ReadRoute
from clymq.protocol.hosting import PrepareSend

LOOK_MS = 50.0
NEWER_MS_MAX = 2000.0
"""Who was failed by a leader waits so long for a newer one; clients wait a little longer for the answer."""
ACTIVE = -1
"""Where an active block ends: nobody knows yet."""


class Leadership(NamedTuple):
    """Who leads which block, in which term: what changes when another one takes over, or the same one again."""

    broker: str
    block: int
    term: int


class Target(NamedTuple):
    """What a consumer reads next: a block, where that begins and ends, the offset, and who holds it, best first."""

    block: int
    start: int
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
        self._newer_ms_max = min(NEWER_MS_MAX, config.leader_wait_ms_max)

    async def for_producer(self, request: ProGetBroker) -> ProducerRoute:
        """Return the active block's leader as recorded, if it is online; else wait for one, for a while.

        Who names a leader that failed waits for a newer one, so that one question is enough; not for long, because it
        may be wrong about the failure.
        """
        began_ms = self._clock.monotonic_ms()
        await self._catalog.sync()
        view = await self._chains.view(request.topic, request.partition)
        if not view.begun and view.partition.value.pending is not None:
            await self._moves.finish(view.key)
            view = await self._chains.view(request.topic, request.partition)
        _check_begun(view)
        roster = await self._attendance.roster()
        failed = _failed(request, view)
        while True:
            waited_ms = self._clock.monotonic_ms() - began_ms
            is_online = roster.online(view.now.leader)
            if is_online and (failed != _leadership(view) or waited_ms >= self._newer_ms_max):
                break
            if waited_ms >= self._config.leader_wait_ms_max:
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
            term=now.term or NOT_YET,
        )

    async def for_consumer(self, request: ConGetBroker) -> ConsumerRoutes:
        """Return one entry for each partition that a consumer reads; what stands in the way of one is its own."""
        await self._catalog.sync()
        topic = (await self._chains.topic(request.topic)).value
        if not request.broker:
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
            start, end = _range_of(error)
            return ReadRoute(
                partition=partition.name,
                uid=partition.uid,
                offset=request.offset,
                error=error.code,
                problem=str(error),
                end=end,
                assigned=assigned,
                start=start,
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
            start=target.start,
        )

    async def _target(self, request: ConGetBroker, view: View, roster: Roster) -> Target:
        """Return the block that is read next, and who holds it, best first."""
        leader = tuple(each for each in view.active.replicas if each.broker == view.now.leader)
        chain = self._chains.of(*view.key)
        if request.option in POINT_TO_POINT:
            cursors = (await chain.mirror()).cursors
            offset = cursors.get(request.group, view.partition.value.first_offset)
            return Target(view.now.block, view.now.start, ACTIVE, offset, leader)
        if request.offset >= view.now.start:
            return Target(view.now.block, view.now.start, ACTIVE, request.offset, leader)
        sealed = _holding(view, request.offset)
        online = [each for each in sealed.replicas if not each.down and roster.online(each.broker)]
        try:
            ends = await asyncio.gather(*(chain.replica_end(sealed.block.block, each.broker) for each in online))
        except NodeMissing as error:
            raise NotReady(f"block {sealed.block.block} of {view} has changed meanwhile", hint="ask again") from error
        best_first = sorted(zip(ends, online, strict=True), key=lambda each: -each[0])
        block, replicas = sealed.block, tuple(replica for _, replica in best_first)
        return Target(block.block, block.start, block.end, request.offset, replicas)

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


def _leadership(view: View) -> Leadership:
    return Leadership(view.now.leader, view.now.block, view.now.term)


def _failed(request: ProGetBroker, view: View) -> Leadership | None:
    """Return the leadership that failed the producer; the present one, if it does not know the term of the broker.

    A broker that did not lead yet when it was asked may do so by now: then the present one is the newer one.
    """
    if not request.failed:
        return None
    known = request.term or (view.now.term if request.block == view.now.block else 0)
    return Leadership(request.failed, request.block, 0 if known == NOT_YET else known)


def _range_of(error: ClymqError) -> tuple[int, int]:
    """Return the offsets that an error is about: those that are lost, or those that there are; -1 where it is none."""
    if isinstance(error, DataLost):
        return error.start, error.end
    if isinstance(error, OffsetOutOfRange):
        return error.first, error.end
    return -1, -1


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
