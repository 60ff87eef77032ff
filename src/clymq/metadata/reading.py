"""Reading typed nodes from a store, with the versions that conditional writes need, and writing until one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from clymq.errors import NodeExists, NodeMissing, VersionConflict
from clymq.metadata.nodes import Value, decode, decoded_name
from clymq.metadata.store import MetadataStore

CONFLICTS_MAX = 100
# Of one reader: a store that is far away is asked for many things at once, or a long chain takes seconds.
READS_AT_ONCE = 16

T = TypeVar("T", bound=Value)
K = TypeVar("K")
R = TypeVar("R")


class Versioned(NamedTuple, Generic[T]):
    """A value as it was read: `version` for conditional writes, `owner` the session of an ephemeral node."""

    value: T
    version: int
    owner: str | None = None

    def written(self, value: T) -> Versioned[T]:
        """Return what a conditional write of a value leaves behind."""
        return Versioned(value, self.version + 1, self.owner)


async def read(store: MetadataStore, kind: type[T], path: str) -> Versioned[T]:
    """Read a node, or raise `NodeMissing` or `DamagedNode`."""
    node = await store.get(path)
    return Versioned(decode(kind, path, node.value), node.stat.version, node.stat.ephemeral_owner)


async def read_children(store: MetadataStore, kind: type[T], path: str) -> dict[str, Versioned[T]]:
    """Read all nodes below a path, by their decoded names; what goes away meanwhile is left out."""
    found = await read_each(await store.children(path), lambda node: read(store, kind, f"{path}/{node}"))
    return {decoded_name(path, node): value for node, value in found}


async def read_each(keys: Sequence[K], reading: Callable[[K], Awaitable[R]]) -> list[tuple[K, R]]:
    """Read something for each key, many at once, in order; what goes away meanwhile is left out."""

    async def one(key: K) -> list[tuple[K, R]]:
        try:
            return [(key, await reading(key))]
        except NodeMissing:
            return []

    found: list[tuple[K, R]] = []
    for start in range(0, len(keys), READS_AT_ONCE):
        for each in await asyncio.gather(*map(one, keys[start : start + READS_AT_ONCE])):
            found += each
    return found


async def settled(attempt: Callable[[], Awaitable[R]]) -> R:
    """Read, decide and write anew as long as somebody else was quicker, which means that somebody got on."""
    for _ in range(CONFLICTS_MAX - 1):
        try:
            return await attempt()
        except (VersionConflict, NodeMissing, NodeExists):
            continue
    return await attempt()
