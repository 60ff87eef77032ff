"""What a broker makes of what the tree names it for, when that changes under its hands."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from clymq.broker.hosting import HostedPartition, Hosting, Reports
from clymq.broker.sealed_block import SealedBlock
from clymq.clock import ManualClock
from clymq.errors import ConnectFailed, DiskFailed
from clymq.protocol.controller import BrokerConfig, HostedBlock
from clymq.protocol.hosting import ReplicaPlace
from clymq.replication.fetch_surroundings import FetchGroup
from clymq.replication.raft_host import RaftHost
from clymq.storage.folder import DataFolder
from clymq.storage.memory import MemoryFiles
from clymq.types import Ack
from factory import SMALL, control, fill, new_block

UID = "0" * 32
ME, DISK = "B0", "disk"


class Told(Reports):
    """Remembers what hosting had to tell."""

    def __init__(self) -> None:
        self.wholes: list[int] = []
        self.downs: list[int] = []
        self.ended: list[int] = []

    def ends(self, partition: HostedPartition, block: Any) -> None:
        self.ended.append(block.number)

    def whole(self, partition: HostedPartition, block: int) -> None:
        self.wholes.append(block)

    def replica_down(self, partition: HostedPartition, block: int, reason: str) -> None:
        self.downs.append(block)


class Broker:
    """One broker's hosting on a disk in memory; nobody else can be reached."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.files = MemoryFiles(clock=self.clock)
        self.folder = DataFolder.open(self.files, "/data", SMALL)
        self.told = Told()
        self.asked: list[str] = []
        self.groups: list[FetchGroup] = []
        self.session = "s1"
        links: Any = SimpleNamespace(join=lambda *_: None, send=lambda *_: None, beat=lambda *_: None)
        self.raft = RaftHost(
            ME, clock=self.clock, config=SMALL, links=links, draw=lambda low, _high: low, incarnation=7
        )
        fetch: Any = SimpleNamespace(add=lambda group, *_, **__: self.groups.append(group))
        neighbours: Any = SimpleNamespace(know=lambda _: None, ask=self._ask)
        self.hosting = Hosting(
            ME, DISK, files=self.files, folder=self.folder, clock=self.clock, config=SMALL, raft=self.raft,
            fetch=fetch, links=links, neighbours=neighbours, reports=self.told, session=lambda: self.session,
        )  # fmt: skip

    async def _ask(self, name: str, *_: Any, **__: Any) -> Any:
        self.asked.append(name)
        raise ConnectFailed(f"{name} is not here")

    def path(self, block: int) -> str:
        return f"{self.folder.partition('t', '1', 'p', UID)}/Block_{block}"

    def apply(self, *places: HostedBlock) -> None:
        self.hosting.apply(BrokerConfig(places, {}))

    def make_sealed(self, block: int = 1, *, whole: bool = True) -> HostedBlock:
        """Put a block that has ended on the disk, perhaps without its end; return what the chain says of it."""
        made = new_block(self.files, self.path(block))
        fill(made, 4)
        seal = control(made, seal=True)
        if whole:
            made.seal(seal)
        made.sync()
        made.commit_all()
        made.close()
        return place(block, sealed=True, end=12, seal_index=seal.index, seal_crc=seal.header_crc)


def place(block: int, *, others: tuple[str, ...] = (), **facts: Any) -> HostedBlock:
    replicas = (ReplicaPlace(ME, DISK, ""), *(ReplicaPlace(name, "", "") for name in others))
    return HostedBlock(
        topic="t", topic_id="1", partition="p", uid=UID, block=block, epoch=block,
        mode=facts.pop("mode", Ack.QUORUM), replicas=replicas, start=facts.pop("start", 0), **facts,
    )  # fmt: skip


