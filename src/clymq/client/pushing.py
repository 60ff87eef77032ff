"""Messages that a broker pushes, as far as the consumer has given credit: one partition's deliveries on one connection.

A `Push` is one such stream. It ends with a delivery that says why, with the connection, or when nobody waits for it any
more; then whoever reads looks for where to go on. Two use it: `PushedReader` reads a partition from an offset on,
`PushedLessee` gets leases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.lessee import PRESENT_MS, LesseeOptions, PartitionLessee
from clymq.client.messages import Run
from clymq.client.presence import Presence
from clymq.client.read_routes import error_named
from clymq.client.reader import PartitionReader
from clymq.client.waiting import settled
from clymq.config import KiB
from clymq.errors import BlockSealed, ClymqError, ConnectionLost, OffsetOutOfRange, RemoteProtocolError
from clymq.protocol.broker import Credit, Pub, StartToGet
from clymq.protocol.controller import ReadRoute
from clymq.rpc.peer import Peer
from clymq.types import Mode

# Point to point a consumer has no more than this before it: the rest is for others, and what it has not looked at when
# it dies counts as delivered to it.
LEASED_BYTES_MAX: Final = 256 * KiB
LEASED_MESSAGES_MAX: Final = 1000
CREDIT_BYTES_MIN: Final = 64 * KiB

OnPub = Callable[[Pub, memoryview], None]


class Push:
    """See the module."""

    def __init__(self, presence: Presence, peer: Peer, on_pub: OnPub) -> None:
        self._presence = presence
        self._peer = peer
        self._on_pub = on_pub
        self._ended: asyncio.Future[Pub] = asyncio.get_running_loop().create_future()
        self.number = presence.expect(peer, self._delivered, self._lost)

    async def run(self, request: StartToGet, started: Callable[[], None], timeout_ms: float) -> Pub:
        """Ask for deliveries and take them until the last one, which is returned; it says why it is the last."""
        try:
            await self._peer.ask(request, timeout_ms=timeout_ms)
            started()
            return await self._ended
        finally:
            self._stop(request)

    async def stop(self, request: StartToGet) -> None:
        """Ask for no more, and take what was on its way until that is answered; it is over then, one way or another."""
        try:
            await self._peer.ask(self._stopping(request), timeout_ms=PRESENT_MS)
        except ClymqError as error:
            self._lost(error)
        else:
            self._lost(None)

    def credit(self, cost_bytes: int) -> None:
        """Let the broker send so much more."""
        self._peer.tell(Credit(self.number, cost_bytes), now=True)

    def _delivered(self, pub: Pub, payload: memoryview) -> None:
        try:
            if not pub.error:
                self._on_pub(pub, payload)
            elif not self._ended.done():
                self._ended.set_result(pub)
        except ClymqError as error:
            if not self._ended.done():
                self._ended.set_exception(error)

    def _lost(self, reason: ClymqError | None) -> None:
        if not self._ended.done():
            self._ended.set_exception(ConnectionLost(f"the connection with {self._peer} ended: {reason}"))

    def _stop(self, request: StartToGet) -> None:
        """Take no more. What is on its way is still taken: leases must not get lost."""
        if self._ended.done():
            if not self._ended.cancelled():
                self._ended.exception()
            self._presence.expect_no_more(self.number)
            return
        self._ended.cancel()
        over = self._stopping(request)
        try:
            self._peer.ask_soon(over, (), lambda _: self._presence.expect_no_more(self.number), timeout_ms=PRESENT_MS)
        except ClymqError:
            self._presence.expect_no_more(self.number)

    def _stopping(self, request: StartToGet) -> StartToGet:
        return StartToGet(
            request.topic, request.partition, request.uid, request.mode, request.consumer, self.number, stop=True
        )


def error_of(pub: Pub) -> ClymqError:
    """Return why a stream has ended."""
    if pub.error == OffsetOutOfRange.code:
        return OffsetOutOfRange(pub.range.start, first=pub.range.start, end=pub.high_watermark, hint=pub.problem)
    return error_named(pub.error, pub.problem, pub.hint or None)


class PushedReader(PartitionReader):
    """A reader that is sent its batches; all else is as with any reader."""

    def __init__(
        self,
        cluster: Cluster,
        presence: Presence,
        topic: str,
        partition: str,
        *,
        consumer: str,
        group: str | None,
        offset: int,
        share_bytes: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(
            cluster,
            topic,
            partition,
            consumer=consumer,
            group=group,
            offset=offset,
            share_bytes=share_bytes,
            on_change=on_change,
            mode=Mode.PSB_PUSH,
        )
        self._presence = presence
        self._push: Push | None = None
        self._costs: deque[tuple[int, int]] = deque()

    def take(self, messages_max: int) -> Run | None:
        """Take messages of one batch, and give credit for deliveries that are taken as a whole."""
        run = super().take(messages_max)
        while self._costs and self._costs[0][0] <= self._taken:
            _, cost_bytes = self._costs.popleft()
            if self._push is not None:
                self._push.credit(cost_bytes)
        return run

    async def _pull(self, route: ReadRoute, address: str) -> None:
        """Take what one broker sends until it has no more of it."""
        peer = await self._cluster.peer(address)
        await self._presence.greet(peer)
        self._costs.clear()
        self._push = Push(self._presence, peer, self._delivered)
        request = StartToGet(
            self.topic,
            self.partition,
            route.uid,
            Mode.PSB_PUSH,
            self._consumer,
            self._push.number,
            group=self.group or "default",
            offset=self._fetched,
            credit_bytes=max(CREDIT_BYTES_MIN, self._share_bytes() - self._kept_bytes),
        )
        try:
            last = await self._push.run(request, self._going_well, self._cluster.config.request_ms_max)
        finally:
            self._push = None
        if last.next_block or last.error == BlockSealed.code:
            self._route_is_stale = True  # the block is read to its end: who has the next one?
        else:
            raise error_of(last)

    def _delivered(self, pub: Pub, payload: memoryview) -> None:
        if self._keep(payload):
            self._on_change()
        self._costs.append((self._fetched, pub.cost_bytes))
        self._going_well()


class PushedLessee(PartitionLessee):
    """A lessee that is sent its messages where the partition is assigned to it; elsewhere it helps out by asking."""

    def __init__(
        self, cluster: Cluster, presence: Presence, topic: str, partition: str, options: LesseeOptions
    ) -> None:
        super().__init__(cluster, presence, topic, partition, options)
        self._push: Push | None = None
        self._request: StartToGet | None = None
        self._costs: deque[list[int]] = deque()  # of each delivery: messages that are kept, bytes of credit
        self._keeping: set[asyncio.Task[None]] = set()
        self._in_turn = asyncio.Lock()

    async def stop(self) -> None:
        """Lease no more; what is on its way is waited for, to be given back."""
        if self._push is not None and self._request is not None:
            await self._push.stop(self._request)
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await super().stop()

    def _may_lease(self) -> bool:
        return self.assigned or super()._may_lease()

    async def _lease(self) -> None:
        if self.assigned:
            await self._be_sent()
        else:
            await super()._lease()

    async def _be_sent(self) -> None:
        """Take what the leader sends, as long as it leads and the partition is assigned to us."""
        route, peer = await self._leader()
        self._costs.clear()
        self._push = push = Push(self._presence, peer, self._delivered)
        self._request = request = StartToGet(
            self.topic,
            self.partition,
            route.uid,
            Mode.PTP_PUSH,
            self._options.consumer,
            push.number,
            group=self.group,
            credit_bytes=max(CREDIT_BYTES_MIN, min(self._options.share_bytes(), LEASED_BYTES_MAX)),
            messages_max=LEASED_MESSAGES_MAX,
            ordered=self._options.ordered,
        )
        sending = asyncio.create_task(push.run(request, self._worked, self._cluster.config.request_ms_max))
        try:
            while self.assigned and not await settled(self._clock, sending, PRESENT_MS):
                self._leased.look()
            if not sending.done():
                await push.stop(request)
                self._leased.give_back()
                return
            last = error_of(sending.result())
        except ClymqError as error:
            last = error
        finally:
            self._push = None
            sending.cancel()
        self._reroute(route, last)
        raise last

    def _delivered(self, pub: Pub, payload: memoryview) -> None:
        if not pub.leases:
            raise RemoteProtocolError(f"a delivery of {pub.topic}/{pub.partition} without a lease")
        count = sum(lease.range.end - lease.range.start for lease in pub.leases)
        self._costs.append([count, pub.cost_bytes])
        keeping = asyncio.create_task(self._keep_quietly(pub, payload))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)

    async def _keep_quietly(self, pub: Pub, payload: memoryview) -> None:
        try:
            # One after the other, as they came: some are read elsewhere first, and by one reader.
            async with self._in_turn:
                await self._keep(pub.leases, payload, elsewhere=pub.locator is not None)
        except ClymqError as error:
            self.problem = error  # what was leased has been given back

    def _gone(self, messages: int) -> None:
        while self._costs and messages >= self._costs[0][0]:
            kept, cost_bytes = self._costs.popleft()
            messages -= kept
            if self._push is not None:
                self._push.credit(cost_bytes)
        if self._costs:
            self._costs[0][0] -= messages
