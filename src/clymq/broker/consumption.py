"""Consumers at a broker: who they are, what they share, what is pushed to them.

The verbs of consumers come in here and go to the partition that they name. Each active block that is here has a
`Sharing`, which does something only while this broker leads the block. Push subscriptions belong to the connection that
they were started on, and end with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from clymq.broker.active_block import ActiveBlock
from clymq.broker.consumers import Consumers
from clymq.broker.cursor_mirror import CursorMirror, Position
from clymq.broker.dead_letters import DeadLetters
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.neighbours import ActiveController, Neighbours
from clymq.broker.reading import Locating
from clymq.broker.sharing import Sharing
from clymq.broker.streams import Stream
from clymq.broker.takers import PushSubscription
from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import BlockSealed, InvalidRequest, NotLeader, NotPrepared, Overloaded
from clymq.protocol.broker import (
    Ack,
    ConInfo,
    ConsumerKnown,
    Credit,
    Extend,
    Nack,
    Reject,
    StartToGet,
)
from clymq.protocol.verbs import Done
from clymq.rpc.peer import Call, Peer
from clymq.types import Mode, check_name

log = logging.getLogger("clymq.broker")

Find = Callable[[str, str, str], HostedPartition]


class Consumption:
    """All consumers of one broker."""

    def __init__(
        self,
        me: str,
        find: Find,
        controller: ActiveController,
        neighbours: Neighbours,
        clock: Clock,
        config: Config,
    ) -> None:
        """`find` returns a partition that is here, by topic, partition and uid."""
        self.clock = clock
        self.locating = Locating(me, controller, clock)
        self._find = find
        self._config = config
        self._consumers = Consumers(clock, config, self._gone)
        self._letters = DeadLetters(controller, neighbours, self.locating, clock, config)
        self._mirror = CursorMirror(controller)
        self._shared: dict[str, Sharing] = {}
        self._streams: dict[str, dict[Stream, None]] = {}
        self._pushed: dict[Peer, dict[int, PushSubscription]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def handlers(self) -> Mapping[type, Callable[[Call], None]]:
        """Return what handles each verb; a PTP `Pull` comes by `pull`."""
        return {
            ConInfo: self._con_info,
            StartToGet: self._start_to_get,
            Credit: self._credit,
            Ack: lambda call: self._of(call).ack(call),
            Nack: lambda call: self._of(call).nack(call),
            Reject: lambda call: self._of(call).reject(call),
            Extend: lambda call: self._of(call).extend(call),
        }

    def pull(self, call: Call) -> None:
        """Lease messages to whoever pulls."""
        self._of(call).pull(call)

    def leave(self) -> None:
        """This broker is about to go: who waits here may look elsewhere at once."""
        error = NotLeader("this broker is closing")
        for sharing in self._shared.values():
            sharing.lost(error)
        for stream in [each for streams in self._streams.values() for each in streams]:
            stream.subscription.fail(error)

    async def close(self) -> None:
        """Ask and tell nobody any more."""
        self._consumers.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- What the broker tells ---

    def begins(self, partition: HostedPartition) -> None:
        """A partition has another active block here."""
        assert partition.active is not None
        sharing = _Shared(partition, partition.active, self)
        self._shared[partition.uid] = sharing
        partition.active.listener = sharing

    def ends(self, partition: HostedPartition, block: ActiveBlock) -> None:
        """A block is not active here any more."""
        block.listener.lost(BlockSealed(f"block {block.number} of {partition.topic}/{partition.name} has ended here"))
        sharing = self._shared.get(partition.uid)
        if sharing is not None and sharing.block is block:
            del self._shared[partition.uid]
        # Not at once: the block may go on here as a sealed one.
        self.clock.call_later(0, lambda: self.advanced(partition))

    async def tell_cursors(self) -> None:
        """Mirror where the groups of all partitions that are led here stand."""
        leading = [sharing for sharing in self._shared.values() if sharing.leading]
        await self._mirror.tell([position for sharing in leading for position in _positions(sharing)])

    # --- What shared partitions use ---

    def expect(self, consumer: str, within_ms: float) -> None:
        """A consumer may show up here whose leases came from another leader."""
        self._consumers.expect(consumer, within_ms)

    def dead(self, sharing: Sharing) -> None:
        """There may be dead letters to be delivered."""
        machine = sharing.block.machine
        if any(machine.dead_letters(group) for group in machine.ptp_groups()):
            self.spawn(self._letters.deliver(sharing))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that takes its time."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def advanced(self, partition: HostedPartition) -> None:
        """More of a partition may be visible."""
        for stream in list(self._streams.get(partition.uid, ())):
            stream.look()

    # --- Verbs ---

    def _con_info(self, call: Call) -> None:
        request: ConInfo = call.request
        check_name(request.consumer, "consumer")
        if request.leaving:
            for subscription in list(self._pushed.get(call.peer, {}).values()):
                if subscription.consumer == request.consumer:
                    subscription.stop()
            if request.unread:
                for sharing in self._shared.values():
                    sharing.give_back(request.consumer)
            self._consumers.leave(request.consumer)
        else:
            self._consumers.heard(request.consumer, call.peer)
        call.reply(ConsumerKnown(self._config.consumer_heartbeat_ms))

    def _start_to_get(self, call: Call) -> None:
        request: StartToGet = call.request
        if call.peer not in self._pushed:
            self._pushed[call.peer] = {}
            call.peer.on_closed(lambda _: self._connection_lost(call.peer))
        before = self._pushed[call.peer].get(request.subscription)
        if before is not None:
            before.stop()
        if not request.stop:
            self._start(call.peer, request)
        call.reply(Done())

    def _start(self, peer: Peer, request: StartToGet) -> None:
        check_name(request.consumer, "consumer")
        subscriptions = self._pushed[peer]
        if len(subscriptions) >= self._config.subscriptions_max:
            raise Overloaded(f"{len(subscriptions)} subscriptions are pushed on this connection")
        partition = self._find(request.topic, request.partition, request.uid)
        subscription = PushSubscription(peer, request, self._config.push_bytes_max)
        self._consumers.heard(request.consumer, peer)
        if request.mode == Mode.PTP_PUSH:
            self._share(partition, subscription)
        elif request.mode == Mode.PSB_PUSH:
            self._stream(partition, subscription)
        else:
            raise InvalidRequest(f"mode {request.mode} is not pushed; PTP_PUSH=1 and PSB_PUSH=3 are")

    def _share(self, partition: HostedPartition, subscription: PushSubscription) -> None:
        sharing = self._sharing(partition)
        sharing.block.check_sharing()

        def ended() -> None:
            sharing.forget(subscription)
            self._forget(subscription)

        subscription.ready = lambda: sharing.serve(subscription.group)
        subscription.ended = ended
        self._remember(subscription)
        try:
            sharing.join(subscription)
        except Exception:
            subscription.stop()
            raise

    def _stream(self, partition: HostedPartition, subscription: PushSubscription) -> None:
        stream = Stream(partition, subscription, self.clock)
        stream.check()
        streams = self._streams.setdefault(partition.uid, {})

        def ended() -> None:
            streams.pop(stream, None)
            if not streams and self._streams.get(partition.uid) is streams:
                del self._streams[partition.uid]
            self._forget(subscription)

        subscription.ended = ended
        streams[stream] = None
        self._remember(subscription)
        # Not at once: the answer goes first.
        self.clock.call_later(0, stream.look)

    def _credit(self, call: Call) -> None:
        request: Credit = call.request
        subscription = self._pushed.get(call.peer, {}).get(request.subscription)
        if subscription is not None:
            subscription.credit(request.bytes)

    # --- Who is there ---

    def _of(self, call: Call) -> Sharing:
        """Return the partition that a request names; who asks is there."""
        request = call.request
        check_name(request.consumer, "consumer")
        sharing = self._sharing(self._find(request.topic, request.partition, request.uid))
        self._consumers.heard(request.consumer, call.peer)
        return sharing

    def _sharing(self, partition: HostedPartition) -> Sharing:
        sharing = self._shared.get(partition.uid)
        if sharing is None:
            raise BlockSealed(f"{partition.topic}/{partition.name} has no active block here", hint="ask who leads now")
        return sharing

    def _gone(self, consumer: str) -> None:
        for sharing in list(self._shared.values()):
            sharing.gone(consumer)
        error = NotPrepared(f"consumer {consumer} was silent for too long, or has left", hint="start anew")
        for subscriptions in list(self._pushed.values()):
            for subscription in [each for each in subscriptions.values() if each.consumer == consumer]:
                subscription.fail(error)

    def _connection_lost(self, peer: Peer) -> None:
        for subscription in list(self._pushed[peer].values()):
            subscription.stop()
        del self._pushed[peer]

    def _remember(self, subscription: PushSubscription) -> None:
        self._pushed[subscription.peer][subscription.number] = subscription

    def _forget(self, subscription: PushSubscription) -> None:
        subscriptions = self._pushed.get(subscription.peer, {})
        if subscriptions.get(subscription.number) is subscription:
            del subscriptions[subscription.number]


class _Shared(Sharing):
    """A shared partition that also wakes the streams of its partition."""

    def __init__(self, partition: HostedPartition, block: ActiveBlock, consumption: Consumption) -> None:
        super().__init__(partition, block, consumption)
        self._consumption = consumption

    def advanced(self) -> None:
        """More may be visible, or the block has ended."""
        super().advanced()
        self._consumption.advanced(self.partition)


def _positions(sharing: Sharing) -> list[Position]:
    """Return where groups stand. The mirror has one place for each name: that of one who shares, if there are both."""
    machine = sharing.block.machine
    found = {
        group: Position(sharing.partition, group, at, stored=True)
        for group in machine.psb_groups()
        if (at := machine.position(group)) is not None
    }
    for group in machine.ptp_groups():
        cursor = machine.cursor(group)
        if cursor is not None:
            found[group] = Position(sharing.partition, group, cursor.low, stored=False)
    return list(found.values())
