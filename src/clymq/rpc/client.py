"""Connections that we make: one, or one that is always made again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from clymq.errors import ClosedError, ClymqError, ConnectFailed
from clymq.protocol.frames import Buffer
from clymq.protocol.verbs import OneWay, Reply, Request
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Answer, Peer
from clymq.rpc.transport import Transport

logger = logging.getLogger("clymq.rpc")

R = TypeVar("R", bound=Reply)


async def connect(transport: Transport, address: str, endpoint: Endpoint, *, timeout_ms: float | None = None) -> Peer:
    """Connect and shake hands, within `connect_ms_max` unless told otherwise.

    Raises `ConnectFailed`, or the reason for which the other side refuses us for good.
    """
    timeout_ms = endpoint.config.connect_ms_max if timeout_ms is None else timeout_ms
    clock = endpoint.clock
    began_ms = clock.monotonic_ms()
    wire = await transport.connect(address, timeout_ms)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: ClymqError | None) -> None:
        if not opened.done():
            if error is not None and not error.retriable:
                opened.set_exception(error)
            else:
                why = error or "the other side closed the connection"
                opened.set_exception(ConnectFailed(f"cannot connect to {address}: {why}"))

    def succeed() -> None:
        if not opened.done():
            opened.set_result(None)

    peer = Peer(endpoint, wire, on_open=succeed, dialer=True)
    peer.on_closed(fail)
    remaining_ms = timeout_ms - (clock.monotonic_ms() - began_ms)
    timer = clock.call_later(
        max(0.0, remaining_ms),
        lambda: fail(ConnectFailed(f"no handshake within {timeout_ms:g} ms")),
    )
    try:
        await opened
    except BaseException:
        peer.close()
        raise
    finally:
        timer.cancel()
    return peer


class Link:
    """A connection to one address that is made again whenever it is lost, with pauses that grow.

    `chance` returns a number in [0, 1); it spreads the pauses, so that all do not come back at once. `pause_ms_max` is
    the longest of them, `reconnect_ms_max` if it is not given.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        endpoint: Endpoint,
        *,
        chance: Callable[[], float],
        on_open: Callable[[Peer], None] | None = None,
        pause_ms_max: float | None = None,
    ) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._chance = chance
        self._on_open = on_open
        self._pause_ms_max = endpoint.config.reconnect_ms_max if pause_ms_max is None else pause_ms_max
        self._address = address
        self._task: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._wake: asyncio.Future[None] | None = None
        self._problem: ClymqError | None = None
        self._is_closed = False
        self.peer: Peer | None = None
        """The connection, while there is one."""

    @property
    def address(self) -> str:
        """Where it leads."""
        return self._address

    def start(self) -> None:
        """Begin to connect."""
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    def move(self, address: str) -> None:
        """Lead to another address from now on; nothing happens if it is the same."""
        if address != self._address:
            self._address = address
            if self.peer is not None:
                self.peer.close()
            self._wake_up()

    def tell(self, message: OneWay, payload: Sequence[Buffer] = (), *, now: bool = False) -> bool:
        """Send a one-way message; False: it was dropped, for instance because there is no connection."""
        return self.peer is not None and self.peer.tell(message, payload, now=now)

    async def ask(self, request: Request[R], payload: Sequence[Buffer] = (), *, timeout_ms: float) -> Answer[R]:
        """Ask over the connection, and wait for one if there is none; all within `timeout_ms`."""
        clock = self._endpoint.clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        while self.peer is None or not self.peer.is_open:
            await self._connected(deadline_ms - clock.monotonic_ms())
        return await self.peer.ask(request, payload, timeout_ms=deadline_ms - clock.monotonic_ms())

    async def close(self) -> None:
        """Close the connection and make no other."""
        self._is_closed = True
        self._wake_up()
        if self.peer is not None:
            self.peer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(ClosedError(f"the link to {self._address} is closed"))

    async def _connected(self, timeout_ms: float) -> None:
        if self._is_closed:
            raise ClosedError(f"the link to {self._address} is closed")
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def give_up() -> None:
            if not waiting.done():
                waiting.set_exception(
                    ConnectFailed(f"no connection to {self._address} within {timeout_ms:.0f} ms: {self._problem}")
                )

        timer = self._endpoint.clock.call_later(max(0.0, timeout_ms), give_up)
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            timer.cancel()
            del self._waiting[waiting]

    async def _run(self) -> None:
        config = self._endpoint.config
        pause_ms: float = config.reconnect_ms_min
        while not self._is_closed:
            try:
                peer = await self._attempt(self._address)
            except ClymqError as error:
                if self._problem is None:
                    logger.info("%s: %s; trying again", self._address, error)
                self._problem = error
                await self._pause(pause_ms)
                pause_ms = min(pause_ms * 2, self._pause_ms_max)
            else:
                self._problem = None
                if peer is None:
                    continue
                await self._use(peer)
                # Even after a connection that worked: the other side may take us and drop us, again and again.
                pause_ms = config.reconnect_ms_min
                await self._pause(pause_ms)

    async def _attempt(self, address: str) -> Peer | None:
        """Connect; None if the link was moved meanwhile, which nobody has to wait for."""
        connecting = asyncio.create_task(connect(self._transport, address, self._endpoint))
        self._wake = wake = asyncio.get_running_loop().create_future()
        connecting.add_done_callback(lambda _: _set(wake))
        peer: Peer | None = None
        try:
            await wake
            if address == self._address and connecting.done():
                peer = connecting.result()
            return peer
        finally:
            self._wake = None
            if peer is None:
                connecting.cancel()
                connecting.add_done_callback(_close_what_was_made)

    async def _use(self, peer: Peer) -> None:
        ended = asyncio.Event()
        peer.on_closed(lambda _: ended.set())
        self.peer = peer
        try:
            if self._on_open is not None:
                peer.call_back(self._on_open, peer)
            for waiting in self._waiting:
                _set(waiting)
            await ended.wait()
        finally:
            self.peer = None
            peer.close()

    async def _pause(self, pause_ms: float) -> None:
        """Wait for half of it up to all of it, or until something has changed."""
        delay_ms = pause_ms * (0.5 + self._chance() / 2)
        self._wake = asyncio.get_running_loop().create_future()
        timer = self._endpoint.clock.call_later(delay_ms, self._wake_up)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake = None

    def _wake_up(self) -> None:
        if self._wake is not None:
            _set(self._wake)


def _close_what_was_made(connecting: asyncio.Task[Peer]) -> None:
    """Nobody wants the connection any more, but it may be there already."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
