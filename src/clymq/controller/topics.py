"""Topics and partitions: made, changed, deleted. Every verb may be repeated.

A topic is deleted in three steps that each survive a crash: it is marked `deleting`, and from then on all verbs refuse
it; its brokers are nudged, and drop what `BroGetConfig` no longer names; its nodes go. A broker that was away meanwhile
finds on its return that the tree does not name its folders, whose names carry ids that are never used again.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random

from clymq.clock import Clock
from clymq.config import Config, topic_settings
from clymq.controller.chains import Chains
from clymq.controller.moves import Moves, Spawn
from clymq.controller.nudges import Nudges
from clymq.controller.pacing import within
from clymq.controller.placement import check_dupnum, key_of, place
from clymq.controller.roster import Attendance
from clymq.errors import (
    ClymqError,
    NotReady,
    RequestTimeout,
    SessionLost,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Partition, Topic, changed
from clymq.metadata.reading import settled
from clymq.protocol.controller import (
    AlterTopic,
    CreatePart,
    CreateTopic,
    DeleteTopic,
    ListTopics,
    PartitionMade,
    TopicList,
    TopicMade,
)
from clymq.protocol.hosting import CloseFetchPartition, CloseRaftPartition
from clymq.protocol.verbs import Done, Request
from clymq.types import Ack, check_name

log = logging.getLogger("clymq.controller")


class Topics:
    """The verbs of topics and partitions."""

    def __init__(
        self,
        catalog: Catalog,
        chains: Chains,
        attendance: Attendance,
        moves: Moves,
        nudges: Nudges,
        clock: Clock,
        config: Config,
        chance: Random,
        spawn: Spawn,
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._moves = moves
        self._nudges = nudges
        self._clock = clock
        self._config = config
        self._chance = chance
        self._spawn = spawn
        self._deletions: dict[str, asyncio.Task[None]] = {}

    async def create_topic(self, request: CreateTopic) -> TopicMade:
        """Make a topic; the second call changes nothing."""
        check_name(request.topic, "topic")
        settings = topic_settings(request.settings, self._config)
        if request.topic in self._deletions:
            await self._deleted(request.topic)
        if request.topic not in await self._catalog.topics():
            await self._check_room(request)
        proposed = Topic(name=request.topic, id=f"{self._chance.getrandbits(64):016x}", settings=dict(settings))
        topic, created = await self._catalog.create_topic(proposed)
        if topic.value.deleting:
            raise NotReady(f"topic {request.topic} is being deleted", hint="try again when it is gone")
        other = {name: value for name, value in settings.items() if topic.value.settings.get(name) != value}
        if not created and other:
            raise TopicExists(
                f"topic {request.topic} is there with other settings: {topic.value.settings}", hint="alter it instead"
            )
        return TopicMade(topic.value.id, created)

    async def _check_room(self, request: CreateTopic) -> None:
        """Refuse a topic whose partitions would be refused, BEFORE there is anything of it."""
        limit = self._config.partitions_per_topic_max
        if request.partitions > limit:
            raise TooManyPartitions(
                f"topic {request.topic} would have {request.partitions} partitions; at most {limit} are allowed",
                hint="raise partitions_per_topic_max, or use another topic",
            )
        if request.dupnum is not None:
            seats = (await self._attendance.roster()).seats()
            check_dupnum(request.dupnum, seats)
            place(seats, key_of(request.topic, ""), request.dupnum)

    async def create_partition(self, request: CreatePart) -> PartitionMade:
        """Make a partition in state -2; one that is there is left as it is."""
        check_name(request.partition, "partition")
        await self._chains.topic(request.topic)
        names = await self._catalog.partitions(request.topic)
        limit = self._config.partitions_per_topic_max
        if request.partition not in names and len(names) >= limit:
            raise TooManyPartitions(
                f"topic {request.topic} has {len(names)} partitions; at most {limit} are allowed",
                hint="raise partitions_per_topic_max, or use another topic",
            )
        proposed = Partition(name=request.partition, uid=f"{self._chance.getrandbits(128):032x}")
        partition, created = await self._catalog.create_partition(request.topic, proposed)
        return PartitionMade(partition.value.uid, created)

    async def list_topics(self, _: ListTopics) -> TopicList:
        """Return the names of all topics that are not on their way out."""
        found = []
        for name in await self._catalog.topics():
            try:
                found.append((await self._chains.topic(name)).value.name)
            except UnknownTopic:
                continue
        return TopicList(tuple(found))

    async def alter_topic(self, request: AlterTopic) -> Done:
        """Change settings; brokers learn of them with what they host."""
        given = topic_settings(request.settings, self._config)

        async def attempt() -> Done:
            topic = await self._chains.topic(request.topic)
            altered = changed(topic.value, settings={**topic.value.settings, **given})
            if altered != topic.value:
                await self._catalog.put_topic(altered, topic.version)
            return Done()

        return await settled(attempt)

    # Deletion.

    async def delete_topic(self, request: DeleteTopic) -> Done:
        """Mark the topic; answer when it is gone, or after a while, while it goes on by itself."""

        async def mark() -> None:
            topic = await self._catalog.topic(request.topic)
            if not topic.value.deleting:
                await self._catalog.put_topic(changed(topic.value, deleting=True), topic.version)

        await settled(mark)
        self.finish_deletion(request.topic)
        try:
            await self._deleted(request.topic)
        except RequestTimeout as error:
            log.info("topic %s is marked: %s", request.topic, error)
        return Done()

    async def resume_deletions(self) -> None:
        """Go on with what was marked, here or by a controller before."""
        for name in await self._catalog.topics():
            try:
                if (await self._catalog.topic(name)).value.deleting:
                    self.finish_deletion(name)
            except UnknownTopic:
                continue

    def finish_deletion(self, name: str) -> None:
        """See to it that a marked topic goes."""
        if name not in self._deletions:
            task = self._deletions[name] = self._spawn(self._delete(name))
            task.add_done_callback(lambda _: self._deletions.pop(name, None))

    async def _deleted(self, name: str) -> None:
        task = self._deletions.get(name)
        if task is not None:
            await within(self._clock, self._config.move_wait_ms_max, task, f"the deletion of topic {name}")

    async def _delete(self, name: str) -> None:
        """Stop its moves, nudge who holds something, then take the nodes away; what fails is tried again next time."""
        try:
            await self._moves.stop(name)
            await self._nudge_holders(name)
            await self._catalog.delete_topic(name)
            log.info("topic %s is deleted", name)
        except UnknownTopic:
            return
        except SessionLost:
            raise
        except ClymqError as error:
            log.warning("topic %s is not deleted yet: %s", name, error)

    async def _nudge_holders(self, name: str) -> None:
        roster = await self._attendance.roster()
        topic = (await self._catalog.topic(name)).value
        told: dict[str, Request[Done]] = {}
        for view in await self._chains.views(topic):
            brokers = {*view.members, *(each.broker for sealed in view.sealed for each in sealed.replicas)}
            kind = CloseRaftPartition if view.now.mode == Ack.QUORUM else CloseFetchPartition
            value = view.partition.value
            told |= {each: kind(name, value.name, value.uid, view.now.block, value.epoch) for each in brokers}
        await self._nudges.told(told, roster)
