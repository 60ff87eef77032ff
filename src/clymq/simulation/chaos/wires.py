"""A server's connections as the nemesis wants them: late, broken, or silent in one direction or both.

Inside the server, below everything that the product knows of connections. A cut is as silent as a real one: bytes are
kept back, nobody is told, new connections are not made; what was kept back goes on its way when the cut is healed. Only
connections that this server has opened know by their address whom they lead to, so both sides of a cut are told.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from clymq.errors import ConnectFailed
from clymq.rpc import transport

_LOOK_AGAIN_SECONDS: Final = 0.02


class Wires:
    """See the module."""

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self._mute: frozenset[str] = frozenset()
        self._deaf: frozenset[str] = frozenset()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()

    def reset(self) -> None:
        """Break all connections."""
        for wire in list(self._all):
            wire.abort()

    def cut(self, *, mute: frozenset[str], deaf: frozenset[str]) -> None:
        """Say nothing to some addresses from now on, and hear nothing from some; let go what no longer concerns it."""
        self._mute, self._deaf = mute, deaf
        for wire in list(self._all):
            if wire._fd >= 0:
                _go_on(wire)

    def install(self) -> None:
        """Replace what is to be replaced; once."""
        self._hook_reading()
        self._hook_writing()
        self._hook_connecting()

    def _hook_reading(self) -> None:
        wire = transport._TcpWire
        start, readable = wire.start, wire._readable

        def noted_start(this: Any, receiver: Any) -> None:
            self._all.add(this)
            start(this, receiver)

        def held_readable(this: Any) -> None:
            if this.address in self._deaf:
                this._loop.remove_reader(this._fd)
            elif self.delay_seconds:
                this._loop.remove_reader(this._fd)
                this._loop.call_later(self.delay_seconds, late, this)
            else:
                readable(this)

        def late(this: Any) -> None:
            if _reads(this) and this.address not in self._deaf:
                readable(this)
                if _reads(this):
                    this._loop.add_reader(this._fd, this._readable)

        replace(wire, "start", noted_start)
        replace(wire, "_readable", held_readable)

    def _hook_writing(self) -> None:
        flush = transport._TcpWire._flush

        def held_flush(this: Any) -> None:
            if this.address in self._mute:
                this._flush_is_due = True  # so that nobody tries before the cut is healed
            else:
                flush(this)

        replace(transport._TcpWire, "_flush", held_flush)

    def _hook_connecting(self) -> None:
        connect = transport.TcpTransport.connect

        async def held_connect(this: Any, address: str, timeout_ms: float) -> Any:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_ms / 1000
            while address in self._mute or address in self._deaf:
                if loop.time() >= deadline:
                    raise ConnectFailed(f"cannot connect to {address} within {timeout_ms:g} ms")
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            return await connect(this, address, max(1.0, 1000 * (deadline - loop.time())))

        replace(transport.TcpTransport, "connect", held_connect)


def replace(owner: type, method: str, replacement: Callable[..., object]) -> None:
    """Replace a method for the rest of this process's life."""
    mock.patch.object(owner, method, replacement).start()


def _reads(wire: Any) -> bool:
    return wire._fd >= 0 and wire._reading and not wire._closing


def _go_on(wire: Any) -> None:
    """Read, and send what is there, as if nothing had been; if it is still held it is found out at once."""
    if _reads(wire):
        wire._loop.add_reader(wire._fd, wire._readable)
    if wire._unsent:
        wire._flush_is_due = False
        wire._flush()
