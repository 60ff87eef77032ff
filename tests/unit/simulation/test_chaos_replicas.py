"""Whether replicas are whole: the rule that damage waits for."""

from __future__ import annotations

from clymq.simulation.chaos.replicas import BEHIND_BYTES_MAX, _are_almost_equal


def test_replicas_that_begin_alike_and_lack_little_are_whole() -> None:
    assert _are_almost_equal([b"abc", b"ab", b"abcd"])
    assert _are_almost_equal([b"abc"])


def test_a_replica_that_lacks_much_or_differs_is_not_whole() -> None:
    assert not _are_almost_equal([b"abc", b"abd"])
    assert not _are_almost_equal([bytes(BEHIND_BYTES_MAX + 2), b"\0"])
    assert not _are_almost_equal([bytes(BEHIND_BYTES_MAX + 1), b""])
