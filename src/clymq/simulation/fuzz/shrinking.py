"""The least that still fails: what is not needed for a violation is taken out of its input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from clymq.simulation.fuzz.target import Input

TRIES_MAX: Final = 3_000


def shrunk(given: Input, fails: Callable[[Input], bool], *, tries_max: int = TRIES_MAX) -> Input:
    """Return a small input for which `fails` is still true."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for each in _simpler(given):
            tries += 1
            if tries > tries_max:
                return given
            if fails(each):
                given, smaller = each, True
                break
    return given


def _simpler(given: Input) -> Iterator[Input]:
    """Yield inputs that are less than this one, the boldest first: without parts, without stretches, with zeros."""
    for at in range(len(given) if len(given) > 1 else 0):
        yield given[:at] + given[at + 1 :]
    for at, part in enumerate(given):
        for less in _shorter(part):
            yield (*given[:at], less, *given[at + 1 :])


def _shorter(part: bytes) -> Iterator[bytes]:
    size = len(part)
    while size:
        for start in range(0, len(part), size):
            yield part[:start] + part[start + size :]
        size //= 2
    for at, byte in enumerate(part):
        if byte:
            yield part[:at] + b"\0" + part[at + 1 :]
