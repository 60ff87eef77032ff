"""Reading one partition from an offset on, across blocks and brokers, ahead of whoever takes the messages.

The controller says which block holds an offset and who has it, best first; a broker that contradicts it, or a block
that has come to its end, means to look again. Every batch is checked before it is kept: both checksums, and that it
begins where the one before it ended. What fails goes nowhere; the same offset is asked of another replica, and when
all have been asked, the error says which offsets are damaged.

A reader holds at most its share of the consumer's credit, and one answer more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from clymq.client.cluster import LOOK_AGAIN_MS_MAX, Cluster, worth_retrying
from clymq.client.messages import Run
from clymq.client.read_routes import ReadRoutes
from clymq.client.waiting import Backoff, Deadline, next_turn
from clymq.clock import pause
from clymq.config import FRAME_HEAD_BYTES, Config, KiB, MiB
from clymq.errors import ClymqError, CorruptBatch, OffsetOutOfRange, UnknownPartition
from clymq.protocol.broker import Pull, Pulled
from clymq.protocol.controller import ReadRoute
from clymq.record import Batch, Kind
from clymq.types import Mode

PULL_BYTES_MAX: Final = 4 * MiB
PULL_BYTES_MIN: Final = 64 * KiB
PULL_WAIT_MS: Final = 5000
# How often one offset may come damaged, from whomever, before the reader gives up on it; at least once from each.
CORRUPT_MAX: Final = 3


class PartitionReader:
    """See the module. `share_bytes` says how much it may hold."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: str,
        *,
        consumer: str,
        group: str | None,
        offset: int,
        share_bytes: Callable[[], int],
        on_change: Callable[[], None],
        mode: Mode = Mode.PSB_PULL,
        uid: str = "",
        end: int | None = None,
        spread: int = 0,
    ) -> None:
        """`uid`: of no other partition of that name. `end`: no further. `spread`: which replica of a sealed block."""
        self.topic = topic
        self.partition = partition
        self.group = group
        self.position = offset
        """The next offset that the user gets."""
        self.committed: int | None = None
        """The position that was last stored for the group."""
        self.error: ClymqError | None = None
        """Why it has stopped."""
        self.failing_since_ms: float | None = None
        self.problem: ClymqError | None = None
        """What stands in the way at the moment."""
        self.seeks = 0
        """How often the user has gone elsewhere."""
        self._routes = ReadRoutes(cluster, topic, partition, consumer=consumer, group=group or "default", mode=mode)
        self._cluster = cluster
        self._clock = cluster.clock
        self._consumer = consumer
        self._share_bytes = share_bytes
        self._on_change = on_change
        self._uid = uid
        self._end = end
        self._spread = spread
        self._backoff = Backoff(cluster.config, cluster.chance)
        self._kept: deque[Batch] = deque()
        self._kept_bytes = 0
        self._taken = offset
        self._fetched = offset
        self._route: ReadRoute | None = None
        self._route_is_stale = False
        self._route_is_fresh = False
        """Nothing was read by it yet."""
        self._candidates: list[str] = []
        self._failures: dict[str, int] = {}
        self._corrupt = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- What the consumer asks ---

    def start(self) -> None:
        """Begin to read ahead."""
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    async def seek(self, offset: int) -> None:
        """Go on at another offset, and forget what was read ahead."""
        await self.stop()
        self._kept.clear()
        self._kept_bytes = 0
        self.position = self._taken = self._fetched = offset
        self.error = self.problem = self.failing_since_ms = None
        self._route = None
        self._corrupt = 0
        self.seeks += 1
        self.start()

    async def stop(self) -> None:
        """Stop reading."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Stop reading, and leave no trace of it: a subscription that it had to make is undone."""
        await self.stop()
        await self._routes.leave()

    @property
    def asked(self) -> str:
        """Who is asked first at present."""
        return self._candidates[0] if self._candidates else ""

    @property
    def has_messages(self) -> bool:
        """Whether some can be taken at once."""
        return bool(self._kept)

    def take(self, messages_max: int) -> Run | None:
        """Take messages of one batch, at most so many. Raises `CorruptBatch` for a batch that cannot be opened."""
        if not self._kept:
            return None
        batch = self._kept[0]
        try:
            batch.to_arrow()
        except CorruptBatch as error:
            # Its checksums are right, so that is what its producer sent: no other replica has anything else.
            self.error = error
            raise
        start, end = self._taken, min(batch.end_offset, self._taken + messages_max)
        if end == batch.end_offset:
            self._kept.popleft()
            self._kept_bytes -= batch.length
            self._room.set()
        self._taken = self.position = end
        return Run(self.topic, self.partition, batch, start, end)

    # --- Reading ahead ---

    async def _run(self) -> None:
        while self._end is None or self._fetched < self._end:
            self._room.clear()
            if self._kept_bytes and self._kept_bytes >= self._share_bytes() // 2:
                await self._room.wait()
                continue
            address = ""
            try:
                route = await self._find()
                address = self._candidates[0]
                await self._pull(route, address)
            except ClymqError as error:
                if not self._go_on_after(error, address):
                    self.error = error
                    self._on_change()
                    return
                await pause(self._clock, self._backoff.next_ms())

    async def _pull(self, route: ReadRoute, address: str) -> None:
        room = self._share_bytes() - self._kept_bytes
        request = Pull(
            topic=self.topic,
            partition=self.partition,
            uid=route.uid,
            offset=self._fetched,
            bytes_max=pull_bytes(room, self._cluster.config),
            wait_ms_max=PULL_WAIT_MS,
            mode=Mode.PSB_PULL,
            group=self.group or "",
            consumer=self._consumer,
        )
        limit_ms = PULL_WAIT_MS + self._cluster.config.request_ms_max
        answer = await self._cluster.ask(address, request, timeout_ms=limit_ms)
        got_some = self._keep(answer.payload)
        self._worked(answer.reply, route)
        if got_some and len(answer.payload) < PULL_BYTES_MIN:
            self._on_change()
            await next_turn()  # whoever has waited for these few goes first, and asking for more comes behind
        elif got_some:
            # Who has waited may be busy with so many for long: the broker is asked for more first, and works meanwhile.
            asyncio.get_running_loop().call_soon(self._on_change)

    def _keep(self, payload: memoryview) -> bool:
        """Check the batches of an answer, all BEFORE one is kept, and that they follow what is there.

        Return whether there are any; `on_change` is still to be called then.
        """
        batches: list[Batch] = []
        position, expected = 0, self._fetched
        while position < len(payload):
            batch = Batch.parse(payload, position, batch_bytes_max=self._cluster.config.batch_bytes_max)
            batch.check_crc()
            position += batch.length
            if batch.kind != Kind.DATA:
                continue
            # The first holds the offset that was asked for; the others begin where the one before ended.
            fits = batch.base_offset == expected if batches else batch.base_offset <= expected < batch.end_offset
            if not fits:
                raise CorruptBatch(
                    "base_offset", f"{batch.base_offset} where {expected} was due", start=expected, end=batch.end_offset
                )
            batches.append(batch)
            expected = batch.end_offset
        if batches:
            self._kept += batches
            self._kept_bytes += sum(batch.length for batch in batches)
            self._fetched = expected
        return bool(batches)

    def _worked(self, reply: Pulled, route: ReadRoute) -> None:
        self._going_well()
        if reply.next_block or 0 <= route.end <= self._fetched:
            self._route_is_stale = True  # the block is read to its end: who has the next one?

    def _going_well(self) -> None:
        self._failures.clear()
        self._corrupt = 0
        self.problem = self.failing_since_ms = None
        self._route_is_fresh = False
        self._backoff.reset()

    # --- Where to read ---

    async def _find(self) -> ReadRoute:
        """Return the block that holds the next offset; those who have it are the candidates, best first.

        While no controller answers, those who had the block before are asked again: they may have the next one too.
        """
        if self._route is None or self._route_is_stale:
            try:
                self._use(await self._look_up())
            except ClymqError as error:
                if self._route is None or not error.retriable:
                    raise
        assert self._route is not None
        self._candidates.sort(key=lambda address: self._failures.get(address, 0))
        return self._route

    def _use(self, route: ReadRoute) -> None:
        if self._uid and route.uid != self._uid:
            raise UnknownPartition(f"{self.topic}/{self.partition} was deleted and made anew")
        self._route, self._route_is_stale, self._route_is_fresh = route, False, True
        places = [(route.broker, route.address), *((each.broker, each.address) for each in route.replicas)]
        for broker, address in places:
            self._cluster.learn(broker, address)
        self._candidates = list(dict.fromkeys(address for _, address in places if address))
        if route.end >= 0 and self._candidates:  # sealed: all of them serve it
            first = self._spread % len(self._candidates)
            self._candidates = self._candidates[first:] + self._candidates[:first]

    async def _look_up(self) -> ReadRoute:
        limit_ms = self._cluster.config.request_ms_max if self._route is None else LOOK_AGAIN_MS_MAX
        return await self._routes.find(self._fetched, Deadline(self._clock, limit_ms / 1000))

    # --- When something goes wrong ---

    def _go_on_after(self, error: ClymqError, address: str) -> bool:
        """Decide where to ask next; return False if asking again cannot help."""
        self.problem = error
        if self.failing_since_ms is None:
            self.failing_since_ms = self._clock.monotonic_ms()
        if address:
            self._failures[address] = self._failures.get(address, 0) + 1
        if isinstance(error, CorruptBatch):
            self._corrupt += 1
            return self._corrupt < max(CORRUPT_MAX, len(self._candidates))
        if isinstance(error, OffsetOutOfRange):
            # Of a route that is older than this request it may only mean that the block is elsewhere by now.
            self._route_is_stale = True
            return bool(address) and not self._route_is_fresh
        hinted = self._cluster.address_of(error.hint)
        if address and hinted and hinted != address:
            self._candidates = [hinted, *(each for each in self._candidates if each != hinted)]
            self._failures.pop(hinted, None)
        elif error.refresh:
            self._route_is_stale = True
        return worth_retrying(error, by_broker=bool(address))


def pull_bytes(room: int, config: Config) -> int:
    """Return how much to ask for at once, where there is room for so much: no more than a frame can bring."""
    return min(max(PULL_BYTES_MIN, min(room, PULL_BYTES_MAX)), config.frame_bytes_max - FRAME_HEAD_BYTES)
