"""Clients of a server that lies: each operation must end, with an answer or with an error of ours.

The server answers as a cluster of one broker would, except for the verbs that the input has lies for: those are
answered with them, whatever they are. Time is virtual; everything else of the client is as it is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.client.surroundings import Surroundings
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError, NotLeader
from clymq.protocol import broker as of_brokers
from clymq.protocol import controller as of_controller
from clymq.protocol.connection import Asked, Connection, Opened, Pinged
from clymq.protocol.failures import encode_error
from clymq.protocol.frames import Buffer, Kind, frame
from clymq.protocol.handshake import Hello, Window
from clymq.protocol.hosting import ReplicaPlace
from clymq.protocol.verbs import Done, Reply, Verb, by_name, verb_of
from clymq.record import Batch, BatchBuilder
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.transport import Wire
from clymq.simulation.fuzz.batches import mended
from clymq.simulation.fuzz.hearing import Hearing
from clymq.simulation.fuzz.messages import Drawing
from clymq.simulation.fuzz.mutation import spoilt
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated
from clymq.types import Mode

ADDRESS: Final = "s:1"
SECONDS: Final = 2.0
TICK_MS: Final = 25
TICKS_MAX: Final = 8_000
TURNS_PER_TICK: Final = 8
MESSAGES: Final = 3
_LENGTH: Final = struct.Struct("<I")
_PLAUSIBLE: Final = {
    "topic": ("t",), "partition": ("0",), "uid": ("u",), "address": (ADDRESS, "s:2"), "broker": ("B",), "block": (1, 2),
    "error": ("", "NotLeader", "OffsetOutOfRange", "Nobody"), "offset": (0, 1, 3), "start": (0, 1), "end": (3, -1),
    "topics": (["t"],), "subscription": (1, 2),
}  # fmt: skip

Lies = dict[str, tuple[bytes, bytes, bytes]]
"""By the name of a verb: R or E (an answer or an error), header, payload."""
Work = Callable[[Surroundings], Awaitable[object]]


class Clients(Target):
    """The first part names an operation; each of the others is a lie."""

    name = "client"
    full = 20_000
    usual = 300
    seconds_max = 30.0
    bytes_max = 24 * MiB
    wanted = ("done", "refused")

    def open(self) -> None:
        """Prepare lies and operations."""
        self._drawing = Drawing(_PLAUSIBLE, absurd=0.25)
        self._batch = _batch()
        self._hearing = Hearing()
        self._hearing.start()

    def close(self) -> None:
        """Stop listening."""
        self._hearing.close()

    def make(self, chance: Random) -> Input:
        """Choose an operation and lies about what it is going to ask."""
        name = chance.choice(list(OPERATIONS))
        verbs = [verb for verb in _ASKED if verb.name in OPERATIONS[name][1]]
        chosen = chance.sample(verbs, min(len(verbs), chance.choice((1, 1, 2, 4))))
        return name.encode(), *(self._lie(chance, verb) for verb in chosen)

    def run(self, given: Input) -> str:
        """Do what the operation does, at a server that tells these lies."""
        lies = dict(filter(None, map(_told, given[1:])))
        work = OPERATIONS.get(given[0].decode("utf-8", "replace"), OPERATIONS["status"])[0]
        outcome = asyncio.run(self._drive(work, lies))
        self._hearing.check()
        return outcome

    async def _drive(self, work: Work, lies: Lies) -> str:
        asyncio.get_running_loop().set_exception_handler(self._hearing.of_loop)
        clock = ManualClock()
        network = MemoryNetwork(clock)
        await network.transport("s").listen(ADDRESS, lambda wire: _Liar(wire, lies, self._batch).start())
        around = Surroundings(network.transport("c"), clock, Config(), Random(1).random)
        task = asyncio.create_task(_outcome(work(around)))
        await _pass_time(clock, task)
        # Whatever is going to end by itself has ended by then.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            await _pass_time(clock, other)
        return task.result()

    def _lie(self, chance: Random, verb: Verb) -> bytes:
        error = verb.reply is not None and chance.random() < 0.15
        if error:
            header = encode_error(NotLeader("no", hint=chance.choice((ADDRESS, "s:2", "nowhere", None))))
            header = spoilt(chance, header, front=40)
        else:
            header = self._drawing.header(chance, verb.reply or verb.message)
        payload = b""
        if verb.name in {"Pull", "Pub"}:
            payload = b"".join(self._payload(chance) for _ in range(chance.choice((0, 1, 1, 2))))
        kind = b"E" if error else b"R"
        return verb.name.encode() + b"\0" + kind + _LENGTH.pack(len(header)) + header + payload

    def _payload(self, chance: Random) -> bytes:
        if chance.random() < 0.4:
            return self._batch
        data = spoilt(chance, self._batch)
        return mended(data) if chance.random() < 0.6 else data


async def _outcome(work: Awaitable[object]) -> str:
    try:
        await work
    except ClymqError:
        return "refused"
    return "done"


async def _pass_time(clock: ManualClock, task: asyncio.Task[Any]) -> None:
    for _ in range(TICKS_MAX):
        for _ in range(TURNS_PER_TICK):
            await asyncio.sleep(0)
        if task.done():
            return
        clock.advance(TICK_MS)
    task.cancel()
    raise Violated(f"still waiting after {TICKS_MAX * TICK_MS / 1000:.0f} s of virtual time: {task}")


def _told(part: bytes) -> tuple[str, tuple[bytes, bytes, bytes]] | None:
    name, _, rest = part.partition(b"\0")
    if by_name(name.decode("utf-8", "replace")) is None or len(rest) < 5:
        return None
    (length,) = _LENGTH.unpack_from(rest, 1)
    return name.decode(), (rest[:1], rest[5 : 5 + length], rest[5 + length :])


# --- The server ---


class _Liar:
    """One connection of the lying server."""

    def __init__(self, wire: Wire, lies: Lies, batch: bytes) -> None:
        window = Window(requests=64, bytes=1 << 24, partition_requests=16, partition_bytes=1 << 22)
        self._connection = Connection(Hello("B", "broker", window, 1 << 26))
        self._wire = wire
        self._lies = lies
        self._batch = batch

    def start(self) -> None:
        self._wire.start(self)

    def get_buffer(self) -> memoryview:
        return self._connection.get_buffer()

    def closed(self, error: object) -> None:
        """Nothing to be done."""

    def received(self, count: int) -> None:
        for event in self._connection.received(count):
            if isinstance(event, Opened):
                self._send(self._connection.hello())
            elif isinstance(event, Pinged):
                self._send(self._connection.pong(event.correlation))
            elif isinstance(event, Asked):
                self._answer(event)

    def _answer(self, event: Asked) -> None:
        lie = self._lies.get(event.verb.name)
        if lie is not None:
            kind, header, payload = lie
            code = Kind.ERROR if kind == b"E" else Kind.REPLY
            self._send(frame(code, event.verb.number, 1, event.correlation, header, [payload]))
        else:
            self._answer_honestly(event)
        if event.verb.message is of_brokers.StartToGet:
            self._publish(event.message)

    def _answer_honestly(self, event: Asked) -> None:
        request = event.message
        if isinstance(request, of_brokers.Pull):
            if request.offset < MESSAGES:
                self._send(self._connection.reply(event.correlation, event.verb, _PULLED, [self._batch]))
            return  # nothing more will come, and it waits
        reply = _HONEST.get(type(request), Done())
        if type(reply) is event.verb.reply:
            self._send(self._connection.reply(event.correlation, event.verb, reply))
        else:
            self._send(self._connection.fail(event.correlation, NotLeader("not here")))

    def _publish(self, request: of_brokers.StartToGet) -> None:
        lie = self._lies.get("Pub")
        if lie is not None:
            self._send(frame(Kind.ONE_WAY, verb_of(of_brokers.Pub).number, 1, 0, lie[1], [lie[2]]))
            return
        everything = of_brokers.OffsetRange(0, MESSAGES)
        leases = _PULLED.leases if request.mode == Mode.PTP_PUSH else ()
        pub = of_brokers.Pub(request.subscription, "t", "0", everything, leases, high_watermark=MESSAGES, block=1)
        self._send(self._connection.tell(pub, [self._batch]))

    def _send(self, made: tuple[list[Buffer], int]) -> None:
        self._wire.write(*made)


_PULLED: Final = of_brokers.Pulled(
    MESSAGES, 0, 1, leases=(of_brokers.Lease(1, of_brokers.OffsetRange(0, MESSAGES), 1, 1000),)
)
_PLACE: Final = ReplicaPlace("B", "d", ADDRESS)
_PARTITION: Final = of_controller.PartitionStatus("t", "0", -1, ("B",), ("B",), "B", 1, 1, 0, MESSAGES, 0, "u")
_HONEST: Final[dict[type, Reply]] = {
    of_controller.FindController: of_controller.ControllerFound("Z", ADDRESS, 1),
    of_controller.DescribeTopic: of_controller.TopicDescription("t", "id", {}, (_PARTITION,)),
    of_controller.ListTopics: of_controller.TopicList(("t",)),
    of_controller.Status: of_controller.ClusterStatus(),
    of_controller.CreateTopic: of_controller.TopicMade("id", True),
    of_controller.CreatePart: of_controller.PartitionMade("u", True),
    of_controller.SetPartitionState: of_controller.PartitionStateSet("changed"),
    of_controller.ProGetBroker: of_controller.ProducerRoute("u", "B", ADDRESS, -1, 1, 1, 1 << 20, (_PLACE,), 1),
    of_controller.Sub: of_controller.Subscribed("s", True),
    of_controller.ConGetBroker: of_controller.ConsumerRoutes(
        (of_controller.ReadRoute("0", "u", "B", ADDRESS, 1, 0, assigned=True, start=0),), 1
    ),
    of_controller.ListGroups: of_controller.GroupList(()),
    of_controller.ResetGroup: of_controller.GroupList(()),
    of_controller.ListSubs: of_controller.SubscriptionList(()),
    of_controller.DrainBroker: of_controller.DrainProgress(0, 0),
    of_controller.ForceSeal: of_controller.ForceSealed(0, 0),
    of_brokers.InitProducer: of_brokers.ProducerReady(1, 1),
    of_brokers.Push: of_brokers.Pushed(0, 1),
    of_brokers.ConInfo: of_brokers.ConsumerKnown(1000),
    of_brokers.FetchOffset: of_brokers.CommittedOffset(0),
    of_brokers.FindOffset: of_brokers.OffsetFound(0, MESSAGES),
}


def _batch() -> bytes:
    batch = Batch.parse(
        bytearray(BatchBuilder().add_values([b"one", b"two", b"three"]).build(producer="p", cmdindex=1, now=1))
    )
    batch.stamp(base_offset=0, term=1, index=1, append_time=1, commit_index=0)
    return bytes(batch.buffer)


# --- The operations ---


async def _push(around: Surroundings) -> None:
    async with AsyncProducer(ADDRESS, name="p", timeout=SECONDS, surroundings=around) as producer:
        await producer.push("t", b"one", key=b"k")
        await producer.push_many("t", [b"two", b"three"], partition="0")


async def _send(around: Surroundings) -> None:
    async with AsyncProducer(ADDRESS, name="p", codec="zstd", timeout=SECONDS, surroundings=around) as producer:
        for _ in range(5):
            producer.send("t", b"one", headers={"h": b"v"})
        await producer.flush()
        await producer.last_cmdindex("t", "0")


def _consume(mode: Mode) -> Work:
    async def work(around: Surroundings) -> None:
        async with AsyncConsumer(ADDRESS, name="c", timeout=SECONDS, surroundings=around) as consumer:
            await consumer.subscribe("t", mode=mode, group="g")
            got = await consumer.pull(10, timeout=0.5)
            if mode in {Mode.PTP_PULL, Mode.PTP_PUSH} and len(got):
                await consumer.extend(got, 1.0)
                await consumer.ack(got)
            list(got)

    return work


async def _assign(around: Surroundings) -> None:
    async with AsyncConsumer(ADDRESS, name="c", timeout=SECONDS, surroundings=around) as consumer:
        await consumer.assign("t", "0", "committed", group="g")
        (await consumer.pull(10, timeout=0.5)).to_arrow()
        await consumer.end_offsets("t")
        await consumer.seek("t", "0", 1)
        await consumer.pull(10, timeout=0.5)
        await consumer.commit()
        await consumer.committed("t", "0")


def _administer(ask: Callable[[AsyncAdmin], Awaitable[object]]) -> Work:
    async def work(around: Surroundings) -> None:
        async with AsyncAdmin(ADDRESS, timeout=SECONDS, surroundings=around) as admin:
            await ask(admin)

    return work


_TO_CONSUME: Final = (
    "FindController",
    "DescribeTopic",
    "Sub",
    "UnSub",
    "ConGetBroker",
    "Pull",
    "ConInfo",
    "Ack",
    "Extend",
)
OPERATIONS: Final[dict[str, tuple[Work, Sequence[str]]]] = {
    "push": (_push, ("FindController", "DescribeTopic", "ProGetBroker", "InitProducer", "Push")),
    "send": (_send, ("FindController", "DescribeTopic", "ProGetBroker", "InitProducer", "Push")),
    "share": (_consume(Mode.PTP_PULL), (*_TO_CONSUME, "Nack")),
    "share pushed": (_consume(Mode.PTP_PUSH), (*_TO_CONSUME, "StartToGet", "Pub", "Nack")),
    "read": (_consume(Mode.PSB_PULL), (*_TO_CONSUME, "FetchOffset", "FindOffset")),
    "read pushed": (_consume(Mode.PSB_PUSH), (*_TO_CONSUME, "StartToGet", "Pub", "FetchOffset")),
    "assign": (_assign, (*_TO_CONSUME, "FetchOffset", "CommitOffset", "FindOffset", "ProGetBroker")),
    "create": (
        _administer(lambda admin: admin.create_topic("t", partitions=2)),
        ("FindController", "CreateTopic", "CreatePart", "SetPartitionState", "DescribeTopic"),
    ),
    "status": (_administer(lambda admin: admin.status()), ("FindController", "Status")),
    "groups": (_administer(lambda admin: admin.groups("t")), ("FindController", "ListGroups")),
    "reset": (_administer(lambda admin: admin.reset_group("t", "g", "earliest")), ("FindController", "ResetGroup")),
    "drain": (_administer(lambda admin: admin.drain("B")), ("FindController", "DrainBroker")),
    "force-seal": (_administer(lambda admin: admin.force_seal("t", "0", trust="B")), ("FindController", "ForceSeal")),
}
_ASKED: Final = tuple(
    verb_of(kind)
    for kind in (
        *_HONEST,
        of_brokers.Pull,
        of_brokers.Pub,
        of_brokers.StartToGet,
        of_brokers.Ack,
        of_brokers.Nack,
        of_brokers.Extend,
        of_brokers.CommitOffset,
        of_controller.UnSub,
    )
)
