"""Promises with a name, each lived through on virtual time with whole replicas."""

from __future__ import annotations

import dataclasses

import pytest

from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.log import RaftLog
from clymq.raft.messages import Kind, Message
from clymq.raft.node import RaftNode
from clymq.raft.state import Role
from clymq.simulation.options import Options
from clymq.simulation.process import FOLDER, Process
from clymq.simulation.world import World
from raft_cluster import Cluster, Disk

CALM = Options(
    replicas=3,
    producers=1,
    push_ms=20,
    batch_messages_max=3,
    delay_ms_max=5,
    loss=0.0,
    duplication=0.0,
    reordering=0.0,
    partition_rate=0.0,
    one_way=False,
    crash_rate=0.0,
    pause_rate=0.0,
    slow_disk_ms=0,
    flip_rate=0.0,
    wipe=False,
    full_disk_rate=0.0,
    failed_sync_rate=0.0,
    transfer_rate=0.0,
    roll=False,
    leader_bias=0.0,
    restart_odds=0.1,
    append_bytes_max=1 << 20,
    window_messages=64,
)


def calm(seed: int = 1, **changes: object) -> World:
    return World(seed, dataclasses.replace(CALM, **changes))


def leader(world: World) -> Process:
    (found,) = [r for r in world.replicas.values() if not r.stopped and r.node.is_ready]
    return found


def others(world: World, replica: Process) -> list[str]:
    return [name for name in world.names if name != replica.name]


def test_an_idle_group_writes_nothing_and_says_little() -> None:
    world = calm()
    world.clock.advance(3000)
    world.producers[0].producing = False
    world.clock.advance(3000)
    sizes = {name: world.disks[name].files._root.bytes() for name in world.names}
    assert all(replica.node.asleep for replica in world.replicas.values())
    world.clock.advance(60_000)
    assert {name: world.disks[name].files._root.bytes() for name in world.names} == sizes
    assert all(replica.node.asleep for replica in world.replicas.values())


def test_a_flipped_bit_in_the_last_acknowledged_batch_and_a_dead_leader_lose_nothing() -> None:
    """The bit is older than a second, its replica is restarted, the leader is killed."""
    for seed in range(10):
        world = calm(seed)
        world.clock.advance(3000)
        world.producers[0].producing = False
        world.clock.advance(2000)
        old = leader(world)
        victim = others(world, old)[0]
        last = world.replicas[victim].block.position_of(world.checkers.truth.last_index())
        acknowledged = world.producers[0].acknowledged
        world._crash(victim)
        world.disks[victim].files.flip(f"{FOLDER}/batches", last + 150, 3)
        world._flipped.add(victim)
        world._start(victim)
        assert world.replicas[victim].lame
        world._crash(old.name)
        world.clock.advance(3000)
        assert not any(r.node.role is Role.LEADER for r in world.replicas.values() if not r.stopped)
        world._restart(old.name)
        world.clock.advance(3000)
        assert leader(world).applied >= world.checkers.truth.last_index()
        assert not world.replicas[victim].lame
        assert acknowledged > 0
        world.checkers.same_bytes(world.replicas[victim], world.replicas[victim].committed_bytes())


def test_a_wiped_disk_and_a_dead_leader_mean_no_leader_rather_than_loss() -> None:
    world = calm()
    world.clock.advance(3000)
    old = leader(world)
    victim = others(world, old)[0]
    world._wipe(victim)
    world._crash(old.name)
    world.clock.advance(5000)
    assert not any(r.node.role is Role.LEADER for r in world.replicas.values() if not r.stopped)
    world._restart(old.name)
    before = world.producers[0].acknowledged
    world.clock.advance(3000)
    assert leader(world).name in {old.name, others(world, old)[1]}
    assert world.producers[0].acknowledged > before


@pytest.mark.parametrize("crash_all", [False, True])
def test_a_resend_across_a_change_of_leader_or_a_restart_of_all_is_stored_once(crash_all: bool) -> None:
    world = calm(loss=0.2, duplication=0.3)
    for _ in range(6):
        world.clock.advance(1500)
        for name in world.names if crash_all else [r.name for r in world.replicas.values() if r.node.is_ready][:1]:
            world._crash(name)
        world.clock.advance(300)
        for name in world.names:
            world._restart(name)
    world._heal()
    world._demand_progress()
    assert world.producers[0].stored > 20


def test_a_hundred_thousand_entries_and_a_thousand_terms_leave_equal_replicas(size: str) -> None:
    terms, per_term = (100, 20) if size == "quick" else (1000, 100)
    cluster = Cluster(3)
    cluster.elect("a")
    name = "a"
    for _ in range(terms):
        cluster.propose(name, per_term)
        cluster.deliver()
        target = "abc"[("abc".index(name) + 1) % 3]
        cluster.nodes[name].transfer_leadership(target, cluster.now)
        cluster.deliver()
        assert cluster.nodes[target].role is Role.LEADER
        cluster.begin(target)
        name = target
    cluster.pass_time(200)
    logs = [[(e.index, e.term) for e in cluster.disks[each].log] for each in cluster.names]
    assert logs[0] == logs[1] == logs[2]
    assert len(logs[0]) >= terms * per_term
    assert cluster.nodes[name].term > terms
    assert {node.log.commit for node in cluster.nodes.values()} == {len(logs[0])}


