"""What a consumer has leased in one partition and the user has not taken yet.

Whole batches come with leases on ranges of them; what lies around the ranges is somebody else's. A lease that runs out
before the user comes is not handed out any more: another consumer may have it by then. One that nobody has looked at
for long is given back before that, and then the delivery does not count. A batch that cannot be opened goes to the dead
letters: no other try would be any different.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from clymq.client.messages import Run
from clymq.client.settling import End, Nacked, Rejected, Settler
from clymq.clock import Clock
from clymq.errors import ClymqError, CorruptBatch
from clymq.protocol.broker import Lease
from clymq.record import Batch, Kind

log = logging.getLogger("clymq.client")

# A lease without a time of its own is taken for as long as that.
LEASE_MS: Final = 30_000
REASON_MAX: Final = 1000


class Leased:
    """See the module."""

    def __init__(
        self, topic: str, partition: str, settler: Settler, clock: Clock, *, on_gone: Callable[[int], None]
    ) -> None:
        """`on_gone` is told of each so many messages that are not kept any more."""
        self._topic = topic
        self._partition = partition
        self._settler = settler
        self._clock = clock
        self._on_gone = on_gone
        self._runs: deque[Run] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def keep(self, leases: Sequence[Lease], batches: Sequence[Batch]) -> None:
        """Keep leases whose messages are in these batches; all of them must be there BEFORE any is kept."""
        runs = [run for lease in leases for run in self._runs_of(lease, batches)]
        now_ms = self._clock.monotonic_ms()
        for lease in leases:
            lease_ms = lease.expires_in_ms or LEASE_MS
            self._settler.held.add(lease.lease, lease.range.start, lease.range.end, now_ms, lease_ms)
        self._runs += runs

    def take(self, messages_max: int) -> Run | None:
        """Take messages of one lease and one batch, at most so many; None: there are none."""
        while self._runs:
            run = self._runs[0]
            if not self._settler.held.has(run.lease, run.start, self._clock.monotonic_ms()):
                self._drop()
                continue
            try:
                run.batch.to_arrow()
            except CorruptBatch as error:
                self._drop()
                self._begin(self._settler.settle(Rejected(str(error)[:REASON_MAX]), [(run.start, run.end)]))
                continue
            if run.end - run.start > messages_max:
                middle = run.start + messages_max
                self._runs[0] = replace(run, start=middle)
                self._on_gone(messages_max)
                return replace(run, end=middle)
            self._drop()
            return run
        return None

    def look(self) -> None:
        """Give back what nobody has looked at for half of its lease."""
        if not self._runs:
            return
        due = {piece for some in self._settler.held.half_over(self._clock.monotonic_ms()).values() for piece in some}
        leases = {piece.lease for piece in due}
        ranges = []
        while self._runs and self._runs[0].lease in leases:
            ranges.append((self._runs[0].start, self._runs[0].end))
            self._drop()
        if ranges:
            self._begin(self._settler.settle(Nacked(unread=True), ranges))

    def give_back(self) -> None:
        """Give back everything; it was not read."""
        ranges = self.drop_all()
        if ranges:
            self._begin(self._settler.settle(Nacked(unread=True), ranges))

    def drop_all(self) -> list[tuple[int, int]]:
        """Keep nothing any more; return which offsets that were."""
        ranges = [(run.start, run.end) for run in self._runs]
        while self._runs:
            self._drop()
        return ranges

    def reject(self, leases: Sequence[Lease], reason: str) -> None:
        """Let leases go to the dead letters whose messages nobody can have."""
        self._end(leases, Rejected(reason[:REASON_MAX]))

    def refuse(self, leases: Sequence[Lease]) -> None:
        """Give back leases whose messages did not come."""
        self._end(leases, Nacked(unread=True))

    def _end(self, leases: Sequence[Lease], end: End) -> None:
        now_ms = self._clock.monotonic_ms()
        for lease in leases:
            self._settler.held.add(lease.lease, lease.range.start, lease.range.end, now_ms, LEASE_MS)
        ranges = [(lease.range.start, lease.range.end) for lease in leases]
        self._begin(self._settler.settle(end, ranges))

    async def close(self) -> None:
        """Give back everything, and wait until that is heard: otherwise it would count as delivered."""
        self.give_back()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _runs_of(self, lease: Lease, batches: Sequence[Batch]) -> list[Run]:
        at, end = lease.range.start, lease.range.end
        runs = []
        for batch in batches:
            if batch.base_offset <= at < batch.end_offset and at < end:
                stop = min(end, batch.end_offset)
                runs.append(Run(self._topic, self._partition, batch, at, stop, lease.deliveries, lease.lease))
                at = stop
        if at < end:
            raise CorruptBatch("base_offset", f"{at} was leased and is not in the answer", start=at, end=end)
        return runs

    def _drop(self) -> None:
        run = self._runs.popleft()
        self._on_gone(run.end - run.start)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ClymqError as error:
            log.info("%s/%s: %s; the leases end by themselves", self._topic, self._partition, error)


def batches_of(payload: memoryview, batch_bytes_max: int) -> list[Batch]:
    """Return the data batches of an answer, checked."""
    batches: list[Batch] = []
    position = 0
    while position < len(payload):
        batch = Batch.parse(payload, position, batch_bytes_max=batch_bytes_max)
        batch.check_crc()
        position += batch.length
        if batch.kind == Kind.DATA:
            batches.append(batch)
    return batches
