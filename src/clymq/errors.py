"""Every error that ClyMQ raises on purpose.

An error is data first: a stable `code` (what programs, the wire and the command line match on), two flags that
drive every retry loop, fields that say what was wrong, and a `hint` that says what to do about it. Nothing that
retries may look at the type: `retriable` says that the same call may succeed later, `refresh` that cached metadata
(who leads, which block, which epoch) must be read anew before it is tried.

The code of a class is its name. Codes are part of the public surface: a class may be added, none is ever renamed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import ClassVar


class ClymqError(Exception):
    """The root of all errors; never raised itself."""

    code: ClassVar[str] = "ClymqError"
    retriable: ClassVar[bool] = False
    refresh: ClassVar[bool] = False

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors differ; what crosses to another process is what they made.
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ClymqError], args: tuple[object, ...], fields: dict[str, object]) -> ClymqError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


# A value may be anything that somebody has put into a file: enough of it is shown to find it there.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 500, 500, 500


def _shown(value: object) -> str:
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no number of more than some thousand digits
        return f"<{type(value).__name__}>"


class ConfigError(ClymqError):
    """A setting has a value that is not allowed, or is not a setting at all."""

    def __init__(self, setting: str, value: object, allowed: str, *, source: str = "") -> None:
        where = f" (from {source})" if source else ""
        super().__init__(f"setting {setting} = {_shown(value)}{where}: {allowed}")
        self.setting = setting
        self.value = value
        self.allowed = allowed
        self.source = source


class ClosedError(ClymqError):
    """The object was closed; what it had promised has been kept or has failed with this error."""


class BufferFull(ClymqError):
    """The producer's buffer has no room: wait for it to drain."""

    retriable = True


class PipelineFailed(ClymqError):
    """A query of a pipeline has ended with an error; what it had done is in its checkpoint."""


# --- Transport: the bytes did not get there, or the answer did not come back. ---


class TransportError(ClymqError):
    """The connection failed; the outcome of a request that was under way is unknown."""

    retriable = True
    refresh = True


class ConnectFailed(TransportError):
    """No connection could be made."""


class ConnectionLost(TransportError):
    """The connection ended while requests were under way."""


class RequestTimeout(TransportError):
    """No answer came in time; the request may or may not have been carried out."""


# --- Protocol: one side does not speak the language. ---


class ProtocolError(ClymqError):
    """The two sides do not agree on the protocol."""


class LocalProtocolError(ProtocolError):
    """Our side tried to send what the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the protocol does not allow."""


class FrameTooLarge(ProtocolError):
    """A frame is longer than the limit both sides agreed on."""


class UnsupportedVersion(ProtocolError):
    """The two sides have no version in common."""


# --- Broker: the server understood and refuses, or cannot answer yet. ---


class BrokerError(ClymqError):
    """A server's typed refusal."""


class NotLeader(BrokerError):
    """This broker does not lead the partition."""

    retriable = True
    refresh = True


class NotReady(BrokerError):
    """The leader has not applied its own first entry yet."""

    retriable = True


class LeaderUnavailable(BrokerError):
    """No leader is known."""

    retriable = True
    refresh = True


class NotController(BrokerError):
    """This zkserver is not the active one."""

    retriable = True
    refresh = True


class StaleEpoch(BrokerError):
    """The request was made under an epoch that has passed."""

    retriable = True
    refresh = True


class BlockSealed(BrokerError):
    """The block takes nothing more; the chain has moved or is about to."""

    retriable = True
    refresh = True


class AckMismatch(BrokerError):
    """The acknowledgement asked for does not fit the partition's mode."""

    retriable = True
    refresh = True


class PartitionUnset(BrokerError):
    """The partition has no mode yet (state -2)."""


class NotHosted(BrokerError):
    """This broker holds no replica of the partition."""

    retriable = True
    refresh = True


class NotEnoughReplicas(BrokerError):
    """Fewer brokers are there than replicas were asked for."""


