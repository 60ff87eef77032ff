"""What brokers ask and tell: who they are, what to host, who leads, how far they have come, what they have lost.

`BroGetConfig` is the truth: a broker hosts all that it names and may delete what it does not name. So it is answered
from the tree as it stands after a `sync`, and only whole: what cannot be read is an error, never a shorter answer.
"""

from __future__ import annotations

from clymq.controller.chains import Chains, Sealed, View
from clymq.controller.copies import Copies
from clymq.controller.roster import Attendance, Roster
from clymq.errors import BrokerReplaced, ConfigError, LeaderUnavailable
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Broker, Place, Replica
from clymq.metadata.reading import settled
from clymq.protocol.controller import (
    BecomeLeader,
    BlockBefore,
    BroGetConfig,
    BroInfo,
    BrokerConfig,
    BrokerKnown,
    GetNewLeader,
    HostedBlock,
    LeaderKnown,
    Property,
    ReplicaDown,
    UpdateDup,
    UpdatePTPOffset,
)
from clymq.protocol.verbs import Done


class Hosting:
    """The verbs of brokers."""

    def __init__(
        self, catalog: Catalog, chains: Chains, attendance: Attendance, copies: Copies, cluster_id: str
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._copies = copies
        self._cluster_id = cluster_id
        self.properties: dict[str, Property] = {}
        """The figures that each broker told last."""

    async def broker_info(self, request: BroInfo) -> BrokerKnown:
        """Register a broker, which puts it on the ring; repeated, only its figures are new."""
        if request.cluster_id and request.cluster_id != self._cluster_id:
            raise ConfigError(
                "cluster id", request.cluster_id, f"broker {request.name} belongs there; this is {self._cluster_id}"
            )
        online = await self._catalog.broker_state(request.name)
        if online is not None and online.value.incarnation != request.incarnation:
            # From a life that is over: its address and its disk must not take the place of the present one's.
            raise BrokerReplaced(request.name, online.value.incarnation)
        known = (await self._catalog.brokers()).get(request.name)
        await self._catalog.register_broker(
            Broker(
                name=request.name,
                address=request.address,
                id=known.value.id if known is not None else "",
                disk_id=request.disk_id,
                host=request.host,
                rack=request.rack,
                power=max(1, request.properties.power),
            )
        )
        self.properties[request.name] = request.properties
        return BrokerKnown(self._cluster_id, draining=known is not None and known.value.draining)

    async def broker_config(self, request: BroGetConfig) -> BrokerConfig:
        """Return all that a broker should host: active blocks, sealed ones, and copies that it is to make."""
        await self._catalog.sync()
        roster = await self._attendance.roster()
        blocks: list[HostedBlock] = []
        for view in await self._chains.all_views():
            if request.broker in view.members:
                blocks.append(_active_block(view, roster))
            for sealed in view.sealed:
                if Place(broker=request.broker, disk_id=request.disk_id) in sealed.block.copies:
                    blocks.append(_sealed_block(view, sealed, roster, request.broker, copy=True))
                elif any(replica.broker == request.broker for replica in sealed.replicas):
                    blocks.append(_sealed_block(view, sealed, roster, request.broker))
        return BrokerConfig(tuple(blocks), roster.addresses())

    async def become_leader(self, request: BecomeLeader) -> Done:
        """Record who leads the active block; a late or lower report changes nothing."""
        view = await self._chains.view(request.topic, request.partition, request.uid)
        await self._chains.of(*view.key).become_leader(
            request.uid, request.block, request.term, request.broker, request.incarnation
        )
        return Done()

    async def get_new_leader(self, request: GetNewLeader) -> LeaderKnown:
        """Return the active block's leader as recorded."""
        await self._catalog.sync()
        view = await self._chains.view(request.topic, request.partition, request.uid)
        if not view.now.leader:
            raise LeaderUnavailable(f"{view} has no leader")
        roster = await self._attendance.roster()
        now = view.now
        return LeaderKnown(now.leader, roster.address(now.leader), now.block, now.term, now.epoch)

    async def update_replica(self, request: UpdateDup) -> Done:
        """Mirror how far a replica has come; a copy that has become whole is registered."""
        view = await self._chains.view(request.topic, request.partition, request.uid)
        chain = self._chains.of(*view.key)
        if request.whole:
            place = Place(broker=request.broker, disk_id=request.disk_id)
            await self._copies.became_whole(view.key, request.uid, request.block, place)
        await chain.report_end(request.block, request.broker, request.end)
        if request.lost_messages:
            await chain.report_lost(request.block, request.lost_messages)
        return Done()

    async def update_cursor(self, request: UpdatePTPOffset) -> Done:
        """Mirror a group's cursor; it never goes back, unless it was set back."""
        view = await self._chains.view(request.topic, request.partition, request.uid)
        await self._chains.of(*view.key).report_cursor(request.group, request.offset, exact=request.exact)
        return Done()

    async def replica_down(self, request: ReplicaDown) -> Done:
        """Note that a replica is of no use any more; what follows from that is the next look round's business."""

        async def attempt() -> Done:
            view = await self._chains.view(request.topic, request.partition, request.uid)
            roster = await self._attendance.roster()
            replica = _replica(view, request.block, request.broker)
            if replica is None or replica.down:
                return Done()
            if replica.disk_id != request.disk_id and replica.disk_id == roster.disk_id(request.broker):
                return Done()  # said of a disk that this replica is not on any more
            await self._chains.mark_down(view, request.block, replica, request.reason or "down")
            return Done()

        await self._catalog.sync()
        return await settled(attempt)


def _replica(view: View, block: int, broker: str) -> Replica | None:
    replicas = {sealed.block.block: sealed.replicas for sealed in view.sealed} | {view.now.block: view.active.replicas}
    return next((each for each in replicas.get(block, ()) if each.broker == broker), None)


def _active_block(view: View, roster: Roster) -> HostedBlock:
    now, partition = view.now, view.partition.value
    before = view.sealed[-1] if view.sealed else None
    return HostedBlock(
        topic=view.topic.name,
        topic_id=view.topic.id,
        partition=partition.name,
        uid=partition.uid,
        block=now.block,
        epoch=now.epoch,
        mode=now.mode,
        start=now.start,
        replicas=tuple(roster.replica_place(each) for each in view.active.replicas),
        leader=now.leader,
        leader_incarnation=now.leader_incarnation,
        leader_session=now.leader_session,
        term=now.term,
        settings=dict(view.topic.settings),
        before=None
        if before is None
        else BlockBefore(
            before.block.block,
            before.block.seal_index,
            before.block.seal_crc,
            tuple(roster.replica_place(each) for each in before.replicas if not each.down),
        ),
    )


def _sealed_block(view: View, sealed: Sealed, roster: Roster, broker: str, *, copy: bool = False) -> HostedBlock:
    block, partition = sealed.block, view.partition.value
    # Those that can be mended from. The broker's own is named whatever has become of it, unless it is made anew.
    named = [each for each in sealed.replicas if (not copy if each.broker == broker else not each.down)]
    return HostedBlock(
        topic=view.topic.name,
        topic_id=view.topic.id,
        partition=partition.name,
        uid=partition.uid,
        block=block.block,
        epoch=partition.epoch,
        mode=block.mode,
        start=block.start,
        replicas=tuple(roster.replica_place(each) for each in named),
        settings=dict(view.topic.settings),
        sealed=True,
        end=block.end,
        seal_index=block.seal_index,
        seal_crc=block.seal_crc,
        bytes=block.bytes,
        last_append_time=block.last_append_time,
        copy=copy,
        trusted=block.trusted,
        down=any(each.down for each in sealed.replicas if each.broker == broker),
    )
