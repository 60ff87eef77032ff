"""The Raft core in memory: what consensus costs in Python before a disk or a socket is touched."""

from __future__ import annotations

import cProfile
import pstats
import time
from functools import partial

from benchmarks.report import Row, at_least, at_most
from clymq.raft.groups import Coalescer
from clymq.raft.log import RaftLog
from clymq.raft.messages import Entry, Kind, Message
from clymq.raft.node import RaftNode
from clymq.raft.state import HardState

NAMES = ("a", "b", "c")
BATCH_BYTES = 16 * 1024


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    entries, turns = (20_000, 3) if quick else (100_000, 5)
    rows = [
        at_least(
            f"committed entries of a group of three, {pipelined} proposed at a time",
            "entries/s per core",
            lambda pipelined=pipelined: commit_rate(entries // (1 if pipelined > 1 else 5), pipelined),  # type: ignore[misc]
            turns=turns,
            target=30_000 if pipelined == 16 else None,
        )
        for pipelined in (1, 16, 64)
    ]
    rows += where_the_time_goes(entries)
    for groups in (10, 1000):
        rows += idle(groups, turns)
    return rows


class Memory:
    """A log store that only remembers."""

    def __init__(self) -> None:
        self.log: list[Entry] = []

    def term(self, index: int) -> int:
        """Return the term of an entry."""
        return self.log[index - 1].term

    def entries(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        """Return entries from `start` on."""
        return self.log[start - 1 : min(end - 1, start - 1 + max(1, bytes_max // BATCH_BYTES))]


def _patience(number: int, low: int, high: int) -> int:
    return low + number * (high - low) // 3


class Group:
    """Three replicas that pass messages by hand; every write is on the disk at once."""

    def __init__(self) -> None:
        self.stores = {name: Memory() for name in NAMES}
        self.nodes = {
            name: RaftNode(
                name,
                NAMES,
                RaftLog(self.stores[name], (), commit=0, synced=0),
                hard_state=HardState(),
                incarnation=number + 1,
                now=0.0,
                draw_ms=partial(_patience, number),
            )
            for number, name in enumerate(NAMES)
        }
        self.queue: list[Message] = []
        self.nodes["a"].campaign(0.0)
        self.perform("a")
        self.deliver()
        for kind in (Kind.GENESIS, Kind.BELEADER):
            self.nodes["a"].propose(BATCH_BYTES, kind, 0.0)
        self.perform("a")
        self.deliver()

    def perform(self, name: str) -> None:
        """Do what `ready` says, until it says nothing."""
        node, store = self.nodes[name], self.stores[name]
        ready = node.ready()
        self.queue += ready.messages
        store.log += ready.entries
        node.advance()
        if ready.entries:
            node.synced(len(store.log), 0.0)
            self.perform(name)

    def deliver(self) -> None:
        """Deliver all messages, and those that they cause."""
        while self.queue:
            waiting, self.queue = self.queue, []
            for message in waiting:
                self.nodes[message.receiver].step(message, 0.0)
                self.perform(message.receiver)

    def commit(self, entries: int, pipelined: int) -> None:
        """Propose so many entries, some at a time, and see them committed."""
        leader = self.nodes["a"]
        for _ in range(entries // pipelined):
            for _ in range(pipelined):
                leader.propose(BATCH_BYTES, Kind.DATA, 0.0)
            self.perform("a")
            self.deliver()
        assert leader.log.commit == leader.log.last_index


def commit_rate(entries: int, pipelined: int) -> float:
    """Return committed entries per second, all three replicas on this one core."""
    group = Group()
    began = time.perf_counter()
    group.commit(entries, pipelined)
    return entries / (time.perf_counter() - began)


def where_the_time_goes(entries: int) -> list[Row]:
    """Profile a run and name the functions that take the most."""
    group = Group()
    profile = cProfile.Profile()
    profile.runcall(group.commit, entries, 16)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    heaviest = sorted(stats.items(), key=lambda item: -item[1][2])[:6]
    return [
        Row(f"share of {_place(where)}", "% of the time, profiled", 100 * own / total)
        for where, (_, _, own, _, _) in heaviest
    ]


def _place(where: tuple[str, int, str]) -> str:
    path, _, function = where
    module = path.rpartition("/")[2].removesuffix(".py")
    return function.strip("{}<>") if module in {"~", ""} else f"{module}.{function}"


def idle(groups: int, turns: int) -> list[Row]:
    """What groups that sleep cost a broker: messages to its two peers, and time to look after them."""
    coalescer = Coalescer("b0", 1, heartbeat_ms=90, election_ms=300)
    peers = ("b1", "b2")
    for number in range(groups):
        coalescer.join(peers, 0.0)
        coalescer.sleeps(str(number), "b0" if number % 3 == 0 else peers[number % 2], peers)
    sent, now = 0, 0.0

    def second() -> float:
        """Live through ten seconds in ticks of 30 ms; return the CPU time of one."""
        nonlocal sent, now
        began = time.process_time()
        sent = 0
        for _ in range(334):
            now += 30
            beats = coalescer.beat(now)
            sent += len(beats)
            for peer, beat in beats:
                coalescer.hear(type(beat)(peer, 7, ()), now)
            coalescer.silent(now)
        return (time.process_time() - began) / 10 * 1e6

    cost = at_most(f"{groups} sleeping groups: time per second", "us of CPU per broker", second, turns=turns)
    return [cost, Row(f"{groups} sleeping groups: messages per second", "messages per broker", sent / 10)]
