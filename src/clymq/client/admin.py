"""The administrator: makes and changes topics, and looks at the cluster. All of it asks the active zkserver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from clymq.client.cluster import Cluster
from clymq.client.identity import default_name
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Backoff, Deadline
from clymq.clock import pause
from clymq.errors import InvalidRequest, RemoteProtocolError
from clymq.protocol.controller import (
    AlterTopic,
    CreatePart,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    DrainBroker,
    ForceSeal,
    ListGroups,
    ListSubs,
    ListTopics,
    MovePartition,
    PartitionStatus,
    ResetGroup,
    SetPartitionState,
    Status,
    TopicDescription,
    UndrainBroker,
)
from clymq.types import Ack, check_ack, check_name

# What partitions_per_topic_max may be at most: who asks for more is refused before a name is made for each.
PARTITIONS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition; offsets are as last reported to the controller."""

    topic: str
    partition: str
    ack: Ack
    replicas: tuple[str, ...]
    online: tuple[str, ...]
    leader: str
    epoch: int
    blocks: int
    start: int
    end: int
    lost_messages: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions."""

    name: str
    id: str
    settings: dict[str, Any]
    partitions: list[PartitionInfo]
    created: bool = field(default=False, compare=False)
    """Whether it was not there before the call that returned this."""


class AsyncAdmin:
    """Administers a cluster. `async with`, or `start()` and `close()`. Every call ends within `timeout` seconds."""

    def __init__(self, bootstrap: str, *, timeout: float = 30.0, surroundings: Surroundings | None = None) -> None:
        """`bootstrap` is host:port[,host:port...] of any zkservers or brokers."""
        self._cluster = Cluster(bootstrap, name=default_name(), role="admin", surroundings=surroundings)
        self._timeout = timeout

    @classmethod
    def over(cls, cluster: Cluster, timeout: float) -> AsyncAdmin:
        """Return one that uses the connections of another client."""
        admin = cls.__new__(cls)
        admin._cluster = cluster
        admin._timeout = timeout
        return admin

    # --- Topics ---

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | Sequence[str] = 1,
        ack: Ack | int = Ack.QUORUM,
        replicas: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> TopicInfo:
        """Make a topic with its partitions, "0".."n-1" or by names; what is there already stays as it is."""
        check_name(name, "topic")
        names = partition_names(partitions)
        state = check_ack(ack)
        deadline = self._deadline()
        dupnum = None if state is Ack.UNSET else replicas
        create = CreateTopic(name, dict(settings or {}), partitions=len(names), dupnum=dupnum)
        made = await self._cluster.ask_controller(create, deadline)
        for partition in names:
            await self._cluster.ask_controller(CreatePart(name, partition), deadline)
            if state is not Ack.UNSET:
                await self._set_state(name, partition, state, replicas, deadline)
        return replace(await self._describe(name, deadline), created=made.created)

    async def create_partition(self, topic: str, partition: str) -> bool:
        """Make a partition, in state -2: it takes nothing until its state is set. Return whether it was not there."""
        check_name(partition, "partition")
        return (await self._cluster.ask_controller(CreatePart(topic, partition), self._deadline())).created

    async def set_partition_state(
        self, topic: str, partition: str, *, ack: Ack | int, replicas: int | None = None
    ) -> str:
        """Choose how a partition is replicated: "changed", or "HadRaft" or "HadFetch" if it was so already."""
        return await self._set_state(topic, partition, check_ack(ack), replicas, self._deadline())

    async def alter_topic(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Change settings of a topic; those not named stay."""
        await self._cluster.ask_controller(AlterTopic(topic, dict(settings)), self._deadline())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; from now on nobody can use it, its messages go in the background."""
        await self._cluster.ask_controller(DeleteTopic(topic), self._deadline())

    async def list_topics(self) -> list[str]:
        """Return the names, sorted."""
        return list((await self._cluster.ask_controller(ListTopics(), self._deadline())).topics)

    async def describe_topic(self, topic: str) -> TopicInfo:
        """Return a topic with its settings and partitions."""
        return await self._describe(topic, self._deadline())

    # --- The cluster ---

    async def status(self) -> dict[str, Any]:
        """Return how the cluster is: zkservers, brokers, partitions and groups."""
        status: dict[str, Any] = _plain(await self._cluster.ask_controller(Status(), self._deadline()))
        return status

    async def groups(self, topic: str = "") -> list[dict[str, Any]]:
        """Return where each group stands in each partition of a topic, or of all: cursor, end and lag."""
        found = await self._cluster.ask_controller(ListGroups(topic), self._deadline())
        return [_plain(each) for each in found.groups]

    async def reset_group(
        self, topic: str, group: str, to: int | str | datetime, *, partition: str | None = None
    ) -> list[dict[str, Any]]:
        """Set a group to `earliest`, `latest`, an offset or a time, in one partition or all; return where it stands.

        What the group had acknowledged above that place is forgotten. A time without a zone is in that of this machine.
        """
        word = to.astimezone(UTC).isoformat() if isinstance(to, datetime) else str(to)
        request = ResetGroup(topic, check_name(group, "group"), word, partition or "")
        found = await self._cluster.ask_controller(request, self._deadline())
        return [_plain(each) for each in found.groups]

    async def subscriptions(self, topic: str = "") -> list[dict[str, Any]]:
        """Return who has subscribed to a topic, or to any: name, topic, option, partition and groups."""
        found = await self._cluster.ask_controller(ListSubs(topic), self._deadline())
        return [_plain(each) for each in found.subscriptions]

    async def drain(self, broker: str) -> dict[str, int]:
        """Move everything off a broker; return when nothing needs it any more, with how many blocks `moved`."""
        deadline = self._deadline()
        backoff = Backoff(self._cluster.config, self._cluster.chance)
        while True:
            progress = await self._cluster.ask_controller(DrainBroker(broker), deadline)
            if not progress.remaining:
                return {"moved": progress.moved, "remaining": progress.remaining}
            await pause(self._cluster.clock, min(backoff.next_ms(), deadline.remaining_ms))
            if deadline.is_over:
                raise deadline.error(f"{progress.remaining} blocks still need {broker}")

    async def undrain(self, broker: str) -> None:
        """Let a broker take blocks again."""
        await self._cluster.ask_controller(UndrainBroker(broker), self._deadline())

    async def move_partition(self, topic: str, partition: str, brokers: Sequence[str]) -> None:
        """Move a partition's active block to these brokers, the leader first."""
        await self._cluster.ask_controller(MovePartition(topic, partition, tuple(brokers)), self._deadline())

    async def force_seal(self, topic: str, partition: str, *, trust: str) -> dict[str, int]:
        """End a block that has no majority at what one broker holds; return its `end` and `lost_messages_max`."""
        sealed = await self._cluster.ask_controller(ForceSeal(topic, partition, trust), self._deadline())
        return {"end": sealed.end, "lost_messages_max": sealed.lost_messages_max}

    # --- Beginning and end ---

    async def start(self) -> None:
        """Be ready; connections are made when they are needed."""

    async def close(self) -> None:
        """Close all connections."""
        await self._cluster.close()

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Inside ---

    def _deadline(self) -> Deadline:
        return Deadline(self._cluster.clock, self._timeout)

    async def _set_state(self, topic: str, partition: str, ack: Ack, replicas: int | None, deadline: Deadline) -> str:
        request = SetPartitionState(topic, partition, option=int(ack), dupnum=replicas)
        return (await self._cluster.ask_controller(request, deadline)).result

    async def _describe(self, topic: str, deadline: Deadline) -> TopicInfo:
        return _topic_info(await self._cluster.ask_controller(DescribeTopic(topic), deadline))


