"""A sealed block on a broker: whole and served, or mended until it is."""

from __future__ import annotations

import asyncio

import pytest

from clymq.broker.sealed_block import SealedBlock
from clymq.clock import ManualClock
from clymq.errors import InvalidRequest, NotReady, OffsetOutOfRange
from clymq.protocol.controller import HostedBlock
from clymq.record.batch import Batch
from clymq.record.layout import Buffer
from clymq.storage.block import Block
from clymq.storage.folder import DataFolder
from clymq.storage.memory import MemoryFiles
from clymq.types import Ack
from factory import SMALL, control, fill, new_block

PATH = "/data/t~1/p~u/Block_1"
MESSAGES = 12


class Broker:
    """A disk with one block, filled by a leader and perhaps sealed."""

    def __init__(self, *, sealed: bool, batches: int = 4) -> None:
        self.files = MemoryFiles(clock=ManualClock())
        self.folder = DataFolder.open(self.files, "/data", SMALL)
        block = new_block(self.files, PATH)
        fill(block, batches)
        if sealed:
            block.seal(control(block, seal=True))
        block.sync()
        block.commit_all()
        self.seal = next(header for _, header in block.headers(block.last_index))
        block.close()

    def hosts(self, place: HostedBlock) -> SealedBlock:
        return SealedBlock(place, PATH, self.files, self.folder, SMALL)


class Source:
    """Another broker's whole block, as one that mends reads it."""

    def __init__(self, block: SealedBlock) -> None:
        self._block = block

    async def read(self, position: int, bytes_max: int) -> Buffer:
        return self._block.read_at(position, bytes_max)


def place_of(broker: Broker, mode: int = Ack.QUORUM) -> HostedBlock:
    """Return what the chain says of the block that this broker has sealed."""
    return HostedBlock(
        topic="t",
        topic_id="1",
        partition="p",
        uid="u",
        block=1,
        epoch=2,
        mode=mode,
        replicas=(),
        start=0,
        end=MESSAGES,
        sealed=True,
        seal_index=broker.seal.index,
        seal_crc=broker.seal.header_crc,
    )


def whole() -> tuple[HostedBlock, SealedBlock]:
    broker = Broker(sealed=True)
    place = place_of(broker)
    block = broker.hosts(place)
    assert block.open() == (True, 0)
    return place, block


def test_a_whole_block_serves_from_any_offset_and_refuses_others() -> None:
    _, block = whole()
    for offset in (0, 5, MESSAGES - 1):
        first = Batch.parse(block.read(offset, 1 << 20))
        assert first.base_offset <= offset < first.end_offset
    for outside in (-1, MESSAGES):
        with pytest.raises(OffsetOutOfRange) as refused:
            block.read(outside, 1 << 20)
        assert (refused.value.first, refused.value.end) == (0, MESSAGES)
    assert Batch.parse(block.read_at(-1, 1)).is_seal


def test_it_says_how_it_ended_as_the_chain_has_it() -> None:
    place, block = whole()
    closed = block.closed()
    assert (closed.start, closed.end, closed.seal_index, closed.seal_crc) == (
        place.start, place.end, place.seal_index, place.seal_crc,
    )  # fmt: skip


@pytest.mark.parametrize("batches", [0, 2, 4])
def test_one_that_is_behind_serves_nothing_and_mends_from_a_whole_one(batches: int) -> None:
    place, source = whole()
    block = Broker(sealed=False, batches=batches).hosts(place) if batches else _nothing_there(place)
    assert block.open() == (False, 0)
    with pytest.raises(NotReady):
        block.read(0, 1 << 20)
    lost: list[int] = []
    asyncio.run(block.mend([Source(source)], lost.append))
    assert not lost
    assert block.whole
    assert bytes(block.read_at(0, 1 << 20)) == bytes(source.read_at(0, 1 << 20))


