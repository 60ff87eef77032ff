"""Reading a file that nobody trusts: everything whole is found, everything else is named."""

from __future__ import annotations

import random

import pytest

from clymq.storage.memory import MemoryFiles
from clymq.storage.scan import Damage, Found, scan
from factory import built, stamped


def written(contents: bytes) -> tuple[MemoryFiles, object]:
    files = MemoryFiles()
    file = files.open("/f", create=True)
    file.write(0, [contents])
    return files, file


def results(contents: bytes) -> list[Found | Damage]:
    _, file = written(contents)
    return list(scan(file, 0, len(contents)))


def batches(count: int, size: int = 200) -> list[bytes]:
    return [bytes(stamped(built([b"x" * size]), index=n + 1, offset=n).buffer) for n in range(count)]


def covers(found: list[Found | Damage], end: int) -> bool:
    position = 0
    for item in found:
        if item.position != position:
            return False
        position = item.position + item.batch.length if isinstance(item, Found) else item.end
    return position == end


def test_whole_batches_are_found_in_order() -> None:
    parts = batches(20)
    found = results(b"".join(parts))
    assert [bytes(item.batch.buffer) for item in found] == parts


def test_an_empty_file_has_nothing() -> None:
    assert results(b"") == []


@pytest.mark.parametrize("at", [0, 50, 108, 111, 112, 300])
def test_damage_in_one_batch_costs_only_that_one(at: int) -> None:
    parts = batches(10)
    data = bytearray(b"".join(parts))
    start = len(parts[0]) * 4
    data[start + at] ^= 0x10
    found = results(bytes(data))
    damage = [item for item in found if isinstance(item, Damage)]
    assert [(d.position, d.end) for d in damage] == [(start, start + len(parts[0]))]
    assert len(found) == 10
    assert covers(found, len(data))


def test_a_torn_tail_is_damage_to_the_end() -> None:
    data = b"".join(batches(3))
    for cut in (1, 100, 111, 112, 113, 300):
        found = results(data[:-cut])
        assert isinstance(found[-1], Damage)
        assert found[-1].end == len(data) - cut
        assert [type(item) for item in found] == [Found, Found, Damage]


def test_a_batch_larger_than_the_window_is_read_whole() -> None:
    parts = [*batches(2), *batches(3, size=1_048_000)]
    assert len(results(b"".join(parts))) == 5


def test_zeros_and_noise_are_damage_and_the_next_batch_is_found_behind_them() -> None:
    part = batches(1)[0]
    noise = random.Random(1).randbytes(3_000_000) + bytes(3_000_000)
    found = results(part + noise + part)
    assert [type(item) for item in found] == [Found, Damage, Found]
    assert covers(found, len(part) * 2 + len(noise))


def test_any_mutilation_is_covered_without_gap_or_overlap() -> None:
    chance = random.Random(7)
    good = b"".join(batches(30))
    for _ in range(200):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            kind = chance.random()
            if kind < 0.5:
                data[at] ^= 1 << chance.randrange(8)
            elif kind < 0.8:
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            else:
                del data[at & ~7 :]
        found = results(bytes(data))
        assert covers(found, len(data))
        assert all(bytes(i.batch.buffer) in good for i in found if isinstance(i, Found))
