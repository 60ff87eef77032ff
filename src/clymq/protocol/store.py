"""The embedded metadata store: its methods and its sessions, as brokers and zkservers call them over the wire.

Every write may carry a number that its session counts up. A client that lost its connection before the answer came
sends the write again with the same number: the store applies it once and answers the same. With each write the client
says up to which number it has its answers, and the store forgets those.

Versions are those of ZooKeeper: a node begins with 0 and each put adds one; -1 asks for no particular one. What the
methods promise is written in `clymq.metadata.store`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from clymq.protocol.verbs import Done, OneWay, Reply, Request, verb

ANY_VERSION = -1
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What the store writes down: a session, or a request of one."""


class Stat(Struct, frozen=True, array_like=True, gc=False):
    """What is known of a node beside its value."""

    version: int
    """How often the value was written since the node was made."""
    ephemeral_owner: str | None
    """The session whose end removes it."""
    created: int
    """Number of the transaction that made the node: tells it from another that had its path before."""
    modified: int
    """Number of the transaction that changed it last."""


class SessionOpened(Reply, frozen=True):
    """The session is there, with the timeout that the store grants."""

    session: Number
    timeout_ms: int


@verb(400)
class StoreOpenSession(Request[SessionOpened], frozen=True):
    """Open a session. It does not hang on a connection: any request that names it may come over another."""

    timeout_ms: int


@verb(401)
class StoreKeepAlive(Request[Done], frozen=True):
    """Keep the session alive for another timeout."""

    session: Number


@verb(402)
class StoreCloseSession(Request[Done], frozen=True):
    """End the session; its ephemeral nodes go at once."""

    session: Number


class NodeValue(Reply, frozen=True):
    """A node."""

    value: bytes
    stat: Stat


@verb(403)
class StoreGet(Request[NodeValue], frozen=True):
    """Read a node."""

    session: Number
    path: str


class NodeExistence(Reply, frozen=True):
    """Whether it is there."""

    stat: Stat | None = None


@verb(404)
class StoreExists(Request[NodeExistence], frozen=True):
    """Ask whether a node is there."""

    session: Number
    path: str


class NodeChildren(Reply, frozen=True):
    """The names of a node's children, sorted."""

    names: tuple[str, ...]


@verb(405)
class StoreChildren(Request[NodeChildren], frozen=True):
    """List the children of a node."""

    session: Number
    path: str


class Written(Reply, frozen=True):
    """The write was applied."""

    version: int = 0
    """Of the node that was written last."""


class Operation(Struct, frozen=True, tag_field="do", gc=False):
    """One step of a transaction."""

    path: str


class Create(Operation, frozen=True, tag="create"):
    """Make a node, version 0; the one above it must exist and be persistent. An ephemeral one goes with the session."""

    value: bytes = b""
    ephemeral: bool = False


class Put(Operation, frozen=True, tag="put"):
    """Replace a value if the node has this version."""

    value: bytes
    version: int = ANY_VERSION


class Delete(Operation, frozen=True, tag="delete"):
    """Delete a node that has no children if it has this version."""

    version: int = ANY_VERSION


class Check(Operation, frozen=True, tag="check"):
    """Go on only if the node has this version."""

    version: int


@verb(406)
class StoreCreate(Request[Written], frozen=True):
    """Make a node."""

    session: Number
    create: Create
    number: Number | None = None
    settled_below: Number = 0


@verb(407)
class StorePut(Request[Written], frozen=True):
    """Set a node's value."""

    session: Number
    put: Put
    number: Number | None = None
    settled_below: Number = 0


@verb(408)
class StoreDelete(Request[Written], frozen=True):
    """Delete a node."""

    session: Number
    delete: Delete
    number: Number | None = None
    settled_below: Number = 0


@verb(409)
class StoreMulti(Request[Written], frozen=True):
    """Do all of these, in order, or none."""

    session: Number
    operations: tuple[Create | Put | Delete | Check, ...]
    number: Number | None = None
    settled_below: Number = 0


@verb(410)
class StoreSync(Request[Done], frozen=True):
    """Answered when all that was written before can be read."""

    session: Number
    path: str = "/"


@verb(411)
class StoreWatch(Request[Done], frozen=True):
    """From now on send a `StoreEvent` over this connection after every change of a node."""

    session: Number
    path: str


@verb(412)
class StoreEvent(OneWay, frozen=True):
    """The node may have changed: its value, its existence, or the names of its children."""

    session: Number
    path: str


@verb(413)
class StoreUnwatch(Request[Done], frozen=True):
    """Tell no more of a node."""

    session: Number
    path: str
