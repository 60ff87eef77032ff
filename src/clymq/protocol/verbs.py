"""Which messages there are: a number for each, and how its header is read.

A verb is a frozen struct with the decorator `@verb(number)`. Its header on the wire is that struct in msgpack, as a map
by field names (consensus, the hot path, as an array). Peers of different ages understand each other by two rules:

* a number, once given, is never given to another verb, and a field keeps its name, place and meaning;
* a field that is added comes last and has a default. Who does not know it ignores it, who misses it takes the default.

A request names its reply by its type, `class Push(Request[Pushed])`; a reply has no number of its own, it carries that
of its request. A `OneWay` message has no reply. A request with a `window_key` counts against the window of one
partition as well (see `handshake.Window`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec
from msgspec import Struct

from clymq.errors import InvalidRequest, LocalProtocolError, RemoteProtocolError

NUMBER_MAX: Final = 2**16 - 1
# ValueError: a string that is no UTF-8. RecursionError: nested without end.
_UNREADABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


class Reply(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a request is answered with."""


class Done(Reply, frozen=True):
    """It is done; there is nothing more to say."""


R_co = TypeVar("R_co", bound=Reply, covariant=True)
T = TypeVar("T", bound=type[Struct])


class Request(Struct, Generic[R_co], frozen=True, omit_defaults=True, gc=False):
    """What wants a reply of one type."""

    def window_key(self) -> Hashable:
        """Name the partition whose window this request counts against; None for none."""
        return None


class OneWay(Struct, frozen=True, omit_defaults=True, gc=False):
    """What wants no reply."""


Message = Request[Any] | OneWay


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table."""

    number: int
    name: str
    message: type[Struct]
    reply: type[Reply] | None
    """None: one-way."""
    keyed: bool
    """Whether its requests have a `window_key`."""
    decode: Callable[[Any], Any]
    decode_reply: Callable[[Any], Any]


_BY_NUMBER: dict[int, Verb] = {}
_BY_NAME: dict[str, Verb] = {}
_BY_TYPE: dict[type, Verb] = {}

encode: Final = msgspec.msgpack.Encoder().encode
"""Return the header of a message or a reply."""

by_number: Final = _BY_NUMBER.get
"""Return the verb with a number, or None."""

by_name: Final = _BY_NAME.get
"""Return the verb with a name, or None."""


def verb(number: int) -> Callable[[T], T]:
    """Give a message its number."""

    def register(kind: T) -> T:
        reply = _reply_of(kind)
        entry = Verb(
            number=number,
            name=kind.__name__,
            message=kind,
            reply=reply,
            keyed=issubclass(kind, Request) and kind.window_key is not Request.window_key,
            decode=msgspec.msgpack.Decoder(kind).decode,
            decode_reply=msgspec.msgpack.Decoder(reply or Done).decode,
        )
        if not 0 < number <= NUMBER_MAX or number in _BY_NUMBER or entry.name in _BY_NAME:
            raise ValueError(f"verb {number} {entry.name}: the number or the name is taken or out of range")
        _BY_NUMBER[number] = _BY_NAME[entry.name] = _BY_TYPE[kind] = entry
        return kind

    return register


def _reply_of(kind: type[Struct]) -> type[Reply] | None:
    if issubclass(kind, OneWay):
        return None
    for parent in getattr(kind, "__orig_bases__", ()):
        for argument in get_args(parent):
            if isinstance(argument, type) and issubclass(argument, Reply):
                return argument
    raise TypeError(f"{kind.__name__} must be Request[its reply] or OneWay")


def verb_of(kind: type) -> Verb:
    """Return the verb of a type of message."""
    try:
        return _BY_TYPE[kind]
    except KeyError:
        raise LocalProtocolError(f"{kind.__name__} is no verb") from None


def all_verbs() -> Iterator[Verb]:
    """Yield every verb in the order of the numbers."""
    return (_BY_NUMBER[number] for number in sorted(_BY_NUMBER))


def read_message(entry: Verb, header: memoryview) -> Any:
    """Decode the header of a request or one-way message; what does not fit is the sender's `InvalidRequest`."""
    try:
        return entry.decode(header)
    except _UNREADABLE as error:
        raise InvalidRequest(f"{entry.name}: {error}") from None


def read_reply(entry: Verb, header: memoryview) -> Any:
    """Decode the header of a reply."""
    try:
        return entry.decode_reply(header)
    except _UNREADABLE as error:
        raise RemoteProtocolError(f"the reply to {entry.name} cannot be read: {error}") from None