def _nothing_there(place: HostedBlock) -> SealedBlock:
    files = MemoryFiles(clock=ManualClock())
    return SealedBlock(place, PATH, files, DataFolder.open(files, "/data", SMALL), SMALL)


def test_what_a_fetch_leader_had_beyond_the_seal_is_given_up_and_counted() -> None:
    """The block was sealed without it, after the third batch."""
    furthest = Broker(sealed=True, batches=3)
    place = place_of(furthest, Ack.LEADER)
    leader = Broker(sealed=False, batches=4).hosts(place)
    is_whole, lost = leader.open()
    assert (is_whole, lost) == (False, 3)
    leader.close()
    assert leader.open() == (False, 3), "nobody may have been told before it died"


def test_a_raft_replica_gives_nothing_up() -> None:
    """What consensus decided is the same everywhere; anything else is for mending to find, not to be thrown away."""
    place, _ = whole()
    broker = Broker(sealed=False, batches=4)
    block = broker.hosts(place)
    assert block.open() == (False, 0)


def test_rot_in_a_whole_block_is_never_handed_out_and_is_mended_from_another() -> None:
    broker, (place, source) = Broker(sealed=True), whole()
    block = broker.hosts(place)
    assert block.open() == (True, 0)
    seen = bytes(block.read(0, 1))
    broker.files.flip(f"{PATH}/batches", len(seen) + 200, 3)
    assert bytes(block.read(0, 1)) == seen
    with pytest.raises(NotReady):
        block.read(0, 1 << 20)
    assert (block.whole, block.is_open) == (False, False)
    assert block.open() == (False, 0)
    asyncio.run(block.mend([Source(source)], lambda _: None))
    assert block.whole
    assert bytes(block.read(0, 1 << 20)) == bytes(source.read(0, 1 << 20))
    block.close()
    assert broker.hosts(place).open() == (True, 0)


@pytest.mark.parametrize("mode", [Ack.QUORUM, Ack.LEADER])
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_rot_that_is_met_where_the_seal_is_looked_for_is_mended_as_any_other(mode: Ack, batch: int) -> None:
    """The checkpoint says that all is well up to the end, so nothing else of the block is read when it is opened."""
    broker, (_, source) = Broker(sealed=True), whole()
    place = place_of(broker, mode)
    written = Block.open(broker.files, PATH, config=SMALL, handles=broker.folder.handles)
    written.commit_all()
    written.write_checkpoint(written.last_index, b"")
    position = written.position_of(batch)
    written.close()
    broker.files.flip(f"{PATH}/batches", position + 66, 0)
    block = broker.hosts(place)
    block.open()
    if block.whole:  # nobody has come by
        with pytest.raises(NotReady):
            block.read_at(0, 1 << 20)
        block.open()
    assert not block.whole
    asyncio.run(block.mend([Source(source)], lambda _: None))
    assert block.whole
    assert bytes(block.read_at(0, 1 << 20)) == bytes(source.read_at(0, 1 << 20))
    block.close()
    assert broker.hosts(place).open() == (True, 0)


def test_who_asks_in_the_middle_of_a_batch_is_told_so_and_the_block_stays_whole() -> None:
    _, block = whole()
    second = Batch.parse(block.read_at(0, 1)).length
    for wrong in (1, second - 8, second + 8):
        with pytest.raises(InvalidRequest, match=str(wrong)):
            block.read_at(wrong, 1 << 20)
    assert block.whole
    assert Batch.parse(block.read_at(second, 1)).index == 2
    assert not block.read_at(1 << 40, 1 << 20), "behind the end there is nothing"


def test_a_source_with_rot_gives_nothing_to_who_mends_and_is_mended_itself() -> None:
    broker = Broker(sealed=True)
    block = broker.hosts(place_of(broker))
    assert block.open() == (True, 0)
    broker.files.flip(f"{PATH}/batches", 200, 3)
    with pytest.raises(NotReady):
        block.read_at(0, 1 << 20)
    assert not block.is_open
