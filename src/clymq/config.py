"""All settings, in one typed struct: each with its unit in its name, its bounds, and what it is for.

A setting comes from a TOML file, from the environment (`CLYMQ_` and its name in capitals) or from a flag; the later
wins. A wrong value never gets further than `load`: it is a `ConfigError` that names the setting, the value, where it
came from and what is allowed. A setting that does not exist is wrong too: a misspelt limit must not pass as no limit.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

from clymq.errors import ConfigError

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
DAY_MS = 24 * 3600 * 1000
# Of a file of settings: /dev/zero is none.
FILE_BYTES_MAX = MiB

LOG_LEVELS = ("error", "warning", "info", "debug")
ENVIRONMENT_PREFIX = "CLYMQ_"
# Settings of single commands, which have them as flags: where a server is, what it is called, where a client looks.
COMMAND_SETTINGS = (
    "bootstrap", "data", "host", "listen", "name", "power", "rack", "root", "store", "timeout", "zkserver", "zookeeper",
)  # fmt: skip


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting with its default."""

    log: Annotated[Literal["error", "warning", "info", "debug"], Meta(description="how much is logged")] = "info"

    message_bytes_max: Annotated[
        int, Meta(ge=1, le=GiB, description="largest message: key, value and headers together")
    ] = MiB
    batch_bytes_max: Annotated[
        int,
        Meta(ge=KiB, le=GiB, description="largest batch, packed or unpacked; bounds every buffer made for one"),
    ] = 16 * MiB

    block_bytes_max: Annotated[
        int, Meta(ge=64 * KiB, le=1024 * GiB, description="a block that reaches this size asks to be rolled")
    ] = GiB
    block_age_ms_max: Annotated[
        int, Meta(ge=-1, le=3650 * DAY_MS, description="a block of this age asks to be rolled; -1: never")
    ] = 7 * DAY_MS
    retention_ms: Annotated[
        int,
        Meta(ge=-1, le=36500 * DAY_MS, description="sealed blocks older than this may be dropped; -1: never"),
    ] = 7 * DAY_MS
    retention_bytes: Annotated[
        int, Meta(ge=-1, le=2**60, description="sealed blocks beyond this size may be dropped; -1: no limit")
    ] = -1
    index_interval_bytes: Annotated[
        int, Meta(ge=KiB, le=16 * MiB, description="distance between entries of a block's sparse index")
    ] = 64 * KiB

    fsync: Annotated[
        Literal["commit", "interval", "never"],
        Meta(description="when blocks that are not replicated by Raft are synced to disk"),
    ] = "interval"
    fsync_interval_ms: Annotated[int, Meta(ge=1, le=3600_000, description="the interval of fsync = interval")] = 1000
    fsync_threads: Annotated[int, Meta(ge=1, le=64, description="threads that sync files")] = 4

    election_ms_min: Annotated[
        int, Meta(ge=10, le=600_000, description="a replica that hears no leader for so long may run for it")
    ] = 300
    election_ms_max: Annotated[
        int,
        Meta(ge=10, le=600_000, description="and one that hears none for so long does; each draws its own patience"),
    ] = 500
    heartbeat_ms: Annotated[
        int, Meta(ge=3, le=60_000, description="distance between the heartbeats of two brokers")
    ] = 90
    append_bytes_max: Annotated[
        int, Meta(ge=KiB, le=GiB, description="a leader sends no more than this at once to a follower")
    ] = MiB
    append_window: Annotated[
        int, Meta(ge=1, le=10_000, description="messages that a leader sends ahead to a follower without an answer")
    ] = 64
    uncommitted_bytes_max: Annotated[
        int,
        Meta(ge=KiB, le=64 * GiB, description="what may wait for a majority in one group before pushes are refused"),
    ] = 64 * MiB
    checkpoint_ms_max: Annotated[
        int, Meta(ge=1, le=DAY_MS, description="a group that is never at rest writes a checkpoint this often")
    ] = 10_000

    session_timeout_ms: Annotated[
        int, Meta(ge=500, le=600_000, description="a metadata session that is not heard of for so long ends")
    ] = 6000
    store_request_ms_max: Annotated[
        int, Meta(ge=10, le=600_000, description="a request to the metadata store is answered within this or given up")
    ] = 4000

    fetch_bytes_max: Annotated[
        int, Meta(ge=KiB, le=GiB, description="a follower of a fetch block pulls no more than this at once")
    ] = MiB
    fetch_wait_ms_max: Annotated[
        int, Meta(ge=10, le=600_000, description="a follower's pull waits so long for something new")
    ] = 10_000
    fetch_retry_ms_min: Annotated[
        int, Meta(ge=1, le=600_000, description="pause of a follower before it repeats a pull that failed; it doubles")
    ] = 20
    fetch_retry_ms_max: Annotated[int, Meta(ge=1, le=600_000, description="and never is longer than this")] = 1000
    fetch_visibility: Annotated[
        Literal["majority", "leader"],
        Meta(description="what readers of a fetch block see: what a majority holds, or all that the leader has"),
    ] = "majority"
    fetch_unclean: Annotated[
        Literal["false", "true"],
        Meta(description="whether a fetch block is sealed although too few replicas are there; may lose messages"),
    ] = "false"
    delivery_count_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="deliveries of a message before it is a dead letter")
    ] = 3
    lease_ms: Annotated[
        int, Meta(ge=10, le=DAY_MS, description="a delivered message that is not acknowledged comes back after this")
    ] = 30_000

    consumer_heartbeat_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="a broker asks each consumer this often; three misses, and it is gone")
    ] = 1000
    leases_max: Annotated[
        int, Meta(ge=1, le=20_000, description="ranges that a group may have leased from one partition at once")
    ] = 10_000
    waiting_pulls_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="pulls and pushes of groups that may wait at one partition")
    ] = 10_000
    subscriptions_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="consumers, and push subscriptions, that one connection may have")
    ] = 4096
    push_bytes_max: Annotated[
        int, Meta(ge=KiB, le=GiB, description="one delivery to a push subscription is about this large at most")
    ] = MiB

    producers_max: Annotated[
        int, Meta(ge=1, le=20_000, description="producers that a partition remembers; further ones are refused")
    ] = 10_000
    producer_idle_ms_max: Annotated[
        int, Meta(ge=1, le=3650 * DAY_MS, description="a producer that stored nothing for so long may be forgotten")
    ] = 7 * DAY_MS

    partitions_per_topic_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="partitions that a topic may have")
    ] = 4096
    controller_tick_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="how often the controller looks for what is to be done, and retries")
    ] = 1000
    broker_request_ms_max: Annotated[
        int, Meta(ge=10, le=600_000, description="a broker that lets the controller wait for longer counts as silent")
    ] = 3000
    seal_wait_ms_max: Annotated[
        int, Meta(ge=0, le=3600_000, description="a fetch block sealed without its leader waits so long for a majority")
    ] = 5000
    move_wait_ms_max: Annotated[
        int, Meta(ge=10, le=3600_000, description="who asks for a change of a partition waits no longer than this")
    ] = 25_000
    leader_wait_ms_max: Annotated[
        int, Meta(ge=0, le=600_000, description="who asks for a leader while there is none waits no longer than this")
    ] = 5000
    replace_after_ms: Annotated[
        int, Meta(ge=0, le=365 * DAY_MS, description="what lies on a broker that is away for so long is put elsewhere")
    ] = 600_000
    retention_check_ms: Annotated[
        int, Meta(ge=10, le=DAY_MS, description="how often the controller looks for sealed blocks that may be dropped")
    ] = 30_000
    balance_ms: Annotated[
        int, Meta(ge=10, le=DAY_MS, description="how often the controller looks whether leaders are spread evenly")
    ] = 60_000
    repairs_max: Annotated[
        int, Meta(ge=1, le=100_000, description="blocks that the controller begins to move or copy in one look round")
    ] = 64

    delete_delay_ms: Annotated[
        int,
        Meta(ge=0, le=DAY_MS, description="what the tree no longer names is deleted from a broker's disk after this"),
    ] = 60_000
    config_ms: Annotated[int, Meta(ge=10, le=600_000, description="a broker asks this often what it should host")] = (
        5_000
    )
    mirror_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="a broker tells this often how far its blocks have come")
    ] = 1_000

    disk_reserve_bytes: Annotated[
        int, Meta(ge=0, le=2**60, description="free space kept for votes, checkpoints and seals")
    ] = 64 * MiB
    open_files_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="files of sealed blocks held open or mapped at once")
    ] = 512
    set_aside_bytes_max: Annotated[
        int, Meta(ge=0, le=1024 * GiB, description="damaged bytes kept per block (*.torn, *.bad, *.lost)")
    ] = 256 * MiB
    set_aside_files_max: Annotated[
        int,
        Meta(ge=1, le=10_000, description="files of damaged bytes kept per block, the oldest leave first"),
    ] = 8

    scrub_bytes_per_second: Annotated[
        int, Meta(ge=0, le=GiB, description="a broker reads what it hosts for rot, no faster than this; 0: not at all")
    ] = 256 * KiB
    scrub_interval_ms: Annotated[
        int, Meta(ge=10, le=365 * DAY_MS, description="and reads each block once in this time, if it can")
    ] = DAY_MS

    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="connections that a server takes; further ones are refused")
    ] = 16_384
    local_sockets: Annotated[
        Literal["true", "false"],
        Meta(description="whether a server at a loopback address also listens at a Unix socket, which costs less"),
    ] = "true"
    frame_bytes_max: Annotated[
        int, Meta(ge=128 * KiB, le=2 * GiB, description="largest frame on the wire; a longer one ends the connection")
    ] = 64 * MiB
    frame_ms_max: Annotated[
        int, Meta(ge=10, le=3600_000, description="a frame that has begun must be there within this")
    ] = 30_000
    handshake_ms_max: Annotated[
        int, Meta(ge=10, le=3600_000, description="a connection must have said who it is within this")
    ] = 10_000
    idle_ping_ms: Annotated[
        int,
        Meta(ge=10, le=DAY_MS, description="a silent connection is pinged after this, and dropped after twice this"),
    ] = 15_000
    window_requests: Annotated[
        int, Meta(ge=1, le=1_000_000, description="requests that one connection may have under way here")
    ] = 1024
    window_bytes: Annotated[int, Meta(ge=64 * KiB, le=64 * GiB, description="and how many bytes of them")] = 64 * MiB
    partition_window_requests: Annotated[
        int, Meta(ge=1, le=1_000_000, description="requests that it may have under way here for one partition")
    ] = 64
    partition_window_bytes: Annotated[int, Meta(ge=64 * KiB, le=64 * GiB, description="and how many bytes of them")] = (
        32 * MiB
    )
    waiting_requests_max: Annotated[
        int, Meta(ge=0, le=1_000_000, description="requests that wait on our side for the other side's window")
    ] = 4096
    write_buffer_bytes_max: Annotated[
        int, Meta(ge=64 * KiB, le=64 * GiB, description="a peer that leaves more than this unread is dropped")
    ] = 128 * MiB
    one_way_buffer_bytes_max: Annotated[
        int, Meta(ge=0, le=64 * GiB, description="one-way messages to a peer with more than this unread are dropped")
    ] = 32 * MiB
    connect_ms_max: Annotated[int, Meta(ge=1, le=3600_000, description="time to connect and shake hands")] = 5000
    reconnect_ms_min: Annotated[
        int, Meta(ge=1, le=3600_000, description="pause before a lost connection is made again; it doubles")
    ] = 50
    reconnect_ms_max: Annotated[int, Meta(ge=1, le=3600_000, description="and never is longer than this")] = 2000
    drain_ms_max: Annotated[
        int, Meta(ge=0, le=3600_000, description="a server that closes gives running calls so long to finish")
    ] = 5000

    request_ms_max: Annotated[
        int, Meta(ge=10, le=3600_000, description="a client without an answer by then looks whom else to ask")
    ] = 6000
    retry_ms_min: Annotated[
        int, Meta(ge=1, le=3600_000, description="pause of a client before it repeats what failed; it doubles")
    ] = 20
    retry_ms_max: Annotated[int, Meta(ge=1, le=3600_000, description="and never is longer than this")] = 1000


