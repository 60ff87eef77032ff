"""De-duplication: who has stored what, and whether a batch is new.

Two tables of one shape. `Producers` is CDM, what is applied: a function of the log alone, the same on every replica,
handed from block to block. `Submitted` is CSM, what a leader has appended: the state that CDM will have once all that
is in the log is applied. It makes the same steps at append that CDM makes at apply, so that a batch is judged against
everything before it in the log, applied or not; it means nothing to anybody but the leader of that term.

A batch is judged BEFORE it is appended, because what is in the file is in the log. The epoch is looked at first: under
another epoch the same number may be another message, and a zombie that is told "stored" would have lost its own.

It knows nothing of offsets but where a batch went, and of time but the append times in headers. Invariants:
* a producer's epoch only rises, also across being dropped and coming back (`epoch_floor`);
* its `last` only rises: by the size of a batch, or by any amount to the number of a SPARSE one;
* `kept` are its last batches, at most `KEPT_BATCHES`, ascending, the highest ending at `last`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from clymq.errors import (
    CorruptBatch,
    InvalidRequest,
    OutOfSequence,
    ProducerFenced,
    TooManyProducers,
    UnknownProducer,
)
from clymq.record import Flag, Header
from clymq.replication.entries import EPOCH_MAX, NUMBER_MAX, Epoch, Life, Number, Producer, ProducerId

# Not a setting: replicas that kept different numbers of batches would differ in their state.
KEPT_BATCHES: Final = 8
OFFSET_UNKNOWN: Final = -1
_SPARSE: Final = int(Flag.SPARSE)
_INIT_PRODUCER: Final = "call InitProducer, then renumber from `next` what it does not report as stored"


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already: append nothing, answer `base_offset` once entry `index` is applied."""

    base_offset: int
    """Where it went; -1 if that is no longer known."""
    index: int
    """At or below the applied index, 0 for instance: answer at once."""


