"""Who leads a partition, by the word of the brokers: the tree may name one that is dead, or be out of reach itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.waiting import Deadline
from clymq.errors import ClymqError
from clymq.protocol.controller import DescribeTopic
from clymq.protocol.hosting import PrepareState
from clymq.testing.waiting import until_asked
from clymq.types import Ack

LEADER_SECONDS_MAX: Final = 20.0
# One that is frozen or cut off does not answer; the others need not wait for it.
_ASK_MS: Final = 500.0


class Leaders:
    """Asks the brokers of one cluster; what a partition's uid is, it asks the controller, if there is one."""

    def __init__(self) -> None:
        self._uids: dict[tuple[str, str], str] = {}

    async def find(
        self, brokers: Mapping[str, str], bootstrap: str, topic: str, partition: str, *, seconds_max: float
    ) -> str:
        """Wait until exactly one of the brokers, given with their addresses, says that it leads, and return it."""
        found: list[str] = []
        cluster = Cluster(bootstrap, name="clymq-leader", role="admin", surroundings=None)

        async def look() -> bool:
            uid = await self._uid(cluster, topic, partition, seconds_max)
            claims = await asyncio.gather(
                *(_claims(cluster, name, address, topic, partition, uid) for name, address in brokers.items())
            )
            found[:] = [name for name, claimed in zip(brokers, claims, strict=True) if claimed]
            return len(found) == 1

        try:
            await until_asked(look, f"one broker leads {topic}/{partition}", seconds_max=seconds_max)
        finally:
            await cluster.close()
        return found[0]

    async def _uid(self, cluster: Cluster, topic: str, partition: str, seconds_max: float) -> str:
        """Ask anew each time, for the topic may have been made anew; without an answer it is what it was."""
        known = self._uids.get((topic, partition))
        patience_seconds = seconds_max if known is None else _ASK_MS / 1000
        try:
            described = await cluster.ask_controller(DescribeTopic(topic), Deadline(cluster.clock, patience_seconds))
        except ClymqError:
            if known is None:
                raise
            return known
        found = next((each.uid for each in described.partitions if each.partition == partition), None)
        assert found is not None, f"{topic} has no partition {partition}"
        self._uids[topic, partition] = found
        return found


async def _claims(cluster: Cluster, name: str, address: str, topic: str, partition: str, uid: str) -> bool:
    request = PrepareState(topic, partition, uid, state=Ack.QUORUM, block=0, epoch=0)
    try:
        return (await cluster.ask(address, request, timeout_ms=_ASK_MS)).reply.leader == name
    except ClymqError:
        return False  # it does not host the partition, or cannot be reached
