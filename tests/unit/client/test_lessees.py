"""Sources of a consumer that talks to nobody: what they do with what comes, and with one another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from clymq import AsyncConsumer
from clymq.client.leases import LOOK_MIN, HeldLeases
from clymq.client.lessee import LesseeOptions, PartitionLessee
from clymq.client.messages import Message
from clymq.client.pushing import Push, PushedLessee
from clymq.client.settling import Nacked
from clymq.errors import ClymqError, InvalidRequest, UnknownLease
from clymq.protocol.broker import Lease, OffsetRange, Pub, Pulled
from clymq.testing.waiting import until_asked

L = TypeVar("L", bound=PartitionLessee)
SECONDS = 10.0


async def _nothing() -> None:
    """There is nothing to prepare."""


def run_with(body: Callable[[AsyncConsumer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body(AsyncConsumer("127.0.0.1:1", name="one")), SECONDS)

    asyncio.run(main())


def lessee_of(consumer: AsyncConsumer, partition: str, kind: type[L]) -> L:
    options = LesseeOptions("one", "default", False, 1.0, lambda: 1, lambda: None, _nothing)
    lessee = kind(consumer._cluster, consumer._presence, "t", partition, options)
    consumer._sources["t", partition] = lessee
    return lessee


def hold(lessee: PartitionLessee, start: int, end: int) -> None:
    lessee.settler.held.add(1, start, end, lessee._clock.monotonic_ms(), 1000.0)


def test_a_partition_without_a_leader_does_not_keep_the_leases_of_others_from_being_prolonged() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        prolonged = {"0": 0, "1": 0}
        for partition in prolonged:
            lessee = lessee_of(consumer, partition, PartitionLessee)
            hold(lessee, 0, 1)

            async def prolong(partition: str = partition) -> None:
                prolonged[partition] += 1
                if partition == "0":
                    await asyncio.Event().wait()

            lessee.settler.prolong = prolong  # type: ignore[method-assign]

        async def twice() -> bool:
            await consumer._host.prolong()
            return prolonged["1"] >= 2

        await until_asked(twice, "the other partition's leases are prolonged again", seconds_max=SECONDS)
        assert prolonged["0"] == 1
        for lessee in consumer._lessees():
            await lessee.close()

    run_with(body)


def test_deliveries_are_kept_one_after_the_other_in_the_order_in_which_they_came() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        lessee = lessee_of(consumer, "0", PushedLessee)
        began: list[int] = []
        may_end = asyncio.Event()

        async def keep(leases: tuple[Lease, ...], payload: memoryview, *, elsewhere: bool) -> None:
            del payload
            began.append(leases[0].lease)
            if elsewhere:
                await may_end.wait()

        lessee._keep = keep  # type: ignore[method-assign,assignment]
        for number, locator in ((1, object()), (2, object()), (3, None)):
            leases = (Lease(number, OffsetRange(number, number + 1), 1, 1000),)
            pub = Pub(1, "t", "0", OffsetRange(number, number + 1), leases, locator=locator)  # type: ignore[arg-type]
            lessee._delivered(pub, memoryview(b""))
        for _ in range(10):
            await asyncio.sleep(0)
        assert began == [1], "the bytes of the first are not here yet"
        may_end.set()
        await asyncio.gather(*lessee._keeping)
        assert began == [1, 2, 3]

    run_with(body)


def test_a_lease_that_has_run_out_does_not_keep_anybody_from_unsubscribing() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        lessee = lessee_of(consumer, "0", PartitionLessee)
        hold(lessee, 0, 1)

        async def give_back() -> None:
            raise UnknownLease("it has run out", leases=[1])

        lessee.settler.give_back = give_back  # type: ignore[method-assign]
        await lessee.give_back()

    run_with(body)


def test_an_ack_of_what_is_not_subscribed_any_more_does_not_keep_the_rest_from_being_acked() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        lessee = lessee_of(consumer, "1", PartitionLessee)
        settled: list[object] = []

        async def settle(end: object, ranges: list[tuple[int, int]]) -> None:
            del end
            settled.extend(ranges)

        lessee.settler.settle = settle  # type: ignore[method-assign,assignment]
        messages = [Message("t", partition, 7, 0, None, b"", (), 1) for partition in ("0", "1")]
        with pytest.raises(UnknownLease):
            await consumer._host.give_back(messages)
        assert settled == [(7, 8)]

    run_with(body)


def test_a_delay_that_no_broker_takes_is_refused_at_once() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        for delay in (-1.0, float("inf"), float("nan"), 1e300):
            with pytest.raises(InvalidRequest):
                await consumer.nack(Message("t", "0", 7, 0, None, b"", (), 1), delay=delay)

    run_with(body)


def test_streams_that_have_ended_leave_nothing_at_their_connection() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        peer: Any = FakePeer()
        await consumer._presence.greet(peer)
        for _ in range(3):
            push = Push(consumer._presence, peer, lambda *_: None)
            request: Any = SimpleNamespace()
            running = asyncio.create_task(push.run(request, lambda: None, 1000))
            await asyncio.sleep(0)
            push._delivered(Pub(push.number, "t", "0", OffsetRange(0, 0), error="NotLeader"), memoryview(b""))
            assert (await running).error == "NotLeader"
        assert len(peer.listeners) == 1
        push = Push(consumer._presence, peer, lambda *_: None)
        running = asyncio.create_task(push.run(request, lambda: None, 1000))
        await asyncio.sleep(0)
        peer.listeners[0](None)
        with pytest.raises(ClymqError):
            await running
        assert consumer._presence._deliveries == {}

    run_with(body)


class FakePeer:
    """A connection on which everything is answered at once."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[ClymqError | None], None]] = []

    def on_closed(self, listener: Callable[[ClymqError | None], None]) -> None:
        self.listeners.append(listener)

    async def ask(self, request: object, *, timeout_ms: float) -> None:
        """There is nothing to say."""


