"""Clients of a simulated cluster: producers, consumers and an operator, each the product's own, in a life of its own.

Whatever the cluster does to them they go on: an error is an outcome that is not known, and is remembered as that.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.client.surroundings import Surroundings as ClientSurroundings
from clymq.clock import pause
from clymq.config import Config
from clymq.errors import ClymqError, OffsetOutOfRange
from clymq.simulation.cluster.history import History, Log, Place
from clymq.simulation.cluster.loop import Life, LifeClock, VirtualLoop
from clymq.simulation.cluster.network import Network
from clymq.simulation.cluster.options import Options
from clymq.types import Ack

TOPIC: Final = "t"
TIMEOUT_SECONDS: Final = 4.0
PAUSE_MS: Final = 100.0


class Surroundings(Protocol):
    """What a client is given by the world."""

    loop: VirtualLoop
    network: Network
    chance: random.Random
    config: Config
    options: Options
    history: History
    places: list[Place]
    """Partitions that were made and take messages."""
    begun: list[str]
    """Partitions that somebody has begun to make."""
    bootstrap: str
    healed: bool

    def note(self, text: str) -> None:
        """Write a line of the trace."""


class Client(ABC):
    """A name and the life that it has at the moment; `restart` gives it another one."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self.name = name
        self.around = around
        self.clock = LifeClock(around.loop)
        self.chance = random.Random(around.chance.getrandbits(64))
        self.life: Life | None = None

    def start(self) -> None:
        """Begin."""
        self.life = life = Life(self.around.loop, self.name)
        self.around.network.come_back(self.name)
        life.spawn(self._run(life))

    def stop(self) -> None:
        """End without a word."""
        life, self.life = self.life, None
        if life is not None:
            life.on_killed.append(lambda: self.around.network.lose(life, silently=False))
            life.kill()

    def restart(self) -> None:
        """Be killed, and begin anew under the same name."""
        self.around.note(f"{self.name} is killed and begins anew")
        self.stop()
        self.start()

    def surroundings(self, life: Life) -> ClientSurroundings:
        """Return what the product's clients want to be given."""
        transport = self.around.network.transport(life)
        return ClientSurroundings(transport, self.clock, self.around.config, self.chance.random)

    @abstractmethod
    async def _run(self, life: Life) -> None:
        """Do what this client does, until it is killed."""


class Producer(Client):
    """Pushes to partitions at random, a few batches ahead of the answers."""

    def __init__(self, around: Surroundings, name: str) -> None:
        super().__init__(around, name)
        self.producing = True
        self.stored = 0
        self.pushing: set[asyncio.Task[None]] = set()
        """What has no answer yet."""
        modes = around.options.modes
        self._ack = Ack.QUORUM if modes == (-1,) and self.chance.random() < 0.5 else None

    async def _run(self, life: Life) -> None:
        options, self.pushing = self.around.options, set()
        codec = self.chance.choice(["none", "lz4"])
        # Never closed: it is killed, as all clients here are.
        producer = AsyncProducer(
            self.around.bootstrap,
            name=self.name,
            ack=self._ack,
            linger_ms=1,
            codec=codec,
            timeout=TIMEOUT_SECONDS,
            surroundings=self.surroundings(life),
        )
        room = asyncio.Semaphore(options.in_flight)
        while True:
            await pause(self.clock, options.push_ms * self.chance.uniform(0.2, 1.8))
            if not self.producing:
                continue
            await room.acquire()
            pushing = asyncio.create_task(self._push(producer, self.chance.choice(self.around.places)))
            self.pushing.add(pushing)
            pushing.add_done_callback(lambda _: room.release())
            pushing.add_done_callback(self.pushing.discard)

    async def _push(self, producer: AsyncProducer, place: Place) -> None:
        count = self.chance.randint(1, self.around.options.batch_messages_max)
        values = self.around.history.next_values(self.name, place, count)
        padding = b"." * self.around.options.value_bytes
        try:
            receipts = await producer.push_many(
                place[0], [value.encode() + padding for value in values], partition=place[1]
            )
        except ClymqError as error:
            self.around.note(f"{self.name} has no answer for {values[0]} to {place[1]}: {type(error).__name__}")
            return
        done = 0
        for _, first, length in receipts.ranges:
            self.around.note(f"{self.name} has {values[done]} + {length} to {place[1]} at {first}")
            self.around.history.acknowledged(place, values[done : done + length], first, quorum=self._ack is Ack.QUORUM)
            done += length
        self.stored += done


