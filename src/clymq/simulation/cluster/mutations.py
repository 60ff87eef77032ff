"""Clusters that break one rule each, to prove that the checkers bite; as `clymq.simulation.mutations`, one level up.

Each replaces a method or two of the product; there is no switch for it in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from clymq.broker.broker import Broker
from clymq.controller import sealing
from clymq.controller.chains import View
from clymq.controller.moves import Moves
from clymq.controller.repair import Repair
from clymq.controller.roster import Roster
from clymq.controller.sealing import Ended, Sealing
from clymq.metadata.nodes import Pending, changed
from clymq.protocol.hosting import BlockClosed
from clymq.raft.leader import Leader
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_holders import Holders
from clymq.replication.fetch_leader import FetchLeader

Patches = list[tuple[Any, str, Any]]


def show_what_one_replica_holds() -> Patches:
    """A fetch leader shows readers what nobody else has yet."""
    return [(Holders, "visible", lambda self, own: own)]


def acknowledge_without_a_session() -> Patches:
    """A fetch leader goes on acknowledging when the store does not vouch for it any more."""
    return [
        (FetchLeader, "_unconfirmed", lambda self: None),
        (FetchDriver, "lose_session", lambda self: None),
    ]


def commit_alone() -> Patches:
    """A Raft leader takes for committed what it alone has."""

    def commit(self: Leader) -> None:
        log = self._state.log
        if log.synced > log.commit and log.term_at(log.synced) == self._state.term:
            log.commit_to(log.synced)

    return [(Leader, "commit", commit)]


def forget_the_intent() -> Patches:
    """A controller does not look for moves that somebody else has begun."""
    original = Repair._look_at

    async def look_at(self: Repair, view: View, roster: Roster, room: int) -> int:
        return 0 if view.partition.value.pending is not None else await original(self, view, roster, room)

    return [(Repair, "_look_at", look_at)]


def drop_the_intent() -> Patches:
    """A controller that cannot go on with a move takes the intent back."""
    original = Moves._advance

    async def advance(self: Moves, key: Any) -> bool:
        try:
            return await original(self, key)
        except Exception:
            view = await self._chains.view(*key)
            await self._chains.put(view, changed(view.partition.value, pending=None))
            raise

    return [(Moves, "_advance", advance)]


def seal_before_the_end() -> Patches:
    """The chain says that a block ends one message earlier than it does."""
    original = sealing._ended

    def ended(view: View, broker: str, closed: BlockClosed, **fields: Any) -> Ended:
        found = original(view, broker, closed, **fields)
        end = max(found.block.start, found.block.end - 1)
        return found._replace(block=changed(found.block, end=end))

    return [(sealing, "_ended", ended)]


def seal_at_the_shortest() -> Patches:
    """Of the fenced replicas the one that has come least far ends the block."""
    original = Sealing._seal_at_furthest

    async def seal(
        self: Sealing, view: View, pending: Pending, fenced: dict[str, BlockClosed], *arguments: Any
    ) -> Ended:
        name = min(fenced, key=lambda each: fenced[each].end)
        return await original(self, view, pending, {name: fenced[name]}, *arguments)

    return [(Sealing, "_seal_at_furthest", seal)]


def lose_without_a_word() -> Patches:
    """What a returning fetch leader had acknowledged and the block does not have is counted nowhere."""
    return [(Broker, "lost", lambda self, *arguments: None)]


MUTATIONS: Final[dict[str, Callable[[], Patches]]] = {
    mutation.__name__: mutation
    for mutation in (
        show_what_one_replica_holds,
        acknowledge_without_a_session,
        commit_alone,
        forget_the_intent,
        drop_the_intent,
        seal_before_the_end,
        seal_at_the_shortest,
        lose_without_a_word,
    )
}


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break one rule for a while; none if no name is given."""
    with ExitStack() as stack:
        for owner, attribute, replacement in MUTATIONS[name]() if name else ():
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