def test_leases_that_nobody_ends_are_forgotten_long_after_their_time() -> None:
    held = HeldLeases()
    for at in range(100 * LOOK_MIN):
        held.add(at, at, at + 1, now_ms=float(at), lease_ms=100)
    assert len(held) <= LOOK_MIN


class SlowLeader:
    """A broker's connection: the answer to a pull is under way when the pull is given up, and comes all the same."""

    def __init__(self) -> None:
        self.late: Callable[[Any], None] = lambda _: None
        self.pulled = asyncio.Event()
        self.asked: list[object] = []

    async def ask(self, request: object, *, timeout_ms: float, late: Callable[[Any], None] | None = None) -> Any:
        del timeout_ms
        self.asked.append(request)
        if late is None:
            leases = (Lease(5, OffsetRange(3, 8), 1, 1000),)
            self.late(SimpleNamespace(reply=Pulled(0, 0, leases=leases)))
            return None
        self.late = late
        self.pulled.set()
        await asyncio.Event().wait()


def test_leases_that_are_under_way_when_a_consumer_closes_are_given_back_unread() -> None:
    async def body(consumer: AsyncConsumer) -> None:
        lessee = lessee_of(consumer, "0", PartitionLessee)
        leader, settled = SlowLeader(), []

        async def find() -> Any:
            return SimpleNamespace(uid="u"), leader

        async def settle(end: object, ranges: list[tuple[int, int]]) -> None:
            settled.append((end, ranges))

        lessee._leader = find  # type: ignore[method-assign]
        lessee.settler.settle = settle  # type: ignore[method-assign,assignment]
        lessee.assign(True)
        lessee.want(1)
        lessee.start()
        await leader.pulled.wait()
        await lessee.close()
        assert settled == [(Nacked(unread=True), [(3, 8)])]
        await lessee.close()
        assert len(leader.asked) == 2, "there is nothing more to hear"

    run_with(body)
