"""Fetch mode against a model: whatever is killed, cut off, slowed or stopped, what was promised holds.

Three brokers, two producers and a reader in a world whose seed decides everything. A controller as small as can be
moves the chain: in good order, or by a fence of two of three when a leader's session is over, it began anew, or it
asks; now and then it forgets what it was doing, and begins again under the same epoch. After some seconds the world
heals, the last block is sealed, everybody mends, and then:

* replicas of each block are equal to the byte, offsets are dense, no command is stored twice;
* what was acknowledged at ack 1 is in the block if a replica that was fenced had it, else it is in a `*.lost`;
* what a reader saw is there, at its offset;
* nothing was acknowledged for a block that the chain had ended, however long its leader stood still.

With `fsync = commit` all of it holds through power cuts; with `interval` through the death of processes, and a power
cut takes only what the promise leaves to chance: then a reader's or a fenced replica's last second may be gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from clymq.clock import ManualClock, Timer
from clymq.config import Config
from clymq.errors import ClymqError, NotHosted
from clymq.protocol.broker import Pull
from clymq.protocol.hosting import BlockClosed
from clymq.record import BatchBuilder, producer_id
from clymq.record.batch import Batch
from clymq.replication.entries import Genesis
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_host import FetchHost
from clymq.replication.fetch_lost import give_up_tail
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_surroundings import FetchGroup, PullDone
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.replication.mend import SealMark, mend
from clymq.replication.producers import Initialised
from clymq.replication.raft_partition import Stored
from clymq.storage.block import Block
from clymq.storage.flusher import Flusher
from clymq.storage.handles import Handles
from clymq.storage.memory import MemoryFiles
from fetch_hosts import Owner, Whole, _KeepAll, seal_of
from raft_hosts import alone

NAMES = ("a", "b", "c")
FAULTS_MS = 12_000
SESSION_MS = 600
CONFIG = Config(
    index_interval_bytes=1024, disk_reserve_bytes=0, fetch_wait_ms_max=300, fetch_bytes_max=4096, checkpoint_ms_max=1500
)


def seeds() -> list[tuple[str, bool, int]]:
    kinds = (("commit", True), ("interval", False), ("never", False), ("interval", True))
    return [(fsync, power, seed) for fsync, power in kinds for seed in range(8)]


@pytest.mark.parametrize(("fsync", "power", "seed"), seeds())
def test_what_was_promised_holds(fsync: str, power: bool, seed: int) -> None:
    world = World(fsync, power=power, seed=seed)
    world.run()
    world.check()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_what_was_promised_holds_in_many_worlds(seed: int) -> None:
    for fsync, power in (("commit", True), ("interval", False), ("never", False), ("interval", True)):
        test_what_was_promised_holds(fsync, power, seed)


@pytest.mark.parametrize("fsync", ["commit", "interval"])
def test_a_leader_that_stood_still_past_its_session_acknowledges_nothing(fsync: str) -> None:
    """Neither what it had written and not answered, nor what lay in its socket when it went on."""
    world = World(fsync, power=False, seed=1)
    leader = world.processes["a"]

    def live(until: Callable[[], bool]) -> None:
        while not until():
            assert world.now < 10_000
            world.clock.advance(5)
            world.tick()

    live(lambda: world.now > 500)
    world.disks["a"].sync_delay_ms = 50
    live(lambda: world.now > 520)
    leader.stalled = True
    before = dict(world.acknowledged)
    live(lambda: 1 in world.sealed)
    assert world.fenced == 1
    assert leader.waiting, "there is something that it would do"
    led_by_others = dict(world.acknowledged)
    leader.resume()
    world.clock.advance(200)
    assert before
    assert all(led_by_others.get(value) == place for value, place in world.acknowledged.items() if place[0] == 1)


def test_the_worlds_are_worth_living_in() -> None:
    """Failovers, losses and restarts do happen in them, else the test above says little."""
    worlds = [World("interval", power=False, seed=seed) for seed in range(6)]
    for world in worlds:
        world.run()
    assert sum(world.fenced for world in worlds) > 10
    assert sum(world.planned for world in worlds) > 5
    assert sum(len(world.lost) for world in worlds) > 5
    assert sum(len(world.acknowledged) for world in worlds) > 1000
    assert sum(len(world.seen) for world in worlds) > 500


class ProcessClock:
    """The world's time, as a process lives through it: nothing happens while it stands still, or after its end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._clock = process.world.clock

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_ms, lambda: self._process.do(callback))


