"""Answering the pulls of other replicas: whole batches, verbatim, from where they are.

A pull says what its sender holds, by index and by position, under the epoch that both must be in. It is looked at
BEFORE it is believed: an entry that ends elsewhere here, or is not here at all, is no proof of anything. Then it is
answered as soon as there is something to say: batches behind that place, more that readers may see, or that the block
is sealed. If there is nothing it waits, no longer than it asked to. Each replica has one pull here at a time.

It serves as long as it has an epoch: a leader its own, also when it takes no more pushes, so that as much as possible
is saved; a replica that was fenced only once it holds a SEAL, and then under the epoch of the fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clymq.clock import Timer
from clymq.errors import (
    ClymqError,
    CorruptBatch,
    CorruptBlock,
    InvalidRequest,
    LogTruncated,
    NotLeader,
    StaleEpoch,
    StorageError,
)
from clymq.protocol.broker import Pull, Pulled
from clymq.replication.fetch_log import FetchLog
from clymq.replication.fetch_surroundings import FetchPlace, PullDone, PulledBatches


@dataclass(slots=True)
class _Waiting:
    """A pull that nothing could be said to yet."""

    pull: Pull
    answer: PullDone
    timer: Timer | None = None


class FetchSource:
    """One replica's answers to the others. `on_proof` and `on_damage` are its driver's to set."""

    def __init__(self, place: FetchPlace, log: FetchLog) -> None:
        self.epoch: int | None = None
        """The epoch to serve under; None: not at all."""
        self.on_proof: Callable[[Pull], None] = lambda _pull: None
        self.on_damage: Callable[[StorageError], None] = lambda _error: None
        self._place = place
        self._log = log
        self._told: dict[str, tuple[int, int]] = {}
        self._waiting: dict[str, _Waiting] = {}

    def pull(self, pull: Pull, answer: PullDone) -> None:
        """Take a pull of another replica; a refusal is raised, all else is answered."""
        self._check(pull)
        self.on_proof(pull)  # may refuse it, BEFORE it takes the place of another
        self._drop(pull.replica)
        waiting = self._waiting[pull.replica] = _Waiting(pull, answer)
        if not self._answer(waiting):
            waiting.timer = self._place.around.clock.call_later(pull.wait_ms_max, lambda: self._give_up(waiting))

    def wake(self) -> None:
        """There is more, or more to be seen: answer whoever waits for it."""
        for waiting in list(self._waiting.values()):
            self._answer(waiting)

    def stop(self, error: ClymqError) -> None:
        """Serve no more; whoever waits is told why."""
        self.epoch = None
        while self._waiting:
            self._end(next(iter(self._waiting.values()))).answer(error)

    # --- Inside ---

    def _check(self, pull: Pull) -> None:
        group, block = self._place.group, self._log.block
        if self.epoch is None:
            raise NotLeader(f"{self._place.around.name} does not serve {group.name}", hint=group.leader)
        if pull.replica not in group.replicas or pull.replica == self._place.around.name:
            raise InvalidRequest(f"{pull.replica!r} holds no other replica of {group.name}")
        if pull.epoch != self.epoch:
            raise StaleEpoch(f"{group.name} is in epoch {self.epoch}, not {pull.epoch}")
        if pull.index > block.last_index:
            raise LogTruncated(f"{pull.replica} holds entry {pull.index}, {group.name} ends with {block.last_index}")
        if pull.position != self._log.mark_of(pull.index).position:
            raise InvalidRequest(f"{group.name}: entry {pull.index} does not end at position {pull.position}")

    def _answer(self, waiting: _Waiting, *, whatever: bool = False) -> bool:
        """Answer if there is something to say, or in any case; return whether it is answered."""
        pull, block, visible = waiting.pull, self._log.block, self._log.visible
        told = self._told.get(pull.replica) == (pull.incarnation, visible.index)
        news = block.last_index > pull.index or not told or block.sealed
        if not news and not whatever:
            return False
        if self._waiting.get(pull.replica) is waiting:
            self._end(waiting)
        try:
            data = self._log.read_at(pull.position, min(pull.bytes_max, self._place.config.fetch_bytes_max))
        except (CorruptBatch, CorruptBlock) as error:
            self.on_damage(error)
            waiting.answer(error)
            return True
        self._told[pull.replica] = (pull.incarnation, visible.index)
        reply = Pulled(
            high_watermark=visible.offset,
            log_start=block.start_offset,
            block=self._place.group.block,
            epoch=pull.epoch,
            position=pull.position,
            visible=visible.index + 1,
            sealed=block.sealed and pull.position + len(data) == block.end_position,
        )
        waiting.answer(PulledBatches(reply, data))
        return True

    def _drop(self, replica: str) -> None:
        """A replica that pulls again has given up the pull before."""
        waiting = self._waiting.get(replica)
        if waiting is not None:
            self._give_up(waiting)

    def _give_up(self, waiting: _Waiting) -> None:
        self._answer(waiting, whatever=True)

    def _end(self, waiting: _Waiting) -> _Waiting:
        del self._waiting[waiting.pull.replica]
        if waiting.timer is not None:
            waiting.timer.cancel()
        return waiting
