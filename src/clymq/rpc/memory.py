"""The transport's twin in memory: the same promises, on any clock, and at a test's mercy.

A `MemoryNetwork` holds hosts; each has a transport. Bytes are delivered by the clock, after a delay, in order. A test
may `cut` two hosts (connections between them break, none can be made), `freeze` them (nothing arrives, nobody notices)
and `heal` them. Addresses are host:port as on TCP; which host listens there is the network's business.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from clymq.clock import Clock
from clymq.errors import ConfigError, ConnectFailed, ConnectionLost
from clymq.protocol.frames import Buffer
from clymq.rpc.transport import Listener, Receiver, Wire, format_address, parse_address

_FIRST_FREE_PORT: Final = 49152


class MemoryNetwork:
    """Hosts and what lies between them."""

    def __init__(self, clock: Clock, *, delay_ms: Callable[[str, str], float] | None = None) -> None:
        self.clock = clock
        self.delay_ms = delay_ms or _no_delay
        self.listeners: dict[str, _MemoryListener] = {}
        self._wires: dict[_MemoryWire, None] = {}
        self._cut: set[frozenset[str]] = set()
        self._frozen: set[frozenset[str]] = set()
        self._next_port = _FIRST_FREE_PORT

    def transport(self, host: str = "host") -> MemoryTransport:
        """Return the transport of a host."""
        return MemoryTransport(self, host)

    def cut(self, one: str, other: str) -> None:
        """Break the connections between two hosts, as a reset would, and let none be made."""
        self._cut.add(frozenset((one, other)))
        for wire in tuple(self._wires):
            if {wire.host, wire.other_host} == {one, other}:
                wire.break_off(ConnectionLost(f"connection with {wire.address} lost: cut"))

    def freeze(self, one: str, other: str) -> None:
        """Let nothing pass between two hosts, and tell neither."""
        self._frozen.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Undo `cut` and `freeze`; what was held back arrives now."""
        pair = frozenset((one, other))
        self._cut.discard(pair)
        self._frozen.discard(pair)
        for wire in tuple(self._wires):
            if {wire.host, wire.other_host} == {one, other}:
                wire.deliver()

    def is_cut(self, one: str, other: str) -> bool:
        """Whether no connection can be made."""
        return frozenset((one, other)) in self._cut

    def is_frozen(self, one: str, other: str) -> bool:
        """Whether nothing passes."""
        return frozenset((one, other)) in self._frozen

    def free_port(self) -> int:
        """Return a port that nobody has."""
        self._next_port += 1
        return self._next_port

    def join(self, dialer: str, listener: _MemoryListener) -> Wire:
        """Make the two ends of a connection; hand one to the listener and return the other."""
        port = self.free_port()
        ours = _MemoryWire(self, dialer, listener.host, listener.address)
        theirs = _MemoryWire(self, listener.host, dialer, format_address(dialer, port))
        ours.other, theirs.other = theirs, ours
        self._wires[ours] = self._wires[theirs] = None
        listener.accept(theirs)
        return ours

    def forget(self, wire: _MemoryWire) -> None:
        """A wire has ended."""
        self._wires.pop(wire, None)


def _no_delay(*_hosts: str) -> float:
    return 0.0


class MemoryTransport:
    """The transport of one host."""

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, address: str, accept: Callable[[Wire], None]) -> Listener:
        """Listen at host:port; port 0 is any free one."""
        host, port = parse_address(address)
        address = format_address(host, port or self._network.free_port())
        if address in self._network.listeners:
            raise ConfigError("listen", address, "nobody can listen there: it is taken")
        listener = _MemoryListener(self._network, self._host, address, accept)
        self._network.listeners[address] = listener
        return listener

    async def connect(self, address: str, timeout_ms: float) -> Wire:
        """Connect, or say why not."""
        parse_address(address)
        network = self._network
        made: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()

        def attempt() -> None:
            listener = network.listeners.get(address)
            if made.done():
                return
            if listener is None:
                made.set_exception(ConnectFailed(f"cannot connect to {address}: nobody listens there"))
            elif network.is_cut(self._host, listener.host):
                made.set_exception(ConnectFailed(f"cannot connect to {address}: cut"))
            elif not network.is_frozen(self._host, listener.host):
                made.set_result(network.join(self._host, listener))

        def give_up() -> None:
            if not made.done():
                made.set_exception(ConnectFailed(f"cannot connect to {address} within {timeout_ms:g} ms"))

        attempting = network.clock.call_later(network.delay_ms(self._host, address), attempt)
        timer = network.clock.call_later(timeout_ms, give_up)
        try:
            return await made
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                made.result().abort()  # made in the moment in which nobody wanted it any more
            raise
        finally:
            attempting.cancel()
            timer.cancel()


