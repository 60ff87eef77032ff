"""What lies on the disks in the end: every replica of every block, read from its file and compared byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clymq.errors import CorruptBatch
from clymq.metadata.catalog import Catalog
from clymq.metadata.store import MetadataStore
from clymq.record import Batch, Kind
from clymq.simulation.chaos.events import Journal
from clymq.testing.cluster import Cluster
from clymq.testing.waiting import WaitedTooLong, until_asked

SETTLE_SECONDS_MAX: Final = 90.0
BEHIND_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Copy:
    """One replica of one block."""

    topic: str
    partition: str
    block: int
    broker: str
    path: Path | None
    """None: its folder is not there."""

    def content(self) -> bytes:
        """Return its bytes; none if it has no file."""
        with suppress(FileNotFoundError):
            if self.path is not None:
                return self.path.read_bytes()
        return b""


class Replicas:
    """The replicas of some partitions, as the tree names them."""

    @classmethod
    async def all(cls, cluster: Cluster, store: MetadataStore) -> Replicas:
        """Return those of every partition, dead letters and what was made on the way among them."""
        catalog = Catalog(store)
        await catalog.sync()
        places = [(topic, name) for topic in await catalog.topics() for name in await catalog.partitions(topic)]
        return cls(cluster, store, places)

    def __init__(self, cluster: Cluster, store: MetadataStore, places: Sequence[tuple[str, str]]) -> None:
        self._cluster = cluster
        self._catalog = Catalog(store)
        self._places = places

    async def settle(self, *, seconds_max: float = SETTLE_SECONDS_MAX) -> list[str]:
        """Wait until all replicas of all blocks are equal; return what is not when the time is over."""
        differing: list[str] = []

        async def equal() -> bool:
            differing[:] = _differences(await self._copies())
            if differing:
                await asyncio.sleep(0.5)
            return not differing

        with suppress(WaitedTooLong):
            await until_asked(equal, "all replicas are equal", seconds_max=seconds_max)
        return differing

    async def can_lose_one(self) -> bool:
        """Whether no replica misses anything but what is being written, and each block has a majority without it.

        A topic that is made while brokers are down has fewer replicas: two of them cannot do without one.
        """
        blocks: dict[tuple[str, str, int], list[bytes]] = {}
        for copy in await self._copies():
            blocks.setdefault((copy.topic, copy.partition, copy.block), []).append(copy.content())
        return all(map(can_do_without_one, blocks.values()))

    async def record(self, journals: Path) -> None:
        """Write down what each replica holds; of those that are equal the first says it for all."""
        known: set[bytes] = set()
        for copy in await self._copies():
            with Journal(journals / "replicas.jsonl", copy.broker) as journal:
                _record(copy, journal, known)

    async def _copies(self) -> list[Copy]:
        found: list[Copy] = []
        await self._catalog.sync()
        for topic, partition in self._places:
            chain = self._catalog.chain(topic, partition)
            uid = (await chain.partition()).value.uid
            active = await chain.active()
            blocks = {active.block.value.block: active.replicas}
            for sealed in await chain.sealed():
                blocks[sealed.block] = await chain.sealed_replicas(sealed.block)
            found += [
                Copy(topic, partition, block, replica.broker, self._path(replica.broker, uid, block))
                for block, replicas in sorted(blocks.items())
                for replica in replicas
            ]
        return found

    def _path(self, broker: str, uid: str, block: int) -> Path | None:
        folders = self._cluster.data(broker).glob(f"*/*~{uid}/Block_{block}/batches")
        return next(folders, None)


def can_do_without_one(contents: Sequence[bytes]) -> bool:
    """Whether a majority is left without one, and all of them are alike.

    The shortest may lack a little: they are read one after the other, and may grow.
    """
    if len(contents) - 1 <= len(contents) // 2:
        return False
    shortest, longest = min(contents, key=len), max(contents, key=len)
    return len(longest) - len(shortest) <= BEHIND_BYTES_MAX and all(each.startswith(shortest) for each in contents)


def _differences(copies: Sequence[Copy]) -> list[str]:
    contents: dict[tuple[str, str, int], dict[bytes, list[str]]] = {}
    for copy in copies:
        digest = hashlib.sha256(copy.content()).digest()
        contents.setdefault((copy.topic, copy.partition, copy.block), {}).setdefault(digest, []).append(copy.broker)
    return [f"{topic}/{partition} block {block}: {sorted(kinds.values())}"
            for (topic, partition, block), kinds in contents.items() if len(kinds) > 1]  # fmt: skip


def _record(copy: Copy, journal: Journal, known: set[bytes]) -> None:
    content = copy.content()
    digest = hashlib.sha256(content)
    place = {"topic": copy.topic, "partition": copy.partition, "block": copy.block}
    journal.write("bytes", **place, bytes=len(content), sha256=digest.hexdigest())
    if digest.digest() in known:
        return
    known.add(digest.digest())
    try:
        for offset, values in _batches(content):
            journal.write("replica", **place, offset=offset, values=values)
    except CorruptBatch as error:
        journal.write("note", text=f"{copy.broker}: {copy.topic}/{copy.partition} block {copy.block}: {error}")


def _batches(content: bytes) -> Iterator[tuple[int, list[str]]]:
    position = 0
    while position < len(content):
        batch = Batch.parse(content, position)
        batch.check_crc()
        if batch.kind == Kind.DATA:
            yield batch.base_offset, [bytes(value).decode(errors="replace") for value in batch.values()]
        position += batch.length
