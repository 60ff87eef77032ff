"""The kinds of sinks and what a file may say about each. Knows nothing of Spark: `sinks` makes queries of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clymq.errors import ClymqError, ConfigError
from clymq.pipeline.definition import SinkCheck
from clymq.spark.options import sink_options
from clymq.types import check_name

EXPRESSIONS: Final = ("key", "value", "partition", "timestamp", "headers")
WHOLE_ROW: Final = "to_json(struct(*))"


def _check_topic(place: str, given: Mapping[str, Any], mode: str) -> Mapping[str, Any]:
    """`topic`; and as SQL expressions over the view: key, value, partition, timestamp, headers."""
    _check_mode(place, mode, "append")  # Spark gives sources and sinks in Python no rows that change
    _only(place, given, "topic", *EXPRESSIONS, "options")
    topic = _text(place, given, "topic")
    try:
        check_name(topic, "topic")
    except ClymqError as error:
        raise ConfigError(f"{place}.topic", topic, str(error)) from None
    expressions = {name: _text(place, given, name) for name in EXPRESSIONS if name in given}
    options = _options(place, given)
    try:
        sink_options({"bootstrap.servers": "-", **options, "topic": topic})
    except ConfigError as error:
        raise ConfigError(f"{place}.options.{error.setting}", error.value, error.allowed) from None
    return {"topic": topic, "expressions": {"value": WHOLE_ROW, **expressions}, "options": options}


def _check_files(place: str, given: Mapping[str, Any], mode: str) -> Mapping[str, Any]:
    """`path`, and `partition_by`: columns."""
    _check_mode(place, mode, "append")
    _only(place, given, "path", "partition_by", "options")
    columns = given.get("partition_by", [])
    if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
        raise ConfigError(f"{place}.partition_by", columns, "must be a list of columns")
    return {"path": _text(place, given, "path"), "partition_by": columns, "options": _options(place, given)}


def _check_console(place: str, given: Mapping[str, Any], _mode: str) -> Mapping[str, Any]:
    _only(place, given, "options")
    return {"options": _options(place, given)}


CHECKS: Final[Mapping[str, SinkCheck]] = {
    "topic": _check_topic,
    "parquet": _check_files,
    "json": _check_files,
    "console": _check_console,
}


def _check_mode(place: str, mode: str, *allowed: str) -> None:
    if mode not in allowed:
        raise ConfigError(f"{place}.mode", mode, f"this kind of sink can do {' or '.join(allowed)}")


def _only(place: str, given: Mapping[str, Any], *keys: str) -> None:
    for key, value in given.items():
        if key not in keys:
            raise ConfigError(f"{place}.{key}", value, f"is not known; allowed are {', '.join(keys)}")


def _text(place: str, given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{place}.{key}", value, "is required and must be text")
    return value


def _options(place: str, given: Mapping[str, Any]) -> Mapping[str, str]:
    value = given.get("options", {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}.options", value, "must be a table of names and values")
    return {str(name): str(each).lower() if isinstance(each, bool) else str(each) for name, each in value.items()}
