"""The state machine of a partition: what its log means.

Every replica applies the same entries in the same order and comes to the same state, to the byte; what the state is
for: refusing duplicates (`producers`) and knowing how far consumers have come (`cursors`). It lives in memory, is
checkpointed, and is handed from block to block in SEAL and GENESIS. Raft and fetch blocks use it alike.

It must not know the time, the disk, the network, who leads, or what is in a message. Time and leadership are handed to
the few calls that need them, all of them the leader's; nothing that `apply` does depends on either, nor on a setting.
Cost is per batch: a data batch is applied from its header.

A leader's way with a batch: `judge` it, stamp it, `submitted` BEFORE the next is judged, append; when it is committed
`apply` it like everybody else. Leadership lost, or the append failed: `roll_back`. Invariants:
* entries are applied one by one, none skipped, none after the SEAL;
* until the SEAL, once all that was submitted is applied, what is submitted (CSM) equals what is applied (CDM);
* `checkpoint` is canonical: equal states give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from msgspec import Struct, field

from clymq.errors import BlockSealed, CorruptBatch, InvalidRequest, NotReady
from clymq.record import Batch, Header
from clymq.record.layout import DATA
from clymq.replication.cursors import Cursor, DeadLetter, Groups, Refused
from clymq.replication.entries import (
    REASON_CHARACTERS_MAX,
    UNREADABLE,
    BeLeader,
    Dead,
    Entry,
    Genesis,
    HandOver,
    Number,
    Producer,
    Range,
    Seal,
    corrupt,
    decode,
)
from clymq.replication.producers import (
    NEWCOMER,
    Claim,
    Duplicate,
    Initialised,
    Producers,
    ProducerState,
    Submitted,
)

PRODUCERS_MAX: Final = 10_000
PRODUCER_IDLE_MS_MAX: Final = 7 * 24 * 3600 * 1000
# Of numbers: no block has as many.
DEAD_LETTERS_PER_BLOCK: Final = 2**32


class Machine(Protocol):
    """What a replica's driver runs, whatever its entries mean."""

    @property
    def applied(self) -> int:
        """Index of the last entry that the state contains; 0 before the first."""

    def apply(self, index: int, batch: Header) -> object:
        """Take the next entry; return what whoever proposed it is to be told."""

    def checkpoint(self) -> bytes:
        """Return the state, from which `restore` goes on."""

    def restore(self, state: bytes) -> None:
        """Go on from a checkpoint; from the beginning if it is empty."""


@dataclass(frozen=True, slots=True)
class Elected:
    """A BeLeader entry was applied: who leads which term, and the leases that the leader before handed over."""

    replica: str
    term: int
    leases: tuple[bytes, ...]


Answer = Initialised | Elected | Refused | None


class State(Struct, forbid_unknown_fields=True):
    """All that the log means up to entry `applied`; the one place that changes when an entry is applied."""

    applied: Number = 0
    sealed: bool = False
    leases: tuple[bytes, ...] = ()
    """Handed over by the block before, or by a leader that gives way. They hold for whoever leads next, and for who
    follows it, until somebody has written anything else: from then on they are out of date.
    """
    producers: Producers = field(default_factory=Producers)
    groups: Groups = field(default_factory=Groups)


