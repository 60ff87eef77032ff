"""Which partitions a query divides its rows among: the same for every attempt of a micro-batch.

A key goes to a partition by the number of partitions. If one is added between an attempt and its repetition, the
repetition would send rows elsewhere, where nobody knows that they are stored already. So the partitions that count are
written down beside the checkpoint BEFORE the first micro-batch that uses them, and change from one micro-batch to the
next only: when micro-batch n is done, what is found then holds from n + 1 on. Whoever repeats n, in whatever process
and after whatever crash, finds what the first attempt went by.

    {"routes": [{"from": 0, "topics": {"calls": {"id": "9f0c...", "partitions": ["0", "1"]}}}, {"from": 12, ...}]}

A topic that was deleted and made anew holds nothing of earlier attempts, and is written down anew.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from clymq.client.cluster import Cluster
from clymq.client.offsets import find_topic
from clymq.client.waiting import Deadline
from clymq.errors import ClymqError, InvalidRequest, UnknownPartition
from clymq.spark.link import link_to

log = logging.getLogger("clymq.spark")

FILE: Final = "clymq-partitions.json"
# Only the last micro-batch is ever repeated; a few more do no harm.
ROUTES_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class Divided:
    """The partitions of one life of a topic."""

    id: str
    partitions: tuple[str, ...]


Topics = Mapping[str, Divided]


@dataclass(frozen=True, slots=True)
class Route:
    """What holds from a micro-batch on."""

    start: int
    topics: Topics


@dataclass(frozen=True, slots=True)
class Routes:
    """What holds when, in order."""

    kept: tuple[Route, ...] = ()

    def at(self, batch: int) -> Topics:
        """Return the partitions that a micro-batch goes by; a topic that is not there has not been used before."""
        found: Topics = {}
        for route in self.kept:
            if route.start <= batch:
                found = route.topics
        return found

    def known(self) -> Topics:
        """Return what was written down last."""
        return self.kept[-1].topics if self.kept else {}

    def begun(self, live: Topics) -> Routes:
        """Add topics that are new, or were made anew: for them it holds from the beginning."""
        fresh = {topic: each for topic, each in live.items() if self._is_new(topic, each)}
        if not fresh:
            return self
        kept = self.kept or (Route(0, {}),)
        return Routes(tuple(Route(route.start, {**route.topics, **fresh}) for route in kept))

    def after(self, batch: int, live: Topics) -> Routes:
        """Take over what there is now, for the micro-batches behind this one."""
        now = {**self.at(batch + 1), **live}
        if now == self.at(batch + 1):
            return self
        kept = tuple(route for route in self.kept if route.start <= batch)
        return Routes((*kept, Route(batch + 1, now))[-ROUTES_KEPT:])

    def _is_new(self, topic: str, live: Divided) -> bool:
        known = self.known().get(topic)
        return known is None or known.id != live.id


def place_of(checkpoint: str) -> Path | None:
    """Return where the routes of a query are written down; None: its checkpoint is not on a file system of here."""
    place = urlparse(checkpoint)
    return Path(place.path) / FILE if checkpoint and place.scheme in {"", "file"} else None


def load(place: Path) -> Routes:
    """Read what was written down."""
    try:
        text = place.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Routes()
    try:
        return Routes(
            tuple(
                Route(
                    int(each["from"]),
                    {name: Divided(of["id"], tuple(of["partitions"])) for name, of in each["topics"].items()},
                )
                for each in json.loads(text)["routes"]
            )
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidRequest(f"{place} does not say which partitions a query writes to: {error!r}") from None


def save(place: Path, routes: Routes) -> None:
    """Write it down; all of it or nothing, and it stays."""
    document = {
        "routes": [
            {
                "from": route.start,
                "topics": {name: {"id": of.id, "partitions": list(of.partitions)} for name, of in route.topics.items()},
            }
            for route in routes.kept
        ]
    }
    place.parent.mkdir(parents=True, exist_ok=True)
    half = place.with_name(f".{place.name}.{os.getpid()}")
    with half.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    half.replace(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def look(bootstrap: str, topics: Iterable[str], timeout: float) -> Topics:
    """Ask the cluster which partitions topics have."""
    names = sorted(set(topics))

    async def find(cluster: Cluster, deadline: Deadline) -> Topics:
        return {topic: await _divided(cluster, topic, deadline) for topic in names}

    return link_to(bootstrap).run(find, timeout) if names else {}


async def _divided(cluster: Cluster, topic: str, deadline: Deadline) -> Divided:
    found = await find_topic(cluster, topic, deadline)
    if not found.partitions:
        raise UnknownPartition(f"topic {topic} has no partitions", hint="create one")
    return Divided(found.id, tuple(sorted(found.partitions)))


def begin(place: Path, bootstrap: str, topic: str | None, timeout: float) -> Routes:
    """Return what the next micro-batch goes by, written down if it is new. Runs on the driver, before any task."""
    routes = load(place)
    known = set(routes.known()) | ({topic} if topic is not None else set())
    try:
        begun = routes.begun(look(bootstrap, known, timeout))
    except ClymqError as error:
        if topic is not None and topic not in routes.known():
            raise
        log.warning("the partitions of %s cannot be looked up: %s", ", ".join(sorted(known)), error)
        return routes
    if begun is not routes:
        save(place, begun)
    return begun


def finish(place: Path, batch: int, bootstrap: str, topics: Iterable[str], timeout: float) -> None:
    """Take over partitions that have come since, for the micro-batches after this one."""
    routes = load(place)
    try:
        after = routes.after(batch, look(bootstrap, topics, timeout))
    except ClymqError as error:
        # All rows are stored; new partitions can wait for the next micro-batch.
        log.warning("the partitions of topics cannot be looked up: %s", error)
        return
    if after is not routes:
        save(place, after)


class Partitions:
    """The partitions of topics, as one task knows them: those that were settled, and others asked for once."""

    def __init__(self, settled: Topics, bootstrap: str, timeout: float) -> None:
        self._bootstrap = bootstrap
        self._timeout = timeout
        self._settled: dict[str, Sequence[str]] = {topic: each.partitions for topic, each in settled.items()}
        self._live: dict[str, Sequence[str]] = {}

    def __call__(self, topic: str) -> Sequence[str]:
        """Return what keys are divided among."""
        return self._settled.get(topic) or self._found(topic)

    def has(self, topic: str, partition: str) -> bool:
        """Return whether there is such a partition, also if it is newer than what was settled."""
        return partition in self(topic) or partition in self._found(topic)

    def _found(self, topic: str) -> Sequence[str]:
        if topic not in self._live:
            self._live[topic] = look(self._bootstrap, [topic], self._timeout)[topic].partitions
        return self._live[topic]
