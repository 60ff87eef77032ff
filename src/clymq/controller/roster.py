"""Who is there: every registered broker, which life of it is online, and for how long it has been away.

A `Roster` is one reading of `/Brokers`; who decides something takes a fresh one. How long a broker has been away is
known from when this controller first missed it: a new controller counts anew, so a broker is never replaced too early.
Liveness decides placement, fetch failover and replacement; it never decides who leads a Raft group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NamedTuple

from clymq.clock import Clock
from clymq.controller.brokers import Brokers
from clymq.controller.placement import Seat
from clymq.errors import NodeMissing
from clymq.metadata import nodes
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Broker, BrokerState, Place
from clymq.metadata.reading import Versioned, read
from clymq.protocol.hosting import ReplicaPlace


class Member(NamedTuple):
    """A registered broker. `state` is its present life, and who owns that is its session; None: it is offline."""

    broker: Versioned[Broker]
    state: Versioned[BrokerState] | None
    away_ms: float = 0.0


class Roster:
    """One reading of who is there."""

    def __init__(self, members: dict[str, Member]) -> None:
        self.members = members

    def online(self, name: str) -> bool:
        """Say whether a broker is online."""
        member = self.members.get(name)
        return member is not None and member.state is not None

    def draining(self, name: str) -> bool:
        """Say whether a broker is being emptied."""
        return name in self.members and self.members[name].broker.value.draining

    def away_ms(self, name: str) -> float:
        """Return for how long a broker has been offline; 0 if it is online, for ever if nobody knows it."""
        return self.members[name].away_ms if name in self.members else float("inf")

    def incarnation(self, name: str) -> int:
        """Return which life of a broker is online; 0 if none is."""
        state = self.members[name].state if name in self.members else None
        return state.value.incarnation if state is not None else 0

    def session(self, name: str) -> str:
        """Return the session of the store in which a broker is online; empty if it is not."""
        state = self.members[name].state if name in self.members else None
        return (state.owner or "") if state is not None else ""

    def address(self, name: str) -> str:
        """Return where a broker listens, or listened last; empty if nobody knows it."""
        return self.members[name].broker.value.address if name in self.members else ""

    def addresses(self) -> dict[str, str]:
        """Return where everybody listens."""
        return {name: member.broker.value.address for name, member in self.members.items()}

    def disk_id(self, name: str) -> str:
        """Return the disk that a broker has now."""
        return self.members[name].broker.value.disk_id if name in self.members else ""

    def place(self, name: str) -> Place:
        """Return a broker with its present disk."""
        return Place(broker=name, disk_id=self.disk_id(name))

    def replica_place(self, place: Place | nodes.Replica) -> ReplicaPlace:
        """Return a place as brokers and clients are told of it."""
        return ReplicaPlace(place.broker, place.disk_id, self.address(place.broker))

    def seats(self) -> dict[str, Seat]:
        """Return what placement needs to know."""
        return {
            name: Seat(
                power=member.broker.value.power,
                host=member.broker.value.host,
                rack=member.broker.value.rack,
                online=member.state is not None,
                draining=member.broker.value.draining,
            )
            for name, member in self.members.items()
        }


class Attendance:
    """Reads rosters, and remembers since when somebody is missing."""

    def __init__(self, catalog: Catalog, brokers: Brokers, clock: Clock) -> None:
        self._catalog = catalog
        self._brokers = brokers
        self._clock = clock
        self._missed_at_ms: dict[str, float] = {}

    async def roster(self) -> Roster:
        """Read who is there. What is decided by it comes after a `sync` of the caller."""
        registered = await self._catalog.brokers()
        states = await asyncio.gather(*(self._state(name) for name in registered))
        now_ms = self._clock.monotonic_ms()
        members = {}
        for (name, broker), state in zip(registered.items(), states, strict=True):
            if state is not None:
                self._missed_at_ms.pop(name, None)
            away_ms = 0.0 if state is not None else now_ms - self._missed_at_ms.setdefault(name, now_ms)
            members[name] = Member(broker, state, away_ms)
        roster = Roster(members)
        self._brokers.know(roster.addresses())
        return roster

    async def _state(self, name: str) -> Versioned[BrokerState] | None:
        with contextlib.suppress(NodeMissing):
            return await read(self._catalog.store, BrokerState, nodes.state_path(name))
        return None

    async def follow(self, changed: Callable[[], None], spawn: Callable[[str], None]) -> None:
        """Tell of every broker that registers, for as long as this runs; `spawn` begins to follow one of them."""
        followed: set[str] = set()
        watch = await self._catalog.store.watch(nodes.BROKERS)
        try:
            while True:
                for name in await self._catalog.store.children(nodes.BROKERS):
                    if name not in followed:
                        followed.add(name)
                        spawn(nodes.decoded_name(nodes.BROKERS, name))
                await watch.changed()
                changed()
        finally:
            watch.close()

    async def follow_one(self, name: str, changed: Callable[[], None]) -> None:
        """Tell of a broker's coming and going, for as long as this runs."""
        watch = await self._catalog.store.watch(nodes.broker_path(name))
        try:
            while True:
                await watch.changed()
                changed()
        finally:
            watch.close()
