"""A cluster for tests of the client: real frames in memory, a controller and brokers that do what a test tells them to.

Duplicates are judged by the real `PartitionMachine`; the log is a list. A broker that does not lead refuses, whoever
leads stores at once or when told to (`hold`, `commit`), and each partition has switches for what may go wrong.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clymq.client.surroundings import Surroundings
from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import (
    ClymqError,
    NotController,
    NotHosted,
    NotLeader,
    NotSubscribed,
    OffsetOutOfRange,
    UnknownPartition,
    UnknownTopic,
)
from clymq.protocol import broker as asked_of_brokers
from clymq.protocol import controller as asked
from clymq.protocol.broker import (
    OFFSET_UNKNOWN,
    PUSH_RUNS,
    CommittedOffset,
    ProducerReady,
    Pulled,
    Pushed,
    StoredAt,
    StoredBatch,
)
from clymq.protocol.hosting import ReplicaPlace
from clymq.protocol.verbs import Done
from clymq.record import Batch, Kind, producer_id
from clymq.replication.entries import BeLeader, Commit, Entry, Genesis, batch_of
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import NEWCOMER, Claim, Initialised
from clymq.rpc import Endpoint, Server
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.peer import Call
from clymq.types import Ack

CLIENT = "client"


@dataclass
class SealedBlock:
    number: int
    start: int
    end: int
    log: list[Batch]
    brokers: tuple[str, ...]


@dataclass
class FakePartition:
    """One partition; the fields in the middle are a test's switches."""

    topic: str
    name: str
    uid: str
    leader: str
    clock: Clock
    ack: int = Ack.QUORUM

    recorded: str = ""
    """Whom the controller takes for the leader; empty: it is right."""
    told_term: int = 0
    """What the controller says of the leader's term."""
    lookups: list[asked.ProGetBroker] = field(default_factory=list)
    """All questions for the leader."""
    hints: bool = True
    """Whether those who do not lead say who does."""
    misleading: dict[str, str] = field(default_factory=dict)
    """Whom a broker names instead of the leader."""
    hold: bool = False
    """Append, but neither commit nor answer until `commit`."""
    refuse: deque[ClymqError] = field(default_factory=deque)
    """Answers to the next pushes; what is refused is not looked at."""
    drop_replies: int = 0
    """Store, but never answer, so many pushes."""
    forget_more: int = 0
    """Answer only the first batch of so many pushes that carry several."""
    answer_after_ms: Callable[[], float] = lambda: 0.0
    stuck: list[Callable[[], None]] | None = None
    """Pushes that have arrived and are not looked at until a test calls them; None: none get stuck."""
    corrupt: Counter[str] = field(default_factory=Counter)
    """How many answers to pulls each broker damages."""
    skip_batches: int = 0
    """So many answers to pulls lack their first batch."""

    def __post_init__(self) -> None:
        self.sealed: list[SealedBlock] = []
        self.number = 0
        self.term = 0
        self.pushes: list[tuple[int, str]] = []  # (cmdindex, broker), as they arrived
        self.epochs: list[int] = []
        self._begin_block(b"")

    # --- The log ---

    @property
    def end(self) -> int:
        """The end of what is committed."""
        applied = [batch for batch in self.log if batch.index <= self.machine.applied]
        return applied[-1].end_offset if applied else self.start

    def values(self) -> list[bytes]:
        """All values that are committed, in order, from the first block on."""
        logs = [*(block.log for block in self.sealed), [b for b in self.log if b.index <= self.machine.applied]]
        return [value for log in logs for batch in log if batch.kind == Kind.DATA for value in batch.values()]

    def commit(self) -> None:
        """Commit and answer everything that is held, and hold no more."""
        self.hold = False
        self._apply()

    def fail_over(self, leader: str, *, recorded: str = "") -> None:
        """Let another lead: what was not committed is lost, and whoever waits for it is told to go there."""
        waiting, self._waiting = self._waiting, []
        readers, self._readers = self._readers, []
        self.log = self.log[: self.machine.applied]
        self.machine.restore(self.machine.checkpoint())
        self.leader, self.recorded, self.hold = leader, recorded, False
        for call in [call for _, call, _ in waiting] + readers:
            call.fail(NotLeader("leads no more", hint=leader if self.hints else None))
        self._elect()

    def lose(self, entries: int, leader: str) -> None:
        """Let another lead that never heard of the last so many entries: acknowledged at ack 1, and gone."""
        self.log = self.log[: len(self.log) - entries]
        self.machine = PartitionMachine()
        for batch in self.log:
            self.machine.apply(batch.index, batch)
        self.leader = leader
        self._elect()

    def roll(self, leader: str, *, brokers: tuple[str, ...] = ()) -> None:
        """Seal the block, which stays at these brokers, and begin the next with another leader."""
        readers, self._readers = self._readers, []
        seal = self.machine.seal(end=self.end, now=self.clock.wall_us())
        self._write(seal)
        end = self.log[-1].base_offset
        holders = brokers or (self.leader,)
        self.sealed.append(SealedBlock(self.number, self.start, end, self.log, holders))
        for call in readers:
            call.reply(Pulled(high_watermark=end, log_start=self.start, block=self.number, next_block=self.number + 1))
        self.leader = leader
        self._begin_block(seal.snapshot)

    def init(self, producer: str, claim: Claim = NEWCOMER) -> Initialised:
        """Give a producer its next epoch: what a second process of the same name does."""
        entry = self.machine.init_producer(producer_id(producer), claim, now=self.clock.wall_us())
        ready = self._write(entry)
        assert isinstance(ready, Initialised)
        self.epochs.append(ready.epoch)
        return ready

    def _begin_block(self, snapshot: bytes) -> None:
        self.number += 1
        self.start = self.sealed[-1].end if self.sealed else 0
        self.log: list[Batch] = []
        self.machine = PartitionMachine()
        self._waiting: list[tuple[int, Call, Pushed]] = []
        self._readers: list[Call] = []
        self._append(batch_of(Genesis(uid=b"u" * 16, snapshot=snapshot)))
        self._elect()

    def _elect(self) -> None:
        self.term += 1
        self.machine.lead(self.term)
        self._append(batch_of(BeLeader(replica=self.leader)))
        self._apply()

    def _append(self, data: bytes | memoryview) -> Batch:
        batch = Batch.parse(bytearray(data))
        batch.stamp(
            base_offset=self.log[-1].end_offset if self.log else self.start,
            term=self.term,
            index=len(self.log) + 1,
            append_time=self.clock.wall_us(),
            commit_index=self.machine.applied,
        )
        self.log.append(batch)
        return batch

    def _write(self, entry: Entry) -> object:
        batch = self._append(batch_of(entry))
        self.machine.submitted(batch.index, batch)
        return self._apply()

    def _apply(self) -> object:
        answer: object = None
        for batch in self.log[self.machine.applied :]:
            answer = self.machine.apply(batch.index, batch)
        waiting, self._waiting = self._waiting, []
        for _, call, pushed in waiting:
            call.reply(pushed)
        readers, self._readers = self._readers, []
        for call in readers:
            self._serve_or_wait(call)
        return answer

    def not_leader(self, broker: str) -> NotLeader:
        """Return what a broker says that does not lead."""
        named = self.misleading.get(broker, self.leader)
        return NotLeader(f"{broker} does not lead", hint=named if self.hints else None)

    # --- Pushing ---

    def push(self, call: Call) -> None:
        """Take one batch after the other, as if each had come alone."""
        for part in _Parts(self, call).each():
            self._push_one(part)  # type: ignore[arg-type]

    def _push_one(self, call: Call) -> None:
        request: asked_of_brokers.Push = call.request
        self.pushes.append((request.cmdindex, self.leader))
        if self.refuse:
            raise self.refuse.popleft()
        if self.stuck is not None:
            self.stuck.append(lambda: self._judge_stuck(call))
            return
        self._judge(call)

    def _judge_stuck(self, call: Call) -> None:
        try:
            self._judge(call)
        except ClymqError as error:
            call.fail(error)

    def _judge(self, call: Call) -> None:
        batch = Batch.parse(call.payload)
        batch.check()
        duplicate = self.machine.judge(batch)
        if duplicate is None:
            stored = self._append(call.payload)
            self.machine.submitted(stored.index, stored)
            offset = stored.base_offset if call.request.ack != Ack.NONE else OFFSET_UNKNOWN
            pushed = Pushed(offset, stored.append_time, False)
            index = stored.index
        else:
            pushed, index = Pushed(duplicate.base_offset, 0, True), duplicate.index
        if self.drop_replies:
            self.drop_replies -= 1
            self._apply()
        elif self.hold and index > self.machine.applied:
            self._waiting.append((index, call, pushed))
        else:
            self._apply()
            self.clock.call_later(self.answer_after_ms(), lambda: call.reply(pushed))

    # --- Pulling ---

    def pull(self, call: Call, broker: str) -> None:
        offset = call.request.offset
        for block in self.sealed:
            if block.start <= offset < block.end and broker in block.brokers:
                self._reply(call, broker, block.log, block.number, block.start, block.end)
                return
        if broker != self.leader:
            if any(broker in block.brokers for block in self.sealed):
                raise NotHosted(f"offset {offset} is not here", hint="ask where it is")
            raise self.not_leader(broker)
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(offset, first=self.start, end=self.end)
        self._serve_or_wait(call)

    def _serve_or_wait(self, call: Call) -> None:
        request: asked_of_brokers.Pull = call.request
        if request.offset < self.end:
            committed = [batch for batch in self.log if batch.index <= self.machine.applied]
            self._reply(call, self.leader, committed, self.number, self.start, self.end)
        elif request.wait_ms_max:
            self._readers.append(call)
            self.clock.call_later(request.wait_ms_max, lambda: self._nothing(call))
        else:
            call.reply(Pulled(high_watermark=self.end, log_start=self.start, block=self.number))

    def _nothing(self, call: Call) -> None:
        if call in self._readers:
            self._readers.remove(call)
            call.reply(Pulled(high_watermark=self.end, log_start=self.start, block=self.number))

    def _reply(self, call: Call, broker: str, log: list[Batch], number: int, start: int, end: int) -> None:
        request: asked_of_brokers.Pull = call.request
        wanted = [batch for batch in log if batch.end_offset > request.offset]
        if self.skip_batches:
            self.skip_batches -= 1
            wanted = [batch for batch in wanted if batch.kind == Kind.DATA][1:]
        payload = bytearray()
        for batch in wanted:
            if payload and len(payload) + batch.length > request.bytes_max:
                break
            payload += batch.buffer
        if self.corrupt[broker] > 0:
            self.corrupt[broker] -= 1
            payload[-9] ^= 1
        call.reply(Pulled(high_watermark=end, log_start=start, block=number), [payload])