class StoredBatch(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Where a batch of a producer went."""

    cmdindex: Number
    count: Number
    base_offset: Number
    sparse: bool


@dataclass(frozen=True, slots=True)
class Initialised:
    """The answer to InitProducer: numbers below `next` are stored, the last of them as `kept` says."""

    epoch: int
    next: int
    kept: tuple[StoredBatch, ...]


class ProducerState(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One producer: the epoch it may write under, the last number stored, when that was, and where it went."""

    epoch: Epoch
    last: Number
    append_time: int
    kept: Annotated[tuple[StoredBatch, ...], Meta(max_length=KEPT_BATCHES)]
    life: Life = 0
    """Who was given the epoch."""

    def is_followed_by(self, header: Header) -> bool:
        """Whether a batch of this producer carries the next number, or for a SPARSE one any higher number."""
        return header.cmdindex > self.last if header.flags & _SPARSE else header.cmdindex == self.last + 1

    def after(self, header: Header) -> ProducerState:
        """Return the state once a batch that follows is stored."""
        stored = StoredBatch(header.cmdindex, header.count, header.base_offset, bool(header.flags & _SPARSE))
        kept = self.kept[1 - KEPT_BATCHES :] + (stored,)  # noqa: RUF005 half the cost of unpacking, for each batch
        return ProducerState(self.epoch, last_cmdindex(header), header.append_time, kept, self.life)

    def base_offset_of(self, header: Header) -> int:
        """Return where a duplicate went; unknown if it is no longer kept, or was cut differently then."""
        sparse = bool(header.flags & _SPARSE)
        for stored in self.kept:
            ahead = header.cmdindex - stored.cmdindex
            if sparse or stored.sparse:
                if ahead == 0 and sparse == stored.sparse and header.count == stored.count:
                    return stored.base_offset
            elif ahead >= 0 and ahead + header.count <= stored.count:
                return stored.base_offset + ahead
        return OFFSET_UNKNOWN


class Claim(Struct, frozen=True, gc=False):
    """Who asks for an epoch: which life of the producer, and which epoch it was last given here; 0: none."""

    life: int = 0
    epoch: int = 0

    def is_outlived_by(self, state: ProducerState) -> bool:
        """Whether another life has asked since this one was given its epoch.

        Numbers alone do not tell: an epoch above ours may be our own, whose answer was lost. A lower one went with a
        fetch leader.
        """
        if not self.epoch:
            return False  # whoever begins fences all before it
        if not self.life or not state.life:
            return state.epoch > self.epoch
        return state.life != self.life and state.epoch >= self.epoch


NEWCOMER: Final = Claim()


class Producers(Struct, forbid_unknown_fields=True):
    """All producers of a partition by id, as of one place in its log."""

    by_id: dict[ProducerId, ProducerState] = field(default_factory=dict)
    epoch_floor: Annotated[int, Meta(ge=0, le=EPOCH_MAX)] = 0
    """The highest epoch of all that were dropped: whoever comes back begins above it."""

    def store(self, header: Header) -> int:
        """Take a data batch from the log, return the last number before it.

        One that `judge` would not have let in means that the log contradicts itself.
        """
        state = self.by_id.get(header.producer)
        if state is None:
            raise CorruptBatch("producer", f"{header.producer.hex()} was never initialised")
        if header.epoch != state.epoch:
            raise CorruptBatch("epoch", f"{header.epoch} under epoch {state.epoch}")
        if not state.is_followed_by(header):
            raise CorruptBatch("cmdindex", f"{header.cmdindex} after {state.last}")
        self.by_id[header.producer] = state.after(header)
        return state.last

    def initialise(self, entry: Producer, append_time: int) -> Initialised:
        """Take a Producer entry from the log; return the answer, which is true at this place in the log only."""
        known = self.by_id.get(entry.producer)
        if entry.epoch <= (known.epoch if known else self.epoch_floor):
            raise CorruptBatch("epoch", f"{entry.epoch} is not above the one before")
        self.expire(entry.expired)
        last, kept = (known.last, known.kept) if known else (0, ())
        self.by_id[entry.producer] = ProducerState(entry.epoch, last, append_time, kept, entry.life)
        return Initialised(entry.epoch, last + 1, kept)

    def expire(self, expired: Iterable[bytes]) -> None:
        """Drop producers that the leader found idle; their epochs are never given again."""
        for producer in expired:
            state = self.by_id.pop(producer, None)
            if state is not None:
                self.epoch_floor = max(self.epoch_floor, state.epoch)

    def idle(self, before: int) -> tuple[bytes, ...]:
        """Return the producers that stored nothing since this time, in the order of their ids."""
        return tuple(sorted(producer for producer, state in self.by_id.items() if state.append_time < before))

    def copy(self) -> Producers:
        """Return a table that changes on its own; the states in it are frozen and shared."""
        return Producers(dict(self.by_id), self.epoch_floor)

    def ordered(self) -> Producers:
        """Return the same table in the one order in which it is written down."""
        return Producers(dict(sorted(self.by_id.items())), self.epoch_floor)


class Submitted:
    """CSM: what the leader of one term has appended, and which entries of it may still be on their way."""

    def __init__(self, applied: Producers) -> None:
        self.producers = applied.copy()
        # No longer than the part of the log that is not applied, which consensus bounds.
        self._in_flight: dict[bytes, deque[_InFlight]] = {}

    def judge(self, header: Header) -> Duplicate | None:
        """Return None for a batch to append, `Duplicate` for one that is in the log; raise for all others."""
        state = self._state_of(header)
        last = last_cmdindex(header)
        # Without this, number 0 would be "at or below" of a producer that has stored nothing.
        if header.cmdindex < 1 or last > NUMBER_MAX:
            raise InvalidRequest(f"cmdindex {header.cmdindex}: numbers go from 1 to {NUMBER_MAX}")
        if last <= state.last:
            return Duplicate(state.base_offset_of(header), self._carrier(header.producer, last))
        if state.is_followed_by(header):
            return None
        expected = state.last + 1
        raise OutOfSequence(
            f"cmdindex {header.cmdindex} where {expected} was expected", expected=expected, hint=_INIT_PRODUCER
        )

    def store(self, header: Header, index: int, *, applied: int) -> None:
        """Take a data batch that is appended as entry `index`."""
        after = self.producers.store(header)
        in_flight = self._in_flight.get(header.producer)
        if in_flight is None:
            in_flight = self._in_flight[header.producer] = deque()
        while in_flight and in_flight[0].index <= applied:
            in_flight.popleft()
        in_flight.append(_InFlight(after, last_cmdindex(header), index))

    def initialise(self, entry: Producer, append_time: int) -> None:
        """Take a Producer entry that is appended: from here on a lower epoch is refused."""
        self.producers.initialise(entry, append_time)
        for producer in entry.expired:
            self._in_flight.pop(producer, None)

    def next_epoch(self, producer: bytes, claim: Claim = NEWCOMER, *, idle_before: int, producers_max: int) -> Producer:
        """Return the entry to propose for InitProducer, above all epochs that are in the log or on their way there."""
        if not 0 <= claim.life <= NUMBER_MAX or not 0 <= claim.epoch <= EPOCH_MAX:
            raise InvalidRequest(f"life {claim.life} goes from 0 to {NUMBER_MAX}, epoch {claim.epoch} to {EPOCH_MAX}")
        expired = tuple(each for each in self.producers.idle(idle_before) if each != producer)
        known = self.producers.by_id.get(producer)
        if known is not None and claim.is_outlived_by(known):
            raise ProducerFenced(
                f"epoch {claim.epoch} of producer {producer.hex()} has passed; another life of it has {known.epoch}",
                hint="another process uses this producer name",
            )
        if known is None and len(self.producers.by_id) - len(expired) >= producers_max:
            raise TooManyProducers(
                f"the partition has {producers_max} producers, none of them idle for long enough to be dropped",
                hint="use fewer producer names, or raise producers_max",
            )
        epoch = (known.epoch if known else self.producers.epoch_floor) + 1
        if epoch > EPOCH_MAX:
            raise InvalidRequest(
                f"producer {producer.hex()} has used up its {EPOCH_MAX} epochs", hint="use another name"
            )
        return Producer(producer=producer, epoch=epoch, expired=expired, life=claim.life)

    def _state_of(self, header: Header) -> ProducerState:
        """Return the producer's state if the batch was made under its present epoch."""
        state = self.producers.by_id.get(header.producer)
        if state is None:
            raise UnknownProducer(f"producer {header.producer.hex()} is not known here", hint=_INIT_PRODUCER)
        if header.epoch < state.epoch:
            raise ProducerFenced(
                f"epoch {header.epoch} of producer {header.producer.hex()} has passed; it is {state.epoch} now",
                hint="another process uses this producer name",
            )
        if header.epoch > state.epoch:
            raise UnknownProducer(
                f"epoch {header.epoch} of producer {header.producer.hex()} was never given; it is {state.epoch} here",
                hint=_INIT_PRODUCER,
            )
        return state

    def _carrier(self, producer: bytes, last: int) -> int:
        """Return the index of the entry that stores this number; what is in flight no more is applied."""
        in_flight = self._in_flight.get(producer, ())
        return next((each.index for each in in_flight if each.after < last <= each.last), 0)


class _InFlight(Struct, frozen=True, gc=False):
    """A batch that carries the numbers behind `after`, up to `last`, as entry `index`."""

    after: int
    last: int
    index: int


def last_cmdindex(header: Header) -> int:
    """Return the last number that a batch covers: a SPARSE one covers only one."""
    return header.cmdindex if header.flags & _SPARSE else header.cmdindex + header.count - 1
