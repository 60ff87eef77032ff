"""All Raft groups of one process: one clock, one flusher, one heartbeat per pair of brokers.

The host routes messages to groups, lets each group perform once per turn of the event loop, ticks those that are awake,
and writes checkpoints when a group comes to rest. It costs nothing for groups that sleep: what keeps them asleep, and
what wakes them, is between two brokers, not between two replicas (`clymq.raft.groups`).

No thread, socket or time but through what is handed in, so that the simulator runs this very code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from clymq.clock import Clock, Timer
from clymq.config import FRAME_HEAD_BYTES, Config
from clymq.errors import InvalidRequest
from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.messages import Message, RequestVote
from clymq.raft.state import Limits
from clymq.record.layout import Buffer
from clymq.replication.machine import Machine
from clymq.replication.raft_driver import INCARNATION_MAX, RaftDriver
from clymq.replication.replica import Replica
from clymq.replication.surroundings import Driven, Owner
from clymq.storage.flusher import Flusher

# Three looks in each interval: an election is late by a third of a heartbeat, unless many are due (CAMPAIGNS_MAX).
TICKS_PER_HEARTBEAT: Final = 3
REST_MS: Final = 500
CHECKPOINTS_MS_MAX: Final = 10
# Votes that are asked for in groups that are not here yet; more are lost, as any message may be.
EARLY_MAX: Final = 1024
# Groups that run for leader at a tick; the others do at the next ones. When a thousand have lost their leader, or a
# machine was too slow to hear of theirs, all of them at once would keep it so busy that none is done in time.
CAMPAIGNS_MAX: Final = 16

log = logging.getLogger("clymq.replication")


class Links(Protocol):
    """The way to the other brokers. What is sent may be lost; it is never changed."""

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        """Send a replica's message to `message.receiver`, the batches of an append with it."""

    def beat(self, peer: str, beat: PairHeartbeat) -> None:
        """Send a broker's heartbeat."""


