"""A few `RaftNode`s, a network and disks that do exactly what a test tells them; and a transcript of what happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from clymq.raft.log import RaftLog
from clymq.raft.messages import Entry, Kind, Message
from clymq.raft.node import RaftNode, Ready
from clymq.raft.state import HardState, Limits, Presence, Role

M = TypeVar("M", bound=Message)


class Disk:
    """What one replica has written: a `LogStore`, its hard state, and how far it is synced."""

    def __init__(self, entries: Iterable[Entry] = (), hard: HardState | None = None) -> None:
        self.log = list(entries)
        self.hard = hard or HardState()
        self.synced = len(self.log)

    def term(self, index: int) -> int:
        return self.log[index - 1].term

    def entries(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        chosen: list[Entry] = []
        size = 0
        for entry in self.log[start - 1 : end - 1]:
            size += entry.length
            if chosen and size > bytes_max:
                break
            chosen.append(entry)
        return chosen


def entries(*terms: int, kind: Kind = Kind.DATA) -> list[Entry]:
    """Return a log with entries of these terms, 10 bytes each."""
    return [Entry(n + 1, term, 10 * n, 10, kind) for n, term in enumerate(terms)]


def node(
    me: str = "a",
    members: str = "abc",
    *,
    log: Iterable[Entry] = (),
    hard: HardState | None = None,
    commit: int = 0,
    lame: bool = False,
    limits: Limits | None = None,
    patience_ms: int = 400,
    brokers: Mapping[str, Presence] | None = None,
) -> RaftNode:
    """Return one replica, alone with its test: process 1, at time 0, with everything on its disk."""
    disk = Disk(log, hard)
    return RaftNode(
        me,
        tuple(members),
        RaftLog(disk, disk.log, commit=commit, synced=disk.synced),
        hard_state=disk.hard,
        incarnation=1,
        now=0.0,
        draw_ms=lambda low, high: patience_ms,
        lame=lame,
        limits=limits,
        brokers=brokers,
    )


def say(kind: type[M], sender: str, term: int, *, receiver: str = "a", own: int = 7, to: int = 0, **fields: Any) -> M:
    """Return a message of process `own` to process `to`."""
    return kind(sender=sender, receiver=receiver, term=term, sender_incarnation=own, receiver_incarnation=to, **fields)


def outcome(replica: RaftNode) -> Ready:
    """Do what `ready` says, at once, syncing nothing; return it."""
    ready = replica.ready()
    replica.advance()
    return ready


class Cluster:
    """Replicas a, b, c, ... on one clock. Messages wait until they are delivered; disks sync at once unless told."""

    def __init__(self, size: int = 3, *, limits: Limits | None = None, seed: int = 1) -> None:
        self.names = [chr(ord("a") + n) for n in range(size)]
        self.limits = limits or Limits()
        self.now = 0.0
        self.chance = random.Random(seed)
        self.disks = {name: Disk() for name in self.names}
        self.nodes: dict[str, RaftNode] = {}
        self.brokers: dict[str, dict[str, Presence]] = {name: {} for name in self.names}
        self.queue: list[Message] = []
        self.sent: list[Message] = []
        self.down: set[str] = set()
        self.slow: set[str] = set()
        self.blocked: Callable[[Message], bool] = lambda message: False
        self.incarnations = 0
        for name in self.names:
            self.start(name)

    # --- Processes ---

    def drawing(self, name: str) -> Callable[[int, int], int]:
        """Return where a replica draws its patience from."""
        return self.chance.randint

    def start(self, name: str, *, lame: bool = False, commit: int = 0) -> RaftNode:
        disk = self.disks[name]
        self.incarnations += 1
        log = RaftLog(disk, disk.log, commit=commit, synced=disk.synced)
        self.nodes[name] = RaftNode(
            name,
            self.names,
            log,
            hard_state=disk.hard,
            incarnation=self.incarnations,
            now=self.now,
            draw_ms=self.drawing(name),
            lame=lame,
            limits=self.limits,
            brokers=self.brokers[name],
        )
        self.down.discard(name)
        return self.nodes[name]

    def crash(self, name: str) -> None:
        """Kill a process; what was not synced is lost."""
        self.down.add(name)
        disk = self.disks[name]
        del disk.log[disk.synced :]

    def load(self, logs: dict[str, list[Entry]], *, terms: dict[str, int] | None = None) -> None:
        """Begin again with these logs on the disks."""
        for name, log in logs.items():
            term = (terms or {}).get(name, max((entry.term for entry in log), default=0))
            self.disks[name] = Disk(log, HardState(term))
            self.start(name)

    # --- Time and messages ---

    def perform(self, name: str) -> None:
        """Do what a driver does with `ready`, in its order."""
        node, disk = self.nodes[name], self.disks[name]
        ready = node.ready()
        if ready.hard_state is not None:
            disk.hard = ready.hard_state
        if ready.truncate_to is not None:
            del disk.log[ready.truncate_to :]
            disk.synced = min(disk.synced, len(disk.log))
        disk.log += ready.entries
        self.sent += ready.messages
        self.queue += [message for message in ready.messages if not self.blocked(message)]
        node.advance()
        if ready.entries and name not in self.slow:
            self.sync(name)

    def sync(self, name: str) -> None:
        self.disks[name].synced = len(self.disks[name].log)
        self.nodes[name].synced(self.disks[name].synced, self.now)
        self.perform(name)

    def step(self, message: Message) -> None:
        if message.receiver not in self.down:
            if self.nodes[message.receiver].asleep and not getattr(message, "asleep", False):
                # A message of the group wakes it; only that a follower has fallen asleep does not.
                self.wake(message.receiver)
            self.nodes[message.receiver].step(message, self.now)
            self.perform(message.receiver)

    def deliver(self, *, limit: int = 10_000) -> None:
        """Deliver all messages, and those that they cause."""
        for name in self.names:
            if name not in self.down:
                self.perform(name)
        while self.queue:
            limit -= 1
            assert limit, "the replicas do not stop talking"
            self.step(self.queue.pop(0))

    def pass_time(self, milliseconds: float, *, step: float = 10) -> None:
        """Let time pass for everybody who is up, delivering what comes of it."""
        end = self.now + milliseconds
        while self.now < end:
            self.now = min(end, self.now + step)
            for name in self.names:
                if name not in self.down:
                    self.nodes[name].tick(self.now)
            self.deliver()

    # --- What a test wants ---

    def elect(self, name: str) -> RaftNode:
        """Make one replica leader with a committed entry of its own term."""
        node = self.nodes[name]
        self.nodes[name]._state.leader = None
        node.campaign(self.now)
        self.deliver()
        assert node.role is Role.LEADER, node.role
        self.begin(name)
        return node

    def begin(self, name: str) -> None:
        """Do what a driver does for a new leader: GENESIS into an empty log, then BELEADER."""
        node = self.nodes[name]
        if node.log.last_index == 0:
            node.propose(10, Kind.GENESIS, self.now)
        if not node.log.sealed:
            node.propose(10, Kind.BELEADER, self.now)
        self.deliver()

    def wake(self, name: str) -> None:
        """Wake a replica as a driver does, with what the heartbeats between brokers say: all that are up were heard."""
        for other in self.names:
            if other not in self.down | {name}:
                self.brokers[name][other] = Presence(self.now, 0)
        self.nodes[name].wake(self.now)
        self.brokers[name].clear()  # nobody else listens to brokers here

    def propose(self, name: str, count: int = 1, kind: Kind = Kind.DATA) -> list[Entry]:
        if self.nodes[name].asleep:
            self.wake(name)
        return [self.nodes[name].propose(10, kind, self.now) for _ in range(count)]

    def leaders(self) -> list[str]:
        return [n for n in self.names if n not in self.down and self.nodes[n].role is Role.LEADER]

    def terms(self, name: str) -> list[int]:
        return [entry.term for entry in self.disks[name].log]