def named(block: HostedBlock, **facts: Any) -> HostedBlock:
    return HostedBlock(**{**{name: getattr(block, name) for name in block.__struct_fields__}, **facts})


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def turns(clock: ManualClock, ms: float = 0) -> None:
    """Let time pass, and everybody who waits have a turn."""
    clock.advance(ms)
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_active_block_that_left_the_tree_before_the_next_was_heard_of_is_let_go() -> None:
    """Retention may take the block before away while a broker cannot reach the controller."""

    async def test() -> None:
        broker = Broker()
        broker.apply(place(1))
        broker.apply(place(2, start=10))
        assert list(broker.raft.groups) == [f"{UID}/2"]
        assert broker.told.ended == [1]
        await turns(broker.clock, SMALL.delete_delay_ms + 1)
        assert not broker.files.exists(broker.path(1))
        assert broker.files.exists(broker.path(2))
        await broker.hosting.close()

    run(test())


def test_a_replica_that_mends_asks_those_that_the_tree_names_now() -> None:
    async def test() -> None:
        broker = Broker()
        sealed = broker.make_sealed(whole=False)
        broker.apply(named(sealed, replicas=(*sealed.replicas, ReplicaPlace("gone", "", ""))))
        await turns(broker.clock)
        assert set(broker.asked) == {"gone"}
        broker.apply(named(sealed, replicas=(*sealed.replicas, ReplicaPlace("new", "", ""))))
        broker.asked.clear()
        await turns(broker.clock, 10_000)
        assert set(broker.asked) == {"new"}
        await broker.hosting.close()

    run(test())


@pytest.mark.parametrize("wanted", ["copy", "down"])
def test_a_replica_that_was_whole_before_it_was_asked_for_is_reported_when_it_is(wanted: str) -> None:
    async def test() -> None:
        broker = Broker()
        sealed = broker.make_sealed()
        broker.apply(sealed)
        assert broker.told.wholes == []
        broker.apply(named(sealed, **{wanted: True}))
        assert broker.told.wholes == [1]
        await broker.hosting.close()

    run(test())


def test_a_sealed_block_that_cannot_be_opened_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        broker = Broker()
        sealed = broker.make_sealed()

        def fail(_: SealedBlock) -> tuple[bool, int]:
            raise DiskFailed(broker.path(1), "open", "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(SealedBlock, "open", fail)
            broker.apply(sealed, place(2, start=12))
        assert broker.told.downs == [1]
        broker.apply(sealed, place(2, start=12))
        assert broker.hosting.partitions[0].sealed[1].whole
        assert broker.told.wholes == [1]
        await broker.hosting.close()

    run(test())


@pytest.mark.parametrize("session", ["s2", ""])
def test_a_fetch_leader_whose_session_was_lost_before_it_heard_of_its_block_does_not_lead_it(session: str) -> None:
    """It was made leader for one session. The next one is no less confirmed, and the controller has moved on."""

    async def test() -> None:
        broker = Broker()
        led = place(1, mode=Ack.LEADER, leader=ME, leader_incarnation=7, leader_session="s1")
        broker.session = session
        broker.apply(led)
        assert [group.leader_incarnation for group in broker.groups] == [0]
        await broker.hosting.close()

    run(test())


def test_a_block_that_cannot_be_understood_keeps_no_other_from_being_hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        broker = Broker()
        sealed = broker.make_sealed()

        def astray(_: SealedBlock) -> tuple[bool, int]:
            raise AssertionError("a state that cannot be")

        monkeypatch.setattr(SealedBlock, "open", astray)
        broker.apply(sealed, place(2, start=12))
        assert broker.told.downs == [1]
        assert list(broker.raft.groups) == [f"{UID}/2"]
        await broker.hosting.close()

    run(test())


def test_nothing_is_left_of_a_partition_that_the_tree_does_not_name_any_more() -> None:
    async def test() -> None:
        broker = Broker()
        broker.apply(broker.make_sealed(), place(2, start=12))
        assert broker.files.exists("/data/t~1")
        broker.apply()
        await turns(broker.clock, SMALL.delete_delay_ms + 1)
        assert not broker.files.exists("/data/t~1")
        await broker.hosting.close()

    run(test())
