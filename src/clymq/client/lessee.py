"""Leasing messages of one partition, point to point, from whoever leads it.

Messages are leased when the user waits for some, no sooner: what lies here could be another consumer's. The assignment
of the controller says which consumers a partition is for; the others help out when they have waited in vain for some
time, so a partition whose consumer is stuck is not left alone. Exclusiveness comes from the leases, not from it.

While there are leases and nobody waits, the leader is asked now and then whether it still leads: leases are handed over
with the partition, but only to consumers that show up there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from clymq.client.cluster import Cluster, worth_retrying
from clymq.client.leased import Leased, batches_of
from clymq.client.messages import Run
from clymq.client.presence import Presence
from clymq.client.reader import PartitionReader, pull_bytes
from clymq.client.settling import Nacked, Settler
from clymq.client.waiting import Backoff, Deadline, settled
from clymq.clock import pause
from clymq.config import MiB
from clymq.errors import ClymqError, CorruptBatch, DataLost, NotPrepared, NotSubscribed, UnknownLease
from clymq.protocol.broker import ConInfo, FetchOffset, Lease, Pull, Pulled
from clymq.protocol.controller import ProducerRoute
from clymq.protocol.verbs import Reply, Request
from clymq.record import Batch
from clymq.rpc.peer import Answer, Peer
from clymq.types import Mode

log = logging.getLogger("clymq.client")

LEASE_WAIT_MS: Final = 1000
# Whoever waits in vain for so long asks where it is not assigned, too.
HELP_OUT_MS: Final = 1000.0
# How often the leader is asked whether it still leads, while leases are held and nobody waits for more.
PRESENT_MS: Final = 1000.0
# Bytes that the leader does not hold are read from elsewhere, no further ahead than this.
ELSEWHERE_BYTES_MAX: Final = MiB
# Who closes waits no longer than this for what the user has not settled to be heard of.
GIVE_BACK_MS_MAX: Final = 5000.0
# How often in a row messages may come damaged before they are given up.
DAMAGED_MAX: Final = 3

R = TypeVar("R", bound=Reply)


@dataclass(frozen=True, slots=True)
class LesseeOptions:
    """What all lessees of one subscription share."""

    consumer: str
    group: str
    ordered: bool
    timeout: float
    share_bytes: Callable[[], int]
    on_change: Callable[[], None]
    """Called when there is something to take, or to say."""
    prepare: Callable[[], Awaitable[None]]
    """Subscribe, and have the leaders make a cursor for the group."""


class PartitionLessee:
    """See the module."""

    def __init__(
        self, cluster: Cluster, presence: Presence, topic: str, partition: str, options: LesseeOptions
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.group = options.group
        self.assigned = False
        self.is_settled = False
        """All that anybody has looked at was settled or given back; what is still leased to us nobody has seen."""
        self.error: ClymqError | None = None
        """Why it has stopped."""
        self.failing_since_ms: float | None = None
        self.problem: ClymqError | None = None
        """What stands in the way at the moment."""
        self.settler = Settler(
            cluster,
            presence,
            topic,
            partition,
            group=options.group,
            consumer=options.consumer,
            timeout=options.timeout,
        )
        self._cluster = cluster
        self._clock = cluster.clock
        self._presence = presence
        self._options = options
        self._backoff = Backoff(cluster.config, cluster.chance)
        self._hints = 0
        self._leased = Leased(topic, partition, self.settler, cluster.clock, on_gone=self._gone)
        self._damaged = 0
        self._by_broker = False
        """Whether what goes wrong now is a broker's word, not the controller's."""
        self._wanted = 0
        self._wanted_since_ms: float | None = None
        self._changed = asyncio.Event()
        self._elsewhere: PartitionReader | None = None
        self._elsewhere_changed = asyncio.Event()
        self._asked: Peer | None = None
        """Who has not answered yet."""
        self._task: asyncio.Task[None] | None = None
        self._prolonging: asyncio.Task[None] | None = None

    # --- What the consumer asks ---

    def start(self) -> None:
        """Begin."""
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    def assign(self, assigned: bool) -> None:
        """Hear whether the partition is for this consumer."""
        if assigned != self.assigned:
            self.assigned = assigned
            self._changed.set()

    def want(self, messages: int) -> None:
        """Hear how many messages the user waits for; 0: for none."""
        self._wanted = messages
        if messages:
            if self._wanted_since_ms is None:
                self._wanted_since_ms = self._clock.monotonic_ms()
            self._changed.set()

    @property
    def has_messages(self) -> bool:
        """Whether some can be taken at once."""
        return bool(self._leased)

    def take(self, messages_max: int) -> Run | None:
        """Take messages of one lease, at most so many."""
        run = self._leased.take(messages_max)
        if run is not None:
            self._wanted_since_ms = None
        return run

    def got_some(self) -> None:
        """Hear that the user got messages, of whichever partition."""
        self._wanted_since_ms = None

    def refuse(self, leases: Sequence[Lease]) -> None:
        """Give back leases that were not expected any more."""
        self._leased.refuse(leases)

    def prolong(self) -> None:
        """Keep leases that are about to end, whatever becomes of other partitions meanwhile."""
        if len(self.settler.held) and (self._prolonging is None or self._prolonging.done()):
            self._prolonging = asyncio.create_task(self._prolong())

    async def _prolong(self) -> None:
        """Ask for it; a lease that has ended meanwhile is no harm."""
        try:
            await self.settler.prolong()
        except ClymqError as error:
            log.info("%s/%s: leases are not prolonged: %s", self.topic, self.partition, error)

    async def give_back(self) -> None:
        """Let others have all that is leased; what cannot be given back comes back by itself."""
        unread = self._leased.drop_all()
        try:
            if unread:
                await self.settler.settle(Nacked(unread=True), unread)
            await self.settler.give_back()
            self.is_settled = True
        except UnknownLease as error:
            self.is_settled = True
            log.info("%s/%s: not all is ours to be given back: %s", self.topic, self.partition, error)
        except ClymqError as error:
            log.info("%s/%s: not all is given back: %s", self.topic, self.partition, error)

    async def stop(self) -> None:
        """Lease no more; what is given back from now on does not come again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._hear_out()

    async def close(self) -> None:
        """Stop leasing and give back what was not taken; what is under way to the leader comes to its end."""
        await self.stop()
        if self._prolonging is not None:
            self._prolonging.cancel()
            await asyncio.gather(self._prolonging, return_exceptions=True)
        if self._elsewhere is not None:
            await self._elsewhere.close()
        await self._leased.close()
        await self.settler.close(self._options.timeout * 1000)
        giving_back = asyncio.ensure_future(self.give_back())
        await settled(self._clock, giving_back, min(GIVE_BACK_MS_MAX, self._options.timeout * 1000))
        await self.settler.close(0)
        await asyncio.gather(giving_back, return_exceptions=True)

    # --- Leasing ---

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            self._leased.look()
            try:
                if self._may_lease():
                    await self._lease()
                else:
                    await self._rest()
            except ClymqError as error:
                if not await self._go_on_after(error):
                    self.error = error
                    self._options.on_change()
                    return

    def _may_lease(self) -> bool:
        if not self._wanted or self._leased:
            return False
        if self.assigned:
            return True
        since_ms = self._wanted_since_ms
        helps_out = since_ms is not None and self._clock.monotonic_ms() - since_ms >= HELP_OUT_MS
        return helps_out and not self._options.ordered

    async def _rest(self) -> None:
        """Wait for a change; meanwhile stay known to whoever leads, if there is anything to lose."""
        await pause(self._clock, PRESENT_MS, unless=self._changed)
        if not self._changed.is_set() and len(self.settler.held):
            await self._ask(lambda route: FetchOffset(self.topic, self.partition, route.uid, self.group))

    async def _lease(self) -> None:
        answer = await self._ask(
            lambda route: Pull(
                topic=self.topic,
                partition=self.partition,
                uid=route.uid,
                bytes_max=pull_bytes(self._options.share_bytes(), self._cluster.config),
                wait_ms_max=LEASE_WAIT_MS if self.assigned else 0,
                messages_max=self._wanted or 1,
                mode=Mode.PTP_PULL,
                group=self.group,
                consumer=self._options.consumer,
                ordered=self._options.ordered,
            ),
            wait_ms=LEASE_WAIT_MS,
            late=self._came_late,
        )
        self._worked()
        if answer.reply.leases:
            await self._keep(answer.reply.leases, answer.payload, elsewhere=answer.reply.locator is not None)
        elif not self.assigned:
            await pause(self._clock, HELP_OUT_MS, unless=self._changed)

    async def _keep(self, leases: Sequence[Lease], payload: memoryview, *, elsewhere: bool) -> None:
        try:
            if elsewhere:
                batches = await self._read_elsewhere(leases[0].range.start, leases[-1].range.end)
            else:
                batches = batches_of(payload, self._cluster.config.batch_bytes_max)
            self._leased.keep(leases, batches)
            self._damaged = 0
        except (CorruptBatch, DataLost) as error:
            await self._keep_nothing(leases, error)
        except BaseException:
            self._leased.refuse(leases)
            self._gone(_messages_in(leases))
            raise
        self._options.on_change()

    async def _keep_nothing(self, leases: Sequence[Lease], error: ClymqError) -> None:
        """The messages are damaged or lost: try again, perhaps with another copy; in the end they are dead letters."""
        self._gone(_messages_in(leases))
        self._damaged += 1
        if self._damaged < DAMAGED_MAX and isinstance(error, CorruptBatch):
            self._leased.refuse(leases)
            await pause(self._clock, self._backoff.next_ms())
        else:
            self._damaged = 0
            self._leased.reject(leases, f"{error.code}: {error}")

    def _came_late(self, answer: Answer[Pulled]) -> None:
        """Leases were under way when nobody waited for them any more: others may have them."""
        if answer.reply.leases:
            self._leased.refuse(answer.reply.leases)

    async def _hear_out(self) -> None:
        """Wait for leases that are under way, if there are any: who answers this has sent them before."""
        peer, self._asked = self._asked, None
        if peer is not None:
            with suppress(ClymqError):
                await peer.ask(ConInfo(self._options.consumer), timeout_ms=PRESENT_MS)

    def _gone(self, messages: int) -> None:
        """So many messages are not kept any more."""

    # --- Talking to the leader ---

    async def _ask(
        self,
        make: Callable[[ProducerRoute], Request[R]],
        *,
        wait_ms: float = 0,
        late: Callable[[Answer[R]], None] | None = None,
    ) -> Answer[R]:
        """Ask the leader once; what it says of others is taken note of."""
        route, peer = await self._leader()
        self._asked = peer
        try:
            answer = await peer.ask(make(route), timeout_ms=self._cluster.config.request_ms_max + wait_ms, late=late)
        except ClymqError as error:
            self._reroute(route, error)
            raise
        self._asked = None
        return answer

    async def _leader(self) -> tuple[ProducerRoute, Peer]:
        """Return where the leader is thought to be, and a connection on which it knows us."""
        self._by_broker = False
        route = await self._cluster.route(self.topic, self.partition)
        self._by_broker = True
        try:
            peer = await self._cluster.peer(route.address)
            await self._presence.greet(peer)
        except ClymqError as error:
            self._reroute(route, error)
            raise
        return route, peer

    def _reroute(self, route: ProducerRoute, error: ClymqError) -> None:
        found = self._cluster.reroute(self.topic, self.partition, route, error, hints_followed=self._hints)
        self._hints = self._hints + 1 if found else 0

    def _worked(self) -> None:
        self._hints = 0
        self._backoff.reset()
        self.problem = self.failing_since_ms = None

    async def _go_on_after(self, error: ClymqError) -> bool:
        """Wait for a moment, unless it is known where to go on; return False if asking again cannot help."""
        self.problem = error
        if self.failing_since_ms is None:
            self.failing_since_ms = self._clock.monotonic_ms()
        if isinstance(error, NotPrepared | NotSubscribed):
            await self._options.prepare()
        elif not worth_retrying(error, by_broker=self._by_broker):
            return False
        if not self._hints:
            await pause(self._clock, self._backoff.next_ms())
        return True

    # --- Bytes that the leader does not hold ---

    async def _read_elsewhere(self, start: int, end: int) -> list[Batch]:
        """Read a range from whoever has it: what was leased lies in a block that the leader has no copy of."""
        reader = self._elsewhere
        if reader is None:
            reader = self._elsewhere = PartitionReader(
                self._cluster,
                self.topic,
                self.partition,
                consumer=self._options.consumer,
                group=self.group,
                offset=start,
                share_bytes=lambda: ELSEWHERE_BYTES_MAX,
                on_change=self._elsewhere_changed.set,
            )
            reader.start()
        elif reader.position != start:
            await reader.seek(start)
        deadline = Deadline(self._clock, self._options.timeout)
        batches: list[Batch] = []
        while reader.position < end:
            self._elsewhere_changed.clear()
            run = reader.take(end - reader.position)
            if run is not None:
                batches.append(run.batch)
            elif reader.error is not None:
                raise reader.error
            elif deadline.is_over:
                raise deadline.error(f"{self.topic}/{self.partition} [{start}, {end})", reader.problem)
            else:
                waiting = asyncio.ensure_future(self._elsewhere_changed.wait())
                try:
                    await settled(self._clock, waiting, deadline.remaining_ms)
                finally:
                    waiting.cancel()
        return batches


def _messages_in(leases: Sequence[Lease]) -> int:
    return sum(lease.range.end - lease.range.start for lease in leases)
