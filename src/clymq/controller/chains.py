"""Partitions as they stand in the tree, read whole and consistent.

The version of a partition's node tells of every change of its blocks and replicas; that of its NowBlock tells who
leads. So a second reading of a partition that did not change costs two reads, however many blocks it has, and looking
round at all of them every second is affordable. Nothing is answered from memory without those two reads.

Changes go through here too: each takes the view that it was decided by, is conditional on its version, and returns the
view that it leaves behind, which is then known without being read. Or the mending of a chain, which changes it block by
block, would read all of it again for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clymq.errors import NodeMissing, UnknownPartition, UnknownTopic, VersionConflict
from clymq.metadata.catalog import Catalog
from clymq.metadata.chain import Active, Chain, in_order
from clymq.metadata.nodes import (
    NO_BLOCK,
    NowBlock,
    Partition,
    PartitionPaths,
    Pending,
    Replica,
    SealedBlock,
    Topic,
    changed,
)
from clymq.metadata.reading import CONFLICTS_MAX, Versioned, read, read_each

READS_AT_ONCE = 256


class Sealed(NamedTuple):
    """A sealed block and who holds it."""

    block: SealedBlock
    replicas: tuple[Replica, ...]


class View(NamedTuple):
    """One partition as it was read."""

    topic: Topic
    partition: Versioned[Partition]
    active: Active
    sealed: tuple[Sealed, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The names of topic and partition."""
        return self.topic.name, self.partition.value.name

    @property
    def now(self) -> NowBlock:
        """The active block."""
        return self.active.block.value

    @property
    def begun(self) -> bool:
        """Whether a block was ever placed."""
        return self.now.block != NO_BLOCK

    @property
    def members(self) -> list[str]:
        """The brokers of the active block."""
        return [replica.broker for replica in self.active.replicas]

    def __str__(self) -> str:
        return f"{self.topic.name}/{self.partition.value.name}"