class RaftHost:
    """The groups of this process. `start` it, `add` groups, hand it what arrives, `close` it."""

    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        config: Config,
        links: Links,
        draw: Callable[[int, int], int],
        incarnation: int,
    ) -> None:
        self.name = name
        self.clock = clock
        self.draw = draw
        self.limits = Limits(
            election_ms_min=config.election_ms_min,
            election_ms_max=config.election_ms_max,
            heartbeat_ms=config.heartbeat_ms,
            append_bytes_max=min(config.append_bytes_max, config.frame_bytes_max - FRAME_HEAD_BYTES),
            window_messages=config.append_window,
        )
        self.uncommitted_bytes_max = config.uncommitted_bytes_max
        self.flusher = Flusher(clock, config)
        self._links = links
        self._checkpoint_ms_max = config.checkpoint_ms_max
        self._coalescer = Coalescer(
            name, incarnation, heartbeat_ms=config.heartbeat_ms, election_ms=config.election_ms_min
        )
        self.brokers = self._coalescer.brokers
        self._drivers: dict[str, RaftDriver] = {}
        self._awake: dict[Driven, None] = {}
        self._scheduled: dict[Driven, None] = {}
        self._end_of_turn: Timer | None = None
        self._unsaved: dict[Driven, _Unsaved] = {}
        self._early: dict[tuple[str, str], tuple[float, RequestVote]] = {}
        self._closed = False
        self._looked_at = clock.monotonic_ms()
        self._has_stood = False
        self._judged_since = -1.0

    def start(self) -> None:
        """Begin to tick."""
        self.clock.call_later(0, self._tick)

    # --- Groups ---

    def add(self, group: str, members: Sequence[str], replica: Replica, machine: Machine, owner: Owner) -> RaftDriver:
        """Host a group; its replica is open, its machine new."""
        if group in self._drivers:
            raise InvalidRequest(f"group {group} is hosted already")
        # One of its own: to the others a replica that was closed and opened is another process, for it may have lost
        # what they know of.
        incarnation = self.draw(1, INCARNATION_MAX)
        driver = RaftDriver(self, group, members, replica, machine, owner, incarnation=incarnation)
        self._drivers[group] = driver
        self._awake[driver] = None
        self._coalescer.join(driver.peers, self.clock.monotonic_ms())
        self.schedule(driver)
        self._hear_early(driver)
        return driver

    def _hear_early(self, driver: RaftDriver) -> None:
        """Hand over what was said to a group before it was here, as if it had been long on its way."""
        oldest = self.clock.monotonic_ms() - self.limits.election_ms_min
        for peer in driver.peers:
            said_at, message = self._early.pop((driver.group, peer), (oldest, None))
            if message is not None and said_at >= oldest:
                driver.receive(message)

    def remove(self, group: str) -> None:
        """Host it no longer; no change if it is not here."""
        driver = self._drivers.get(group)
        if driver is not None:
            driver.close()

    @property
    def groups(self) -> Mapping[str, RaftDriver]:
        """The groups that take part."""
        return self._drivers

    def hand_over(self) -> bool:
        """Give every leadership away, as far as there is somebody to take it; return whether some are still here."""
        handed = [driver.transfer() for driver in list(self._drivers.values())]
        return any(handed)

    def close(self) -> None:
        """Leave all groups. What is on its way is lost, what is acknowledged is on the disk."""
        self._closed = True
        for driver in list(self._drivers.values()):
            driver.close()

    # --- What arrives ---

    def receive(self, group: str, message: Message, payload: Buffer = b"") -> None:
        """Take a message for a group; one for a group that is not here is lost, but for a vote that is asked for.

        The first leader of a new block campaigns as soon as it is told of the block, and the others may be told a
        moment later. Without their votes it would wait for an election timeout, and whoever writes with it.
        """
        driver = self._drivers.get(group)
        if driver is not None:
            driver.receive(message, payload)
        elif isinstance(message, RequestVote):
            self._early.pop((group, message.sender), None)
            if len(self._early) >= EARLY_MAX:
                del self._early[next(iter(self._early))]
            self._early[group, message.sender] = self.clock.monotonic_ms(), message

    def receive_beat(self, beat: PairHeartbeat) -> None:
        """Take another broker's heartbeat, and what it carries for groups that are awake."""
        now = self.clock.monotonic_ms()
        self._judge_anew_if_stood(now)  # BEFORE a broker counts as heard: what it says may be of long ago
        for group in sorted(self._coalescer.hear(beat, now)):
            self._drivers[group].wake()
        for group, message in beat.beats:
            self.receive(group, message)

    def reached(self, peer: str) -> None:
        """A way to another broker is open. What was said before is lost, so groups that are led here say it again.

        They may have fallen asleep without a replica that was silent; a lame one waits to be spoken to, for ever.
        """
        for driver in list(self._drivers.values()):
            if peer in driver.peers and driver.leader == self.name:
                driver.wake()

    # --- Time ---

    def _tick(self) -> None:
        if self._closed:
            return
        try:
            self._let_time_pass()
        finally:
            interval = self.limits.heartbeat_ms
            if self._awake or self._unsaved:
                interval //= TICKS_PER_HEARTBEAT
            self.clock.call_later(interval, self._tick)

    def _let_time_pass(self) -> None:
        now = self.clock.monotonic_ms()
        for group in sorted(self._coalescer.silent(now)):
            self._drivers[group].wake()
        # What is on its way to the disk counts: one that is slower than this must not be asked for more and more.
        campaigns = 0 if self._has_just_stood(now) else CAMPAIGNS_MAX - sum(driver.is_saving for driver in self._awake)
        due = [driver for driver in self._awake if driver.due_at <= now and not driver.is_saving]
        # Who has waited longest comes first: those that cannot win must not keep the others from it.
        for driver in sorted(due, key=lambda driver: driver.due_at):
            if driver.would_campaign:
                if campaigns <= 0:
                    continue
                campaigns -= 1
            driver.tick()
        for peer, beat in self._coalescer.beat(now):
            self._links.beat(peer, beat)
        self._write_checkpoints(now)

    def _has_just_stood(self, now: float) -> bool:
        """Whether this process was stopped, or busy, for long until now: what was said meanwhile is not read yet.

        Not twice in a row: one that is always busy must still find out that a leader is gone.
        """
        stood = now - self._looked_at >= self.limits.election_ms_min and not self._has_stood
        self._looked_at, self._has_stood = now, stood
        return stood

    def _judge_anew_if_stood(self, now: float) -> None:
        """Let leaders find out that they are none, if this process stood still since it looked last."""
        if now - self._looked_at < self.limits.election_ms_min or self._judged_since == self._looked_at:
            return
        self._judged_since = self._looked_at
        for group in sorted(self._coalescer.silent(now)):
            self._drivers[group].wake()
        for driver in list(self._awake):
            driver.look()

    def _write_checkpoints(self, now: float) -> None:
        """Write those that are due, for a little while: each of them waits for the disk, and heartbeats must not."""
        due = [driver for driver, unsaved in self._unsaved.items() if unsaved.due_at(self._checkpoint_ms_max) <= now]
        for driver in due:
            if self.clock.monotonic_ms() - now > CHECKPOINTS_MS_MAX:
                break
            del self._unsaved[driver]
            if not driver.checkpoint():
                self.applied(driver)  # again, when it has rested once more

    # --- What drivers use ---

    def schedule(self, driver: Driven) -> None:
        """Let a driver perform before this turn of the event loop ends, once for all that happens in it."""
        if self._end_of_turn is None:
            self._end_of_turn = self.clock.call_later(0, self._perform)
        self._scheduled[driver] = None

    def settle(self) -> None:
        """Let those perform at once whose disk has nothing to do: nothing more will come of what has just arrived.

        The others wait for the end of the turn, and gather.
        """
        if not self._scheduled:
            return
        idle = [driver for driver in self._scheduled if driver.disk_is_idle]
        for driver in idle:
            del self._scheduled[driver]
        for driver in idle:
            driver.perform()
        if not self._scheduled and self._end_of_turn is not None:
            self._end_of_turn.cancel()  # to be woken for nothing costs as much as to be asked something
            self._end_of_turn = None

    def _perform(self) -> None:
        self._end_of_turn = None
        scheduled, self._scheduled = self._scheduled, {}
        for driver in scheduled:
            driver.perform()

    def gather(self, group: str, messages: Iterable[Message]) -> Sequence[Message]:
        """Keep heartbeats for the next interval; return the messages that go now."""
        return self._coalescer.gather(group, messages)

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        """Send a message, or lose it."""
        self._links.send(group, message, payload)

    def sleeps(self, driver: Driven, leader: str) -> None:
        """A group has fallen asleep."""
        self._awake.pop(driver, None)
        self._coalescer.sleeps(driver.group, leader, driver.peers)

    def woken(self, driver: Driven) -> None:
        """A group is awake."""
        self._awake[driver] = None
        self._coalescer.woken(driver.group)

    def applied(self, driver: Driven) -> None:
        """A group's state or what it has promised has moved: a checkpoint will be due."""
        now = self.clock.monotonic_ms()
        unsaved = self._unsaved.get(driver)
        if unsaved is None:
            self._unsaved[driver] = _Unsaved(now)
        else:
            unsaved.moved_at = now

    def stopped(self, driver: Driven) -> None:
        """A replica is out."""
        if self._drivers.get(driver.group) is driver:
            del self._drivers[driver.group]
            self._coalescer.leave(driver.group, driver.peers)
        for these in (self._awake, self._scheduled, self._unsaved):
            these.pop(driver, None)


class _Unsaved:
    """A group whose last checkpoint is behind its state, since when, and when it last moved."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.moved_at = now

    def due_at(self, checkpoint_ms_max: int) -> float:
        return min(self.moved_at + REST_MS, self.since + checkpoint_ms_max)
