"""Which partition each message of a producer goes to; see `partitioning` for the rule.

`send` returns at once, but a topic's partitions have to be asked for. Until they are known, its messages wait here, in
order, and count against the buffer like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from clymq.client.accumulator import Draft, Lane, message_bytes
from clymq.client.cluster import Cluster
from clymq.client.outbox import Outbox
from clymq.client.partitioning import Sticky, partition_of
from clymq.client.waiting import Deadline, settled
from clymq.errors import ClymqError
from clymq.record import BatchBuilder
from clymq.record.elements import Headers


class _Gate:
    """Those who wait to be admitted to a topic, in order."""

    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class Placing:
    """See the module."""

    def __init__(self, cluster: Cluster, outbox: Outbox, timeout: float) -> None:
        self._cluster = cluster
        self._outbox = outbox
        self._timeout = timeout
        self._value_bytes_max = cluster.config.message_bytes_max
        self._sticky: dict[str, Sticky] = {}
        self._unplaced: dict[str, list[tuple[Any, ...]]] = {}
        self._looking: dict[asyncio.Task[None], None] = {}
        self._gates: dict[str, _Gate] = {}
        self.lanes: dict[str, Lane] = {}
        """By topic: where the next messages go that are only a value, as long as they fit."""
        outbox.on_full = self._full

    async def admit(self, topic: str, partition: str | None, size: int, deadline: Deadline) -> Sequence[str]:
        """Wait until so many bytes can be accepted; return the partition that was given, or all that there are.

        Whoever has to wait is admitted in the order of coming: nobody overtakes those who wait for the same topic.
        """
        names = self._names(topic, partition)
        gate = self._gates.get(topic)
        if names and gate is None and topic not in self._unplaced and self._outbox.fits(size):
            return names
        if gate is None:
            gate = self._gates[topic] = _Gate()
        gate.waiting += 1
        try:
            async with gate.lock:
                await self._placed(topic, deadline)
                names = self._names(topic, partition) or await self._cluster.partitions(topic, deadline)
                await self._outbox.room(size, deadline)
                return names
        finally:
            gate.waiting -= 1
            if not gate.waiting:
                del self._gates[topic]

    def choose(self, topic: str, partitions: Sequence[str], key: bytes | None) -> str:
        """Return the partition of a message."""
        if len(partitions) == 1:
            return partitions[0]
        if key is not None:
            return partition_of(key, partitions)
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = Sticky(self._cluster.chance())
        return sticky.current(partitions)

    def hasten(self, draft: Draft) -> None:
        """Somebody waits for this draft; those who are about to be admitted may still be in it."""
        if draft.topic in self._gates:
            self._outbox.hand_over()
        else:
            self._outbox.hasten(draft)

    def place(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        partition: str | None,
        timestamp: int | None,
    ) -> None:
        """Accept a message whose fate nobody waits for; it is placed now, or as soon as the partitions are known."""
        if topic in self._unplaced:
            self._keep(topic, value, key, headers, partition, timestamp)
            return
        names = self._names(topic, partition)
        if not names:
            self._keep(topic, value, key, headers, partition, timestamp)
            return
        place = self.choose(topic, names, key)
        if key is None and headers is None and partition is None and timestamp is None:
            draft, self.lanes[topic] = self._outbox.open_lane(topic, place, value, self._value_bytes_max)
        else:
            draft = self._outbox.add(topic, place, value, key, headers, timestamp)
        draft.unawaited = True

    async def _placed(self, topic: str, deadline: Deadline) -> None:
        """Wait until no message of a topic waits for its partition: they come first."""
        while topic in self._unplaced and not deadline.is_over:
            looking = asyncio.gather(*self._looking, return_exceptions=True)
            await settled(self._cluster.clock, looking, deadline.remaining_ms)

    async def all_placed(self) -> None:
        """Wait until no message waits for its partition."""
        while self._looking:
            await asyncio.gather(*self._looking, return_exceptions=True)

    async def close(self) -> None:
        """Stop looking."""
        for task in list(self._looking):
            task.cancel()
        await self.all_placed()

    def _names(self, topic: str, partition: str | None) -> Sequence[str]:
        """Return what can be chosen from; nothing if that is not known."""
        return self._cluster.known_partitions(topic) if partition is None else (partition,)

    def _keep(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        partition: str | None,
        timestamp: int | None,
    ) -> None:
        size = message_bytes(value, key, headers)
        self._outbox.check_room(size)
        BatchBuilder(message_bytes_max=self._cluster.config.message_bytes_max).add(
            value, key=key, headers=headers, timestamp=timestamp
        )  # what is wrong with it is said now, not later
        if topic not in self._unplaced:
            self._unplaced[topic] = []
            task = asyncio.create_task(self._find(topic))
            self._looking[task] = None
            task.add_done_callback(self._looking.pop)
        self._unplaced[topic].append((value, key, headers, partition, timestamp))
        self._outbox.unplaced_bytes += size

    async def _find(self, topic: str) -> None:
        """Look for the partitions of a topic, then place its messages, or give them up."""
        error: ClymqError | None = None
        names: tuple[str, ...] = ()
        try:
            names = await self._cluster.partitions(topic, Deadline(self._cluster.clock, self._timeout))
        except ClymqError as problem:
            error = problem
        messages = self._unplaced.pop(topic)
        self._outbox.unplaced_bytes -= sum(message_bytes(*message[:3]) for message in messages)
        if error is not None:
            self._outbox.report(error, unawaited=True)
            self._outbox.tell_room()
            return
        for value, key, headers, partition, timestamp in messages:
            place = self.choose(topic, names if partition is None else (partition,), key)
            # It was checked when it was kept, and its bytes were counted: nothing can be wrong with it now.
            self._outbox.add(topic, place, value, key, headers, timestamp).unawaited = True
            self._outbox.hand_over()

    def _full(self, draft: Draft) -> None:
        """Let the next messages without a key go to another partition, and learn of new ones now and then."""
        self._cluster.refresh_partitions(draft.topic)
        sticky = self._sticky.get(draft.topic)
        if sticky is not None:
            sticky.advance(draft.partition, self._cluster.known_partitions(draft.topic))