class _MemoryListener:
    def __init__(self, network: MemoryNetwork, host: str, address: str, accept: Callable[[Wire], None]) -> None:
        self.address = address
        self.host = host
        self.accept = accept
        self._network = network

    def close(self) -> None:
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]


class _MemoryWire:
    """One end. Bytes leave at the end of the turn, as on TCP, and land in the other's receiver."""

    def __init__(self, network: MemoryNetwork, host: str, other_host: str, address: str) -> None:
        self.address = address
        self.buffered = 0
        self.host = host
        self.other_host = other_host
        self.other: _MemoryWire | None = None
        self._network = network
        self._receiver: Receiver | None = None
        self._unsent: list[Buffer] = []
        # (when it arrives, what): bytes, or how it ends: None is orderly.
        self._arriving: deque[tuple[float, bytes | ConnectionLost | None]] = deque()
        self._last_arrival_ms = 0.0
        self._on_drained: list[Callable[[], None]] = []
        self._paused = False
        self._closing = False
        self._aborted = False
        self._gone = False

    def start(self, receiver: Receiver) -> None:
        assert self._receiver is None
        self._receiver = receiver
        if self._arriving:
            self._network.clock.call_later(0, self.deliver)

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        if self._closing:
            return
        if not self._unsent:
            self._network.clock.call_later(0, self._flush)
        self._unsent += buffers
        self.buffered += size

    def flush(self) -> None:
        """Nothing is gained by it here: bytes move at the end of the turn."""

    def when_drained(self, callback: Callable[[], None]) -> None:
        self._on_drained.append(callback)
        if not self.buffered:
            self._network.clock.call_later(0, self._tell_drained)

    def _tell_drained(self) -> None:
        if not self.buffered:
            callbacks, self._on_drained = self._on_drained, []
            for callback in callbacks:
                callback()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._network.clock.call_later(0, self.deliver)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._network.clock.call_later(0, self._finish_closing)

    def abort(self) -> None:
        if self._gone or self._aborted:
            return
        self._closing = self._aborted = True
        self._unsent.clear()
        if self.other is not None:
            # In its turn behind what was sent before, and not at all while nothing passes.
            self._send(ConnectionLost(f"connection with {self.other.address} lost: reset"))
        self._network.clock.call_later(0, lambda: self.break_off(None))

    def break_off(self, error: ConnectionLost | None) -> None:
        """End at once."""
        if self._gone:
            return
        self._gone = self._closing = True
        self.buffered = 0
        self._unsent.clear()
        self._arriving.clear()
        self._network.forget(self)
        self._tell_drained()
        if self._receiver is not None:
            self._receiver.closed(error)

    def deliver(self) -> None:
        """Hand over what has arrived by now."""
        now = self._network.clock.monotonic_ms()
        while self._arriving and self._receiver is not None and not self._closing:
            at_ms, data = self._arriving[0]
            if at_ms > now or self._paused or self._network.is_frozen(self.host, self.other_host):
                return
            self._arriving.popleft()
            if isinstance(data, bytes):
                self._land(data)
            else:
                self.break_off(data)

    def _land(self, data: bytes) -> None:
        assert self._receiver is not None
        if self.other is not None and not self.other._gone:
            self.other.buffered -= len(data)
            self._network.clock.call_later(0, self.other._tell_drained)
        rest = memoryview(data)
        while rest and not self._closing:
            room = self._receiver.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self._receiver.received(count)

    def _flush(self) -> None:
        if self._unsent and not self._gone:
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._send(data)

    def _finish_closing(self) -> None:
        if not self._gone:
            self._flush()
            self._send(None)
            self.break_off(None)

    def _send(self, data: bytes | ConnectionLost | None) -> None:
        other = self.other
        assert other is not None
        clock = self._network.clock
        delay_ms = self._network.delay_ms(self.host, self.other_host)
        at_ms = max(other._last_arrival_ms, clock.monotonic_ms() + delay_ms)
        other._last_arrival_ms = at_ms
        other._arriving.append((at_ms, data))
        clock.call_later(at_ms - clock.monotonic_ms(), other.deliver)
