"""What is no part of a message is refused, by its place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from clymq.errors import InvalidRequest
from clymq.record import BatchBuilder
from clymq.record.elements import check_columns


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": ["text"]}, "value 0 is a str, not bytes"),
        ({"value": [1]}, "value 0 is a int, not bytes"),
        ({"value": [None]}, "value 0 is a NoneType, not bytes"),
        ({"value": [b"x", None]}, "value 1 is a NoneType, not bytes"),
        ({"value": b"xy"}, "value 0 is a int, not bytes"),
        ({"value": iter([b"x"])}, "column value is a list_iterator, which has no length"),
        ({"key": [None, b"k", "k"]}, "key 2 is a str, not bytes or None"),
        ({"timestamp": [1, None, 1.0]}, "timestamp 2 is a float"),
        ({"timestamp": [False]}, "timestamp 0 is a bool"),
        ({"headers": [None, {"a": 1}]}, "message 1: header 'a' is a int, not bytes"),
        ({"headers": [[("a", b"1")], [("a", b"1", 2)]]}, "message 1: header"),
        ({"headers": ["text"]}, "message 0: headers are a str"),
    ],
)
def test_the_element_that_is_wrong_is_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_columns(columns)
    assert refused.value.message.startswith(said)


def test_what_is_right_passes() -> None:
    check_columns({"value": [b"x", bytearray(b"y"), memoryview(b"z")], "key": [None, b"", b"k"]})
    check_columns({"timestamp": [None, 1, -1], "headers": [None, {}, {"a": None}, [("b", b"1")]]})
    check_columns({"value": pa.array([b"x"]), "key": pa.chunked_array([[b"k"]])})


def test_text_among_bytes_does_not_become_a_message() -> None:
    with pytest.raises(InvalidRequest, match="value 1 is a str"):
        BatchBuilder().add_values([b"x", "text"])  # type: ignore[list-item]
