"""Servers as processes: each is started, killed with or without its machine, paused and started again, by name.

A process that cannot start (no store, a broken disk) is tried again, as whoever looks after a real one would do.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from clymq.clock import pause
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.remote import RemoteStore
from clymq.metadata.server import StoreServer
from clymq.node.broker import BrokerNode
from clymq.node.zkserver import ZkServerNode
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.server import Server
from clymq.simulation.cluster.loop import Life, LifeClock, VirtualLoop
from clymq.simulation.cluster.network import Network
from clymq.simulation.cluster.watching import WatchedEngine, Watcher, watch_calls
from clymq.storage.memory import MemoryFiles

STORE = "Store"
STORE_ADDRESS = f"{STORE}:2181"
START_AGAIN_MS = 300.0


class Surroundings(Protocol):
    """What a process is given by the world."""

    loop: VirtualLoop
    network: Network
    chance: random.Random
    config: Config
    watcher: Watcher

    def note(self, text: str) -> None:
        """Write a line of the trace."""


class Process(ABC):
    """A name, and the life that it has at the moment."""

    def __init__(self, around: Surroundings, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.life: Life | None = None
        self.clock = LifeClock(around.loop)
        self._around = around

    @property
    def is_up(self) -> bool:
        """Whether it runs, paused or not."""
        return self.life is not None

    def start(self) -> None:
        """Begin a new life; no change if there is one."""
        if self.life is None:
            around = self._around
            around.network.come_back(self.name)
            self.life = Life(around.loop, self.name)
            self.life.spawn(self._run(self.life, random.Random(around.chance.getrandbits(64))))
            around.note(f"{self.name} starts")

    def kill(self, *, silently: bool = False) -> None:
        """End the life that it has, and with `silently` take its machine away as well."""
        life, self.life = self.life, None
        if life is not None:
            self._around.note(f"{self.name} is {'cut off the power' if silently else 'killed'}")
            life.on_killed.append(lambda: self._around.network.lose(life, silently=silently))
            self.lose(power=silently)
            life.kill()

    def lose(self, *, power: bool) -> None:  # noqa: B027  (the store has nothing of that kind)
        """Let go of what only this life has."""

    def pause(self) -> None:
        """Let it stand still."""
        if self.life is not None:
            self._around.note(f"{self.name} stands still")
            self.life.pause()

    def resume(self) -> None:
        """Let it go on."""
        if self.life is not None and self.life.paused:
            self._around.note(f"{self.name} goes on")
            self.life.resume()

    async def _run(self, life: Life, chance: random.Random) -> None:
        while True:
            try:
                await self._serve(life, chance)
                return
            except ClymqError as error:
                self._around.note(f"{self.name} does not start: {type(error).__name__}")
                await pause(self.clock, START_AGAIN_MS)

    @abstractmethod
    async def _serve(self, life: Life, chance: random.Random) -> None:
        """Start the server; return when it serves."""

    def _store(self, life: Life, chance: random.Random) -> RemoteStore:
        around = self._around
        transport = around.network.transport(life)
        return RemoteStore(transport, STORE_ADDRESS, self.clock, around.config, name=self.name, chance=chance.random)


class StoreProcess(Process):
    """The metadata store: the product's engine in memory. It may stall and be cut off; it forgets nothing."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around, STORE, STORE_ADDRESS)
        self._file = StoreFile(None)
        self.engine: Engine = WatchedEngine(self._file, self.clock, around.watcher)

    def close(self) -> None:
        """Let go of what it remembers, when the world has ended."""
        self._file.close()

    async def _serve(self, life: Life, chance: random.Random) -> None:
        around = self._around
        await self.engine.start()
        endpoint = Endpoint(self.clock, around.config, name=STORE, role="store")
        endpoint.handlers.update(StoreServer(self.engine).handlers())
        await Server(around.network.transport(life), endpoint).start(STORE_ADDRESS)


class ZkServerProcess(Process):
    """A zkserver; all it knows is in the store."""

    node: ZkServerNode | None = None

    @property
    def believes_active(self) -> bool:
        """Whether it takes itself for the active one."""
        return self.life is not None and self.node is not None and self.node.controller.is_active

    async def _serve(self, life: Life, chance: random.Random) -> None:
        around = self._around
        node = ZkServerNode(
            self.name,
            around.network.transport(life),
            self.clock,
            around.config,
            self._store(life, chance),
            None,
            chance,
        )
        self.node = node
        await node.start(self.address)

    def lose(self, *, power: bool) -> None:
        self.node = None


class BrokerProcess(Process):
    """A broker and its disk."""

    def __init__(self, around: Surroundings, name: str, address: str, files: Callable[[], MemoryFiles]) -> None:
        super().__init__(around, name, address)
        self.files = files()
        self.node: BrokerNode | None = None

    async def _serve(self, life: Life, chance: random.Random) -> None:
        around = self._around
        node = BrokerNode(
            self.name,
            "/data",
            store=lambda: self._store(life, chance),
            transport=around.network.transport(life),
            files=self.files,
            clock=self.clock,
            config=around.config,
            chance=chance,
        )
        watch_calls(node, self.name, life, around.watcher)
        await node.start(self.address)
        self.node = node

    def lose(self, *, power: bool) -> None:
        """A killed process leaves what it wrote in the page cache; a power cut takes what was not synced."""
        self.node = None
        before = self.files
        self.files = before.crash(self._around.chance if power else _Everything())
        self.files.sync_delay_ms = before.sync_delay_ms


class _Everything:
    """The chance by which a crash loses nothing: as when only the process is gone."""

    def random(self) -> float:
        return 0.3

    def randint(self, a: int, b: int) -> int:
        return b