class Chains:
    """Reads views, and changes what they show."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept: dict[tuple[str, str], View] = {}
        self._one_at_a_time = asyncio.Lock()
        self._all: list[View] = []
        self._begun = 0
        self._finished = 0

    def of(self, topic: str, partition: str) -> Chain:
        """Return one chain of the tree, for its mirrors and for who leads."""
        return self._catalog.chain(topic, partition)

    async def topic(self, name: str) -> Versioned[Topic]:
        """Read a topic that is there and is not on its way out, or raise `UnknownTopic`."""
        topic = await self._catalog.topic(name)
        if topic.value.deleting:
            raise UnknownTopic(f"topic {name} is being deleted")
        return topic

    async def view(self, topic: str, partition: str, uid: str | None = None) -> View:
        """Read a partition, and refuse one that was created anew since the caller looked."""
        found = await self._view((await self.topic(topic)).value, partition)
        if uid is not None and found.partition.value.uid != uid:
            raise UnknownPartition(f"partition {partition} of topic {topic} was created anew")
        return found

    async def views(self, topic: Topic, partitions: Iterable[str] | None = None) -> list[View]:
        """Read all partitions of a topic, or those that are named; what goes away meanwhile is left out."""
        names = list(await self._catalog.partitions(topic.name) if partitions is None else partitions)
        found: list[View] = []
        for start in range(0, len(names), READS_AT_ONCE):
            part = (self._view_or_none(topic, name) for name in names[start : start + READS_AT_ONCE])
            found += [view for view in await asyncio.gather(*part) if view is not None]
        return found

    async def all_views(self) -> list[View]:
        """Read every partition of every topic that is not on its way out.

        Those who ask while it is being read share the reading that comes next, so that a thousand brokers that come
        back at once are two readings and not a thousand. Each gets one that began after it asked.
        """
        wanted = self._begun + 1
        async with self._one_at_a_time:
            if self._finished < wanted:
                self._begun = number = self._begun + 1
                self._all = await self._read_all()
                self._finished = number
            return self._all

    # Changes; `VersionConflict` if the partition is no longer as the view shows it.

    async def put(self, view: View, partition: Partition) -> View:
        """Replace the partition's value."""
        return self._keep(view._replace(partition=await self.of(*view.key).put(view.partition, partition)))

    async def intend(self, view: View, pending: Pending) -> View:
        """Write down what is going to happen; also to rewrite an intent."""
        return self._keep(view._replace(partition=await self.of(*view.key).intend(view.partition, pending)))

    async def move(self, view: View, now: NowBlock, sealed: SealedBlock | None) -> View:
        """Finish the pending move: `sealed` is how the active block ended, `now` the next one."""
        partition, active = await self.of(*view.key).move(view.partition, view.active, now, sealed)
        ended = () if sealed is None else (Sealed(sealed, view.active.replicas),)
        return self._keep(View(view.topic, partition, active, (*view.sealed, *ended)))

    async def retain(self, view: View, blocks: Sequence[SealedBlock]) -> View:
        """Let the oldest sealed blocks go."""
        partition = await self.of(*view.key).retain(view.partition, blocks)
        return self._keep(view._replace(partition=partition, sealed=view.sealed[len(blocks) :]))

    async def rewrite(
        self, view: View, block: SealedBlock, *, added: Sequence[Replica] = (), removed: Sequence[Replica] = ()
    ) -> View:
        """Change what is known of a sealed block and who holds it."""
        partition = await self.of(*view.key).rewrite(view.partition, block, added=added, removed=removed)

        def rewritten(each: Sealed) -> Sealed:
            if each.block.block != block.block:
                return each
            return Sealed(block, in_order([*(one for one in each.replicas if one not in removed), *added]))

        return self._keep(view._replace(partition=partition, sealed=tuple(map(rewritten, view.sealed))))

    async def mark_down(self, view: View, block: int, replica: Replica, reason: str) -> View:
        """Note that a replica is of no use any more."""
        down = changed(replica, down=reason)
        partition = await self.of(*view.key).mark_down(view.partition, block, down)

        def marked(replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
            return tuple(down if each == replica else each for each in replicas)

        active, sealed = view.active, view.sealed
        if view.now.block == block:
            active = active._replace(replicas=marked(active.replicas))
        else:
            sealed = tuple(
                each._replace(replicas=marked(each.replicas)) if each.block.block == block else each for each in sealed
            )
        return self._keep(View(view.topic, partition, active, sealed))

    # Reading.

    async def _read_all(self) -> list[View]:
        found: list[View] = []
        for name in await self._catalog.topics():
            try:
                found += await self.views((await self.topic(name)).value)
            except UnknownTopic:
                continue
        there = {view.key for view in found}
        self._kept = {key: view for key, view in self._kept.items() if key in there}
        return found

    async def _view_or_none(self, topic: Topic, name: str) -> View | None:
        try:
            return await self._view(topic, name)
        except UnknownPartition:
            return None

    async def _view(self, topic: Topic, name: str) -> View:
        chain = self.of(topic.name, name)
        for _ in range(CONFLICTS_MAX):
            partition = await chain.partition()
            kept = self._kept.get((topic.name, name))
            if kept is not None and kept.topic.id == topic.id and _unchanged(kept.partition, partition):
                now = await self._now_block(topic.name, name)
                active = kept.active._replace(block=now)
                view = View(topic, partition, active, kept.sealed)
            else:
                view = View(topic, partition, await chain.active(), await self._sealed(chain))
                if (await chain.partition()).version != partition.version:
                    continue
                if (await self._catalog.topic(topic.name)).value.id != topic.id:
                    # What was read last may be of either; a broker would look for it in the other one's folder.
                    raise VersionConflict(f"topic {topic.name} was made anew while it was read")
            # A move writes both nodes at once; if it came between the two reads, the numbers do not fit.
            if view.now.block == partition.value.next_block - 1:
                return self._keep(view)
        # Not `UnknownPartition`: what could not be read must never pass for what is not there.
        raise VersionConflict(f"partition {name} of topic {topic.name} changes too quickly to be read")

    def _keep(self, view: View) -> View:
        """Remember a view, unless a later one is known: who reads all takes longer than who changes one."""
        kept = self._kept.get(view.key)
        if kept is None or kept.partition.value.uid != view.partition.value.uid or not _later(kept, view):
            self._kept[view.key] = view
        return view

    async def _sealed(self, chain: Chain) -> tuple[Sealed, ...]:
        found = await read_each(await chain.sealed(), lambda block: chain.sealed_replicas(block.block))
        return tuple(Sealed(block, replicas) for block, replicas in found)

    async def _now_block(self, topic: str, partition: str) -> Versioned[NowBlock]:
        try:
            return await read(self._catalog.store, NowBlock, PartitionPaths.of(topic, partition).now_block)
        except NodeMissing as error:
            raise UnknownPartition(f"there is no partition {partition} of topic {topic}") from error


def _later(kept: View, found: View) -> bool:
    return kept.partition.version > found.partition.version


def _unchanged(kept: Versioned[Partition], found: Versioned[Partition]) -> bool:
    return (kept.version, kept.value.uid) == (found.version, found.value.uid)
