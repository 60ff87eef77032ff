"""The options of the source and the sink, by the names, defaults and precedence of Spark's Kafka connector.

Spark hands over the names in lower case; errors name them as they are documented. An option that is not known, not for
this use, or that contradicts another is an error: a misspelt limit must not be no limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeVar

from clymq.errors import ConfigError
from clymq.types import check_name

T = TypeVar("T")
Use = Literal["batch", "stream"]
ByPartition = dict[str, dict[str, int]]
"""topic -> partition -> number."""

EARLIEST: Final = -2
LATEST: Final = -1
TIMEOUT_SECONDS: Final = 60.0
TRIGGER_DELAY_MS_MAX: Final = 15 * 60 * 1000
BUFFER_BYTES_MAX: Final = 1 << 30

_BOOTSTRAP: Final = ("bootstrap.servers", "clymq.bootstrap.servers", "kafka.bootstrap.servers")
_GROUP: Final = ("groupId", "clymq.group.id", "kafka.group.id")
_SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")
# Spark adds these to what the user gave.
_OF_SPARK: Final = {"checkpointlocation", "queryname", "path", "table", "__datasource_options__"}

_READ: Final = (
    *_BOOTSTRAP, *_GROUP, *_SUBSCRIPTIONS, "failOnDataLoss", "includeHeaders", "maxRecordsPerPartition",
    "minPartitions", "startingOffsets", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "startingTimestamp", "timeout",
)  # fmt: skip
_READ_BATCH: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_READ_STREAM: Final = ("maxOffsetsPerTrigger", "maxTriggerDelay", "minOffsetsPerTrigger")
_WRITE: Final = (
    *_BOOTSTRAP, "batchId", "bufferBytesMax", "codec", "delivery", "includeHeaders", "producerName", "timeout",
    "topic",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics, and of them which partitions: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or end: `earliest` or `latest`, or numbers for each partition; times are in milliseconds."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    numbers: ByPartition | None = None
    time_ms: int = 0
    option: str = ""
    """The option that said so."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was told."""

    bootstrap: str
    subscription: Subscription
    start: Bound
    end: Bound
    start_after_last: Literal["error", "latest"]
    """What to do when all messages are earlier than the time to start at."""
    fail_on_data_loss: bool
    include_headers: bool
    group: str | None
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    timeout: float


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer was told."""

    bootstrap: str
    topic: str | None
    exactly_once: bool
    producer_name: str | None
    batch_id: int | None
    codec: str
    buffer_bytes_max: int
    timeout: float


def source_options(given: Mapping[str, str], use: Use) -> SourceOptions:
    """Return the options of a reader."""
    read = _Reader(given)
    foreign = _READ_STREAM if use == "batch" else _READ_BATCH
    for name in foreign:
        if read.has(name):
            kind = "batch" if use == "batch" else "streaming"
            read.refuse(name, f"is not for {kind} queries")
    read.check_known((*_READ, *(_READ_BATCH if use == "batch" else _READ_STREAM)))
    rows_max = read.get("maxOffsetsPerTrigger", _positive)
    rows_min = read.get("minOffsetsPerTrigger", _positive)
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        read.refuse("minOffsetsPerTrigger", f"is more than maxOffsetsPerTrigger, {rows_max}")
    if read.has("maxTriggerDelay") and rows_min is None:
        read.refuse("maxTriggerDelay", "means nothing without minOffsetsPerTrigger")
    start = _start(read, use)
    strategy = read.get("startingOffsetsByTimestampStrategy", _one_of("error", "latest"))
    return SourceOptions(
        bootstrap=_bootstrap(read),
        subscription=_subscription(read),
        start=start,
        end=_end(read) if use == "batch" else Bound("latest"),
        start_after_last="latest" if strategy == "latest" else "error",
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        include_headers=read.flag("includeHeaders", False),
        group=read.only(_GROUP, lambda value: check_name(value, "group")),
        min_partitions=read.get("minPartitions", _positive),
        max_records_per_partition=read.get("maxRecordsPerPartition", _positive),
        max_offsets_per_trigger=rows_max,
        min_offsets_per_trigger=rows_min,
        max_trigger_delay_ms=read.get("maxTriggerDelay", duration_ms) or TRIGGER_DELAY_MS_MAX,
        timeout=read.get("timeout", _seconds) or TIMEOUT_SECONDS,
    )


def includes_headers(given: Mapping[str, str]) -> bool:
    """Return whether the table has a column `headers`; known before it is known what the table is used for."""
    return _Reader(given).flag("includeHeaders", False)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a writer."""
    read = _Reader(given)
    read.check_known(_WRITE)
    name = read.get("producerName", lambda value: check_name(value, "producer"))
    exactly_once = (read.get("delivery", _one_of("exactly-once", "at-least-once")) or "exactly-once") == "exactly-once"
    batch_id = read.get("batchId", _not_negative)
    if batch_id is not None and name is None:
        read.refuse("batchId", "means nothing without producerName")
    if name is not None and not exactly_once:
        read.refuse("producerName", "means nothing with delivery=at-least-once")
    return SinkOptions(
        bootstrap=_bootstrap(read),
        topic=read.get("topic", lambda value: check_name(value, "topic")),
        exactly_once=exactly_once,
        producer_name=name,
        batch_id=batch_id,
        codec=read.get("codec", _one_of("none", "lz4", "zstd")) or "none",
        buffer_bytes_max=read.get("bufferBytesMax", _positive) or BUFFER_BYTES_MAX,
        timeout=read.get("timeout", _seconds) or TIMEOUT_SECONDS,
    )


