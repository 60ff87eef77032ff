"""Where the next block of a partition goes. Pure.

The ring says in which order brokers are met from the partition's key on. Those that are offline, draining or to be
avoided are stepped over; where brokers carry labels, racks and then hosts are used evenly, which keeps replicas apart
as long as there are enough of them. Without labels the answer is exactly the ring's.

An offline broker is never chosen. It may *keep* its seat: a block moves although one of its members is away, and when
nobody is there to take the seat, it stays the member's, which creates its empty replica when it comes back. Without
that, a cluster of three with three replicas could not move a block while one broker is away, which is just when it
must.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from clymq.controller.ring import Ring
from clymq.errors import InvalidState, NotEnoughReplicas


class Seat(NamedTuple):
    """A broker as far as placement is concerned."""

    power: int = 1
    host: str = ""
    rack: str = ""
    online: bool = True
    draining: bool = False


def key_of(topic: str, partition: str) -> str:
    """Return a partition's key on the ring of brokers."""
    return f"{topic}{partition}dup"


def usable(seats: Mapping[str, Seat]) -> list[str]:
    """Return the brokers that may be chosen for anything, by name."""
    return sorted(name for name, seat in seats.items() if seat.online and not seat.draining)


def check_dupnum(dupnum: int, seats: Mapping[str, Seat]) -> None:
    """Refuse a number of replicas that no cluster of these brokers can have."""
    if dupnum < 1:
        raise InvalidState(f"{dupnum} replicas are too few; at least 1 is needed")
    if dupnum > len(seats):
        raise NotEnoughReplicas(
            f"{dupnum} replicas are asked for; there are {len(seats)} brokers, {len(usable(seats))} of them online"
        )


def place(
    seats: Mapping[str, Seat],
    key: str,
    count: int,
    *,
    first: Sequence[str] = (),
    keep: Sequence[str] = (),
    avoid: Collection[str] = (),
) -> list[str]:
    """Return the brokers of a new block, the first choice first, or raise `NotEnoughReplicas`.

    `first` are tried before the ring; `avoid` are stepped over like those that are offline. `keep` have a seat already
    and stay on it, behind everybody who was chosen, as far as nobody else can take it.
    """
    order = list(dict.fromkeys([*(name for name in first if name in seats), *_ring(seats).order(key)]))
    waiting = [name for name in order if seats[name].online and not seats[name].draining and name not in avoid]
    chosen: list[str] = []
    while waiting and len(chosen) < count:
        best = min(waiting, key=lambda name: _crowding(seats, name, chosen))
        waiting.remove(best)
        chosen.append(best)
    able = len(chosen)
    chosen += [name for name in keep if name in seats and name not in chosen][: count - able]
    if len(chosen) < count or not able:
        raise NotEnoughReplicas(
            f"{count} replicas are asked for and {able} of {len(seats)} brokers can take one",
            hint="start more brokers, or ask for fewer replicas",
        )
    return chosen


def _ring(seats: Mapping[str, Seat]) -> Ring:
    return Ring({name: seat.power for name, seat in seats.items()})


def _crowding(seats: Mapping[str, Seat], name: str, chosen: Sequence[str]) -> tuple[int, int]:
    """Count who is chosen already in the same rack and on the same host; where there is no label, nobody is."""
    seat = seats[name]
    racks = sum(1 for other in chosen if seat.rack and seats[other].rack == seat.rack)
    hosts = sum(1 for other in chosen if seat.host and seats[other].host == seat.host)
    return racks, hosts