class _Parts:
    """The batches of one push: it is answered when all of them are, or with the first error."""

    def __init__(self, partition: FakePartition, call: Call) -> None:
        self.partition = partition
        self.call = call
        self.answers: dict[int, Pushed] = {}

    def each(self) -> Iterator[_Part]:
        position = 0
        for number in range(self.call.request.batches):
            batch = Batch.parse(self.call.payload, position)
            request = msgspec.structs.replace(self.call.request, cmdindex=batch.cmdindex, batches=1)
            yield _Part(self, number, request, self.call.payload[position : position + batch.length])
            position += batch.length

    def reply(self, number: int, answer: Pushed) -> None:
        self.answers[number] = answer
        if len(self.answers) == self.call.request.batches and not self.call.answered:
            first, *rest = (self.answers[each] for each in sorted(self.answers))
            if rest and self.partition.forget_more:
                self.partition.forget_more -= 1
                rest = []
            more = tuple(StoredAt(each.base_offset, each.append_time, each.duplicate) for each in rest)
            self.call.reply(msgspec.structs.replace(first, more=more))


@dataclass
class _Part:
    """One of them, as far as a partition looks at a call."""

    parts: _Parts
    number: int
    request: asked_of_brokers.Push
    payload: memoryview

    def reply(self, answer: Pushed) -> None:
        self.parts.reply(self.number, answer)

    def fail(self, error: ClymqError) -> None:
        if not self.parts.call.answered:
            self.parts.call.fail(error)


