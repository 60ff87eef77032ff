"""The network between lives: wires that are slow, held in one direction or both, reset, or left hanging.

The same promises as TCP's: bytes arrive in order and once, or the wire breaks. What cannot pass is kept and arrives
later, as after a retransmission. A process that is killed has its connections reset; one whose machine lost its power
says nothing at all, and others find out in their own way. Everything that arrives does so in the life of its receiver.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from clymq.errors import ConfigError, ConnectFailed, ConnectionLost
from clymq.protocol.frames import Buffer
from clymq.rpc.transport import Listener, Receiver, Wire, format_address, parse_address
from clymq.simulation.cluster.loop import Life, VirtualLoop

# A packet that opens a connection is sent again after this.
CONNECT_AGAIN_MS: Final = 200.0
_FIRST_FREE_PORT: Final = 49152

End = ConnectionLost | None


class Network:
    """All hosts. `delay_ms` says how long bytes take from one to another."""

    def __init__(self, loop: VirtualLoop, delay_ms: Callable[[str, str], float]) -> None:
        self.loop = loop
        self.delay_ms = delay_ms
        self.listeners: dict[str, _Listener] = {}
        self._wires: dict[_Wire, None] = {}
        self._held: Counter[tuple[str, str]] = Counter()
        self._silent: set[str] = set()
        self._next_port = _FIRST_FREE_PORT

    def transport(self, life: Life) -> LifeTransport:
        """Return the transport of a process; its host has the name of the process."""
        return LifeTransport(self, life)

    # --- Faults ---

    def hold(self, sender: str, receiver: str) -> None:
        """Let nothing pass in this direction, and tell nobody; as often as it is held, it has to be released."""
        self._held[sender, receiver] += 1

    def release(self, sender: str, receiver: str) -> None:
        """Undo `hold`; what was kept arrives now."""
        self._held[sender, receiver] -= 1
        if self._held[sender, receiver] > 0:
            return
        del self._held[sender, receiver]
        for wire in tuple(self._wires):
            if (wire.other_host, wire.life.name) == (sender, receiver):
                wire.look_soon()

    def heal(self) -> None:
        """Let everything pass."""
        for pair in sorted(self._held):
            self._held[pair] = 1
            self.release(*pair)

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two hosts."""
        for wire in tuple(self._wires):
            if {wire.life.name, wire.other_host} == {one, other}:
                wire.break_soon(ConnectionLost(f"connection with {wire.address} lost: reset"))

    def lose(self, life: Life, *, silently: bool) -> None:
        """A process is gone; its host resets its connections, or is gone as well."""
        for address, listener in tuple(self.listeners.items()):
            if listener.life is life:
                del self.listeners[address]
        if silently:
            self._silent.add(life.name)
        for wire in tuple(self._wires):
            if wire.life is life and not silently:
                wire.abort()

    def come_back(self, host: str) -> None:
        """A host has its power again: it knows nothing of the connections that it had."""
        self._silent.discard(host)
        for wire in tuple(self._wires):
            if wire.life.name == host and wire.life.muted:
                wire.abort()

    # --- What wires and transports use ---

    def is_held(self, sender: str, receiver: str) -> bool:
        """Whether nothing passes in this direction."""
        return (sender, receiver) in self._held or receiver in self._silent or sender in self._silent

    def free_port(self) -> int:
        """Return a port that nobody has."""
        self._next_port += 1
        return self._next_port

    def join(self, dialer: Life, listener: _Listener) -> Wire:
        """Make the two ends of a connection; hand one to the listener and return the other."""
        ours = _Wire(self, dialer, listener.life.name, listener.address)
        theirs = _Wire(self, listener.life, dialer.name, format_address(dialer.name, self.free_port()))
        ours.other, theirs.other = theirs, ours
        self._wires[ours] = self._wires[theirs] = None
        self.loop.call_soon(listener.accept, theirs, context=listener.life.context)
        return ours

    def forget(self, wire: _Wire) -> None:
        """A wire has ended."""
        self._wires.pop(wire, None)


class LifeTransport:
    """The transport of one process."""

    def __init__(self, network: Network, life: Life) -> None:
        self._network = network
        self._life = life

    async def listen(self, address: str, accept: Callable[[Wire], None]) -> Listener:
        """Listen at host:port; port 0 is any free one."""
        host, port = parse_address(address)
        address = format_address(host, port or self._network.free_port())
        if address in self._network.listeners:
            raise ConfigError("listen", address, "nobody can listen there: it is taken")
        listener = self._network.listeners[address] = _Listener(self._network, self._life, address, accept)
        return listener

    async def connect(self, address: str, timeout_ms: float) -> Wire:
        """Connect, or say why not."""
        host, _ = parse_address(address)
        network, loop = self._network, self._network.loop
        made: asyncio.Future[Wire] = loop.create_future()

        def attempt() -> None:
            listener = network.listeners.get(address)
            if made.done() or self._life.muted:
                return
            if network.is_held(self._life.name, host) or network.is_held(host, self._life.name):
                loop.call_later(CONNECT_AGAIN_MS / 1000, attempt)
            elif listener is None:
                made.set_exception(ConnectFailed(f"cannot connect to {address}: nobody listens there"))
            else:
                made.set_result(network.join(self._life, listener))

        def give_up() -> None:
            if not made.done():
                made.set_exception(ConnectFailed(f"cannot connect to {address} within {timeout_ms:g} ms"))

        way_ms = network.delay_ms(self._life.name, host) + network.delay_ms(host, self._life.name)
        loop.call_later(way_ms / 1000, attempt)
        timer = loop.call_later(timeout_ms / 1000, give_up)
        try:
            return await made
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                made.result().abort()  # made in the moment in which nobody wanted it any more
            raise
        finally:
            timer.cancel()


