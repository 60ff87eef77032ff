"""What messages may be made of, and which element is not: looked for in C, and named by its place when there is one.

Arrow turns text into bytes and fractions into numbers without a word; here both are mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final

import pyarrow as pa

from clymq.errors import InvalidRequest

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

BYTES_TYPES: Final = (bytes, bytearray, memoryview)
_WANTED: Final = {"value": "bytes", "key": "bytes or None", "timestamp": "a number of microseconds or None"}


def check_columns(columns: Mapping[str, Any]) -> None:
    """Raise `InvalidRequest` for the first element that cannot be part of a message; Arrow arrays have their type."""
    for name, column in columns.items():
        if isinstance(column, pa.Array | pa.ChunkedArray):
            continue
        if not hasattr(column, "__len__"):
            raise InvalidRequest(f"column {name} is a {type(column).__name__}, which has no length", hint="give a list")
        if name == "headers":
            _check_headers(column)
        else:
            _check_kinds(name, column)


def header_pairs(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message as pairs, or say what is wrong with them."""
    if not isinstance(headers, Iterable) or type(headers) in {str, bytes}:
        raise InvalidRequest(f"headers are a {type(headers).__name__}, not pairs of a string and bytes")
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidRequest(f"header {pair!r} is not a pair of a string and bytes")
        try:
            pair[0].encode()
        except UnicodeEncodeError:
            raise InvalidRequest(f"header key {pair[0]!r} is not valid Unicode") from None
        if pair[1] is not None:
            bytes_of(f"header {pair[0]!r}", pair[1])
    return pairs


def bytes_of(what: str, value: object) -> int:
    """Return the size of bytes, or say that they are none."""
    if isinstance(value, BYTES_TYPES[:2]):
        return len(value)
    if isinstance(value, memoryview) and value.contiguous:
        return value.nbytes
    raise InvalidRequest(f"{what} is a {type(value).__name__}, not bytes")


def _check_kinds(name: str, column: Any) -> None:
    wrong = {kind for kind in set(map(type, column)) if not _may_be(name, kind)}
    if wrong:
        at, kind = next((at, type(each)) for at, each in enumerate(column) if type(each) in wrong)
        raise InvalidRequest(f"{name} {at} is a {kind.__name__}, not {_WANTED[name]}")


def _may_be(name: str, kind: type) -> bool:
    if name == "timestamp":
        return kind is type(None) or (kind is not bool and issubclass(kind, Integral))
    return issubclass(kind, BYTES_TYPES) or (name == "key" and kind is type(None))


def _check_headers(column: Any) -> None:
    for at, headers in enumerate(column):
        if headers is not None:
            try:
                header_pairs(headers)
            except InvalidRequest as error:
                raise InvalidRequest(f"message {at}: {error}") from None
