"""One side of one connection, without the connection: bytes in, events out; messages in, buffers out.

            dialer                                    acceptor
    NEW     hello() ──HELLO──────────────────────────▶ Opened
            Opened ◀──────────────────────────HELLO── hello()
    OPEN    both may ask, tell, answer, cancel, ping, in any order and without waiting
    BROKEN  after the first thing that the protocol does not allow; nothing more is read. What came before it may still
            be answered: in one read there may be requests, and garbage behind them

Frames are independent of each other: this class knows which kinds may come when and how large they may be, not which
requests are under way (`clymq.rpc.peer`). What is wrong with one *message* (a verb that it does not know, a header that
does not fit its struct) is an event, and the connection goes on; what is wrong with the *framing* is the end of it,
because nobody knows where the next frame would begin.

The same bytes give the same events, however they are cut into reads. Payloads are writable views of memory that is
never written again by us (see `receive_buffer`). Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from crc32c import crc32c
from msgspec import Struct

from clymq.errors import (
    ClymqError,
    FrameTooLarge,
    InvalidRequest,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from clymq.protocol.failures import decode_error, encode_error
from clymq.protocol.frames import (
    ALIGNMENT,
    COVERED_FROM,
    HEADER_BYTES_MAX,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    Buffer,
    Kind,
    frame,
    problem_of_prefix,
)
from clymq.protocol.handshake import HELLO_BYTES_MAX, Hello, agreed_version, decode_hello
from clymq.protocol.receive_buffer import READER_SPARE_BYTES_MAX, SPARE_BYTES_MAX, LargeChunks, ReceiveBuffer
from clymq.protocol.verbs import Message, Reply, Verb, by_number, encode, read_message, read_reply, verb_of

# Looking into an enum costs, and these are looked at for every frame.
_REQUEST: Final = int(Kind.REQUEST)
_REPLY: Final = int(Kind.REPLY)
_ONE_WAY: Final = int(Kind.ONE_WAY)
NOTHING: Final = memoryview(bytearray())
R = TypeVar("R")


class State(enum.Enum):
    """How far the connection has come."""

    NEW = "new"
    OPEN = "open"
    BROKEN = "broken"


class Opened(Struct, gc=False):
    """The other side said HELLO, and there is a version in common."""

    hello: Hello
    version: int
    features: frozenset[str]
    """Those that both sides have."""


class Asked(Struct, gc=False):
    """A request: answer it once."""

    correlation: int
    verb: Verb
    message: Any
    payload: memoryview
    frame_bytes: int


class Told(Struct, gc=False):
    """A one-way message."""

    verb: Verb
    message: Any
    payload: memoryview


class Replied(Struct, Generic[R], gc=False):
    """The answer to a request of ours."""

    correlation: int
    reply: R
    payload: memoryview


class Failed(Struct):
    """The error that a request of ours was answered with."""

    correlation: int
    error: ClymqError


class Cancelled(Struct, gc=False):
    """The other side no longer waits for the answer to this request."""

    correlation: int


class Unreadable(Struct):
    """A message that makes no sense here: answer the error, or, for a one-way message (correlation 0), pass over it."""

    correlation: int
    error: ClymqError


class Pinged(Struct, gc=False):
    """Send a pong with this correlation."""

    correlation: int


class Ponged(Struct, gc=False):
    """The other side is alive."""

    correlation: int


class Leaving(Struct):
    """The other side takes no more requests; the connection ends when those under way are answered, or at once."""

    error: ClymqError


class Broken(Struct):
    """The other side broke the protocol: say goodbye and close. The last event."""

    error: ProtocolError


Event = (
    Opened | Asked | Told | Replied[Any] | Failed | Cancelled | Unreadable | Pinged | Ponged | Leaving | Broken
)  # fmt: skip

# Those who have many connections, and keep little memory for each.
SERVERS: Final = frozenset({"broker", "zkserver"})

_BARE: Final[dict[int, Callable[[int], Event]]] = {
    Kind.CANCEL: Cancelled,
    Kind.PING: Pinged,
    Kind.PONG: Ponged,
}


class Connection:
    """See the module."""

    def __init__(self, hello: Hello, large: LargeChunks | None = None) -> None:
        """`large`: memory of large frames that is shared with others."""
        self.ours = hello
        self.theirs: Hello | None = None
        self.state = State.NEW
        self.version = 0
        self.said_hello = False
        self._send_bytes_max = HELLO_BYTES_MAX
        self._receive_bytes_max = HELLO_BYTES_MAX
        serves = hello.role in SERVERS
        self._buffer = ReceiveBuffer(SPARE_BYTES_MAX if serves else READER_SPARE_BYTES_MAX, large)
        self._frame_bytes = PREFIX_BYTES
        self._head_is_good = False

    # --- Receiving ---

    def get_buffer(self) -> memoryview:
        """Return memory to receive into; it is not empty, and valid until `received`."""
        return self._buffer.room(self._frame_bytes)

    def rest(self) -> None:
        """Give back memory that an idle connection does not need."""
        self._buffer.rest()

    @property
    def in_frame(self) -> bool:
        """Whether part of a frame has arrived and the rest has not."""
        return self._buffer.end > self._buffer.start

    def received(self, count: int) -> list[Event]:
        """Take note that `count` bytes were written into the buffer; return what they complete."""
        buffer = self._buffer
        buffer.received(count)
        events: list[Event] = []
        if self.state is State.BROKEN:
            buffer.start = buffer.end
            return events
        try:
            self._take_frames(buffer, events)
        except ProtocolError as error:
            self.state = State.BROKEN
            # Without the traceback, which would hold on to this frame, the events and the memory.
            events.append(Broken(error.with_traceback(None)))
            buffer.start = buffer.end
        return events

    def _take_frames(self, buffer: ReceiveBuffer, events: list[Event]) -> None:
        chunk, view, end = buffer.chunk, buffer.view, buffer.end
        start = buffer.start
        while True:
            self._frame_bytes = PREFIX_BYTES
            if end - start < PREFIX_BYTES:
                break
            magic, crc, length, header_length, correlation, payload_length, verb, version, kind = PREFIX.unpack_from(
                chunk, start
            )
            header_at = start + PREFIX_BYTES
            payload_at = header_at + header_length + -header_length % ALIGNMENT
            if (
                magic != MAGIC
                or start + length != payload_at + payload_length + -payload_length % ALIGNMENT
                or length > self._receive_bytes_max
                or header_length > HEADER_BYTES_MAX
            ):
                problem = problem_of_prefix(
                    magic, length, header_length, payload_length, frame_bytes_max=self._receive_bytes_max
                )
                assert problem is not None
                raise problem
            if not self._head_is_good and end >= payload_at:
                if crc32c(view[start + COVERED_FROM : payload_at]) != crc:
                    raise RemoteProtocolError("the checksum of a frame's header is wrong")
                self._head_is_good = True
            if end - start < length:
                self._frame_bytes = length
                break
            self._head_is_good = False
            start += length
            buffer.start = start
            header = view[header_at : header_at + header_length]
            payload = view[payload_at : payload_at + payload_length] if payload_length else NOTHING
            if version != self.version or self.state is not State.OPEN:
                events.append(self._early(kind, version, header))
            elif kind == _REQUEST:
                events.append(_message(kind, verb, correlation, header, payload, length))
            elif kind == _REPLY:
                events.append(_replied(correlation, verb, header, payload))
            else:
                events.append(_message_or_control(kind, verb, correlation, header, payload, length))

    def _early(self, kind: int, version: int, header: memoryview) -> Event:
        """Before the handshake is over, or of another version than was agreed on."""
        if kind == Kind.GOODBYE:
            return Leaving(decode_error(header))
        if kind == Kind.HELLO and self.state is State.NEW:
            return self._opened(header)
        if self.state is State.NEW:
            raise RemoteProtocolError(f"a frame of kind {kind} before the handshake was over")
        raise RemoteProtocolError(f"a frame of version {version} where {self.version} was agreed on")

    def _opened(self, header: memoryview) -> Opened:
        theirs = decode_hello(header)
        self.version = agreed_version(self.ours, theirs)
        self.theirs = theirs
        self._send_bytes_max = theirs.frame_bytes_max
        self._receive_bytes_max = self.ours.frame_bytes_max
        self.state = State.OPEN
        return Opened(theirs, self.version, frozenset(self.ours.features) & frozenset(theirs.features))

    # --- Sending: each returns the buffers of one frame and its bytes ---

    def hello(self) -> tuple[list[Buffer], int]:
        """Say who we are; once, the dialer first."""
        if self.said_hello:
            raise LocalProtocolError("HELLO is said once")
        self.said_hello = True
        return frame(Kind.HELLO, 0, 0, 0, encode(self.ours))

    def ask(self, correlation: int, message: Message, payload: Sequence[Buffer] = ()) -> tuple[list[Buffer], int]:
        """Send a request; `correlation` is new and not 0."""
        return self._checked(frame(Kind.REQUEST, verb_of(type(message)).number, self.version, correlation,
                                   _header(message), payload))  # fmt: skip

    def tell(self, message: Message, payload: Sequence[Buffer] = ()) -> tuple[list[Buffer], int]:
        """Send a one-way message."""
        return self._checked(
            frame(Kind.ONE_WAY, verb_of(type(message)).number, self.version, 0, _header(message), payload)
        )

    def reply(
        self, correlation: int, entry: Verb, reply: Reply, payload: Sequence[Buffer] = ()
    ) -> tuple[list[Buffer], int]:
        """Answer a request."""
        return self._checked(frame(Kind.REPLY, entry.number, self.version, correlation, encode(reply), payload))

    def fail(self, correlation: int, error: ClymqError) -> tuple[list[Buffer], int]:
        """Answer a request with an error."""
        return self._checked(frame(Kind.ERROR, 0, self.version, correlation, encode_error(error)))

    def cancel(self, correlation: int) -> tuple[list[Buffer], int]:
        """Say that the answer to a request of ours is no longer waited for."""
        return self._checked(frame(Kind.CANCEL, 0, self.version, correlation, b""))

    def ping(self, correlation: int) -> tuple[list[Buffer], int]:
        """Ask whether the other side is alive."""
        return self._checked(frame(Kind.PING, 0, self.version, correlation, b""))

    def pong(self, correlation: int) -> tuple[list[Buffer], int]:
        """Answer a ping."""
        return self._checked(frame(Kind.PONG, 0, self.version, correlation, b""))

    def goodbye(self, error: ClymqError) -> tuple[list[Buffer], int]:
        """Say why no more requests are taken; allowed at any time."""
        return frame(Kind.GOODBYE, 0, self.version, 0, encode_error(error))

    def _checked(self, made: tuple[list[Buffer], int]) -> tuple[list[Buffer], int]:
        if self.theirs is None or not self.said_hello:
            raise LocalProtocolError(f"nothing can be sent: the connection is {self.state.value}")
        if made[1] > self._send_bytes_max:
            raise FrameTooLarge(f"a frame of {made[1]} bytes; the other side takes {self._send_bytes_max}")
        return made


def _header(message: Message) -> bytes:
    try:
        return encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        # Text that is no Unicode, such as a file's name may have; a number beyond 64 bits.
        raise InvalidRequest(f"{type(message).__name__} cannot be written down: {error}") from None


def _message_or_control(
    kind: int, number: int, correlation: int, header: memoryview, payload: memoryview, frame_bytes: int
) -> Event:
    if kind == _ONE_WAY:
        return _message(kind, number, correlation, header, payload, frame_bytes)
    if kind == Kind.ERROR:
        return Failed(correlation, decode_error(header))
    if kind == Kind.GOODBYE:
        return Leaving(decode_error(header))
    if kind in _BARE:
        return _BARE[kind](correlation)
    raise RemoteProtocolError(f"a frame of kind {kind}, which has no place here")


def _message(
    kind: int, number: int, correlation: int, header: memoryview, payload: memoryview, frame_bytes: int
) -> Event:
    entry = by_number(number)
    one_way = kind == _ONE_WAY
    if one_way != (correlation == 0):
        raise RemoteProtocolError(f"kind {kind} with correlation {correlation}")
    if entry is None:
        unknown = InvalidRequest(f"there is no verb {number} here", hint="this side may be older than yours")
        return Unreadable(correlation, unknown)
    if one_way != (entry.reply is None):
        return Unreadable(correlation, InvalidRequest(f"{entry.name} is {'' if one_way else 'not '}answered"))
    try:
        message = read_message(entry, header)
    except InvalidRequest as error:
        return Unreadable(correlation, error.with_traceback(None))
    if one_way:
        return Told(entry, message, payload)
    return Asked(correlation, entry, message, payload, frame_bytes)


def _replied(correlation: int, number: int, header: memoryview, payload: memoryview) -> Event:
    entry = by_number(number)
    if entry is None:
        return Failed(correlation, RemoteProtocolError(f"a reply to verb {number}, which was never asked"))
    try:
        return Replied(correlation, read_reply(entry, header), payload)
    except RemoteProtocolError as error:
        return Failed(correlation, error.with_traceback(None))
