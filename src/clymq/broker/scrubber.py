"""Rot is found although nobody reads: a slow reader of everything that this broker hosts.

What leaves a replica is checked, and what a restart reads; a bit that flips elsewhere would stay until somebody wants
that batch, and until then the block has one good copy less than everybody believes. So each block is read to the end
of what is committed (fetch: visible) once in `scrub_interval_ms`: both checksums of each batch, and that they follow
one another. Damage, and what the disk cannot read, is dealt with as if a reader had met it.

Blocks that have just been sealed and those that have waited longest take turns: where more is written than may be read,
neither would ever be read if the other always came first.

It has time: `scrub_bytes_per_second` at most, one block at a time, in pieces of which none holds up the broker for
longer than a reader does. It remembers when it has read a block and nothing else; a process that begins anew begins
somewhere else, so that one which often does comes to all of them in the end.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple, Protocol

from clymq.broker.hosted_partition import HostedPartition
from clymq.clock import Clock, Turns, pause
from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, StorageError
from clymq.storage.block import Block
from clymq.storage.end import End

# What is read at once, a millisecond's work if its batches are small; a batch that is larger is read alone.
PIECE_BYTES: Final = 16 * 1024
# To read a piece costs something, however little is in it.
PIECE_BYTES_MIN: Final = 4 * 1024
# To choose costs a look at every block: many are chosen at once.
CHOSEN_MAX: Final = 1024
# But not all of them are read if that takes longer than this: what was sealed meanwhile comes before the rest. Who has
# nothing to do looks as often, and so does who could not go on.
LOOK_MS_MAX: Final = 30_000.0
TURN_MS_MAX: Final = 5.0

log = logging.getLogger("clymq.broker")


class Scrubbed(Protocol):
    """A block on this broker, active or sealed."""

    @property
    def file(self) -> Block | None:
        """The log on this broker's disk; None while it is not to be read."""
        ...

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        """Deal with damage that a read has met."""


class _Choice(NamedTuple):
    """A block to be read. `due`: since when it is due, in monotonic milliseconds; below 0 if it was never read."""

    due: float
    uid: str
    number: int
    is_sealed: bool
    partition: HostedPartition

    @property
    def is_new(self) -> bool:
        """Whether it was just sealed."""
        return self.is_sealed and self.due < 0

    @property
    def block(self) -> Scrubbed | None:
        """The block, as long as it is here and what it was."""
        if self.is_sealed:
            return self.partition.sealed.get(self.number)
        active = self.partition.active
        return active if active is not None and active.number == self.number else None


class Scrubber:
    """Reads the blocks of a broker, over and over. `run` is a loop without end."""

    def __init__(
        self, partitions: Callable[[], Sequence[HostedPartition]], clock: Clock, config: Config, *, seed: int
    ) -> None:
        """`seed`: decides in which order blocks are read that never were."""
        self._partitions = partitions
        self._clock = clock
        self._bytes_per_second = config.scrub_bytes_per_second
        self._interval_ms = float(config.scrub_interval_ms)
        self._chance = random.Random(seed)  # noqa: S311 - an order, no secret
        self._due: dict[tuple[str, int, bool], float] = {}
        self._new_was_last = False
        self.read_bytes = 0
        """How much was read since this process began."""
        self.damaged_blocks = 0
        """How often damage was met."""

    async def run(self) -> None:
        """Read what is due, and wait for more; return at once if that is not wanted."""
        while self._bytes_per_second:
            chosen = await self._choose()
            until = self._clock.monotonic_ms() + LOOK_MS_MAX
            for choice in chosen:
                self._new_was_last = choice.is_new
                await self._read(choice)
                if self._clock.monotonic_ms() >= until:
                    break
            if not chosen:
                await pause(self._clock, min(self._interval_ms, LOOK_MS_MAX))

    async def _choose(self) -> list[_Choice]:
        """Return some blocks that are due, in order: new ones and others in turn, the longest due of each first."""
        turns, now = Turns(self._clock, TURN_MS_MAX), self._clock.monotonic_ms()
        known, self._due = self._due, {}
        due: list[_Choice] = []
        for partition in self._partitions():
            # One that mends is not read: it will be when it is whole.
            hosted = [(number, True) for number, block in partition.sealed.items() if block.file is not None]
            if partition.active is not None:
                hosted.append((partition.active.number, False))
            for number, is_sealed in hosted:
                key = partition.uid, number, is_sealed
                since = self._due[key] = known.get(key, -self._chance.random())
                if since <= now:
                    due.append(_Choice(since, *key, partition))
            await turns.give_way()
        pair = [heapq.nsmallest(CHOSEN_MAX, (each for each in due if each.is_new is new)) for new in (True, False)]
        if self._new_was_last:
            pair.reverse()
        in_turn = chain.from_iterable(zip_longest(*pair))
        return [each for each in in_turn if each is not None]

    async def _read(self, choice: _Choice) -> None:
        """Read one block from its first byte; one that becomes another meanwhile is still to be read."""
        block = choice.block
        file = block.file if block is not None else None
        if block is None or file is None:
            return
        key = choice.uid, choice.number, choice.is_sealed
        # What is written meanwhile is for the next time: who follows a writer never comes to an end.
        place, limit, count = End(file.start_offset), file.committed_position, 1
        try:
            while count and place.position < limit:
                if choice.block is not block or block.file is not file:
                    return
                count = self._check(block, file, place)
                await pause(self._clock, 1000 * max(count, PIECE_BYTES_MIN) / self._bytes_per_second)
        except StorageError as error:
            log.warning("%s: cannot be looked through now: %s", file.folder, error)
            self._due[key] = self._clock.monotonic_ms() + LOOK_MS_MAX
        else:
            self._due[key] = self._clock.monotonic_ms() + self._interval_ms

    def _check(self, block: Scrubbed, file: Block, place: End) -> int:
        """Check the next piece; return how much there was, 0 if it is damaged and its block knows."""
        try:
            count = file.check(place, min(PIECE_BYTES, self._bytes_per_second))
        except (CorruptBatch, CorruptBlock) as error:
            log.error("%s: nobody has read it, and it is damaged: %s", file.folder, error)
            self.damaged_blocks += 1
            block.damaged(error)
            return 0
        self.read_bytes += count
        return count
