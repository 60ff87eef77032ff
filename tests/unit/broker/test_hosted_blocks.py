"""What a broker makes of what the tree names it for, when that changes under its hands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.hosting import Hosting, Reports
from clymq.broker.sealed_block import SealedBlock
from clymq.clock import ManualClock, Timer
from clymq.errors import ConnectFailed, DiskFailed
from clymq.protocol.controller import BlockBefore, BrokerConfig, HostedBlock
from clymq.protocol.hosting import ReplicaPlace
from clymq.replication.entries import Genesis
from clymq.replication.fetch_surroundings import FetchGroup
from clymq.replication.hosted import Hosted
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

    def __init__(self, clock: ManualClock | None = None, files: MemoryFiles | None = None) -> None:
        self.clock = clock or ManualClock()
        self.files = files or MemoryFiles(clock=self.clock)
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

    async def apply(self, *places: HostedBlock) -> None:
        await self.hosting.apply(BrokerConfig(places, {}))

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
        await broker.apply(place(1))
        await broker.apply(place(2, start=10))
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
        await broker.apply(named(sealed, replicas=(*sealed.replicas, ReplicaPlace("gone", "", ""))))
        await turns(broker.clock)
        assert set(broker.asked) == {"gone"}
        await broker.apply(named(sealed, replicas=(*sealed.replicas, ReplicaPlace("new", "", ""))))
        broker.asked.clear()
        await turns(broker.clock, 10_000)
        assert set(broker.asked) == {"new"}
        await broker.hosting.close()

    run(test())


def test_a_leader_that_begins_asks_those_for_the_seal_before_that_the_tree_names_now() -> None:
    async def test() -> None:
        broker = Broker()

        def after(holder: str) -> HostedBlock:
            before = BlockBefore(1, 9, 9, (ReplicaPlace(holder, "", ""),))
            return named(place(2, start=12), before=before)

        await broker.apply(after("gone"))
        begun: list[Genesis] = []
        broker.hosting._begin(broker.hosting.partitions[0], after("gone"), begun.append)
        await turns(broker.clock)
        assert set(broker.asked) == {"gone"}
        await broker.apply(after("new"))
        broker.asked.clear()
        await turns(broker.clock, 1_000)
        assert set(broker.asked) == {"new"}
        assert not begun
        await broker.hosting.close()

    run(test())


@pytest.mark.parametrize("wanted", ["copy", "down"])
def test_a_replica_that_was_whole_before_it_was_asked_for_is_reported_when_it_is(wanted: str) -> None:
    async def test() -> None:
        broker = Broker()
        sealed = broker.make_sealed()
        await broker.apply(sealed)
        assert broker.told.wholes == []
        await broker.apply(named(sealed, **{wanted: True}))
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
            await broker.apply(sealed, place(2, start=12))
        assert broker.told.downs == [1]
        await broker.apply(sealed, place(2, start=12))
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
        await broker.apply(led)
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
        await broker.apply(sealed, place(2, start=12))
        assert broker.told.downs == [1]
        assert list(broker.raft.groups) == [f"{UID}/2"]
        await broker.hosting.close()

    run(test())


def test_what_is_remembered_of_blocks_does_not_outlive_them() -> None:
    async def test() -> None:
        broker = Broker()
        lost = named(place(1), replicas=(ReplicaPlace(ME, "another disk", ""),))
        await broker.apply(lost)
        assert broker.told.downs == [1]
        assert broker.hosting._lost
        await broker.apply(named(place(1), uid="1" * 32))
        assert not broker.hosting._lost
        await broker.apply()
        await turns(broker.clock, SMALL.delete_delay_ms + 1)
        assert list(Hosted.open(broker.files, "/data/hosted")) == []
        await broker.hosting.close()

    run(test())


def test_the_list_of_hosted_blocks_forgets_what_is_neither_named_nor_on_the_disk() -> None:
    """What an earlier life has left: a folder that was set aside and is deleted now, and one that is gone already."""

    async def test() -> None:
        broker = Broker()
        broker.make_sealed()
        stray = broker.folder.partition("t", "1", "q", "a" * 32)
        new_block(broker.files, f"{stray}/Block_3").close()
        hosted = Hosted.open(broker.files, "/data/hosted")
        for name in (f"{UID}/1", f"{UID}/9", f"{'a' * 32}/3", f"{'b' * 32}/1"):
            hosted.add(name)
        broker = Broker(broker.clock, broker.files.crash(random.Random(1)))
        await broker.apply(place(2, start=12))
        await turns(broker.clock, SMALL.delete_delay_ms + 1)
        assert list(Hosted.open(broker.files, "/data/hosted")) == [f"{UID}/2"]
        await broker.hosting.close()

    run(test())


class SlowClock(ManualClock):
    """A clock on which each look takes a while, and that lets time pass for whoever gives way."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    def monotonic_ms(self) -> float:
        self._monotonic_ms += 4
        return super().monotonic_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        if delay_ms == 0 and asyncio.get_running_loop().is_running():
            self.turns += 1
            asyncio.get_running_loop().call_soon(callback)
        return super().call_later(delay_ms, callback)


def test_others_have_a_turn_while_many_blocks_begin_and_end() -> None:
    """One that hosts thousands in one breath is silent for so long that its groups elect away from it."""

    async def test() -> None:
        broker = Broker(SlowClock())
        clock = broker.clock
        assert isinstance(clock, SlowClock)
        many = [named(place(1), uid=f"{number:032x}", partition=f"p{number}") for number in range(40)]
        await broker.apply(*many)
        assert len(broker.raft.groups) == 40
        assert clock.turns >= 10
        before = clock.turns
        await broker.apply()
        assert not broker.raft.groups
        assert clock.turns - before >= 10
        await broker.hosting.close()

    run(test())


def test_a_block_that_is_named_again_is_not_deleted_while_others_begin() -> None:
    """What an earlier config had let go of is due to be deleted when the next one names it, and others come first."""

    async def test() -> None:
        broker = Broker()
        first = named(place(1), uid="f" * 32, partition="z")
        await broker.apply(first)
        await broker.apply()
        folder = f"{broker.folder.partition('t', '1', 'z', 'f' * 32)}/Block_1"
        broker.files.open(f"{folder}/what was there", create=True).close()
        host = broker.hosting._host

        def slowly(block: HostedBlock) -> None:
            if block.partition == "p":
                broker.clock.advance(SMALL.delete_delay_ms + 1)
            host(block)

        broker.hosting._host = slowly  # type: ignore[method-assign]
        applying = asyncio.ensure_future(broker.apply(place(1), first))
        while not applying.done():
            await turns(broker.clock, 1)
        assert broker.files.exists(f"{folder}/what was there")
        assert f"{'f' * 32}/1" in broker.raft.groups
        await broker.hosting.close()

    run(test())


def test_nothing_is_left_of_a_partition_that_the_tree_does_not_name_any_more() -> None:
    async def test() -> None:
        broker = Broker()
        await broker.apply(broker.make_sealed(), place(2, start=12))
        assert broker.files.exists("/data/t~1")
        await broker.apply()
        await turns(broker.clock, SMALL.delete_delay_ms + 1)
        assert not broker.files.exists("/data/t~1")
        await broker.hosting.close()

    run(test())
