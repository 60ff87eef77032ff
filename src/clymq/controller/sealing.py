"""How the active block of a move is ended: at its leader, or without it.

Raft: the leader seals; whoever it is by now, only the one that leads can. Without a majority there is none, and the
move waits.
Fetch, leader there: it seals alone. It is there if it is online in the life and the session in which it was made
leader; one that says itself that it does not lead any more is not.
Fetch, leader gone: a fence. Every replica that can be reached writes the new epoch down BEFORE it tells how far it has
come, and takes nothing more but what mending brings. With `dupnum - majority + 1` of them every majority has met the
fence, so all that a reader ever saw is at or below the highest end among them. That one seals. When a majority holds
the SEAL, or after `seal_wait_ms_max`, the move goes on.
Forced: where none of that can be done, an operator names the replica to trust. It is fenced, as are the others as far
as they can be reached: the epoch is on its disk BEFORE it tells its end, and it ends the block there, alone. What may
be lost is written down with the block. As long as the ordinary way works, that is the way, and nothing is lost.

Every step may be repeated and may be interrupted: a replica that has sealed answers the same again, and which SEAL
counts is decided by the transaction of the move alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import Brokers
from clymq.controller.chains import View
from clymq.controller.roster import Roster
from clymq.errors import (
    ClymqError,
    LeaderUnavailable,
    NotHosted,
    RemoteProtocolError,
    SessionLost,
    TransportError,
    UnknownPartition,
)
from clymq.metadata.nodes import Mirror, Pending, SealedBlock
from clymq.protocol.hosting import BlockClosed, CloseAccept
from clymq.types import Ack

log = logging.getLogger("clymq.controller")

POLL_MS = 50.0
OFFLINE_MS = 200.0
"""For the answer of a replica without a session one waits so much longer than for the others."""


class Ended(NamedTuple):
    """A block that has ended, and the broker whose SEAL it is."""

    block: SealedBlock
    broker: str
    next_leads: bool = False
    """Whether that broker should lead the next block: it had come furthest when the leader was gone."""


class Sealing:
    """Ends active blocks."""

    def __init__(self, brokers: Brokers, clock: Clock, config: Config) -> None:
        self._brokers = brokers
        self._clock = clock
        self._config = config

    async def seal(self, view: View, pending: Pending, roster: Roster, told: Mirror) -> Ended:
        """End the active block, under the epoch of the move."""
        try:
            return await self._seal_in_order(view, pending, roster, told)
        except ClymqError as error:
            if not pending.trust or isinstance(error, SessionLost):
                raise
            log.warning("%s: block %d cannot be ended in order: %s", view, view.now.block, error)
        return await self._seal_by_force(view, pending, told)

    async def _seal_in_order(self, view: View, pending: Pending, roster: Roster, told: Mirror) -> Ended:
        if view.now.mode == Ack.QUORUM:
            return await self._seal_raft(view, pending)
        if fetch_leader_leads(view, roster):
            ended = await self._seal_at_leader(view, pending)
            if ended is not None:
                return ended
        return await self._seal_fenced(view, pending, roster, told)

    # Raft.

    async def _seal_raft(self, view: View, pending: Pending) -> Ended:
        """Ask who is recorded as leader, then everybody: the record may be behind."""
        leader, request = view.now.leader, _request(view, pending)
        try:
            return _ended(view, leader, await self._ask(leader, request))
        except ClymqError as error:
            log.info("%s: block %d is not sealed by %s: %s", view, view.now.block, leader, error)
        others = [name for name in view.members if name != leader]
        answers = await self._ask_all(others, request)
        for name, closed in answers.items():
            if closed.sealed:
                return _ended(view, name, closed)
        raise LeaderUnavailable(f"{view}: no leader of block {view.now.block} seals it")

    # Fetch.

    async def _seal_at_leader(self, view: View, pending: Pending) -> Ended | None:
        """Seal where the leader is; None if it says that it does not lead any more.

        One that does not answer may still be acknowledging: it is waited for until its session has ended. So is one
        that has not heard of its block: it is about to, and would acknowledge what no fenced replica gets. One that
        cannot host it says so by `ReplicaDown`, and leads no more.
        """
        leader = view.now.leader
        try:
            return _ended(view, leader, await self._ask(leader, _request(view, pending)))
        except (TransportError, NotHosted):
            raise
        except ClymqError as error:
            if error.retriable and not error.refresh:
                raise
            log.warning("%s: %s no longer leads block %d: %s", view, leader, view.now.block, error)
            return None

    async def _seal_fenced(self, view: View, pending: Pending, roster: Roster, told: Mirror) -> Ended:
        replicas = len(view.active.replicas)
        majority = replicas // 2 + 1
        unclean = view.topic.settings.get("fetch_unclean", self._config.fetch_unclean) == "true"
        needed = 1 if unclean else replicas - majority + 1
        fenced = await self._fence_all(view, _request(view, pending, fence=True), roster, needed)
        if unclean and not fenced:
            return await self._seal_lame(view, pending, told)
        if len(fenced) < needed:
            raise LeaderUnavailable(
                f"{view}: {len(fenced)} of {replicas} replicas of block {view.now.block} are fenced, not {needed}"
            )
        ended = await self._seal_at_furthest(view, pending, fenced, needed)
        # Who has not answered the fence is asked again only where the others cannot be a majority.
        others = list(fenced) if len(fenced) >= majority else view.members
        await self._wait_for_majority(view, pending, ended, others, roster.address(ended.broker))
        return ended

    async def _seal_lame(self, view: View, pending: Pending, told: Mirror) -> Ended:
        """Nobody is left who has lost nothing, and the topic goes on all the same: the furthest of them is believed."""
        fenced = await self._ask_all(view.members, _request(view, pending, fence=True, trusted=True))
        if not fenced:
            raise LeaderUnavailable(f"{view}: no replica of block {view.now.block} is fenced")
        name = max(fenced, key=lambda each: (fenced[each].sealed, *_reach(fenced[each])))
        return await self._seal_trusted(view, pending, name, told)

    async def _fence_all(self, view: View, request: CloseAccept, roster: Roster, needed: int) -> dict[str, BlockClosed]:
        """Fence whoever can be reached. Who is offline is asked too, for it may have lost its session only, and have
        come furthest; but when enough others have answered it is not waited for any longer.
        """
        offline = [name for name in view.members if not roster.online(name)]
        asking = asyncio.ensure_future(self._ask_all(offline, request))
        try:
            fenced = await self._ask_all([name for name in view.members if name not in offline], request)
            if len(fenced) >= needed and not asking.done():
                await pause(self._clock, OFFLINE_MS)
            if len(fenced) < needed or asking.done():
                fenced |= await asking
        finally:
            asking.cancel()
        return fenced

    async def _seal_at_furthest(
        self, view: View, pending: Pending, fenced: dict[str, BlockClosed], needed: int
    ) -> Ended:
        """Seal at the highest end; where that is refused for good (a broken disk), at the next, if enough are left."""
        down = {each.broker for each in view.active.replicas if each.down}
        order = sorted(fenced, key=lambda name: (*_reach(fenced[name]), name not in down), reverse=True)
        for number, name in enumerate(order):
            closed = fenced[name]
            try:
                if not closed.sealed:
                    closed = await self._ask(name, _request(view, pending, fence=True, seal=True))
                return _ended(view, name, closed)._replace(next_leads=name not in down)
            except ClymqError as error:
                if error.retriable or len(order) - number - 1 < needed:
                    raise
                log.warning("%s: %s does not seal block %d at %d: %s", view, name, view.now.block, closed.end, error)
        raise AssertionError("the last one has raised")

    async def _wait_for_majority(
        self, view: View, pending: Pending, ended: Ended, others: list[str], source_address: str
    ) -> None:
        """Have the others mend from the SEAL until enough of them hold it, or the time is over."""
        majority = len(view.active.replicas) // 2 + 1
        deadline_ms = self._clock.monotonic_ms() + self._config.seal_wait_ms_max
        request = _request(view, pending, fence=True, source=ended.broker, source_address=source_address)
        holding, mark = {ended.broker}, (ended.block.seal_index, ended.block.seal_crc)
        while len(holding) < majority and self._clock.monotonic_ms() < deadline_ms:
            answers = await self._ask_all([name for name in others if name not in holding], request)
            holding |= {
                name
                for name, closed in answers.items()
                if closed.sealed and (closed.seal_index, closed.seal_crc) == mark
            }
            if len(holding) < majority:
                await pause(self._clock, POLL_MS)
        if len(holding) < majority:
            log.warning("%s: the SEAL of block %d is held by %s only", view, view.now.block, ", ".join(sorted(holding)))

    # By force.

    async def _seal_by_force(self, view: View, pending: Pending, told: Mirror) -> Ended:
        # All of them first. One that has lost something answers with an error, and is fenced all the same; one that is
        # not fenced does not seal.
        await self._ask_all(view.members, _request(view, pending, fence=True))
        return await self._seal_trusted(view, pending, pending.trust, told)

    async def _seal_trusted(self, view: View, pending: Pending, name: str, told: Mirror) -> Ended:
        closed = await self._ask(name, _request(view, pending, fence=True, seal=True, trusted=True))
        lost = max(0, told.ends.get(view.now.block, 0) - closed.end)
        log.warning("%s: block %d ends at %d by force, at what %s holds; up to %d messages that were there are lost",
                    view, view.now.block, closed.end, name, lost)  # fmt: skip
        return _ended(view, name, closed, lost_messages_max=lost, trusted=name)

    async def _ask(self, name: str, request: CloseAccept) -> BlockClosed:
        """Ask a broker. That it does not know the partition is no news of the partition: it has not heard of it yet."""
        try:
            return await self._brokers.ask(name, request)
        except UnknownPartition as error:
            raise NotHosted(f"{name} does not host {request.topic}/{request.partition} yet: {error}") from error

    async def _ask_all(self, names: list[str], request: CloseAccept) -> dict[str, BlockClosed]:
        """Ask several at once; who does not answer is left out."""

        async def ask(name: str) -> BlockClosed | None:
            try:
                return await self._ask(name, request)
            except ClymqError as error:
                log.info("%s/%s: %s does not close block %d: %s",
                         request.topic, request.partition, name, request.block, error)  # fmt: skip
                return None

        answers = await asyncio.gather(*(ask(name) for name in names))
        return {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}


def fetch_leader_leads(view: View, roster: Roster) -> bool:
    """Say whether a fetch leader is online in the life and the session in which it was made leader, and can write."""
    now = view.now
    down = any(replica.down for replica in view.active.replicas if replica.broker == now.leader)
    return (
        not down
        and roster.online(now.leader)
        and roster.incarnation(now.leader) == now.leader_incarnation
        and roster.session(now.leader) == now.leader_session
    )


def _request(
    view: View,
    pending: Pending,
    *,
    fence: bool = False,
    seal: bool = False,
    source: str = "",
    source_address: str = "",
    trusted: bool = False,
) -> CloseAccept:
    topic, partition = view.key
    return CloseAccept(
        topic=topic,
        partition=partition,
        uid=view.partition.value.uid,
        block=view.now.block,
        epoch=pending.epoch,
        fence=fence,
        seal=seal,
        source=source,
        source_address=source_address,
        trusted=trusted,
    )


def _ended(view: View, broker: str, closed: BlockClosed, *, lost_messages_max: int = 0, trusted: str = "") -> Ended:
    """Return what the chain keeps of a block; an answer that does not fit the chain is never written into it."""
    now = view.now
    if not closed.sealed or closed.start != now.start or closed.end < closed.start:
        raise RemoteProtocolError(
            f"{broker} says that block {now.block} of {view}, which begins at {now.start}, is "
            f"[{closed.start}, {closed.end}), {'sealed' if closed.sealed else 'not sealed'}"
        )
    block = SealedBlock(
        block=now.block,
        start=closed.start,
        end=closed.end,
        mode=now.mode,
        seal_index=closed.seal_index,
        seal_crc=closed.seal_crc,
        bytes=closed.bytes,
        last_append_time=closed.last_append_time,
        lost_messages_max=lost_messages_max,
        trusted=trusted,
    )
    return Ended(block, broker)


def _reach(closed: BlockClosed) -> tuple[int, bool, int]:
    """Return how far a replica has come, to be compared: acks and positions have no offset, and count as well."""
    return closed.end, closed.sealed, closed.last_index
