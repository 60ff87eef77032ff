"""The largest state that a partition may have fits into a SEAL: one that does not could never be moved again."""

from __future__ import annotations

import pytest

from clymq.config import load
from clymq.errors import ConfigError
from clymq.record import Batch
from clymq.replication import cursors
from clymq.replication.cursors import Cursor, DeadLetter, Group, Groups, Segment
from clymq.replication.entries import EPOCH_MAX, NUMBER_MAX, REASON_CHARACTERS_MAX, Genesis, Range, Seal, batch_of
from clymq.replication.handed_over import HANDED_OVER_BYTES_MAX
from clymq.replication.machine import PartitionMachine, State
from clymq.replication.producers import KEPT_BATCHES, Producers, ProducerState, StoredBatch

PRODUCERS_MAX = 20_000
NAME_CHARACTERS_MAX = 200


def largest_state() -> State:
    """Return a state with every bound reached, in numbers that take nine bytes each."""
    stored = StoredBatch(NUMBER_MAX, NUMBER_MAX, NUMBER_MAX, sparse=True)
    producer = ProducerState(EPOCH_MAX, NUMBER_MAX, NUMBER_MAX, (stored,) * KEPT_BATCHES)
    ranges = cursors.ACKED_RANGES_MAX + cursors.COUNTED_RANGES_MAX
    low = NUMBER_MAX - 4 * ranges
    segments = [Segment(low + 2 * n, low + 2 * n + 1, 1_000_000 if n % 2 else cursors.ACKED) for n in range(1, ranges)]
    dead = DeadLetter(Range(low, NUMBER_MAX), "€" * REASON_CHARACTERS_MAX, NUMBER_MAX)
    names = [f"{n:0{NAME_CHARACTERS_MAX}d}" for n in range(cursors.PSB_GROUPS_MAX)]
    ptp = {name: Group(Cursor(low, segments), NUMBER_MAX) for name in names[: cursors.PTP_GROUPS_MAX]}
    ptp[names[0]].dead = dict.fromkeys(range(NUMBER_MAX - cursors.DEAD_LETTERS_MAX, NUMBER_MAX), dead)
    return State(
        applied=NUMBER_MAX,
        producers=Producers({n.to_bytes(16): producer for n in range(PRODUCERS_MAX)}, EPOCH_MAX),
        groups=Groups(ptp, dict.fromkeys(names, NUMBER_MAX)),
    )


def test_the_largest_state_fits_into_a_seal_and_into_the_genesis_of_the_next_block() -> None:
    machine = PartitionMachine()
    machine._state = largest_state()
    snapshot, leases = machine.checkpoint(), (bytes(HANDED_OVER_BYTES_MAX),)
    for entry in (Seal(end=NUMBER_MAX, snapshot=snapshot, leases=leases), Genesis(b"u" * 16, snapshot, leases)):
        Batch.parse(bytearray(batch_of(entry))).check_crc()
    assert PartitionMachine().restore(snapshot) is None


def test_no_more_producers_can_be_allowed_than_fit() -> None:
    assert load(flags={"producers_max": PRODUCERS_MAX}).producers_max == PRODUCERS_MAX
    with pytest.raises(ConfigError, match="producers_max"):
        load(flags={"producers_max": PRODUCERS_MAX + 1})