class DiskClock:
    """When a disk has done what it was asked to: what a process asked ends with it, and reaches it when it runs."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def wall_us(self) -> int:
        return self._world.clock.wall_us()

    def monotonic_ms(self) -> float:
        return self._world.clock.monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        process = self._world.processes[self._name]
        return self._world.clock.call_later(delay_ms, lambda: process.do(callback))


class Process:
    """A broker."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.stalled = False
        self.waiting: list[Callable[[], None]] = []
        self.confirmed_at = world.now
        self.incarnation = world.chance.getrandbits(62)
        self.files = world.disks[name]
        self.owner = Owner()
        self.drivers: dict[int, FetchDriver] = {}
        clock = ProcessClock(self)
        self.host = FetchHost(
            name,
            clock=clock,
            config=world.config,
            flusher=Flusher(clock, world.config),
            links=self,
            draw=world.chance.randint,
            incarnation=self.incarnation,
            session_is_confirmed=self.is_confirmed,
        )
        self.host.start()

    def is_confirmed(self) -> bool:
        return self.world.now - self.confirmed_at < SESSION_MS * 2 / 3

    def do(self, work: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.stalled:
            self.waiting.append(work)
        else:
            work()

    def resume(self) -> None:
        self.stalled = False
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            self.do(work)

    def confirm(self) -> None:
        """Talk to the store; find out there that the session is over, if it is."""
        if self.world.now - self.confirmed_at > SESSION_MS:
            self.host.lose_session()
        self.confirmed_at = self.world.now

    def open(self, number: int) -> None:
        if number in self.drivers or number in self.world.mended.get(self.name, set()):
            return
        group, config = self.world.groups[number], self.world.config
        folder = f"/data/g/Block_{number}"
        replica = FetchReplica(self.files, folder, config, Handles(self.files, config.open_files_max), None)
        hosted = Hosted.open(self.files, "/data/hosted")
        start = self.world.starts[number]
        replica.begin(hosted, group.name, named_here=True, start_offset=start, verify=False)
        genesis = Genesis(uid=b"u" * 16, snapshot=self.world.snapshots[number])
        machine = PartitionMachine()
        self.drivers[number] = self.host.add(group, replica, machine, self.owner, lambda done: done(genesis))

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        world = self.world
        answer: PullDone = lambda outcome: world.carry(peer, self, lambda: done(outcome))  # noqa: E731

        def arrive(process: Process) -> None:
            try:
                driver = process.drivers.get(pull.block)
                if driver is None:
                    raise NotHosted(f"{peer} does not hold it")
                driver.pull(pull, answer)
            except ClymqError as error:
                answer(error)

        world.send(self.name, peer, arrive)


class Producer:
    """One batch under way at a time, sent again until it is answered; numbered anew when the partition says so."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.epoch = 0
        self.cmdindex = 0
        self.made = 0
        self.value = b""
        self.ticket = 0
        world.clock.call_later(1, self.begin)

    def begin(self) -> None:
        self.ask(lambda driver, done: driver.init_producer(producer_id(self.name), done), self.begun, self.begin)

    def begun(self, answer: object) -> None:
        if not isinstance(answer, Initialised):
            self.world.clock.call_later(self.world.chance.randint(5, 40), self.begin)
            return
        stored = self.value and answer.epoch > self.epoch and answer.next > self.cmdindex
        self.epoch, self.cmdindex = answer.epoch, answer.next
        if stored or not self.value:
            self.next()
        else:
            self.push()

    def next(self) -> None:
        self.made += 1
        self.value = b"%s:%d" % (self.name.encode(), self.made)
        self.push()

    def push(self) -> None:
        if self.world.over:
            return
        data = (
            BatchBuilder()
            .add_values([self.value])
            .build(producer=self.name, cmdindex=self.cmdindex, epoch=self.epoch, now=1_700_000_000_000_000)
        )
        batch = Batch.parse(bytearray(data))
        batch.check()
        value = self.value

        def send(driver: FetchDriver, done: Callable[[object], None]) -> None:
            def answered(answer: Stored | ClymqError) -> None:
                if isinstance(answer, Stored):
                    self.world.acknowledge(driver, value, answer)
                done(answer)

            driver.push([batch], 1, alone(answered))

        self.ask(send, self.pushed, self.push)

    def pushed(self, answer: object) -> None:
        if isinstance(answer, Stored):
            self.cmdindex += 1
            self.world.clock.call_later(self.world.chance.randint(0, 8), self.next)
        elif isinstance(answer, ClymqError) and answer.retriable:
            self.world.clock.call_later(self.world.chance.randint(5, 40), self.push)
        else:
            self.begin()

    def ask(
        self,
        work: Callable[[FetchDriver, Callable[[object], None]], None],
        then: Callable[[object], None],
        again: Callable[[], None],
    ) -> None:
        """Send to whom the chain names as leader; what is not answered in time is sent again."""
        world = self.world
        self.ticket += 1
        ticket, number = self.ticket, max(world.groups)

        def answered(outcome: object) -> None:
            if ticket == self.ticket:
                self.ticket += 1
                then(outcome)

        def late() -> None:
            if ticket == self.ticket:
                self.ticket += 1
                again()

        process = world.processes[world.groups[number].leader]

        def arrive() -> None:
            def answer(outcome: object) -> None:
                # The answer leaves now or never: a process that is dead says nothing.
                if process.alive and world.chance.random() > world.loss:
                    world.clock.call_later(world.chance.randint(1, 5), lambda: answered(outcome))

            try:
                driver = process.drivers.get(number)
                if driver is None:
                    raise NotHosted("not here")
                work(driver, answer)
            except ClymqError as error:
                answer(error)

        world.clock.call_later(world.chance.randint(1, 5), lambda: process.do(arrive))
        world.clock.call_later(150, late)


class World:
    def __init__(self, fsync: str, *, power: bool, seed: int) -> None:
        self.config = msgspec.structs.replace(CONFIG, fsync=fsync)
        self.power = power
        self.strict = fsync == "commit" or not power
        self.clock = ManualClock()
        self.chance = random.Random(f"{fsync} {power} {seed}")
        self.loss = self.chance.choice([0.0, 0.0, 0.02])
        self.over = False
        self.cut: set[frozenset[str]] = set()
        self.storeless: set[str] = set()
        self.groups: dict[int, FetchGroup] = {}
        self.starts: dict[int, int] = {}
        self.snapshots: dict[int, bytes] = {}
        self.sealed: dict[int, BlockClosed] = {}
        self.mended: dict[str, set[int]] = {name: set() for name in NAMES}
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.ends_told: dict[int, int] = {}
        self.seen: dict[int, bytes] = {}
        self.lost: list[bytes] = []
        self.fenced = self.planned = 0
        self.moving = False
        self.disks = {name: MemoryFiles(clock=DiskClock(self, name)) for name in NAMES}
        self.processes = {name: Process(self, name) for name in NAMES}
        self.begin_block(1, 1, "a", b"", 0)
        self.producers = [Producer(self, name) for name in ("p", "q")]

    @property
    def now(self) -> float:
        return self.clock.monotonic_ms()

    # --- The network ---

    def carry(self, sender: str, receiver: Process, deliver: Callable[[], None]) -> None:
        sending = self.processes[sender]

        def arrive() -> None:
            if frozenset((sender, receiver.name)) not in self.cut and self.chance.random() >= self.loss:
                receiver.do(deliver)

        if sending.alive:
            self.clock.call_later(self.chance.randint(1, 5), arrive)

    def send(self, sender: str, receiver: str, deliver: Callable[[Process], None]) -> None:
        process = self.processes[receiver]
        self.carry(sender, process, lambda: deliver(process))

    # --- The chain ---

    def begin_block(self, number: int, epoch: int, leader: str, snapshot: bytes, start: int) -> None:
        self.groups[number] = FetchGroup(
            "t", "p", "u" * 32, number, epoch, NAMES, leader, self.processes[leader].incarnation
        )
        self.starts[number], self.snapshots[number] = start, snapshot
        for process in self.processes.values():
            process.do(lambda process=process: process.open(number))  # type: ignore[misc]

    def move(self) -> None:
        """Begin, or go on with, the move of the active block."""
        if self.moving:
            return
        self.moving = True
        number = max(self.groups)
        group = self.groups[number]
        leader = self.processes[group.leader]
        driver = leader.drivers.get(number)
        gone = (
            not leader.alive
            or leader.incarnation != group.leader_incarnation
            or self.now - leader.confirmed_at > SESSION_MS
            or (driver is not None and (driver.wants_move is not None or driver.down is not None))
        )
        attempt = _Fence(self, number) if gone else _Planned(self, number)
        attempt.begin()

        def give_up() -> None:
            attempt.over = True
            self.moving = False

        self.clock.call_later(self.chance.randint(100, 400), give_up)

    def transact(self, number: int, closed: BlockClosed, leader: str) -> bool:
        """Move the chain, unless it has moved."""
        if number in self.sealed:
            return False
        self.sealed[number] = closed
        block = self.processes[leader].drivers[number].log.block
        epoch = self.groups[number].epoch + 1
        self.begin_block(number + 1, epoch, leader, seal_of(block).snapshot, closed.end)
        return True

    def settle(self) -> None:
        """Let every broker do to sealed blocks what the chain says."""
        for process in self.processes.values():
            for number, closed in self.sealed.items():
                if number in process.drivers and process.alive and not process.stalled:
                    self.settle_one(process, number, SealMark(closed.seal_index, closed.seal_crc))

    def settle_one(self, process: Process, number: int, mark: SealMark) -> None:
        driver = process.drivers[number]
        if driver.accept(mark):
            return
        sources = [
            other.drivers[number].log.block
            for other in self.processes.values()
            if other is not process and other.alive and number in other.drivers and other.drivers[number].accept(mark)
        ]
        if not sources:
            return
        process.host.remove(driver.group.name)
        del process.drivers[number]
        self.clock.call_later(50, lambda: process.do(lambda: self.mend(process, number, mark, sources)))

    def mend(self, process: Process, number: int, mark: SealMark, sources: list[Block]) -> None:
        folder = f"/data/g/Block_{number}"
        block = Block.open(process.files, folder, config=self.config, handles=Handles(process.files, 8))
        lost = give_up_tail(block, mark)
        if lost.path is not None:
            self.keep_lost(process.files.contents(lost.path))
        _run(mend(block, mark, [Whole(source) for source in sources], bytes_max=4096))
        block.close()
        process.open(number)
        assert process.drivers[number].accept(mark)

    def keep_lost(self, data: bytes) -> None:
        while data:
            batch = Batch.parse(data)
            self.lost += batch.values() if batch.count else []
            data = data[batch.length :]

    # --- What is observed ---

    def acknowledge(self, driver: FetchDriver, value: bytes, stored: Stored) -> None:
        number = driver.group.block
        assert number not in self.sealed, "acknowledged for a block that has ended"
        known = self.acknowledged.setdefault(value, (number, stored.base_offset))
        assert known == (number, stored.base_offset) or known[0] != number, "one command, two places"

    def read(self) -> None:
        """Read from a leader of any block, whether or not it still is one."""
        process = self.processes[self.chance.choice(NAMES)]
        numbers = [number for number, group in self.groups.items() if group.leader == process.name]
        number = self.chance.choice(numbers) if numbers else 0
        driver = process.drivers.get(number)
        if driver is None or not process.alive or process.stalled or driver.visible_end == self.starts[number]:
            return
        offset = self.chance.randint(self.starts[number], driver.visible_end - 1)
        data = bytes(driver.read(offset, 2000))
        while data:
            batch = Batch.parse(data)
            if batch.count:
                for at, value in enumerate(batch.values(), batch.base_offset):
                    assert self.seen.setdefault(at, value) == value or not self.strict, f"offset {at} has changed"
            data = data[batch.length :]

    # --- A run ---

    def run(self) -> None:
        while self.now < FAULTS_MS:
            self.clock.advance(self.chance.randint(1, 30))
            self.tick()
            if self.chance.random() < 0.08:
                self.fault()
            if self.chance.random() < 0.02:
                self.move()
        self.heal()

    def tick(self) -> None:
        for process in self.processes.values():
            if process.alive and not process.stalled and process.name not in self.storeless:
                process.confirm()
        group = self.groups[max(self.groups)]
        leader = self.processes[group.leader]
        driver = leader.drivers.get(group.block)
        expired = self.now - leader.confirmed_at > SESSION_MS
        if expired or leader.incarnation != group.leader_incarnation or (driver and driver.wants_move):
            self.move()
        self.settle()
        self.read()

    def fault(self) -> None:
        process = self.processes[self.chance.choice(NAMES)]
        match self.chance.randint(0, 6):
            case 0 if process.alive:
                self.kill(process)
            case 1 if not process.alive:
                self.restart(process.name)
            case 2:
                self.cut ^= {frozenset(self.chance.sample(NAMES, 2))}
            case 3 if process.alive:
                process.stalled = True
                self.clock.call_later(self.chance.choice([50, 300, 1500]), process.resume)
            case 4:
                self.disks[process.name].sync_delay_ms = self.chance.choice([0, 0, 20, 200])
            case 5:
                self.storeless ^= {process.name}
            case 6:
                self.loss = self.chance.choice([0.0, 0.0, 0.05])

    def kill(self, process: Process) -> None:
        process.alive = False
        process.host._closed = True
        power = self.power and self.chance.random() < 0.7
        self.disks[process.name] = self.disks[process.name].crash(self.chance if power else _KeepAll())
        self.clock.call_later(self.chance.randint(20, 2000), lambda: self.restart(process.name))

    def restart(self, name: str) -> None:
        if self.processes[name].alive:
            return
        process = self.processes[name] = Process(self, name)
        for number in self.groups:
            process.open(number)

    def heal(self) -> None:
        """End all faults, and let the chain end with a block that all have whole."""
        self.over = True
        self.loss = 0.0
        self.cut.clear()
        self.storeless.clear()
        for name in NAMES:
            self.disks[name].sync_delay_ms = 0
            self.restart(name)
            self.processes[name].resume()
        last = max(self.groups)
        for _ in range(300):
            self.clock.advance(50)
            self.tick()
            if last not in self.sealed:
                self.move()
            elif all(self.is_whole(process) for process in self.processes.values()):
                return
        raise AssertionError("the sealed blocks are not whole everywhere")

    def is_whole(self, process: Process) -> bool:
        return all(
            number in process.drivers and process.drivers[number].accept(SealMark(closed.seal_index, closed.seal_crc))
            for number, closed in self.sealed.items()
        )

    # --- What must hold in the end ---

    def check(self) -> None:
        chain: list[bytes] = []
        for number, closed in sorted(self.sealed.items()):
            path = f"/data/g/Block_{number}/batches"
            first, *others = [self.disks[name].contents(path) for name in NAMES]
            assert all(other == first for other in others), f"replicas of block {number} differ"
            assert closed.start == len(chain)
            while first:
                batch = Batch.parse(first)
                batch.check_crc()
                assert batch.base_offset == len(chain), "offsets are dense"
                chain += batch.values() if batch.count else []
                first = first[batch.length :]
            assert closed.end == len(chain)
        assert len(set(chain)) == len(chain), "a command is stored twice"
        self.check_acknowledged(chain)
        if self.strict:
            assert [chain[at] for at in sorted(self.seen)] == [self.seen[at] for at in sorted(self.seen)]

    def check_acknowledged(self, chain: list[bytes]) -> None:
        stored, lost = set(chain), set(self.lost)
        for value, (number, offset) in self.acknowledged.items():
            if number not in self.sealed or value in stored:
                continue
            if self.strict:
                assert value in lost, f"{value!r} is nowhere"
                assert offset >= self.ends_told.get(number, 0), f"a fenced replica had {value!r}"


class _Planned:
    """Ask the leader to seal."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.group = world.groups[number]
        self.epoch = self.group.epoch + 1
        self.over = False

    def begin(self) -> None:
        self.ask(self.group.leader, lambda driver, done: driver.seal(self.epoch, done), self.sealed)

    def sealed(self, name: str, closed: BlockClosed) -> None:
        if self.world.transact(self.number, closed, name):
            self.world.planned += 1
        self.over, self.world.moving = True, False

    def ask(
        self,
        name: str,
        work: Callable[[FetchDriver, Callable[[Any], None]], None],
        then: Callable[[str, BlockClosed], None],
    ) -> None:
        world, process = self.world, self.world.processes[name]

        def answer(outcome: BlockClosed | ClymqError) -> None:
            def arrive() -> None:
                if not self.over and isinstance(outcome, BlockClosed) and self.number not in world.sealed:
                    then(name, outcome)

            if process.alive:
                world.clock.call_later(world.chance.randint(1, 5), arrive)

        def arrive() -> None:
            try:
                driver = process.drivers.get(self.number)
                if driver is not None:
                    work(driver, answer)
            except ClymqError as error:
                answer(error)

        world.clock.call_later(world.chance.randint(1, 5), lambda: process.do(arrive))


class _Fence(_Planned):
    """Fence all that can be reached; when two have answered, let the furthest seal."""

    def begin(self) -> None:
        self.ends: dict[str, BlockClosed] = {}
        for name in NAMES:
            self.ask(name, lambda driver, done: driver.fence(self.epoch, done), self.told)

    def told(self, name: str, closed: BlockClosed) -> None:
        self.ends[name] = closed
        if len(self.ends) != 2:
            return
        sealed = [name for name in self.ends if self.ends[name].sealed]
        self.furthest = sealed[0] if sealed else max(self.ends, key=lambda each: self.ends[each].last_index)
        if not sealed:
            told = max(end.end for end in self.ends.values())
            self.ask(
                self.furthest,
                lambda driver, done: driver.seal_after_fence(self.epoch, done),
                lambda name, closed: self.ended(name, closed, told),
            )
        else:
            self.ended(self.furthest, self.ends[self.furthest], self.ends[self.furthest].end)

    def ended(self, name: str, closed: BlockClosed, told: int) -> None:
        if self.world.chance.random() < 0.3:
            return  # forgotten; the next attempt finds the SEAL, or does not
        if self.world.chance.random() < 0.5:
            for other in self.ends:
                self.ask(other, lambda driver, done: driver.fence(self.epoch, done, source=name), lambda *_: None)
        if self.world.transact(self.number, closed, name):
            self.world.fenced += 1
            self.world.ends_told[self.number] = told
        self.over, self.world.moving = True, False


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run what never waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")
