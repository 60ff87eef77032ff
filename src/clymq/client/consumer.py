"""The consumer: reads partitions, each from an offset of its own (publish-subscribe), or shares a topic with the others
of its group (point to point), pulled or pushed.

Every partition has a source that gets its messages: a reader (`reader`), a lessee (`lessee`), or one of the two that is
sent them (`pushing`). `pull` takes what they have. Which partitions there are is a subscription's to know
(`subscription`), or the user's, who assigns them. Positions belong to the consumer; with a group they can be stored in
the partition's own log (`commit`) and found again by another process (`committed`). Leases end as the user says: `ack`,
`nack`, `reject`; or by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.handling import Handler
from clymq.client.handling import Run as Handling
from clymq.client.heap import keep_what_is_freed
from clymq.client.identity import default_name
from clymq.client.in_hand import InHand
from clymq.client.lessee import PartitionLessee
from clymq.client.messages import Message, Messages, Run
from clymq.client.positions import Offset, Positions
from clymq.client.presence import Presence
from clymq.client.reader import PartitionReader
from clymq.client.settling import Acked, End, Extended, Nacked, Rejected
from clymq.client.subscription import Source, Subscription, Topics, Wish
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Bell, Deadline
from clymq.config import MiB
from clymq.errors import ClosedError, ClymqError, InvalidRequest, UnknownLease
from clymq.protocol.broker import Pub
from clymq.types import Mode, check_name

log = logging.getLogger("clymq.client")

EXTEND_SECONDS_MAX: Final = 86_400.0
DELAY_SECONDS_MAX: Final = 365 * 86_400.0


class AsyncConsumer:
    """Pulls messages. `async with`, or `start()` and `close()`. All methods are awaited."""

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str | None = None,
        credit_bytes: int = 16 * MiB,
        timeout: float = 30.0,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`credit_bytes` bounds what is read ahead, over all partitions."""
        self.name = default_name() if name is None else check_name(name, "consumer")
        if credit_bytes < 1:
            raise InvalidRequest(f"credit_bytes {credit_bytes} must be at least 1")
        keep_what_is_freed()
        self._credit_bytes = credit_bytes
        self._timeout = timeout
        self._cluster = Cluster(bootstrap, name=self.name, role="consumer", surroundings=surroundings)
        self._clock = self._cluster.clock
        self._presence = Presence(self._cluster, self.name)
        self._positions = Positions(self._cluster, self.name, timeout)
        self._presence.on_stray = self._stray
        self._sources: dict[tuple[str, str], Source] = {}
        self._subscriptions: list[Subscription] = []
        self._in_hand = InHand(self._is_good)
        self._runs: set[Handling] = set()
        self._arrival = Bell(self._clock)
        """What all that wait in `pull` wait for."""
        self._host = _Host(self)
        self._turn = 0
        self._wanted = 0
        """How many messages they wait for, all together."""
        self._is_closed = False

    # --- Where to read ---

    async def subscribe(
        self,
        topics: Topics,
        *,
        mode: Mode = Mode.PTP_PULL,
        group: str = "default",
        partition: str | None = None,
        offset: Offset | None = None,
        ordered: bool = False,
    ) -> None:
        """Read topics (a name, a list of names, or a compiled pattern), all partitions or one; new ones are found.

        Point to point, the group shares the messages, and each is to be acked; `ordered`: one consumer at a time has a
        partition. By publish-subscribe each consumer gets all, from `offset` (as in `assign`) or where its group has
        committed, else from the earliest.
        """
        self._check_open()
        wish = Wish(topics, Mode(mode), group, partition, offset, ordered)
        for name in wish.names:
            await self._leave(name)
        subscription = Subscription(self._host, self._cluster, self._presence, wish, self._timeout)
        self._subscriptions.append(subscription)
        try:
            await subscription.start()
        except BaseException:
            self._subscriptions.remove(subscription)
            await subscription.close(quietly=True)
            raise

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more; what is leased of it goes to others at once."""
        self._check_open()
        if not await self._leave(topic):
            raise InvalidRequest(f"{topic} is not subscribed to")

    async def assign(
        self, topic: str, partition: str, offset: Offset = "earliest", *, group: str | None = None
    ) -> None:
        """Read a partition from an offset, a time, its `earliest` or `latest`, or what its group has `committed`.

        A group that has committed nothing begins at the earliest. A time is that of the first message that is not
        earlier; without a zone it is in that of this machine.
        """
        self._check_open()
        check_name(topic, "topic")
        check_name(partition, "partition")
        if group is not None:
            check_name(group, "group")
        start = await self._positions.resolve(topic, partition, offset, group)
        self._in_hand.drop(topic, partition)
        before = self._sources.pop((topic, partition), None)
        if before is not None:
            await before.close()
        reader = PartitionReader(
            self._cluster,
            topic,
            partition,
            consumer=self.name,
            group=group,
            offset=start,
            share_bytes=self._share_bytes,
            on_change=self._arrival.ring,
        )
        self._sources[topic, partition] = reader
        reader.start()

    async def seek(self, topic: str, partition: str, offset: Offset) -> None:
        """Go on at another offset; what was read ahead is forgotten."""
        reader = self._reader(topic, partition)
        self._in_hand.drop(topic, partition)
        await reader.seek(await self._positions.resolve(topic, partition, offset, reader.group))

    async def position(self, topic: str, partition: str) -> int:
        """Return the next offset that `pull` or the iteration gives."""
        return self._position(self._reader(topic, partition))

    async def end_offsets(self, topic: str) -> dict[str, int]:
        """Return where each partition of a topic ends now: one past the last message that can be read."""
        deadline = self._deadline()
        names = await self._cluster.partitions(topic, deadline)
        ends = await asyncio.gather(*(self._positions.end(topic, name, deadline) for name in names))
        return dict(zip(names, ends, strict=True))

    # --- Reading ---

    async def pull(self, max_messages: int = 1000, timeout: float = 1.0) -> Messages:
        """Return messages as soon as there are any, at most so many; none when the time is over.

        An error that stops a partition (its offset is out of range, its messages are lost) is raised until that
        partition is assigned or sought anew; one whose leader cannot be reached for long is a `RequestTimeout`.
        """
        self._check_open()
        if max_messages < 1:
            raise InvalidRequest(f"max_messages {max_messages} must be at least 1")
        deadline = Deadline(self._clock, timeout)
        runs = self._in_hand.take(max_messages) or self._take(max_messages)
        if runs:
            return Messages(runs)
        self._wanted += max_messages
        try:
            while not runs and not deadline.is_over:
                self._tell_wanted()
                await self._arrival.wait(deadline.remaining_ms)
                self._check_open()
                runs = self._take(max_messages)
        finally:
            self._wanted -= max_messages
            self._tell_wanted()
        return Messages(runs)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield message after message, without end; `position` follows what was yielded.

        What was pulled for a loop that was left is what the next loop, or `pull`, begins with.
        """
        while True:
            run = self._in_hand.next_run()
            if run is None:
                self._in_hand.put(await self.pull())
                continue
            for message in run:
                yield message

    # --- Leases ---

    async def ack(self, x: Message | Messages) -> None:
        """Finish messages; when this returns, they are not delivered again."""
        await self._settle(x, Acked())

    async def nack(self, x: Message | Messages, *, delay: float = 0.0) -> None:
        """Have messages delivered again, after a delay in seconds; too often, and they are dead letters."""
        if not 0 <= delay <= DELAY_SECONDS_MAX:
            raise InvalidRequest(f"delay {delay} must not be negative and at most {DELAY_SECONDS_MAX:g}")
        await self._settle(x, Nacked(delay_ms=round(delay * 1000)))

    async def extend(self, x: Message | Messages, seconds: float) -> None:
        """Keep messages for so many seconds from now. All that were leased together with them are kept too."""
        if not 0 < seconds <= EXTEND_SECONDS_MAX:
            raise InvalidRequest(f"seconds {seconds} must be above 0 and at most {EXTEND_SECONDS_MAX:g}")
        await self._settle(x, Extended(max(1, round(seconds * 1000))))

    async def reject(self, x: Message | Messages, reason: str = "") -> None:
        """Send messages to the dead letters at once."""
        await self._settle(x, Rejected(reason))

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler(message)` for each message, so many at a time: it returns -> ack, it raises -> nack.

        What failed comes again, after a pause that grows, until it is a dead letter. Runs until the consumer is closed
        or the call is cancelled. A handler may be a coroutine function; one that is not holds up the event loop.
        """
        self._check_open()
        handling = Handling(self._host, handler, concurrency, self._clock, self._cluster.chance)
        self._runs.add(handling)
        try:
            await handling.serve()
        finally:
            self._runs.discard(handling)

    # --- Positions of a group ---

    async def commit(self) -> None:
        """Store the positions of all partitions that are read with a group."""
        self._check_open()
        deadline = self._deadline()
        readers = [each for each in self._sources.values() if isinstance(each, PartitionReader)]
        moved = [each for each in readers if each.group and each.committed != self._position(each)]
        await asyncio.gather(*(self._positions.commit(each, self._position(each), deadline) for each in moved))

    async def committed(self, topic: str, partition: str) -> int | None:
        """Return the stored position of the group that a partition is read with; None if there is none."""
        reader = self._reader(topic, partition)
        if reader.group is None:
            raise InvalidRequest(f"{topic}/{partition} was assigned without a group")
        return await self._positions.committed(topic, partition, reader.group)

    # --- Beginning and end ---

    async def start(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._check_open()

    async def close(self) -> None:
        """Stop reading, give leases back, and close every connection; positions are not stored by this.

        What `run` has begun is finished first, and acks that are under way are answered, within `timeout`.
        """
        if self._is_closed:
            return
        if any(run.is_asking for run in self._runs):
            raise InvalidRequest("a handler cannot close its consumer: it would wait for itself", hint="raise instead")
        deadline = self._deadline()
        for run in tuple(self._runs):
            await run.stop(deadline)
        self._is_closed = True
        self._arrival.ring()
        await asyncio.gather(*(lessee.stop() for lessee in self._lessees()))
        await self._give_back_in_hand()
        sources, self._sources = self._sources, {}
        await asyncio.gather(*(source.close() for source in sources.values()))
        await self._presence.leave(unread=_are_settled(sources.values()))
        for subscription in self._subscriptions:
            await subscription.close(quietly=True)
        await self._cluster.close()

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Inside ---

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"consumer {self.name} is closed")

    def _deadline(self) -> Deadline:
        self._check_open()
        return Deadline(self._clock, self._timeout)

    def _share_bytes(self) -> int:
        return self._credit_bytes // max(1, len(self._sources))

    def _reader(self, topic: str, partition: str) -> PartitionReader:
        self._check_open()
        source = self._sources.get((topic, partition))
        if source is None:
            raise InvalidRequest(f"{topic}/{partition} is not assigned", hint="call assign() first")
        if not isinstance(source, PartitionReader):
            raise InvalidRequest(f"{topic}/{partition} is shared by group {source.group}: it has no position")
        return source

    def _position(self, reader: PartitionReader) -> int:
        in_hand = self._in_hand.position(reader.topic, reader.partition)
        return reader.position if in_hand is None else in_hand

    def _is_good(self, run: Run) -> bool:
        """Whether messages that were pulled may still be handed out."""
        source = self._sources.get((run.topic, run.partition))
        if isinstance(source, PartitionLessee):
            return source.settler.held.has(run.lease, run.start, self._clock.monotonic_ms())
        return source is not None

    def _tell_wanted(self) -> None:
        for lessee in self._lessees():
            lessee.want(self._wanted)

    def _lessees(self) -> list[PartitionLessee]:
        return [each for each in self._sources.values() if isinstance(each, PartitionLessee)]

    async def _leave(self, topic: str) -> bool:
        """Undo the subscription to a topic; return whether there was one."""
        for subscription in self._subscriptions:
            if topic in subscription.topics:
                lessees = [each for each in self._lessees() if each.topic == topic]
                await asyncio.gather(*(lessee.stop() for lessee in lessees))
                await self._give_back_in_hand(topic)
                await asyncio.gather(*(lessee.give_back() for lessee in lessees))
                await subscription.leave(topic)
                if not self._sources:  # what it had to itself is others' at once
                    await self._presence.leave(unread=_are_settled(lessees))
                return True
        return False

    async def _give_back_in_hand(self, topic: str | None = None) -> None:
        """Let others have what an iteration has pulled and not come to: it does not count as delivered."""
        runs = [run for run in self._in_hand.drop(topic) if run.lease]
        try:
            await self._settle_all(_ranges_of(Messages(runs)), Nacked(unread=True))
        except ClymqError as error:
            log.info("consumer %s: not all that nobody has looked at is given back: %s", self.name, error)

    def _stray(self, pub: Pub) -> None:
        """Leases came that were on their way when their stream was stopped: others may have them."""
        source = self._sources.get((pub.topic, pub.partition))
        if isinstance(source, PartitionLessee) and pub.leases:
            source.refuse(pub.leases)

    def _take(self, messages_max: int) -> list[Run]:
        """Take what the sources have, each in turn at the head; an error comes once all before it was taken."""
        sources = list(self._sources.values())
        if not sources:
            return []
        self._turn = (self._turn + 1) % len(sources)
        sources = sources[self._turn :] + sources[: self._turn]
        for source in sources:
            self._raise_problem(source)
        runs: list[Run] = []
        try:
            for source in sources:
                while messages_max > 0 and (run := source.take(messages_max)) is not None:
                    runs.append(run)
                    messages_max -= run.end - run.start
        except ClymqError:
            if not runs:
                raise
            # The reader keeps it, for the next call.
        if runs:
            for lessee in self._lessees():
                lessee.got_some()
        return runs

    def _raise_problem(self, source: Source) -> None:
        if source.error is not None and not source.has_messages:
            raise source.error
        since_ms = source.failing_since_ms
        if since_ms is not None and self._clock.monotonic_ms() - since_ms >= self._timeout * 1000:
            source.failing_since_ms = self._clock.monotonic_ms()
            place = f"{source.topic}/{source.partition}"
            waited_for = f"{place} from offset {source.position}" if isinstance(source, PartitionReader) else place
            raise Deadline(self._clock, self._timeout).error(waited_for, source.problem)

    # --- Settling ---

    async def _settle(self, x: Message | Messages, end: End) -> None:
        """End the leases of messages."""
        self._check_open()
        await self._settle_all(_ranges_of(x), end)

    async def _settle_all(self, given: Iterable[tuple[str, str, int, int]], end: End) -> None:
        """Settle partition by partition, at the same time; what goes wrong with one is raised when all are through."""
        ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for topic, partition, start, stop in given:
            ranges.setdefault((topic, partition), []).append((start, stop))
        settling = [self._settle_at(place, some, end) for place, some in ranges.items()]
        for outcome in await asyncio.gather(*settling, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _settle_at(self, place: tuple[str, str], ranges: list[tuple[int, int]], end: End) -> None:
        await self._lessee(place).settler.settle(end, ranges)

    def _lessee(self, place: tuple[str, str]) -> PartitionLessee:
        source = self._sources.get(place)
        if isinstance(source, PartitionLessee):
            return source
        topic, partition = place
        if source is None:
            raise UnknownLease(f"{topic}/{partition} is not subscribed to any more", hint="others get what was leased")
        raise InvalidRequest(
            f"{topic}/{partition} is read by publish-subscribe: there is nothing to ack", hint="commit()"
        )


class _Host:
    """The consumer, as its subscriptions and runs see it."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self._consumer = consumer
        self.name = consumer.name
        self.pull = consumer.pull
        self.ack = consumer.ack
        self.nack = consumer.nack
        self.commit = consumer.commit
        self.resolve = consumer._positions.resolve
        self.share_bytes = consumer._share_bytes
        self.arrived = consumer._arrival.ring

    def add(self, source: Source) -> None:
        """Take a new source."""
        self._consumer._sources[source.topic, source.partition] = source
        self._consumer._arrival.ring()

    async def remove(self, source: Source) -> None:
        """Let a source go."""
        sources = self._consumer._sources
        if sources.get((source.topic, source.partition)) is source:
            del sources[source.topic, source.partition]
        await source.close()

    async def give_back(self, messages: list[Message]) -> None:
        """Have others get what nobody has looked at."""
        ranges = [(each.topic, each.partition, each.offset, each.offset + 1) for each in messages]
        await self._consumer._settle_all(ranges, Nacked(unread=True))

    async def prolong(self) -> None:
        """Keep the leases that are about to end."""
        for lessee in self._consumer._lessees():
            lessee.prolong()

    def is_leased(self, message: Message) -> bool:
        """Whether it has to be acked."""
        source = self._consumer._sources.get((message.topic, message.partition))
        return isinstance(source, PartitionLessee)


def _are_settled(sources: Iterable[Source]) -> bool:
    """Whether nothing that anybody has looked at is still leased; then a good-bye may say so."""
    return all(each.is_settled for each in sources if isinstance(each, PartitionLessee))


def _ranges_of(x: Message | Messages) -> Iterator[tuple[str, str, int, int]]:
    """Return which offsets are meant; of a whole `Messages` without a look at each of them."""
    if isinstance(x, Messages):
        return ((run.topic, run.partition, run.start, run.end) for run in x.runs)
    if isinstance(x, Message):
        return iter([(x.topic, x.partition, x.offset, x.offset + 1)])
    raise InvalidRequest(f"{type(x).__name__} is neither a Message nor Messages")
