"""The way to other processes by name: brokers, and whichever zkserver is active. One link each, made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from clymq.errors import ClymqError, ConnectFailed, LeaderUnavailable, NotController, RequestTimeout
from clymq.protocol.broker import Pull
from clymq.protocol.frames import Buffer
from clymq.protocol.verbs import Reply, Request
from clymq.replication.fetch_surroundings import PullDone, PulledBatches
from clymq.rpc.client import Link
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Answer
from clymq.rpc.transport import Transport

# A zkserver that cannot be reached for so long is looked for again: another one may have taken over.
CONNECT_MS_MAX: Final = 1000.0

R = TypeVar("R", bound=Reply)

PULL_MS_MAX = 5_000.0
"""How much longer than its wait a pull may take."""


class Neighbours:
    """Links by name. Addresses are told by `know`; an unknown name is `ConnectFailed`."""

    def __init__(self, transport: Transport, endpoint: Endpoint, *, chance: Callable[[], float]) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._chance = chance
        self._addresses: dict[str, str] = {}
        self._links: dict[str, Link] = {}

    def know(self, addresses: Mapping[str, str]) -> None:
        """Learn where others are; a link that leads elsewhere moves."""
        self._addresses.update(addresses)
        for name, address in addresses.items():
            if name in self._links:
                self._links[name].move(address)

    def address(self, name: str) -> str:
        """Return where somebody is, or an empty string."""
        return self._addresses.get(name, "")

    def is_connected(self, name: str) -> bool:
        """Say whether there is a connection to somebody now."""
        link = self._links.get(name)
        return link is not None and link.peer is not None and link.peer.is_open

    async def ask(
        self, name: str, request: Request[R], payload: Sequence[Buffer] = (), *, timeout_ms: float
    ) -> Answer[R]:
        """Ask somebody by name."""
        link = self._links.get(name)
        if link is None:
            if name not in self._addresses:
                raise ConnectFailed(f"nobody knows where {name} is")
            link = self._links[name] = Link(self._transport, self._addresses[name], self._endpoint, chance=self._chance)
            link.start()
        return await link.ask(request, payload, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Drop all links."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))


class PullLinks:
    """Pulls of fetch replicas over the neighbours' links."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        """Send a pull; `done` hears the answer, or why there is none."""
        task = asyncio.create_task(self._ask(peer, pull, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        try:
            answer = await self._neighbours.ask(peer, pull, timeout_ms=pull.wait_ms_max + PULL_MS_MAX)
        except ClymqError as error:
            done(error)
        else:
            done(PulledBatches(answer.reply, answer.payload))


class ActiveController:
    """The active zkserver, found anew whenever the one that was asked is not it or is gone."""

    NAME = "the active zkserver"

    def __init__(self, neighbours: Neighbours, find: Callable[[], Awaitable[str | None]]) -> None:
        """Take a way to look up the address of the active zkserver."""
        self._neighbours = neighbours
        self._find = find
        self._known = False

    async def ask(self, request: Request[R], *, timeout_ms: float) -> R:
        """Ask it; one that turns out not to be active is forgotten, and the error is the caller's to retry."""
        connected = self._neighbours.is_connected(self.NAME)
        if not self._known or not connected:
            # The one that was known may be gone for good, and another active by now.
            address = await self._find()
            if address is None:
                raise LeaderUnavailable("no zkserver is active")
            self._neighbours.know({self.NAME: address})
            self._known = True
        try:
            limit_ms = timeout_ms if connected else min(timeout_ms, CONNECT_MS_MAX)
            return (await self._neighbours.ask(self.NAME, request, timeout_ms=limit_ms)).reply
        except ClymqError as error:
            # One that is silent may have been replaced long before its connection is given up.
            if isinstance(error, NotController | ConnectFailed | RequestTimeout):
                self._known = False
            raise
