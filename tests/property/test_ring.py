"""The ring of SPEC 5: its vectors, and what holds for any members and any keys (rows 10 to 12)."""

from __future__ import annotations

import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.controller.assignment import assign, partitions_of
from clymq.controller.ring import NODES_PER_POWER, Ring
from clymq.errors import InvalidRequest, NotEnoughReplicas

NAMES = st.text(min_size=1, max_size=12)
MEMBERS = st.dictionaries(NAMES, st.integers(1, 4), max_size=7)


def brokers(count: int) -> list[str]:
    return [f"Broker{number}" for number in range(count)]


@pytest.mark.parametrize(
    ("count", "key", "expected"),
    [
        (3, "phone_numberxiandup", "012"),
        (3, "phone_numbershanghaidup", "201"),
        (3, "phone_numberbeijingdup", "210"),
        (3, "phone_numberbeijing", "201"),
        (5, "phone_numberxiandup", "041"),
        (5, "phone_numbershanghaidup", "201"),
        (5, "phone_numberbeijingdup", "231"),
    ],
)
def test_row_10_the_vectors_of_the_specification(count: int, key: str, expected: str) -> None:
    assert Ring(brokers(count)).place(key, 3) == [f"Broker{digit}" for digit in expected]


def test_row_3_three_brokers_are_thirty_virtual_nodes_however_often_they_come() -> None:
    ring = Ring(brokers(3))
    assert len(ring) == 30
    for name in brokers(3):
        ring.add(name)
    assert len(ring) == 30
    ring.add("Broker0", 3)
    assert len(ring) == 50
    ring.remove("Broker0")
    ring.remove("Broker0")
    assert len(ring) == 20


@pytest.mark.parametrize("count", [3, 5])
def test_row_11_20000_keys_have_distinct_brokers_and_nobody_has_too_many(count: int) -> None:
    ring = Ring(brokers(count))
    firsts = dict.fromkeys(brokers(count), 0)
    for number in range(20_000):
        placed = ring.place(f"topic{number}dup", 3)
        assert len(set(placed)) == 3
        assert "" not in placed
        firsts[placed[0]] += 1
    assert min(firsts.values()) > 20_000 / count / 4


def test_row_11_too_few_brokers_is_a_clean_error_that_says_how_many_there_are() -> None:
    with pytest.raises(NotEnoughReplicas, match="4 members are asked for and 3 are there"):
        Ring(brokers(3)).place("key", 4)
    with pytest.raises(InvalidRequest):
        Ring(brokers(3)).place("key", -1)
    with pytest.raises(InvalidRequest):
        Ring({"Broker0": 0})
    assert Ring().place("key", 0) == []


@pytest.mark.parametrize("gone", brokers(5))
def test_row_12_without_one_of_five_keys_that_were_not_on_it_stay(gone: str) -> None:
    before, after = Ring(brokers(5)), Ring(brokers(5))
    after.remove(gone)
    for number in range(2000):
        key = f"topic{number}dup"
        placed = before.place(key, 3)
        if gone not in placed:
            assert after.place(key, 3) == placed
        else:
            assert after.place(key, 2) == [name for name in placed if name != gone]


@given(MEMBERS, NAMES)
def test_a_ring_is_its_members_and_not_how_they_came(members: dict[str, int], key: str) -> None:
    ring = Ring()
    ring.add("somebody who leaves", 2)
    for name in sorted(members, key=lambda name: zlib.crc32((name + key).encode())):
        ring.add(name, members[name] + 1)
        ring.add(name, members[name])
    ring.remove("somebody who leaves")
    assert len(ring) == NODES_PER_POWER * sum(members.values())
    assert ring.order(key) == Ring(members).order(key)


@given(MEMBERS, NAMES)
def test_placing_fewer_is_the_beginning_of_placing_more(members: dict[str, int], key: str) -> None:
    ring = Ring(members)
    order = ring.order(key)
    assert sorted(order) == sorted(members)
    for count in range(len(members) + 1):
        assert ring.place(key, count) == order[:count]


def test_a_key_on_a_node_belongs_to_it_and_one_past_the_last_wraps() -> None:
    ring = Ring(["a", "b"])
    for member, number in itertools.product("ab", range(10)):
        assert ring.place(f"{member}{number}", 1) == [member]
    nodes = sorted((zlib.crc32(f"{member}{number}".encode()), member) for member in "ab" for number in range(10))
    past = next(key for key in map(str, range(10**6)) if zlib.crc32(key.encode()) > nodes[-1][0])
    assert ring.place(past, 1) == [nodes[0][1]]


PARTITIONS = ["beijing", "shanghai", "xian"]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, {"beijing": "", "shanghai": "", "xian": ""}),
        (1, {"beijing": "1", "shanghai": "1", "xian": "1"}),
        (2, {"beijing": "2", "shanghai": "1", "xian": "1"}),
        (3, {"beijing": "2", "shanghai": "1", "xian": "3"}),
        (4, {"beijing": "24", "shanghai": "1", "xian": "3"}),
        (5, {"beijing": "25", "shanghai": "14", "xian": "3"}),
    ],
)
def test_row_60_the_table_of_assignments(count: int, expected: dict[str, str]) -> None:
    assigned = assign([f"consumer{number}" for number in range(1, count + 1)], reversed(PARTITIONS))
    assert list(assigned) == PARTITIONS
    assert assigned == {name: [f"consumer{digit}" for digit in digits] for name, digits in expected.items()}


@given(st.sets(NAMES, max_size=9), st.sets(NAMES, max_size=6))
def test_every_partition_has_a_consumer_and_every_consumer_a_partition(
    consumers: set[str], partitions: set[str]
) -> None:
    assigned = assign(consumers, partitions)
    assert set(assigned) == partitions
    assert all(len(set(each)) == len(each) for each in assigned.values())
    if consumers:
        assert all(assigned.values())
    if partitions:
        # Where there are fewer partitions than consumers nobody is idle; where there are more, some may be shared.
        assert {name for each in assigned.values() for name in each} == consumers
        sizes = [len(each) for each in assigned.values()]
        assert not consumers or max(sizes) - min(sizes) <= 1
    for consumer in consumers:
        assert partitions_of(consumer, assigned) == sorted(name for name in partitions if consumer in assigned[name])
