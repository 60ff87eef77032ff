"""A replica's part in the end of its block when the leader is gone: it is fenced, tells where it ends, and may seal.

A fence is durable, and what it tells is synced, BEFORE it is told: the next block begins where the furthest of those
that answered ends, so none of them may ever end earlier or have gone on. Who is told to seal has the state at that end
and writes it into the SEAL, under the epoch of the fence.

A replica may be fenced before it has pulled anything, and so may all the others be. Then the state that the block began
with is nowhere in it, and whoever seals writes the GENESIS first; without it the next block would know no producer.
Such a block ends with entry 2, and shares nothing with what its leader wrote.

What a fenced replica knows to be missing here (it is *lame*) readers may have seen: it does not count, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

from clymq.errors import ClymqError, ReplicaLost, StaleEpoch, StorageError
from clymq.replication.entries import Genesis
from clymq.replication.fetch_leader import Closed
from clymq.replication.fetch_log import FetchLog
from clymq.replication.fetch_surroundings import FetchPlace
from clymq.replication.raft_partition import Begin


class FetchEnd:
    """The fence and the SEAL of one replica. `on_broken` hears of a failed disk."""

    def __init__(
        self, place: FetchPlace, log: FetchLog, begin: Begin, *, on_broken: Callable[[ClymqError], None]
    ) -> None:
        self._place = place
        self._log = log
        self._begin = begin
        self._on_broken = on_broken

    @property
    def fenced(self) -> bool:
        """Whether this replica takes nothing more from the block's leader."""
        return self._log.replica.fence_epoch > self._place.group.epoch

    def check_epoch(self, epoch: int) -> None:
        """Refuse what belongs to no later move than the one that made this block, or to an earlier than was seen."""
        made, fence = self._place.group.epoch, self._log.replica.fence_epoch
        if epoch <= made or epoch < fence:
            raise StaleEpoch(f"{self._place.group.name} is of epoch {made}, fenced by {fence}; not {epoch}")

    def must_fence(self, epoch: int) -> bool:
        """Whether this epoch is not written down yet; everything that writes has to stop BEFORE it is."""
        return self._log.replica.fence_epoch != epoch or self._log.replica.in_doubt

    def fence(self, epoch: int) -> None:
        """Write the epoch down."""
        try:
            self._log.replica.fence(epoch)
        except ReplicaLost as error:
            self._on_broken(error)
            raise

    def tell(self, answer: Closed, *, trusted: bool = False) -> None:
        """Say where this replica ends, once that is on its disk; one that misses something must not be counted.

        `trusted`: it is counted all the same, because there is nobody else.
        """
        lame = None if trusted else self._lame
        self._log.when_synced(lambda error: answer(error or (lame and lame()) or self._log.describe()))

    def seal(self, epoch: int, answer: Closed, *, trusted: bool = False) -> None:
        """End the block here: of all that are fenced this replica has come furthest. A second call answers the same.

        `trusted`: somebody has decided that what this replica is known to have lost is lost.
        """
        fence = self._log.replica.fence_epoch
        if epoch != fence or not self.fenced:
            raise StaleEpoch(f"{self._place.group.name} is fenced by epoch {fence}, not {epoch}")
        lame = self._lame()
        if lame is not None:
            if not trusted:
                raise lame
            self._log.forget_loss()
        self._log.when_synced(lambda error: self._seal(epoch, answer, error))

    # --- Inside ---

    def _seal(self, epoch: int, answer: Closed, error: ClymqError | None) -> None:
        """Everything is synced, and the machine has taken it: append what is missing, and tell when that is synced."""
        block = self._log.block
        if error is None and not block.sealed and self._log.replica.fence_epoch != epoch:
            error = StaleEpoch(f"{self._place.group.name} was fenced again")
        if error is not None:
            answer(error)
        elif block.sealed:
            self.tell(answer)
        elif block.last_index == 0:
            self._begin(lambda genesis: self._begin_and_seal(epoch, answer, genesis))
        else:
            self._write(lambda: self._log.seal(epoch), answer)

    def _begin_and_seal(self, epoch: int, answer: Closed, genesis: Genesis) -> None:
        if self._log.block.last_index == 0 and self._log.replica.fence_epoch == epoch:
            self._write(lambda: self._log.begin_and_seal(genesis, epoch), answer)
        else:
            self._log.when_synced(lambda error: self._seal(epoch, answer, error))

    def _write(self, write: Callable[[], None], answer: Closed) -> None:
        try:
            write()
        except StorageError as error:
            self._on_broken(error)
            answer(error)
        else:
            self.tell(answer)

    def _lame(self) -> ReplicaLost | None:
        missing = self._log.replica.missing_through
        if not missing:
            return None
        name, last = self._place.around.name, self._log.block.last_index
        return ReplicaLost(f"{self._place.group.name}: {name} ends with entry {last} and had entries up to {missing}")
