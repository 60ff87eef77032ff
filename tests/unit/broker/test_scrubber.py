"""Rot that nobody reads is found and mended; slowly, within bounds, and what was sealed last comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import fetch_hosts
import raft_hosts
from clymq.broker.scrubber import LOOK_MS_MAX, PIECE_BYTES, PIECE_BYTES_MIN, Scrubber
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import CorruptBatch, CorruptBlock, DiskFull
from clymq.storage.block import Block
from clymq.storage.end import End
from clymq.storage.memory import MemoryFiles
from factory import SMALL, fill, following, new_block

DAY_MS = 86_400_000
RATE = 100_000
CONFIG = msgspec.structs.replace(SMALL, scrub_bytes_per_second=RATE, scrub_interval_ms=DAY_MS)
LOG = "/data/g/Block_1/batches"


class Hosted:
    """A block of a partition, as the scrubber sees it; it remembers what it was told."""

    def __init__(self, file: Block | None, number: int = 1, on_damage: Callable[[Any], None] = lambda _: None) -> None:
        self.file = file
        self.number = number
        self.errors: list[CorruptBatch | CorruptBlock] = []
        self._on_damage = on_damage

    def damaged(self, error: CorruptBatch | CorruptBlock) -> None:
        self.errors.append(error)
        self._on_damage(error)


class Driven:
    """An active block with a driver of either kind behind it."""

    number = 1

    def __init__(self, driver: Any, file: Callable[[], Block]) -> None:
        self._file = file
        self.damaged = driver.damaged

    @property
    def file(self) -> Block:
        return self._file()


def partition(active: Any = None, sealed: Any = (), uid: str = "u") -> Any:
    return SimpleNamespace(uid=uid, active=active, sealed={block.number: block for block in sealed})


def filled(number: int = 1, *, batches: int = 40, files: MemoryFiles | None = None) -> Block:
    block = new_block(files or MemoryFiles(clock=ManualClock()), f"/data/t~1/p~u/Block_{number}")
    fill(block, batches, size=300)
    block.sync()
    block.commit_all()
    return block


async def pass_time(clock: ManualClock, milliseconds: float, *, step: float = 10.0) -> None:
    """Let time pass in steps; whoever waits has its turn in between."""
    for _ in range(round(milliseconds / step)):
        clock.advance(step)
        for _ in range(3):
            await asyncio.sleep(0)


def scrub(clock: ManualClock, *partitions: Any, config: Config = CONFIG, ms: float, step: float = 10.0) -> Scrubber:
    """Let a scrubber work for a time."""

    async def run() -> Scrubber:
        scrubber = Scrubber(lambda: partitions, clock, config, seed=1)
        task = asyncio.create_task(scrubber.run())
        await asyncio.sleep(0)
        await pass_time(clock, ms, step=step)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return scrubber

    return asyncio.run(run())


# --- What it is for ---


@pytest.mark.parametrize("scrubbed", [True, False])
def test_a_bit_that_flips_below_the_checkpoint_of_a_raft_follower_is_mended_though_nobody_reads(scrubbed: bool) -> None:
    """Without the scrubber it stays: neither time nor a restart finds it."""
    hosts = raft_hosts.Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    for _ in range(200):
        producer.push(leader, b"value" * 200)
        hosts.clock.advance(20)
    hosts.clock.advance(2000)
    follower = next(name for name in hosts.brokers if name != leader.name)
    driver = hosts.driver(follower)
    assert driver.replica.block.checkpoint.index == driver.replica.block.last_index
    hosts.disks[follower].flip(LOG, 5000, 3)
    block = Driven(driver, lambda: driver.replica.block)
    if scrubbed:
        scrub(hosts.clock, partition(block), ms=10_000)
    else:
        hosts.clock.advance(10_000)
        hosts.kill(follower)
        hosts.start(follower)
        hosts.clock.advance(10_000)
    same = hosts.disks[follower].contents(LOG) == hosts.disks[leader.name].contents(LOG)
    assert same == scrubbed
    assert hosts.driver(leader.name).leader == leader.name, "who leads is not disturbed by it"
    if scrubbed:
        assert not driver.node.lame
        assert driver.stopped is None


def test_a_raft_leader_that_finds_rot_in_its_own_log_lets_another_lead_and_is_mended() -> None:
    hosts = raft_hosts.Hosts()
    producer = hosts.producer()
    producer.begin()
    leader = hosts.leader()
    for _ in range(50):
        producer.push(leader)
        hosts.clock.advance(20)
    driver = hosts.driver(leader.name)
    hosts.disks[leader.name].flip(LOG, 1000, 3)
    scrub(hosts.clock, partition(Driven(driver, lambda: driver.replica.block)), ms=10_000)
    assert not driver.node.lame
    contents = {hosts.disks[name].contents(LOG) for name in hosts.brokers}
    assert len(contents) == 1
    assert hosts.leader() is not leader


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_fetch_replica_that_finds_rot_says_that_it_is_down(name: str) -> None:
    """The controller then moves the partition on, and the block, sealed, is read anew and mended."""
    hosts = fetch_hosts.Hosts()
    producer = hosts.producer()
    producer.begin()
    for _ in range(50):
        producer.push(b"value")
        hosts.clock.advance(20)
    driver = hosts.driver(name)
    scrub(hosts.clock, partition(Driven(driver, lambda: driver.log.block)), ms=2000)
    assert not hosts.owner(name).downs
    hosts.disks[name].flip(fetch_hosts.LOG, 1000, 3)
    scrub(hosts.clock, partition(Driven(driver, lambda: driver.log.block)), ms=2000)
    assert isinstance(hosts.owner(name).downs[0], CorruptBlock)


# --- What counts as damage ---


def test_every_batch_of_a_block_is_checked_and_damage_is_told_once() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = filled(files=files)
    for position in (5, 150, file.end_position // 2, file.end_position - 9):
        path = f"{file.folder}/batches"
        files.flip(path, position, 3)
        block = Hosted(file)
        scrubber = scrub(ManualClock(), partition(sealed=[block]), ms=5000)
        assert len(block.errors) == scrubber.damaged_blocks == 1, position
        files.flip(path, position, 3)
    block = Hosted(file)
    assert scrub(ManualClock(), partition(sealed=[block]), ms=5000).read_bytes == file.end_position
    assert not block.errors


def test_what_is_not_committed_is_not_read() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = new_block(files, "/data/t~1/p~u/Block_1")
    fill(file, 20, size=300)
    end = file.committed_position
    file.append([following(file, [b"not yet"])])
    block = Hosted(file)
    assert scrub(ManualClock(), partition(block), ms=5000).read_bytes == end < file.end_position
    files.flip(f"{file.folder}/batches", end + 50, 3)
    scrub(ManualClock(), partition(block), ms=5000)
    assert not block.errors


def test_a_file_that_ends_too_early_is_damage() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = filled(files=files)
    files.open(f"{file.folder}/batches").truncate(file.end_position - 8)
    block = Hosted(file)
    scrub(ManualClock(), partition(sealed=[block]), ms=5000)
    assert isinstance(block.errors[0], CorruptBlock)


def test_what_the_disk_cannot_read_is_damage() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = filled(files=files)
    files.fail("read", path="*/batches", times=1)
    block = Hosted(file)
    scrub(ManualClock(), partition(sealed=[block]), ms=5000)
    assert isinstance(block.errors[0], CorruptBlock)
    assert "disk failed: read" in str(block.errors[0])


def test_a_block_that_cannot_be_opened_now_is_read_as_soon_as_it_can() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = filled(files=files)
    file.rest()
    files.fail("open", path="*/batches", times=1)
    block = Hosted(file)
    scrubber = scrub(ManualClock(), partition(sealed=[block]), ms=2 * LOOK_MS_MAX, step=1000)
    assert scrubber.read_bytes == file.end_position
    assert not block.errors


def test_a_batch_that_is_larger_than_a_piece_is_read_alone() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = new_block(files, "/data/t~1/p~u/Block_1")
    fill(file, 3, size=3 * PIECE_BYTES // 2)
    file.sync()
    file.commit_all()
    block = Hosted(file)
    assert scrub(ManualClock(), partition(sealed=[block]), ms=60_000).read_bytes == file.end_position
    assert not block.errors


def test_a_block_that_becomes_another_meanwhile_is_read_again_and_never_blamed() -> None:
    first, second = filled(batches=400), filled(batches=400)
    block = Hosted(first)
    clock = ManualClock()

    async def run() -> Scrubber:
        scrubber = Scrubber(lambda: [partition(block)], clock, CONFIG, seed=1)
        task = asyncio.create_task(scrubber.run())
        await asyncio.sleep(0)
        while not scrubber.read_bytes:
            await pass_time(clock, 10)
        assert scrubber.read_bytes < first.end_position
        block.file = second
        before = scrubber.read_bytes
        await pass_time(clock, 60_000)
        task.cancel()
        assert scrubber.read_bytes == before + second.end_position
        return scrubber

    assert not asyncio.run(run()).damaged_blocks


# --- Bounds ---


def test_it_reads_no_faster_than_it_may_and_then_rests_until_the_next_pass() -> None:
    clock = ManualClock()
    files = [filled(number, batches=200) for number in range(1, 6)]
    total = sum(file.end_position for file in files)
    blocks = [Hosted(file, number) for number, file in enumerate(files, 1)]

    async def run() -> None:
        scrubber = Scrubber(lambda: [partition(sealed=blocks)], clock, CONFIG, seed=1)
        task = asyncio.create_task(scrubber.run())
        await asyncio.sleep(0)
        seconds = 0.0
        while scrubber.read_bytes < total:
            await pass_time(clock, 100)
            seconds += 0.1
            assert scrubber.read_bytes <= RATE * seconds + PIECE_BYTES
        assert seconds >= (total - PIECE_BYTES) / RATE
        assert seconds <= 1 + (total + 10 * PIECE_BYTES_MIN) / RATE
        await pass_time(clock, DAY_MS - 1000 * seconds - LOOK_MS_MAX, step=10_000)
        assert scrubber.read_bytes == total
        await pass_time(clock, 10 * LOOK_MS_MAX)
        assert scrubber.read_bytes == 2 * total
        task.cancel()

    asyncio.run(run())


def test_it_does_not_follow_a_writer_but_ends_where_the_block_ended_when_it_began() -> None:
    file = filled(batches=100)
    end = file.committed_position

    class Writing(Scrubber):
        def _check(self, block: Any, file: Block, place: End) -> int:
            fill(file, 2, size=300)
            return super()._check(block, file, place)

    clock = ManualClock()

    async def run() -> None:
        scrubber = Writing(lambda: [partition(Hosted(file))], clock, CONFIG, seed=1)
        task = asyncio.create_task(scrubber.run())
        await asyncio.sleep(0)
        await pass_time(clock, 60_000)
        assert end <= scrubber.read_bytes <= end + PIECE_BYTES
        task.cancel()

    asyncio.run(run())


def test_a_disk_on_which_the_damage_cannot_even_be_noted_is_looked_at_again_soon() -> None:
    files = MemoryFiles(clock=ManualClock())
    file = filled(files=files)
    files.flip(f"{file.folder}/batches", 500, 3)

    def full(_: object) -> None:
        raise DiskFull("/data", "no room")

    block = Hosted(file, on_damage=full)
    assert scrub(ManualClock(), partition(sealed=[block]), ms=5000).damaged_blocks == 1
    assert scrub(ManualClock(), partition(sealed=[block]), ms=10 * LOOK_MS_MAX, step=1000).damaged_blocks > 2


def test_old_and_active_blocks_are_read_though_more_is_sealed_all_the_time_than_may_be_read() -> None:
    clock, read = ManualClock(), set[int]()

    class Watched(Scrubber):
        def _check(self, block: Any, file: Block, place: End) -> int:
            read.add(block.number)
            return super()._check(block, file, place)

    config = msgspec.structs.replace(CONFIG, scrub_interval_ms=60_000)
    template = filled(1)
    sealed = {number: Hosted(template, number) for number in (1, 2, 3)}
    active = Hosted(filled(2, batches=10), 10_000)
    host = SimpleNamespace(uid="u", active=active, sealed=sealed)

    async def run() -> None:
        task = asyncio.create_task(Watched(lambda: [host], clock, config, seed=1).run())
        await asyncio.sleep(0)
        await pass_time(clock, 20_000, step=50)
        assert read == {1, 2, 3, 10_000}
        read.clear()
        for _ in range(300):
            for _ in range(2 * RATE // template.end_position):
                sealed[len(sealed) + 1] = Hosted(template, len(sealed) + 1)
            await pass_time(clock, 1000, step=50)
            if read >= {1, 2, 3, 10_000}:
                break
        task.cancel()
        assert read >= {1, 2, 3, 10_000}
        assert max(read - {10_000}) > len(sealed) // 4, "new ones too"

    asyncio.run(run())


def test_what_was_just_sealed_comes_first_and_what_is_not_whole_waits_until_it_is() -> None:
    clock = ManualClock()
    order: list[str] = []

    class Watched(Scrubber):
        def _check(self, block: Any, file: Block, place: End) -> int:
            order.append(file.folder[-1])
            return super()._check(block, file, place)

    hosted = [partition(Hosted(filled(n), n), uid=f"u{n}") for n in range(1, 4)]
    mending = Hosted(None, 8)
    hosted.append(partition(sealed=[mending, Hosted(filled(9), 9)], uid="u9"))

    async def run() -> None:
        task = asyncio.create_task(Watched(lambda: hosted, clock, CONFIG, seed=1).run())
        await asyncio.sleep(0)
        await pass_time(clock, 10_000)
        assert order[0] == "9"
        assert sorted({*order}) == ["1", "2", "3", "9"]
        order.clear()
        mending.file = filled(8)
        await pass_time(clock, LOOK_MS_MAX)
        assert {*order} == {"8"}
        task.cancel()

    asyncio.run(run())


def test_it_does_nothing_where_it_is_not_wanted() -> None:
    off = msgspec.structs.replace(CONFIG, scrub_bytes_per_second=0)
    scrubber = scrub(ManualClock(), partition(sealed=[Hosted(filled())]), config=off, ms=60_000)
    assert scrubber.read_bytes == 0


def test_what_it_remembers_is_no_more_than_what_is_hosted() -> None:
    clock = ManualClock()
    hosted = [partition(sealed=[Hosted(filled(n, batches=1), n)], uid=f"u{n}") for n in range(1, 30)]

    async def run() -> None:
        scrubber = Scrubber(lambda: hosted, clock, CONFIG, seed=1)
        task = asyncio.create_task(scrubber.run())
        await asyncio.sleep(0)
        await pass_time(clock, 5000)
        assert len(scrubber._due) == 29
        del hosted[3:]
        await pass_time(clock, 2 * LOOK_MS_MAX, step=1000)
        assert len(scrubber._due) == 3
        task.cancel()

    asyncio.run(run())
