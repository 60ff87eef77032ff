"""How the work between two positions is divided into Spark's tasks: a pure function of start, end and options.

Pure, because Spark plans a micro-batch again after a failure and what a task has written is recognised by its number:
if the same offsets were divided otherwise the second time, the sink could not tell what is stored already. So nothing
here looks at the cluster. As in Spark's Kafka source: one task for a partition's range, unless there are to be more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

from clymq.spark.offsets import Offsets, Range, ranges_between


def plan(
    start: Offsets, end: Offsets, *, min_partitions: int | None = None, max_records_per_partition: int | None = None
) -> list[Range]:
    """Return the range of each task."""
    ranges = ranges_between(start, end)
    if max_records_per_partition is not None:
        ranges = [piece for each in ranges for piece in _divide(each, -(-each.size // max_records_per_partition))]
    if min_partitions is not None and 0 < len(ranges) < min_partitions:
        ranges = _at_least(ranges, min_partitions)
    return ranges


def spread(range_: Range) -> int:
    """Return a number that differs from task to task: it chooses the replica from which a sealed block is read."""
    return zlib.crc32(f"{range_.topic}/{range_.partition}/{range_.start}".encode())


def _at_least(ranges: Sequence[Range], count: int) -> list[Range]:
    """Divide the large ranges in proportion; those that would not be divided keep their one task each."""
    total = sum(each.size for each in ranges)
    small = {each for each in ranges if round(count * each.size / total) <= 1}
    large_total = sum(each.size for each in ranges if each not in small)
    large_count = max(1, count - len(small))
    return [
        piece
        for each in ranges
        for piece in ([each] if each in small else _divide(each, max(1, round(large_count * each.size / large_total))))
    ]


def _divide(whole: Range, parts: int) -> Iterator[Range]:
    """Divide a range into equal pieces."""
    parts = max(1, min(parts, whole.size))
    cuts = [whole.start + whole.size * at // parts for at in range(parts + 1)]
    for begin, until in pairwise(cuts):
        yield whole._replace(start=begin, end=until)
