"""Requests with absurd fields, at a real zkserver and a real broker that hold real blocks.

An attacker shakes hands and asks any verb. Each request must be answered, with what it asked for or an error that has
a name, or the connection must end. Now and then a client of good will pushes and pulls: it must not notice.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from random import Random
from typing import Any, Final, TypeVar

from clymq.client.sync.admin import Admin
from clymq.client.sync.consumer import Consumer
from clymq.client.sync.producer import Producer
from clymq.errors import ClymqError, UnknownServerError
from clymq.protocol import broker as of_brokers
from clymq.protocol import controller as of_controller
from clymq.protocol import store as of_store
from clymq.protocol.connection import Connection, Failed, Ponged
from clymq.protocol.frames import Kind, frame
from clymq.protocol.handshake import Hello, Window
from clymq.protocol.hosting import CloseAccept, PrepareAccept
from clymq.protocol.verbs import Reply, Request, by_number
from clymq.record import BatchBuilder
from clymq.rpc.transport import parse_address
from clymq.simulation.fuzz.batches import mended
from clymq.simulation.fuzz.hearing import Hearing
from clymq.simulation.fuzz.messages import VERBS, Drawing, Plausible
from clymq.simulation.fuzz.mutation import spoilt
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated
from clymq.testing.local_cluster import ZKSERVER, LocalCluster
from clymq.types import Ack

BROKER: Final = "Broker0"
TOPIC: Final = "attacked"
PARTITIONS: Final = {"0": Ack.QUORUM, "1": Ack.LEADER}
WELL: Final = "well"
ANSWER_SECONDS_MAX: Final = 60.0
# After so many inputs the topic that was attacked is thrown away: some requests rightly end a block for good.
_ANEW_EVERY: Final = 400
_MESSAGES: Final = 20
_LAST_PING: Final = 2**40


R = TypeVar("R", bound=Reply)


class Servers(Target):
    """The first part says who is asked; each of the others is a frame without its prefix: kind, verb, header."""

    name = "cluster"
    full = 20_000
    usual = 400
    seconds_max = 90.0
    waits = True
    bytes_max = None
    reserve_bytes = None
    grown_bytes_max = 96 * MiB
    wanted = ("answered",)

    def open(self) -> None:
        """Start a cluster with a topic to be attacked and one to be used meanwhile."""
        self._hearing = Hearing()
        self._hearing.start()
        # Nothing that is asked may wait for longer than we do.
        self._cluster = LocalCluster(brokers=1, config={"move_wait_ms_max": 1000, "leader_wait_ms_max": 200})
        self._cluster.open()
        self._admin = Admin(self._cluster.bootstrap)
        self._admin.create_topic(WELL)
        self._ran = 0
        self._uids: dict[str, str] = {}
        self._session = 0
        self._begin_anew()

    def close(self) -> None:
        """End it."""
        self._admin.close()
        self._cluster.close()
        self._hearing.close()

    def make(self, chance: Random) -> Input:
        """Draw some requests; what is known only when a topic is there is filled in when they are sent."""
        who = chance.choice((BROKER, BROKER, ZKSERVER))
        return who.encode(), *(_request(chance, who) for _ in range(chance.choice((1, 2, 5, 10))))

    def run(self, given: Input) -> str:
        """Send them over one connection, and read the answers."""
        if self._ran % _ANEW_EVERY == _ANEW_EVERY - 1:
            self._begin_anew()
        self._ran += 1
        who = given[0].decode("utf-8", "replace")
        address = self._cluster.addresses.get(who, self._cluster.addresses[BROKER])
        with _Attacker(address) as attacker:
            outcome = attacker.ask([self._filled_in(part) for part in given[1:]])
        self._hearing.check()
        return outcome

    def look(self) -> None:
        """Use the cluster as one should: what is pushed can be pulled."""
        values = [b"%d" % number for number in range(_MESSAGES)]
        with Producer(self._cluster.bootstrap) as producer:
            first = producer.push_many(WELL, values).ranges[0][1]
        with Consumer(self._cluster.bootstrap) as consumer:
            consumer.assign(WELL, "0", first or 0)
            got: list[bytes] = []
            while len(got) < len(values):
                pulled = consumer.pull(timeout=ANSWER_SECONDS_MAX)
                if not len(pulled):
                    raise Violated(f"only {len(got)} of {len(values)} messages can be pulled")
                got += [message.value for message in pulled]
        if got != values:
            raise Violated("what was pulled is not what was pushed")
        self._hearing.check()

    def _begin_anew(self) -> None:
        """Have a new topic to attack, with some messages in it."""
        with suppress(ClymqError):
            self._admin.delete_topic(TOPIC)
        self._admin.create_topic(TOPIC, partitions=list(PARTITIONS))
        for partition, ack in PARTITIONS.items():
            self._admin.set_partition_state(TOPIC, partition, ack=ack)
        with Producer(self._cluster.bootstrap) as producer:
            for partition in PARTITIONS:
                producer.push_many(TOPIC, [b"x" * 100] * 50, partition=partition)
        with _Attacker(self._cluster.addresses[ZKSERVER]) as attacker:
            found = attacker.answer(of_controller.DescribeTopic(TOPIC))
            self._session = attacker.answer(of_store.StoreOpenSession(600_000)).session
        self._uids = {each.partition: each.uid for each in found.partitions}

    def _filled_in(self, part: bytes) -> tuple[int, int, bytes, bytes]:
        """Return kind, verb, header and payload, with the uids and the session that there are now."""
        kind, verb = part[0] if part else 0, int.from_bytes(part[1:3], "little")
        end = 7 + int.from_bytes(part[3:7], "little")
        header = part[7:end].replace(_SESSION.to_bytes(8, "big"), self._session.to_bytes(8, "big"))
        for partition, uid in self._uids.items():
            header = header.replace(_uid_place(partition).encode(), uid.encode())
        return kind, verb, header, part[end:]


class _Attacker:
    """One connection, by hand."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(parse_address(address), timeout=ANSWER_SECONDS_MAX)
        window = Window(requests=64, bytes=1 << 24, partition_requests=16, partition_bytes=1 << 22)
        self._connection = Connection(Hello("attacker", "client", window, 1 << 26))

    def __enter__(self) -> _Attacker:
        self._send(self._connection.hello())
        self._events()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, frames: list[tuple[int, int, bytes, bytes]]) -> str:
        """Send all of them; return when each is answered, or the connection has ended."""
        expected = set()
        for number, (kind, verb, header, payload) in enumerate(frames, 1):
            correlation = 0 if kind == Kind.ONE_WAY else number
            self._send(frame(kind, verb, 1, correlation, header, [payload]))
            if kind == Kind.REQUEST:
                expected.add(number)
        self._send(self._connection.ping(_LAST_PING))
        ponged = False
        while expected or not ponged:
            events = self._events()
            if events is None:
                return "dropped"
            for event in events:
                ponged = ponged or isinstance(event, Ponged)
                expected.discard(getattr(event, "correlation", 0))
                if isinstance(event, Failed) and isinstance(event.error, UnknownServerError):
                    raise Violated(f"{_verb_name(frames, event.correlation)}: {event.error}")
        return "answered"

    def answer(self, request: Request[R]) -> R:
        """Ask one thing and return the answer."""
        self._send(self._connection.ask(1, request))
        events = self._events()
        if not events:
            raise Violated("the connection ended")
        found: R = events[0].reply
        return found

    def _send(self, made: tuple[list[Any], int]) -> None:
        with suppress(ConnectionError):  # it was dropped: reading tells
            self._socket.sendall(b"".join(made[0]))

    def _events(self) -> list[Any] | None:
        """Wait for the next events; None: the connection has ended."""
        while True:
            room = self._connection.get_buffer()
            try:
                count = self._socket.recv_into(room)
            except TimeoutError:
                raise Violated(f"no answer within {ANSWER_SECONDS_MAX:g} s") from None
            except ConnectionError:
                count = 0
            del room
            if not count:
                return None
            events = self._connection.received(count)
            if events:
                return events


