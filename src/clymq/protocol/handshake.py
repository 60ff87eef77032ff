"""The first words of each side: who it is, which versions it speaks, and how much it is willing to hold.

The dialer says HELLO, the other side answers with its own, and from then on both are equal: either may ask. Each side
*grants* a window: as many requests, and as many bytes of them, as it is willing to hold unanswered. The other side
keeps inside it by waiting; what is sent past it is refused with `Overloaded`, never stored. Replies need no window:
who asks has made room for the answer.

HELLO is a map, so that fields can be added (credentials, for one) without a new version.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from clymq.errors import RemoteProtocolError, UnsupportedVersion

VERSION_MIN: Final = 1
VERSION_MAX: Final = 1
HELLO_BYTES_MAX: Final = 64 * 1024
FRAME_BYTES_MIN: Final = 64 * 1024


class Window(Struct, frozen=True, omit_defaults=True):
    """How much one side may have unanswered at the other: in all, and of any one partition.

    One request is always allowed where nothing is under way, however large.
    """

    requests: int
    bytes: int
    partition_requests: int
    partition_bytes: int


class Hello(Struct, frozen=True, omit_defaults=True):
    """The header of a HELLO frame."""

    name: str
    """Of the process: a broker's, a client's."""
    role: str
    """broker, zkserver, client, ...: for people and for logs, nothing is decided by it here."""
    window: Window
    """Granted to the other side."""
    frame_bytes_max: int
    """The largest frame that the sender takes."""
    incarnation: int = 0
    """Random, drawn when the process started."""
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX
    features: tuple[str, ...] = ()


_DECODER: Final = msgspec.msgpack.Decoder(Hello)


def decode_hello(header: memoryview) -> Hello:
    """Read the header of a HELLO, and refuse one that could not work."""
    try:
        hello = _DECODER.decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"HELLO: {error}") from None
    grant = hello.window
    if min(grant.requests, grant.bytes, grant.partition_requests, grant.partition_bytes) < 1:
        raise RemoteProtocolError(f"HELLO grants a window that nothing fits in: {grant}")
    if hello.frame_bytes_max < FRAME_BYTES_MIN:
        raise RemoteProtocolError(f"HELLO: frame_bytes_max {hello.frame_bytes_max} is below {FRAME_BYTES_MIN}")
    return hello


def agreed_version(ours: Hello, theirs: Hello) -> int:
    """Return the highest version that both speak."""
    version = min(ours.version_max, theirs.version_max)
    if version < max(ours.version_min, theirs.version_min):
        raise UnsupportedVersion(
            f"{theirs.name} speaks versions {theirs.version_min} to {theirs.version_max} of the protocol, "
            f"{ours.name} {ours.version_min} to {ours.version_max}",
            hint="upgrade the older side",
        )
    return version
