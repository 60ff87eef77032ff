"""Brokers that behave as the verbs say, without a disk or a network: what the controller is tested against.

`FakeBrokers` is the controller's `Brokers`. Each `FakeBroker` holds blocks as a length and a SEAL, refuses lower
epochs, seals once and answers the same again, and hosts what `BroGetConfig` says when it asks, which it does when it
is nudged. A Raft block seals only while a majority of its replicas is up. A test may take a broker down, make it deaf,
or be called before and after each request.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clymq.errors import (
    ConnectFailed,
    InvalidRequest,
    NotHosted,
    NotLeader,
    NotPrepared,
    NotSubscribed,
    OffsetOutOfRange,
    ReplicaLost,
    RequestTimeout,
    StaleEpoch,
)
from clymq.protocol.broker import FindOffset, OffsetFound
from clymq.protocol.controller import BrokerConfig, HostedBlock
from clymq.protocol.hosting import (
    LATEST,
    BlockClosed,
    CloseAccept,
    GroupPositionSet,
    PartitionFound,
    PrepareAccept,
    PrepareSend,
    PrepareState,
    SendPrepared,
    SetGroupPosition,
)
from clymq.protocol.verbs import Done, Reply
from clymq.types import Ack

MESSAGE_BYTES = 100
MESSAGE_US = 1000
"""The message at offset n has the timestamp n * MESSAGE_US."""


@dataclass
class FakeBlock:
    """One replica: messages [start, end), and the SEAL behind them."""

    start: int
    end: int
    epoch: int = 0
    fenced: int = 0
    seal_crc: int = 0
    last_append_time: int = 0
    lame: bool = False
    controls: int = 0
    """Entries that hold no message."""

    @property
    def sealed(self) -> bool:
        return self.seal_crc != 0

    def closed(self) -> BlockClosed:
        index = self.end - self.start + self.controls + (1 if self.sealed else 0)
        return BlockClosed(
            start=self.start,
            end=self.end,
            sealed=self.sealed,
            seal_index=index if self.sealed else 0,
            seal_crc=self.seal_crc,
            bytes=(self.end - self.start) * MESSAGE_BYTES,
            last_append_time=self.last_append_time,
            last_index=index,
        )


@dataclass
class FakeBroker:
    """One broker: what it holds by (uid, block), and the epoch that it has seen of each partition."""

    name: str
    disk_id: str
    incarnation: int
    up: bool = True
    deaf: bool = False
    blocks: dict[tuple[str, int], FakeBlock] = field(default_factory=dict)
    prepared: set[tuple[str, int]] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    hosted: dict[tuple[str, int], HostedBlock] = field(default_factory=dict)
    cursors: dict[tuple[str, str, str], int] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)
    heard: list[Any] = field(default_factory=list)

    def host(self, config: BrokerConfig) -> None:
        """Take up what the controller says; what is not named is dropped."""
        self.hosted = {(each.uid, each.block): each for each in config.blocks}
        self.blocks = {key: block for key, block in self.blocks.items() if key in self.hosted}
        for key, place in self.hosted.items():
            mine = any(each.broker == self.name and each.disk_id == self.disk_id for each in place.replicas)
            if key not in self.blocks and not place.sealed and mine:
                self.blocks[key] = FakeBlock(place.start, place.start)

    def mend(self, others: Mapping[str, FakeBroker]) -> list[HostedBlock]:
        """Make sealed blocks whole from others that are; return all copies that are so: told until it is heard."""
        made = []
        for key, place in self.hosted.items():
            held = self.blocks.get(key)
            if not place.sealed:
                continue
            if held is not None and held.seal_crc == place.seal_crc:
                made += [place] if place.copy else []
                continue
            if held is None and not place.copy:
                continue
            sources = [others[each.broker] for each in place.replicas if each.broker in others]
            if any(each.up and key in each.blocks and each.blocks[key].seal_crc == place.seal_crc for each in sources):
                self.blocks[key] = FakeBlock(place.start, place.end, seal_crc=place.seal_crc)
                made += [place] if place.copy else []
        return made


Hook = Callable[[str, Any], Awaitable[None]]


class FakeBrokers:
    """All brokers of a cluster, as the controller reaches them."""

    def __init__(self) -> None:
        self.brokers: dict[str, FakeBroker] = {}
        self.addresses: dict[str, str] = {}
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.on_nudge: Callable[[str], None] = lambda _: None
        self.log: list[tuple[str, Any]] = []

    def __getitem__(self, name: str) -> FakeBroker:
        return self.brokers[name]

    def know(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)

    async def ask(self, broker: str, request: Any) -> Any:
        if self.before is not None:
            await self.before(broker, request)
        if broker not in self.addresses:
            raise ConnectFailed(f"nobody knows where broker {broker} is")
        there = self.brokers[broker]
        if not there.up:
            raise ConnectFailed(f"{broker} is down")
        if there.deaf:
            raise RequestTimeout(f"{broker} does not answer")
        self.log.append((broker, request))
        there.heard.append(request)
        reply = self._answer(there, request)
        if self.after is not None:
            await self.after(broker, request)
        return reply

    def asked(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, request) for name, request in self.log if isinstance(request, kind)]

    # What a test does to blocks.

    def append(self, uid: str, block: int, count: int, *, at: tuple[str, ...] | None = None, time_us: int = 0) -> None:
        """Append messages at these replicas, by default at all that hold the block."""
        for broker in self.brokers.values():
            held = broker.blocks.get((uid, block))
            if held is not None and (at is None or broker.name in at):
                assert not held.sealed, "a sealed block takes nothing more"
                assert not held.fenced, "a fenced replica takes nothing more"
                held.end += count
                held.last_append_time = max(held.last_append_time, time_us)

    # The verbs.

    def _answer(self, broker: FakeBroker, request: Any) -> Reply:
        verbs: dict[type, Callable[[FakeBroker, Any], Reply]] = {
            PrepareAccept: self._prepare,
            CloseAccept: self._close,
            PrepareState: self._found,
            PrepareSend: self._prepare_send,
            FindOffset: self._find_offset,
            SetGroupPosition: self._set_position,
        }
        return verbs.get(type(request), self._nudge)(broker, request)

    def _nudge(self, broker: FakeBroker, _: Any) -> Done:
        self.on_nudge(broker.name)
        return Done()

    def _found(self, _: FakeBroker, request: PrepareState) -> PartitionFound:
        return PartitionFound(request.state, request.block, request.epoch, 0)

    def _prepare(self, broker: FakeBroker, request: PrepareAccept) -> Done:
        if request.disk_id != broker.disk_id:
            raise InvalidRequest(f"{broker.name} has disk {broker.disk_id}, not {request.disk_id}")
        self._check_epoch(broker, request.uid, request.epoch)
        broker.prepared.add((request.uid, request.block))
        return Done()

    def _close(self, broker: FakeBroker, request: CloseAccept) -> BlockClosed:
        block = broker.blocks.get((request.uid, request.block))
        if block is None:
            raise NotHosted(f"{broker.name} has no block {request.block}")
        self._check_epoch(broker, request.uid, request.epoch)
        place = broker.hosted[request.uid, request.block]
        if request.fence:
            return self._fence(broker, block, request)
        if place.mode == Ack.QUORUM and block.fenced:
            raise NotLeader(f"{broker.name} is fenced, out of the group of block {request.block}")
        if block.sealed:
            return block.closed()
        if place.mode == Ack.QUORUM:
            return self._seal_raft(broker, place)
        if place.leader != broker.name or place.leader_incarnation != broker.incarnation:
            raise NotLeader(f"{broker.name} does not lead block {request.block}")
        return _seal(block, request.epoch)

    def _fence(self, broker: FakeBroker, block: FakeBlock, request: CloseAccept) -> BlockClosed:
        if block.lame and not request.trusted:
            block.fenced = max(block.fenced, request.epoch)
            raise ReplicaLost(f"{broker.name} has lost part of block {request.block}")
        if request.seal:
            if block.fenced != request.epoch:
                raise StaleEpoch(f"{broker.name} is fenced by {block.fenced}, not by {request.epoch}")
            return block.closed() if block.sealed else _seal(block, request.epoch)
        block.fenced = max(block.fenced, request.epoch)
        if request.source and request.source != broker.name:
            source = self.brokers[request.source].blocks[request.uid, request.block]
            if self.brokers[request.source].up and source.sealed:
                block.end, block.seal_crc = source.end, source.seal_crc
        return block.closed()

    def _seal_raft(self, broker: FakeBroker, place: HostedBlock) -> BlockClosed:
        key = (place.uid, place.block)
        held = [self.brokers[each.broker] for each in place.replicas]
        up = [each for each in held if each.up and key in each.blocks and not each.blocks[key].fenced]
        if 2 * len(up) <= len(held):
            raise RequestTimeout(f"block {place.block} has no majority")
        leader = max(up, key=lambda each: (each.blocks[key].end, each.name == place.leader))
        if leader is not broker:
            raise NotLeader(f"{broker.name} does not lead block {place.block}", hint=leader.name)
        closed = _seal(broker.blocks[key], 0)
        for each in up:
            each.blocks[key] = FakeBlock(place.start, closed.end, seal_crc=closed.seal_crc)
        return closed

    def _prepare_send(self, broker: FakeBroker, request: PrepareSend) -> SendPrepared:
        block = broker.blocks.get((request.uid, request.block))
        if block is None:
            raise NotPrepared(f"{broker.name} does not hold block {request.block}")
        key = (request.uid, request.group, request.consumer)
        return SendPrepared(broker.cursors.setdefault(key, request.offset))

    def _find_offset(self, broker: FakeBroker, request: FindOffset) -> OffsetFound:
        block = broker.blocks.get((request.uid, request.block))
        if block is None:
            raise NotHosted(f"{broker.name} has no block {request.block}")
        first = max(block.start, -(-request.timestamp_us // MESSAGE_US))
        return OffsetFound(first if first < block.end else -1, block.end)

    def _set_position(self, broker: FakeBroker, request: SetGroupPosition) -> GroupPositionSet:
        place = broker.hosted.get((request.uid, request.block))
        if place is None or place.leader != broker.name:
            raise NotLeader(f"{broker.name} does not lead block {request.block}")
        end = broker.blocks[request.uid, request.block].end
        offset = end if request.offset == LATEST else request.offset
        if offset > end:
            raise OffsetOutOfRange(offset, first=place.start, end=end)
        if not request.mode and (request.uid, request.group) not in broker.positions:
            raise NotSubscribed(f"no group {request.group}")
        broker.positions[request.uid, request.group] = offset
        return GroupPositionSet(offset, end)

    def _check_epoch(self, broker: FakeBroker, uid: str, epoch: int) -> None:
        seen = broker.epochs.get(uid, 0)
        if epoch < seen:
            raise StaleEpoch(f"epoch {epoch} is past: {seen}")
        broker.epochs[uid] = epoch


def _seal(block: FakeBlock, epoch: int) -> BlockClosed:
    block.seal_crc = zlib.crc32(f"{block.start} {block.end} {epoch}".encode()) or 1
    return block.closed()