def _verb_name(frames: list[tuple[int, int, bytes, bytes]], correlation: int) -> str:
    known = by_number(frames[correlation - 1][1]) if 0 < correlation <= len(frames) else None
    return known.name if known is not None else "something"


# --- What is asked ---


def _request(chance: Random, who: str) -> bytes:
    """Draw a request, most of the time one that this server serves."""
    verb = chance.choice(_SERVED[who] if chance.random() < 0.97 else VERBS)
    while verb.message in _NEVER or (verb.message in _SELDOM and chance.random() < 0.95):
        verb = chance.choice(_SERVED[who])
    header = chance.choice(_DRAWINGS).header(chance, verb.message)
    payload = _payload(chance) if verb.message is of_brokers.Push or chance.random() < 0.05 else b""
    kind = Kind.ONE_WAY if verb.reply is None else Kind.REQUEST
    return bytes([kind]) + verb.number.to_bytes(2, "little") + len(header).to_bytes(4, "little") + header + payload


def _payload(chance: Random) -> bytes:
    builder = BatchBuilder(chance.choice(("none", "lz4", "zstd"))).add_values([b"v" * 10] * chance.choice((1, 3, 50)))
    data = builder.build(producer=PRODUCER, cmdindex=chance.choice((1, 1, 2)), epoch=chance.choice((0, 1, 1, 2)), now=1)
    way = chance.random()
    if way < 0.5:
        return data
    data = spoilt(chance, data)
    return mended(data) if way < 0.85 else data


