"""When a disk may be damaged without taking more than the product promises to survive."""

from __future__ import annotations

from clymq.simulation.chaos.replicas import BEHIND_BYTES_MAX, can_do_without_one


def test_three_replicas_that_begin_alike_and_lack_little_can_do_without_one() -> None:
    assert can_do_without_one([b"abc", b"ab", b"abcd"])
    assert can_do_without_one([b"abc"] * 5)


def test_replicas_that_differ_or_lack_much_cannot() -> None:
    assert not can_do_without_one([b"abc", b"abd", b"abc"])
    assert not can_do_without_one([bytes(BEHIND_BYTES_MAX + 2), b"\0", b"\0"])
    assert not can_do_without_one([bytes(BEHIND_BYTES_MAX + 1), b"", b""])


def test_one_or_two_replicas_cannot() -> None:
    """Chaos, zookeeper, fetch, seed 7005: a topic made while a broker was down had two, and one of them was wiped."""
    assert not can_do_without_one([b"abc"])
    assert not can_do_without_one([b"abc", b"abc"])
