"""Consumers that say exactly what they are told, over real connections, to the servers of a cluster in this process."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer, Message
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, PartitionUnset, UnknownPartition, UnknownTopic
from clymq.protocol import broker as wire
from clymq.protocol.controller import ConGetBroker, ReadRoute, Sub
from clymq.protocol.verbs import Done, Reply, Request
from clymq.record import Batch, Kind
from clymq.rpc.client import Link
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Answer, Call
from clymq.rpc.transport import TcpTransport
from clymq.testing import LocalCluster
from clymq.testing.local_cluster import ZKSERVER
from clymq.testing.waiting import until_asked
from clymq.types import Mode

R = TypeVar("R", bound=Reply)
ASK_MS = 10_000
# No election and no move because the machine has other things to do: what a leader has leased is to stay with it.
PATIENT = {
    "controller_tick_ms": 200,
    "election_ms_min": 3000,
    "election_ms_max": 5000,
    "heartbeat_ms": 100,
    "balance_ms": 86_400_000,
}
SECONDS = 30.0


@dataclass
class Leased:
    """What one answer or delivery gave: leases, and the values of the messages in them."""

    leases: tuple[wire.Lease, ...]
    values: dict[int, bytes]
    locator: wire.Locator | None = None

    @property
    def offsets(self) -> list[int]:
        return [offset for lease in self.leases for offset in range(lease.range.start, lease.range.end)]

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(lease.lease for lease in self.leases)

    @property
    def ranges(self) -> tuple[wire.OffsetRange, ...]:
        return tuple(lease.range for lease in self.leases)


@dataclass
class RawConsumer:
    """One consumer of one group and topic. `routes` are by partition."""

    cluster: LocalCluster
    topic: str
    name: str
    group: str = "default"
    mode: int = Mode.PTP_PULL
    routes: dict[str, ReadRoute] = field(default_factory=dict)
    published: list[tuple[wire.Pub, bytes]] = field(default_factory=list)
    answers_pings: bool = True
    pings: int = 0
    patience_ms: int = ASK_MS
    """A broker that is silent for longer may be gone: who leads is asked again."""

    def __post_init__(self) -> None:
        self._endpoint = Endpoint(
            SystemClock(),
            Config(),
            name=self.name,
            role="consumer",
            handlers={wire.PingPong: self._pinged, wire.Pub: self._published},
        )
        self._links: dict[str, Link] = {}

    async def ask_at(
        self, address: str, request: Request[R], payload: Sequence[bytes] = (), *, timeout_ms: float = ASK_MS
    ) -> Answer[R]:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(TcpTransport(), address, self._endpoint, chance=random.random)
            link.start()
        return await link.ask(request, payload, timeout_ms=timeout_ms)

    async def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()

    def _pinged(self, call: Call) -> None:
        self.pings += 1
        if self.answers_pings:
            call.reply(Done())

    def _published(self, call: Call) -> None:
        self.published.append((call.request, bytes(call.payload)))

    # --- Where to go ---

    async def subscribe(self) -> None:
        await self.ask_at(self.cluster.addresses[ZKSERVER], Sub(self.topic, self.name, self.mode, self.group))
        await self.find()

    async def find(self, offset: int = 0) -> None:
        """Ask where to read, until every partition has a place."""
        request = ConGetBroker(self.topic, self.name, self.mode, self.group, offset=offset)

        async def found() -> bool:
            routes = (await self.ask_at(self.cluster.addresses[ZKSERVER], request)).reply.routes
            self.routes = {route.partition: route for route in routes}
            return all(not route.error for route in routes)

        await until_asked(found, f"{self.name} knows where to read {self.topic}", seconds_max=SECONDS)

    async def ask(self, request: Request[R], partition: str = "0") -> Answer[R]:
        """Ask the leader."""
        return await self.ask_at(self.routes[partition].address, request)

    async def ask_whoever_leads(self, request: Request[R], partition: str = "0") -> Answer[R]:
        """Ask, and look for the leader whenever it is somewhere else."""
        answers: list[Answer[R]] = []
        timeout_ms = self.patience_ms + getattr(request, "wait_ms_max", 0)

        async def asked() -> bool:
            try:
                answers.append(await self.ask_at(self.routes[partition].address, request, timeout_ms=timeout_ms))
            except ClymqError as error:
                if not (error.retriable or error.refresh):
                    raise
                await self.find()
            return bool(answers)

        await until_asked(asked, f"{type(request).__name__} is answered", seconds_max=SECONDS)
        return answers[0]

    # --- Point to point ---

    def pull_request(self, partition: str = "0", *, wait_ms: int = 0, count: int = 0, **more: object) -> wire.Pull:
        return wire.Pull(
            self.topic,
            partition,
            self.routes[partition].uid,
            mode=Mode.PTP_PULL,
            group=self.group,
            consumer=self.name,
            messages_max=count,
            wait_ms_max=wait_ms,
            **more,
        )

    async def pull(self, partition: str = "0", *, wait_ms: int = 0, count: int = 0, **more: object) -> Leased:
        answer = await self.ask(self.pull_request(partition, wait_ms=wait_ms, count=count, **more), partition)
        return Leased(answer.reply.leases, values_in(answer.payload, answer.reply.leases), answer.reply.locator)

    def about(self, kind: type[R], leased: Leased | Sequence[int], partition: str = "0", **more: object) -> R:
        """Make a request about leases."""
        numbers = leased.numbers if isinstance(leased, Leased) else tuple(leased)
        uid = self.routes[partition].uid
        return kind(self.topic, partition, uid, self.group, self.name, numbers, **more)

    async def ack(self, leased: Leased | Sequence[int], partition: str = "0", **more: object) -> None:
        await self.ask(self.about(wire.Ack, leased, partition, **more), partition)

    async def nack(self, leased: Leased | Sequence[int], partition: str = "0", **more: object) -> None:
        await self.ask(self.about(wire.Nack, leased, partition, **more), partition)


def values_in(payload: memoryview | bytes, leases: Sequence[wire.Lease]) -> dict[int, bytes]:
    """Return the values of the messages that are leased, by offset."""
    values: dict[int, bytes] = {}
    position = 0
    while position < len(payload):
        batch = Batch.parse(payload, position)
        if batch.kind == Kind.DATA:
            values.update({record.offset: record.value for record in batch})
        position += batch.length
    return {
        offset: values[offset]
        for lease in leases
        for offset in range(lease.range.start, lease.range.end)
        if offset in values
    }


@asynccontextmanager
async def consuming(
    cluster: LocalCluster, topic: str, *names: str, **facts: object
) -> AsyncIterator[list[RawConsumer]]:
    """Consumers that are subscribed."""
    consumers = [RawConsumer(cluster, topic, name, **facts) for name in names]
    try:
        for consumer in consumers:
            await consumer.subscribe()
        yield consumers
    finally:
        for consumer in consumers:
            await consumer.close()


async def make_topic(cluster: LocalCluster, topic: str, **facts: Any) -> None:
    async with AsyncAdmin(cluster.bootstrap) as admin:
        await admin.create_topic(topic, **facts)


async def push_values(cluster: LocalCluster, topic: str, values: Sequence[bytes], *, partition: str = "0") -> None:
    async with AsyncProducer(cluster.bootstrap) as producer:
        await producer.push_many(topic, list(values), partition=partition)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def dead_letters(cluster: LocalCluster, topic: str, count: int) -> list[Message]:
    """Return the dead letters of a topic's first partition, once there are so many."""
    async with AsyncConsumer(cluster.bootstrap) as consumer:

        async def arrived() -> bool:
            try:
                return (await consumer.end_offsets(f"{topic}.dlq")).get("0", 0) >= count
            except (UnknownTopic, UnknownPartition, PartitionUnset):
                return False

        await until_asked(arrived, f"{count} dead letters are there", seconds_max=SECONDS)
        end = (await consumer.end_offsets(f"{topic}.dlq"))["0"]
        await consumer.assign(f"{topic}.dlq", "0")
        letters: list[Message] = []
        while len(letters) < end:
            letters += list(await consumer.pull(timeout=SECONDS))
        return letters