def _uid_place(partition: str) -> str:
    """Return what stands for the uid of a partition until it is known; as long as one is."""
    return f"uid-of-{partition}".ljust(32, ".")


def _plausible(partition: str) -> Plausible:
    """Return what to ask about one of the partitions, and of everybody else nothing."""
    return {
        "topic": (TOPIC,),
        "partition": (partition,),
        "uid": (_uid_place(partition),),
        "producer": (PRODUCER,),
        "group": ("g", "default"),
        "consumer": ("c", "d"),
        "block": (0, 1, 1, 2),
        "epoch": (0, 1, 2),
        "mode": (1, 2, 3, 4),
        "path": ("/attacked", "/attacked/a", "/"),
        "broker": ("Broker9",),
        "to": ("earliest", "latest", "3", "2024-01-01"),
        "wait_ms_max": (0, 1),
        "sender": ("attacker",),
        "leases": ([], [1], [0, 1, 2]),
        "trust": (BROKER,),
        "brokers": ([BROKER], ["Broker9"], [BROKER, BROKER]),
        "option": (1, 2, 3, 4, -1),
        "dupnum": (1, 2),
        "offset": (0, 1, 49, 50, 51),
        "cmdindex": (1, 1, 2),
        "ack": (-1, 0, 1),
        "session": (_SESSION,),
        "timeout_ms": (500, 1000),
        "credit_bytes": (0, 1000, 2**40),
        "subscription": (0, 1, 2),
    }


PRODUCER: Final = "attacker"
_SESSION: Final = 2**62 + 123_456_789
_DRAWINGS: Final = tuple(Drawing(_plausible(each), absurd=0.08, wrong_type=0.008) for each in PARTITIONS)
# Who speaks in the name of a server is believed, until the handshake proves who is who: these would rightly end it.
_NEVER: Final = (of_controller.BroInfo, of_controller.DrainBroker, of_controller.DeleteTopic)
# These rightly end what is attacked, and most of the others have nothing to look at then.
_SELDOM: Final = (
    CloseAccept,
    PrepareAccept,
    of_controller.ForceSeal,
    of_controller.MovePartition,
    of_controller.RollBlock,
    of_controller.SetPartitionState,
)
_SERVED: Final = {
    BROKER: tuple(verb for verb in VERBS if verb.number < 200 or 300 <= verb.number < 400),
    ZKSERVER: tuple(verb for verb in VERBS if 200 <= verb.number < 300 or verb.number >= 400),
}
