"""All fetch blocks of one process: one clock, one flusher, one session with the store.

The host lets each leader write once per turn of the event loop, writes checkpoints when a block comes to rest (or at
intervals, when it never does), and repeats what a replica has to say to the controller until it is heard. A block that
rests costs nothing here; its followers' pulls wait at the leader.

No thread, socket or time but through what is handed in, so that the simulator runs this very code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import InvalidRequest
from clymq.protocol.broker import Pull
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_surroundings import FetchGroup, FetchOwner, FetchPlace, PullDone, Scheduled
from clymq.replication.machine import PartitionMachine
from clymq.replication.raft_partition import Begin
from clymq.storage.flusher import Flusher

TICK_MS: Final = 250
REST_MS: Final = 500
REMIND_MS: Final = 5_000
CHECKPOINTS_PER_TICK: Final = 8


class FetchLinks(Protocol):
    """The way to the other brokers."""

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        """Send a pull; `done` hears the answer, never before this returns, perhaps never."""


class FetchHost:
    """The fetch blocks of this process. `start` it, `add` blocks, hand it what arrives, `close` it."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        config: Config,
        flusher: Flusher,
        links: FetchLinks,
        draw: Callable[[int, int], int],
        incarnation: int,
        session_is_confirmed: Callable[[], bool],
    ) -> None:
        self.name = name
        self.clock = clock
        self.flusher = flusher
        self.draw = draw
        self.incarnation = incarnation
        self.session_is_confirmed = session_is_confirmed
        self._config = config
        self._links = links
        self._drivers: dict[str, FetchDriver] = {}
        self._scheduled: dict[Scheduled, None] = {}
        self._unsaved: dict[Scheduled, _Unsaved] = {}
        self._reminded_at = clock.monotonic_ms()
        self._closed = False

    def start(self) -> None:
        """Begin to tick."""
        self.clock.call_later(TICK_MS, self._tick)

    # --- Blocks ---

    def add(
        self,
        group: FetchGroup,
        replica: FetchReplica,
        machine: PartitionMachine,
        owner: FetchOwner,
        begin: Begin,
        *,
        config: Config | None = None,
        on_made: Callable[[FetchDriver], None] | None = None,
    ) -> FetchDriver:
        """Host a block; its replica is open, its machine new. `config`: the settings of its topic.

        `on_made` is called BEFORE the driver says anything to its owner.
        """
        if group.name in self._drivers:
            raise InvalidRequest(f"{group.name} is hosted already")
        driver = FetchDriver(FetchPlace(self, group, owner, config or self._config), replica, machine, begin)
        self._drivers[group.name] = driver
        if on_made is not None:
            on_made(driver)
        driver.start()
        return driver

    def remove(self, name: str) -> None:
        """Host it no longer; no change if it is not here."""
        driver = self._drivers.pop(name, None)
        if driver is not None:
            driver.close()
            for these in (self._scheduled, self._unsaved):
                these.pop(driver, None)

    @property
    def groups(self) -> Mapping[str, FetchDriver]:
        """The blocks that are hosted."""
        return self._drivers

    def lose_session(self) -> None:
        """The session with the store is lost: nothing that was led under it is led any more."""
        for driver in list(self._drivers.values()):
            driver.lose_session()

    def retire(self) -> None:
        """Lead nothing any more, because this process is about to end; followers are still served."""
        for driver in list(self._drivers.values()):
            driver.retire()

    @property
    def is_covered(self) -> bool:
        """Whether the others have everything that was acknowledged here."""
        return all(driver.is_covered for driver in self._drivers.values())

    def close(self) -> None:
        """Let go of all blocks."""
        self._closed = True
        for name in list(self._drivers):
            self.remove(name)

    # --- Time ---

    def _tick(self) -> None:
        if self._closed:
            return
        now = self.clock.monotonic_ms()
        self._write_checkpoints(now)
        if now - self._reminded_at >= REMIND_MS:
            self._reminded_at = now
            for driver in list(self._drivers.values()):
                driver.remind()
        self.clock.call_later(TICK_MS, self._tick)

    def _write_checkpoints(self, now: float) -> None:
        """Write those that are due, a few at a time: each of them waits for the disk."""
        limit = self._config.checkpoint_ms_max
        due = [driver for driver, unsaved in self._unsaved.items() if unsaved.due_at(limit) <= now]
        for driver in due[:CHECKPOINTS_PER_TICK]:
            if driver.checkpoint():
                self._unsaved.pop(driver, None)
            else:
                # Behind the others: one that waits for its followers keeps nobody from the disk.
                self._unsaved[driver] = self._unsaved.pop(driver)

    # --- What drivers use ---

    def ask(self, peer: str, pull: Pull, done: PullDone) -> None:
        """Send a pull to another broker."""
        self._links.ask(peer, pull, done)

    def schedule(self, driver: Scheduled) -> None:
        """Let a driver perform before this turn of the event loop ends, once for all that happens in it."""
        if not self._scheduled:
            self.clock.call_later(0, self._perform)
        self._scheduled[driver] = None

    def _perform(self) -> None:
        scheduled, self._scheduled = self._scheduled, {}
        for driver in scheduled:
            driver.perform()

    def moved(self, driver: Scheduled) -> None:
        """A replica's state has moved: a checkpoint will be due, unless it is not hosted any more."""
        if self._drivers.get(driver.group.name) is not driver:
            return
        now = self.clock.monotonic_ms()
        unsaved = self._unsaved.get(driver)
        if unsaved is None:
            self._unsaved[driver] = _Unsaved(now)
        else:
            unsaved.moved_at = now


class _Unsaved:
    """A block whose last checkpoint is behind its state, since when, and when it last moved."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.moved_at = now

    def due_at(self, checkpoint_ms_max: int) -> float:
        return min(self.moved_at + REST_MS, self.since + checkpoint_ms_max)
