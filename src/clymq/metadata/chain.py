"""The chain of blocks of one partition, as it stands in the tree, and the transactions that change it.

    intent      a conditional write of `pending`, BEFORE any broker is spoken to
    move        one transaction: the sealed block, the new active one with its replicas, `pending` cleared
    retain      one transaction: sealed blocks leave, and the first offset rises
    rewrite     one transaction: a sealed block gets new copies and loses old ones
    leader      who leads the active block; only for that block and only for a higher term

Each is conditional on the partition's node as it was read, or on the active block's: who comes second gets
`VersionConflict` and reads again. Two that push the same move forward cannot both do it. Every replica has its mirror
from the beginning, made with it, so that what a transaction has to delete is known when it is put together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from clymq.errors import NodeMissing, UnknownPartition
from clymq.metadata import nodes
from clymq.metadata.nodes import (
    NO_BLOCK,
    Mirror,
    NowBlock,
    Partition,
    PartitionPaths,
    Pending,
    Replica,
    ReplicaMirror,
    SealedBlock,
    encode,
)
from clymq.metadata.reading import Versioned, read, read_children, read_each, settled
from clymq.metadata.store import ANY_VERSION, Create, Delete, MetadataStore, Operation, Put

K = TypeVar("K", int, str)
MIRRORED_BLOCKS = 2


class Active(NamedTuple):
    """The active block and its replicas, in the order of their names."""

    block: Versioned[NowBlock]
    replicas: tuple[Replica, ...]


class Chain:
    """The blocks of one partition."""

    def __init__(self, store: MetadataStore, topic: str, partition: str) -> None:
        self._store = store
        self._paths = PartitionPaths.of(topic, partition)
        self._name = f"partition {partition} of topic {topic}"

    # Reads.

    async def partition(self) -> Versioned[Partition]:
        """Read the partition itself, or raise `UnknownPartition`."""
        try:
            return await read(self._store, Partition, self._paths.partition)
        except NodeMissing as error:
            raise UnknownPartition(f"there is no {self._name}") from error

    async def active(self) -> Active:
        """Read the active block and its replicas."""
        try:
            now = await read(self._store, NowBlock, self._paths.now_block)
            return Active(now, await self._replicas(self._paths.now_block))
        except NodeMissing as error:
            raise UnknownPartition(f"there is no {self._name}") from error

    async def sealed(self) -> list[SealedBlock]:
        """Read the sealed blocks, the oldest first."""
        try:
            children = await self._store.children(self._paths.partition)
        except NodeMissing as error:
            raise UnknownPartition(f"there is no {self._name}") from error
        numbers = sorted(number for number in map(nodes.block_number, children) if number is not None)
        # Those that are gone: retention was quicker.
        found = await read_each(
            numbers, lambda number: read(self._store, SealedBlock, self._paths.sealed_block(number))
        )
        return [block.value for _, block in found]

    async def sealed_replicas(self, block: int) -> tuple[Replica, ...]:
        """Read the replicas of a sealed block, or raise `NodeMissing`."""
        return await self._replicas(self._paths.sealed_block(block))

    async def _replicas(self, block_path: str) -> tuple[Replica, ...]:
        found = await read_children(self._store, Replica, block_path)
        return in_order(each.value for each in found.values())

    # Moves.

    async def intend(self, partition: Versioned[Partition], pending: Pending) -> Versioned[Partition]:
        """Write down what is going to happen, if the partition is as it was read; also to rewrite an intent."""
        intended = msgspec.structs.replace(partition.value, pending=pending)
        return await self.put(partition, intended)

    async def put(self, partition: Versioned[Partition], value: Partition) -> Versioned[Partition]:
        """Replace the partition's value if it is as it was read."""
        await self._store.commit([Put(self._paths.partition, encode(value), partition.version)])
        return partition.written(value)

    async def move(
        self, partition: Versioned[Partition], active: Active, now: NowBlock, sealed: SealedBlock | None
    ) -> tuple[Versioned[Partition], Active]:
        """Finish the pending move, if partition and active block are as they were read; return what they are then.

        `sealed` is how the active block ended; None only for the first block, before which there is none.
        """
        pending = partition.value.pending
        assert pending is not None, "a move begins with an intent"
        assert (sealed is None) == (active.block.value.block == NO_BLOCK), "a block is sealed before the next begins"
        assert now.block == pending.block, "the move that is finished is the one that was begun"
        moved = msgspec.structs.replace(
            partition.value,
            state=pending.mode,
            dupnum=pending.dupnum,
            epoch=pending.epoch,
            next_block=pending.block + 1,
            pending=None,
        )
        replicas = tuple(
            Replica(name=f"dup_{n}", broker=place.broker, disk_id=place.disk_id, start=now.start)
            for n, place in enumerate(pending.replicas)
        )
        now_path = self._paths.now_block
        operations: list[Operation] = [Put(self._paths.partition, encode(moved), partition.version)]
        if sealed is not None:
            operations += _make_block(self._paths.sealed_block(sealed.block), sealed, active.replicas, sealed.end)
        operations += _delete_replicas(now_path, active.replicas)
        operations.append(Put(now_path, encode(now), active.block.version))
        operations += _make_replicas(now_path, replicas, now.start)
        await self._store.commit(operations)
        return partition.written(moved), Active(active.block.written(now), replicas)

    async def retain(self, partition: Versioned[Partition], blocks: Sequence[SealedBlock]) -> Versioned[Partition]:
        """Let the oldest sealed blocks go, and raise the first offset to the end of the last of them."""
        operations: list[Operation] = []
        for block in blocks:
            path = self._paths.sealed_block(block.block)
            operations += [*_delete_replicas(path, await self.sealed_replicas(block.block)), Delete(path, ANY_VERSION)]
        first = max([partition.value.first_offset, *(block.end for block in blocks)])
        raised = msgspec.structs.replace(partition.value, first_offset=first)
        await self._store.commit([Put(self._paths.partition, encode(raised), partition.version), *operations])
        return partition.written(raised)

    async def rewrite(
        self,
        partition: Versioned[Partition],
        sealed: SealedBlock,
        *,
        added: Sequence[Replica] = (),
        removed: Sequence[Replica] = (),
    ) -> Versioned[Partition]:
        """Change what is known of a sealed block and who holds it, if the partition is as it was read.

        The partition is written as it was, so that its version tells of every change of its blocks.
        """
        path = self._paths.sealed_block(sealed.block)
        await self._store.commit(
            [
                Put(self._paths.partition, encode(partition.value), partition.version),
                Put(path, encode(sealed), ANY_VERSION),
                *_delete_replicas(path, removed),
                *_make_replicas(path, added, sealed.end),
            ]
        )
        return partition.written(partition.value)

    async def mark_down(self, partition: Versioned[Partition], block: int, down: Replica) -> Versioned[Partition]:
        """Note that a replica is of no use any more, and why, if the partition is as it was read."""
        path = nodes.replica_path(await self._block_path(block), down.broker)
        await self._store.commit(
            [
                Put(self._paths.partition, encode(partition.value), partition.version),
                Put(path, encode(down), ANY_VERSION),
            ]
        )
        return partition.written(partition.value)

    async def become_leader(self, uid: str, block: int, term: int, leader: str, incarnation: int) -> bool:
        """Record who leads the active block; False if it is not the active one or the term is not higher."""

        async def attempt() -> bool:
            partition = await self.partition()
            if partition.value.uid != uid:
                raise UnknownPartition(f"{self._name} was created anew")
            now = (await self.active()).block
            if now.value.block != block or now.value.term >= term:
                return False
            led = msgspec.structs.replace(now.value, leader=leader, leader_incarnation=incarnation, term=term)
            # NowBlock is written anew by each move: its version covers the block's number as well.
            await self._store.commit([Put(self._paths.now_block, encode(led), now.version)])
            return True

        return await settled(attempt)

    # Mirrors: what brokers tell, at most about once a second. Nothing is decided by it, so nothing is retried for it.

    async def mirror(self) -> Mirror:
        """Read what brokers last told."""
        try:
            return (await read(self._store, Mirror, self._paths.mirror)).value
        except NodeMissing as error:
            raise UnknownPartition(f"there is no {self._name}") from error

    async def report_end(self, block: int, broker: str, end: int) -> None:
        """Note how far a replica has come; the end of the block is the highest that was ever told."""
        path = nodes.replica_mirror_path(await self._block_path(block), broker)
        with contextlib.suppress(NodeMissing):  # no replica any more
            await self._store.put(path, encode(ReplicaMirror(end=end)), ANY_VERSION)
        await self._update_mirror(
            lambda told: msgspec.structs.replace(told, ends=_latest(_raised(told.ends, block, end)))
        )

    async def report_lost(self, block: int, messages: int) -> None:
        """Note how many messages of a block were acknowledged and are not in it; the number never falls."""
        await self._update_mirror(lambda told: msgspec.structs.replace(told, lost=_raised(told.lost, block, messages)))

    async def report_cursor(self, group: str, cursor: int, *, exact: bool = False) -> None:
        """Note how far a group has come; it never goes back, unless it did so on purpose."""

        def noted(cursors: dict[str, int]) -> dict[str, int]:
            return {**cursors, group: cursor} if exact else _raised(cursors, group, cursor)

        await self._update_mirror(lambda told: msgspec.structs.replace(told, cursors=noted(told.cursors)))

    async def replica_end(self, block: int, broker: str) -> int:
        """Return how far a replica has come, as last told."""
        path = nodes.replica_mirror_path(await self._block_path(block), broker)
        return (await read(self._store, ReplicaMirror, path)).value.end

    async def _block_path(self, block: int) -> str:
        now = (await self.active()).block.value
        return self._paths.now_block if now.block == block else self._paths.sealed_block(block)

    async def _update_mirror(self, change: Callable[[Mirror], Mirror]) -> None:
        async def attempt() -> None:
            try:
                mirror = await read(self._store, Mirror, self._paths.mirror)
            except NodeMissing as error:
                raise UnknownPartition(f"there is no {self._name}") from error
            changed = change(mirror.value)
            if changed != mirror.value:
                await self._store.put(self._paths.mirror, encode(changed), mirror.version)

        await settled(attempt)


