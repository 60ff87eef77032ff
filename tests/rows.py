"""What the tests of SPEC 7 share: a cluster at test speed, raw requests to its servers, a zkserver that counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from clymq import AsyncConsumer
from clymq.client.cluster import Cluster
from clymq.client.waiting import Deadline
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.metadata.catalog import Catalog
from clymq.protocol import controller as verbs
from clymq.protocol.broker import InitProducer, Push, Pushed
from clymq.protocol.controller import ControllerFound, FindController, ProducerRoute, ProGetBroker
from clymq.protocol.verbs import Reply, Request
from clymq.record import BatchBuilder
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.handlers import answering
from clymq.rpc.peer import Call
from clymq.rpc.server import Server
from clymq.rpc.transport import TcpTransport
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.waiting import until_asked

SESSION_MS = 1800
CONFIG = {
    "session_timeout_ms": SESSION_MS,
    "controller_tick_ms": 200,
    "broker_request_ms_max": 1500,
    "leader_wait_ms_max": 1500,
    "partitions_per_topic_max": 12,
    "balance_ms": 86_400_000,  # on a slow machine leaders would be spread in the middle of a test
}
LONG_SECONDS = 30.0

T = TypeVar("T")
R = TypeVar("R", bound=Reply)


def run(work: Coroutine[Any, Any, T], *, seconds_max: float = 60) -> T:
    """Run one test; few take longer than a minute."""

    async def limited() -> T:
        async with asyncio.timeout(seconds_max):
            return await work

    return asyncio.run(limited())


def descriptors() -> set[tuple[str, Path]]:
    """What this process has open, and by which number. Others in it, like the fixture's cluster, may close theirs."""
    found = set()
    for path in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # the folder itself, and what has just been closed
            found.add((path.name, path.readlink()))
    return found


class Asking:
    """Sends single verbs to the servers of a cluster."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self._client = Cluster(cluster.bootstrap, name="rows", role="admin", surroundings=None)

    async def __aenter__(self) -> Asking:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def server(self, name: str, request: Request[R], payload: Sequence[bytes] = (), *, seconds: float = 10) -> R:
        address = self.cluster.addresses[name]
        return (await self._client.ask(address, request, payload, timeout_ms=1000 * seconds)).reply

    async def controller(self, request: Request[R], *, seconds: float = LONG_SECONDS) -> R:
        return await self._client.ask_controller(request, Deadline(self._client.clock, seconds))

    async def active(self) -> str:
        """Return the name of the active zkserver."""
        return next(each.name for each in (await self.controller(verbs.Status())).zkservers if each.active)

    async def route(self, topic: str, partition: str = "0") -> ProducerRoute:
        return await self.controller(ProGetBroker(topic, partition))


@dataclass
class RawProducer:
    """A producer that sends exactly what it is told."""

    asking: Asking
    topic: str
    partition: str
    uid: str
    name: str = "raw"
    epoch: int = 0
    next: int = 1
    ack: int = -1

    @classmethod
    async def begin(
        cls, asking: Asking, topic: str, partition: str = "0", name: str = "raw", *, ack: int = -1
    ) -> RawProducer:
        route = await asking.route(topic, partition)
        producer = cls(asking, topic, partition, route.uid, name, ack=ack)
        request = InitProducer(topic, partition, route.uid, name)

        async def initialised() -> bool:
            """A leader takes a moment to be elected, and to be ready."""
            try:
                ready = await asking.server(await asking.cluster.leading(topic, partition), request)
            except ClymqError as error:
                if not error.retriable:
                    raise
                return False
            producer.epoch, producer.next = ready.epoch, ready.next
            return True

        await until_asked(initialised, f"{topic}/{partition} knows {name}", seconds_max=LONG_SECONDS)
        return producer

    def batch(self, *values: bytes, cmdindex: int | None = None) -> bytes:
        builder = BatchBuilder().add_values(list(values))
        return builder.build(producer=self.name, cmdindex=self.next if cmdindex is None else cmdindex, epoch=self.epoch)

    async def push(
        self, data: bytes, *, cmdindex: int | None = None, to: str | None = None, seconds: float = 10
    ) -> Pushed:
        """Push to a broker, or to whoever leads."""
        broker = to or await self.asking.cluster.leading(self.topic, self.partition)
        number = self.next if cmdindex is None else cmdindex
        request = Push(self.topic, self.partition, self.uid, self.name, number, ack=self.ack)
        return await self.asking.server(broker, request, [data], seconds=seconds)


@asynccontextmanager
async def tree(cluster: ProcessCluster) -> AsyncIterator[Catalog]:
    """What lies in the store."""
    store = await cluster.connect()
    try:
        yield Catalog(store)
    finally:
        await store.close()


async def values(cluster: ProcessCluster, topic: str, partition: str = "0", *, offset: int = 0) -> list[bytes]:
    """Read everything up to the present end."""
    found: list[bytes] = []
    async with AsyncConsumer(cluster.bootstrap) as consumer:
        end = (await consumer.end_offsets(topic))[partition]
        await consumer.assign(topic, partition, offset)
        while offset + len(found) < end:
            messages = await consumer.pull(timeout=LONG_SECONDS)
            assert [message.offset for message in messages] == list(
                range(offset + len(found), offset + len(found) + len(messages))
            )
            found += [message.value for message in messages]
    return found


def block_folders(cluster: ProcessCluster, topic: str, brokers: Iterable[str] | None = None) -> list[Path]:
    """Return the folders of a topic's blocks, on all brokers or some."""
    names = cluster.brokers if brokers is None else brokers
    return sorted(folder for name in names for folder in cluster.data(name).glob(f"{topic}~*/*/Block_*"))