class Consumer(Client):
    """Reads all partitions in a group of its own, commits now and then, and goes on from there in its next life."""

    async def _run(self, life: Life) -> None:
        consumer = AsyncConsumer(
            self.around.bootstrap, name=self.name, timeout=TIMEOUT_SECONDS, surroundings=self.surroundings(life)
        )
        assigned: list[Place] = []
        while True:
            try:
                for place in self.around.places:
                    if place not in assigned:
                        await self._assign(consumer, place)
                        assigned.append(place)
                await self._pull(consumer, assigned)
            except OffsetOutOfRange:
                for place in assigned:
                    await self._begin_again(consumer, place)
            except ClymqError as error:
                self.around.note(f"{self.name} cannot read: {type(error).__name__}")
                await pause(self.clock, PAUSE_MS)

    async def _assign(self, consumer: AsyncConsumer, place: Place) -> None:
        await consumer.assign(*place, "committed", group=self.name)
        position = await consumer.position(*place)
        self.around.history.found(self.name, place, position, strictly=self._strictly)

    async def _begin_again(self, consumer: AsyncConsumer, place: Place) -> None:
        """Retention was quicker."""
        try:
            await consumer.assign(*place, "earliest", group=self.name)
        except ClymqError as error:
            self.around.note(f"{self.name} cannot begin again: {type(error).__name__}")

    @property
    def _strictly(self) -> bool:
        return self.around.options.keeps_what_readers_saw or self.around.options.modes == (-1,)

    async def _pull(self, consumer: AsyncConsumer, assigned: list[Place]) -> None:
        messages = await consumer.pull(timeout=0.3)
        for message in messages:
            place = message.topic, message.partition
            value = message.value.rstrip(b".").decode()
            self.around.history.read(place, message.offset, value, strictly=self._strictly)
        if len(messages) and self.chance.random() < 0.3:
            positions = {place: await consumer.position(*place) for place in assigned}
            await consumer.commit()
            for place, position in positions.items():
                self.around.history.committed(self.name, place, position)


class Operator(Client):
    """Changes states and places of partitions, makes new ones, drains brokers."""

    def __init__(self, around: Surroundings, name: str, brokers: list[str]) -> None:
        super().__init__(around, name)
        self._brokers = brokers
        self.drained: set[str] = set()

    async def _run(self, life: Life) -> None:
        options = self.around.options
        works: list[tuple[float, Callable[[AsyncAdmin], Awaitable[None]]]] = [
            (options.state_rate, self._change_state),
            (options.move_rate, self._move),
            (options.drain_rate, self._drain),
            (options.create_rate, self._create),
        ]
        admin = AsyncAdmin(self.around.bootstrap, timeout=TIMEOUT_SECONDS, surroundings=self.surroundings(life))
        while True:
            await pause(self.clock, PAUSE_MS)
            for rate, work in works:
                if not self.around.healed and self.chance.random() < rate * PAUSE_MS / 1000:
                    await self._try(work, admin)

    async def _try(self, work: Callable[[AsyncAdmin], Awaitable[None]], admin: AsyncAdmin) -> None:
        try:
            await work(admin)
        except ClymqError as error:
            self.around.note(f"operator: {work.__name__}: {type(error).__name__}")

    async def _change_state(self, admin: AsyncAdmin) -> None:
        place, state = self.chance.choice(self.around.places), self.chance.choice(self.around.options.modes)
        replicas = self.chance.randint(1, len(self._brokers))
        self.around.note(f"operator: {place[1]} to {state} with {replicas}")
        await admin.set_partition_state(*place, ack=state, replicas=replicas)

    async def _move(self, admin: AsyncAdmin) -> None:
        place = self.chance.choice(self.around.places)
        brokers = self.chance.sample(self._brokers, self.chance.randint(1, len(self._brokers)))
        self.around.note(f"operator: {place[1]} to {brokers}")
        await admin.move_partition(*place, brokers)

    async def _drain(self, admin: AsyncAdmin) -> None:
        broker = self.chance.choice(self._brokers)
        if self.drained:
            broker = min(self.drained)
            self.around.note(f"operator: {broker} may be used again")
            await admin.undrain(broker)
            self.drained.discard(broker)
        else:
            self.around.note(f"operator: {broker} is drained")
            self.drained.add(broker)
            await admin.drain(broker)

    async def _create(self, admin: AsyncAdmin) -> None:
        await make_partition(self.around, admin, f"extra{len(self.around.begun)}", self.chance)


async def make_partition(around: Surroundings, admin: AsyncAdmin, name: str, chance: random.Random) -> None:
    """Make a partition that takes messages."""
    replicas = min(around.options.replicas, around.options.brokers)
    if name not in around.begun:
        around.begun.append(name)
    await admin.create_partition(TOPIC, name)
    await admin.set_partition_state(TOPIC, name, ack=chance.choice(around.options.modes), replicas=replicas)
    if (TOPIC, name) not in around.places:
        around.note(f"partition {name} is made")
        around.places.append((TOPIC, name))


async def read_whole(consumer: AsyncConsumer, place: Place) -> Log:
    """Read a partition from its first offset to its end as it is now; from a later first, if retention is quicker."""
    while True:
        try:
            return await _read_from_first(consumer, place)
        except OffsetOutOfRange as moved:
            if moved.offset >= moved.first:
                raise


async def _read_from_first(consumer: AsyncConsumer, place: Place) -> Log:
    end = (await consumer.end_offsets(place[0]))[place[1]]
    await consumer.assign(*place, "earliest")
    log = Log(await consumer.position(*place))
    while log.end < end:
        for message in await consumer.pull(timeout=1.0):
            if (message.topic, message.partition) == place:
                assert message.offset == log.end, "the reader checks that offsets follow one another"
                log.values.append(message.value.rstrip(b".").decode())
    return log