class Broker:
    """Many groups in one process, on one clock, with one coalescer."""

    def __init__(self, name: str, names: list[str], groups: int, incarnation: int, disks: dict[int, Disk], now: float):
        self.name, self.incarnation = name, incarnation
        self.peers = [each for each in names if each != name]
        self.disks = disks
        self.coalescer = Coalescer(name, incarnation, heartbeat_ms=90, election_ms=300)
        self.nodes: dict[str, RaftNode] = {}
        self.awake: set[str] = set()
        self.steps = 0
        for number in range(groups):
            disk = disks[number]
            self.nodes[str(number)] = RaftNode(
                name,
                names,
                RaftLog(disk, disk.log, commit=0, synced=disk.synced),
                hard_state=disk.hard,
                incarnation=incarnation,
                now=now,
                draw_ms=lambda low, high, n=number: low + (n * 7919 + incarnation * 31 + len(name)) % (high - low),
                brokers=self.coalescer.brokers,
            )
            self.coalescer.join(self.peers, now)
            self.awake.add(str(number))


class Brokers:
    """Three brokers; messages arrive a moment later."""

    def __init__(self, groups: int) -> None:
        self.names, self.groups, self.now, self.count = ["b0", "b1", "b2"], groups, 0.0, 0
        self.disks = {name: {n: Disk() for n in range(groups)} for name in self.names}
        self.brokers: dict[str, Broker] = {}
        self.queue: list[tuple[str, str, Message | PairHeartbeat]] = []
        self.pair_messages = 0
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        self.count += 1
        self.brokers[name] = Broker(name, self.names, self.groups, self.count, self.disks[name], self.now)

    def perform(self, broker: Broker, group: str) -> None:
        node, disk = broker.nodes[group], broker.disks[int(group)]
        broker.steps += 1
        while True:
            ready = node.ready()
            disk.hard = ready.hard_state or disk.hard
            if ready.truncate_to is not None:
                del disk.log[ready.truncate_to :]
            disk.log += ready.entries
            for message in broker.coalescer.gather(group, ready.messages):
                self.queue.append((message.receiver, group, message))
            node.advance()
            if not ready.entries:
                break
            disk.synced = len(disk.log)
            node.synced(disk.synced, self.now)
        if node.role is Role.LEADER and not node.is_ready and node.log.last_term < node.term:
            if node.log.last_index == 0:
                node.propose(10, Kind.GENESIS, self.now)
            node.propose(10, Kind.BELEADER, self.now)
            self.perform(broker, group)
        if node.asleep and group in broker.awake:
            broker.awake.discard(group)
            assert node.leader is not None
            broker.coalescer.sleeps(group, node.leader, broker.peers)

    def wake(self, broker: Broker, groups: set[str]) -> None:
        for group in groups:
            broker.coalescer.woken(group)
            broker.nodes[group].wake(self.now)
            broker.awake.add(group)

    def deliver(self) -> None:
        while self.queue:
            receiver, group, message = self.queue.pop(0)
            broker = self.brokers[receiver]
            if isinstance(message, PairHeartbeat):
                self.wake(broker, broker.coalescer.hear(message, self.now))
                for each, beat in message.beats:
                    broker.nodes[each].step(beat, self.now)
                    self.perform(broker, each)
                    if not broker.nodes[each].asleep:
                        self.wake(broker, {each})
            else:
                self.wake(broker, {group})
                broker.nodes[group].step(message, self.now)
                self.perform(broker, group)

    def pass_time(self, milliseconds: float) -> None:
        end = self.now + milliseconds
        while self.now < end:
            self.now += 30
            for broker in self.brokers.values():
                self.wake(broker, broker.coalescer.silent(self.now))
                for group in sorted(broker.awake, key=int):
                    broker.nodes[group].tick(self.now)
                    self.perform(broker, group)
                for peer, beat in broker.coalescer.beat(self.now):
                    self.pair_messages += 1
                    self.queue.append((peer, "", beat))
            self.deliver()

    def led(self) -> int:
        return len({g for b in self.brokers.values() for g, n in b.nodes.items() if n.is_ready})


def test_sleeping_groups_cost_nothing_and_wake_when_their_leader_s_broker_restarts(size: str) -> None:
    groups = 100 if size == "quick" else 1000
    world = Brokers(groups)
    world.pass_time(4000)
    assert world.led() == groups
    assert not any(broker.awake for broker in world.brokers.values())
    before = world.pair_messages
    steps = sum(broker.steps for broker in world.brokers.values())
    world.pass_time(9000)
    # Six pairs, one message per interval, whatever the number of groups; and nobody looks at a group.
    assert world.pair_messages - before <= 6 * (9000 / 90 + 1)
    assert sum(broker.steps for broker in world.brokers.values()) == steps
    led = {g for g, node in world.brokers["b0"].nodes.items() if node.is_ready}
    world.start("b0")  # within 200 ms: nobody has missed it yet
    world.pass_time(900)
    assert len(led) > groups / 10
    assert world.led() == groups
