"""How the cluster is: what `status`, `topic describe` and `group list` show.

Put together from the tree; ends, cursors and losses are what brokers told last, at most about a second ago.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from clymq.controller.chains import Chains, View
from clymq.controller.roster import Attendance, Roster
from clymq.errors import UnknownPartition
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Mirror
from clymq.protocol.controller import (
    BrokerStatus,
    ClusterStatus,
    DescribeTopic,
    GroupList,
    GroupStatus,
    ListGroups,
    PartitionStatus,
    Property,
    Status,
    TopicDescription,
    ZkServerStatus,
)


class Overview:
    """The verbs that look."""

    def __init__(
        self, catalog: Catalog, chains: Chains, attendance: Attendance, properties: Mapping[str, Property]
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._properties = properties

    async def status(self, _: Status) -> ClusterStatus:
        """Return everything."""
        await self._catalog.sync()
        active = await self._catalog.controller()
        zkservers = await self._catalog.zkservers()
        roster = await self._attendance.roster()
        views = await self._chains.all_views()
        mirrors = await self._mirrors(views)
        return ClusterStatus(
            zkservers=tuple(
                ZkServerStatus(name, each.value.address, active is not None and active.value.name == name)
                for name, each in sorted(zkservers.items())
            ),
            brokers=self._brokers(roster, views),
            partitions=tuple(_partition(view, roster, mirror) for view, mirror in zip(views, mirrors, strict=True)),
            groups=tuple(group for view, mirror in zip(views, mirrors, strict=True) for group in _groups(view, mirror)),
        )

    async def describe_topic(self, request: DescribeTopic) -> TopicDescription:
        """Return a topic with its settings and partitions."""
        await self._catalog.sync()
        topic = (await self._chains.topic(request.topic)).value
        roster = await self._attendance.roster()
        views = await self._chains.views(topic)
        mirrors = await self._mirrors(views)
        partitions = tuple(_partition(view, roster, mirror) for view, mirror in zip(views, mirrors, strict=True))
        return TopicDescription(topic.name, topic.id, dict(topic.settings), partitions)

    async def list_groups(self, request: ListGroups) -> GroupList:
        """Return where groups stand, of one topic or of all."""
        await self._catalog.sync()
        if request.topic:
            views = await self._chains.views((await self._chains.topic(request.topic)).value)
        else:
            views = await self._chains.all_views()
        mirrors = await self._mirrors(views)
        found = (group for view, mirror in zip(views, mirrors, strict=True) for group in _groups(view, mirror))
        return GroupList(tuple(group for group in found if request.group in {"", group.group}))

    async def _mirrors(self, views: list[View]) -> list[Mirror]:
        async def told(view: View) -> Mirror:
            try:
                return await self._chains.of(*view.key).mirror()
            except UnknownPartition:
                return Mirror()  # deleted since it was read

        return await asyncio.gather(*(told(view) for view in views))

    def _brokers(self, roster: Roster, views: list[View]) -> tuple[BrokerStatus, ...]:
        partitions = Counter(name for view in views for name in view.members)
        leaders = Counter(view.now.leader for view in views if view.begun)
        found = []
        for name, member in sorted(roster.members.items()):
            told = self._properties.get(name, Property())
            found.append(
                BrokerStatus(
                    name=name,
                    address=member.broker.value.address,
                    online=member.state is not None,
                    draining=member.broker.value.draining,
                    power=member.broker.value.power,
                    cpu=told.cpu,
                    disk_free_bytes=told.disk_free_bytes,
                    partitions=partitions[name],
                    leaders=leaders[name],
                    disk_io=told.disk_io,
                )
            )
        return tuple(found)


def _partition(view: View, roster: Roster, mirror: Mirror) -> PartitionStatus:
    partition = view.partition.value
    return PartitionStatus(
        topic=view.topic.name,
        partition=partition.name,
        ack=partition.state,
        replicas=tuple(view.members),
        online=tuple(name for name in view.members if roster.online(name)),
        leader=view.now.leader,
        epoch=partition.epoch,
        blocks=len(view.sealed) + (1 if view.begun else 0),
        start=partition.first_offset,
        end=_end(view, mirror),
        lost_messages=_lost(view, mirror),
        uid=partition.uid,
    )


def _lost(view: View, mirror: Mirror) -> int:
    """Add up what is lost: what was feared when a block was ended by force, or more if replicas brought more back."""
    feared = {sealed.block.block: sealed.block.lost_messages_max for sealed in view.sealed}
    return sum(max(feared.get(block, 0), mirror.lost.get(block, 0)) for block in {*feared, *mirror.lost})


def _groups(view: View, mirror: Mirror) -> list[GroupStatus]:
    end = _end(view, mirror)
    topic, partition = view.key
    return [
        GroupStatus(topic, group, partition, cursor, end, max(0, end - cursor))
        for group, cursor in sorted(mirror.cursors.items())
    ]


def _end(view: View, mirror: Mirror) -> int:
    """Return the end of a partition as far as it is known: what is sealed is exact, the rest was told."""
    return max(view.now.start, mirror.ends.get(view.now.block, 0))
