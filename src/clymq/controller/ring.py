"""A consistent hash ring: which members a key belongs to, such that one member more or less moves few keys. Pure.

Every member has ten virtual nodes for each unit of its power, keyed by its name and a number from 0; a node's place on
the ring is the CRC-32 (IEEE) of that key. A key belongs to the member of the first node whose hash is not below its
own, and then, going on clockwise past the end to the beginning, to the next members that were not met before.

The ring knows names and powers only. Whether a member is online is its user's business: who is to be stepped over is
taken out of `order`, not off the ring, so that everybody is where he was when he comes back.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

from clymq.errors import InvalidRequest, NotEnoughReplicas

NODES_PER_POWER: Final = 10


class Ring:
    """Members by name, of power 1, or names with the power of each."""

    def __init__(self, members: Iterable[str] | Mapping[str, int] = ()) -> None:
        self._powers: dict[str, int] = {}
        self._nodes: list[tuple[int, str]] = []
        powers = members if isinstance(members, Mapping) else dict.fromkeys(members, 1)
        for member, power in powers.items():
            self._put(member, power)
        self._nodes.sort()

    def __len__(self) -> int:
        """How many virtual nodes there are."""
        return len(self._nodes)

    @property
    def members(self) -> frozenset[str]:
        """Who is on the ring."""
        return frozenset(self._powers)

    def add(self, member: str, power: int = 1) -> None:
        """Put a member on the ring; one that is there already only takes the power that is given."""
        if self._powers.get(member) != power:
            self._put(member, power)
            # Of two nodes in one place the name decides, not who came first: the same members are the same ring.
            self._nodes.sort()

    def _put(self, member: str, power: int) -> None:
        if power < 1:
            raise InvalidRequest(f"{member} has power {power}; at least 1 is needed")
        self.remove(member)
        self._powers[member] = power
        self._nodes += [(_hash(f"{member}{number}"), member) for number in range(NODES_PER_POWER * power)]

    def remove(self, member: str) -> None:
        """Take a member off the ring; nothing happens if it is not on it."""
        if self._powers.pop(member, None) is not None:
            self._nodes = [node for node in self._nodes if node[1] != member]

    def place(self, key: str, count: int) -> list[str]:
        """Return `count` different members for a key, the first choice first."""
        if count < 0:
            raise InvalidRequest(f"{count} members cannot be placed")
        if count > len(self._powers):
            raise NotEnoughReplicas(f"{count} members are asked for and {len(self._powers)} are there")
        return self._walk(key, count)

    def order(self, key: str) -> list[str]:
        """Return all members in the order in which they are met from a key on."""
        return self._walk(key, len(self._powers))

    def _walk(self, key: str, count: int) -> list[str]:
        met: dict[str, None] = {}
        at = bisect_left(self._nodes, (_hash(key), ""))
        for step in range(len(self._nodes)):
            if len(met) == count:
                break
            met[self._nodes[(at + step) % len(self._nodes)][1]] = None
        return list(met)


def _hash(key: str) -> int:
    return zlib.crc32(key.encode())
