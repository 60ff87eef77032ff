"""Real Raft hosts that talk to each other directly, on virtual time and disks in memory; for tests of the driver."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.raft.groups import PairHeartbeat
from clymq.raft.messages import Message
from clymq.record import BatchBuilder, producer_id
from clymq.record.batch import Batch
from clymq.record.layout import Buffer
from clymq.replication.entries import Genesis
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import Initialised
from clymq.replication.raft_driver import RaftDriver
from clymq.replication.raft_host import RaftHost
from clymq.replication.raft_partition import AnswerAll, RaftPartition, Stored
from clymq.replication.replica import Replica
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles
from clymq.storage.space import Space

NAMES = ("a", "b", "c")
CONFIG = Config(index_interval_bytes=1024, disk_reserve_bytes=0)


class Broker:
    """A process with one host, and the groups that it was told to host."""

    def __init__(self, cluster: Hosts, name: str, files: MemoryFiles) -> None:
        self.name = name
        self.cluster = cluster
        self.files = files
        self.alive = True
        self.partitions: dict[str, RaftPartition] = {}
        self.stops: dict[str, ClymqError] = {}
        self.sent: list[Message] = []
        self.host = RaftHost(
            name,
            clock=cluster.clock,
            config=cluster.config,
            links=self,
            draw=cluster.chance.randint,
            incarnation=cluster.chance.getrandbits(62),
        )
        self.host.start()

    def open(self, group: str, *, named_here: bool = True, verify: bool = False) -> RaftDriver:
        config = self.cluster.config
        replica = Replica.open(
            self.files,
            f"/data/{group}/Block_1",
            config=config,
            handles=Handles(self.files, config.open_files_max),
            space=Space(self.files, "/data", config.disk_reserve_bytes) if self.cluster.space else None,
            hosted=Hosted.open(self.files, "/data/hosted"),
            name=f"{group}/Block_1",
            named_here=named_here,
            verify=verify,
        )
        machine = PartitionMachine()
        partition = RaftPartition(self.name, machine, self.cluster.clock, lambda done: done(Genesis(uid=b"u" * 16)))
        partition.on_stop = lambda error: self.stops.update({group: error})
        driver = self.host.add(group, NAMES[: self.cluster.size], replica, machine, partition)
        partition.attach(driver)
        self.partitions[group] = partition
        return driver

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        self.sent.append(message)
        data = b"".join(payload)
        self.cluster.carry(self.name, message.receiver, lambda to: to.host.receive(group, message, bytearray(data)))

    def beat(self, peer: str, beat: PairHeartbeat) -> None:
        self.cluster.carry(self.name, peer, lambda to: to.host.receive_beat(beat))


class Hosts:
    """Brokers on one clock; messages take a millisecond, unless the way is cut."""

    def __init__(
        self,
        size: int = 3,
        *,
        groups: Sequence[str] = ("g",),
        config: Config = CONFIG,
        seed: int = 1,
        space: bool = False,
    ) -> None:
        self.space = space
        self.size = size
        self.config = config
        self.clock = ManualClock()
        self.chance = random.Random(seed)
        self.cut: set[str] = set()
        self.groups = groups
        self.disks = {name: MemoryFiles(clock=self.clock) for name in NAMES[:size]}
        self.brokers: dict[str, Broker] = {}
        for name in NAMES[:size]:
            self.start(name)

    def start(self, name: str, **how: Any) -> Broker:
        broker = self.brokers[name] = Broker(self, name, self.disks[name])
        for group in self.groups:
            broker.open(group, **how)
        return broker

    def kill(self, name: str, *, power: bool = False) -> None:
        self.brokers[name].alive = False
        self.brokers[name].host._closed = True
        if power:
            self.disks[name] = self.disks[name].crash(self.chance)

    def carry(self, sender: str, receiver: str, deliver: Any) -> None:
        def arrive() -> None:
            broker = self.brokers[receiver]
            if self.brokers[sender].alive and broker.alive and not self.cut & {sender, receiver}:
                deliver(broker)

        self.clock.call_later(1, arrive)

    def leader(self, group: str = "g", *, within_ms: int = 5000) -> Broker:
        """Return the broker that leads and is ready, once there is one."""
        for _ in range(within_ms // 10):
            self.clock.advance(10)
            for broker in self.brokers.values():
                if broker.alive and not self.cut & {broker.name}:
                    driver = broker.host.groups.get(group)
                    if driver is not None and driver.node.is_ready and broker.partitions[group].machine.leading:
                        return broker
        raise AssertionError(f"{group} has no leader after {within_ms} ms")

    def driver(self, name: str, group: str = "g") -> RaftDriver:
        return self.brokers[name].host.groups[group]

    def producer(self, group: str = "g", name: str = "p") -> Producer:
        return Producer(self, group, name)


class Producer:
    """Pushes batches to whoever leads, and remembers the answers."""

    def __init__(self, hosts: Hosts, group: str, name: str) -> None:
        self.hosts = hosts
        self.group = group
        self.name = name
        self.cmdindex = 1
        self.epoch = 0
        self.answers: list[Stored | ClymqError] = []

    def begin(self) -> None:
        answers: list[object] = []
        partition = self.hosts.leader(self.group).partitions[self.group]
        partition.init_producer(producer_id(self.name), answers.append)
        self.hosts.clock.advance(100)
        (answer,) = answers
        assert isinstance(answer, Initialised), answer
        self.epoch, self.cmdindex = answer.epoch, answer.next

    def batch(self, value: bytes = b"value", *, cmdindex: int | None = None) -> Batch:
        data = (
            BatchBuilder()
            .add_values([value])
            .build(producer=self.name, cmdindex=cmdindex or self.cmdindex, epoch=self.epoch, now=1_700_000_000_000_000)
        )
        batch = Batch.parse(bytearray(data))
        batch.check()
        return batch

    def push(self, broker: Broker, value: bytes = b"value") -> None:
        batch = self.batch(value)
        broker.partitions[self.group].push([batch], alone(self.answers.append))
        self.cmdindex += 1


def alone(answer: Callable[[Any], None]) -> AnswerAll:
    """For whoever pushes one batch at a time."""
    return lambda outcome: answer(outcome if isinstance(outcome, ClymqError) else outcome[0])
