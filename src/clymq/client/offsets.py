"""Where partitions begin and end, and where a time is: for whoever plans what to read before reading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from clymq.client.cluster import Cluster
from clymq.client.read_routes import ReadRoutes
from clymq.client.waiting import Deadline
from clymq.errors import OffsetOutOfRange
from clymq.protocol.broker import CommitOffset, FetchOffset, Pull
from clymq.protocol.controller import DescribeTopic, ListTopics, Sub
from clymq.types import Ack, Mode

# No partition comes this far: asked for it, a leader says where the end is.
OFFSET_MAX: Final = 2**62


@dataclass(frozen=True, slots=True)
class PartitionFound:
    """One life of a partition, and the first offset that is still there."""

    uid: str
    first: int


@dataclass(frozen=True, slots=True)
class TopicFound:
    """One life of a topic, and its partitions by name."""

    id: str
    partitions: Mapping[str, PartitionFound]


async def list_topics(cluster: Cluster, deadline: Deadline) -> tuple[str, ...]:
    """Return the names of all topics."""
    return (await cluster.ask_controller(ListTopics(), deadline)).topics


async def find_topic(cluster: Cluster, topic: str, deadline: Deadline) -> TopicFound:
    """Return a topic as it is now; partitions that take no messages yet (state -2) are left out."""
    found = await cluster.ask_controller(DescribeTopic(topic), deadline)
    begun = [each for each in found.partitions if each.ack != Ack.UNSET]
    return TopicFound(found.id, {each.partition: PartitionFound(each.uid, each.start) for each in begun})


async def subscribe(cluster: Cluster, topic: str, consumer: str, group: str, deadline: Deadline) -> None:
    """Let a consumer read all of a topic; a second call changes nothing."""
    await cluster.ask_controller(Sub(topic, consumer, Mode.PSB_PULL, group), deadline)


async def end_offset(cluster: Cluster, topic: str, partition: str, deadline: Deadline) -> int:
    """Return one past the last message that can be read now."""
    try:
        answer = await cluster.ask_leader(
            topic,
            partition,
            lambda route: Pull(topic, partition, route.uid, offset=OFFSET_MAX, bytes_max=1),
            deadline,
        )
    except OffsetOutOfRange as error:
        return error.end
    return answer.reply.high_watermark


async def wait_past(cluster: Cluster, topic: str, partition: str, offset: int, deadline: Deadline) -> None:
    """Return when there is a message at this offset, or the time is over. Costs the leader one long poll."""
    await cluster.ask_leader(
        topic,
        partition,
        lambda route: Pull(
            topic,
            partition,
            route.uid,
            offset=offset,
            bytes_max=1,
            wait_ms_max=int(deadline.remaining_ms),
            mode=Mode.PSB_PULL,
        ),
        Deadline(cluster.clock, deadline.remaining_ms / 1000 + cluster.config.request_ms_max / 1000),
    )


async def commit_offset(
    cluster: Cluster, topic: str, partition: str, group: str, offset: int, deadline: Deadline
) -> None:
    """Store a group's position."""
    await cluster.ask_leader(
        topic, partition, lambda route: CommitOffset(topic, partition, route.uid, group, offset), deadline
    )


async def committed_offset(cluster: Cluster, topic: str, partition: str, group: str, deadline: Deadline) -> int | None:
    """Return a group's position; None: it has none."""
    answer = await cluster.ask_leader(
        topic, partition, lambda route: FetchOffset(topic, partition, route.uid, group), deadline
    )
    return answer.reply.offset


async def offset_of_time(
    cluster: Cluster, topic: str, partition: str, time_us: int, *, consumer: str, first: int, deadline: Deadline
) -> int | None:
    """Return the first offset, from `first` on, whose timestamp is not earlier; None: all are earlier."""
    routes = ReadRoutes(cluster, topic, partition, consumer=consumer, group="default")
    found = await routes.offset_at(time_us, first, deadline)
    # Asked afterwards: a message that has come meanwhile is one that was found.
    return found if found < await end_offset(cluster, topic, partition, deadline) else None
