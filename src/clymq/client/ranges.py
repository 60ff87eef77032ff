"""Reading the messages [start, end) of one partition, and nothing else: for whoever divided the work beforehand.

A range is read ahead of whoever takes it, as far as its credit goes, and comes out as runs: slices of the batches as
they are in the log, opened by whoever takes them. It belongs to one life of its partition: of one that was deleted and
made anew in the meantime nothing is read.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.messages import Run
from clymq.client.reader import PartitionReader
from clymq.client.waiting import Deadline, settled
from clymq.config import MiB
from clymq.errors import ClymqError

CREDIT_BYTES: Final = 16 * MiB


class RangeReader:
    """See the module. `start()`, then `take()` until it returns nothing, then `close()`; all on one event loop."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: str,
        *,
        uid: str,
        start: int,
        end: int,
        consumer: str,
        group: str | None = None,
        timeout: float = 30.0,
        credit_bytes: int = CREDIT_BYTES,
        spread: int = 0,
    ) -> None:
        """`spread`: readers with different numbers ask different replicas of a sealed block."""
        self.end = end
        self._clock = cluster.clock
        self._timeout = timeout
        self._arrival: asyncio.Future[None] | None = None
        self._reader = PartitionReader(
            cluster,
            topic,
            partition,
            consumer=consumer,
            group=group,
            offset=start,
            share_bytes=lambda: credit_bytes,
            on_change=self._arrived,
            uid=uid,
            end=end,
            spread=spread,
        )

    @property
    def position(self) -> int:
        """The next offset that `take` gives."""
        return self._reader.position

    @property
    def asked(self) -> str:
        """The address that is asked at present; empty: none yet."""
        return self._reader.asked

    def start(self) -> None:
        """Begin to read ahead."""
        self._reader.start()

    async def take(self, *, messages_max: int, bytes_max: int) -> list[Run]:
        """Return what is there, at most about so much of it, and wait for something if nothing is; empty: the end.

        What stops the reader (messages are lost or were removed) is raised again until `skip_to` is called.
        """
        deadline = Deadline(self._clock, self._timeout)
        while self.position < self.end:
            runs = self._taken(messages_max, bytes_max)
            if runs:
                return runs
            if self._reader.error is not None:
                raise self._reader.error
            if deadline.is_over:
                raise deadline.error(
                    f"{self._reader.topic}/{self._reader.partition} from offset {self.position}", self._reader.problem
                )
            self._arrival = asyncio.get_running_loop().create_future()
            await settled(self._clock, self._arrival, deadline.remaining_ms)
        return []

    async def skip_to(self, offset: int) -> None:
        """Go on behind what cannot be read."""
        await self._reader.seek(min(offset, self.end))

    async def close(self) -> None:
        """Stop reading; its subscription stays: others read in the same name, at the same time."""
        await self._reader.stop()

    def _taken(self, messages_max: int, bytes_max: int) -> list[Run]:
        runs: list[Run] = []
        while self.position < self.end and messages_max > 0 and bytes_max > 0:
            try:
                run = self._reader.take(min(messages_max, self.end - self.position))
            except ClymqError:
                if runs:
                    break  # the reader keeps it, for the next call
                raise
            if run is None:
                break
            runs.append(run)
            count = run.end - run.start
            messages_max -= count
            bytes_max -= run.batch.length * count // run.batch.count
        return runs

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
