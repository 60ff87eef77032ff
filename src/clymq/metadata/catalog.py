"""The tree in typed words: cluster, zkservers, brokers, topics, partitions, subscriptions.

Reads return a value with the version that a conditional write needs; writes go through `commit`, so that each is
applied once or not at all. What must happen together is one transaction. It knows what lies where, not what should
happen when: that is the controller's. The chain of blocks of a partition is in `clymq.metadata.chain`.

Whoever decides something by what was read calls `sync` before.
"""

from __future__ import annotations

import contextlib

import msgspec

from clymq.errors import BrokerReplaced, MetadataError, NodeExists, NodeMissing, UnknownTopic, VersionConflict
from clymq.metadata import nodes
from clymq.metadata.chain import Chain
from clymq.metadata.nodes import (
    Broker,
    BrokerState,
    ClusterId,
    Controller,
    NowBlock,
    Partition,
    Subscription,
    Topic,
    ZkServer,
    encode,
)
from clymq.metadata.reading import Versioned, read, read_children, settled
from clymq.metadata.store import ANY_VERSION, Check, Create, Delete, MetadataStore, Operation, Put

DELETES_PER_TRANSACTION = 500


class Catalog:
    """Everything but the chains; those are `Catalog.chain(topic, partition)`."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def prepare(self) -> None:
        """Make the folders that everything else lies in, if they are missing."""
        for path in (nodes.ZKSERVERS, nodes.BROKERS, nodes.TOPICS):
            await self._create_if_missing([Create(path)])

    async def sync(self) -> None:
        """Make the reads that follow see all that was answered to anybody."""
        await self.store.sync()

    async def cluster_id(self, proposed: str) -> str:
        """Return the cluster's id; the first proposal ever becomes it, whoever else proposes."""
        await self._create_if_missing([Create(nodes.CLUSTER_ID, encode(ClusterId(id=proposed)))])
        return (await read(self.store, ClusterId, nodes.CLUSTER_ID)).value.id

    # Zkservers.

    async def announce_zkserver(self, zkserver: ZkServer) -> None:
        """Say that a zkserver is there, as long as this session lives."""
        await self._take_over(nodes.zkserver_path(zkserver.name), encode(zkserver))

    async def zkservers(self) -> dict[str, Versioned[ZkServer]]:
        """Return the zkservers that are there."""
        return await read_children(self.store, ZkServer, nodes.ZKSERVERS)

    async def elect(
        self, name: str, address: str, *, replaces: Versioned[Controller] | None = None
    ) -> Controller | None:
        """Become the active zkserver, with a higher epoch than any before; None if there is one.

        `replaces` is what a former life of the same process has left behind, as it was read.
        """
        folder = await self.store.get(nodes.ZKSERVERS)
        # Every election has version 0: looked at again behind the folder, whose version tells of the next one.
        if replaces is not None and await self.controller() != replaces:
            return None
        controller = Controller(name=name, address=address, epoch=folder.stat.version + 1)
        try:
            await self.store.commit(
                [
                    *([] if replaces is None else [Delete(nodes.CONTROLLER, replaces.version)]),
                    Create(nodes.CONTROLLER, encode(controller), ephemeral=True),
                    Put(nodes.ZKSERVERS, b"", folder.stat.version),
                ]
            )
        except (NodeExists, NodeMissing, VersionConflict):
            return None
        return controller

    async def controller(self) -> Versioned[Controller] | None:
        """Return the active zkserver, if there is one."""
        with contextlib.suppress(NodeMissing):
            return await read(self.store, Controller, nodes.CONTROLLER)
        return None

    # Brokers.

    async def register_broker(self, broker: Broker) -> None:
        """Write a broker's facts; that it is being drained is not its own to say, and stays as it was."""
        path = nodes.broker_path(broker.name)

        async def attempt() -> None:
            if await self._create_if_missing([Create(path, encode(broker))]):
                return
            known = await read(self.store, Broker, path)
            updated = msgspec.structs.replace(broker, draining=known.value.draining, unknown=known.value.unknown)
            if updated != known.value:
                await self.store.commit([Put(path, encode(updated), known.version)])

        await settled(attempt)

    async def put_broker(self, broker: Broker, version: int) -> None:
        """Replace a broker's facts if they have this version."""
        await self.store.commit([Put(nodes.broker_path(broker.name), encode(broker), version)])

    async def brokers(self) -> dict[str, Versioned[Broker]]:
        """Return every broker that is registered."""
        return await read_children(self.store, Broker, nodes.BROKERS)

    async def announce_broker(self, name: str, incarnation: int, *, starting: bool) -> None:
        """Say that a broker is online, as long as this session lives.

        A process that starts takes the place of whatever life was there before. One that lost its session and comes
        back replaces only what it left itself; if it finds another life, it has been replaced and must stop.
        """
        path, above = nodes.state_path(name), nodes.broker_path(name)

        async def attempt() -> None:
            await self.store.sync(above)
            # Every state has version 0 and cannot be told from the next; the broker's node is written with each, and
            # read BEFORE the state, so that its version tells whether another life has come meanwhile.
            broker = await self.store.get(above)
            found = await self.broker_state(name)
            replaces: list[Operation] = []
            if found is not None:
                if found.value.incarnation != incarnation and not starting:
                    raise BrokerReplaced(name, found.value.incarnation)
                if found.owner == self.store.session.id and found.value.incarnation == incarnation:
                    return
                replaces = [Delete(path, found.version)]
            state = encode(BrokerState(incarnation=incarnation))
            written = Put(above, broker.value, broker.stat.version)
            await self.store.commit([written, *replaces, Create(path, state, ephemeral=True)])

        await settled(attempt)

    async def broker_state(self, name: str) -> Versioned[BrokerState] | None:
        """Return which life of a broker is online; None if it is not."""
        await self.store.sync(nodes.state_path(name))
        with contextlib.suppress(NodeMissing):
            return await read(self.store, BrokerState, nodes.state_path(name))
        return None

    async def online(self) -> dict[str, BrokerState]:
        """Return the brokers that are online."""
        online = {}
        for node in await self.store.children(nodes.BROKERS):
            name = nodes.decoded_name(nodes.BROKERS, node)
            with contextlib.suppress(NodeMissing):
                online[name] = (await read(self.store, BrokerState, nodes.state_path(name))).value
        return online

    # Topics.

    async def create_topic(self, topic: Topic) -> tuple[Versioned[Topic], bool]:
        """Make a topic, or return the one that is there, unchanged; and say whether it was made."""
        path = nodes.topic_path(topic.name)
        made = await self._create_if_missing(
            [
                Create(path, encode(topic)),
                Create(nodes.subscriptions_path(topic.name)),
                Create(nodes.partitions_path(topic.name)),
            ]
        )
        return await self.topic(topic.name), made

    async def topic(self, name: str) -> Versioned[Topic]:
        """Read a topic, or raise `UnknownTopic`."""
        try:
            return await read(self.store, Topic, nodes.topic_path(name))
        except NodeMissing as error:
            raise UnknownTopic(f"there is no topic {name}") from error

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        found = [nodes.decoded_name(nodes.TOPICS, node) for node in await self.store.children(nodes.TOPICS)]
        return sorted(found)

    async def put_topic(self, topic: Topic, version: int) -> None:
        """Replace a topic's value (settings, deleting) if it has this version."""
        await self.store.commit([Put(nodes.topic_path(topic.name), encode(topic), version)])

    async def delete_topic(self, name: str) -> None:
        """Take all nodes of a topic away, the deepest first; a second call goes on where a first one was stopped.

        Each transaction makes sure that it is still this topic, and not one that was made in its place meanwhile.
        """
        path = nodes.topic_path(name)
        topic = await self.topic(name)
        if not topic.value.deleting:
            raise MetadataError(f"{path} is not marked as deleting", hint="put_topic first, so that all refuse it")
        below = await self._all_below(path)
        for start in range(0, len(below), DELETES_PER_TRANSACTION):
            part = below[start : start + DELETES_PER_TRANSACTION]
            await self.store.commit([Check(path, topic.version), *(Delete(each, ANY_VERSION) for each in part)])
        await self.store.commit([Delete(path, topic.version)])

    async def _all_below(self, path: str) -> list[str]:
        found: list[str] = []
        for node in await self.store.children(path):
            found += [*await self._all_below(f"{path}/{node}"), f"{path}/{node}"]
        return found

    # Partitions.

    async def create_partition(self, topic: str, partition: Partition) -> tuple[Versioned[Partition], bool]:
        """Make a partition with an empty chain, or return the one that is there, unchanged.

        The topic must be there and not be on its way out when the partition is made.
        """
        paths = nodes.PartitionPaths.of(topic, partition.name)

        async def attempt() -> tuple[Versioned[Partition], bool]:
            above = await self.topic(topic)
            if above.value.deleting:
                raise UnknownTopic(f"topic {topic} is being deleted")
            made = await self._create_if_missing(
                [
                    Check(nodes.topic_path(topic), above.version),
                    Create(paths.partition, encode(partition)),
                    Create(paths.mirror, encode(nodes.Mirror())),
                    Create(paths.now_block, encode(NowBlock())),
                ]
            )
            return await self.chain(topic, partition.name).partition(), made

        return await settled(attempt)

    async def partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or raise `UnknownTopic`."""
        path = nodes.partitions_path(topic)
        try:
            return sorted(nodes.decoded_name(path, node) for node in await self.store.children(path))
        except NodeMissing as error:
            raise UnknownTopic(f"there is no topic {topic}") from error

    def chain(self, topic: str, partition: str) -> Chain:
        """Return what reads and moves the blocks of a partition."""
        return Chain(self.store, topic, partition)

    # Subscriptions.

    async def subscriptions(self, topic: str) -> dict[str, Versioned[Subscription]]:
        """Return a topic's subscriptions, or raise `UnknownTopic`."""
        try:
            return await read_children(self.store, Subscription, nodes.subscriptions_path(topic))
        except NodeMissing as error:
            raise UnknownTopic(f"there is no topic {topic}") from error

    async def create_subscription(self, topic: str, subscription: Subscription) -> bool:
        """Record a subscription; False if there is one with its name already."""
        path = nodes.subscription_path(topic, subscription.name)
        try:
            return await self._create_if_missing([Create(path, encode(subscription))])
        except NodeMissing as error:
            raise UnknownTopic(f"there is no topic {topic}") from error

    async def put_subscription(self, topic: str, subscription: Subscription, version: int) -> None:
        """Replace a subscription if it has this version."""
        path = nodes.subscription_path(topic, subscription.name)
        await self.store.commit([Put(path, encode(subscription), version)])

    async def delete_subscription(self, topic: str, name: str, version: int) -> None:
        """Take a subscription away if it has this version."""
        await self.store.commit([Delete(nodes.subscription_path(topic, name), version)])

    async def _create_if_missing(self, operations: list[Operation]) -> bool:
        try:
            await self.store.commit(operations)
        except NodeExists:
            return False
        return True

    async def _take_over(self, path: str, value: bytes) -> None:
        """Make an ephemeral node of this session, in the place of one that a former session left."""

        async def attempt() -> None:
            stat = await self.store.exists(path)
            if stat is None or stat.ephemeral_owner != self.store.session.id:
                replaces = [] if stat is None else [Delete(path, stat.version)]
                await self.store.commit([*replaces, Create(path, value, ephemeral=True)])

        await settled(attempt)