# What a frame has room for beside a batch: its prefix, and whatever is said of the batch.
FRAME_HEAD_BYTES = 64 * KiB

# What a topic may set for itself; everything else is the server's.
TOPIC_SETTINGS = (
    "retention_ms",
    "retention_bytes",
    "block_bytes_max",
    "block_age_ms_max",
    "message_bytes_max",
    "fsync",
    "fetch_visibility",
    "fetch_unclean",
    "delivery_count_max",
    "lease_ms",
)


class Setting(NamedTuple):
    """One setting as people need to see it."""

    name: str
    default: object
    allowed: str
    purpose: str


def settings() -> Iterator[Setting]:
    """Describe every setting, in the order of the struct."""
    hints = _hints()
    for field in msgspec.structs.fields(Config):
        kind, meta = hints[field.name].__origin__, hints[field.name].__metadata__[0]
        yield Setting(field.name, field.default, _allowed(kind, meta), meta.description)


def load(
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """Merge file < environment < flags over the defaults, each value checked where it enters."""
    values: dict[str, object] = {}
    if file is not None:
        values |= _checked(_without_commands(_read_toml(Path(file))), source=str(file), strict=True)
    from_environment = _without_commands(_from_environment(environment or {}))
    values |= _checked(from_environment, source="the environment", strict=False)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    values |= _checked(given, source="a flag", strict=False)
    config: Config = msgspec.convert(values, Config)
    _check_together(config)
    return config


def command_settings(
    *, file: str | Path | None = None, environment: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Return what file and environment say for the flags of commands, which check it; the environment wins."""
    values = {} if file is None else _read_toml(Path(file))
    values |= _from_environment(environment or {})
    return {name: value for name, value in values.items() if name in COMMAND_SETTINGS}


def _without_commands(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if name not in COMMAND_SETTINGS}


def topic_settings(values: Mapping[str, object], config: Config) -> dict[str, int | str]:
    """Return a topic's own settings, each checked as it would be in a file; numbers may come as text."""
    for name, value in values.items():
        if name not in TOPIC_SETTINGS:
            raise ConfigError(name, value, f"is no setting of a topic; those are {', '.join(TOPIC_SETTINGS)}")
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    checked = _checked(given, source="the topic", strict=False)
    _check_together(msgspec.structs.replace(config, **checked))
    return {name: value for name, value in checked.items() if isinstance(value, int | str)}


def for_topic(config: Config, values: Mapping[str, object]) -> Config:
    """Return the settings as one topic has them; what it does not set is as for all."""
    return msgspec.structs.replace(config, **topic_settings(values, config))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigError("config", str(path), f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", str(path), f"is not TOML: {error}") from None


def read_text(path: Path) -> str:
    """Return what a file of settings says; ValueError if it is no text, or more than anybody would write by hand."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data.decode()


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    if "VERBOSE" in environment:
        values["log"] = _level_of_verbose(environment["VERBOSE"])
    for variable, text in environment.items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if variable.startswith(ENVIRONMENT_PREFIX):
            values[name] = text.lower() if name == "log" else text
    return values


def _level_of_verbose(text: str) -> str:
    """VERBOSE=0..3 is the older spelling of the four log levels."""
    if text in {"0", "1", "2", "3"}:
        return LOG_LEVELS[int(text)]
    raise ConfigError("VERBOSE", text, "must be 0, 1, 2 or 3", source="the environment")


def _checked(values: Mapping[str, object], *, source: str, strict: bool) -> dict[str, object]:
    """Check each value on its own, so that the error names exactly one; text from outside a file may be a number."""
    known = _hints()
    result: dict[str, object] = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
            raise ConfigError(name, value, advice, source=source)
        try:
            result[name] = msgspec.convert(value, known[name], strict=strict)
        except (msgspec.ValidationError, ValueError):  # the latter: text that is no Unicode
            allowed = _allowed(known[name].__origin__, known[name].__metadata__[0])
            raise ConfigError(name, value, f"must be {allowed}", source=source) from None
    return result


@functools.cache
def _hints() -> dict[str, Any]:
    """Return what each setting may be; worked out once, because brokers look at topics' settings all the time."""
    return get_type_hints(Config, include_extras=True)


def _allowed(kind: Any, meta: Meta) -> str:
    if kind is int:
        return f"a whole number from {meta.ge} to {meta.le}"
    return "one of " + ", ".join(kind.__args__)


# The first is never above the second.
_ORDERED = (
    ("message_bytes_max", "batch_bytes_max"),
    ("election_ms_min", "election_ms_max"),
    ("fetch_retry_ms_min", "fetch_retry_ms_max"),
    ("retry_ms_min", "retry_ms_max"),
    ("reconnect_ms_min", "reconnect_ms_max"),
)


def _check_together(config: Config) -> None:
    """Refuse values that are each allowed but not with one another."""
    for low, high in _ORDERED:
        if getattr(config, low) > getattr(config, high):
            raise ConfigError(low, getattr(config, low), f"must be at most {high} = {getattr(config, high)}")
    if 2 * config.heartbeat_ms > config.election_ms_min:
        limit = f"must be at most half of election_ms_min = {config.election_ms_min}"
        raise ConfigError("heartbeat_ms", config.heartbeat_ms, limit)
    if config.frame_bytes_max < config.batch_bytes_max + FRAME_HEAD_BYTES:
        limit = f"must be at least {FRAME_HEAD_BYTES // KiB} KiB more than batch_bytes_max = {config.batch_bytes_max}"
        raise ConfigError("frame_bytes_max", config.frame_bytes_max, limit)
