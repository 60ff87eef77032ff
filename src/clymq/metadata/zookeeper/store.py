"""The methods of `MetadataStore`, in ZooKeeper's words. All paths lie below `root`, which is made if it is missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import RolledBackError, RuntimeInconsistency
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.states import ZnodeStat

from clymq.clock import Clock
from clymq.config import Config
from clymq.errors import ClosedError, NodeExists, NodeMissing
from clymq.metadata.paths import ROOT, check_path, name_of, parent_of
from clymq.metadata.store import Check, Create, Delete, Node, Operation, Put, Session, Stat, check_operations
from clymq.metadata.watch import Watch
from clymq.metadata.zookeeper.connection import Connection
from clymq.metadata.zookeeper.lanes import FOLDER, LANES_MAX, Lane
from clymq.metadata.zookeeper.watches import ArmedPath

T = TypeVar("T")


class ZookeeperStore:
    """A `MetadataStore` on the servers `hosts` ("host:port,host:port")."""

    def __init__(self, hosts: str, clock: Clock, config: Config, *, root: str = "/ClyMQ") -> None:
        self._hosts = hosts
        self._clock = clock
        self._root = "" if check_path(root) == ROOT else root
        self._config = config
        self._connection: Connection | None = None
        self._armed: dict[str, ArmedPath] = {}
        self._lanes: asyncio.Queue[Lane] = asyncio.Queue()

    @property
    def session(self) -> Session:
        """The session that `open` began last."""
        return self._open_connection().session

    async def open(self) -> None:
        """Connect, begin a session unless there is one, and make the root if it is missing."""
        if self._connection is not None:
            if not self._connection.lost:
                return
            await self.close()
        connection = Connection(self._hosts, self._clock, self._config)
        self._connection = connection
        try:
            await connection.open()
            await self._make_root()
        except BaseException:
            await self.close()
            raise
        self._armed = {}
        self._lanes = asyncio.Queue()
        for number in range(LANES_MAX):
            self._lanes.put_nowait(Lane(self, self._clock, number))

    async def close(self) -> None:
        """End the session and its ephemeral nodes."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _make_root(self) -> None:
        path = ""
        for name in f"{self._root}{FOLDER}"[1:].split("/"):
            path = f"{path}/{name}"
            with contextlib.suppress(NodeExists):
                await self._ask(path, lambda client, path=path: client.create_async(path))  # type: ignore[misc]

    # Reads.

    async def get(self, path: str) -> Node:
        """Read a node, or raise `NodeMissing`."""
        full_path = self._full(path)
        value, stat = await self._ask(path, lambda client: client.get_async(full_path))
        return Node(value, _stat(stat))

    async def exists(self, path: str) -> Stat | None:
        """Return what is known of a node, or None where there is none."""
        full_path = self._full(path)
        stat = await self._ask(path, lambda client: client.exists_async(full_path))
        return None if stat is None else _stat(stat)

    async def children(self, path: str) -> list[str]:
        """Return the names below a node, sorted, or raise `NodeMissing`."""
        full_path = self._full(path)
        names = await self._ask(path, lambda client: client.get_children_async(full_path))
        return sorted(name for name in names if path != ROOT or name != name_of(FOLDER))

    async def sync(self, path: str = ROOT) -> None:
        """Make reads from now on see all that was answered to anybody until now."""
        full_path = self._full(path)
        await self._ask(path, lambda client: client.sync_async(full_path), confirms=True)

    async def watch(self, path: str) -> Watch:
        """Begin to watch a node."""
        full_path = self._full(path)
        armed = self._armed.get(path)
        if armed is None:
            armed = self._armed[path] = ArmedPath(self._open_connection(), path, full_path)
        watch = Watch(path, armed.watches.discard)
        # Among them BEFORE the path is armed: what fires meanwhile must find somebody to tell.
        armed.watches.add(watch)
        try:
            await armed.arm()
        except BaseException:
            armed.watches.discard(watch)
            raise
        return watch

    # Writes.

    async def create(self, path: str, value: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node; an ephemeral one goes with the session."""
        check_operations([Create(path, value, ephemeral)])
        full_path = self._full(path)
        try:
            await self._ask(path, lambda client: client.create_async(full_path, value, ephemeral=ephemeral), True)
        except NodeMissing as error:
            raise _nothing_above(path) from error

    async def put(self, path: str, value: bytes, version: int) -> int:
        """Replace a value if the node has this version; return the new one."""
        check_operations([Put(path, value, version)])
        full_path = self._full(path)
        stat = await self._ask(path, lambda client: client.set_async(full_path, value, version), confirms=True)
        return stat.version

    async def delete(self, path: str, version: int) -> None:
        """Delete a node without children if it has this version."""
        check_operations([Delete(path, version)])
        full_path = self._full(path)
        await self._ask(path, lambda client: client.delete_async(full_path, version), confirms=True)

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Apply all operations, in order, or none."""
        check_operations(operations)
        if operations:
            await self._transact(operations)

    async def commit(self, operations: Sequence[Operation], *, timeout_ms: float | None = None) -> None:
        """Do as `multi`, but go on through lost connections until the outcome is known."""
        check_operations(operations)
        timeout_ms = timeout_ms or 2 * self.session.timeout_ms
        lanes = self._lanes
        lane = await lanes.get()
        try:
            await lane.commit(lambda mark: self._transact([*operations, mark]), timeout_ms)
        finally:
            lanes.put_nowait(lane)

    async def _transact(self, operations: Sequence[Operation]) -> None:
        steps = [(self._full(operation.path), operation) for operation in operations]
        connection = self._open_connection()
        results = await connection.ask(operations[0].path, lambda client: _sent(client, steps), confirms=True)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                error = connection.translated(result, operation.path)
                missing_above = isinstance(error, NodeMissing) and isinstance(operation, Create)
                raise (_nothing_above(operation.path) if missing_above else error) from result

    def _full(self, path: str) -> str:
        check_path(path)
        return (self._root or ROOT) if path == ROOT else f"{self._root}{path}"

    async def _ask(self, path: str, send: Callable[[KazooClient], AsyncResult[T]], confirms: bool = False) -> T:
        return await self._open_connection().ask(path, send, confirms=confirms)

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise ClosedError("the store is not open")
        return self._connection


def _sent(client: KazooClient, steps: Sequence[tuple[str, Operation]]) -> AsyncResult[list[object]]:
    transaction = client.transaction()
    for full_path, operation in steps:
        match operation:
            case Create():
                transaction.create(full_path, operation.value, ephemeral=operation.ephemeral)
            case Put():
                transaction.set_data(full_path, operation.value, operation.version)
            case Delete():
                transaction.delete(full_path, operation.version)
            case Check():
                transaction.check(full_path, operation.version)
    return transaction.commit_async()


def _nothing_above(path: str) -> NodeMissing:
    return NodeMissing(f"there is no node {parent_of(path)} to create {path} under")


def _stat(stat: ZnodeStat) -> Stat:
    owner = f"{stat.ephemeralOwner & (2**64 - 1):016x}" if stat.ephemeralOwner else None
    return Stat(stat.version, owner, stat.czxid, stat.mzxid)
