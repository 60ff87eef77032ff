"""Which consumers of a point-to-point group take which partitions: advice for balance. Pure.

Exclusiveness comes from the leader's leases, so an assignment that is late or doubled costs balance and nothing else.
The consumers are the members of a ring and the partitions its keys. First every partition, in sorted order, takes its
successor; one consumer may be the successor of several. Then, as long as consumers are free, the partitions go round
again and each takes the next free one clockwise: more consumers than partitions share partitions evenly.
"""

from __future__ import annotations

from collections.abc import Iterable

from clymq.controller.ring import Ring


def assign(consumers: Iterable[str], partitions: Iterable[str]) -> dict[str, list[str]]:
    """Return for each partition its consumers, the first choice first; none where there are no consumers."""
    ring = Ring(consumers)
    clockwise = {partition: ring.order(partition) for partition in sorted(set(partitions))}
    assigned = {partition: order[:1] for partition, order in clockwise.items()}
    free = ring.members.difference(*assigned.values())
    while free and assigned:
        for partition, order in clockwise.items():
            taken = [consumer for consumer in order if consumer in free][:1]
            assigned[partition] += taken
            free -= set(taken)
    return assigned


def partitions_of(consumer: str, assigned: dict[str, list[str]]) -> list[str]:
    """Return the partitions of one consumer, sorted."""
    return [partition for partition, consumers in assigned.items() if consumer in consumers]
