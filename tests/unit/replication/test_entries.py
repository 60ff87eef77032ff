"""What is written between the messages is read back as it was, or refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clymq.errors import CorruptBatch, InvalidRequest
from clymq.record import Batch
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
    batch_of,
    decode,
    encode,
)
from unit.replication.leader import UID, named

ENTRIES: list[Entry] = [
    Genesis(uid=UID),
    Genesis(uid=UID, snapshot=b"state", leases=(b"one", b"two")),
    BeLeader(replica="Broker0"),
    HandOver(leases=(b"one",)),
    Seal(end=2**63 - 1, snapshot=b"", leases=(b"one",), expired=(named("a"), named("b"))),
    Producer(producer=named("a"), epoch=2**32 - 1, expired=(named("b"),)),
    Prepare(group="北京", offset=0),
    Reset(group="g", offset=7),
    Ack(group="g", ranges=(Range(0, 1), Range(5, 9))),
    Timeout(ended=(EndedLease("g", Range(0, 1)), EndedLease("h", Range(2, 3)))),
    Commit(group="g", offset=12),
    Dead(group="g", range=Range(1, 2), reason="3 deliveries", seq=1),
    Done(group="g", seq=1),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_back_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry
    assert decode(memoryview(encode(entry))) == entry


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_only_a_seal_is_flagged_as_one(entry: Entry) -> None:
    batch = Batch.parse(batch_of(entry))
    assert decode(batch.payload()) == entry
    assert batch.is_seal == isinstance(entry, Seal)


@pytest.mark.parametrize(
    ("field", "payload"),
    [
        ("kind", {"kind": "Nonsense"}),
        ("kind", {"group": "g"}),
        ("offset", {"kind": "Commit", "group": "g"}),
        ("offset", {"kind": "Commit", "group": "g", "offset": -1}),
        ("offset", {"kind": "Commit", "group": "g", "offset": 2**63}),
        ("group", {"kind": "Commit", "group": "", "offset": 1}),
        ("extra", {"kind": "Commit", "group": "g", "offset": 1, "extra": 1}),
        ("producer", {"kind": "Producer", "producer": b"short", "epoch": 1}),
        ("epoch", {"kind": "Producer", "producer": b"p" * 16, "epoch": 0}),
        ("ranges[1]", {"kind": "Ack", "group": "g", "ranges": [[1, 2], [3, 3]]}),
        ("ranges[0]", {"kind": "Ack", "group": "g", "ranges": [[1]]}),
        ("ranges", {"kind": "Ack", "group": "g", "ranges": []}),
        ("ended", {"kind": "Timeout", "ended": []}),
        ("seq", {"kind": "Dead", "group": "g", "range": [1, 2], "reason": "", "seq": 0}),
        ("payload", [1, 2]),
    ],
)
def test_a_malformed_payload_is_corrupt_and_the_field_is_named(field: str, payload: Any) -> None:
    with pytest.raises(CorruptBatch) as caught:
        decode(msgspec.msgpack.encode(payload))
    assert caught.value.field == field


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x82\xa4kind", encode(ENTRIES[0]) + b"\x00"])
def test_bytes_that_are_not_one_msgpack_value_are_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptBatch, match="payload"):
        decode(payload)


@pytest.mark.parametrize(
    "entry",
    [
        Producer(producer=b"short", epoch=1),
        Commit(group="x" * 201, offset=0),
        Commit(group="g", offset=2**64),
        Commit(group="\ud800", offset=0),
        Timeout(ended=()),
    ],
)
def test_what_no_replica_could_read_is_never_written(entry: Entry) -> None:
    with pytest.raises(InvalidRequest, match=type(entry).__name__):
        encode(entry)


def test_a_range_is_never_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        Range(3, 3)