class _Listener:
    def __init__(self, network: Network, life: Life, address: str, accept: Callable[[Wire], None]) -> None:
        self.address = address
        self.life = life
        self.accept = accept
        self._network = network

    def close(self) -> None:
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]


class _Wire:
    """One end of a connection, in the life that it belongs to."""

    def __init__(self, network: Network, life: Life, other_host: str, address: str) -> None:
        self.address = address
        self.buffered = 0
        self.life = life
        self.other_host = other_host
        self.other: _Wire | None = None
        self._network = network
        self._loop = network.loop
        self._receiver: Receiver | None = None
        self._unsent: list[Buffer] = []
        # (when it arrives, what): bytes, or how it ends: None is orderly.
        self._arriving: deque[tuple[float, bytes | End]] = deque()
        self._last_arrival = 0.0
        self._on_drained: list[Callable[[], None]] = []
        self._paused = False
        self._closing = False
        self._gone = False

    # --- What its owner calls ---

    def start(self, receiver: Receiver) -> None:
        assert self._receiver is None
        self._receiver = receiver
        self.look_soon()

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        if self._closing or self.life.muted:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush, context=self.life.context)
        self._unsent += buffers
        self.buffered += size

    def flush(self) -> None:
        """Nothing is gained by it here: bytes move at the end of the turn."""

    def when_drained(self, callback: Callable[[], None]) -> None:
        self._on_drained.append(callback)
        if not self.buffered:
            self._loop.call_soon(self._tell_drained, context=self.life.context)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.look_soon()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._finish_closing, context=self.life.context)

    def abort(self) -> None:
        if self._gone:
            return
        self._closing = True
        self._unsent.clear()
        if self.other is not None:
            # In its turn behind what was sent before, and not at all while nothing passes.
            self._send(ConnectionLost(f"connection with {self.other.address} lost: reset"))
        self.break_soon(None)

    # --- What the network calls ---

    def look_soon(self) -> None:
        """Hand over what has arrived by now, in the life of who gets it."""
        self._loop.call_soon(self._deliver, context=self.life.context)

    def break_soon(self, error: End) -> None:
        """End, without a word to the other side."""
        self._loop.call_soon(self._break_off, error, context=self.life.context)
        if self.life.muted:
            self._network.forget(self)

    # --- Inside ---

    def _deliver(self) -> None:
        now = self._loop.time()
        while self._arriving and self._receiver is not None and not self._closing:
            at, data = self._arriving[0]
            if at > now or self._paused or self._network.is_held(self.other_host, self.life.name):
                return
            self._arriving.popleft()
            if isinstance(data, bytes):
                self._land(data)
            else:
                self._break_off(data)

    def _land(self, data: bytes) -> None:
        assert self._receiver is not None
        assert self.other is not None
        self.other.landed(len(data))
        rest = memoryview(data)
        while rest and not self._closing:
            room = self._receiver.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            self._receiver.received(count)

    def landed(self, size: int) -> None:
        """The other side has so much of what was written here."""
        if not self._gone:
            self.buffered -= size
            self._loop.call_soon(self._tell_drained, context=self.life.context)

    def _break_off(self, error: End) -> None:
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

    def _tell_drained(self) -> None:
        if not self.buffered:
            callbacks, self._on_drained = self._on_drained, []
            for callback in callbacks:
                callback()

    def _flush(self) -> None:
        if self._unsent and not self._gone:
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._send(data)

    def _finish_closing(self) -> None:
        if not self._gone:
            self._flush()
            self._send(None)
            self._break_off(None)

    def _send(self, data: bytes | End) -> None:
        other = self.other
        assert other is not None
        if self.life.muted:
            # Who was killed says nothing more; that it is gone is for its host to say.
            data = ConnectionLost(f"connection with {other.address} lost: reset")
        delay_ms = self._network.delay_ms(self.life.name, self.other_host)
        at = max(other._last_arrival, self._loop.time() + delay_ms / 1000)
        other._last_arrival = at
        other._arriving.append((at, data))
        self._loop.call_at(at, other._deliver, context=other.life.context)
