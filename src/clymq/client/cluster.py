"""The way to the servers: a connection to each that is needed, the active zkserver, and who leads what.

What is learned is kept until a server contradicts it: a thousand pushes cost one lookup per partition. The retry loops
read the errors' flags: `retriable` says to try again, `refresh` to look up first. A refusal by the controller with
`refresh` alone (there is no such topic) is final, because there is nobody above it to ask; the same from a broker is
not: the broker may not have heard yet of what it hosts, or host it no more.

While no controller answers, the last known route is used again: brokers serve on without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Backoff, Deadline, Shared
from clymq.clock import pause
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectionLost,
    InvalidRequest,
    LeaderUnavailable,
    TransportError,
    UnknownPartition,
)
from clymq.protocol.broker import PUSH_RUNS
from clymq.protocol.controller import NOT_YET, DescribeTopic, FindController, ProducerRoute, ProGetBroker
from clymq.protocol.frames import Buffer
from clymq.protocol.verbs import Reply, Request
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Answer, Peer
from clymq.rpc.transport import parse_address
from clymq.types import check_name

# One server among several that is asked who the controller is gets no more time than this.
FIND_MS_MAX: Final = 2000.0
# Where an older route can be tried, the controller is not waited for any longer.
LOOK_AGAIN_MS_MAX: Final = 1000.0
# Unless it answers, and waits itself for a leader that is newer than the one that failed us, which takes it so long.
NEWER_MS_MAX: Final = 3000.0
# A connection that is lost says nothing of who leads: the same broker is tried again, but not if it was just before.
LOST_AGAIN_MS: Final = 1000.0
# The partitions of a topic are looked up again after this, so that new ones are found.
PARTITIONS_MS_MAX: Final = 60_000.0

# Hints followed in a row without a pause.
HINTS_MAX: Final = 3

R = TypeVar("R", bound=Reply)
Place = tuple[str, str]
"""A topic and a partition."""


class Cluster:
    """See the module. Belongs to one client and to the event loop that it is used on."""

    def __init__(self, bootstrap: str, *, name: str, role: str, surroundings: Surroundings | None) -> None:
        around = surroundings or Surroundings()
        self.name = name
        self.clock = around.clock
        self.config = around.config
        self.chance = around.chance
        self._bootstrap = parse_bootstrap(bootstrap)
        self._transport = around.transport
        self._endpoint = Endpoint(self.clock, self.config, name=name, role=role, features=(PUSH_RUNS,))
        self._peers: dict[str, Peer] = {}
        self._connecting: Shared[Peer] = Shared(self.clock)
        self._controller = ""
        self._finding: Shared[str] = Shared(self.clock)
        self._addresses: dict[str, str] = {}
        self._routes: dict[Place, ProducerRoute] = {}
        self._stale: dict[Place, ProducerRoute] = {}
        """Routes by which nobody leads any more."""
        self._lost_ms: dict[Place, float] = {}
        self._look_again_ms_max = NEWER_MS_MAX
        self._looking: Shared[ProducerRoute] = Shared(self.clock)
        self._partitions: dict[str, tuple[str, ...]] = {}
        self._heard_ms: dict[str, float] = {}
        self._describing: Shared[tuple[str, ...]] = Shared(self.clock)
        self.is_closed = False

    # --- Connections ---

    async def peer(self, address: str, *, timeout_ms: float | None = None) -> Peer:
        """Return the connection to an address, made if there is none; many may wait for the same one."""
        if self.is_closed:
            raise ClosedError(f"{self.name} is closed")
        peer = self._peers.get(address)
        if peer is not None and peer.is_open:
            return peer
        limit_ms = self.config.connect_ms_max if timeout_ms is None else timeout_ms
        return await self._connecting.result(
            address, lambda: self._connect(address), limit_ms, f"a connection to {address}"
        )

    async def ask(
        self, address: str, request: Request[R], payload: Sequence[Buffer] = (), *, timeout_ms: float
    ) -> Answer[R]:
        """Ask one server once; all within `timeout_ms`."""
        began_ms = self.clock.monotonic_ms()
        peer = await self.peer(address, timeout_ms=timeout_ms)
        left_ms = timeout_ms - (self.clock.monotonic_ms() - began_ms)
        return await peer.ask(request, payload, timeout_ms=max(1.0, left_ms))

    def serve(self, kind: type, handler: Callable[[Any], None]) -> None:
        """Handle what servers ask of us, or tell us, on the connections that we made."""
        self._endpoint.handlers[kind] = handler

    async def close(self) -> None:
        """Close all connections; wait until they are gone."""
        self.is_closed = True
        for shared in (self._looking, self._describing, self._finding, self._connecting):
            await shared.close()
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            gone = asyncio.Event()
            if not peer.is_closed:
                peer.on_closed(lambda _reason, gone=gone: gone.set())  # type: ignore[misc]
                peer.close()
                await gone.wait()

    async def _connect(self, address: str) -> Peer:
        peer = await connect(self._transport, address, self._endpoint)
        self._peers[address] = peer
        return peer

    # --- The controller ---

    async def ask_controller(self, request: Request[R], deadline: Deadline, *, try_ms: float | None = None) -> R:
        """Ask the active zkserver, looked for again whenever it is not the one that was asked.

        `try_ms` bounds one try, for requests that are answered soon or not at all.
        """
        if self.is_closed:
            raise ClosedError(f"{self.name} is closed")
        backoff = Backoff(self.config, self.chance)
        problem: ClymqError | None = None
        while not deadline.is_over:
            left_ms = deadline.remaining_ms
            try:
                address = self._controller or await self._find_controller(left_ms)
                limit_ms = left_ms if try_ms is None else min(left_ms, try_ms)
                return (await self.ask(address, request, timeout_ms=limit_ms)).reply
            except ClymqError as error:
                if self.is_closed or not error.retriable:
                    raise
                if error.refresh:
                    self._controller = ""
                problem = error
            await pause(self.clock, min(backoff.next_ms(), deadline.remaining_ms))
        raise deadline.error(f"the controller's answer to {type(request).__name__}", problem)

    async def _find_controller(self, timeout_ms: float) -> str:
        return await self._finding.result("", self._look_for_controller, timeout_ms, "the active zkserver")

    async def _look_for_controller(self) -> str:
        """Ask one after the other, those that the user named first."""
        problem: ClymqError | None = None
        for address in dict.fromkeys((*self._bootstrap, *self._addresses.values())):
            try:
                found = (await self.ask(address, FindController(), timeout_ms=FIND_MS_MAX)).reply
            except ClymqError as error:
                problem = error
                continue
            if found.address:
                self._controller = found.address
                return found.address
        asked = ", ".join(self._bootstrap)
        raise LeaderUnavailable(f"no zkserver is known to be active by {asked}: {problem}")

    # --- Who leads ---

    async def route(self, topic: str, partition: str) -> ProducerRoute:
        """Return where the leader of a partition is thought to be; looked up once, and again after `reroute`."""
        place = topic, partition
        known = self._routes.get(place)
        if known is not None and place not in self._stale:
            return known
        limit_ms = self.config.request_ms_max if known is None else self._look_again_ms_max
        try:
            found = await self._looking.result(
                place, lambda: self._look_up(place), limit_ms, f"who leads {topic}/{partition}"
            )
        except ClymqError as error:
            self._look_again_ms_max = LOOK_AGAIN_MS_MAX  # until it answers again
            if known is None or not error.retriable or self.is_closed:
                raise
            return self._next_replica(place, known)
        self._look_again_ms_max = NEWER_MS_MAX
        return found

    def reroute(
        self, topic: str, partition: str, route: ProducerRoute, error: ClymqError, *, hints_followed: int
    ) -> bool:
        """Take note of what a broker said to a request; return whether it named another broker to go to at once.

        Two that name each other must not keep us running: after a few hints in a row the controller is asked.
        """
        place = topic, partition
        if self._routes.get(place) is not route:
            return False  # somebody else has found out already
        address = self.address_of(error.hint) if hints_followed < HINTS_MAX else ""
        if error.refresh and address and address != route.address:
            self._routes[place] = _led_by(route, error.hint or "", address)
            self._stale.pop(place, None)
            return True
        if error.refresh and not self._may_be_back(place, error):
            # One that was named before it was elected, and says that it does not lead, may do so by now; one that does
            # not answer may have been elected, and be gone.
            silent = route.term == NOT_YET and isinstance(error, TransportError)
            self._stale[place] = _led_by(route, route.broker, route.address) if silent else route
        return False

    def _may_be_back(self, place: Place, error: ClymqError) -> bool:
        """Say whether all that is known is that a connection is gone, and it is the first one for a while."""
        if not isinstance(error, ConnectionLost):
            return False
        now_ms, before_ms = self.clock.monotonic_ms(), self._lost_ms.get(place)
        self._lost_ms[place] = now_ms
        return before_ms is None or now_ms - before_ms >= LOST_AGAIN_MS

    def _next_replica(self, place: Place, route: ProducerRoute) -> ProducerRoute:
        """No controller says who leads now: ask those who hold the partition, one after the other; they know."""
        addresses = [each.address for each in route.replicas]
        if route.address in addresses:
            each = route.replicas[(addresses.index(route.address) + 1) % len(addresses)]
            route = self._routes[place] = _led_by(route, each.broker, each.address)
        return route

    async def ask_leader(
        self,
        topic: str,
        partition: str,
        make: Callable[[ProducerRoute], Request[R]],
        deadline: Deadline,
        *,
        greet: Callable[[Peer], Awaitable[None]] | None = None,
    ) -> Answer[R]:
        """Ask the leader of a partition, whoever that is by the time it answers; `greet` each connection first."""
        backoff = Backoff(self.config, self.chance)
        problem: ClymqError | None = None
        hints = 0
        while not deadline.is_over:
            route: ProducerRoute | None = None
            try:
                route = await self.route(topic, partition)
                request = make(route)
                if greet is not None:
                    await greet(await self.peer(route.address))
                limit_ms = min(deadline.remaining_ms, self.config.request_ms_max)
                return await self.ask(route.address, request, timeout_ms=limit_ms)
            except ClymqError as error:
                if self.is_closed or not worth_retrying(error, by_broker=route is not None):
                    raise
                problem = error
                if route is not None and self.reroute(topic, partition, route, error, hints_followed=hints):
                    hints += 1
                    continue
                hints = 0
            await pause(self.clock, min(backoff.next_ms(), deadline.remaining_ms))
        raise deadline.error(f"the leader of {topic}/{partition}", problem)

    def learn(self, broker: str, address: str) -> None:
        """Remember where a broker is: hints name brokers."""
        if broker and address:
            self._addresses[broker] = address

    def address_of(self, hint: str | None) -> str:
        """Return the address that a hint names, itself or by a broker's name; empty if it is none we know."""
        if not hint or " " in hint:
            return ""  # advice for people
        if hint in self._addresses:
            return self._addresses[hint]
        try:
            parse_address(hint)
        except InvalidRequest:
            return ""
        return hint

    async def _look_up(self, place: Place) -> ProducerRoute:
        deadline = Deadline(self.clock, self.config.request_ms_max / 1000)
        failed = self._stale.get(place)
        request = ProGetBroker(*place, failed.broker, failed.block, failed.term) if failed else ProGetBroker(*place)
        route = await self.ask_controller(request, deadline)
        self.learn(route.broker, route.address)
        for each in route.replicas:
            self.learn(each.broker, each.address)
        self._routes[place] = route
        self._stale.pop(place, None)
        return route

    # --- Topics ---

    def known_partitions(self, topic: str) -> tuple[str, ...]:
        """Return the partitions of a topic as last heard, sorted by code points; empty: never heard."""
        return self._partitions.get(topic, ())

    def refresh_partitions(self, topic: str) -> None:
        """Ask again in the background if they were heard long ago; new ones are used from then on."""
        if topic in self._partitions and self.clock.monotonic_ms() - self._heard_ms[topic] > PARTITIONS_MS_MAX:
            self._heard_ms[topic] = self.clock.monotonic_ms()
            self._describing.begin(topic, lambda: self._describe(topic, self.config.request_ms_max / 1000))

    async def partitions(self, topic: str, deadline: Deadline) -> tuple[str, ...]:
        """Return the partitions of a topic, asked for if they are not known."""
        known = self.known_partitions(topic)
        if known:
            return known
        check_name(topic, "topic")
        return await self._describing.result(
            topic, lambda: self._describe(topic, deadline.seconds), deadline.remaining_ms, f"the partitions of {topic}"
        )

    async def _describe(self, topic: str, seconds: float) -> tuple[str, ...]:
        described = await self.ask_controller(DescribeTopic(topic), Deadline(self.clock, seconds))
        names = tuple(sorted(check_name(each.partition, "partition") for each in described.partitions))
        if not names:
            raise UnknownPartition(f"topic {topic} has no partitions", hint="create one")
        self._partitions[topic], self._heard_ms[topic] = names, self.clock.monotonic_ms()
        return names


def _led_by(route: ProducerRoute, broker: str, address: str) -> ProducerRoute:
    """Return the same route with another leader, whose term is not known."""
    return ProducerRoute(
        uid=route.uid,
        broker=broker,
        address=address,
        ack=route.ack,
        block=route.block,
        epoch=route.epoch,
        message_bytes_max=route.message_bytes_max,
        replicas=route.replicas,
    )


def worth_retrying(error: ClymqError, *, by_broker: bool) -> bool:
    """Whether the flags say that it may work another time; see the module for the difference."""
    return error.retriable or (by_broker and error.refresh)


def parse_bootstrap(bootstrap: str) -> tuple[str, ...]:
    """Split host:port[,host:port...] and check each."""
    addresses = tuple(address.strip() for address in bootstrap.split(",") if address.strip())
    if not addresses:
        raise InvalidRequest(f"bootstrap {bootstrap!r} must be host:port[,host:port...]")
    for address in addresses:
        parse_address(address)
    return addresses
