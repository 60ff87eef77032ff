"""Bytes on a connection, in both directions: into a side that serves every verb, and into one that waits for answers.

The side that is tried is the product's own `Peer`, on a wire that takes whatever is written. What it writes is read by
a second connection, because a side that is sent garbage must not begin to talk it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Final

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError, NotLeader
from clymq.protocol.connection import Broken, Connection
from clymq.protocol.failures import encode_error
from clymq.protocol.frames import MAGIC, PREFIX, PREFIX_BYTES, Buffer, Kind, frame, frame_length
from clymq.protocol.handshake import Hello, Window
from clymq.protocol.verbs import Verb, encode
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Call, Peer
from clymq.rpc.transport import Receiver
from clymq.simulation.fuzz.batches import crc
from clymq.simulation.fuzz.messages import VERBS, Drawing
from clymq.simulation.fuzz.mutation import number, spoilt
from clymq.simulation.fuzz.target import Input, Target, Violated

SERVES: Final = b"serves"
ASKS: Final = b"asks"
ASKED_MAX: Final = 6
# Half a minute passes after one input in so many: looking after a connection costs more than receiving does.
_TIME_PASSES_EVERY: Final = 5
FRAME_BYTES_MAX: Final = 128 * 1024
CONFIG: Final = Config(
    batch_bytes_max=1024, message_bytes_max=1024, frame_bytes_max=FRAME_BYTES_MAX, window_requests=8,
    partition_window_requests=4,
)  # fmt: skip
_WINDOW: Final = Window(requests=8, bytes=1 << 20, partition_requests=4, partition_bytes=1 << 19)
_HELLO: Final = Hello("them", "client", _WINDOW, 1 << 20)
_NAMES: Final = ("topic", "0", "Broker0", "x" * 200)
_PLAUSIBLE: Final = {"topic": _NAMES, "partition": ("0", "1"), "uid": ("u",), "sender": ("them",)}


class Wires(Target):
    """The first part says which side is tried; the others are pieces of what it receives, in order."""

    name = "wire"
    full = 1_000_000
    usual = 20_000
    wanted = ("served", "answered", "dropped", "waiting")

    def open(self) -> None:
        """Prepare messages of every verb that are as they should be."""
        self._drawing = Drawing(_PLAUSIBLE, absurd=0.3)
        chance = Random(1)
        sound = Drawing(_PLAUSIBLE, absurd=0.0, wrong_type=0.0)
        self._replies = {
            verb.message: _decoded(chance, sound, verb.reply, verb.decode_reply) for verb in VERBS if verb.reply
        }
        self._requests = [_decoded(chance, sound, verb.message, verb.decode) for verb in VERBS if verb.reply]

    def make(self, chance: Random) -> Input:
        """Make some frames, and spoil some of them, or cut them anew."""
        side = chance.choice((SERVES, ASKS))
        frames = [_joined(frame(Kind.HELLO, 0, 0, 0, self._hello(chance)))] if chance.random() < 0.97 else []
        frames += [self._frame(chance, side) for _ in range(chance.choice((1, 1, 2, 3, 6)))]
        if chance.random() < 0.5:
            at = chance.randrange(len(frames))
            frames[at] = _spoilt_frame(chance, frames[at], frames)
        return side, *_cut(chance, frames)

    def run(self, given: Input) -> str:
        """Let a side receive it, and time pass."""
        side, *pieces = given
        clock = ManualClock()
        self._held: list[Call] = []
        self._answers = self._failed = 0
        endpoint = Endpoint(clock, CONFIG, name="us", role="broker")
        endpoint.handlers = dict.fromkeys((verb.message for verb in VERBS), self._handle)
        wire = _Wire()
        peer = Peer(endpoint, wire, on_open=lambda: self._ask(peer) if side == ASKS else None, dialer=side == ASKS)
        try:
            for piece in pieces:
                wire.receive(piece)
            if peer.calls_under_way > CONFIG.window_requests:
                raise Violated(f"{peer.calls_under_way} calls are under way; {CONFIG.window_requests} were granted")
            outcome = self._outcome(peer)
            self._answer_held()
            if sum(map(len, pieces)) % _TIME_PASSES_EVERY == 0:
                clock.advance(2 * max(CONFIG.idle_ping_ms, CONFIG.frame_ms_max, CONFIG.handshake_ms_max) + 2000)
        finally:
            peer.close()
            wire.end()
        _check_written(wire.written)
        return outcome

    # --- The side that is tried ---

    def _handle(self, call: Call) -> None:
        """Answer, refuse, fail, or keep the call for later, as its number says."""
        way = call.correlation % 5
        if call.answered:
            self._answers += 1
        elif way == 0:
            self._held.append(call)
        elif way == 1:
            raise NotLeader("not here", hint="there")
        elif way == 2:
            raise ValueError("a mistake of the handler's")
        else:
            call.reply(self._replies[type(call.request)], [bytes(len(call.payload) % 4096)])
            self._answers += 1

    def _answer_held(self) -> None:
        for call in self._held:
            call.reply(self._replies[type(call.request)])

    def _ask(self, peer: Peer) -> None:
        def done(outcome: object) -> None:
            self._answers += not isinstance(outcome, ClymqError)
            self._failed += isinstance(outcome, ClymqError)

        for request in self._requests[:ASKED_MAX]:
            with suppress(ClymqError):
                peer.ask_soon(request, (), done, timeout_ms=1000)

    def _outcome(self, peer: Peer) -> str:
        if peer.is_closed:
            return "dropped"
        if self._answers or self._failed:
            return "answered" if self._failed else "served"
        return "waiting"

    # --- What it is sent ---

    def _hello(self, chance: Random) -> bytes:
        return encode(_HELLO) if chance.random() < 0.9 else self._drawing.header(chance, Hello)

    def _frame(self, chance: Random, side: bytes) -> bytes:
        correlation = chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 0, number(chance) % 2**64))
        verb = chance.choice(VERBS)
        if side == ASKS and chance.random() < 0.7:
            return self._answer_frame(chance, chance.randrange(1, ASKED_MAX + 2))
        kind = Kind.ONE_WAY if verb.reply is None else Kind.REQUEST
        if kind is Kind.ONE_WAY:
            correlation = 0
        if chance.random() < 0.15:
            return _joined(frame(chance.choice(list(Kind)), 0, 1, correlation, b""))
        return _joined(frame(kind, verb.number, 1, correlation, self._drawing.header(chance, verb.message),
                             [_payload(chance)]))  # fmt: skip

    def _answer_frame(self, chance: Random, correlation: int) -> bytes:
        """An answer to a request of theirs, most of the time of the right verb."""
        verb = _verb_of(self._requests[(correlation - 1) % len(self._requests)])
        if chance.random() < 0.1:
            verb = chance.choice(VERBS)
        if chance.random() < 0.25:
            return _joined(frame(Kind.ERROR, 0, 1, correlation, self._error(chance)))
        header = self._drawing.header(chance, verb.reply or verb.message)
        return _joined(frame(Kind.REPLY, verb.number, 1, correlation, header, [_payload(chance)]))

    def _error(self, chance: Random) -> bytes:
        header = encode_error(NotLeader("no", hint="there"))
        return spoilt(chance, header, front=60) if chance.random() < 0.7 else header


class _Wire:
    """A wire whose other end is a list."""

    def __init__(self) -> None:
        self.address = "10.0.0.1:1"
        self.buffered = 0
        self.written: list[Buffer] = []
        self._receiver: Receiver | None = None
        self._ended = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        if sum(map(len, buffers)) != size:
            raise Violated("a frame is not as long as it was said to be")
        self.written += buffers

    def flush(self) -> None:
        """All is written at once."""

    def when_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def pause_reading(self) -> None:
        """Nobody does."""

    def resume_reading(self) -> None:
        """Nobody does."""

    def close(self) -> None:
        self._ended = True

    def abort(self) -> None:
        self._ended = True

    def receive(self, data: bytes) -> None:
        """Let bytes arrive, as far as anybody reads them."""
        receiver, rest = self._receiver, memoryview(data)
        assert receiver is not None
        while rest and not self._ended:
            room = receiver.get_buffer()
            count = min(len(room), len(rest))
            if not count:
                raise Violated("there is nowhere to put what arrives")
            room[:count] = rest[:count]
            rest = rest[count:]
            del room
            receiver.received(count)

    def end(self) -> None:
        """Tell the receiver that it is over."""
        if self._receiver is not None:
            self._receiver.closed(None)


def _check_written(written: Sequence[Buffer]) -> None:
    """Raise unless what was written is what a peer may write."""
    reader = Connection(_HELLO)
    wire = _Reader(reader)
    wire.take(b"".join(written))
    broken = [event for event in wire.events if isinstance(event, Broken)]
    if broken:
        raise Violated(f"it wrote what breaks the protocol: {broken[0].error}")


class _Reader:
    def __init__(self, connection: Connection) -> None:
        self.events: list[Any] = []
        self._connection = connection

    def take(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            room = self._connection.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            del room
            self.events += self._connection.received(count)


def _decoded(chance: Random, drawing: Drawing, kind: Any, decode: Callable[[Any], Any]) -> Any:
    for _ in range(1000):
        with suppress(Exception):  # a draw that does not keep to a bound of its struct
            return decode(drawing.header(chance, kind))
    raise Violated(f"no {kind.__name__} could be drawn")


def _verb_of(request: Any) -> Verb:
    return next(verb for verb in VERBS if verb.message is type(request))


def _payload(chance: Random) -> bytes:
    return b"" if chance.random() < 0.7 else bytes(chance.choice((1, 7, 8, 100, 3000, 60_000)))


def _joined(made: tuple[list[Buffer], int]) -> bytes:
    return b"".join(made[0])


def _spoilt_frame(chance: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Spoil a frame: anywhere, in its prefix, or in its prefix with lengths and checksum that fit."""
    way = chance.random()
    if way < 0.4 or len(data) < PREFIX_BYTES:
        return spoilt(chance, data, others, front=PREFIX_BYTES + 40)
    _, _, _, header_length, correlation, payload_length, verb, version, kind = PREFIX.unpack_from(data)
    fields = [header_length, correlation, payload_length, verb, version, kind]
    at = chance.randrange(len(fields))
    fields[at] = number(chance) % (2**64, 2**32, 2**16, 256)[(1, 0, 1, 2, 3, 3)[at]]
    return _announced(data, fields)


def _announced(data: bytes, fields: Sequence[int]) -> bytes:
    """Return a frame with a prefix that says these, agrees with itself and has a right checksum."""
    header_length, correlation, payload_length, verb, version, kind = fields
    length = frame_length(header_length, payload_length) % 2**32
    with suppress(struct.error):
        rest = PREFIX.pack(MAGIC, 0, length, header_length, correlation, payload_length, verb, version, kind)[8:]
        covered = rest + data[PREFIX_BYTES : PREFIX_BYTES + header_length + -header_length % 8]
        return MAGIC + crc(covered).to_bytes(4, "little") + covered + data[PREFIX_BYTES + len(covered) - len(rest) :]
    return data


def _cut(chance: Random, frames: Sequence[bytes]) -> list[bytes]:
    """Cut what is sent into reads: frame by frame, all at once, or anywhere."""
    way = chance.random()
    if way < 0.4:
        return list(frames)
    whole = b"".join(frames)
    if way < 0.7 or not whole:
        return [whole]
    cuts = sorted(chance.randrange(len(whole)) for _ in range(chance.choice((1, 3, 10))))
    return [whole[start:end] for start, end in itertools.pairwise((0, *cuts, len(whole))) if start < end]
