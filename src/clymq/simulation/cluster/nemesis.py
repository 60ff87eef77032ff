"""Who breaks things: every tenth of a second, each kind of fault at its rate, at somebody who is drawn.

What it breaks it also mends, after a while; what is not mended when the world heals, the world mends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from clymq.config import Config
from clymq.simulation.cluster.checkers import Checkers
from clymq.simulation.cluster.clients import Client
from clymq.simulation.cluster.loop import VirtualLoop
from clymq.simulation.cluster.network import Network
from clymq.simulation.cluster.options import Options
from clymq.simulation.cluster.processes import STORE, BrokerProcess, Process, StoreProcess, ZkServerProcess

STRIKE_SECONDS: Final = 0.1
UNLIMITED: Final = 1 << 62
# Of the faults that may take a machine's power, so many do.
POWER_ODDS: Final = 0.6


class Victims(Protocol):
    """The world, as far as it can be broken."""

    options: Options
    chance: random.Random
    config: Config
    loop: VirtualLoop
    network: Network
    checkers: Checkers
    healed: bool
    store: StoreProcess
    zkservers: list[ZkServerProcess]
    brokers: list[BrokerProcess]

    @property
    def processes(self) -> Sequence[Process]:
        """All servers."""

    @property
    def clients(self) -> Sequence[Client]:
        """All clients."""

    def note(self, text: str) -> None:
        """Write a line of the trace."""


class Nemesis:
    """See the module."""

    def __init__(self, world: Victims) -> None:
        self._world = world
        self._options = world.options
        self._chance = world.chance
        self.both_active = 0

    async def strike(self, seconds: float) -> None:
        """Break things for a while."""
        options = self._options
        faults: list[tuple[float, Callable[[], None]]] = [
            (options.kill_rate, self._kill_broker),
            (options.pause_rate, self._pause_somebody),
            (options.cut_rate, self._cut),
            (options.reset_rate, self._reset),
            (options.isolate_rate, self._isolate),
            (options.stall_rate, self._stall_store),
            (options.zkserver_rate, self._kill_zkserver),
            (options.full_disk_rate, self._fill_disk),
            (options.client_rate, self._restart_client),
        ]
        until = self._world.loop.time() + seconds
        while self._world.loop.time() < until:
            await asyncio.sleep(STRIKE_SECONDS)
            for rate, fault in faults:
                if self._chance.random() < rate * STRIKE_SECONDS:
                    fault()
            self._look_at_zkservers()

    def _look_at_zkservers(self) -> None:
        if all(each.believes_active for each in self._world.zkservers):
            if not self.both_active:
                self._world.note("two zkservers believe to be active")
            self.both_active += 1

    def _outage(self) -> tuple[float, float]:
        """Return how many seconds something lasts: mostly too short for a failover, or else long enough for one."""
        return (3.0, 6.0) if self._chance.random() < 0.4 else (0.1, 2.0)

    def _later(self, low: float, high: float, work: Callable[[], None]) -> None:
        """Do something after a while, unless the world has healed by then."""

        def now() -> None:
            if not self._world.healed:
                work()

        self._world.loop.call_later(self._chance.uniform(low, high), now)

    def _victim(self) -> BrokerProcess:
        """Choose a broker, one that leads rather than another if the options say so."""
        leaders = {tree.now.leader for tree in self._world.checkers.trees.values()}
        leading = [each for each in self._world.brokers if each.name in leaders]
        if leading and self._chance.random() < self._options.leader_bias:
            return self._chance.choice(leading)
        return self._chance.choice(self._world.brokers)

    # --- Processes ---

    def _kill_broker(self) -> None:
        victim = self._victim()
        victim.kill(silently=self._options.power and self._chance.random() < POWER_ODDS)
        self._later(0.05, 3.0, victim.start)

    def _kill_zkserver(self) -> None:
        victim = self._chance.choice(self._world.zkservers)
        victim.kill(silently=self._chance.random() < 0.3)
        self._later(0.05, 3.0, victim.start)

    def _pause_somebody(self) -> None:
        victim: Process = self._victim()
        if self._chance.random() < 0.25:
            victim = self._chance.choice(self._world.zkservers)
        victim.pause()
        self._later(*self._outage(), victim.resume)

    def _stall_store(self) -> None:
        self._world.store.pause()
        self._later(0.05, 2.5, self._world.store.resume)

    def _restart_client(self) -> None:
        self._chance.choice(self._world.clients).restart()

    # --- The network ---

    def _cut(self) -> None:
        """Part the servers in two, or one from all others; clients keep their connections to both sides.

        The store is on one of the sides, or reached by both.
        """
        names = [each.name for each in self._world.processes]
        if self._chance.random() < 0.5:
            names.remove(STORE)
        left = [name for name in names if self._chance.random() < 0.5]
        if self._chance.random() < self._options.leader_bias:
            left = [self._victim().name]
        self._world.note(f"{left} are cut off")
        self._hold([(one, other) for one in left for other in names if other not in left])

    def _isolate(self) -> None:
        """Cut one server off the store and nothing else; or let the orders of an active zkserver arrive too late.

        Then nothing that it sends reaches some broker, and after a moment it is cut off the store: when its orders
        arrive, it has long been the other's turn.
        """
        active = [each for each in self._world.zkservers if each.believes_active]
        if active and self._chance.random() < 0.5:
            name, broker = self._chance.choice(active).name, self._victim().name
            self._world.note(f"{broker} will hear from {name} too late")
            self._hold_for(3.0, 6.0, [(name, broker)])
            cut = [(name, STORE), (STORE, name)]
            self._later(0.2, 1.0, lambda: self._hold_for(3.0, 6.0, cut))
            return
        victim: Process = self._chance.choice(active) if active and self._chance.random() < 0.6 else self._victim()
        self._world.note(f"{victim.name} is cut off the store")
        self._hold([(victim.name, STORE)])

    def _hold(self, pairs: list[tuple[str, str]]) -> None:
        if not self._options.one_way:
            pairs += [(receiver, sender) for sender, receiver in pairs]
        elif self._chance.random() < 0.5:
            pairs = [(receiver, sender) for sender, receiver in pairs]

        self._hold_for(*self._outage(), pairs)

    def _hold_for(self, low: float, high: float, pairs: list[tuple[str, str]]) -> None:
        def release() -> None:
            for pair in pairs:
                self._world.network.release(*pair)

        for pair in pairs:
            self._world.network.hold(*pair)
        self._later(low, high, release)

    def _reset(self) -> None:
        names = [each.name for each in self._world.processes] + [each.name for each in self._world.clients]
        self._world.network.reset(*self._chance.sample(names, 2))

    # --- Disks ---

    def _fill_disk(self) -> None:
        victim = self._victim()
        room = self._world.config.disk_reserve_bytes + self._chance.randint(0, 4000)
        victim.files.capacity_bytes = victim.files._root.bytes() + room
        self._world.note(f"the disk of {victim.name} is full")

        def free() -> None:
            victim.files.capacity_bytes = UNLIMITED

        self._later(0.1, 2.0, free)