def partition_names(partitions: int | Sequence[str]) -> list[str]:
    """Return the names: those given, or "0".."n-1"."""
    if isinstance(partitions, int):
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions {partitions} must be from 0 to {PARTITIONS_MAX}")
        return [str(number) for number in range(partitions)]
    if isinstance(partitions, str):
        raise InvalidRequest(f"partitions {partitions!r} must be a number or a list of names")
    names = [check_name(name, "partition") for name in partitions]
    if len(set(names)) < len(names):
        raise InvalidRequest(f"partitions {names}: a name twice")
    return names


def _topic_info(found: TopicDescription) -> TopicInfo:
    return TopicInfo(found.topic, found.id, found.settings, [_partition_info(each) for each in found.partitions])


def _partition_info(found: PartitionStatus) -> PartitionInfo:
    return PartitionInfo(
        topic=found.topic,
        partition=found.partition,
        ack=_ack(found),
        replicas=found.replicas,
        online=found.online,
        leader=found.leader,
        epoch=found.epoch,
        blocks=found.blocks,
        start=found.start,
        end=found.end,
        lost_messages=found.lost_messages,
    )


def _ack(found: PartitionStatus) -> Ack:
    try:
        return Ack(found.ack)
    except ValueError:
        raise RemoteProtocolError(f"{found.topic}/{found.partition} has ack {found.ack}, which is none") from None


def _plain(value: Any) -> Any:
    """Return structs as dictionaries, every field of them, and tuples as lists."""
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
