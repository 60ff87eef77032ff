"""Chain moves: one coroutine for each partition that has a `pending`, and no partition waits for another.

    pending      written by `intents`, BEFORE any broker is spoken to
    prepare      PrepareAccept at the new replicas; the seat of who does not answer goes to the next on the ring, by a
                 conditional rewrite of `pending`
    seal         `sealing`: the active block takes nothing more, and its end is known
    transaction  the sealed block, the new NowBlock with its replicas, `pending` cleared: all or nothing
    nudge        brokers are told to ask what they should host; losing one costs time, not safety

Each step may be repeated, and nothing between them is in memory only: a controller that finds a `pending` begins at the
top, whoever wrote it and however far it had come. Two that push the same move forward cannot both make its transaction.
A move that cannot go on (no majority, too few fenced) is tried again every `controller_tick_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import Brokers
from clymq.controller.chains import Chains, View
from clymq.controller.nudges import Nudges, hosting_request
from clymq.controller.pacing import within
from clymq.controller.placement import key_of, place
from clymq.controller.roster import Attendance, Roster
from clymq.controller.sealing import Ended, Sealing
from clymq.errors import (
    ClymqError,
    LeaderUnavailable,
    NodeExists,
    NodeMissing,
    NotEnoughReplicas,
    SessionLost,
    UnknownPartition,
    UnknownTopic,
    VersionConflict,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import NowBlock, Pending, Place, changed
from clymq.protocol.hosting import CloseFetchPartition, CloseRaftPartition, PrepareAccept
from clymq.protocol.verbs import Done, Request
from clymq.types import Ack

log = logging.getLogger("clymq.controller")

Key = tuple[str, str]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Moves:
    """Finishes what is pending."""

    def __init__(
        self,
        catalog: Catalog,
        chains: Chains,
        attendance: Attendance,
        brokers: Brokers,
        clock: Clock,
        config: Config,
        spawn: Spawn,
        nudges: Nudges,
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._brokers = brokers
        self._clock = clock
        self._config = config
        self._spawn = spawn
        self._nudges = nudges
        self._sealing = Sealing(brokers, clock, config)
        self._running: dict[Key, asyncio.Task[None]] = {}

    def begin(self, key: Key) -> asyncio.Task[None]:
        """See to it that the pending move of a partition is being finished; it ends when nothing is pending."""
        task = self._running.get(key)
        # One that is over and has only not been forgotten may not have seen what is pending now.
        if task is None or task.done():
            task = self._running[key] = self._spawn(self._finish(key))
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._running.get(key) is task:
            del self._running[key]

    async def stop(self, topic: str) -> None:
        """Let no move of a topic go on, BEFORE its nodes go.

        Versions count from 0 in a topic that is made anew: a move of the old one that woke up late could meet just the
        versions that it had read.
        """
        tasks = [task for key, task in self._running.items() if key[0] == topic]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, key: Key) -> None:
        """Wait until a partition has no pending move, for a bounded time."""
        await within(self._clock, self._config.move_wait_ms_max, self.begin(key), f"the move of {'/'.join(key)}")

    async def _finish(self, key: Key) -> None:
        while True:
            try:
                if not await self._advance(key):
                    return
            except (UnknownTopic, UnknownPartition):
                return
            except (VersionConflict, NodeExists, NodeMissing):
                log.info("%s/%s: somebody else was quicker; reading again", *key)
                await pause(self._clock, 0)
            except SessionLost:
                raise
            except ClymqError as error:
                log.warning("%s/%s: the move waits: %s", *key, error)
                await pause(self._clock, self._config.controller_tick_ms)

    async def _advance(self, key: Key) -> bool:
        """Do all steps of a move; return False if nothing is pending."""
        await self._catalog.sync()
        view = await self._chains.view(*key)
        if view.partition.value.pending is None:
            return False
        roster = await self._attendance.roster()
        view, ready = await self._prepare(view, roster)
        pending = view.partition.value.pending
        assert pending is not None
        ended: Ended | None = None
        if view.begun:
            ended = await self._sealing.seal(view, pending, roster, await self._chains.of(*key).mirror())
        now = _next_block(pending, roster, ready, ended)
        # One transaction, conditional on the partition and the active block as they were read.
        await self._chains.move(view, now, ended.block if ended else None)
        log.info("%s: block %d is active, epoch %d, from offset %d", view, now.block, now.epoch, now.start)
        self._nudge(view, pending, now, roster)
        return True

    # Preparing.

    async def _prepare(self, view: View, roster: Roster) -> tuple[View, list[str]]:
        """Have the new replicas make room, and return who has, those that had to give up their last block last.

        The seat of who cannot goes to somebody else. If there is nobody, those who can begin without him: a majority
        where Raft needs one to elect a leader, at least the leader where it is appointed.
        """
        refused: set[str] = set()
        ready: set[Place] = set()
        while True:
            pending = view.partition.value.pending
            assert pending is not None
            asked = [each for each in pending.replicas if each not in ready and each.broker not in refused]
            answers = await asyncio.gather(*(self._make_room(view, pending, each, roster) for each in asked))
            ready |= {each for each, done in zip(asked, answers, strict=True) if done}
            refused |= {each.broker for each, done in zip(asked, answers, strict=True) if not done}
            replicas = self._reseated(view, pending, roster, refused)
            if replicas == pending.replicas:
                break
            view = await self._chains.intend(view, changed(pending, replicas=replicas))
            log.info("%s: block %d goes to %s instead", view, pending.block, [each.broker for each in replicas])
        down = {each.broker for each in view.active.replicas if each.down}
        names = sorted((each.broker for each in replicas if each in ready), key=lambda name: name in down)
        needed = len(replicas) // 2 + 1 if pending.mode == Ack.QUORUM else 1
        if len(names) < needed:
            wanted = [each.broker for each in replicas]
            raise LeaderUnavailable(f"{view}: {names} of {wanted} are ready for block {pending.block}, not {needed}")
        return view, names

    async def _make_room(self, view: View, pending: Pending, place: Place, roster: Roster) -> bool:
        if not roster.online(place.broker):
            return False
        topic, partition = view.key
        request = PrepareAccept(
            topic=topic,
            topic_id=view.topic.id,
            partition=partition,
            uid=view.partition.value.uid,
            block=pending.block,
            epoch=pending.epoch,
            mode=pending.mode,
            disk_id=place.disk_id,
        )
        try:
            await self._brokers.ask(place.broker, request)
        except ClymqError as error:
            log.warning("%s: %s makes no room for block %d: %s", view, place.broker, pending.block, error)
            return False
        return True

    def _reseated(self, view: View, pending: Pending, roster: Roster, refused: set[str]) -> tuple[Place, ...]:
        """Return the replicas with the seats of those that refused given to others, as far as there are any."""
        if not any(each.broker in refused for each in pending.replicas):
            return pending.replicas
        staying = [each.broker for each in pending.replicas if each.broker not in refused]
        seats = roster.seats()
        # Who is ready stays, draining or not: it is about to be asked to move anyway, and the move must end.
        seats |= {name: seats[name]._replace(draining=False) for name in staying if name in seats}
        try:
            names = place(
                seats,
                key_of(*view.key),
                len(pending.replicas),
                first=staying,
                keep=() if pending.trust else [each.broker for each in pending.replicas],
                avoid=refused,
            )
        except NotEnoughReplicas:
            # By force the next block begins with those who are there, few as they are.
            here = tuple(each for each in pending.replicas if each.broker in staying)
            return here if pending.trust and here else pending.replicas
        before = {each.broker: each for each in pending.replicas}
        names.sort(key=lambda name: list(before).index(name) if name in before else len(before))
        # A seat that is kept takes the disk that its broker has now: it may have refused because of the old one.
        return tuple(roster.place(name) if name in refused or name not in before else before[name] for name in names)

    # Nudges.

    def _nudge(self, view: View, pending: Pending, now: NowBlock, roster: Roster) -> None:
        """Tell the new replicas to host the block, and those that are none of it any more to let go of the last."""
        topic, partition = view.key
        was_raft = view.now.mode == Ack.QUORUM
        close: Request[Done] = (CloseRaftPartition if was_raft else CloseFetchPartition)(
            topic, partition, view.partition.value.uid, view.now.block, now.epoch
        )
        told = dict.fromkeys(view.members, close)
        add = hosting_request(view, now, pending.replicas, roster)
        self._nudges.tell(told | dict.fromkeys((each.broker for each in pending.replicas), add), roster)


def _next_block(pending: Pending, roster: Roster, ready: list[str], ended: Ended | None) -> NowBlock:
    """Return the next active block, led by the first who is ready; after a fence by who had come furthest."""
    raft = pending.mode == Ack.QUORUM
    leader = ended.broker if ended is not None and ended.next_leads and ended.broker in ready else ready[0]
    return NowBlock(
        block=pending.block,
        start=0 if ended is None else ended.block.end,
        mode=pending.mode,
        leader=leader,
        # A fetch leader leads for one life and one session. Raft elects, whoever is named here.
        leader_incarnation=roster.incarnation(leader),
        leader_session="" if raft else roster.session(leader),
        term=0,
        epoch=pending.epoch,
    )
