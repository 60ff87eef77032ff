"""Offsets: what is meant by a word or a time, where partitions begin and end, and what groups have stored."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.read_routes import ReadRoutes, microseconds
from clymq.client.reader import PartitionReader
from clymq.client.waiting import Deadline
from clymq.errors import InvalidRequest, OffsetOutOfRange, UnknownPartition
from clymq.protocol.broker import CommitOffset, FetchOffset, Pull
from clymq.protocol.controller import DescribeTopic

# No partition comes this far: asked for it, a leader says where the end is.
OFFSET_MAX: Final = 2**62

Offset = int | str | datetime


class Positions:
    """The positions of one consumer."""

    def __init__(self, cluster: Cluster, consumer: str, timeout: float) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._consumer = consumer
        self._timeout = timeout

    async def resolve(self, topic: str, partition: str, offset: Offset, group: str | None) -> int:
        """Return the offset that is meant."""
        if isinstance(offset, int):
            if offset < 0:
                raise InvalidRequest(f"offset {offset} is negative")
            return offset
        deadline = self._deadline()
        if isinstance(offset, datetime):
            return await self._offset_at(topic, partition, microseconds(offset), group, deadline)
        if offset == "latest":
            return await self.end(topic, partition, deadline)
        if offset == "committed":
            if group is None:
                raise InvalidRequest("only a group has a committed offset", hint="assign with group=")
            committed = await self.committed(topic, partition, group)
            if committed is not None:
                return committed
        elif offset != "earliest":
            raise InvalidRequest(f"offset {offset!r} must be a number, a time, earliest, latest or committed")
        return await self._first_offset(topic, partition, deadline)

    async def _first_offset(self, topic: str, partition: str, deadline: Deadline) -> int:
        described = await self._cluster.ask_controller(DescribeTopic(topic), deadline)
        for each in described.partitions:
            if each.partition == partition:
                return each.start
        raise UnknownPartition(f"{topic} has no partition {partition}")

    async def end(self, topic: str, partition: str, deadline: Deadline) -> int:
        """Return one past the last message that can be read now."""
        try:
            answer = await self._cluster.ask_leader(
                topic,
                partition,
                lambda route: Pull(topic, partition, route.uid, offset=OFFSET_MAX, bytes_max=1),
                deadline,
            )
        except OffsetOutOfRange as error:
            return error.end
        return answer.reply.high_watermark

    async def _offset_at(self, topic: str, partition: str, time_us: int, group: str | None, deadline: Deadline) -> int:
        routes = ReadRoutes(self._cluster, topic, partition, consumer=self._consumer, group=group or "default")
        first = await self._first_offset(topic, partition, deadline)
        try:
            return await routes.offset_at(time_us, first, deadline)
        finally:
            await routes.leave()

    async def committed(self, topic: str, partition: str, group: str) -> int | None:
        """Return what a group has stored; None: nothing."""
        answer = await self._cluster.ask_leader(
            topic, partition, lambda route: FetchOffset(topic, partition, route.uid, group), self._deadline()
        )
        return answer.reply.offset

    async def commit(self, reader: PartitionReader, offset: int, deadline: Deadline) -> None:
        """Store how far a reader's group has come."""
        group = reader.group
        assert group is not None
        await self._cluster.ask_leader(
            reader.topic,
            reader.partition,
            lambda route: CommitOffset(reader.topic, reader.partition, route.uid, group, offset),
            deadline,
        )
        reader.committed = offset

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._timeout)