class FakeCluster:
    """Brokers and zkservers on a network in memory. `async with` it."""

    def __init__(self, clock: Clock, network: MemoryNetwork, *, brokers: int = 3, zkservers: int = 1) -> None:
        self.clock = clock
        self.network = network
        self.brokers = [f"Broker{number}" for number in range(brokers)]
        self.zkservers = [f"Zk{number}" for number in range(zkservers)]
        self.active = self.zkservers[0]
        self.asked: Counter[str] = Counter()
        self.topics: dict[str, dict[str, FakePartition]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.needs_subscription = False
        self.subscribed: set[tuple[str, str]] = set()
        self.draining: list[int] = []
        self.silent: set[str] = set()
        self.features: tuple[str, ...] = (PUSH_RUNS,)
        self._servers: dict[str, Server] = {}
        self._uids = iter(range(1, 1_000_000))

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(name) for name in self.zkservers)

    def address(self, name: str) -> str:
        return f"{name}:7000"

    def surroundings(self, **settings: Any) -> Surroundings:
        """What a client in this cluster stands on; it is the host `client`."""
        return Surroundings(self.network.transport(CLIENT), self.clock, Config(**settings), lambda: 0.5)

    def create(self, topic: str = "t", partitions: int = 1, *, ack: int = Ack.QUORUM) -> FakePartition:
        """Make a topic; the partitions are led by one broker after the other. Return the first."""
        self.settings.setdefault(topic, {})
        for number in range(partitions):
            self._create_partition(topic, str(number), ack)
        return self.topics[topic]["0"]

    def _create_partition(self, topic: str, name: str, ack: int) -> bool:
        partitions = self.topics.setdefault(topic, {})
        if name in partitions:
            return False
        leader = self.brokers[len(partitions) % len(self.brokers)]
        partitions[name] = FakePartition(topic, name, f"uid{next(self._uids)}", leader, self.clock, ack=ack)
        return True

    def partitions(self) -> Iterator[FakePartition]:
        for partitions in self.topics.values():
            yield from partitions.values()

    async def __aenter__(self) -> FakeCluster:
        for name in (*self.brokers, *self.zkservers):
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in tuple(self._servers):
            await self.stop(name)

    async def start(self, name: str) -> None:
        make = self._broker_handlers if name in self.brokers else self._zkserver_handlers
        endpoint = Endpoint(
            self.clock,
            Config(drain_ms_max=0),
            name=name,
            role="test",
            handlers=make(name),
            features=self.features,
        )
        self._servers[name] = Server(self.network.transport(name), endpoint)
        await self._servers[name].start(self.address(name))

    async def stop(self, name: str) -> None:
        """Stop one at once."""
        if name in self._servers:
            await self._servers.pop(name).close()

    # --- Brokers ---

    def _broker_handlers(self, broker: str) -> dict[type, Callable[[Call], None]]:
        def leading(handle: Callable[[FakePartition, Call], None]) -> Callable[[Call], None]:
            def handler(call: Call) -> None:
                partition = self._found(call, broker)
                if partition.leader != broker:
                    raise partition.not_leader(broker)
                handle(partition, call)

            return handler

        return {
            asked_of_brokers.Push: leading(lambda partition, call: partition.push(call)),
            asked_of_brokers.InitProducer: leading(_init),
            asked_of_brokers.CommitOffset: leading(_commit),
            asked_of_brokers.FetchOffset: leading(
                lambda partition, call: call.reply(CommittedOffset(partition.machine.position(call.request.group)))
            ),
            asked_of_brokers.Pull: lambda call: self._found(call, broker).pull(call, broker),
            asked.FindController: self._find_controller,
        }

    def _found(self, call: Call, broker: str) -> FakePartition:
        self.asked[call.verb.name] += 1
        partition = self.topics.get(call.request.topic, {}).get(call.request.partition)
        if partition is None or partition.uid != call.request.uid:
            raise UnknownPartition(f"{call.request.topic}/{call.request.partition} is not hosted by {broker}")
        return partition

    # --- The controller ---

    def _find_controller(self, call: Call) -> None:
        self.asked["FindController"] += 1
        call.reply(asked.ControllerFound(self.active, self.address(self.active)))

    def _zkserver_handlers(self, name: str) -> dict[type, Callable[[Call], None]]:
        def active(handle: Callable[[Call], Any]) -> Callable[[Call], None]:
            def handler(call: Call) -> None:
                self.asked[call.verb.name] += 1
                if self.active != name:
                    raise NotController(f"{name} is not active")
                if call.verb.name not in self.silent:
                    call.reply(handle(call))

            return handler

        handlers = {
            asked.CreateTopic: self._create_topic,
            asked.CreatePart: self._create_part,
            asked.SetPartitionState: self._set_state,
            asked.DescribeTopic: self._describe,
            asked.AlterTopic: self._alter,
            asked.DeleteTopic: self._delete,
            asked.ListTopics: lambda _: asked.TopicList(tuple(sorted(self.topics))),
            asked.Status: lambda _: asked.ClusterStatus(partitions=tuple(map(_status, self.partitions()))),
            asked.DrainBroker: lambda _: asked.DrainProgress(1, self.draining.pop(0) if self.draining else 0),
            asked.ProGetBroker: self._producer_route,
            asked.ConGetBroker: self._consumer_routes,
            asked.Sub: self._subscribe,
            asked.UnSub: self._unsubscribe,
        }
        return {asked.FindController: self._find_controller} | {kind: active(each) for kind, each in handlers.items()}

    def _topic(self, topic: str) -> dict[str, FakePartition]:
        if topic not in self.topics:
            raise UnknownTopic(f"there is no topic {topic}")
        return self.topics[topic]

    def _partition(self, topic: str, partition: str) -> FakePartition:
        if partition not in self._topic(topic):
            raise UnknownPartition(f"{topic} has no partition {partition}")
        return self.topics[topic][partition]

    def _create_topic(self, call: Call) -> asked.TopicMade:
        created = call.request.topic not in self.topics
        self.topics.setdefault(call.request.topic, {})
        self.settings.setdefault(call.request.topic, dict(call.request.settings))
        return asked.TopicMade("id", created)

    def _create_part(self, call: Call) -> asked.PartitionMade:
        self._topic(call.request.topic)
        created = self._create_partition(call.request.topic, call.request.partition, Ack.UNSET)
        return asked.PartitionMade(self.topics[call.request.topic][call.request.partition].uid, created)

    def _set_state(self, call: Call) -> asked.PartitionStateSet:
        partition = self._partition(call.request.topic, call.request.partition)
        before, partition.ack = partition.ack, call.request.option
        same = {Ack.QUORUM: "HadRaft"}.get(Ack(before), "HadFetch")
        return asked.PartitionStateSet(same if before == call.request.option else "changed")

    def _describe(self, call: Call) -> asked.TopicDescription:
        partitions = self._topic(call.request.topic).values()
        settings = self.settings[call.request.topic]
        return asked.TopicDescription(call.request.topic, "id", settings, tuple(map(_status, partitions)))

    def _alter(self, call: Call) -> Done:
        self._topic(call.request.topic)
        self.settings[call.request.topic] |= call.request.settings
        return Done()

    def _delete(self, call: Call) -> Done:
        self._topic(call.request.topic)
        del self.topics[call.request.topic], self.settings[call.request.topic]
        return Done()

    def _producer_route(self, call: Call) -> asked.ProducerRoute:
        partition = self._partition(call.request.topic, call.request.partition)
        partition.lookups.append(call.request)
        leader, term = partition.recorded or partition.leader, partition.told_term
        address = self.address(leader)
        return asked.ProducerRoute(partition.uid, leader, address, partition.ack, partition.number, term=term)

    def _consumer_routes(self, call: Call) -> asked.ConsumerRoutes:
        request: asked.ConGetBroker = call.request
        if self.needs_subscription and (request.consumer, request.partition) not in self.subscribed:
            raise NotSubscribed(f"{request.consumer} is not subscribed")
        partition = self._partition(request.topic, request.partition)
        first = partition.sealed[0].start if partition.sealed else partition.start
        if request.offset < first:
            route = asked.ReadRoute(
                partition.name, partition.uid, offset=first, error="OffsetOutOfRange", problem="retention has it"
            )
            return asked.ConsumerRoutes((route,))
        for block in partition.sealed:
            if block.start <= request.offset < block.end:
                names, number, end = block.brokers, block.number, block.end
                break
        else:
            names, number, end = (partition.recorded or partition.leader,), partition.number, -1
        route = asked.ReadRoute(
            partition.name,
            partition.uid,
            names[0],
            self.address(names[0]),
            number,
            request.offset,
            replicas=tuple(ReplicaPlace(name, "disk", self.address(name)) for name in names[1:]),
            end=end,
        )
        return asked.ConsumerRoutes((route,))

    def _subscribe(self, call: Call) -> asked.Subscribed:
        self.subscribed.add((call.request.consumer, call.request.partition))
        return asked.Subscribed("sub", True)

    def _unsubscribe(self, call: Call) -> Done:
        self.subscribed.discard((call.request.consumer, call.request.partition))
        return Done()


def _status(partition: FakePartition) -> asked.PartitionStatus:
    start = partition.sealed[0].start if partition.sealed else partition.start
    return asked.PartitionStatus(
        partition.topic, partition.name, partition.ack, leader=partition.leader, start=start, end=partition.end
    )


def _init(partition: FakePartition, call: Call) -> None:
    if partition.refuse:
        raise partition.refuse.popleft()
    ready = partition.init(call.request.producer, Claim(call.request.life, call.request.epoch))
    stored = tuple(StoredBatch(kept.cmdindex, kept.count, kept.base_offset) for kept in ready.kept)
    call.reply(ProducerReady(ready.epoch, ready.next, stored))


def _commit(partition: FakePartition, call: Call) -> None:
    partition._write(Commit(group=call.request.group, offset=call.request.offset))
    call.reply(Done())
