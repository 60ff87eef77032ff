"""Batches, as a producer, another broker or a disk might hand them over, and what the log makes of control batches."""

from __future__ import annotations

import struct
from random import Random
from typing import Final

from clymq.errors import ClymqError, CorruptBatch
from clymq.record import Batch, BatchBuilder, Kind, control_batch
from clymq.record.layout import BODY_CRC_AT, HEADER_BYTES, HEADER_CRC_AT, PRODUCER_FIELDS_END, padded, whole_batches
from clymq.replication.entries import (
    Ack,
    BeLeader,
    Commit,
    Dead,
    Done,
    EndedLease,
    Entry,
    Genesis,
    HandOver,
    Prepare,
    Producer,
    Range,
    Reset,
    Seal,
    Timeout,
    encode,
)
from clymq.replication.handed_over import decode_group
from clymq.replication.machine import PartitionMachine
from clymq.simulation.fuzz.mutation import spoilt
from clymq.simulation.fuzz.target import Input, Target, Violated
from clymq.storage.replace import checksum

BATCH_BYTES_MAX: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 200
_U32: Final = struct.Struct("<I")
_BODY_LENGTH_AT: Final = 12


class Batches(Target):
    """Two parts: a batch, and whether its checksums are to be set right."""

    name = "batch"
    full = 1_000_000
    usual = 40_000
    # Of what an lz4 stream reads ahead of itself, and of one batch unpacked into Python's objects.
    bytes_max = 12 * BATCH_BYTES_MAX
    wanted = ("opened", "refused", "applied")

    def open(self) -> None:
        """Build what is spoilt."""
        self._good = good_batches()

    def make(self, chance: Random) -> Input:
        """Spoil a batch; half of them with checksums that are right again."""
        if chance.random() < 0.02:
            return chance.randbytes(chance.randrange(2000)), b""
        return spoilt(chance, chance.choice(self._good), self._good), chance.choice((b"", b"mended"))

    def run(self, given: Input) -> str:
        """Read it the way brokers and consumers do."""
        data = mended(given[0]) if given[1:] == (b"mended",) else given[0]
        try:
            batch = Batch.parse(data, batch_bytes_max=BATCH_BYTES_MAX)
            batch.check()
            whole_batches(memoryview(data))
            return _applied(batch) if batch.kind == Kind.CONTROL else _opened(batch)
        except ClymqError as error:
            if isinstance(error, CorruptBatch) and not error.field:
                raise Violated("what is wrong has no name") from error
            return "refused"


def _opened(batch: Batch) -> str:
    records = list(batch)
    if len(records) != batch.count or len(batch.values()) != batch.count:
        raise Violated(f"{len(records)} messages where the header says {batch.count}")
    batch.check_sizes(MESSAGE_BYTES_MAX)
    return "opened"


def _applied(batch: Batch) -> str:
    machine = PartitionMachine()
    machine.apply(1, batch)
    for record in machine.apply(2, Batch.parse(control_batch(encode(BeLeader(replica="r"))))).leases:  # type: ignore[union-attr]
        decode_group(record)
    machine.restore(machine.checkpoint())
    return "applied"


def good_batches() -> list[bytes]:
    """Return batches with nothing wrong, of every kind."""
    chance = Random(1)
    found: list[bytes] = []
    for codec in ("none", "lz4", "zstd"):
        found.append(BatchBuilder(codec).add(b"v").build(producer="p", cmdindex=1, now=1))
        builder = BatchBuilder(codec)
        for n in range(40):
            headers = {f"h{n}": b"x" * n, "n": None} if n % 3 == 0 else None
            key = chance.randbytes(n % 3) if n % 2 else None
            builder.add(chance.randbytes(n), key=key, headers=headers, timestamp=n * 7)
        found.append(builder.build(producer="p", cmdindex=1, now=1))
        found.append(BatchBuilder(codec).add_values([b"z" * 300] * 300).build(producer="p", cmdindex=1, now=1))
    return found + [control_batch(encode(entry), seal=isinstance(entry, Seal)) for entry in _entries()]


def _entries() -> list[Entry]:
    some, uid = Range(0, 5), bytes(16)
    machine = PartitionMachine()
    first: list[Entry] = [Genesis(uid=uid), Prepare(group="g", offset=0), Commit(group="p", offset=3)]
    for index, entry in enumerate(first, 1):
        machine.apply(index, Batch.parse(control_batch(encode(entry))))
    return [
        Genesis(uid=uid),
        Genesis(uid=uid, snapshot=machine.seal(end=0, now=1).snapshot, leases=(b"\x80",)),
        BeLeader(replica="Broker0"),
        Seal(end=0, snapshot=b"\x80", leases=(b"\x91\xa1g",)),
        Producer(producer=bytes(16), epoch=1, expired=(bytes(16),)),
        Prepare(group="g", offset=0),
        Reset(group="g", offset=9),
        Ack(group="g", ranges=(some,)),
        Timeout(ended=(EndedLease("g", some),)),
        Commit(group="g", offset=1),
        Dead(group="g", range=some, reason="why", seq=1, deliveries=3),
        Done(group="g", seq=1),
        HandOver(leases=(b"\x80",)),
    ]


def mended(data: bytes) -> bytes:
    """Return a batch with the checksums that it should have, so that what is wrong lies deeper."""
    if len(data) < HEADER_BYTES:
        return data
    whole = bytearray(data)
    end = HEADER_BYTES + padded(_U32.unpack_from(whole, _BODY_LENGTH_AT)[0])
    _U32.pack_into(whole, BODY_CRC_AT, crc(whole[:PRODUCER_FIELDS_END] + whole[HEADER_BYTES:end]))
    _U32.pack_into(whole, HEADER_CRC_AT, crc(whole[:HEADER_CRC_AT]))
    return bytes(whole)


def crc(data: bytes | bytearray) -> int:
    """Return the checksum that all our formats use."""
    return int(checksum(bytes(data)), 16)
