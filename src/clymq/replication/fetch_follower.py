"""Following: a replica that pulls what it does not have, and appends it verbatim.

One pull is under way at a time. It names what this replica holds, which is the proof that the leader waits for: with
`fsync = commit` the next pull leaves when the answer to the last is synced, else as soon as it is written. The answer
is taken whole or not at all: it must come from the same epoch, lie where the log ends, and pass both checksums of every
batch; the block itself checks that it follows on. The machine takes each entry as it is written (see `fetch_log`);
readers see what the leader says a majority holds.

What fails is tried again after a pause that doubles, with some chance in it: the leader may be gone, and what comes
next is not for a follower to know. It ends with the SEAL, which it tells the source about once more, as proof, and is
whole when that is on the disk.

The same loop serves a replica that was fenced: it pulls under the epoch of the fence, from the one that has sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from clymq.clock import Timer
from clymq.errors import ClymqError, CorruptBatch, DiskFull, ReplicaLost, RequestTimeout, StorageError
from clymq.protocol.broker import Pull
from clymq.record.batch import Batch
from clymq.replication.fetch_log import FetchLog, Mark, checked
from clymq.replication.fetch_surroundings import FetchPlace, PulledBatches

# What an answer may take beyond the time that it was told to wait.
ANSWER_MS: Final = 5_000
# A disk that was full is believed to be full for so long.
FULL_DISK_MS: Final = 1_000

log = logging.getLogger("clymq.replication")


class FetchFollower:
    """Pulls from one source under one epoch, from `begin` until SEAL or `stop`."""

    def __init__(
        self,
        place: FetchPlace,
        log: FetchLog,
        *,
        source: str,
        epoch: int,
        on_taken: Callable[[bool], None],
        on_broken: Callable[[ClymqError], None],
    ) -> None:
        """Follow `source`; `on_taken` hears of what came (whether readers see more), `on_broken` why it gives up."""
        self.source = source
        self.epoch = epoch
        self._place = place
        self._log = log
        self._on_taken = on_taken
        self._on_broken = on_broken
        self._ticket = 0
        self._timer: Timer | None = None
        self._pause_ms = place.config.fetch_retry_ms_min
        self._stopped = False

    def begin(self) -> None:
        """Begin to pull."""
        self._go_on()

    def stop(self) -> None:
        """Take nothing more, not even what is on its way."""
        self._stopped = True
        self._forget()

    # --- Asking ---

    def _pull(self, wait_ms: int) -> None:
        if self._stopped:
            return
        self._forget()
        place, held, ticket = self._place, self._log.held, self._ticket
        around, group = place.around, place.group
        pull = Pull(
            topic=group.topic,
            partition=group.partition,
            uid=group.uid,
            block=group.block,
            bytes_max=place.config.fetch_bytes_max,
            wait_ms_max=wait_ms,
            replica=around.name,
            epoch=self.epoch,
            incarnation=around.incarnation,
            index=held.index,
            position=held.position,
        )
        silent = RequestTimeout(f"{self.source} has not answered a pull of {group.name}")
        self._timer = around.clock.call_later(wait_ms + ANSWER_MS, lambda: self._answered(ticket, held, silent))
        around.ask(self.source, pull, lambda outcome: self._answered(ticket, held, outcome))

    def _forget(self) -> None:
        """Listen no more to the answer, or the pause, that was waited for."""
        self._ticket += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answered(self, ticket: int, held: Mark, outcome: PulledBatches | ClymqError) -> None:
        if ticket != self._ticket:
            return
        self._forget()
        if isinstance(outcome, ClymqError):
            self._pause(outcome)
            return
        try:
            self._take(held, outcome)
        except DiskFull as error:
            self._pause(error, FULL_DISK_MS)
        except (StorageError, ReplicaLost) as error:
            if self._log.block.failure is not None or isinstance(error, ReplicaLost):
                self._break(error)
            else:
                self._pause(error)
        except Exception as error:
            # It would never ask again, and nobody would know.
            log.exception("%s: met an error that it has no name for", self._place.group.name)
            lost = ReplicaLost(f"{self._place.group.name}: {type(error).__name__}: {error}")
            lost.__cause__ = error
            self._break(lost)

    # --- Taking ---

    def _take(self, held: Mark, outcome: PulledBatches) -> None:
        """Append what came, BEFORE anything else: the next pull will say that it is here."""
        reply = outcome.reply
        if reply.epoch != self.epoch or reply.position != held.position or self._log.block.last_index != held.index:
            raise CorruptBatch("position", f"{reply.position} of epoch {reply.epoch} does not answer what was asked")
        batches = checked(outcome.payload)
        for batch in batches:
            self._check_term(batch)
        if batches:
            self._log.write(batches)
        for batch in batches:
            self._log.apply(batch)
        # Of a replica that sealed after a fence nobody knows yet whether its end will be the block's.
        seen = self.epoch == self._place.group.epoch and self._log.show(reply.visible - 1)
        self._pause_ms = self._place.config.fetch_retry_ms_min
        self._on_taken(seen)
        self._go_on()

    def _check_term(self, batch: Batch) -> None:
        """All entries are of the block's one leader; of whoever sealed after a fence only the SEAL may be.

        Unless that one had nothing: then the block's only other entry is its GENESIS, and not the leader's.
        """
        made = batch.term == self._place.group.epoch
        sealed = batch.term == self.epoch and (batch.is_seal or batch.index == 1)
        begun_elsewhere = sealed and not made and batch.index == 2 and self._log.block.last_index == 1
        if not (made or sealed) or begun_elsewhere:
            raise CorruptBatch("term", f"entry {batch.index} of epoch {batch.term} may not follow what is here")

    def _go_on(self) -> None:
        block = self._log.block
        if self._stopped:
            return
        if block.sealed:
            self._log.when_synced(self._sealed)
        elif self._log.held.index < block.last_index:
            self._log.when_synced(self._synced)
        else:
            self._pull(self._place.config.fetch_wait_ms_max)

    def _synced(self, error: ClymqError | None) -> None:
        if self._stopped:
            return
        if error is None:
            self._go_on()
        else:
            self._break(error)

    def _sealed(self, error: ClymqError | None) -> None:
        if self._stopped:
            return
        if error is not None:
            self._break(error)
            return
        self._pull(0)
        self.stop()
        log.info("%s: %s is whole", self._place.group.name, self._place.around.name)
        self._place.owner.whole()

    def _pause(self, error: ClymqError, pause_ms: int = 0) -> None:
        pause_ms = max(pause_ms, self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, self._place.config.fetch_retry_ms_max)
        log.debug("%s: no batches from %s: %s", self._place.group.name, self.source, error)
        around = self._place.around
        self._timer = around.clock.call_later(around.draw(pause_ms // 2, pause_ms), self._go_on)

    def _break(self, error: ClymqError) -> None:
        self.stop()
        self._on_broken(error)