@asynccontextmanager
async def forwarding(cluster: ProcessCluster, lie: dict[str, ProducerRoute] | None = None) -> AsyncIterator[Forwarder]:
    """A zkserver that forwards everything and counts it; `lie`: what it says first when asked who leads a topic."""
    async with Asking(cluster) as asking:
        forwarder = Forwarder(asking, lie or {})
        await forwarder.server.start("127.0.0.1:0")
        try:
            yield forwarder
        finally:
            await forwarder.server.close()


class Forwarder:
    def __init__(self, asking: Asking, lies: dict[str, ProducerRoute]) -> None:
        self.counts: Counter[str] = Counter()
        self._asking = asking
        self._lies = lies
        kinds = (verbs.DescribeTopic, verbs.ProGetBroker, verbs.CreateTopic, verbs.CreatePart, FindController)
        handlers = dict.fromkeys(kinds, answering(self._answer))
        self.server = Server(
            TcpTransport(), Endpoint(SystemClock(), Config(), name="forwarder", role="zkserver", handlers=handlers)
        )

    @property
    def address(self) -> str:
        return self.server.address

    async def _answer(self, call: Call) -> Reply:
        request = call.request
        self.counts[type(request).__name__] += 1
        if isinstance(request, FindController):
            return ControllerFound("forwarder", self.address)
        if isinstance(request, ProGetBroker) and request.topic in self._lies:
            return self._lies.pop(request.topic)
        reply: Reply = await self._asking.controller(request)
        return reply


async def pushed(raw: RawProducer, data: bytes, *, cmdindex: int | None = None) -> Pushed:
    """Push until it is answered: a new leader takes a moment to be ready."""
    answers: list[Pushed] = []

    async def attempt() -> bool:
        try:
            answers.append(await raw.push(data, cmdindex=cmdindex, seconds=2))
        except ClymqError as error:
            if not (error.retriable or error.refresh):
                raise
        return bool(answers)

    await until_asked(attempt, "a push is answered", seconds_max=LONG_SECONDS)
    return answers[0]


async def roll(asking: Asking, topic: str, partition: str = "0", *, brokers: tuple[str, ...] = ()) -> int:
    """Move a partition to its next block, where the ring says or to these brokers; return the block's number."""
    route = await asking.route(topic, partition)
    if brokers:
        await asking.controller(verbs.MovePartition(topic, partition, brokers))
    else:
        request = verbs.RollBlock(topic, partition, route.uid, route.block, route.epoch, route.broker, "size")
        await asking.controller(request)

    async def moved() -> bool:
        return (await asking.route(topic, partition)).block > route.block

    await until_asked(moved, f"{topic}/{partition} has moved", seconds_max=LONG_SECONDS)
    return (await asking.route(topic, partition)).block


async def is_online(asking: Asking, broker: str, wanted: bool) -> bool:
    status = await asking.controller(verbs.Status())
    return next(each.online for each in status.brokers if each.name == broker) is wanted


async def refusal(work: Coroutine[Any, Any, Any]) -> ClymqError:
    """Return the error that something is refused with."""
    try:
        answer = await work
    except ClymqError as error:
        return error
    raise AssertionError(f"it was not refused: {answer}")
