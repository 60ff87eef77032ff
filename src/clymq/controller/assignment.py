"""Which consumers of a point-to-point group take which partitions: advice for balance. Pure.

Exclusiveness comes from the leader's leases, so an assignment that is late or doubled costs balance and nothing else.
The consumers are the members of a ring and the partitions its keys. First every partition, in sorted order, takes its
successor; one consumer may be the successor of several. Then, as long as consumers are free, the partitions go round
again and each takes the next free one clockwise: more consumers than partitions share partitions evenly.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from clymq.controller.ring import Ring

# All consumers of a group ask for the same: it is worked out once for each change.
REMEMBERED_MAX: Final = 64


def assign(consumers: Iterable[str], partitions: Iterable[str]) -> dict[str, list[str]]:
    """Return for each partition its consumers, the first choice first; none where there are no consumers."""
    assigned = _assigned(tuple(sorted(set(consumers))), tuple(sorted(set(partitions))))
    return {partition: list(names) for partition, names in assigned}


@lru_cache(maxsize=REMEMBERED_MAX)
def _assigned(consumers: tuple[str, ...], partitions: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    ring = Ring(consumers)
    clockwise = {partition: ring.order(partition) for partition in partitions}
    assigned = {partition: order[:1] for partition, order in clockwise.items()}
    free = set(ring.members.difference(*assigned.values()))
    following = {partition: iter(order) for partition, order in clockwise.items()}
    while free and assigned:
        for partition in partitions:
            # Who was passed over was not free, and never is again.
            taken = next((consumer for consumer in following[partition] if consumer in free), None)
            if taken is not None:
                assigned[partition].append(taken)
                free.remove(taken)
    return list(assigned.items())


def partitions_of(consumer: str, assigned: dict[str, list[str]]) -> list[str]:
    """Return the partitions of one consumer, sorted."""
    return [partition for partition, consumers in assigned.items() if consumer in consumers]
