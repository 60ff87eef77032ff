"""Pushes to every group of a Raft cluster while a test does its worst, and judges at the end what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from clymq.testing.cluster import RaftCluster
from clymq.testing.history import problems
from clymq.testing.raft_client import RaftClient, messages_in
from clymq.testing.raft_producer import RESUME_SECONDS_MAX, RaftProducer


class RaftLoad:
    """One producer or more per group. `async with`: they push from then on, until `verify`."""

    def __init__(
        self,
        cluster: RaftCluster,
        *,
        producers_per_group: int = 1,
        messages_per_batch: int = 1,
        message_bytes: int = 64,
        pause_ms: float = 2.0,
    ) -> None:
        self.client = RaftClient(cluster)
        self._cluster = cluster
        self.producers = [
            RaftProducer(
                self.client,
                group,
                name=f"{group}-{number}",
                messages_per_batch=messages_per_batch,
                message_bytes=message_bytes,
                pause_ms=pause_ms,
            )
            for group in cluster.groups
            for number in range(producers_per_group)
        ]

    async def __aenter__(self) -> Self:
        for producer in self.producers:
            producer.start()
        await self.resumed()
        return self

    async def __aexit__(self, *_: object) -> None:
        for producer in self.producers:
            await producer.abandon()
        await self.client.close()

    async def resumed(
        self, *, batches: int = 1, elsewhere_than: str = "", seconds_max: float = RESUME_SECONDS_MAX
    ) -> float:
        """Wait until every producer has so much acknowledged that it made from now on; return the seconds taken."""
        waits = (
            producer.resumed(batches=batches, elsewhere_than=elsewhere_than, seconds_max=seconds_max)
            for producer in self.producers
        )
        return max(await asyncio.gather(*waits))

    async def stop(self) -> None:
        """Make no more, and wait until all is acknowledged."""
        await asyncio.gather(*(producer.stop() for producer in self.producers))

    async def verify(self, *, nodes: Sequence[str] = ()) -> int:
        """Stop, wait until all replicas are equal byte for byte, and hold the log against every promise.

        Return how many messages there are. All nodes, or those that are named, must be running and reach each other.
        """
        await self.stop()
        nodes = nodes or self._cluster.nodes
        await asyncio.to_thread(self._cluster.settle, nodes)
        for group in self._cluster.groups:
            await self._verify(group, nodes[0])
        return sum(producer.made for producer in self.producers)

    async def _verify(self, group: str, node: str) -> None:
        producers = [producer for producer in self.producers if producer.group == group]
        stored = await self.client.read(group)
        promised = [message for producer in producers for message in producer.acknowledged]
        found = problems(promised, stored)
        assert not found, f"group {group}: {found}"
        assert len(stored) == sum(producer.made for producer in producers), f"group {group} has more than was made"
        on_disk = messages_in(self._cluster.batches(node, group).read_bytes())
        assert on_disk == stored, f"group {group}: the file differs from what its leader reads from it"