class PartitionMachine:
    """The machine of a partition, and its leader's view of what is on its way into the log."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX, producer_idle_ms_max: int = PRODUCER_IDLE_MS_MAX) -> None:
        self._producers_max = producers_max
        self._producer_idle_us_max = producer_idle_ms_max * 1000
        self._state = State()
        self._term: int | None = None
        self._submitted: Submitted | None = None
        self._submitted_seq: dict[str, int] = {}
        self._submitted_seal = False

    # --- Every replica ---

    @property
    def applied(self) -> int:
        """Index of the last entry that the state contains; 0 before the first."""
        return self._state.applied

    def apply(self, index: int, batch: Header) -> Answer:
        """Take the next committed entry: a data batch by its header, a control batch whole.

        Return what whoever proposed it is to be told. It is true at this place in the log: asked for later, the
        epoch would be that of the next InitProducer. If this raises, nothing has changed and the replica must stop.
        """
        state = self._state
        if index != state.applied + 1:
            raise InvalidRequest(f"entry {index} cannot be applied after entry {state.applied}")
        if state.sealed:
            raise CorruptBatch("index", f"entry {index} follows the SEAL")
        answer: Answer = None
        if batch.kind == DATA:
            state.producers.store(batch)
            state.leases = ()
        else:
            answer = self._apply_control(index, batch)
        self._state.applied = index
        return answer

    def checkpoint(self) -> bytes:
        """Return the state as of `applied`, canonical. What is only submitted is not in it."""
        return _encode(self._state)

    def restore(self, state: bytes) -> None:
        """Go on from a checkpoint, or from the beginning if it is empty; leadership is lost with the rest."""
        self._state = _decode(state)
        self.roll_back()

    def producer(self, producer: bytes) -> ProducerState | None:
        """Return what is applied of a producer."""
        return self._state.producers.by_id.get(producer)

    def cursor(self, group: str) -> Cursor | None:
        """Return a PTP group's cursor, to look at."""
        found = self._state.groups.ptp.get(group)
        return found.cursor if found else None

    def position(self, group: str) -> int | None:
        """Return a PSB group's position."""
        return self._state.groups.psb.get(group)

    def ptp_groups(self) -> list[str]:
        """Return the names of all groups that have a cursor, sorted."""
        return sorted(self._state.groups.ptp)

    def psb_groups(self) -> list[str]:
        """Return the names of all groups that have a position, sorted."""
        return sorted(self._state.groups.psb)

    def dead_letters(self, group: str) -> dict[int, DeadLetter]:
        """Return a group's dead letters that the dlq is not known to have, by number, ascending."""
        found = self._state.groups.ptp.get(group)
        return dict(found.dead) if found else {}

    def may_lease(self, group: str, offset: int) -> bool:
        """Whether a lease of this group may begin at this offset, or must wait until the lowest hole closes."""
        cursor = self.cursor(group)
        return cursor is None or cursor.may_lease(offset)

    # --- The leader ---

    def lead(self, term: int) -> None:
        """Become leader of a term: batches are judged from when its BeLeader entry is applied."""
        self.roll_back()
        self._term = term

    def roll_back(self) -> None:
        """Forget what is submitted: leadership is lost. What of it is in the log will be applied, or sent again."""
        self._term = None
        self._submitted = None
        self._submitted_seq = {}
        self._submitted_seal = False

    @property
    def leading(self) -> bool:
        """Whether the BeLeader entry of the term that this replica leads is applied."""
        return self._submitted is not None

    @property
    def sealed(self) -> bool:
        """Whether the SEAL is applied."""
        return self._state.sealed

    @property
    def sealing(self) -> bool:
        """Whether a SEAL is on its way into the log."""
        return self._submitted_seal

    def judge(self, header: Header) -> Duplicate | None:
        """Say BEFORE it is appended whether a batch is new (None), or in the log already (`Duplicate`).

        Raise `OutOfSequence` for a gap or a partial overlap, `ProducerFenced` for an epoch that has passed,
        `UnknownProducer` for a producer or an epoch that the log does not know, `NotReady` and `BlockSealed`.
        """
        submitted = self._open()
        if header.kind != DATA:
            raise InvalidRequest("control batches are written by the leader, not pushed")
        return submitted.judge(header)

    def submitted(self, index: int, batch: Header) -> None:
        """Take note of an entry that is stamped and about to be appended, BEFORE the next one is judged or made.

        All entries of a leader but the Genesis and the BeLeader that it begins with.
        """
        submitted = self._open()
        if batch.kind == DATA:
            submitted.store(batch, index, applied=self.applied)
            return
        entry = _entry_of(batch)
        if isinstance(entry, Producer):
            submitted.initialise(entry, batch.append_time)
        elif isinstance(entry, Dead):
            self._submitted_seq[entry.group] = entry.seq + 1
        elif isinstance(entry, Seal):
            self._check_seal(index, entry, batch)
            self._submitted_seal = True

    def init_producer(self, producer: bytes, claim: Claim = NEWCOMER, *, now: int) -> Producer:
        """Return the entry to propose for InitProducer; `apply` answers it. `now` is in microseconds.

        Raise `ProducerFenced` if another life of the producer has come since the one that asks was here.
        """
        return self._open().next_epoch(
            producer, claim, idle_before=now - self._producer_idle_us_max, producers_max=self._producers_max
        )

    def dead(self, group: str, offsets: Range, reason: str, deliveries: int = 0, *, block: int = 1) -> Dead:
        """Return the entry to propose for a range that is given up, under a number that no other has.

        Nor had: a fetch block may lose its last entries when the letter of one has arrived, and if its number were
        given again, to another message, that one's letter would be taken for a repetition. What follows a loss is in
        a later `block`, and each has its own numbers.
        """
        self._open()
        found = self._state.groups.ptp.get(group)
        first = (block - 1) * DEAD_LETTERS_PER_BLOCK + 1
        seq = max(first, found.next_seq if found else 1, self._submitted_seq.get(group, 1))
        reason = reason[:REASON_CHARACTERS_MAX]
        return Dead(group=group, range=offsets, reason=reason, seq=seq, deliveries=deliveries)

    def seal(self, *, end: int, now: int, leases: Sequence[bytes] = ()) -> Seal:
        """Return the entry that ends the block; all that is in the log must be applied."""
        expired = self._state.producers.idle(now - self._producer_idle_us_max)
        return Seal(end=end, snapshot=self._snapshot(expired), leases=tuple(leases), expired=expired)

    # --- Inside ---

    def _open(self) -> Submitted:
        """Return what is submitted, if this replica may submit more."""
        if self._state.sealed or self._submitted_seal:
            raise BlockSealed("the block is sealed", hint="the next block takes it")
        if self._submitted is None:
            raise NotReady("the leader's first entry is not applied here", hint="try again, or ask who leads")
        return self._submitted

    def _apply_control(self, index: int, batch: Header) -> Answer:
        entry = _entry_of(batch)
        match entry:
            case Genesis():
                self._begin(index, entry)
            case BeLeader():
                return self._elect(entry, batch.term)
            case Producer():
                self._state.leases = ()
                return self._state.producers.initialise(entry, batch.append_time)
            case Seal():
                self._end(index, entry, batch)
            case HandOver():
                self._state.leases = entry.leases
            case _:
                self._state.leases = ()
                return self._state.groups.apply(entry)
        return None

    def _begin(self, index: int, entry: Genesis) -> None:
        if index != 1:
            raise CorruptBatch("index", f"a Genesis as entry {index}")
        state = _decode(entry.snapshot)
        if state.applied or state.sealed:
            raise CorruptBatch("snapshot", f"counts {state.applied} entries of another block as applied")
        state.leases = entry.leases
        self._state = state

    def _elect(self, entry: BeLeader, term: int) -> Elected:
        """The entry says which term begins; whether this replica leads it, only its driver can have said.

        Without that, the leader of old that reads its own entry after a restart would take itself for one.
        """
        elected = Elected(entry.replica, term, self._state.leases)
        if term == self._term:
            self._submitted = Submitted(self._state.producers)
        return elected

    def _end(self, index: int, entry: Seal, batch: Header) -> None:
        self._check_seal(index, entry, batch)
        self._state.producers.expire(entry.expired)
        self._state.sealed = True

    def _check_seal(self, index: int, entry: Seal, batch: Header) -> None:
        """The snapshot is the leader's word for the state that every replica must have when it comes to the SEAL.

        A replica with another one has gone astray and must not go on. The leader looks BEFORE it appends: one made
        too early, or followed by an entry before it was proposed, would stop all replicas.
        """
        if index != self.applied + 1:
            raise NotReady(f"a SEAL as entry {index} while entry {self.applied} is the last applied")
        if entry.end != batch.base_offset:
            raise CorruptBatch("end", f"{entry.end}, but the log ends at {batch.base_offset}")
        if entry.snapshot != self._snapshot(entry.expired):
            raise CorruptBatch("snapshot", "differs from the state of this replica")

    def _snapshot(self, expired: Sequence[bytes]) -> bytes:
        """Return the state for the next block: its entries count from 1, and leases travel beside it."""
        producers = self._state.producers.copy()
        producers.expire(expired)
        return _encode(State(producers=producers, groups=self._state.groups))


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(State)


def _encode(state: State) -> bytes:
    return _ENCODER.encode(
        State(state.applied, state.sealed, state.leases, state.producers.ordered(), state.groups.ordered())
    )


def _decode(state: bytes) -> State:
    if not state:
        return State()
    try:
        return _DECODER.decode(state)
    except UNREADABLE as error:
        raise corrupt(error, "state") from None


def _entry_of(batch: Header) -> Entry:
    assert isinstance(batch, Batch), "a control entry is read from its body, which a header does not have"
    entry = decode(batch.payload())
    if isinstance(entry, Seal) != batch.is_seal:
        raise CorruptBatch("flags", f"{batch.flags:#x} on a {type(entry).__name__}")
    return entry
