"""Who reads what: subscriptions are recorded under their topic, in groups, and survive restarts.

A subscription is named by how it reads and what: `PTP_PULL` for a whole topic, `PSB_PUSH/xian` for one partition. It
stays when its last consumer has gone, because its version counts the changes: the sum of them over a topic is the
generation of every assignment of that topic, and only grows.
"""

from __future__ import annotations

from typing import NamedTuple

from clymq.controller.chains import Chains
from clymq.errors import InvalidRequest, NotSubscribed, UnknownPartition, UnknownTopic
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


class Subscriptions:
    """The verbs of subscriptions."""

    def __init__(self, catalog: Catalog, chains: Chains) -> None:
        self._catalog = catalog
        self._chains = chains

    async def subscribe(self, request: Sub) -> Subscribed:
        """Record a consumer; a second call changes nothing."""
        check_name(request.consumer, "consumer")
        check_name(request.group, "group")
        name = subscription_name(request.option, request.partition)

        async def attempt() -> Subscribed:
            await self._chains.topic(request.topic)
            if request.partition and request.partition not in await self._catalog.partitions(request.topic):
                raise UnknownPartition(f"there is no partition {request.partition} of topic {request.topic}")
            found = (await self._catalog.subscriptions(request.topic)).get(name)
            if found is None:
                made = Subscription(
                    name=name,
                    option=request.option,
                    partition=request.partition or None,
                    groups={request.group: {request.consumer: True}},
                )
                if await self._catalog.create_subscription(request.topic, made):
                    return Subscribed(name, created=True)
                found = (await self._catalog.subscriptions(request.topic))[name]
            consumers = found.value.groups.get(request.group, {})
            if request.consumer in consumers:
                return Subscribed(name, created=False)
            groups = {**found.value.groups, request.group: {**consumers, request.consumer: True}}
            await self._catalog.put_subscription(request.topic, changed(found.value, groups=groups), found.version)
            return Subscribed(name, created=True)

        return await settled(attempt)

    async def unsubscribe(self, request: UnSub) -> Done:
        """Take a consumer out; a second call changes nothing."""
        name = subscription_name(request.option, request.partition)

        async def attempt() -> Done:
            found = (await self._catalog.subscriptions(request.topic)).get(name)
            if found is None or request.consumer not in found.value.groups.get(request.group, {}):
                return Done()
            groups = {group: dict(consumers) for group, consumers in found.value.groups.items()}
            del groups[request.group][request.consumer]
            groups = {group: consumers for group, consumers in groups.items() if consumers}
            await self._catalog.put_subscription(request.topic, changed(found.value, groups=groups), found.version)
            return Done()

        return await settled(attempt)

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


def subscription_name(option: int, partition: str) -> str:
    """Return the name of a subscription; `/` keeps it apart from every name of a partition."""
    try:
        mode = Mode(option)
    except ValueError:
        raise InvalidRequest(f"{option} is no mode; PTP_PUSH=1 PTP_PULL=2 PSB_PUSH=3 PSB_PULL=4") from None
    return f"{mode.name}/{partition}" if partition else mode.name
