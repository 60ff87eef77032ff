"""Spoiling what was valid: bits, bytes, numbers, lengths, pieces; and values that are allowed and absurd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

NUMBERS: Final = (
    0, 1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1, 2**53 + 1,
    2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -2, -128, -(2**31), -(2**63),
)  # fmt: skip
FLOATS: Final = (0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS: Final = (
    "", " ", ".", "..", "a/b", "\0", "a\nb", "\x7f", "\u2028", "e\u0301", "\ufeff", "\U0001f600", "北京", "%00", "%2f",
    "x" * 200, "x" * 201, "é" * 101, "y" * 70_000, "nan", "-1", "1e999", "0x10", "true", "null", "[]", "{}",
    "127.0.0.1:0", "127.0.0.1:99999", "[::1]:1", "::", ":", "host:", ":1", "Genesis", "earliest", "latest",
    "2024-02-30T00:00:00", "9999-12-31T23:59:59", "0001-01-01", "9" * 400,
)  # fmt: skip
BYTES: Final = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\x93" * 40,
    bytes(16),
    b"x" * 5000,
    b"\x91" * 5000,
)
_WIDTHS: Final = (1, 2, 4, 8)


def number(chance: Random) -> int:
    """Return a whole number: at an edge, near one, or any; none that 64 bits cannot say."""
    edge = chance.choice(NUMBERS)
    if chance.random() < 0.3:
        edge += chance.choice((-1, 1))
    if chance.random() < 0.2:
        edge = chance.getrandbits(chance.randrange(1, 65))
    return max(-(2**63), min(edge, 2**64 - 1))


def anything(chance: Random, depth: int = 2) -> Any:
    """Return a value of any kind that msgpack and JSON can say."""
    simple: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: chance.random() < 0.5,
        lambda: number(chance),
        lambda: chance.choice(FLOATS),
        lambda: chance.choice(TEXTS),
        lambda: chance.choice(BYTES),
    )
    if depth and chance.random() < 0.3:
        inner = [anything(chance, depth - 1) for _ in range(chance.randrange(4))]
        return inner if chance.random() < 0.5 else {chance.choice(TEXTS): each for each in inner}
    if chance.random() < 0.02:
        return nested(chance.choice((20, 100, 300)))
    return chance.choice(simple)()


def nested(depth: int) -> Any:
    """Return lists in lists, so deep."""
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


def spoilt(chance: Random, data: bytes, others: Sequence[bytes] = (), *, front: int = 500) -> bytes:
    """Return data with a few things wrong; most of them in its first `front` bytes, where most is decided."""
    spoiling = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if not spoiling:
            spoiling += chance.randbytes(chance.randrange(1, 9))
        at = chance.randrange(len(spoiling))
        if chance.random() < 0.6:
            at %= front
        chance.choice(_SPOILERS)(chance, spoiling, at, others)
    return bytes(spoiling)


def _flip(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    data[at] ^= 1 << chance.randrange(8)


def _set(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC0, 0xFF, chance.randrange(256)))


def _overwrite_number(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    width = chance.choice(_WIDTHS)
    at -= at % width
    value = number(chance) % (1 << 8 * width)
    data[at : at + width] = value.to_bytes(width, chance.choice(("little", "big")))


def _add_to_number(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    width = chance.choice(_WIDTHS)
    at -= at % width
    there = int.from_bytes(data[at : at + width], "little")
    moved = (there + chance.choice((-8, -1, 1, 8))) % (1 << 8 * width)
    data[at : at + width] = moved.to_bytes(width, "little")


def _cut(_chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    del data[at:]


def _extend(chance: Random, data: bytearray, _at: int, _others: Sequence[bytes]) -> None:
    data += chance.randbytes(chance.randrange(64))


def _insert(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    data[at:at] = chance.choice((chance.randbytes(chance.randrange(1, 20)), chance.choice(BYTES)))


def _remove(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    del data[at : at + chance.randrange(1, 20)]


def _repeat(chance: Random, data: bytearray, at: int, _others: Sequence[bytes]) -> None:
    data[at:at] = data[at : at + chance.randrange(1, 200)]


def _splice(chance: Random, data: bytearray, at: int, others: Sequence[bytes]) -> None:
    if others:
        data[at:] = chance.choice(others)[at:]


_SPOILERS: Final = (
    _flip, _flip, _flip, _set, _set, _overwrite_number, _overwrite_number, _overwrite_number, _add_to_number, _cut,
    _extend, _insert, _remove, _repeat, _splice,
)  # fmt: skip
