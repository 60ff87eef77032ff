"""Where to push and where to read: the answers that clients keep until somebody tells them otherwise.

A route is a good guess, not a promise: the broker that it names says so if it is not the right one, with a hint. Only
one thing must hold: nobody waits for ever. A partition without a leader is waited for `leader_wait_ms_max`, then the
answer is an error that says to try again.
"""

from __future__ import annotations

import asyncio

from clymq.clock import Clock
from clymq.config import Config
from clymq.controller.assignment import assign, partitions_of
from clymq.controller.brokers import Brokers
from clymq.controller.chains import Chains, View
from clymq.controller.moves import Moves
from clymq.controller.pacing import pause
from clymq.controller.roster import Attendance, Roster
from clymq.controller.subscriptions import POINT_TO_POINT, Group, Subscriptions
from clymq.errors import ClymqError, DataLost, LeaderUnavailable, OffsetOutOfRange, PartitionUnset
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Replica
from clymq.protocol.controller import ConGetBroker, ConsumerRoutes, ProducerRoute, ProGetBroker, ReadRoute
from clymq.protocol.hosting import PrepareSend

LOOK_MS = 50.0


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
        group = await self._subscriptions.group(request.topic, request.group)
        routes = await asyncio.gather(*(self._route(request, view, roster) for view in views))
        if request.option not in POINT_TO_POINT:
            return ConsumerRoutes(tuple(routes))
        mine = _assigned(request, await self._catalog.partitions(request.topic), group)
        return ConsumerRoutes(
            tuple(_marked(route, assigned=route.partition in mine) for route in routes), group.generation
        )

    async def _route(self, request: ConGetBroker, view: View, roster: Roster) -> ReadRoute:
        partition = view.partition.value
        try:
            _check_begun(view)
            offset = request.offset
            if request.option in POINT_TO_POINT:
                offset = (await self._chains.of(*view.key).mirror()).cursors.get(request.group, partition.first_offset)
                return await self._prepared(request, view, roster, [view.now.leader], view.now.block, -1, offset)
            block, end, holders = _holding(view, offset)
            if end >= 0:
                holders = await self._best_first(view, block, holders, roster)
            return await self._prepared(request, view, roster, holders, block, end, offset)
        except ClymqError as error:
            return ReadRoute(
                partition=partition.name, uid=partition.uid, offset=request.offset, error=error.code, problem=str(error)
            )

    async def _best_first(self, view: View, block: int, names: list[str], roster: Roster) -> list[str]:
        """Sort replicas of a sealed block by how far they said that they have come."""
        chain = self._chains.of(*view.key)
        online = [name for name in names if roster.online(name)]
        ends = await asyncio.gather(*(chain.replica_end(block, name) for name in online))
        return [name for _, name in sorted(zip(ends, online, strict=True), key=lambda each: -each[0])]

    async def _prepared(
        self,
        request: ConGetBroker,
        view: View,
        roster: Roster,
        names: list[str],
        block: int,
        end: int,
        offset: int,
    ) -> ReadRoute:
        """Have the best replica prepare to send; if it cannot, the next."""
        partition = view.partition.value
        problem: ClymqError = LeaderUnavailable(f"no broker with block {block} of {view} is online")
        online = [name for name in names if roster.online(name)]
        disks = {each.broker: each for sealed in view.sealed if sealed.block.block == block for each in sealed.replicas}
        for name in online:
            prepare = PrepareSend(
                topic=request.topic,
                partition=partition.name,
                uid=partition.uid,
                block=block,
                mode=request.option,
                group=request.group,
                consumer=request.consumer,
                offset=offset,
            )
            try:
                ready = await self._brokers.ask(name, prepare)
            except ClymqError as error:
                problem = error
                continue
            return ReadRoute(
                partition=partition.name,
                uid=partition.uid,
                broker=name,
                address=roster.address(name),
                block=block,
                offset=ready.offset,
                end=end,
                replicas=tuple(roster.replica_place(disks[other]) for other in online if other != name),
            )
        raise problem


def _check_begun(view: View) -> None:
    if not view.begun:
        raise PartitionUnset(f"{view} is in state -2: it takes no message yet", hint="SetPartitionState first")


def _holding(view: View, offset: int) -> tuple[int, int, list[str]]:
    """Return the block that an offset is in, where it ends (-1: it is the active one) and who holds it."""
    if offset >= view.now.start:
        return view.now.block, -1, [view.now.leader]
    for sealed in view.sealed:
        block = sealed.block
        if block.start <= offset < block.end:
            whole = _not_down(sealed.replicas)
            if not whole:
                raise DataLost(f"{view}: no replica of block {block.block} is left", start=block.start, end=block.end)
            return block.block, block.end, whole
    raise OffsetOutOfRange(offset, first=view.partition.value.first_offset, end=view.now.start)


def _not_down(replicas: tuple[Replica, ...]) -> list[str]:
    return [each.broker for each in replicas if not each.down]


def _assigned(request: ConGetBroker, partitions: list[str], group: Group) -> list[str]:
    return partitions_of(request.consumer, assign(group.consumers, partitions))


def _marked(route: ReadRoute, *, assigned: bool) -> ReadRoute:
    return ReadRoute(**{name: getattr(route, name) for name in route.__struct_fields__} | {"assigned": assigned})