def in_order(replicas: Iterable[Replica]) -> tuple[Replica, ...]:
    """Return replicas in the order of their names."""
    return tuple(sorted(replicas, key=_order))


def _order(replica: Replica) -> tuple[int, str]:
    digits = replica.name.removeprefix("dup_")
    return (int(digits) if digits.isdigit() else 0, replica.broker)


def _make_block(path: str, sealed: SealedBlock, replicas: Sequence[Replica], end: int) -> list[Operation]:
    return [Create(path, encode(sealed)), *_make_replicas(path, replicas, end)]


def _make_replicas(block_path: str, replicas: Sequence[Replica], end: int) -> list[Operation]:
    return [
        operation
        for replica in replicas
        for operation in (
            Create(nodes.replica_path(block_path, replica.broker), encode(replica)),
            Create(nodes.replica_mirror_path(block_path, replica.broker), encode(ReplicaMirror(end=end))),
        )
    ]


def _delete_replicas(block_path: str, replicas: Sequence[Replica]) -> list[Operation]:
    return [
        operation
        for replica in replicas
        for operation in (
            Delete(nodes.replica_mirror_path(block_path, replica.broker), ANY_VERSION),
            Delete(nodes.replica_path(block_path, replica.broker), ANY_VERSION),
        )
    ]


def _latest(ends: dict[int, int]) -> dict[int, int]:
    """Keep the last two blocks: the end of a sealed one stands in the chain, and a mirror must not grow with it."""
    return {block: end for block, end in ends.items() if block > max(ends) - MIRRORED_BLOCKS}


def _raised(told: dict[K, int], key: K, number: int) -> dict[K, int]:
    """Return the table with one number raised; it never falls."""
    return {**told, key: max(number, told.get(key, 0))}
