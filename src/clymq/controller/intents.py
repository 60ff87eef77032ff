"""What the next block of a partition should be, and the write that begins the move there. Intent first.

A move begins with a conditional write of `pending` in the partition's node, BEFORE any broker is spoken to. From then
on it is going to happen: whoever is the controller finishes it. Who comes second finds a `pending` or a version that
has moved on, and begins nothing.

Where the next block goes: where the ring says, after brokers that an operator prefers; a change of mode alone stays on
the same brokers. The present leader stays first where it stays at all: a roll then changes no leader.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from clymq.controller.chains import Chains, View
from clymq.controller.placement import key_of, place, usable
from clymq.controller.roster import Roster
from clymq.metadata.nodes import Pending, changed

log = logging.getLogger("clymq.controller")


class Wish(NamedTuple):
    """What somebody wants the next block to be. What is None stays as it is."""

    reason: str
    mode: int | None = None
    dupnum: int | None = None
    preferred: tuple[str, ...] | None = None
    """Brokers that an operator names, for this and the next blocks."""
    first: Sequence[str] = ()
    """Brokers to take before the ring's, for this block."""
    leader: str = ""
    """Who should lead; empty: who leads now."""
    avoid: Collection[str] = ()
    strict: bool = False
    """Whether nobody may keep a seat that he cannot fill now."""
    trust: str = ""
    """The replica to trust where there is no majority: then those who are there begin the next block, few as they are.
    """


def plan(view: View, roster: Roster, wish: Wish) -> Pending:
    """Return the intent, or raise `NotEnoughReplicas`."""
    partition = view.partition.value
    mode = partition.state if wish.mode is None else wish.mode
    dupnum = partition.dupnum if wish.dupnum is None else wish.dupnum
    preferred = partition.preferred if wish.preferred is None else wish.preferred
    count = min(dupnum, max(1, len(usable(roster.seats())))) if wish.trust else dupnum
    names = place(
        roster.seats(),
        key_of(*view.key),
        count,
        first=[*wish.first, *preferred],
        keep=() if wish.strict or wish.trust else view.members,
        avoid=wish.avoid,
    )
    leader = wish.leader or view.now.leader
    if leader in names and leader not in wish.avoid and roster.online(leader):
        names.sort(key=lambda name: name != leader)
    return Pending(
        block=partition.next_block,
        epoch=partition.epoch + 1,
        mode=mode,
        dupnum=dupnum,
        replicas=tuple(roster.place(name) for name in names),
        reason=wish.reason,
        trust=wish.trust,
    )


async def intend(chains: Chains, view: View, roster: Roster, wish: Wish) -> View:
    """Begin a move; `VersionConflict` if the partition is no longer as it was read."""
    assert view.partition.value.pending is None, "one move at a time"
    pending = plan(view, roster, wish)
    intended = changed(view.partition.value, pending=pending)
    if wish.preferred is not None:
        intended = changed(intended, preferred=wish.preferred)
    view = await chains.put(view, intended)
    log.info(
        "%s: block %d, epoch %d, begins on %s: %s",
        view, pending.block, pending.epoch, ", ".join(each.broker for each in pending.replicas), pending.reason,
    )  # fmt: skip
    return view
