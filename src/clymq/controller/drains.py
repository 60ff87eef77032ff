"""Emptying a broker: nothing new is placed on it, and the look round moves away what it holds.

A broker is empty when the tree names it for no block; then it may be destroyed. That it is being emptied stands in its
node, so a controller that takes over goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clymq.controller.chains import Chains, View
from clymq.controller.placement import usable
from clymq.controller.roster import Attendance, Member
from clymq.errors import InvalidRequest, NotEnoughReplicas
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import changed
from clymq.metadata.reading import settled
from clymq.protocol.controller import DrainBroker, DrainProgress, UndrainBroker
from clymq.protocol.verbs import Done


class Drains:
    """The verbs that empty a broker and let it take blocks again."""

    def __init__(
        self, catalog: Catalog, chains: Chains, attendance: Attendance, look_round: Callable[[], None]
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._look_round = look_round
        self._held_first: dict[str, int] = {}

    async def drain(self, request: DrainBroker) -> DrainProgress:
        """Mark a broker, and say how many blocks have left it and how many are still there."""
        await self._catalog.sync()
        views = await self._chains.all_views()
        await self._check_room(request.broker, views)
        await self._mark(request.broker, draining=True)
        held = held_by(request.broker, views)
        first = self._held_first[request.broker] = max(held, self._held_first.get(request.broker, 0))
        if held:
            self._look_round()
        return DrainProgress(moved=first - held, remaining=held)

    async def undrain(self, request: UndrainBroker) -> Done:
        """Let a broker take blocks again; what has left it stays where it is."""
        await self._catalog.sync()
        await self._mark(request.broker, draining=False)
        self._held_first.pop(request.broker, None)
        return Done()

    async def _mark(self, name: str, *, draining: bool) -> None:
        async def attempt() -> None:
            broker = (await self._member(name)).broker
            if broker.value.draining != draining:
                await self._catalog.put_broker(changed(broker.value, draining=draining), broker.version)

        await settled(attempt)

    async def _member(self, name: str) -> Member:
        roster = await self._attendance.roster()
        if name not in roster.members:
            raise InvalidRequest(f"there is no broker {name}; there are {', '.join(sorted(roster.members)) or 'none'}")
        return roster.members[name]

    async def _check_room(self, name: str, views: Iterable[View]) -> None:
        """Refuse what could not end: the others must be enough for every partition that is on the broker."""
        await self._member(name)
        others = [each for each in usable((await self._attendance.roster()).seats()) if each != name]
        needed = max((view.partition.value.dupnum for view in views if name in view.members), default=0)
        if needed > len(others):
            raise NotEnoughReplicas(
                f"partitions on {name} have {needed} replicas and only {len(others)} other brokers can take one",
                hint="start another broker first, or lower their replicas",
            )


def held_by(name: str, views: Iterable[View]) -> int:
    """Count the blocks that the tree names a broker for, those that it is still to make included."""
    count = 0
    for view in views:
        pending = view.partition.value.pending
        places = [] if pending is None else [each.broker for each in pending.replicas]
        count += name in view.members or name in places
        for sealed in view.sealed:
            holders = {each.broker for each in sealed.replicas} | {each.broker for each in sealed.block.copies}
            count += name in holders
    return count
