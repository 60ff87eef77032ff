"""A world decided by its seed: replicas, producers, a bad network, bad disks, and somebody who breaks things.

Phase 1: everything goes wrong that the options allow, and the checkers watch. Phase 2: the network heals, what can run
runs, and nothing more is broken; then there must be progress, soon, and all replicas must come to the same bytes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any, Final

from clymq.clock import ManualClock
from clymq.errors import ClymqError, ReplicaLost, StorageError
from clymq.raft.groups import PairHeartbeat
from clymq.raft.messages import AppendResponse, Message, VoteResponse
from clymq.raft.state import Role
from clymq.record.layout import FORMAT_BYTES_MAX, Header
from clymq.simulation.checkers import Checkers, Violation
from clymq.simulation.network import Network
from clymq.simulation.options import Options
from clymq.simulation.process import FOLDER, Disk, Process
from clymq.simulation.producers import Producer
from clymq.storage.checkpoint import Checkpoint
from clymq.storage.memory import MemoryFiles

FAULTS_MS: Final = 10_000
PROGRESS_MS_MAX: Final = 12_000
NEMESIS_MS: Final = 100
RESTART_MS_MAX: Final = 1_500
TRACE_LINES_KEPT: Final = 400


class World:
    """One run."""

    def __init__(self, seed: int, options: Options | None = None) -> None:
        self.seed = seed
        self.options = options or Options.draw(seed)
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.network = Network(self.clock, self.chance, self.options)
        self.checkers = Checkers()
        self.names = tuple(f"r{n}" for n in range(self.options.replicas))
        self.trace: list[str] = []
        self._hash = hashlib.sha256(str(self.options).encode())
        self._incarnations = 0
        self._wiped: set[str] = set()
        self._damaged: set[str] = set()
        self._flipped: set[str] = set()
        self._doomed: set[str] = set()
        self._gone: set[str] = set()
        self._faults = True
        self._sealing = False
        self.disks = {name: Disk(self._files(), n + 1) for n, name in enumerate(self.names)}
        self.founders = {name: disk.identity for name, disk in self.disks.items()}
        self.replicas: dict[str, Process] = {}
        for name in self.names:
            self._start(name)
        self.producers = [Producer(self, f"p{n}") for n in range(self.options.producers)]

    # --- A run ---

    def run(self) -> None:
        """Live through both phases; `Violation` if a promise is broken."""
        self.clock.call_later(NEMESIS_MS, self._nemesis)
        self.clock.advance(FAULTS_MS)
        self._heal()
        self._demand_progress()
        for name, replica in self._live().items():
            self.checkers.same_bytes(replica, replica.committed_bytes())
            self.note(f"{name} ends with {replica.applied} entries applied")

    @property
    def trace_hash(self) -> str:
        """A fingerprint of everything that happened."""
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        line = f"{self.clock.monotonic_ms():10.1f} {text}"
        self._hash.update(line.encode())
        self.trace.append(line)
        if len(self.trace) > 2 * TRACE_LINES_KEPT:
            del self.trace[:-TRACE_LINES_KEPT]

    # --- What replicas and producers use ---

    def carry(self, message: Message, payload: bytes) -> None:
        """Take a message to another replica, if the network will."""
        self._hash.update(repr(message).encode())
        if isinstance(message, VoteResponse) and message.granted and not message.pre:
            self._strike(message.sender, self.options.strike)
        elif isinstance(message, AppendResponse) and not message.rejected:
            self._strike(message.sender, self.options.strike / 20)
        self.network.send(
            message.sender, message.receiver, lambda: self.replicas[message.receiver].receive(message, payload)
        )

    def cut(self, name: str) -> None:
        """A replica has cut its log."""
        self._strike(name, self.options.strike / 20)

    def carry_beat(self, sender: str, receiver: str, beat: PairHeartbeat) -> None:
        """Take the heartbeats of one broker to another."""
        self.network.send(sender, receiver, lambda: self.replicas[receiver].receive_beat(beat))

    def ask(
        self, producer: str, target: str, request: Callable[[Any, Any], None], answer: Callable[[Any, bool], None]
    ) -> None:
        """Take a producer's request to a replica, and the answer back."""

        def reply(outcome: Any, duplicate: bool) -> None:
            self.network.send(target, producer, lambda: answer(outcome, duplicate))

        self.network.send(producer, target, lambda: request(self.replicas[target], reply))

    # --- Starting ---

    def _files(self) -> MemoryFiles:
        files = MemoryFiles(clock=self.clock)
        files.sync_delay_ms = self.options.slow_disk_ms or 1
        return files

    def _start(self, name: str) -> None:
        """Start a process on a disk; one that cannot be started stays out, and is tried again later."""
        self._incarnations += 1
        try:
            verify = name in self._flipped
            self.replicas[name] = Process(self, name, self.disks[name], self._incarnations, verify=verify)
            self._flipped.discard(name)
            self._doomed.discard(name)
        except (StorageError, ReplicaLost) as error:
            self.note(f"{name} does not start: {error}")
            return
        if self.replicas[name].lame:
            self._damaged.add(name)
        self.note(f"{name} starts{' lame' if self.replicas[name].lame else ''}")

    def _live(self) -> dict[str, Process]:
        return {name: replica for name, replica in self.replicas.items() if not replica.stopped}

    # --- Breaking things ---

    def _nemesis(self) -> None:
        if not self._faults:
            return
        self.clock.call_later(NEMESIS_MS, self._nemesis)
        options, chance = self.options, self.chance
        for rate, fault in (
            (options.crash_rate, self._crash),
            (options.pause_rate, self._pause),
            (options.partition_rate, self._partition),
            (options.flip_rate, self._flip),
            (0.3 if options.wipe else 0.0, self._wipe),
            (options.full_disk_rate, self._fill_disk),
            (options.failed_sync_rate, self._fail_sync),
            (options.transfer_rate, self._transfer),
            (0.5 if options.roll else 0.0, self._seal),
        ):
            if chance.random() < rate * NEMESIS_MS / 1000:
                fault(self._victim())
        for name, replica in self.replicas.items():
            if replica.stopped and name not in self._wiped and chance.random() < options.restart_odds:
                self._restart(name)

    def _victim(self) -> str:
        """Choose a replica, the leader rather than another if the options say so."""
        if self.chance.random() < self.options.leader_bias:
            for name, replica in self._live().items():
                if replica.node.role is Role.LEADER:
                    return name
        return self.chance.choice(self.names)

    def _crash(self, name: str) -> None:
        """Cut the power of one replica; it comes back later."""
        replica = self.replicas[name]
        if not replica.stopped:
            replica.stop("power cut")
            disk = self.disks[name]
            delay, full = disk.files.sync_delay_ms, disk.files.capacity_bytes
            disk.files = disk.files.crash(self.chance)
            disk.files.sync_delay_ms, disk.files.capacity_bytes = delay, full

    def _strike(self, name: str, odds: float) -> None:
        """Cut the power of a replica that has just promised something, and let it be back at once: does it remember?"""
        if odds and self._faults and self.chance.random() < odds:
            self.clock.call_later(self.chance.uniform(0, 3), lambda: self._blink(name))

    def _blink(self, name: str) -> None:
        if self._faults and name not in self._wiped:
            self._crash(name)
            self.clock.call_later(self.chance.uniform(1, 40), lambda: self._come_back(name))

    def _come_back(self, name: str) -> None:
        if self._faults:
            self._restart(name)

    def _restart(self, name: str) -> None:
        """Start a stopped one again, from what its disk holds."""
        if self.replicas[name].stopped:
            self._start(name)

    def _pause(self, name: str) -> None:
        replica = self.replicas[name]
        if not replica.stopped and not replica.paused:
            self.note(f"{name} is paused")
            replica.pause()
            self.clock.call_later(self.chance.uniform(50, 1500), replica.resume)

    def _partition(self, name: str) -> None:
        ends = [*self.names, *(producer.name for producer in self.producers)]
        left = {end for end in ends if self.chance.random() < 0.5}
        if self.chance.random() < self.options.leader_bias:
            left = {name, self.producers[0].name}
        self.note(f"the network is cut around {sorted(left)}")
        self.network.cut((left, set(ends) - left), one_way=self.options.one_way)
        self.clock.call_later(self.chance.uniform(100, 1500), self.network.join)

    def _may_damage(self, name: str) -> bool:
        """Whether there is another good copy of everything: never the last one."""
        damaged = {each for each in self._damaged | self._wiped if each in self._wiped or self._still_damaged(each)}
        self._damaged = damaged
        quorum = len(self.names) // 2 + 1
        return name not in damaged and len(damaged) < len(self.names) - quorum

    def _still_damaged(self, name: str) -> bool:
        replica = self.replicas[name]
        return name in self._doomed or replica.stopped or replica.lame or replica.block.loss is not None

    def _flip(self, name: str) -> None:
        """Flip a bit of a stopped replica, in what it knows to be committed or to have promised."""
        replica = self.replicas[name]
        if not replica.stopped or not self._may_damage(name):
            return
        path, known = f"{FOLDER}/batches", replica.block.checkpoint
        if known.position and known.commit_index == known.index:
            self._damaged.add(name)
            self._flipped.add(name)
            files = self.disks[name].files
            position = self.chance.randrange(_bytes_known(known, files.contents(path)))
            files.flip(path, position, self.chance.randrange(8))
            self.note(f"a bit of {name} flips at {position}")

    def _wipe(self, name: str) -> None:
        """Put a new, empty disk where the old one was."""
        if not self._wiped and self._may_damage(name):
            self._wiped.add(name)
            self.replicas[name].stop("its disk is wiped")
            self.disks[name] = Disk(self._files(), 1000 + self._incarnations)
            self._start(name)

    def _fill_disk(self, name: str) -> None:
        files = self.disks[name].files
        files.capacity_bytes = files._root.bytes() + self.chance.randint(0, 4000)
        self.note(f"the disk of {name} is full")

        def free() -> None:
            self.disks[name].files.capacity_bytes = 1 << 62

        self.clock.call_later(self.chance.uniform(100, 1500), free)

    def _fail_sync(self, name: str) -> None:
        if not self.replicas[name].stopped and self._may_damage(name):
            self._damaged.add(name)
            self._doomed.add(name)
            self.note(f"the next sync of {name} fails")
            self.disks[name].files.fail("sync", path="*/batches")

    def _transfer(self, name: str) -> None:
        for replica in self._live().values():
            if replica.node.role is Role.LEADER and replica.name != name:
                replica.transfer(name)

    def _seal(self, _: str) -> None:
        self._sealing = True
        for replica in self._live().values():
            if replica.seal():
                self.note(f"{replica.name} seals")

    # --- Healing, and what must come of it ---

    def _heal(self) -> None:
        self._faults = False
        self._leave_some_behind()
        self.note(f"everything heals but {sorted(self._gone)}")
        self.network.heal()
        for producer in self.producers:
            producer.follows_hints = True
        for name in self.names:
            self.disks[name].files.capacity_bytes = 1 << 62
            self.disks[name].files._faults.clear()
            self.disks[name].files.sync_delay_ms = 1
            if self.replicas[name].paused:
                self.replicas[name].resume()
            if name not in self._gone:
                self._restart(name)

    def _leave_some_behind(self) -> None:
        """Let what is broken for good stay so: wiped disks and, if all copies are good, as many as can be spared."""
        spare = len(self.names) - (len(self.names) // 2 + 1)
        good = not any(self._still_damaged(name) for name in self.names)
        if good and not self._wiped and self.chance.random() < 0.4:
            for name in self.chance.sample(self.names, spare):
                self._crash(name)
                self._gone.add(name)
        self._gone |= self._wiped

    def _demand_progress(self) -> None:
        """Everything that was sent is answered, more is stored, and everybody agrees, within a bound."""
        before = self.checkers.truth.last_index()
        waited = 0
        while waited < PROGRESS_MS_MAX:
            self.clock.advance(200)
            waited += 200
            for name in self.names:
                if name not in self._gone:
                    self._restart(name)
            if waited >= 1000 and self.checkers.truth.last_index() > before:
                for producer in self.producers:
                    producer.producing = False
            if self._sealing and self.checkers.truth.sealed_at is None:
                self._seal("")
            if self._settled(before):
                self.note(f"settled after {waited} ms")
                return
        raise Violation(f"Liveness: no progress within {PROGRESS_MS_MAX} ms of health\n{self._situation()}")

    def _settled(self, before: int) -> bool:
        truth = self.checkers.truth
        live = [replica for name, replica in self._live().items() if name not in self._gone]
        done = truth.sealed_at is not None or (
            truth.last_index() > before and all(producer.idle for producer in self.producers)
        )
        quiet = not any(producer.producing for producer in self.producers) or truth.sealed_at is not None
        return done and quiet and all(r.applied == truth.last_index() and not r.lame for r in live)

    def _situation(self) -> str:
        lines = [
            f"{name}: stopped={r.stopped} role={r.node.role.value} term={r.node.term} lame={r.lame} "
            f"last={r.node.log.last_index} synced={r.node.log.synced} commit={r.node.log.commit} applied={r.applied} "
            f"asleep={r.node.asleep} leader={r.node.leader}"
            for name, r in self.replicas.items()
            if hasattr(r, "node")
        ]
        lines += [f"{p.name}: idle={p.idle} stored={p.stored} sealed={p.sealed}" for p in self.producers]
        return "\n".join(lines)


def _bytes_known(known: Checkpoint, log: bytes) -> int:
    """Return how much of a log a checkpoint vouches for: what is committed, and what was promised behind it."""
    end = min(known.position, len(log))
    for _ in range(known.index, known.missing_through):
        if end == len(log):
            break  # the mark is that of a loss
        end += Header(log, end, batch_bytes_max=FORMAT_BYTES_MAX).length
    return end


def simulate(seed: int, options: Options | None = None) -> World:
    """Run one seed; a violation carries the options and the end of the trace."""
    world = World(seed, options)
    try:
        world.run()
    except (AssertionError, ClymqError) as error:
        error.add_note(f"seed {seed}: {world.options}")
        error.add_note("\n".join(world.trace[-40:]))
        raise
    return world
