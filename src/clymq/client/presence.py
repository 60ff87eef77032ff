"""Being there: a consumer makes itself known to brokers, answers their heartbeats, and takes its leave.

The heartbeats are answered by the event loop, whatever the user does with messages meanwhile. (A program that keeps the
event loop itself busy is not there, and its leases go to others. The blocking consumer has an event loop of its own.)
Deliveries that brokers push arrive here too, and are handed to whoever has asked for them, by their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

from clymq.client.cluster import Cluster
from clymq.errors import ClymqError
from clymq.protocol.broker import ConInfo, PingPong, Pub
from clymq.protocol.verbs import Done
from clymq.rpc.peer import Call, Peer

log = logging.getLogger("clymq.client")

LEAVE_MS_MAX: Final = 1000.0

OnPub = Callable[[Pub, memoryview], None]
OnLost = Callable[[ClymqError | None], None]


class _Expected(NamedTuple):
    """Who is told of deliveries, and of the end of the connection that they come on."""

    peer: Peer
    on_pub: OnPub
    on_lost: OnLost


class Presence:
    """See the module."""

    def __init__(self, cluster: Cluster, consumer: str) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._known: dict[Peer, asyncio.Task[None]] = {}
        self._deliveries: dict[int, _Expected] = {}
        self._numbers = count(1)
        self.on_stray: Callable[[Pub], None] = lambda _pub: None
        """Told of deliveries that nobody expects any more."""
        cluster.serve(PingPong, lambda call: call.reply(Done()))
        cluster.serve(Pub, self._delivered)

    async def greet(self, peer: Peer) -> None:
        """Make sure that a broker knows us on this connection."""
        task = self._known.get(peer)
        if task is None:
            task = self._known[peer] = asyncio.create_task(self._introduce(peer))
            peer.on_closed(lambda reason: self._forget(peer, reason))
        elif task.done() and not task.cancelled() and task.exception() is None:
            return
        try:
            await asyncio.shield(task)
        except ClymqError:
            if self._known.get(peer) is task:
                del self._known[peer]
            raise

    def expect(self, peer: Peer, on_pub: OnPub, on_lost: OnLost) -> int:
        """Return a number for deliveries that are going to be asked for, on a connection on which we are known."""
        number = next(self._numbers)
        self._deliveries[number] = _Expected(peer, on_pub, on_lost)
        return number

    def expect_no_more(self, number: int) -> None:
        """Take nothing more under a number."""
        self._deliveries.pop(number, None)

    async def leave(self, *, unread: bool) -> None:
        """Say good-bye, so that leases come back at once. It is no loss if nobody hears it: they do by themselves.

        `unread`: nobody has looked at what is still leased to us, at whichever broker.
        """
        known, self._known = self._known, {}
        for task in known.values():
            task.cancel()
        await asyncio.gather(*known.values(), return_exceptions=True)
        good_bye = ConInfo(self._consumer, leaving=True, unread=unread)
        await asyncio.gather(*(self._say_good_bye(peer, good_bye) for peer in known if peer.is_open))

    def _forget(self, peer: Peer, reason: ClymqError | None) -> None:
        self._known.pop(peer, None)
        for expected in [each for each in self._deliveries.values() if each.peer is peer]:
            expected.on_lost(reason)

    async def _introduce(self, peer: Peer) -> None:
        await peer.ask(ConInfo(self._consumer), timeout_ms=self._cluster.config.request_ms_max)

    async def _say_good_bye(self, peer: Peer, good_bye: ConInfo) -> None:
        try:
            await peer.ask(good_bye, timeout_ms=LEAVE_MS_MAX)
        except ClymqError as error:
            log.info("consumer %s: %s did not hear the good-bye: %s", self._consumer, peer, error)

    def _delivered(self, call: Call) -> None:
        expected = self._deliveries.get(call.request.subscription)
        if expected is not None:
            expected.on_pub(call.request, call.payload)
        else:
            self.on_stray(call.request)