class OutOfSequence(BrokerError):
    """The producer's `cmdindex` does not follow what is stored; `expected` is the number that would."""

    def __init__(self, message: str, *, expected: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected


class ProducerFenced(BrokerError):
    """A newer process uses this producer name."""


class UnknownProducer(BrokerError):
    """The partition does not know this producer: initialise it first."""


class TooManyProducers(BrokerError):
    """The partition's producer table is full."""


class InvalidRequest(BrokerError):
    """The request or the arguments contradict themselves or a documented rule."""


class ReplicaLost(BrokerError):
    """The replica has lost what it once promised and stays out."""


class LogTruncated(BrokerError):
    """The log was cut below what the caller had read."""

    refresh = True


class DataLost(BrokerError):
    """A sealed range has no whole replica left: [start, end) cannot be read."""

    def __init__(self, message: str, *, start: int, end: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.start = start
        self.end = end


class UnknownTopic(BrokerError):
    """There is no such topic."""

    refresh = True


class UnknownPartition(BrokerError):
    """There is no such partition, or it was created anew since the caller looked."""

    refresh = True


class TopicExists(BrokerError):
    """The topic is there already with other settings."""


class OffsetOutOfRange(BrokerError):
    """The offset is outside [first, end)."""

    def __init__(self, offset: int, *, first: int, end: int, hint: str | None = None) -> None:
        super().__init__(f"offset {offset} is outside [{first}, {end})", hint=hint)
        self.offset = offset
        self.first = first
        self.end = end


class MessageTooLarge(BrokerError):
    """A message or batch is larger than the limit."""

    def __init__(self, message: str, *, size_bytes: int, limit_bytes: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class NotSubscribed(BrokerError):
    """The consumer has no subscription for this."""


class NotPrepared(BrokerError):
    """The cursor was not prepared before reading."""

    retriable = True
    refresh = True


class UnknownLease(BrokerError):
    """The leases have ended or never were; what else the request named is done."""

    def __init__(self, message: str, *, leases: Iterable[int] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.leases = list(leases)


class InvalidName(BrokerError):
    """A name breaks the rule for names."""


class InvalidState(BrokerError):
    """The partition cannot go from its state to the one asked for."""


class TooManyPartitions(BrokerError):
    """The topic has as many partitions as are allowed."""


class Overloaded(BrokerError):
    """The granted window is used up; the request was not looked at."""

    retriable = True


class UnknownServerError(BrokerError):
    """The server met an error that it has no name for."""


# --- Storage: the disk, or what is on it. ---


class StorageError(ClymqError):
    """The disk, or what is on it, cannot be used."""


class CorruptBatch(StorageError):
    """A batch fails its checks; `field` is the part of it that is wrong.

    When the header is whole, [start, end) are the offsets that a reader may step over.
    """

    def __init__(
        self,
        field: str,
        problem: str,
        *,
        position: int | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        at = "" if position is None else f" at position {position}"
        offsets = "" if start is None else f", offsets [{start}, {end})"
        super().__init__(f"corrupt batch{at}{offsets}: {field}: {problem}")
        self.field = field
        self.problem = problem
        self.position = position
        self.start = start
        self.end = end


class CorruptBlock(StorageError):
    """A block's file has lost or damaged what it once held."""

    def __init__(self, path: str, position: int, problem: str) -> None:
        super().__init__(f"corrupt block: {path} at position {position}: {problem}")
        self.path = path
        self.position = position
        self.problem = problem


class DiskFull(StorageError):
    """There is no room on the disk beyond its reserve; what was there stays readable."""

    retriable = True

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"disk full: {path}: {problem}", hint="free space, or lower the retention")
        self.path = path


class DiskFailed(StorageError):
    """The operating system could not read, write or sync a file."""

    def __init__(self, path: str, operation: str, problem: str) -> None:
        super().__init__(f"disk failed: {operation} {path}: {problem}")
        self.path = path
        self.operation = operation


class FolderLocked(StorageError):
    """Another process uses this data folder."""

    def __init__(self, path: str) -> None:
        super().__init__(f"data folder {path} is in use by another process", hint="stop it, or choose another --data")
        self.path = path


# --- Metadata: the store behind the tree. ---


class MetadataError(ClymqError):
    """The metadata store refuses or is out of reach."""


class NodeMissing(MetadataError):
    """There is no such node."""


class NodeExists(MetadataError):
    """The node is there already."""


class VersionConflict(MetadataError):
    """The node has changed since it was read."""

    refresh = True


class SessionLost(MetadataError):
    """The session with the store has ended; its ephemeral nodes are gone."""

    retriable = True
    refresh = True


class NodeNotEmpty(MetadataError):
    """The node has children and cannot be deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} has children", hint="delete them first, in the same transaction if need be")
        self.path = path


class EphemeralParent(MetadataError):
    """An ephemeral node has no children: they would outlive it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the node above it is ephemeral and may have no children")
        self.path = path


class InvalidPath(MetadataError):
    """A path breaks the rule for paths."""

    def __init__(self, path: object, rule: str) -> None:
        super().__init__(f"path {path!r}: {rule}")
        self.path = path


class ValueTooLarge(MetadataError):
    """A value, or all values of a transaction together, are larger than the limit."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{path}: the write takes {size_bytes} bytes; at most {limit_bytes} are allowed")
        self.path = path
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class DamagedNode(MetadataError):
    """A node's value is not what the tree says it must be."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} is damaged: {problem}", hint="look at the node; ClyMQ never writes such a value")
        self.path = path
        self.problem = problem


class DamagedStore(MetadataError):
    """The store's own file cannot be read as one."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"the store's file {path} cannot be used: {problem}")
        self.path = path
        self.problem = problem


class BrokerReplaced(MetadataError):
    """Another process has taken this broker's name: this one must stop."""

    def __init__(self, name: str, incarnation: int) -> None:
        super().__init__(
            f"broker {name} is online as incarnation {incarnation}, which is not this process",
            hint="two processes run under one name; give each its own --name",
        )
        self.name = name
        self.incarnation = incarnation
