"""One replica of a fetch block, driven: which part it plays, and how it ends.

    leader      named so, in this very process life, with an empty log: takes pushes (`fetch_leader`)
    former      named so, but the process began anew or its session is gone: serves what it has, and asks for a move
    follower    pulls from the leader (`fetch_follower`)
    fenced      the epoch of a move is written down: appends nothing but what mending brings, which ends with a SEAL

Parts change in this order only, and never back; the next leader is the next block's. A fence stops everything that
writes or acknowledges, is durable BEFORE this replica tells where it ends, and what it tells is synced. Of the fenced
replicas the furthest seals, with the state as it has it; the others pull from it until SEAL. Whether the block ends
there the chain says; until then readers see what they saw before.

What is promised when replicas fail. An entry that a reader saw was held by a majority, so one of the replicas that must
answer a fence has it. With `fsync = commit` that holds through power cuts. Otherwise a power cut may take from each
replica that it hits what was not synced, at most `fsync_interval_ms` old, and such a replica does not know; it pulls
that again at once, and only the leader's loss before then makes it final. A replica that does know (rot, or a hole)
is lame: it pulls again from where it ends, and answers a fence with `ReplicaLost` until it is where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from clymq.errors import (
    ClosedError,
    ClymqError,
    CorruptBatch,
    CorruptBlock,
    NotLeader,
    ReplicaLost,
    StaleEpoch,
    StorageError,
)
from clymq.protocol.broker import Pull
from clymq.protocol.hosting import BlockClosed
from clymq.record.batch import Batch
from clymq.replication.entries import Entry
from clymq.replication.fetch_end import FetchEnd
from clymq.replication.fetch_follower import FetchFollower
from clymq.replication.fetch_holders import Holders
from clymq.replication.fetch_leader import Closed, FetchLeader
from clymq.replication.fetch_log import FetchLog
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_source import FetchSource
from clymq.replication.fetch_surroundings import FetchPlace, PullDone
from clymq.replication.machine import PartitionMachine
from clymq.replication.mend import SealMark, is_whole
from clymq.replication.producers import NEWCOMER, Claim
from clymq.replication.raft_partition import AnswerAll, Begin

log = logging.getLogger("clymq.replication")


class FetchDriver:
    """A block in fetch mode on this broker. Made by a `FetchHost`, which calls `start`."""

    def __init__(self, place: FetchPlace, replica: FetchReplica, machine: PartitionMachine, begin: Begin) -> None:
        self.group = place.group
        self.log = FetchLog(place, replica, machine)
        self.down: ClymqError | None = None
        """Why this replica writes no more, though nobody asked it to stop."""
        self.wants_move: str | None = None
        """Why the partition needs its next block, if it does on this replica's account."""
        self._place = place
        self._owner = place.owner
        self._begin = begin
        self._end = FetchEnd(place, self.log, begin, on_broken=self._fail)
        self._leader: FetchLeader | None = None
        self._follower: FetchFollower | None = None
        self._source = FetchSource(place, self.log)
        self._source.on_damage = self.damaged
        self._holders = Holders(place.group, place.config.fetch_visibility)
        self.log.on_sync = self._synced

    def start(self) -> None:
        """Take the part that the block and its past here call for."""
        group, around = self.group, self._place.around
        if self._end.fenced:
            self._serve_if_sealed()
        elif self.log.replica.in_doubt:
            self._fail(ReplicaLost(f"{group.name}: the vote file is damaged, a fence may be forgotten"))
        elif group.leader != around.name:
            self._follow(group.leader, group.epoch)
        else:
            self._source.epoch = group.epoch
            self._source.on_proof = self._prove
            if around.incarnation == group.leader_incarnation and self.log.block.last_index == 0:
                self._lead()
            elif not self.log.block.sealed:
                self._want_move(f"{group.leader} has begun anew")

    # --- What producers and consumers ask ---

    def push(self, batches: Iterable[Batch], ack: int, answer: AnswerAll) -> None:
        """Store batches that have passed the door's checks; a refusal is raised, all else is answered together."""
        self._leading().push(batches, ack, answer)

    def init_producer(self, producer: bytes, answer: Callable[[object], None], claim: Claim = NEWCOMER) -> None:
        """Give a producer its next epoch; the answer is `Initialised`, or an error."""
        self._leading().init_producer(producer, answer, claim)

    def write(self, entry: Entry, answer: Callable[[object], None], *, visible: bool = False) -> None:
        """Put a control entry into the log; with `visible`, answered when a majority holds it."""
        self._leading().write(entry, answer, visible=visible)

    def check_writing(self) -> None:
        """Raise unless this replica leads the block and would take something now."""
        self._leading().check_open()

    @property
    def leads(self) -> bool:
        """Whether this replica takes pushes."""
        return self._leader is not None and self._leader.over is None

    @property
    def visible_end(self) -> int:
        """The end of what readers see."""
        return self.log.visible.offset

    def read(self, offset: int, bytes_max: int) -> memoryview:
        """Return whole visible batches from an offset on; from the leader, whether or not it still takes pushes."""
        if self._place.around.name != self.group.leader:
            raise self._not_leader()
        try:
            return self.log.read(offset, bytes_max)
        except (CorruptBatch, CorruptBlock) as error:
            self.damaged(error)
            raise NotLeader(f"{self.group.leader} has lost part of {self.group.name}") from error

    def damaged(self, error: StorageError) -> None:
        """A read met damage. What is behind it may be nowhere else: nothing is cut, and another leader is needed."""
        if self._leader is not None and self.down is None:
            self._leader.fail(error)
        else:
            self._fail(error)

    # --- What other replicas and the controller ask ---

    def pull(self, pull: Pull, answer: PullDone) -> None:
        """Answer another replica; a refusal is raised, all else is answered."""
        self._source.pull(pull, answer)

    def held(self) -> dict[str, int]:
        """Return the last entry that each follower has proved to hold, to look at; a leader's to know."""
        return self._holders.held()

    def seal(self, epoch: int, answer: Closed, leases: Sequence[bytes] = ()) -> None:
        """End the block in good order, for the move that this epoch belongs to; only its leader can."""
        self._end.check_epoch(epoch)
        if self.log.block.sealed:
            self._end.tell(answer)
        elif self._leader is None or self._end.fenced:
            raise self._not_leader()
        else:
            self._leader.seal(answer, leases)

    def fence(self, epoch: int, answer: Closed, *, source: str = "", trusted: bool = False) -> None:
        """Take nothing more from the leader, and tell where this replica ends; a second call is answered anew.

        `source`: who has sealed by now, to pull from until SEAL. `trusted`: as of `seal_after_fence`.
        """
        self._end.check_epoch(epoch)
        if self._end.must_fence(epoch):
            self._stop_writing(StaleEpoch(f"{self.group.name} is fenced by epoch {epoch}"))
            # What others hold from here on they may have from a SEAL that the chain does not choose.
            self._source.on_proof = lambda _pull: None
            self._end.fence(epoch)  # BEFORE it tells its end
        self._end.tell(answer, trusted=trusted)
        self._serve_if_sealed()
        if source and source != self._place.around.name and not self.log.block.sealed:
            self._follow(source, epoch)

    def seal_after_fence(self, epoch: int, answer: Closed, *, trusted: bool = False) -> None:
        """End the block here, because of all that are fenced this replica has come furthest.

        `trusted`: also if it knows that it has lost something; for `fetch_unclean`, and for who forces a seal.
        """

        def sealed(outcome: BlockClosed | ClymqError) -> None:
            self._serve_if_sealed()
            answer(outcome)

        self._end.seal(epoch, sealed, trusted=trusted)
        self._stop_following()

    def accept(self, seal: SealMark) -> bool:
        """The chain names this SEAL as the block's end: show everything if this replica is whole; return whether it is.

        One that is not is taken off its host, and then `give_up_tail` and `mend` are for it.
        """
        if not is_whole(self.log.block, seal):
            return False
        if self.log.show(seal.index):
            self._owner.advanced()
        self._place.around.moved(self)
        return True

    # --- What its host tells it ---

    def perform(self) -> None:
        """Write what has gathered."""
        leader = self._leader
        if leader is not None:
            self._attempt(leader.perform)

    def lose_session(self) -> None:
        """The session with the store is lost, and with it the leadership."""
        if self._leader is not None and not self.log.block.sealed:
            self._leader.step_down(NotLeader(f"{self.group.leader} has lost its session, and {self.group.name}"))
            self._want_move(f"{self.group.leader} has lost its session")

    def retire(self) -> None:
        """This process is about to end: write what has arrived, take nothing more, and let the others have it all."""
        if self._leader is not None and not self.log.block.sealed:
            self._leader.perform()
            self._leader.step_down(NotLeader(f"{self.group.leader} is about to stop, and leaves {self.group.name}"))

    @property
    def is_covered(self) -> bool:
        """Whether nothing would be missed if this replica vanished now."""
        return self._leader is None or self._holders.cover(self.log.block.last_index)

    @property
    def is_begun_by_majority(self) -> bool:
        """Whether a majority has the state that the block begins with; a leader's to know."""
        return self._holders.cover(1)

    def remind(self) -> None:
        """Say again what nobody may have heard."""
        if self.down is not None:
            self._owner.replica_down(self.down)
        if self.wants_move is not None and not self.log.block.sealed:
            self._owner.ask_for_move(self.wants_move)

    def checkpoint(self) -> bool:
        """Keep the machine's state; return whether that is done, or never will be."""
        if self.down is not None:
            return True
        saved: list[bool] = []
        self._attempt(lambda: saved.append(self.log.checkpoint()))
        return saved[0] if saved else True

    def close(self) -> None:
        """Let go of the files; whoever waits is told."""
        self._stop_writing(ClosedError(f"{self.group.name} is closed"))
        self.checkpoint()
        self.log.close()

    # --- Playing a part ---

    def _lead(self) -> None:
        around = self._place.around
        self._leader = FetchLeader(
            self._place,
            self.log,
            schedule=lambda: around.schedule(self),
            on_moved=self._look,
            on_broken=self._fail,
        )
        self._leader.begin(self._begin)

    def _follow(self, source: str, epoch: int) -> None:
        if self._follower is not None and (self._follower.source, self._follower.epoch) == (source, epoch):
            return
        self._stop_following()
        self._follower = FetchFollower(
            self._place, self.log, source=source, epoch=epoch, on_taken=self._taken, on_broken=self._fail
        )
        self._follower.begin()

    def _stop_writing(self, error: ClymqError) -> None:
        self._source.stop(error)
        self._stop_following()
        if self._leader is not None:
            self._leader.stop(error)

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None

    def _want_move(self, reason: str) -> None:
        self.wants_move = reason
        log.warning("%s needs its next block: %s", self.group.name, reason)
        self._owner.ask_for_move(reason)

    # --- What happens to it ---

    def _prove(self, pull: Pull) -> None:
        self._holders.prove(pull.replica, pull.incarnation, pull.index)
        self._look()

    def _look(self) -> None:
        """More is written, or more is held somewhere: let readers see more, and followers have more."""
        if self.log.show(self._holders.visible(self.log.held.index)):
            self._owner.advanced()
        if self._leader is not None:
            self._leader.saw(self.log.visible.index)
        self._place.around.moved(self)
        self._source.wake()

    def _taken(self, seen: bool) -> None:
        self._place.around.moved(self)
        if seen:
            self._owner.advanced()
        self._serve_if_sealed()

    def _synced(self, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        elif self._leader is not None:
            self._leader.settle()

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageError as error:
            self._fail(error)
        except Exception as error:
            # One that does not understand itself must not go on; the other blocks of this process must.
            log.exception("%s: met an error that it has no name for", self.group.name)
            lost = ReplicaLost(f"{self.group.name}: {type(error).__name__}: {error}")
            lost.__cause__ = error
            self._fail(lost)

    def _fail(self, error: ClymqError) -> None:
        """This replica writes no more; it serves what it has, as far as the disk gives it."""
        if self.down is None:
            self.down = error
            log.error("%s: %s is down: %s", self.group.name, self._place.around.name, error)
            self._stop_following()
            if self._leader is not None:
                self._leader.stop(NotLeader(f"{self._place.around.name} is down: {error}"))
            self._owner.replica_down(error)

    # --- Inside ---

    def _serve_if_sealed(self) -> None:
        if self._end.fenced and self.log.block.sealed:
            self._source.epoch = self.log.replica.fence_epoch

    def _leading(self) -> FetchLeader:
        if self._leader is None:
            raise self._not_leader()
        return self._leader

    def _not_leader(self) -> NotLeader:
        group, name = self.group, self._place.around.name
        hint = group.leader if group.leader != name and not self._end.fenced else None
        return NotLeader(f"{name} does not lead {group.name}", hint=hint)
