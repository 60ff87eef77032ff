"""A client of bare Raft groups, for tests: it asks any node, finds out who leads, and reads a group back whole.

It caches one connection to each node and looks up the address each time: a node may come back at another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, ConnectFailed
from clymq.protocol.broker import Pull
from clymq.protocol.frames import Buffer
from clymq.protocol.verbs import Reply, Request
from clymq.record import Batch, Kind
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Answer, Peer
from clymq.rpc.transport import TcpTransport
from clymq.testing.history import Message
from clymq.testing.waiting import until_asked

CONNECT_MS_MAX: Final = 500.0
ASK_MS_MAX: Final = 1000.0
LEADER_SECONDS_MAX: Final = 20.0
READ_SECONDS_MAX: Final = 60.0
_PULL_BYTES: Final = 1024 * 1024

R = TypeVar("R", bound=Reply)


class Nodes(Protocol):
    """Who there is, and where; the cluster, for instance."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each node can be asked, by name."""


class RaftClient:
    """See the module. Belongs to the event loop that it is used on; `async with`, or `close` it."""

    def __init__(self, nodes: Nodes, *, name: str = "test") -> None:
        self._nodes = nodes
        self._endpoint = Endpoint(SystemClock(), Config(), name=name, role="client")
        self._transport = TcpTransport()
        self._peers: dict[str, tuple[str, Peer]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    @property
    def names(self) -> Sequence[str]:
        """The nodes, reachable or not."""
        return tuple(self._nodes.addresses)

    async def peer(self, node: str) -> Peer:
        """Return the connection to a node, made if there is none; many may wait for the same one."""
        async with self._connecting.setdefault(node, asyncio.Lock()):
            address = self._nodes.addresses[node]
            if not address:
                raise ConnectFailed(f"{node} was never started")
            before, peer = self._peers.get(node, ("", None))
            if peer is not None and before == address and peer.is_open:
                return peer
            if peer is not None:
                peer.close()
            peer = await connect(self._transport, address, self._endpoint, timeout_ms=CONNECT_MS_MAX)
            self._peers[node] = address, peer
            return peer

    async def ask(
        self, node: str, request: Request[R], payload: Sequence[Buffer] = (), *, timeout_ms: float = ASK_MS_MAX
    ) -> Answer[R]:
        """Ask one node."""
        peer = await self.peer(node)
        return await peer.ask(request, payload, timeout_ms=timeout_ms)

    async def leader(self, group: str = "0", *, seconds_max: float = LEADER_SECONDS_MAX) -> str:
        """Return the node that leads a group and has taken up its work, as soon as there is one."""
        found: list[str] = []

        async def look() -> bool:
            answers = await asyncio.gather(*(self.leads(node, group) for node in self.names))
            found[:] = [node for node, leads in zip(self.names, answers, strict=True) if leads]
            return len(found) == 1

        await until_asked(look, f"group {group} has a leader", seconds_max=seconds_max)
        return found[0]

    async def leads(self, node: str, group: str = "0") -> bool:
        """Whether a node leads a group, by its own account; one that cannot be reached does not."""
        with suppress(ClymqError):
            await self.ask(node, _pull(group, 0, bytes_max=1), timeout_ms=CONNECT_MS_MAX)
            return True
        return False

    async def read(self, group: str = "0") -> list[Message]:
        """Read everything in a group that is committed, from whoever leads it; again, if that changes meanwhile."""
        messages: list[Message] = []

        async def look() -> bool:
            try:
                messages[:] = await self.read_from(await self.leader(group), group)
            except ClymqError as error:
                if not error.retriable:
                    raise
                return False
            return True

        await until_asked(look, f"group {group} is read", seconds_max=READ_SECONDS_MAX)
        return messages

    async def read_from(self, node: str, group: str = "0") -> list[Message]:
        """Read everything in a group that is committed from one node, which must lead it."""
        messages: list[Message] = []
        while True:
            offset = len(messages)
            answer = await self.ask(node, _pull(group, offset), timeout_ms=10 * ASK_MS_MAX)
            messages += [each for each in messages_in(answer.payload) if (each.offset or 0) >= offset]
            if len(messages) == offset:
                assert offset == answer.reply.high_watermark, f"{node} ends at {answer.reply.high_watermark}"
                return messages

    async def close(self) -> None:
        """Close all connections."""
        peers, self._peers = self._peers, {}
        for _, peer in peers.values():
            gone = asyncio.Event()
            peer.on_closed(lambda _, gone=gone: gone.set())  # type: ignore[misc]
            if not peer.is_closed:
                peer.close()
                await gone.wait()

    async def __aenter__(self) -> RaftClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def messages_in(data: Buffer) -> list[Message]:
    """Return the messages in whole batches one after the other: an answer's payload, or a block's file."""
    messages: list[Message] = []
    position = 0
    while position < len(data):
        batch = Batch.parse(data, position)
        batch.check_crc()
        if batch.kind == Kind.DATA:
            messages += [Message(batch.base_offset + at, value) for at, value in enumerate(batch.values())]
        position += batch.length
    return messages


def _pull(group: str, offset: int, *, bytes_max: int = _PULL_BYTES) -> Pull:
    return Pull(topic=group, partition="0", uid=group, offset=offset, bytes_max=bytes_max)
