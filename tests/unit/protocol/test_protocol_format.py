"""docs/protocol.md is the truth: its tables are read here and held against the code, byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
from crc32c import crc32c

from clymq.protocol.broker import Push, Pushed
from clymq.protocol.connection import Asked, Opened
from clymq.protocol.frames import PREFIX_BYTES, Kind
from clymq.protocol.handshake import Hello
from clymq.protocol.verbs import all_verbs, verb_of
from rpc_pair import feed, opened, wire

PAGE = (Path(__file__).parents[3] / "docs/protocol.md").read_text()


def table(name: str) -> list[dict[str, str]]:
    lines = PAGE.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)


def by_hand(fields: dict[str, object], header: bytes, payload: bytes) -> bytes:
    body = padded(header) + padded(payload)
    fields = {
        "magic": b"CLYF",
        "length": 32 + len(body),
        "header_length": len(header),
        "payload_length": len(payload),
        "crc": 0,
    } | fields
    data = bytearray(32) + body
    for row in table("frame prefix"):
        struct.pack_into("<" + row["type"], data, int(row["at"]), fields[row["field"]])
    crc_at = next(int(row["at"]) for row in table("frame prefix") if row["field"] == "crc")
    struct.pack_into("<I", data, crc_at, crc32c(bytes(data[8 : 32 + len(padded(header))])))
    return bytes(data)


def test_the_rows_of_the_prefix_adjoin() -> None:
    at = 0
    for row in table("frame prefix"):
        assert (int(row["at"]), struct.calcsize("<" + row["type"])) == (at, int(row["size"]))
        at += int(row["size"])
    assert at == PREFIX_BYTES


def test_a_request_built_by_hand_from_the_table_is_read() -> None:
    _, acceptor = opened()
    header = {"topic": "t", "partition": "北京", "uid": "u", "producer": "p", "cmdindex": 7, "ack": -1}
    fields = {"correlation": 9, "verb": 100, "version": 1, "kind": 2}
    (event,) = feed(acceptor, by_hand(fields, msgspec.msgpack.encode(header), b"payload"))
    assert isinstance(event, Asked)
    assert event.message == Push("t", "北京", "u", "p", 7, -1)
    assert (event.correlation, bytes(event.payload)) == (9, b"payload")


def test_what_the_library_writes_is_what_the_table_says() -> None:
    _, acceptor = opened()
    written = wire(acceptor.reply(3, verb_of(Push), Pushed(5), [b"abc", b"de"]))
    header = msgspec.msgpack.encode({"base_offset": 5})
    assert written == by_hand({"correlation": 3, "verb": 100, "version": 1, "kind": 3}, header, b"abcde")


def test_the_kinds_are_those_of_the_table() -> None:
    assert {int(row["kind"]): row["name"] for row in table("kinds")} == {kind.value: kind.name for kind in Kind}


def test_the_fields_of_a_hello_are_those_of_the_table() -> None:
    named = [name.strip("` ") for row in table("hello") for name in row["field"].split(",")]
    assert sorted(named) == sorted(Hello.__struct_fields__)


def test_the_verbs_and_their_numbers_are_those_of_the_table() -> None:
    documented = {(int(row["number"]), row["verb"], row["reply"], row["module"]) for row in table("verbs")}
    assert documented == {
        (
            each.number,
            each.name,
            each.reply.__name__ if each.reply else "one-way",
            each.message.__module__.rpartition(".")[2],
        )
        for each in all_verbs()
    }


def test_a_field_that_is_not_known_is_ignored_and_one_that_is_missing_has_its_default() -> None:
    _, acceptor = opened()
    header = {"topic": "t", "partition": "p", "uid": "u", "producer": "p", "cmdindex": 7, "ack": 1, "colour": "red"}
    fields = {"correlation": 1, "verb": 100, "version": 1, "kind": 2}
    (event,) = feed(acceptor, by_hand(fields, msgspec.msgpack.encode(header), b""))
    assert isinstance(event, Asked)
    assert event.message == Push("t", "p", "u", "p", 7, 1, explicit_ack=False)


def test_a_hello_with_fields_of_the_future_is_understood() -> None:
    _, acceptor = opened()
    newer = msgspec.to_builtins(acceptor.ours) | {"token": b"secret", "version_max": 9}
    fresh = type(acceptor)(acceptor.ours)
    (event,) = feed(fresh, by_hand({"correlation": 0, "verb": 0, "version": 0, "kind": 1},
                                   msgspec.msgpack.encode(newer), b""))  # fmt: skip
    assert isinstance(event, Opened)
    assert event.version == 1
