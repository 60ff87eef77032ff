"""How far a query has come: a position in each partition of each topic, with the id of the topic that it is about.

This is what Spark writes to its checkpoint and shows in its progress:

    {"orders": {"id": "9f0c...", "offsets": {"0": 120, "1": 98}}}

The id is what tells a topic that was deleted and made anew from the one before: its offsets begin at 0 again, and a
query that went on at its old numbers would skip what is there. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from clymq.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Positions in the partitions of one topic."""

    id: str
    offsets: Mapping[str, int]


Offsets = Mapping[str, TopicOffsets]


class Range(NamedTuple):
    """The messages [start, end) of a partition."""

    topic: str
    topic_id: str
    partition: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many there are."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.end})"


def to_json(offsets: Offsets) -> dict[str, Any]:
    """Return the form that Spark keeps, always in the same order."""
    return {
        topic: {"id": each.id, "offsets": dict(sorted(each.offsets.items()))} for topic, each in sorted(offsets.items())
    }


def from_json(parsed: Mapping[str, Any]) -> Offsets:
    """Read what Spark kept."""
    try:
        return {
            topic: TopicOffsets(str(each["id"]), {str(name): int(number) for name, number in each["offsets"].items()})
            for topic, each in parsed.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidRequest(
            f"{parsed!r} are not offsets of clymq", hint="the checkpoint is of another source"
        ) from None


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """Return what lies between two positions, in the order of the names; what is empty is left out.

    A partition that `start` does not know is read from its beginning, and so is a topic that was made anew.
    """
    found = []
    for topic, each in sorted(end.items()):
        before = start.get(topic)
        known = before.offsets if before is not None and before.id == each.id else {}
        for partition, until in sorted(each.offsets.items()):
            begin = known.get(partition, 0)
            if begin < until:
                found.append(Range(topic, each.id, partition, begin, until))
    return found


def message_count(start: Offsets, end: Offsets) -> int:
    """Return how many messages lie between two positions."""
    return sum(each.size for each in ranges_between(start, end))


def limited(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Return a position at most about `rows_max` messages from `start`, each partition by its share of what waits.

    As in Spark's Kafka source: a share below one is one, so that a small backlog is not starved by a large one.
    """
    ranges = ranges_between(start, end)
    total = sum(each.size for each in ranges)
    if total <= rows_max:
        return end
    reached: dict[tuple[str, str], int] = {}
    for each in ranges:
        share = rows_max * (each.size / total)
        reached[each.topic, each.partition] = each.start + min(each.size, math.ceil(share) if share < 1 else int(share))
    return {
        topic: TopicOffsets(of.id, {name: reached.get((topic, name), number) for name, number in of.offsets.items()})
        for topic, of in end.items()
    }


def lag(end: Mapping[str, Any], latest: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return how many messages each partition is behind, from `endOffset` and `latestOffset` of a query's progress."""
    found: dict[str, dict[str, int]] = {}
    for each in ranges_between(from_json(end), from_json(latest)):
        found.setdefault(each.topic, {})[each.partition] = each.size
    return {
        topic: {partition: found.get(topic, {}).get(partition, 0) for partition in of.offsets}
        for topic, of in from_json(latest).items()
    }


def partitions_of(offsets: Offsets) -> Iterator[tuple[str, str, int]]:
    """Yield topic, partition and position."""
    for topic, each in offsets.items():
        for partition, number in each.offsets.items():
            yield topic, partition, number