class _Reader:
    """Looks options up by their documented names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def refuse(self, name: str, why: str) -> NoReturn:
        raise ConfigError(name, self._given.get(name.lower(), ""), why)

    def check_known(self, names: tuple[str, ...]) -> None:
        known = {name.lower() for name in names} | _OF_SPARK
        for name in sorted(self._given.keys() - known):
            self.refuse(name, f"is not an option here; known are {', '.join(sorted(names))}")

    def get(self, name: str, parse: Callable[[str], T]) -> T | None:
        if not self.has(name):
            return None
        value = self._given[name.lower()]
        try:
            return parse(value)
        except ValueError as error:
            raise ConfigError(name, value, str(error)) from None

    def only(self, names: tuple[str, ...], parse: Callable[[str], T]) -> T | None:
        """Return the value of an option with several spellings, of which one may be used."""
        used = [name for name in names if self.has(name)]
        if len(used) > 1:
            self.refuse(used[1], f"is another spelling of {used[0]}, which is given too")
        return self.get(used[0], parse) if used else None

    def flag(self, name: str, default: bool) -> bool:
        found = self.get(name, _one_of("true", "false"))
        return default if found is None else found == "true"


def _bootstrap(read: _Reader) -> str:
    found = read.only(_BOOTSTRAP, str)
    if not found:
        raise ConfigError("bootstrap.servers", "", "is required: host:port[,host:port...] of zkservers or brokers")
    return found


def _subscription(read: _Reader) -> Subscription:
    used = [name for name in _SUBSCRIPTIONS if read.has(name)]
    if len(used) != 1:
        value = "" if not used else ", ".join(used)
        raise ConfigError("subscribe", value, "exactly one of assign, subscribe and subscribePattern is required")
    topics = read.get("subscribe", _names) or ()
    pattern = read.get("subscribePattern", _pattern) or ""
    assigned = read.get("assign", _assignment) or ()
    return Subscription(topics, pattern, assigned)


def _start(read: _Reader, use: Use) -> Bound:
    found = _by_time(read, "startingTimestamp", "startingOffsetsByTimestamp")
    if found is not None:
        return found
    name = "startingOffsets"
    bound = read.get(name, lambda value: _bound(value, name)) or Bound("latest" if use == "stream" else "earliest")
    if use == "batch":
        if bound.kind == "latest":
            read.refuse(name, "latest is not allowed in batch queries: nothing would be read")
        if bound.numbers and LATEST in _values(bound.numbers):
            read.refuse(name, f"{LATEST} (latest) is not allowed in batch queries")
    return bound


def _end(read: _Reader) -> Bound:
    found = _by_time(read, "endingTimestamp", "endingOffsetsByTimestamp")
    if found is not None:
        return found
    name = "endingOffsets"
    bound = read.get(name, lambda value: _bound(value, name)) or Bound("latest")
    if bound.kind == "earliest" or (bound.numbers and EARLIEST in _values(bound.numbers)):
        read.refuse(name, "cannot be earliest")
    return bound


def _by_time(read: _Reader, one: str, each: str) -> Bound | None:
    time_ms = read.get(one, _not_negative)
    if time_ms is not None:
        return Bound("time", time_ms=time_ms, option=one)
    times = read.get(each, lambda value: _by_partition(value, low=0))
    return None if times is None else Bound("times", times, option=each)


def _bound(value: str, option: str) -> Bound:
    word = value.strip().lower()
    if word == "earliest":
        return Bound("earliest", option=option)
    if word == "latest":
        return Bound("latest", option=option)
    return Bound("offsets", _by_partition(value, low=EARLIEST), option=option)


def _by_partition(value: str, *, low: int) -> ByPartition:
    """Read {"topic": {"partition": number}}; also what the progress of a query shows, where ids stand beside."""
    parsed = _json_object(value, '{"topic": {"partition": number}}')
    found: ByPartition = {}
    for topic, partitions in parsed.items():
        if isinstance(partitions, dict) and isinstance(partitions.get("offsets"), dict):
            partitions = partitions["offsets"]  # noqa: PLW2901 the inner form is the same
        if not isinstance(partitions, dict) or not partitions:
            raise ValueError(f"topic {topic!r} needs its partitions and their numbers")
        for partition, number in partitions.items():
            if type(number) is not int or number < low:
                raise ValueError(f"{topic}/{partition}: {number!r} must be a whole number, {low} or more")
        found[topic] = dict(partitions)
    return found


def _assignment(value: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    parsed = _json_object(value, '{"topic": ["partition", ...]}')
    found = []
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"topic {topic!r} needs a list of partitions")
        found.append((check_name(topic, "topic"), tuple(check_name(str(each), "partition") for each in partitions)))
    return tuple(found)


def _json_object(value: str, form: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"must be {form}: {error}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError(f"must be {form}")
    return parsed


def _values(numbers: ByPartition) -> set[int]:
    return {number for partitions in numbers.values() for number in partitions.values()}


def _names(value: str) -> tuple[str, ...]:
    names = tuple(check_name(name.strip(), "topic") for name in value.split(",") if name.strip())
    if not names:
        raise ValueError("must name at least one topic")
    return tuple(dict.fromkeys(names))


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if not value:
        raise ValueError("must not be empty")
    return value


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return word

    return parse


def _positive(value: str) -> int:
    return _whole(value, 1)


def _not_negative(value: str) -> int:
    return _whole(value, 0)


def _whole(value: str, low: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise ValueError("must be a whole number") from None
    if number < low:
        raise ValueError(f"must be {low} or more")
    return number


def _seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not 0 < number <= 86_400:
        raise ValueError("must be more than 0 and at most 86400 seconds")
    return number


_UNITS: Final = {
    "ms": 1, "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "minutes": 60_000, "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def duration_ms(value: str) -> int:
    """Read a time with its unit, as Spark does: 15m, 500ms, 10 seconds; a bare number is in milliseconds."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", value.lower())
    if match is None or (match[2] or "ms") not in _UNITS:
        raise ValueError(f"must be a time such as 15m or 500ms; units are {', '.join(_UNITS)}")
    return int(match[1]) * _UNITS[match[2] or "ms"]
