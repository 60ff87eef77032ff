"""What a replica of a fetch block may know of the process that it runs in, of its owner, and of its block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.protocol.broker import Pull, Pulled
from clymq.record.layout import Buffer
from clymq.replication.machine import Elected
from clymq.storage.flusher import Flusher


@dataclass(frozen=True, slots=True)
class FetchGroup:
    """One block in fetch mode: whose it is, who holds it, and who leads it, all for as long as it lasts.

    `leader_incarnation` is the one process life in which the leader leads. What replaces a leader is the next block.
    """

    topic: str
    partition: str
    uid: str
    block: int
    epoch: int
    replicas: tuple[str, ...]
    leader: str
    leader_incarnation: int
    was_raft: bool = False
    """It was a Raft block until it was fenced, because its majority was gone: what it holds has terms for epochs."""

    @property
    def name(self) -> str:
        """Tell it from every other block."""
        return f"{self.topic}/{self.partition}~{self.uid}/Block_{self.block}"

    @property
    def majority(self) -> int:
        """How many replicas must hold what readers see."""
        return len(self.replicas) // 2 + 1


@dataclass(frozen=True, slots=True)
class PulledBatches:
    """The answer to a replica's pull, and the whole batches that come with it."""

    reply: Pulled
    payload: Buffer = b""


PullDone = Callable[[PulledBatches | ClymqError], None]


class FetchOwner(Protocol):
    """Whoever runs the block: a partition of a broker, or a test."""

    def leads(self, elected: Elected) -> None:
        """This replica has begun the block and takes pushes; with the leases that the block before handed over."""

    def advanced(self) -> None:
        """Readers may see more."""

    def ask_for_move(self, reason: str) -> None:
        """This leader takes nothing more: the partition needs its next block. Said again until there is one."""

    def replica_down(self, error: ClymqError) -> None:
        """This replica cannot write, or does not know what it once promised."""

    def whole(self) -> None:
        """This replica has pulled everything up to a SEAL, and has it on its disk."""


class Scheduled(Protocol):
    """A replica's driver, as its process sees it."""

    group: FetchGroup

    def perform(self) -> None:
        """Write what has gathered."""

    def checkpoint(self) -> bool:
        """Keep the machine's state; return whether that is done."""
        ...


class FetchSurroundings(Protocol):
    """The process: its time, its chance, its flusher, its session with the store, and its way to the others."""

    name: str
    incarnation: int
    clock: Clock
    flusher: Flusher
    draw: Callable[[int, int], int]
    session_is_confirmed: Callable[[], bool]
    """Whether the store has confirmed this process's session within the last two thirds of its timeout."""

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        """Send a pull to another broker; `done` hears the answer, never before this returns, perhaps never."""

    def schedule(self, driver: Scheduled) -> None:
        """Let a driver perform before this turn of the event loop ends, once for all that happens in it."""

    def moved(self, driver: Scheduled) -> None:
        """A replica's state has moved: a checkpoint will be due."""


@dataclass(frozen=True, slots=True)
class FetchPlace:
    """A block on this broker: the process, the block, its owner, and the settings of its topic."""

    around: FetchSurroundings
    group: FetchGroup
    owner: FetchOwner
    config: Config
