"""docs/data_format.md is the truth: its tables are read here and held against the code, byte for byte."""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from clymq.record import Batch, BatchBuilder
from clymq.storage import checkpoint, index, vote
from clymq.storage.memory import MemoryFiles

PAGE = (Path(__file__).parents[3] / "docs/data_format.md").read_text()


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of the table that stands behind the mark `<!-- table: NAME -->`."""
    lines = PAGE.split(f"<!-- table: {name} -->\n")[1].split("\n\n")[0].splitlines()
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def test_the_rows_of_every_table_of_fields_adjoin() -> None:
    for name, size in (("batch header", 112), ("index entry", 40), ("vote slot", 512), ("checkpoint", 112)):
        at = 0
        for row in table(name):
            assert int(row["at"]) == at, (name, row)
            assert struct.calcsize("<" + row["type"]) == int(row["size"]), (name, row)
            at += int(row["size"])
        assert at == size


def pack_row(buffer: bytearray, row: dict[str, str], *values: object) -> None:
    struct.pack_into("<" + row["type"], buffer, int(row["at"]), *values)


def arrow_message(values: list[bytes], timestamps: list[int]) -> bytes:
    """Build an Arrow message by hand, from the table of its bytes."""
    names = {"n": len(values), "v": sum(map(len, values)), "pad": lambda x: (x + 7) // 8 * 8}
    metadata = bytearray(208)
    for row in table("arrow message"):
        if row["type"] and not row["type"].endswith("x"):
            wanted = len(row["type"])
            words = re.findall(r"(?:[^\s()]|\([^()]*(?:\([^()]*\)[^()]*)*\))+", row["value"])
            numbers = words if wanted > 1 else [row["value"]]
            pack_row(metadata, row, *(eval(number, names.copy()) for number in numbers))
    offsets = [sum(map(len, values[:i])) for i in range(len(values) + 1)]
    buffers = [
        struct.pack(f"<{len(offsets)}i", *offsets),
        b"".join(values),
        struct.pack(f"<{len(timestamps)}q", *timestamps),
    ]
    return bytes(metadata) + b"".join(part + bytes(-len(part) % 8) for part in buffers)


def batch_by_hand(fields: dict[str, object], body: bytes) -> bytes:
    """Build a batch with struct alone, from the table of the header."""
    rows = {row["field"]: row for row in table("batch header")}
    header = bytearray(112)
    for name, value in fields.items():
        pack_row(header, rows[name], value)
    padding = bytes(-len(body) % 8)
    pack_row(header, rows["body_crc"], crc32c(bytes(header[:64]) + body + padding))
    pack_row(header, rows["header_crc"], crc32c(bytes(header[:108])))
    return bytes(header) + body + padding


FIELDS = {
    "magic": b"CLYB",
    "version": 1,
    "kind": 0,
    "codec": 0,
    "flags": 0,
    "count": 3,
    "epoch": 7,
    "producer": hashlib.sha256(b"p1").digest()[:16],
    "cmdindex": 41,
    "first_timestamp": -5,
    "last_timestamp": 99,
    "base_offset": 1000,
    "term": 3,
    "index": 12,
    "append_time": 1234567,
    "commit_index": 11,
}


def test_a_batch_built_by_hand_from_the_table_is_read() -> None:
    body = arrow_message([b"one", b"", b"three33"], [-5, 99, 0])
    data = batch_by_hand(FIELDS | {"body_length": len(body), "unpacked_length": len(body)}, body)
    batch = Batch.parse(data)
    batch.check()
    for name, value in FIELDS.items():
        if name not in {"magic", "codec"}:
            assert getattr(batch, name) == value, name
    assert batch.codec == "none"
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch] == [
        (1000, -5, None, b"one", ()),
        (1001, 99, None, b"", ()),
        (1002, 0, None, b"three33", ()),
    ]


def test_the_library_writes_the_very_bytes_of_the_tables() -> None:
    body = arrow_message([b"one", b"", b"three33"], [-5, 99, 0])
    by_hand = batch_by_hand(FIELDS | {"body_length": len(body), "unpacked_length": len(body)}, body)
    builder = BatchBuilder().add_columns(value=[b"one", b"", b"three33"], timestamp=[-5, 99, 0])
    data = bytearray(builder.build(producer="p1", cmdindex=41, epoch=7))
    batch = Batch.parse(data)
    batch.stamp(base_offset=1000, term=3, index=12, append_time=1234567, commit_index=11)
    assert (batch.base_offset, batch.header_crc) == (1000, Batch.parse(by_hand).header_crc)
    assert bytes(data) == by_hand


def test_a_batch_written_by_the_code_is_read_field_by_field() -> None:
    builder = BatchBuilder("zstd").add(b"v" * 100, key=b"k", headers={"a": b"1"}, timestamp=5).add(b"w", timestamp=3)
    data = builder.build(producer="näme", cmdindex=9, epoch=2, sparse=True)
    read = {r["field"]: struct.unpack_from("<" + r["type"], data, int(r["at"]))[0] for r in table("batch header")}
    padded = -(-read["body_length"] // 8) * 8
    assert len(data) == 112 + padded
    assert read["magic"] == b"CLYB"
    assert (read["version"], read["kind"], read["codec"], read["flags"]) == (1, 0, 2, 1 | 2 | 4)
    assert (read["count"], read["epoch"], read["cmdindex"]) == (2, 2, 9)
    assert read["producer"] == hashlib.sha256("näme".encode()).digest()[:16]
    assert (read["first_timestamp"], read["last_timestamp"]) == (3, 5)
    assert all(read[f] == 0 for f in ("base_offset", "term", "index", "append_time", "commit_index"))
    assert read["body_crc"] == crc32c(data[:64] + data[112:])
    assert read["header_crc"] == crc32c(data[:108])
    assert read["unpacked_length"] > 0


def test_a_message_without_key_and_headers_costs_twelve_bytes_of_framing() -> None:
    def size(messages: int) -> int:
        return len(BatchBuilder().add_values([b"x" * 96] * messages).build(producer="p", cmdindex=1))

    assert (size(2001) - size(1001)) / 1000 == pytest.approx(96 + 12, abs=0.01)


def test_an_index_entry_is_as_the_table_says() -> None:
    files = MemoryFiles()
    file = files.open("/index", create=True)
    sparse = index.SparseIndex(lambda: file, 64)
    sparse.add(index.Entry(1, 2, 3, -4))
    sparse.write()
    data = files.contents("/index")
    read = {r["field"]: struct.unpack_from("<" + r["type"], data, int(r["at"])) for r in table("index entry")}
    assert read["base_offset"] + read["index"] + read["position"] + read["timestamp_max"] == (1, 2, 3, -4)
    assert read["crc"] == (crc32c(data[:32]),)
    assert len(data) == 40


def test_a_vote_slot_is_as_the_table_says() -> None:
    files = MemoryFiles()
    vote.VoteFile.open(files, "/vote", create=True).save(vote.Vote(5, "Broker1", 6, 4))
    data = files.contents("/vote")[:512]
    read = {r["field"]: struct.unpack_from("<" + r["type"], data, int(r["at"]))[0] for r in table("vote slot")}
    assert (read["magic"], read["version"], read["sequence"]) == (b"CLYV", 1, 2)
    assert (read["term"], read["fence_epoch"], read["seal_term"], read["name_length"]) == (5, 6, 4, 7)
    assert read["voted_for"].rstrip(b"\0") == b"Broker1"
    assert read["crc"] == crc32c(data[:508])


def test_a_checkpoint_is_as_the_table_says() -> None:
    files = MemoryFiles()
    checkpoint.write_checkpoint(files, "/c", checkpoint.Checkpoint(1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, True, b"state"))
    data = files.contents("/c")
    rows = [r for r in table("checkpoint") if r["field"]]
    read = {r["field"]: struct.unpack_from("<" + r["type"], data, int(r["at"]))[0] for r in rows}
    names = "index term position start_offset end_offset timestamp_max append_time index_entries commit_index"
    assert [read[name] for name in names.split()] == [1, 2, 3, 4, 5, -6, 7, 8, 9]
    assert (read["missing_through"], read["trusted_position"]) == (10, 11)
    assert (read["magic"], read["version"], read["state_length"], read["sealed"]) == (b"CLYC", 1, 5, 1)
    assert read["crc"] == crc32c(data[:108] + b"state")
    assert data[112:] == b"state"
