"""One seed, one cluster on virtual time: a store, two zkservers, a few brokers, clients, and everything goes wrong.

First the cluster is founded in peace. Then for a while all faults that the seed has drawn strike: processes are killed
(with or without their machine's power), paused, cut off each other in one direction or both, cut off the store alone,
their connections reset, their disks slow or full; the store stalls; clients are killed and come back. Meanwhile
producers push, consumers read and commit, an operator changes whatever can be changed. Then the world heals, and there
must be progress: moves end, new partitions can be made, everybody can push and read. In the end every log is read whole
and compared with what clients were told, and replicas of sealed blocks with each other.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.client.surroundings import Surroundings as ClientSurroundings
from clymq.config import Config, load
from clymq.errors import ClymqError, NotEnoughReplicas
from clymq.protocol.verbs import Reply
from clymq.simulation.checkers import Violation
from clymq.simulation.cluster.checkers import Checkers
from clymq.simulation.cluster.clients import TOPIC, Client, Consumer, Operator, Producer, make_partition, read_whole
from clymq.simulation.cluster.history import History, Place
from clymq.simulation.cluster.loop import Life, LifeClock, VirtualLoop
from clymq.simulation.cluster.nemesis import UNLIMITED, Nemesis
from clymq.simulation.cluster.network import Network
from clymq.simulation.cluster.options import Options
from clymq.simulation.cluster.processes import BrokerProcess, Process, StoreProcess, ZkServerProcess
from clymq.simulation.cluster.watching import Served, Watcher
from clymq.storage.memory import MemoryFiles
from clymq.types import Ack

FOUNDING_SECONDS_MAX: Final = 20.0
FAULTS_SECONDS: Final = 10.0
PROGRESS_SECONDS_MAX: Final = 40.0
FORCED_SECONDS: Final = 8.0
"""Moves that have not ended so long after everything healed wait for an operator."""
TRACE_LINES_KEPT: Final = 600


class World:
    """One run."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options.draw(seed)
        self.chance = random.Random(f"world {seed}")
        self.loop = VirtualLoop()
        self.config = _config(self.options)
        self.trace: list[str] = []
        self._hash = hashlib.sha256(str(self.options).encode())
        self.network = Network(self.loop, self._delay_ms)
        self.checkers = Checkers(self.fail, self.note)
        self.watcher: Watcher = self
        self.history = History(self.fail)
        self.healed = False
        self._waits_for = ""
        self.places: list[Place] = []
        self.begun: list[str] = []
        self.store = StoreProcess(self)
        self.zkservers = [ZkServerProcess(self, f"ZkServer{n}", f"ZkServer{n}:7878") for n in range(2)]
        self.brokers = [
            BrokerProcess(self, f"Broker{n}", f"Broker{n}:7774", self._files) for n in range(self.options.brokers)
        ]
        self.bootstrap = ",".join(each.address for each in self.zkservers)
        self.producers = [Producer(self, f"producer{n}") for n in range(self.options.producers)]
        self.consumers = [Consumer(self, f"consumer{n}") for n in range(self.options.consumers)]
        self.operator = Operator(self, "operator", [each.name for each in self.brokers])
        self._judge = Life(self.loop, "judge")
        self._nemesis = Nemesis(self)

    # --- A run ---

    def run(self) -> None:
        """Live through it; `Violation` if a promise is broken."""
        with _quiet(self):
            try:
                self.loop.run_until_complete(self._judge.spawn(self._live()))
                self._look_for_problems()
            finally:
                self._end()

    async def _live(self) -> None:
        for process in self.processes:
            process.start()
        await self._within(FOUNDING_SECONDS_MAX, self._found, "the cluster is founded")
        for client in self.clients:
            client.start()
        await self._nemesis.strike(FAULTS_SECONDS)
        self._heal()
        await self._within(PROGRESS_SECONDS_MAX, self._settle, "there is progress")
        await self._within(PROGRESS_SECONDS_MAX, self._compare, "everything can be read")

    @property
    def processes(self) -> list[Process]:
        """All servers."""
        return [self.store, *self.zkservers, *self.brokers]

    @property
    def clients(self) -> list[Client]:
        """All clients."""
        return [*self.producers, *self.consumers, self.operator]

    @property
    def both_active(self) -> int:
        """How often two zkservers were seen to believe that they are active."""
        return self._nemesis.both_active

    @property
    def trace_hash(self) -> str:
        """A fingerprint of everything that happened."""
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        line = f"{self.loop.time() * 1000:10.1f} {text}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if len(self.trace) > 2 * TRACE_LINES_KEPT:
            del self.trace[:-TRACE_LINES_KEPT]

    def fail(self, text: str) -> None:
        """A promise was broken: nothing more happens."""
        if self.loop.failure is None:
            self.loop.failure = Violation(text)

    # --- What servers do, heard from the side ---

    def stored(self, changes: Mapping[str, bytes | None]) -> None:
        """Nodes of the store have changed."""
        for path, value in changes.items():
            self._hash.update(path.encode() + (value or b""))
        self.checkers.stored(changes)

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        """A broker answers."""
        self._hash.update(f"{broker} {self.loop.time()} {reply}".encode())
        self.checkers.answered(broker, request, reply, served)

    # --- The founding ---

    def _files(self) -> MemoryFiles:
        files = MemoryFiles(clock=LifeClock(self.loop))
        files.sync_delay_ms = self.options.slow_disk_ms or 1
        return files

    def _delay_ms(self, sender: str, receiver: str) -> float:
        return 0.5 if self.healed else self.chance.uniform(0.1, self.options.delay_ms_max)

    async def _found(self) -> None:
        options = self.options
        settings: dict[str, object] = {"fsync": options.fsync}
        if options.block_age_ms > 0:
            settings["block_age_ms_max"] = options.block_age_ms
        if options.retention_bytes > 0:
            settings["retention_bytes"] = options.retention_bytes
        async with AsyncAdmin(self.bootstrap, timeout=20.0, surroundings=self._surroundings()) as admin:
            while len((await admin.status())["brokers"]) < options.brokers:
                await asyncio.sleep(0.1)
            await admin.create_topic(TOPIC, partitions=0, settings=settings)
            for number in range(options.partitions):
                await make_partition(self, admin, str(number), self.chance)

    def _surroundings(self) -> ClientSurroundings:
        transport = self.network.transport(self._judge)
        return ClientSurroundings(transport, LifeClock(self.loop), self.config, self.chance.random)

    # --- Healing, and what must come of it ---

    def _heal(self) -> None:
        self.note("everything heals")
        self.healed = True
        self.operator.stop()
        self.network.heal()
        for broker in self.brokers:
            broker.files.capacity_bytes = UNLIMITED
            broker.files.sync_delay_ms = 1
        for process in self.processes:
            process.resume()
            process.start()

    async def _settle(self) -> None:
        """Every partition takes a push and ends its move; a new one can be made; all sealed copies are whole."""
        async with AsyncAdmin(self.bootstrap, timeout=20.0, surroundings=self._surroundings()) as admin:
            for broker in sorted(self.operator.drained):
                await admin.undrain(broker)
            while sum(each["online"] for each in (await admin.status())["brokers"]) < self.options.brokers:
                await asyncio.sleep(0.1)
            for name in [*self.begun, "late"]:
                while (TOPIC, name) not in self.places:
                    await self._try_to_make(admin, name)
            if not self.options.keeps_what_readers_saw:
                await self._name_who_is_trusted(admin)
        for producer in self.producers:
            producer.producing = False
        around = self._surroundings()
        async with AsyncProducer(self.bootstrap, name="judge", timeout=20.0, surroundings=around) as judge:
            for place in self.places:
                values = self.history.next_values("judge", place, 1)
                receipt = await judge.push(place[0], values[0].encode(), partition=place[1])
                self.history.acknowledged(place, values, receipt.offset, quorum=False)
        while (waiting := self._unsettled()) is not None:
            self._waits_for = waiting
            await asyncio.sleep(0.2)

    async def _try_to_make(self, admin: AsyncAdmin, name: str) -> None:
        """Make a partition, or come again: a broker whose session is over goes once more before it is back."""
        try:
            await make_partition(self, admin, name, self.chance)
        except NotEnoughReplicas:
            await asyncio.sleep(0.1)

    async def _name_who_is_trusted(self, admin: AsyncAdmin) -> None:
        """Do an operator's duty: where every replica knows that it has lost something, none of them ends the block."""
        deadline = self.loop.time() + FORCED_SECONDS
        trees = [(tree, tree.partition) for tree in self.checkers.trees.values() if tree.partition is not None]
        while self.loop.time() < deadline and any(tree.partition and tree.partition.pending for tree, _ in trees):
            await asyncio.sleep(0.2)
        for tree, found in trees:
            ends = {
                broker.name: partition.active.file.end_offset
                for broker in self.brokers
                if broker.node is not None
                for partition in broker.node.broker.hosting.partitions
                if partition.uid == found.uid and partition.active is not None
            }
            waits = tree.partition is not None and tree.partition.pending is not None
            if waits and tree.now.mode != Ack.QUORUM and ends:
                name = tree.path.rpartition("/")[2]
                trusted = max(sorted(ends), key=lambda broker: ends[broker])
                self.note(f"operator: {trusted} is trusted with {name}")
                await admin.force_seal(TOPIC, name, trust=trusted)

    def _unsettled(self) -> str | None:
        for tree in self.checkers.trees.values():
            if tree.partition is not None and tree.partition.pending is not None:
                return f"{tree.path} to finish its move to block {tree.partition.pending.block}"
        for producer in self.producers:
            if producer.pushing:
                return f"{producer.name} to hear what became of its last messages"  # else ends are asked for too early
        return next((waiting for waiting in map(_unsettled_at, self.brokers) if waiting is not None), None)

    async def _compare(self) -> None:
        """Read every log, and judge all that was ever told by it."""
        strictly = self.options.keeps_what_readers_saw or self.options.modes == (-1,)
        for reader in self.consumers:
            reader.stop()  # BEFORE ends are asked for: what becomes visible behind them is not judged
        async with AsyncConsumer(self.bootstrap, name="judge", surroundings=self._surroundings()) as consumer:
            for place in self.places:
                log = await read_whole(consumer, place)
                uid = next(
                    uid for uid, tree in self.checkers.trees.items() if tree.path.endswith(f"/Partitions/{place[1]}")
                )
                tree = self.checkers.trees[uid]
                self.note(f"{place[1]} has [{log.first}, {log.end}) in {tree.now.block} blocks")
                self.history.judge(place, log, uid, self.checkers.ends, tree, self._holders(uid), strictly=strictly)
        self._compare_copies()

    def _holders(self, uid: str) -> set[tuple[str, int]]:
        """Return which broker has which sealed block of a partition."""
        return {
            (broker.name, number)
            for broker in self.brokers
            if broker.node is not None
            for partition in broker.node.broker.hosting.partitions
            if partition.uid == uid
            for number in partition.sealed
        }

    def _compare_copies(self) -> None:
        """The bytes of a sealed block are the same wherever it is whole."""
        seen: dict[tuple[str, int], tuple[str, bytes]] = {}
        for broker in self.brokers:
            assert broker.node is not None
            for partition in broker.node.broker.hosting.partitions:
                for number, block in partition.sealed.items():
                    if block.whole:
                        data = broker.files.contents(f"{partition.path}/Block_{number}/batches")
                        name, other = seen.setdefault((partition.uid, number), (broker.name, data))
                        if other != data:
                            self.fail(f"CopiesEqual: block {number} of {partition.name}: {name} and {broker.name}")

    async def _within(self, seconds: float, work: Callable[[], Any], what: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work()
        except (TimeoutError, ClymqError) as error:
            waits = f"; it waits for {self._waits_for}" if self._waits_for else ""
            raise Violation(
                f"Liveness: not within {seconds:g} s: {what}: {type(error).__name__}: {error}{waits}"
            ) from error
        if self.loop.failure is not None:
            raise self.loop.failure

    # --- The end ---

    def _look_for_problems(self) -> None:
        for problem in self.loop.problems:
            raise Violation(f"NothingUncaught: {problem['message']}: {problem.get('exception')!r}")

    def _end(self) -> None:
        for client in self.clients:
            client.stop()
        for process in self.processes:
            process.kill()
        self._judge.kill()
        self.loop.failure = None
        self.loop.run_until_complete(self.loop.create_task(asyncio.sleep(1)))
        self.loop.close()
        self.store.close()


def _unsettled_at(broker: BrokerProcess) -> str | None:
    if broker.node is None:
        return f"{broker.name} to start"
    for partition in broker.node.broker.hosting.partitions:
        active = partition.active
        if active is not None and active.leader == broker.name and active.end < active.file.end_offset:
            return f"readers of {partition.name} to see all that {broker.name} has"
        for block in partition.sealed.values():
            if not block.whole:
                return f"block {block.number} of {partition.name} to be whole at {broker.name}"
    return None


def simulate(seed: int, options: Options | None = None) -> World:
    """Run one seed; a violation carries the options and the end of the trace."""
    world = World(seed, options)
    try:
        with _uncollected():
            world.run()
    except (AssertionError, ClymqError) as error:
        error.add_note(f"seed {seed}: {world.options}")
        error.add_note("\n".join(world.trace[-80:]))
        raise
    return world


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage be collected: when that happens depends on what ran before, and it ends tasks and generators."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    """Let servers log nothing; but an error that they have no name for is a violation."""
    logger = logging.getLogger("clymq")
    level, propagates = logger.level, logger.propagate
    handler = _Listening(world)
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagates


class _Listening(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._world.fail(f"NothingUncaught: {record.getMessage()}: {record.exc_info[1]!r}")


def _config(options: Options) -> Config:
    """Return settings with which everything happens within seconds."""
    return load(
        flags={
            "session_timeout_ms": 1500,
            "store_request_ms_max": 1000,
            "controller_tick_ms": 300,
            "broker_request_ms_max": 800,
            "seal_wait_ms_max": 1000,
            "move_wait_ms_max": 4000,
            "leader_wait_ms_max": 1500,
            "replace_after_ms": options.replace_after_ms,
            "retention_check_ms": 1000,
            "balance_ms": 3000,
            "delete_delay_ms": 1000,
            "config_ms": 1000,
            "mirror_ms": 300,
            "connect_ms_max": 1000,
            "reconnect_ms_max": 500,
            "handshake_ms_max": 2000,
            "idle_ping_ms": 4000,
            "drain_ms_max": 500,
            "request_ms_max": 1500,
            "retry_ms_max": 300,
            "fetch_wait_ms_max": 1000,
            "fetch_retry_ms_max": 300,
            "fsync_interval_ms": 200,
            "checkpoint_ms_max": 2000,
            "disk_reserve_bytes": 100_000,
            "scrub_interval_ms": 2000,
        }
    )
