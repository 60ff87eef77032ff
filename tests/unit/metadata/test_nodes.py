"""Nodes that somebody newer has written: read as far as they are understood, and written again whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clymq.errors import DamagedNode
from clymq.metadata import nodes
from clymq.metadata.nodes import Broker, Mirror, Partition, Pending, Place, changed, decode, encode


def read(kind: Any, **fields: Any) -> Any:
    return decode(kind, "/x", json.dumps(fields).encode())


def written(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(value))
    return found


def test_a_field_of_somebody_newer_survives_a_change_by_somebody_older() -> None:
    broker = read(Broker, name="B", address="a:1", zone={"name": "北京", "rows": [1, 2]}, tier=2)
    assert written(changed(broker, draining=True)) == {
        "name": "B", "address": "a:1", "draining": True, "zone": {"name": "北京", "rows": [1, 2]}, "tier": 2,
    }  # fmt: skip


def test_so_does_one_of_what_is_pending_and_goes_with_it() -> None:
    pending = {
        "block": 2,
        "epoch": 2,
        "mode": -1,
        "dupnum": 1,
        "replicas": [{"broker": "B", "disk_id": "d"}],
        "why": "x",
    }
    partition = read(Partition, name="p", uid="u", pending=pending, colour="red")
    assert partition.pending.replicas == (Place(broker="B", disk_id="d"),)
    again = written(changed(partition, epoch=1))
    assert (again["pending"], again["colour"], again["epoch"]) == (pending, "red", 1)
    trusted = written(changed(partition, pending=changed(partition.pending, trust="B")))
    assert trusted["pending"] == {**pending, "trust": "B"}
    assert "pending" not in written(changed(partition, pending=None))


def test_what_is_known_is_written_as_ever_and_equal_values_are_equal() -> None:
    place = Place(broker="B", disk_id="d")
    pending = Pending(block=1, epoch=1, mode=-1, dupnum=1, replicas=(place,))
    for value in (place, pending, Partition(name="p", uid="u", pending=pending), Mirror(ends={1: 5}, cursors={"g": 2})):
        assert decode(type(value), "/x", encode(value)) == value
        assert b"unknown" not in encode(value)
    assert len({place, Place(broker="B", disk_id="d")}) == 1


def test_a_field_that_is_known_by_now_is_no_longer_kept_twice() -> None:
    broker = changed(read(Broker, name="B", address="a:1"), unknown=(("power", "7"),))
    assert written(broker) == {"name": "B", "address": "a:1", "power": 7}
    assert written(changed(broker, power=3))["power"] == 3


@pytest.mark.parametrize("data", [b"", b"[]", b'{"name": 5}', b'{"name": "B"}', b"\xff", b"[" * 100_000])
def test_what_cannot_be_read_is_damage_that_is_named(data: bytes) -> None:
    with pytest.raises(DamagedNode, match="/x"):
        nodes.decode(Broker, "/x", data)
