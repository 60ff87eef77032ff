"""The way to brokers by name: what the controller asks of them, and nothing else.

`Brokers` is the interface; fakes for tests are plain objects with these two methods. `LinkedBrokers` keeps one link for
each broker that was ever asked, and moves it when the broker's address does. A broker that does not answer within
`broker_request_ms_max` is silent; what that means is decided by who asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from clymq.config import Config
from clymq.errors import ConnectFailed
from clymq.protocol.verbs import Reply, Request
from clymq.rpc.client import Link
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.transport import Transport

R = TypeVar("R", bound=Reply)


class Brokers(Protocol):
    """Brokers that can be asked."""

    def know(self, addresses: Mapping[str, str]) -> None:
        """Learn where all registered brokers are."""
        ...

    async def ask(self, broker: str, request: Request[R]) -> R:
        """Ask a broker; raises its refusal, or a `TransportError`, after a bounded time."""
        ...


class LinkedBrokers:
    """Brokers over the wire."""

    def __init__(
        self, transport: Transport, endpoint: Endpoint, config: Config, *, chance: Callable[[], float]
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._timeout_ms = config.broker_request_ms_max
        self._chance = chance
        self._addresses: dict[str, str] = {}
        self._links: dict[str, Link] = {}

    def know(self, addresses: Mapping[str, str]) -> None:
        """Learn where all registered brokers are; links to others are left alone until `close`."""
        self._addresses = dict(addresses)
        for name, link in self._links.items():
            link.move(addresses.get(name, link.address))

    async def ask(self, broker: str, request: Request[R]) -> R:
        """Ask a broker."""
        link = self._links.get(broker)
        if link is None:
            if broker not in self._addresses:
                raise ConnectFailed(f"nobody knows where broker {broker} is")
            link = Link(self._transport, self._addresses[broker], self._endpoint, chance=self._chance)
            self._links[broker] = link
            link.start()
        return (await link.ask(request, timeout_ms=self._timeout_ms)).reply

    async def close(self) -> None:
        """Drop all links."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))
