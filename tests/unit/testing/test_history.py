"""A log is judged by what was promised of it."""

from __future__ import annotations

import pytest

from clymq.testing.history import Message, maker_of, problems, value_of

A, B, C = (value_of("p", number) for number in range(3))
Q = value_of("q", 7)


def log(*values: bytes) -> list[Message]:
    return [Message(offset, value) for offset, value in enumerate(values)]


def test_a_value_says_who_made_it_and_as_which_however_long_it_is() -> None:
    assert maker_of(value_of("p", 12)) == ("p", 12)
    assert maker_of(value_of("p", 12, bytes_min=100)) == ("p", 12)
    assert len(value_of("p", 12, bytes_min=100)) == 100


def test_a_log_that_keeps_every_promise_has_no_problem() -> None:
    assert problems([], []) == []
    assert problems([Message(0, A), Message(2, B)], log(A, Q, B, C)) == []


def test_a_promise_without_a_place_is_kept_anywhere() -> None:
    assert problems([Message(None, B)], log(A, B)) == []


@pytest.mark.parametrize(
    ("acknowledged", "stored", "problem"),
    [
        ([Message(0, A), Message(1, B)], log(A), "lost"),
        ([Message(None, B)], log(A), "lost"),
        ([Message(0, A)], log(Q, A), "moved"),
        ([], log(A, B, A), "doubled"),
        ([], log(B, A), "out of order"),
        ([], [Message(0, A), Message(2, B)], "a hole"),
        ([], [Message(1, A)], "a hole"),
    ],
)
def test_each_kind_of_broken_promise_is_found(acknowledged: list[Message], stored: list[Message], problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(acknowledged, stored))


def test_what_two_producers_made_may_be_in_any_order() -> None:
    assert problems([], log(Q, A, B)) == problems([], log(A, Q, B)) == []


def test_many_problems_are_told_by_a_few() -> None:
    assert len(problems([Message(at, value_of("p", at)) for at in range(1000)], [])) == 20
