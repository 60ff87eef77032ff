"""Where a message goes: vectors that every client must agree on, and cuts that lose nothing."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.client.identity import default_name
from clymq.client.partitioning import (
    Sticky,
    by_key,
    by_key_column,
    cut_table,
    cut_table_by,
    cut_values,
    cuts,
    partition_of,
    size_of_few,
)
from clymq.client.receipts import merged
from clymq.types import check_name

FOUR = ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("key", "crc", "of_four", "of_three"),
    [
        (b"", 0x00000000, "0", "beijing"),
        (b"a", 0xE8B7BE43, "3", "beijing"),
        (b"123456789", 0xCBF43926, "2", "xian"),
        (b"order-1", 0xE0B37FEF, "3", "shanghai"),
        ("北京".encode(), 0xCC6B7E91, "1", "beijing"),
    ],
)
def test_a_key_goes_to_the_partition_of_its_crc32(key: bytes, crc: int, of_four: str, of_three: str) -> None:
    names = ("beijing", "shanghai", "xian")
    assert partition_of(key, FOUR) == FOUR[crc % 4] == of_four
    assert partition_of(key, names) == names[crc % 3] == of_three


@given(st.lists(st.none() | st.binary(max_size=8), max_size=100))
def test_columns_and_tables_are_divided_alike(keys: list[bytes | None]) -> None:
    chosen = by_key(keys, FOUR)
    assert sorted(at for each in chosen.values() for at in each) == list(range(len(keys)))
    table = pa.table({"value": [b"%d" % n for n in range(len(keys))], "key": pa.array(keys, pa.binary())})
    parts = {
        name: [int(value) for value in part.column("value").to_pylist()]
        for name, part in by_key_column(table, FOUR).items()
        if part.num_rows
    }
    assert parts == chosen


@given(st.lists(st.integers(0, 50), max_size=50), st.integers(1, 100))
def test_cuts_cover_everything_once_within_the_limit(sizes: list[int], limit: int) -> None:
    found = list(cuts(sizes, lambda: limit))
    assert [at for start, end, _ in found for at in range(start, end)] == list(range(len(sizes)))
    for start, end, size in found:
        assert size == sum(sizes[start:end])
        assert size <= limit or end - start == 1
    # No cut too many: the next message would not have fitted.
    for (start, end, size), (_, after, _) in pairwise(found):
        assert size + sizes[end] > limit
        assert after > end > start


@given(sizes=st.lists(st.integers(0, 300), max_size=60), limit=st.integers(1, 1000))
def test_values_are_cut_into_columns_within_the_limit(sizes: list[int], limit: int) -> None:
    values = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    pieces = list(cut_values(values, 12, lambda: limit))
    assert [value for column, _ in pieces for value in column.to_pylist()] == values
    for column, size in pieces:
        assert size == sum(len(value) + 12 for value in column.to_pylist())
        assert len(column) >= 1
        assert size <= limit or len(column) == 1


@pytest.mark.parametrize(
    ("values", "limit", "size"),
    [
        ([b"ab", b"cde"], 29, 29),
        ([b"ab", b"cde"], 28, None),
        ([b"", b"x" * 100], 100, None),
        ([b"x" * 100, b""], 100, None),
        ([], 100, None),
        ([b"ab", bytearray(b"c")], 100, None),
        ([b"ab", "c"], 100, None),
        (["ab"], 100, None),
        ([None], 100, None),
    ],
)
def test_few_values_are_bytes_that_fit_together(values: list[bytes], limit: int, size: int | None) -> None:
    assert size_of_few(values, 12, limit) == size


def test_equal_values_fill_their_columns() -> None:
    lengths = [len(column) for column, _ in cut_values([bytes(88)] * 1000, 12, lambda: 10_000)]
    assert lengths == [100] * 10


def test_the_limit_of_a_piece_is_asked_for_when_its_turn_comes() -> None:
    limits = iter([1000, 4000, 4000, 1000])
    assert [len(column) for column, _ in cut_values([bytes(88)] * 100, 12, lambda: next(limits))] == [10, 40, 40, 10]
    limits = iter([1000, 4000, 4000, 1000])
    assert [end - start for start, end, _ in cuts([100] * 100, lambda: next(limits))] == [10, 40, 40, 10]
    rows = [number.to_bytes(8, "little") + bytes(992) for number in range(100)]
    limits = iter([10_100, 40_400, 40_400, 40_400])
    pieces = list(cut_table_by(pa.table({"value": rows}), lambda: next(limits)))
    assert [piece.num_rows for piece in pieces] == [10, 40, 40, 10]
    assert pa.concat_tables(pieces).column("value").to_pylist() == rows


def test_rows_of_one_size_are_cut_into_as_few_slices_as_hold_them() -> None:
    table = pa.table({"value": [bytes(96)] * 5000})  # with its offset 100 bytes each
    assert [piece.num_rows for piece in cut_table(table, 200_000)] == [1666, 1667, 1667]


def test_a_table_is_cut_where_it_is_large() -> None:
    sizes = [10] * 1000 + [5000] * 20
    table = pa.table({"value": [bytes(size) for size in sizes]})
    pieces = list(cut_table(table, 8000))
    assert sum(piece.num_rows for piece in pieces) == 1020
    assert all(piece.nbytes <= 8000 or piece.num_rows == 1 for piece in pieces)
    assert [len(v) for piece in pieces for v in piece.column("value").to_pylist()] == sizes


def test_the_turn_goes_on_only_with_the_batch_of_the_current_partition() -> None:
    sticky = Sticky(0.5)
    assert sticky.current(FOUR) == "2"
    sticky.advance("0", FOUR)
    assert sticky.current(FOUR) == "2"
    sticky.advance("2", FOUR)
    assert sticky.current(FOUR) == "3"
    sticky.advance("3", FOUR)
    assert sticky.current(FOUR) == "0"


def test_ranges_that_adjoin_are_joined() -> None:
    ranges = [("a", 0, 5), ("b", 7, 1), ("a", 5, 2), ("a", 9, 1), ("c", None, 1), ("c", None, 2)]
    assert merged(ranges) == [("a", 0, 7), ("b", 7, 1), ("a", 9, 1), ("c", None, 3)]


def test_a_default_name_is_a_name_and_one_of_a_kind() -> None:
    names = {default_name() for _ in range(100)}
    assert len(names) == 100
    for name in names:
        check_name(name)
        machine, pid, chance = name.split("-")
        assert len(machine) == 12
        assert pid.isdigit()
        assert len(chance) == 16
