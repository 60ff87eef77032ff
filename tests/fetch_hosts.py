"""Real fetch hosts that talk to each other directly, on virtual time and disks in memory; for tests of fetch mode."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError, NotHosted
from clymq.protocol.broker import Pull
from clymq.protocol.hosting import BlockClosed
from clymq.record import BatchBuilder, producer_id
from clymq.record.batch import Batch
from clymq.record.layout import Buffer
from clymq.replication.entries import Genesis, Seal, decode
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_host import FetchHost
from clymq.replication.fetch_lost import Lost, give_up_tail
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_surroundings import FetchGroup, PullDone
from clymq.replication.hosted import Hosted
from clymq.replication.machine import Elected, PartitionMachine
from clymq.replication.mend import SealMark, mend
from clymq.replication.producers import Initialised
from clymq.replication.raft_partition import Begin, Stored
from clymq.storage.block import Block
from clymq.storage.flusher import Flusher
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles
from raft_hosts import alone

NAMES = ("a", "b", "c")
CONFIG = Config(index_interval_bytes=1024, disk_reserve_bytes=0)
EPOCH = 1
FOLDER = "/data/g/Block_1"
LOG = f"{FOLDER}/batches"
VOTE = f"{FOLDER}/vote"


class Owner:
    """Remembers what a replica told it."""

    def __init__(self) -> None:
        self.elected: list[Elected] = []
        self.moves: list[str] = []
        self.downs: list[ClymqError] = []
        self.wholes = 0
        self.advances = 0

    def leads(self, elected: Elected) -> None:
        self.elected.append(elected)

    def advanced(self) -> None:
        self.advances += 1

    def ask_for_move(self, reason: str) -> None:
        self.moves.append(reason)

    def replica_down(self, error: ClymqError) -> None:
        self.downs.append(error)

    def whole(self) -> None:
        self.wholes += 1


class Broker:
    """A process with one host, and one block on it."""

    def __init__(self, cluster: Hosts, name: str, incarnation: int) -> None:
        self.name = name
        self.cluster = cluster
        self.files = cluster.disks[name]
        self.alive = True
        self.confirmed = True
        self.owner = Owner()
        self.asked: list[Pull] = []
        self.host = FetchHost(
            name,
            clock=cluster.clock,
            config=cluster.config,
            flusher=Flusher(cluster.clock, cluster.config),
            links=self,
            draw=cluster.chance.randint,
            incarnation=incarnation,
            session_is_confirmed=lambda: self.confirmed,
        )
        self.host.start()

    def open(self, group: FetchGroup, begin: Begin, *, start_offset: int = 0) -> FetchDriver:
        config = self.cluster.config
        folder = f"/data/g/Block_{group.block}"
        replica = FetchReplica(self.files, folder, config, Handles(self.files, config.open_files_max), None)
        hosted = Hosted.open(self.files, "/data/hosted")
        replica.begin(hosted, group.name, named_here=True, start_offset=start_offset, verify=False)
        return self.host.add(group, replica, PartitionMachine(), self.owner, begin)

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        self.asked.append(pull)
        cluster = self.cluster
        answer: PullDone = lambda outcome: cluster.carry(  # noqa: E731
            peer, self.name, lambda _to: done(_copied(outcome))
        )

        def arrive(broker: Broker) -> None:
            driver = broker.host.groups.get(cluster.group.name)
            try:
                if driver is None:
                    raise NotHosted(f"{peer} does not hold it")
                driver.pull(pull, answer)
            except ClymqError as error:
                answer(error)

        cluster.carry(self.name, peer, arrive)

    @property
    def driver(self) -> FetchDriver:
        return self.host.groups[self.cluster.group.name]


class Hosts:
    """Brokers on one clock; messages take a millisecond, unless the way is cut. `a` leads."""

    def __init__(
        self,
        size: int = 3,
        *,
        config: Config = CONFIG,
        seed: int = 1,
        cut: bool = False,
        genesis: Genesis = Genesis(uid=b"u" * 16),  # noqa: B008
    ) -> None:
        """`cut`: nobody ever reached anybody."""
        self.size = size
        self.config = config
        self.clock = ManualClock()
        self.chance = random.Random(seed)
        self.cut = {frozenset((one, other)) for one in NAMES for other in NAMES if cut and one != other}
        self.disks = {name: MemoryFiles(clock=self.clock) for name in NAMES[:size]}
        incarnations = {name: self.chance.getrandbits(62) for name in NAMES[:size]}
        self.group = FetchGroup("t", "p", "u" * 32, 1, EPOCH, NAMES[:size], "a", incarnations["a"])
        self.genesis = genesis
        self.brokers: dict[str, Broker] = {}
        for name in NAMES[:size]:
            self.start(name, incarnation=incarnations[name])
        self.clock.advance(20)

    def start(self, name: str, *, incarnation: int | None = None) -> Broker:
        broker = self.brokers[name] = Broker(self, name, incarnation or self.chance.getrandbits(62))
        broker.open(self.group, lambda done: done(self.genesis))
        return broker

    def kill(self, name: str, *, power: bool = False) -> None:
        broker = self.brokers[name]
        broker.alive = False
        broker.host._closed = True
        # What the dead process would still do to its files goes nowhere.
        self.disks[name] = self.disks[name].crash(self.chance if power else _KeepAll())

    def restart(self, name: str, *, power: bool = False) -> Broker:
        self.kill(name, power=power)
        return self.start(name)

    def disconnect(self, one: str, other: str) -> None:
        self.cut.add(frozenset((one, other)))

    def carry(self, sender: str, receiver: str, deliver: Callable[[Broker], Any]) -> None:
        sending, receiving = self.brokers[sender], self.brokers[receiver]

        def arrive() -> None:
            if sending.alive and receiving.alive and frozenset((sender, receiver)) not in self.cut:
                deliver(receiving)

        self.clock.call_later(1, arrive)

    def driver(self, name: str) -> FetchDriver:
        return self.brokers[name].driver

    def owner(self, name: str) -> Owner:
        return self.brokers[name].owner

    def log_of(self, name: str) -> bytes:
        return self.disks[name].contents(LOG)

    def producer(self, name: str = "p") -> Producer:
        return Producer(self, name)

    # --- A controller, as small as can be ---

    def fence(self, name: str, epoch: int = EPOCH + 1, *, source: str = "") -> BlockClosed | ClymqError:
        return self.told(lambda done: self.driver(name).fence(epoch, done, source=source))

    def seal_after_fence(self, name: str, epoch: int = EPOCH + 1) -> BlockClosed | ClymqError:
        return self.told(lambda done: self.driver(name).seal_after_fence(epoch, done))

    def seal(self, name: str = "a", epoch: int = EPOCH + 1) -> BlockClosed | ClymqError:
        return self.told(lambda done: self.driver(name).seal(epoch, done))

    def told(self, ask: Callable[[Callable[[Any], None]], None]) -> BlockClosed | ClymqError:
        answers: list[BlockClosed | ClymqError] = []
        try:
            ask(answers.append)
        except ClymqError as error:
            return error
        for _ in range(200):
            if answers:
                break
            self.clock.advance(10)
        (answer,) = answers
        return answer

    def fail_over(self, *names: str) -> BlockClosed:
        """Fence these, let the furthest seal, the others pull; return how the block ended."""
        ends = {name: self.fence(name) for name in names}
        assert all(isinstance(end, BlockClosed) for end in ends.values()), ends
        furthest = max(names, key=lambda name: ends[name].last_index)  # type: ignore[union-attr]
        closed = self.seal_after_fence(furthest)
        assert isinstance(closed, BlockClosed), closed
        for name in names:
            if name != furthest:
                self.fence(name, source=furthest)
        self.clock.advance(200)
        return closed

    def mend(self, name: str, closed: BlockClosed, source: str) -> Lost:
        """Do to a replica what a broker does when the chain has moved: cut what is lost, then mend."""
        self.brokers[name].host.remove(self.group.name)
        self.clock.advance(10)
        block = self.reopened(name)
        mark = SealMark(closed.seal_index, closed.seal_crc)
        lost = give_up_tail(block, mark)
        asyncio.run(mend(block, mark, [Whole(self.driver(source).log.block)], bytes_max=4096))
        block.close()
        return lost

    def reopened(self, name: str) -> Block:
        return Block.open(self.disks[name], FOLDER, config=self.config, handles=Handles(self.disks[name], 8))


class Whole:
    """A source to mend from."""

    def __init__(self, block: Block) -> None:
        self.block = block

    async def read(self, position: int, bytes_max: int) -> Buffer:
        return bytes(self.block.read_at(position, bytes_max, self.block.end_position))


@dataclass
class Producer:
    """Pushes batches to a leader, and remembers the answers."""

    hosts: Hosts
    name: str

    def __post_init__(self) -> None:
        self.cmdindex = 1
        self.epoch = 0
        self.answers: list[Stored | ClymqError] = []

    def begin(self, broker: str = "a") -> Initialised:
        answers: list[object] = []
        self.hosts.driver(broker).init_producer(producer_id(self.name), answers.append)
        self.hosts.clock.advance(20)
        (answer,) = answers
        assert isinstance(answer, Initialised), answer
        self.epoch, self.cmdindex = answer.epoch, answer.next
        return answer

    def batch(self, values: Sequence[bytes] = (b"value",), *, cmdindex: int | None = None) -> Batch:
        data = (
            BatchBuilder()
            .add_values(list(values))
            .build(producer=self.name, cmdindex=cmdindex or self.cmdindex, epoch=self.epoch, now=1_700_000_000_000_000)
        )
        batch = Batch.parse(bytearray(data))
        batch.check()
        return batch

    def push(self, *values: bytes, broker: str = "a", ack: int = 1) -> None:
        batch = self.batch(values or (b"value",))
        self.hosts.driver(broker).push([batch], ack, alone(self.answers.append))
        self.cmdindex += batch.count


def seal_of(block: Block) -> Seal:
    """Return the entry that a block ends with."""
    position = block.position_of(block.last_index)
    entry = decode(Batch.parse(block.read_at(position, 1, block.end_position)).payload())
    assert isinstance(entry, Seal)
    return entry


def values_of(block: Block, limit: int | None = None) -> list[bytes]:
    """Read the values up to a position, by default of all that is in the file."""
    values: list[bytes] = []
    position = 0
    limit = block.end_position if limit is None else limit
    while position < limit:
        batch = Batch.parse(bytes(block.read_at(position, 1, limit)))
        batch.check()
        if batch.count:
            assert batch.base_offset == block.start_offset + len(values), "offsets are dense"
            values += batch.values()
        position += batch.length
    return values


class _KeepAll:
    """A process that dies takes nothing from the files: what is written is in the system's cache."""

    def random(self) -> float:
        return 0.3

    def randint(self, a: int, b: int) -> int:
        return b


def _copied(outcome: Any) -> Any:
    if isinstance(outcome, ClymqError):
        return outcome
    return type(outcome)(outcome.reply, bytearray(outcome.payload))
