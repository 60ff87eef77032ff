"""What a consumer has subscribed to: topics, by name or by a pattern, and the partitions that they have by now.

The controller is asked now and then: for topics that match, for partitions that are new, and, point to point, for the
assignment. A partition that is new is read from its beginning, so nothing pushed to it is missed. Partitions that stay
with this consumer go on undisturbed, whatever happens to the others.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from clymq.client.cluster import LOOK_AGAIN_MS_MAX, Cluster
from clymq.client.lessee import LesseeOptions, PartitionLessee
from clymq.client.positions import Offset
from clymq.client.presence import Presence
from clymq.client.pushing import PushedLessee, PushedReader
from clymq.client.reader import PartitionReader
from clymq.client.waiting import Deadline
from clymq.clock import pause
from clymq.errors import ClymqError, InvalidRequest, PartitionUnset, UnknownTopic
from clymq.protocol.controller import ConGetBroker, DescribeTopic, ListTopics, Sub, UnSub
from clymq.types import Ack, Mode, check_name

log = logging.getLogger("clymq.client")

# How often the controller is asked what is new; spread, so that not all consumers ask at once.
LOOK_MS: Final = 3000.0
DEAD_LETTERS: Final = ".dlq"
POINT_TO_POINT: Final = (Mode.PTP_PUSH, Mode.PTP_PULL)

Topics = str | Sequence[str] | re.Pattern[str]
Source = PartitionReader | PartitionLessee


@dataclass(frozen=True, slots=True)
class Wish:
    """What `subscribe` was told."""

    topics: Topics
    mode: Mode
    group: str
    partition: str | None
    offset: Offset | None
    ordered: bool

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        for name in self.names:
            check_name(name, "topic")
        if not isinstance(self.topics, re.Pattern) and not self.names:
            raise InvalidRequest("no topic to subscribe to")
        if self.partition is not None:
            check_name(self.partition, "partition")
        if self.shares and self.offset not in {None, "earliest", "committed"}:
            raise InvalidRequest(
                f"offset {self.offset!r}: a group that shares messages goes on at its cursor",
                hint="reset_group moves it",
            )
        if self.ordered and not self.shares:
            raise InvalidRequest("ordered is for point to point; publish-subscribe is always in order")

    @property
    def shares(self) -> bool:
        """Whether it is point to point."""
        return self.mode in POINT_TO_POINT

    @property
    def names(self) -> list[str]:
        """The topics that are named."""
        if isinstance(self.topics, re.Pattern):
            return []
        return [self.topics] if isinstance(self.topics, str) else list(dict.fromkeys(self.topics))

    def matching(self, topics: Sequence[str]) -> list[str]:
        """Return those that the pattern matches as a whole; dead letters only where their own topic does not match."""
        if not isinstance(self.topics, re.Pattern):
            return []
        found = {topic for topic in topics if self.topics.fullmatch(topic)}
        return sorted(
            each for each in found if not (each.endswith(DEAD_LETTERS) and each.removesuffix(DEAD_LETTERS) in found)
        )


class Host(Protocol):
    """The consumer, as its subscriptions see it."""

    name: str

    def add(self, source: Source) -> None:
        """Take a new source."""

    async def remove(self, source: Source) -> None:
        """Let a source go."""

    async def resolve(self, topic: str, partition: str, offset: Offset, group: str | None) -> int:
        """Return the offset that is meant."""

    def share_bytes(self) -> int:
        """Return how much one source may hold."""

    def arrived(self) -> None:
        """Hear that a source has something."""


@dataclass(slots=True)
class _Topic:
    """One topic, and the partitions of it that are read."""

    name: str
    sources: dict[str, Source] = field(default_factory=dict)
    has_begun: bool = False
    generation: int = -1


class Subscription:
    """See the module."""

    def __init__(self, host: Host, cluster: Cluster, presence: Presence, wish: Wish, timeout: float) -> None:
        self.wish = wish
        self._host = host
        self._cluster = cluster
        self._presence = presence
        self._timeout = timeout
        self._topics: dict[str, _Topic] = {}
        self._left: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()

    @property
    def topics(self) -> list[str]:
        """The topics that it has by now."""
        return list(self._topics)

    async def start(self) -> None:
        """Subscribe, and begin to read; a topic that is named must be there."""
        deadline = self._deadline()
        for name in self.wish.names:
            await self._join(name, deadline)
        await self._look_for_topics(deadline)
        self._task = asyncio.create_task(self._keep_looking())

    async def leave(self, topic: str) -> None:
        """Undo it for one topic, which a pattern does not match again."""
        self._left.add(topic)
        found = self._topics.pop(topic, None)
        if found is not None:
            await self._stop(found)
            await self._unsubscribe(topic, self._deadline())

    async def close(self, *, quietly: bool = False) -> None:
        """Undo all of it; `quietly`: it is no loss if nobody hears it."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        topics, self._topics = self._topics, {}
        await asyncio.gather(*(self._stop(topic) for topic in topics.values()))
        seconds = LOOK_AGAIN_MS_MAX / 1000 if quietly else self._timeout
        deadline = Deadline(self._cluster.clock, seconds)
        undone = await asyncio.gather(*(self._unsubscribe(name, deadline) for name in topics), return_exceptions=True)
        for name, outcome in zip(topics, undone, strict=True):
            if isinstance(outcome, ClymqError) and quietly:
                log.info("consumer %s: %s stays subscribed: %s", self._host.name, name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    # --- Looking ---

    async def _keep_looking(self) -> None:
        while True:
            await pause(self._cluster.clock, LOOK_MS * (0.5 + self._cluster.chance()))
            try:
                deadline = self._deadline()
                await self._look_for_topics(deadline)
                for name in self.topics:
                    await self._refresh(name, deadline)
            except ClymqError as error:
                if self._cluster.is_closed:
                    return
                log.info("consumer %s: what is new is not known: %s", self._host.name, error)

    async def _look_for_topics(self, deadline: Deadline) -> None:
        if not isinstance(self.wish.topics, re.Pattern):
            return
        there = (await self._cluster.ask_controller(ListTopics(), deadline)).topics
        for name in self.wish.matching(there):
            if name not in self._topics and name not in self._left:
                await self._join(name, deadline)
        for name in [name for name in self._topics if name not in there]:
            await self._stop(self._topics.pop(name))

    async def _join(self, name: str, deadline: Deadline) -> None:
        request = Sub(name, self._host.name, self.wish.mode, self.wish.group, self.wish.partition or "")
        await self._cluster.ask_controller(request, deadline)
        self._topics[name] = _Topic(name)
        await self._refresh(name, deadline)

    async def _refresh(self, name: str, deadline: Deadline) -> None:
        async with self._refreshing:
            topic = self._topics.get(name)
            if topic is None:
                return
            try:
                await (
                    self._refresh_shared(topic, deadline) if self.wish.shares else self._refresh_read(topic, deadline)
                )
                topic.has_begun = True
            except UnknownTopic:
                if topic.has_begun and isinstance(self.wish.topics, re.Pattern):
                    await self._stop(self._topics.pop(name))
                else:
                    raise

    async def _refresh_shared(self, topic: _Topic, deadline: Deadline) -> None:
        """Learn the assignment; each partition has its cursor by then."""
        request = ConGetBroker(topic.name, self._host.name, self.wish.mode, self.wish.group, self.wish.partition or "")
        found = await self._cluster.ask_controller(request, deadline)
        if found.generation != topic.generation:
            log.debug("consumer %s: %s is at generation %d", self._host.name, topic.name, found.generation)
            topic.generation = found.generation
        for route in found.routes:
            if route.error == PartitionUnset.code:
                continue
            source = topic.sources.get(route.partition)
            if source is None:
                source = self._begin(topic, self._lessee(topic.name, route.partition))
            assert isinstance(source, PartitionLessee)
            source.assign(route.assigned or self.wish.partition is not None)

    async def _refresh_read(self, topic: _Topic, deadline: Deadline) -> None:
        described = await self._cluster.ask_controller(DescribeTopic(topic.name), deadline)
        names = {each.partition for each in described.partitions if each.ack != Ack.UNSET} - topic.sources.keys()
        new = sorted(name for name in names if self.wish.partition in {None, name})
        first: Offset = "committed" if self.wish.offset is None else self.wish.offset
        offset: Offset = "earliest" if topic.has_begun else first
        resolving = (self._host.resolve(topic.name, name, offset, self.wish.group) for name in new)
        for name, start in zip(new, await asyncio.gather(*resolving), strict=True):
            self._begin(topic, self._reader(topic.name, name, start))

    # --- Sources ---

    def _begin(self, topic: _Topic, source: Source) -> Source:
        topic.sources[source.partition] = source
        self._host.add(source)
        source.start()
        return source

    def _lessee(self, topic: str, partition: str) -> PartitionLessee:
        options = LesseeOptions(
            consumer=self._host.name,
            group=self.wish.group,
            ordered=self.wish.ordered,
            timeout=self._timeout,
            share_bytes=self._host.share_bytes,
            on_change=self._host.arrived,
            prepare=self._preparing(topic),
        )
        kind = PushedLessee if self.wish.mode is Mode.PTP_PUSH else PartitionLessee
        return kind(self._cluster, self._presence, topic, partition, options)

    def _preparing(self, topic: str) -> Callable[[], Awaitable[None]]:
        async def prepare() -> None:
            deadline = self._deadline()
            request = Sub(topic, self._host.name, self.wish.mode, self.wish.group, self.wish.partition or "")
            await self._cluster.ask_controller(request, deadline)
            await self._refresh(topic, deadline)

        return prepare

    def _reader(self, topic: str, partition: str, offset: int) -> PartitionReader:
        name, group, share, arrived = self._host.name, self.wish.group, self._host.share_bytes, self._host.arrived
        if self.wish.mode is Mode.PSB_PUSH:
            return PushedReader(
                self._cluster,
                self._presence,
                topic,
                partition,
                consumer=name,
                group=group,
                offset=offset,
                share_bytes=share,
                on_change=arrived,
            )
        return PartitionReader(
            self._cluster,
            topic,
            partition,
            consumer=name,
            group=group,
            offset=offset,
            share_bytes=share,
            on_change=arrived,
        )

    async def _stop(self, topic: _Topic) -> None:
        await asyncio.gather(*(self._host.remove(source) for source in topic.sources.values()))

    async def _unsubscribe(self, topic: str, deadline: Deadline) -> None:
        request = UnSub(topic, self._host.name, self.wish.mode, self.wish.group, self.wish.partition or "")
        await self._cluster.ask_controller(request, deadline)

    def _deadline(self) -> Deadline:
        return Deadline(self._cluster.clock, self._timeout)
