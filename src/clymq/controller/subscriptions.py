"""Who reads what: subscriptions are recorded under their topic, in groups, and survive restarts.

A subscription is named by how it reads and what: `PTP_PULL` for a whole topic, `PSB_PUSH/xian` for one partition. It
stays when its last consumer has gone, because its version counts the changes: the sum of them over a topic is the
generation of every assignment of that topic, and only grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from clymq.controller.chains import Chains
from clymq.errors import (
    ClymqError,
    InvalidRequest,
    NotController,
    NotSubscribed,
    UnknownPartition,
    UnknownTopic,
    VersionConflict,
)
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Subscription, changed
from clymq.metadata.reading import settled
from clymq.protocol.controller import ListSubs, Sub, Subscribed, SubscriptionList, UnSub
from clymq.protocol.controller import Subscription as Listed
from clymq.protocol.verbs import Done
from clymq.types import Mode, check_name

POINT_TO_POINT = (Mode.PTP_PUSH, Mode.PTP_PULL)


class Group(NamedTuple):
    """The consumers of a point-to-point group, and of which generation this is."""

    consumers: tuple[str, ...]
    generation: int


class Place(NamedTuple):
    """One node: a topic, how it is read, and the partition, if only one is."""

    topic: str
    option: int
    partition: str


class Change(NamedTuple):
    """A consumer that joins a group, or leaves it."""

    group: str
    consumer: str
    joins: bool
    done: asyncio.Future[bool]
    """Whether it changed anything."""

    def apply(self, groups: dict[str, dict[str, bool]]) -> bool:
        """Make the change; return whether there was anything to change."""
        consumers = groups.setdefault(self.group, {})
        if (self.consumer in consumers) is self.joins:
            return False
        if self.joins:
            consumers[self.consumer] = True
        else:
            del consumers[self.consumer]
        return True


class Subscriptions:
    """The verbs of subscriptions."""

    def __init__(self, catalog: Catalog, chains: Chains, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._catalog = catalog
        self._chains = chains
        self._changes = Changes(catalog, spawn)

    async def subscribe(self, request: Sub) -> Subscribed:
        """Record a consumer; a second call changes nothing."""
        check_name(request.consumer, "consumer")
        check_name(request.group, "group")
        name = subscription_name(request.option, request.partition)
        await self._chains.topic(request.topic)
        if request.partition and request.partition not in await self._catalog.partitions(request.topic):
            raise UnknownPartition(f"there is no partition {request.partition} of topic {request.topic}")
        return Subscribed(name, created=await self._changes.make(request, joins=True))

    async def unsubscribe(self, request: UnSub) -> Done:
        """Take a consumer out; a second call changes nothing."""
        await self._changes.make(request, joins=False)
        return Done()

    async def list(self, request: ListSubs) -> SubscriptionList:
        """Return what is recorded, of one topic or of all."""
        if request.topic:
            await self._chains.topic(request.topic)
        listed = []
        for topic in [request.topic] if request.topic else await self._catalog.topics():
            try:
                found = await self._catalog.subscriptions(topic)
            except UnknownTopic:
                continue
            listed += [
                Listed(each.value.name, topic, each.value.option, each.value.partition or "", each.value.groups)
                for each in found.values()
                if each.value.groups
            ]
        return SubscriptionList(tuple(listed))

    async def check(self, topic: str, option: int, group: str, consumer: str, partition: str) -> None:
        """Refuse who has not subscribed: to the partition, or to all of the topic.

        Who shares messages may also read them: what it has leased may lie in a block that the leader does not hold.
        """
        options = [option, *POINT_TO_POINT] if option == Mode.PSB_PULL else [option]
        names = {subscription_name(each, of) for each in options for of in ("", partition)}
        found = await self._catalog.subscriptions(topic)
        if not any(consumer in found[name].value.groups.get(group, {}) for name in names if name in found):
            raise NotSubscribed(
                f"consumer {consumer} of group {group} has no subscription to {topic} as {' or '.join(sorted(names))}"
            )

    async def group(self, topic: str, group: str) -> Group:
        """Return the consumers that share a topic through a group."""
        found = (await self._catalog.subscriptions(topic)).values()
        shared = [each for each in found if each.value.option in POINT_TO_POINT]
        consumers = {name for each in shared for name, alive in each.value.groups.get(group, {}).items() if alive}
        return Group(tuple(sorted(consumers)), sum(each.version + 1 for each in shared))


class Changes:
    """Writes consumers in and out: all that come while others are being written go together with the next ones.

    A node that each of hundreds reads and replaces for itself is hardly ever theirs to replace: most come too late.
    """

    def __init__(self, catalog: Catalog, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._catalog = catalog
        self._spawn = spawn
        self._waiting: dict[Place, list[Change]] = {}

    async def make(self, request: Sub | UnSub, *, joins: bool) -> bool:
        """Have a consumer written in or out; return whether that changed anything."""
        place = Place(request.topic, request.option, request.partition)
        change = Change(request.group, request.consumer, joins, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(place)
        if waiting is None:
            waiting = self._waiting[place] = []
            self._spawn(self._write(place, waiting))
        waiting.append(change)
        return await change.done

    async def _write(self, place: Place, waiting: list[Change]) -> None:
        """Write all that has gathered, again and again until there is nothing left."""
        some: list[Change] = []
        try:
            while waiting:
                some = waiting[:]
                waiting.clear()
                await self._write_some(place, some)
        finally:
            del self._waiting[place]
            _answer([*some, *waiting], NotController("this zkserver is no longer the active one"))

    async def _write_some(self, place: Place, some: Sequence[Change]) -> None:
        try:
            outcomes = await settled(lambda: self._attempt(place, some))
        except ClymqError as error:
            _answer(some, error)
            return
        for change, outcome in zip(some, outcomes, strict=True):
            if not change.done.done():
                change.done.set_result(outcome)

    async def _attempt(self, place: Place, some: Sequence[Change]) -> list[bool]:
        """Replace the node by what it is after some changes; return which of them changed anything."""
        name = subscription_name(place.option, place.partition)
        found = (await self._catalog.subscriptions(place.topic)).get(name)
        before = {} if found is None else found.value.groups
        groups = {group: dict(consumers) for group, consumers in before.items()}
        outcomes = [change.apply(groups) for change in some]
        groups = {group: consumers for group, consumers in groups.items() if consumers}
        if groups == before:
            return outcomes
        if found is not None:
            await self._catalog.put_subscription(place.topic, changed(found.value, groups=groups), found.version)
            return outcomes
        made = Subscription(name=name, option=place.option, partition=place.partition or None, groups=groups)
        if not await self._catalog.create_subscription(place.topic, made):
            raise VersionConflict(f"subscription {name} of {place.topic} was made a moment ago")
        return outcomes


def _answer(changes: Iterable[Change], error: ClymqError) -> None:
    """Tell those who still wait what went wrong."""
    for change in changes:
        if not change.done.done():
            change.done.set_exception(error)


def subscription_name(option: int, partition: str) -> str:
    """Return the name of a subscription; `/` keeps it apart from every name of a partition."""
    try:
        mode = Mode(option)
    except ValueError:
        raise InvalidRequest(f"{option} is no mode; PTP_PUSH=1 PTP_PULL=2 PSB_PUSH=3 PSB_PULL=4") from None
    return f"{mode.name}/{partition}" if partition else mode.name
