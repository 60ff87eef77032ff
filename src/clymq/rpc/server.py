"""Listens, and keeps the connections that others have made.

A peer that breaks the rules is dropped with one line in the log that names it; the others do not notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from clymq.errors import ClymqError, ConnectionLost, Overloaded
from clymq.protocol.connection import Connection
from clymq.protocol.handshake import HELLO_BYTES_MAX
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Peer
from clymq.rpc.transport import Listener, Transport, Wire

logger = logging.getLogger("clymq.rpc")

# So many are told why they are not taken; to more at once the door is shut without a word.
TURNED_AWAY_MAX: Final = 64


class Server:
    """Serves the endpoint's handlers at one address."""

    def __init__(self, transport: Transport, endpoint: Endpoint) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._listener: Listener | None = None
        # In the order in which they came, and so the same in every run of the simulator; a set's order is chance.
        self._peers: dict[Peer, None] = {}
        self._turned_away: dict[Wire, None] = {}
        self._empty: asyncio.Event | None = None

    @property
    def address(self) -> str:
        """Where it listens: host:port."""
        assert self._listener is not None, "the server was not started"
        return self._listener.address

    @property
    def connections(self) -> int:
        """How many connections there are, those in their handshake included."""
        return len(self._peers)

    async def start(self, address: str) -> None:
        """Listen at host:port; port 0 is any free one."""
        self._listener = await self._transport.listen(address, self._accept)

    async def close(self) -> None:
        """Take no more, let what is under way finish within `drain_ms_max`, then close every connection."""
        if self._listener is None:
            return
        self._listener.close()
        # Retriable, unlike `ClosedError`: another process may serve here in a moment.
        reason = ConnectionLost(f"{self._endpoint.name} is closing")
        over = asyncio.Event()

        def look() -> None:
            if not any(peer.calls_under_way for peer in self._peers):
                over.set()

        for peer in tuple(self._peers):
            peer.leave(reason, look)
        timer = self._endpoint.clock.call_later(self._endpoint.config.drain_ms_max, over.set)
        try:
            look()
            await over.wait()
        finally:
            timer.cancel()
            await self._close_peers()

    async def _close_peers(self) -> None:
        for peer in tuple(self._peers):
            if peer.calls_under_way:
                logger.warning("%s: closed with %d calls under way", peer, peer.calls_under_way)
            peer.close()
        for wire in tuple(self._turned_away):
            wire.abort()
        if self._peers:
            self._empty = asyncio.Event()
            await self._empty.wait()

    def _accept(self, wire: Wire) -> None:
        if len(self._peers) >= self._endpoint.config.connections_max:
            full = Overloaded(f"{self._endpoint.name} has {len(self._peers)} connections, which is all that it takes")
            logger.warning("%s refused: %s", wire.address, full)
            self._turn_away(wire, full)
            return
        peer = Peer(self._endpoint, wire, on_open=_nothing, dialer=False)
        self._peers[peer] = None

        def forget(_reason: ClymqError | None) -> None:
            self._peers.pop(peer, None)
            if self._empty is not None and not self._peers:
                self._empty.set()

        peer.on_closed(forget)

    def _turn_away(self, wire: Wire, reason: ClymqError) -> None:
        """Say why, and close once the other side has spoken: a socket that is closed before it was read is reset, and
        the reason may be lost with it.
        """
        if len(self._turned_away) >= TURNED_AWAY_MAX:
            wire.abort()
            return
        wire.write(*Connection(self._endpoint.hello).goodbye(reason))
        timer = self._endpoint.clock.call_later(self._endpoint.config.handshake_ms_max, wire.abort)

        def forget() -> None:
            timer.cancel()
            self._turned_away.pop(wire, None)

        self._turned_away[wire] = None
        wire.start(_TurnedAway(wire, forget))


class _TurnedAway:
    """Receives the HELLO of a connection that is not taken."""

    def __init__(self, wire: Wire, forget: Callable[[], None]) -> None:
        self._wire = wire
        self._forget = forget

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(HELLO_BYTES_MAX))

    def received(self, _count: int) -> None:
        self._wire.close()

    def closed(self, _error: ConnectionLost | None) -> None:
        self._forget()


def _nothing() -> None:
    """Nobody waits for the handshake of a connection that was accepted."""
