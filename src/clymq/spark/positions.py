"""Asking the cluster where topics begin and end, and turning what the options say into positions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from clymq.client.cluster import Cluster
from clymq.client.offsets import TopicFound, end_offset, find_topic, list_topics, offset_of_time, subscribe
from clymq.client.waiting import Deadline
from clymq.errors import ConfigError, InvalidRequest, UnknownPartition
from clymq.spark.offsets import Offsets, TopicOffsets
from clymq.spark.options import EARLIEST, LATEST, Bound, ByPartition, SourceOptions, Subscription
from clymq.spark.reading import CONSUMER

Topics = Mapping[str, TopicFound]
Find = Callable[[str, str, int], Coroutine[Any, Any, int]]
"""(topic, partition, first offset) -> offset."""


async def find_topics(cluster: Cluster, subscription: Subscription, deadline: Deadline) -> Topics:
    """Return the topics that are meant, with those of their partitions that are."""
    if subscription.assigned:
        found = await _described(cluster, [topic for topic, _ in subscription.assigned], deadline)
        return {topic: _only(topic, found[topic], partitions) for topic, partitions in subscription.assigned}
    names = subscription.topics
    if subscription.pattern:
        pattern = re.compile(subscription.pattern)
        names = tuple(name for name in await list_topics(cluster, deadline) if pattern.fullmatch(name))
    return await _described(cluster, names, deadline)


async def subscribe_to(cluster: Cluster, topics: Topics, group: str | None, deadline: Deadline) -> None:
    """Let all tasks read: once, and not once for each of them."""
    await asyncio.gather(*(subscribe(cluster, topic, CONSUMER, group or "default", deadline) for topic in topics))


def first_offsets(topics: Topics) -> Offsets:
    """Return where the topics begin."""
    return {
        name: TopicOffsets(each.id, {partition: found.first for partition, found in each.partitions.items()})
        for name, each in topics.items()
    }


async def end_offsets(cluster: Cluster, topics: Topics, deadline: Deadline) -> Offsets:
    """Return where the topics end now."""

    async def find(topic: str, partition: str, _first: int) -> int:
        return await end_offset(cluster, topic, partition, deadline)

    return await _each(topics, find)


async def resolve(
    cluster: Cluster, topics: Topics, bound: Bound, options: SourceOptions, deadline: Deadline
) -> Offsets:
    """Return the positions that a bound means: the start of a query, or its end."""
    is_start = bound is options.start
    if bound.kind == "earliest":
        return first_offsets(topics)
    if bound.kind == "latest":
        return await end_offsets(cluster, topics, deadline)
    numbers = bound.numbers or {}
    if bound.kind in {"offsets", "times"}:
        _check_complete(bound.option, numbers, topics)

    async def by_number(topic: str, partition: str, first: int) -> int:
        number = numbers[topic][partition]
        if number == EARLIEST:
            return first
        return await end_offset(cluster, topic, partition, deadline) if number == LATEST else number

    async def by_time(topic: str, partition: str, first: int) -> int:
        time_ms = bound.time_ms if bound.kind == "time" else numbers[topic][partition]
        found = await offset_of_time(
            cluster, topic, partition, time_ms * 1000, consumer=CONSUMER, first=first, deadline=deadline
        )
        if found is not None:
            return found
        if is_start and options.start_after_last == "error":
            raise InvalidRequest(
                f"{topic}/{partition} has no message at or after {time_ms} ms, which {bound.option} asks for",
                hint="startingOffsetsByTimestampStrategy=latest begins at the end then",
            )
        return await end_offset(cluster, topic, partition, deadline)

    return await _each(topics, by_number if bound.kind == "offsets" else by_time)


async def _described(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> dict[str, TopicFound]:
    found = await asyncio.gather(*(find_topic(cluster, name, deadline) for name in names))
    return dict(zip(names, found, strict=True))


def _only(topic: str, found: TopicFound, partitions: tuple[str, ...]) -> TopicFound:
    for partition in partitions:
        if partition not in found.partitions:
            raise UnknownPartition(f"topic {topic} has no partition {partition}, which assign names")
    return TopicFound(found.id, {partition: found.partitions[partition] for partition in partitions})


async def _each(topics: Topics, find: Find) -> Offsets:
    places = [
        (name, partition, found.first)
        for name, topic in topics.items()
        for partition, found in topic.partitions.items()
    ]
    found = await asyncio.gather(*(find(*place) for place in places))
    offsets: dict[str, dict[str, int]] = {name: {} for name in topics}
    for (topic, partition, _), offset in zip(places, found, strict=True):
        offsets[topic][partition] = offset
    return {name: TopicOffsets(topics[name].id, each) for name, each in offsets.items()}


def _check_complete(option: str, numbers: ByPartition, topics: Topics) -> None:
    """All partitions must be named and no others, as in Spark's Kafka source: what is left out would be a guess."""
    named = {(topic, partition) for topic, each in numbers.items() for partition in each}
    there = {(name, partition) for name, topic in topics.items() for partition in topic.partitions}
    for what, places in (("does not name", there - named), ("names what is not subscribed:", named - there)):
        if places:
            listed = ", ".join(f"{topic}/{partition}" for topic, partition in sorted(places))
            raise ConfigError(option, numbers, f"{what} {listed}")
