"""What was promised, held against what is there. Pure: it takes lists and returns sentences.

Every value is unique and says who made it and as which, so that a log can be judged by itself: `value_of`, `maker_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

PROBLEMS_MAX: Final = 20
_PAD: Final = b"."


@dataclass(frozen=True, slots=True)
class Message:
    """A value and where it is; as acknowledged (None: the answer did not say where), or as read."""

    offset: int | None
    value: bytes


def value_of(producer: str, number: int, *, bytes_min: int = 0) -> bytes:
    """Return the value that a producer makes as its `number`th."""
    return f"{producer}:{number}:".encode().ljust(bytes_min, _PAD)


def maker_of(value: bytes) -> tuple[str, int]:
    """Return who made a value, and as which."""
    producer, number, _ = value.split(b":")
    return producer.decode(), int(number)


def problems(acknowledged: Iterable[Message], stored: Sequence[Message]) -> list[str]:
    """Return what is wrong with a log that was read whole: lost, moved, doubled, out of order, with holes."""
    found = _about_the_log(stored)
    places = {message.value: message.offset for message in stored}
    for promised in acknowledged:
        place = places.get(promised.value)
        if place is None:
            found.append(f"lost: {promised.value!r}, acknowledged at {promised.offset}")
        elif promised.offset is not None and place != promised.offset:
            found.append(f"moved: {promised.value!r}, acknowledged at {promised.offset}, is at {place}")
    return found[:PROBLEMS_MAX]


def _about_the_log(stored: Sequence[Message]) -> list[str]:
    found = [
        f"a hole: offset {message.offset} follows {at - 1}" for at, message in enumerate(stored) if message.offset != at
    ][:1]
    counts = Counter(message.value for message in stored)
    found += [f"doubled: {value!r}, {count} times" for value, count in counts.items() if count > 1]
    last: dict[str, int] = {}
    for message in stored:
        producer, number = maker_of(message.value)
        if number < last.get(producer, -1):
            found.append(f"out of order: {producer} made {number} before {last[producer]}, offset {message.offset}")
        last[producer] = number
    return found
