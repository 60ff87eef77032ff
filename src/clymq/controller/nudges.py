"""Telling brokers that something has changed for them. Nobody waits for a nudge, and nothing depends on one.

A broker that is nudged asks at once what it should host; one that is not, asks within `config_ms` anyway. Told are: the
replicas of a block that moved, old and new; who is to make a copy; and, when a broker has come or come back, everybody
who shares a block with it, because it may be somewhere else now and nobody can reach it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from clymq.controller.brokers import Brokers
from clymq.controller.chains import View
from clymq.controller.roster import Roster
from clymq.errors import ClymqError
from clymq.metadata.nodes import NowBlock, Place, Replica
from clymq.protocol.hosting import AddFetchPartition, AddRaftPartition
from clymq.protocol.verbs import Done, Request
from clymq.types import Ack

log = logging.getLogger("clymq.controller")


class Nudges:
    """Sends them."""

    def __init__(self, brokers: Brokers, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._brokers = brokers
        self._spawn = spawn
        self._lives: dict[str, tuple[int, str]] = {}

    def tell(self, requests: Mapping[str, Request[Done]], roster: Roster) -> None:
        """Tell each of these brokers its own, in the background."""
        if requests:
            self._spawn(self.told(requests, roster))

    async def told(self, requests: Mapping[str, Request[Done]], roster: Roster) -> None:
        """Tell those that are online, and wait until each has heard, or cannot."""

        async def tell(name: str, request: Request[Done]) -> None:
            try:
                await self._brokers.ask(name, request)
            except ClymqError as error:
                log.info("%s was not nudged: %s", name, error)

        await asyncio.gather(*(tell(name, requests[name]) for name in sorted(requests) if roster.online(name)))

    def tell_of(self, view: View, names: Iterable[str], roster: Roster) -> None:
        """Tell brokers to look at a partition."""
        self.tell(dict.fromkeys(names, hosting_request(view, view.now, view.active.replicas, roster)), roster)

    def look_at(self, views: Iterable[View], roster: Roster) -> None:
        """Tell those who share a block with a broker that has come since the last look, at the first one with any."""
        joined = {name for name, life in self._joined(roster) if self._lives.get(name) != life}
        self._lives = dict(self._joined(roster))
        told: dict[str, Request[Done]] = {}
        for view in views if joined else ():
            sharing = _sharing(view, joined) - told.keys()
            if sharing:
                request = hosting_request(view, view.now, view.active.replicas, roster)
                told |= dict.fromkeys(sharing, request)
        self.tell(told, roster)

    def _joined(self, roster: Roster) -> list[tuple[str, tuple[int, str]]]:
        return [(name, (roster.incarnation(name), roster.address(name))) for name in roster.members
                if roster.online(name)]  # fmt: skip


def hosting_request(view: View, now: NowBlock, replicas: Iterable[Place | Replica], roster: Roster) -> Request[Done]:
    """Return the nudge to host an active block."""
    topic, partition = view.key
    places = tuple(roster.replica_place(each) for each in replicas)
    uid, topic_id = view.partition.value.uid, view.topic.id
    if now.mode == Ack.QUORUM:
        return AddRaftPartition(topic, topic_id, partition, uid, now.block, now.epoch, places, now.leader)
    return AddFetchPartition(
        topic, topic_id, partition, uid, now.block, now.epoch, now.mode, places,
        now.leader, roster.address(now.leader), now.leader_incarnation,
    )  # fmt: skip


def _sharing(view: View, names: set[str]) -> set[str]:
    """Return everybody who is named together with one of these for a block, themselves included."""
    groups = [set(view.members), *({each.broker for each in sealed.replicas} for sealed in view.sealed)]
    return {name for group in groups if group & names for name in group}
