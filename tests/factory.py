"""Makes what tests need: stamped batches, and a log that is written the way a leader would."""

from __future__ import annotations

from collections.abc import Sequence

from clymq.config import Config
from clymq.record import Batch, BatchBuilder, control_batch
from clymq.storage.block import Block
from clymq.storage.files import Files
from clymq.storage.handles import Handles
from clymq.storage.log import PartitionLog

EPOCH = 1_700_000_000_000_000
SMALL = Config(index_interval_bytes=1024, disk_reserve_bytes=0)


def built(values: Sequence[bytes], *, codec: str = "none", cmdindex: int = 1, timestamp: int = EPOCH) -> bytes:
    return BatchBuilder(codec).add_values(values).build(producer="p", cmdindex=cmdindex, now=timestamp)


def stamped(
    data: bytes, *, index: int, offset: int, term: int = 1, append_time: int = EPOCH, commit_index: int = 0
) -> Batch:
    batch = Batch.parse(bytearray(data))
    batch.stamp(base_offset=offset, term=term, index=index, append_time=append_time, commit_index=commit_index)
    return batch


def following(
    block: Block,
    values: Sequence[bytes],
    *,
    term: int | None = None,
    timestamp: int = EPOCH,
    append_time: int | None = None,
    commit_index: int = 0,
    codec: str = "none",
) -> Batch:
    """Return a batch that follows on behind a block's end."""
    return stamped(
        built(values, timestamp=timestamp, codec=codec),
        index=block.last_index + 1,
        offset=block.end_offset,
        term=block.last_term or 1 if term is None else term,
        append_time=max(block.last_append_time, EPOCH) if append_time is None else append_time,
        commit_index=commit_index,
    )


def control(block: Block, payload: bytes = b"\x80", *, seal: bool = False, commit_index: int = 0) -> Batch:
    return stamped(
        control_batch(payload, seal=seal),
        index=block.last_index + 1,
        offset=block.end_offset,
        term=block.last_term or 1,
        append_time=max(block.last_append_time, EPOCH),
        commit_index=commit_index,
    )


def new_block(files: Files, folder: str = "/data/Block_1", *, start_offset: int = 0, config: Config = SMALL) -> Block:
    return Block.create(
        files, folder, start_offset=start_offset, config=config, handles=Handles(files, config.open_files_max)
    )


def reopened(files: Files, folder: str = "/data/Block_1", *, config: Config = SMALL, verify: bool = False) -> Block:
    return Block.open(files, folder, config=config, handles=Handles(files, config.open_files_max), verify=verify)


def new_log(files: Files, folder: str = "/data/p", *, config: Config = SMALL) -> PartitionLog:
    return PartitionLog.create(files, folder, config=config, handles=Handles(files, config.open_files_max))


def reopened_log(files: Files, folder: str = "/data/p", *, config: Config = SMALL) -> PartitionLog:
    return PartitionLog.open(files, folder, config=config, handles=Handles(files, config.open_files_max))


def fill(block: Block, batches: int, *, messages: int = 3, size: int = 100) -> list[bytes]:
    """Append batches one by one, sync and commit; return all values in order."""
    values: list[bytes] = []
    for _ in range(batches):
        some = [b"%08d" % (block.end_offset + n) + b"." * (size - 8) for n in range(messages)]
        block.append([following(block, some)])
        values += some
    block.sync()
    block.commit_all()
    return values


def values_of(block: Block) -> list[bytes]:
    """Read all that is committed, the way a consumer would."""
    values: list[bytes] = []
    offset = block.start_offset
    while offset < block.end_offset:
        data = block.read(offset, 4096)
        if not data:
            break
        while data:
            batch = Batch.parse(data)
            batch.check()
            if batch.count:
                values += batch.values()
                offset = batch.end_offset
            data = data[batch.length :]
    return values
