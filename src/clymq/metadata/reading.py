"""Reading typed nodes from a store, with the versions that conditional writes need, and writing until one succeeds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from clymq.errors import NodeExists, NodeMissing, VersionConflict
from clymq.metadata.nodes import Value, decode, decoded_name
from clymq.metadata.store import MetadataStore

CONFLICTS_MAX = 100

T = TypeVar("T", bound=Value)
R = TypeVar("R")


class Versioned(NamedTuple, Generic[T]):
    """A value as it was read: `version` for conditional writes, `owner` the session of an ephemeral node."""

    value: T
    version: int
    owner: str | None = None


async def read(store: MetadataStore, kind: type[T], path: str) -> Versioned[T]:
    """Read a node, or raise `NodeMissing` or `DamagedNode`."""
    node = await store.get(path)
    return Versioned(decode(kind, path, node.value), node.stat.version, node.stat.ephemeral_owner)


async def read_children(store: MetadataStore, kind: type[T], path: str) -> dict[str, Versioned[T]]:
    """Read all nodes below a path, by their decoded names; what goes away meanwhile is left out."""
    found = {}
    for node in await store.children(path):
        try:
            found[decoded_name(path, node)] = await read(store, kind, f"{path}/{node}")
        except NodeMissing:
            continue
    return found


async def settled(attempt: Callable[[], Awaitable[R]]) -> R:
    """Read, decide and write anew as long as somebody else was quicker, which means that somebody got on."""
    for _ in range(CONFLICTS_MAX - 1):
        try:
            return await attempt()
        except (VersionConflict, NodeMissing, NodeExists):
            continue
    return await attempt()
