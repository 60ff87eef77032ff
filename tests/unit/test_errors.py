"""Errors are data: their codes never change, their flags drive retries."""

from __future__ import annotations

import inspect
import pickle

import pytest

from clymq import errors
from clymq.errors import ClymqError, ConfigError, CorruptBatch, CorruptBlock, OffsetOutOfRange, OutOfSequence

CODES = """
AckMismatch BlockSealed BrokerError BrokerReplaced BufferFull ClosedError ConfigError ConnectFailed ConnectionLost
CorruptBatch CorruptBlock DamagedNode DamagedStore DataLost DiskFailed DiskFull EphemeralParent FolderLocked
FrameTooLarge InvalidName InvalidPath InvalidRequest InvalidState LeaderUnavailable LocalProtocolError LogTruncated
MessageTooLarge MetadataError NodeExists NodeMissing NodeNotEmpty NotController NotEnoughReplicas NotHosted NotLeader
NotPrepared NotReady NotSubscribed OffsetOutOfRange OutOfSequence Overloaded PartitionUnset PipelineFailed
ProducerFenced ProtocolError RemoteProtocolError ReplicaLost RequestTimeout SessionLost StaleEpoch StorageError
TooManyPartitions TooManyProducers TopicExists TransportError UnknownLease UnknownPartition UnknownProducer
UnknownServerError UnknownTopic UnsupportedVersion ValueTooLarge VersionConflict
"""
RETRIABLE = """
AckMismatch BlockSealed BufferFull ConnectFailed ConnectionLost DiskFull LeaderUnavailable NotController NotHosted
NotLeader NotPrepared NotReady Overloaded RequestTimeout SessionLost StaleEpoch TransportError
"""


def all_errors() -> dict[str, type[ClymqError]]:
    found = dict(inspect.getmembers(errors, inspect.isclass))
    return {n: c for n, c in found.items() if issubclass(c, ClymqError) and c is not ClymqError}


def test_codes_are_exactly_the_published_ones() -> None:
    assert sorted(c.code for c in all_errors().values()) == sorted(CODES.split())


def test_the_code_of_an_error_is_its_name() -> None:
    assert all(name == each.code for name, each in all_errors().items())


def test_retriable_errors_are_exactly_the_published_ones() -> None:
    assert sorted(c.code for c in all_errors().values() if c.retriable) == sorted(RETRIABLE.split())


def test_a_hint_follows_the_message() -> None:
    assert str(errors.NotLeader("not leader", hint="ask b2")) == "not leader (ask b2)"
    assert str(errors.NotLeader("not leader")) == "not leader"


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (ConfigError("a", 1, "must be 2", source="f"), {"setting": "a", "value": 1, "allowed": "must be 2"}),
        (CorruptBatch("count", "is 0", position=8), {"field": "count", "position": 8}),
        (CorruptBlock("/x", 9, "torn"), {"path": "/x", "position": 9}),
        (OffsetOutOfRange(5, first=7, end=9), {"offset": 5, "first": 7, "end": 9}),
        (OutOfSequence("gap", expected=4), {"expected": 4}),
        (errors.DataLost("gone", start=1, end=2), {"start": 1, "end": 2}),
        (errors.MessageTooLarge("big", size_bytes=2, limit_bytes=1), {"size_bytes": 2, "limit_bytes": 1}),
    ],
)
def test_fields_can_be_read_and_are_named_in_the_text(error: ClymqError, fields: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in fields} == fields
    assert str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
