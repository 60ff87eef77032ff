"""Changes of a partition that somebody asks for: its state, its replicas, its brokers, a roll, an end by force.

Each is an intent and a wait; the move itself is `moves`' business and goes on if nobody waits any more. A request that
finds a move under way waits for that one first and then looks again, so asking twice changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from clymq.controller.chains import Chains, View
from clymq.controller.intents import Wish, intend, plan
from clymq.controller.moves import Moves
from clymq.controller.placement import check_dupnum, usable
from clymq.controller.roster import Attendance, Roster
from clymq.errors import DataLost, InvalidRequest, InvalidState, NotEnoughReplicas, PartitionUnset
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import changed
from clymq.metadata.reading import settled
from clymq.protocol.controller import (
    ForceSeal,
    ForceSealed,
    MovePartition,
    PartitionStateSet,
    RollBlock,
    SetPartitionState,
)
from clymq.protocol.verbs import Done
from clymq.types import Ack

DUPNUM_DEFAULT = 3
CHANGED, HAD_RAFT, HAD_FETCH = "changed", "HadRaft", "HadFetch"
STATES = (Ack.QUORUM, Ack.LEADER, Ack.NONE)


class States:
    """The verbs that move a partition."""

    def __init__(self, catalog: Catalog, chains: Chains, attendance: Attendance, moves: Moves) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._moves = moves

    async def set_partition_state(self, request: SetPartitionState) -> PartitionStateSet:
        """Choose how a partition is replicated, and when a push is acknowledged: the table of SPEC 4."""
        if request.option not in STATES:
            raise InvalidState(
                f"{request.topic}/{request.partition} cannot go to state {request.option}; -1, 0 and 1 are allowed"
            )

        async def decide(view: View, roster: Roster) -> str | Wish:
            partition = view.partition.value
            dupnum = _dupnum(request, view, roster)
            if view.begun and dupnum == partition.dupnum:
                if partition.state == request.option:
                    return HAD_RAFT if request.option == Ack.QUORUM else HAD_FETCH
                if Ack.QUORUM not in {partition.state, request.option}:
                    # Between the two of fetch only the producers' default changes.
                    acked = changed(partition, state=request.option)
                    await self._chains.put(view, acked)
                    return CHANGED
            same_brokers = view.members if dupnum == partition.dupnum else ()
            return Wish(
                "state", mode=request.option, dupnum=dupnum, first=same_brokers, strict=dupnum > partition.dupnum
            )

        return PartitionStateSet(await self._change(request.topic, request.partition, decide))

    async def move_partition(self, request: MovePartition) -> Done:
        """Move the active block to these brokers, where the next blocks stay too."""

        async def decide(view: View, roster: Roster) -> str | Wish:
            _check_begun(view)
            names = request.brokers
            if not names or len(set(names)) != len(names):
                raise InvalidRequest(f"{', '.join(names) or 'nobody'}: name each broker once, and at least one")
            missing = [name for name in names if name not in usable(roster.seats())]
            if missing:
                raise NotEnoughReplicas(f"{', '.join(missing)}: not registered, offline or draining")
            if set(names) == set(view.members) and view.partition.value.preferred == names:
                return CHANGED
            others = [name for name in roster.members if name not in names]
            return Wish("move", dupnum=len(names), preferred=names, leader=names[0], avoid=others, strict=True)

        await self._change(request.topic, request.partition, decide)
        return Done()

    async def roll_block(self, request: RollBlock) -> Done:
        """Begin a move of an active block, unless it has moved or is moving."""

        async def attempt() -> Done:
            view = await self._chains.view(request.topic, request.partition, request.uid)
            if view.now.block == request.block and view.partition.value.pending is None:
                await intend(self._chains, view, await self._attendance.roster(), Wish(request.reason))
            if view.now.block == request.block:
                self._moves.begin(view.key)
            return Done()

        await self._catalog.sync()
        return await settled(attempt)

    async def force_seal(self, request: ForceSeal) -> ForceSealed:
        """End a block that has no majority at what one replica holds, and go on with a new one."""
        view = await self._view(request.topic, request.partition)
        _check_begun(view)
        forced = view.now.block

        async def trust() -> None:
            view = await self._view(request.topic, request.partition)
            pending = view.partition.value.pending
            roster = await self._attendance.roster()
            if view.now.block != forced or (pending is not None and pending.trust == request.trust):
                return
            if request.trust not in view.members or not roster.online(request.trust):
                raise InvalidRequest(
                    f"{request.trust} is no replica that is online; block {forced} is on {view.members}"
                )
            if pending is None:
                await intend(self._chains, view, roster, Wish("force", trust=request.trust))
            else:
                # A move that waits for a majority, or for another replica to trust: it is the one that gets the trust.
                wish = Wish("force", mode=pending.mode, dupnum=pending.dupnum, trust=request.trust)
                await self._chains.intend(view, plan(view, roster, wish))

        await settled(trust)
        await self._moves.finish(view.key)
        view = await self._view(request.topic, request.partition)
        block = next((each.block for each in view.sealed if each.block.block == forced), None)
        if block is None:
            raise DataLost(f"block {forced} of {view} has left by retention", start=0, end=view.now.start)
        return ForceSealed(block.end, block.lost_messages_max)

    async def _view(self, topic: str, partition: str) -> View:
        await self._catalog.sync()
        return await self._chains.view(topic, partition)

    async def _change(self, topic: str, partition: str, decide: Callable[[View, Roster], Awaitable[str | Wish]]) -> str:
        """Let no move be under way, decide what to do, and see it done."""

        async def attempt() -> str:
            view = await self._view(topic, partition)
            while view.partition.value.pending is not None:
                await self._moves.finish(view.key)
                view = await self._view(topic, partition)
            roster = await self._attendance.roster()
            decided = await decide(view, roster)
            if isinstance(decided, str):
                return decided
            await intend(self._chains, view, roster, decided)
            await self._moves.finish(view.key)
            return CHANGED

        return await settled(attempt)


def _dupnum(request: SetPartitionState, view: View, roster: Roster) -> int:
    if request.dupnum is None:
        known = view.partition.value.dupnum if view.begun else 0
        return known or min(DUPNUM_DEFAULT, max(len(usable(roster.seats())), 1))
    check_dupnum(request.dupnum, roster.seats())
    return request.dupnum


def _check_begun(view: View) -> None:
    if not view.begun:
        raise PartitionUnset(f"{view} is in state -2: it has no block yet", hint="SetPartitionState first")
