"""How the world sees what servers do: every write of the store, and every answer of a broker that promises something.

Nothing in the product knows of it: the engine is a subclass, and brokers have their handlers wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from clymq.broker.raft_block import RaftBlock
from clymq.clock import Clock
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.node.broker import BrokerNode
from clymq.protocol.broker import Push
from clymq.protocol.hosting import CloseAccept, PrepareAccept
from clymq.protocol.verbs import Reply
from clymq.record.batch import Batch
from clymq.rpc.peer import Call
from clymq.simulation.cluster.loop import Life

WATCHED = (Push, CloseAccept, PrepareAccept)


class Served(NamedTuple):
    """What a broker had of a partition when a request for it came: its active block, and the epoch that it knew."""

    block: int = 0
    mode: int = 0
    epoch: int = 0
    counts: tuple[int, ...] = ()
    """Messages in each batch that was pushed."""


class Watcher(Protocol):
    """Who hears of it."""

    def stored(self, changes: Mapping[str, bytes | None]) -> None:
        """Nodes of the store have these values from now on; None: it is gone."""

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        """A broker answers a request, not with an error."""


class WatchedEngine(Engine):
    """An engine that tells what was written, in order, BEFORE anybody else hears of it."""

    def __init__(self, file: StoreFile, clock: Clock, watcher: Watcher) -> None:
        super().__init__(file, clock)
        self._watcher = watcher

    def _answer(self, batch: list[Any]) -> None:
        # A batch was written as one: of a path that several requests changed, the last value is what is there.
        paths = dict.fromkeys(path for request in batch for path in request.changed)
        if paths:
            rows = {path: self._file.node(path) for path in paths}
            self._watcher.stored({path: None if row is None else row.value for path, row in rows.items()})
        super()._answer(batch)


def watch_calls(node: BrokerNode, name: str, life: Life, watcher: Watcher) -> None:
    """Let the watcher hear what a broker answers."""
    handlers = node._endpoint.handlers
    for verb in WATCHED:
        handlers[verb] = _watched(handlers[verb], node, name, life, watcher)


def _watched(
    handler: Callable[[Any], None], node: BrokerNode, name: str, life: Life, watcher: Watcher
) -> Callable[[Any], None]:
    def handle(call: Call) -> None:
        served = _served(node, call)

        def hear(reply: Reply) -> None:
            if not life.muted:
                watcher.answered(name, call.request, reply, served)

        handler(_WatchedCall(call, hear))

    return handle


def _served(node: BrokerNode, call: Call) -> Served:
    counts = _counts(call) if isinstance(call.request, Push) else ()
    for partition in node.broker.hosting.partitions:
        if partition.uid == call.request.uid:
            active = partition.active
            if active is None:
                return Served(epoch=partition.epoch)
            return Served(active.number, -1 if isinstance(active, RaftBlock) else 1, partition.epoch, counts)
    return Served()


def _counts(call: Call) -> tuple[int, ...]:
    counts, position = [], 0
    while position < len(call.payload):
        batch = Batch.parse(call.payload, position)
        counts.append(batch.count)
        position += batch.length
    return tuple(counts)


class _WatchedCall:
    """A call whose answer is heard on its way out."""

    def __init__(self, call: Call, hear: Callable[[Reply], object]) -> None:
        self._call = call
        self._hear = hear

    def reply(self, reply: Reply, *arguments: Any) -> None:
        self._hear(reply)
        self._call.reply(reply, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
