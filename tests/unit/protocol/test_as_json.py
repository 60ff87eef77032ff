"""Replies as JSON, for people: nothing is left out, however deep it lies."""

from __future__ import annotations

import json
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from clymq.protocol.as_json import json_of
from clymq.protocol.broker import Pushed, StoredAt
from clymq.protocol.controller import BrokerStatus, ClusterStatus, ConsumerRoutes, PartitionStatus, ReadRoute
from clymq.protocol.hosting import ReplicaPlace
from clymq.protocol.store import NodeValue, Stat
from clymq.protocol.verbs import Reply, Verb, all_verbs

ANSWERED = [each for each in all_verbs() if each.reply is not None]


def names(value: Any) -> Any:
    """Return the fields of a value and of all within it."""
    if isinstance(value, msgspec.Struct) and not value.__struct_config__.array_like:
        return {name: names(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, msgspec.Struct):
        return [names(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return {key: names(each) for key, each in value.items()}
    return [names(each) for each in value] if isinstance(value, list | tuple) else None


def with_defaults(kind: Any) -> Any:
    """Make a value of a type, with something in every collection, and in that only what must be given."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        fields = kind.__struct_fields__
        needed = set(fields[: len(fields) - len(kind.__struct_defaults__)])
        deep = {name for name in fields if issubclass(kind, Reply) and get_origin(hints[name]) in {tuple, dict}}
        return kind(**{name: with_defaults(hints[name]) for name in fields if name in needed | deep})
    if origin is tuple:
        return (with_defaults(arguments[0]),)
    if origin is dict:
        return {"key": with_defaults(arguments[1])}
    if origin is not None:
        return with_defaults(arguments[0])
    return {int: 0, str: "", bytes: b"", bool: False, float: 0.0, Any: 0}[kind]


@pytest.mark.parametrize("each", ANSWERED, ids=[each.name for each in ANSWERED])
def test_a_reply_with_nothing_but_defaults_in_it_has_every_field_in_json(each: Verb) -> None:
    reply = with_defaults(each.reply)
    assert names(json.loads(json_of(reply))) == names(reply)


def test_what_has_its_default_is_shown_within_a_status_too() -> None:
    status = json.loads(json_of(ClusterStatus((), (BrokerStatus("b", "h:1", True),), (PartitionStatus("t", "0", -1),))))
    assert status["brokers"][0]["draining"] is False
    assert (status["partitions"][0]["start"], status["partitions"][0]["end"]) == (0, 0)
    assert status["groups"] == []


def test_structs_within_structs_are_shown_whole() -> None:
    fields = {name: with_defaults(hint) for name, hint in get_type_hints(ReadRoute).items()}
    route = ReadRoute(**(fields | {"replicas": (ReplicaPlace("b", "d"),)}))
    (shown,) = json.loads(json_of(ConsumerRoutes((route,))))["routes"]
    assert shown["replicas"] == [{"broker": "b", "disk_id": "d", "address": ""}]


def test_what_is_an_array_on_the_wire_stays_one_and_bytes_are_base64() -> None:
    assert json.loads(json_of(NodeValue(b"hello", Stat(1, None, 2, 3)))) == {
        "value": "aGVsbG8=",
        "stat": [1, None, 2, 3],
    }
    assert json.loads(json_of(Pushed(more=(StoredAt(1, 2, False),))))["more"] == [[1, 2, False]]
