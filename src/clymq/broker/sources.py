"""Where a replica that misses something may read it: a whole block on this broker, or one on another."""

from __future__ import annotations

from typing import Final

from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.neighbours import Neighbours
from clymq.broker.sealed_block import SealedBlock
from clymq.protocol.broker import Pull
from clymq.record.layout import Buffer

SOURCE_MS_MAX: Final = 10_000.0


class LocalSource:
    """A whole block on this broker."""

    def __init__(self, block: SealedBlock) -> None:
        self._block = block

    async def read(self, position: int, bytes_max: int) -> Buffer:
        """Read it here."""
        return self._block.read_at(position, bytes_max)


class RemoteSource:
    """A block on another broker."""

    def __init__(self, neighbours: Neighbours, broker: str, partition: HostedPartition, block: int, me: str) -> None:
        self._neighbours = neighbours
        self._broker = broker
        self._partition = partition
        self._block = block
        self._me = me

    async def read(self, position: int, bytes_max: int) -> Buffer:
        """Ask for it, as a follower does."""
        partition = self._partition
        request = Pull(
            partition.topic,
            partition.name,
            partition.uid,
            block=self._block,
            replica=self._me,
            position=position,
            bytes_max=bytes_max,
        )
        answer = await self._neighbours.ask(self._broker, request, timeout_ms=SOURCE_MS_MAX)
        return answer.payload
