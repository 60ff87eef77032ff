"""Which offsets are held by which lease, against a plain dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clymq.client.leases import HeldLeases, Piece, joined

OFFSETS = st.integers(0, 30)
RANGES = st.tuples(OFFSETS, st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "finish", "forget", "extend"]), RANGES, st.integers(1, 5)))


def held_by(held: HeldLeases) -> dict[int, int]:
    return {offset: piece.lease for piece in held.all() for offset in range(piece.start, piece.end)}


@given(STEPS)
def test_leases_are_what_a_dictionary_by_offset_says(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    held, model = HeldLeases(), {}
    lease = 0
    for step, (start, end), number in steps:
        if step == "add":
            lease += 1
            held.add(lease, start, end, now_ms=0, lease_ms=100)
            model |= dict.fromkeys(range(start, end), lease)
        elif step == "finish":
            pieces = held.pieces(start, end)
            assert {offset for each in pieces for offset in range(each.start, each.end)} == {
                offset for offset in range(start, end) if offset in model
            }
            held.finish(pieces)
            model = {offset: by for offset, by in model.items() if not start <= offset < end}
        elif step == "forget":
            held.forget([number])
            model = {offset: by for offset, by in model.items() if by != number}
        else:
            held.extend([number], now_ms=0, lease_ms=200)
        assert held_by(held) == model
        assert all(one.end <= other.start for one, other in zip(held.all(), held.all()[1:], strict=False))
        assert len(held) == len(held.all())


def test_what_another_lease_has_by_now_is_not_finished_by_the_older_one() -> None:
    held = HeldLeases()
    held.add(1, 0, 10, now_ms=0, lease_ms=100)
    older = held.pieces(0, 10)
    held.add(2, 4, 6, now_ms=0, lease_ms=100)
    held.finish(older)
    assert held.all() == [Piece(2, 4, 6)]


def test_a_lease_ends_with_its_time_and_later_if_it_is_extended() -> None:
    held = HeldLeases()
    held.add(1, 0, 10, now_ms=0, lease_ms=100)
    assert held.has(1, 5, now_ms=99)
    assert not held.has(1, 5, now_ms=100)
    assert not held.has(2, 5, now_ms=0)
    assert not held.has(1, 10, now_ms=0)
    assert held.half_over(49) == {}
    assert held.half_over(51) == {100: [Piece(1, 0, 10)]}
    held.extend([1, 7], now_ms=50, lease_ms=200)
    assert held.has(1, 5, now_ms=249)
    assert held.half_over(100) == {}


def test_pieces_that_touch_become_one_range() -> None:
    pieces = [Piece(2, 5, 8), Piece(1, 0, 5), Piece(1, 9, 10), Piece(3, 10, 11)]
    assert joined(pieces) == ((1, 2, 3), [(0, 8), (9, 11)])
    assert joined([]) == ((), [])
