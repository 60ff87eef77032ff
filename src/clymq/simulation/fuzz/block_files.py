"""Files of a broker's data folder: a block's log, index, checkpoint and vote, and the lists beside them.

What is read must be what was written, unless the input's checksums were set right again: then anything may be read,
but nothing may crash. A block that was opened once must open again, with the same end.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import struct
import tempfile
from random import Random
from typing import Final

from clymq.config import Config
from clymq.errors import BlockSealed, ClymqError, CorruptBatch, StorageError
from clymq.record import Batch, BatchBuilder, control_batch
from clymq.record.layout import FORMAT_BYTES_MAX, HEADER_BYTES, MAGIC
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.simulation.fuzz.batches import crc, mended
from clymq.simulation.fuzz.mutation import number, spoilt
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated
from clymq.storage.block import Block
from clymq.storage.checkpoint import HEADER_BYTES as CHECKPOINT_BYTES
from clymq.storage.files import Files, RealFiles
from clymq.storage.folder import DataFolder
from clymq.storage.handles import Handles
from clymq.storage.index import ENTRY_BYTES
from clymq.storage.memory import MemoryFiles
from clymq.storage.replace import make_folders, read_whole
from clymq.storage.vote import SLOT_BYTES, Vote, VoteFile

CONFIG: Final = Config(index_interval_bytes=1024, disk_reserve_bytes=0)
FOLDER: Final = "/data/Block_1"
NAMES: Final = ("batches", "index", "checkpoint", "vote", "hosted", "disk")
REPAIRED: Final = b"repaired"
ON_DISK: Final = b"on disk"
# The operating system has opinions of its own about absurd positions, but a real disk is slow.
_ON_DISK_SHARE: Final = 0.01
_U32: Final = struct.Struct("<I")
_SOME_TIME: Final = 1_700_000_000_000_000


class BlockFiles(Target):
    """The first part says how; the others are the files, in the order of `NAMES`."""

    name = "block"
    full = 100_000
    usual = 4_000
    seconds_max = 10.0
    bytes_max = 24 * MiB
    wanted = ("whole", "torn", "lost", "refused")

    def open(self) -> None:
        """Write blocks in good order, and make a place for real files."""
        self._good = [
            _written(batches, seal=seal) for batches, seal in ((0, False), (1, False), (12, False), (9, True))
        ]
        self._values = {value for folder in self._good for value in _values_in(folder[0])}
        self._place = tempfile.mkdtemp(prefix="clymq-fuzz-")
        self._folders = itertools.count()

    def close(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._place, ignore_errors=True)

    def make(self, chance: Random) -> Input:
        """Spoil some files of a folder."""
        folder = list(chance.choice(self._good))
        repair = chance.random() < 0.5
        for at in {chance.randrange(len(NAMES)) for _ in range(chance.choice((1, 1, 2, 6)))} | {chance.randrange(4)}:
            others = [each[at] for each in self._good]
            folder[at] = spoilt(chance, folder[at], others, front=300) if chance.random() < 0.9 else b""
            if repair:
                folder[at] = _repaired(chance, NAMES[at], folder[at])
        how = REPAIRED if repair else b"as it is"
        return (how + b" " + ON_DISK if chance.random() < _ON_DISK_SHARE else how), *folder

    def run(self, given: Input) -> str:
        """Open everything, the way a broker that starts does; read it, append, and open it again."""
        how, *contents = given
        if ON_DISK not in how:
            return self._tried(MemoryFiles(), FOLDER, contents, trusted=REPAIRED not in how)
        files, folder = RealFiles(), f"{self._place}/{next(self._folders)}"
        try:
            return self._tried(files, f"{folder}/Block_1", contents, trusted=REPAIRED not in how)
        finally:
            files.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _tried(self, files: Files, folder: str, contents: list[bytes], *, trusted: bool) -> str:
        make_folders(files, folder)
        for name, content in zip(NAMES, contents, strict=False):
            _write(files, f"{folder}/{name}", content)
        _open_lists(files, folder)
        outcome = self._opened(files, folder, trusted=trusted)
        if outcome != "refused":
            again = self._opened(files, folder, trusted=trusted)
            if again == "refused":
                raise Violated("a block that could be opened cannot be opened again")
        return outcome

    def _opened(self, files: Files, folder: str, *, trusted: bool) -> str:
        handles = Handles(files, CONFIG.open_files_max)
        try:
            block = Block.open(files, folder, config=CONFIG, handles=handles)
        except StorageError:
            return "refused"
        try:
            outcome = "lost" if block.loss else "torn" if _set_aside(files, folder) else "whole"
            values = _read_all(block)
            if trusted and not set(values) <= self._values:
                raise Violated("a value was read that nobody wrote")
            _use(block)
        finally:
            block.close()
            handles.close()
        return outcome


def _read_all(block: Block) -> list[bytes]:
    """Read what is committed, as a consumer does; where that fails it is with an error of ours."""
    values: list[bytes] = []
    offset = block.start_offset
    try:
        while offset < block.end_offset:
            data = block.read(offset, 4096)
            if not data:
                break
            while data:
                batch = Batch.parse(data)
                if batch.count:
                    values += batch.values()
                    if batch.end_offset <= offset:
                        raise CorruptBatch("base_offset", f"{batch.base_offset} does not follow {offset}")
                    offset = batch.end_offset
                data = data[batch.length :]
    except ClymqError:
        pass
    return values


def _use(block: Block) -> None:
    """Look for a time, restore the state, append and write a checkpoint, as whoever owns the block would."""
    with contextlib.suppress(ClymqError):
        PartitionMachine().restore(block.checkpoint.state)
    with contextlib.suppress(ClymqError):
        block.locate_time(_SOME_TIME)
    with contextlib.suppress(ClymqError):
        list(itertools.islice(block.headers(1), 1000))
    block.acknowledge_loss()
    try:
        batch = Batch.parse(bytearray(BatchBuilder().add(b"value 0").build(producer="p", cmdindex=1, now=_SOME_TIME)))
        batch.stamp(
            base_offset=block.end_offset,
            term=block.last_term,
            index=block.last_index + 1,
            append_time=block.last_append_time,
            commit_index=0,
        )
        block.append([batch])
        block.sync()
        block.commit_all()
        block.write_checkpoint(block.last_index, b"")
    except (StorageError, BlockSealed):
        pass


def _open_lists(files: Files, folder: str) -> None:
    with contextlib.suppress(StorageError):
        VoteFile.open(files, f"{folder}/vote").save(Vote(1, "Broker0"))
    with contextlib.suppress(StorageError):
        Hosted.open(files, f"{folder}/hosted").add("x")
    with contextlib.suppress(StorageError):
        _kept_line(files, folder)


def _kept_line(files: Files, folder: str) -> None:
    data = DataFolder.open(files, folder, CONFIG)
    try:
        data.identity(lambda: "disk 1")
    finally:
        data.close()


def _set_aside(files: Files, folder: str) -> bool:
    return any(name.endswith((".torn", ".bad")) for name in files.names(folder))


def _write(files: Files, path: str, content: bytes) -> None:
    file = files.open(path, create=True)
    file.write(0, [content])
    file.close()


# --- What is spoilt ---


def _written(batches: int, *, seal: bool) -> tuple[bytes, ...]:
    """Write a block and what is beside it; return the files."""
    files = MemoryFiles()
    handles = Handles(files, CONFIG.open_files_max)
    block = Block.create(files, FOLDER, start_offset=7, config=CONFIG, handles=handles)
    for at in range(batches):
        last = seal and at == batches - 1
        values = [b"value %d %d" % (at, n) + b"." * 40 for n in range(at % 5 + 1)]
        data = control_batch(b"\x80", seal=last) if at % 4 == 3 or last else _data(values, at)
        batch = Batch.parse(bytearray(data))
        batch.stamp(
            base_offset=block.end_offset,
            term=1 + at // 5,
            index=at + 1,
            append_time=_SOME_TIME + at,
            commit_index=max(0, at - 2),
        )
        block.append([batch])
    block.sync()
    block.commit_all()
    block.write_checkpoint(batches * 2 // 3, PartitionMachine().checkpoint())
    VoteFile.open(files, f"{FOLDER}/vote", create=True).save(Vote(3, "Broker0", 1, 2))
    Hosted.open(files, f"{FOLDER}/hosted").add("a block")
    DataFolder.open(files, FOLDER, CONFIG).identity(lambda: "disk 1")
    block.rest()
    return tuple(read_whole(files, f"{FOLDER}/{name}") or b"" for name in NAMES)


def _data(values: list[bytes], at: int) -> bytes:
    builder = BatchBuilder(("none", "lz4", "zstd")[at % 3])
    return builder.add_values(values).build(producer="p", cmdindex=at + 1, now=_SOME_TIME + at)


def _values_in(log: bytes) -> list[bytes]:
    found, position = [b"value 0"], 0
    while position < len(log):
        batch = Batch.parse(log, position, batch_bytes_max=FORMAT_BYTES_MAX)
        found += batch.values() if batch.count else []
        position += batch.length
    return found


def _repaired(chance: Random, name: str, data: bytes) -> bytes:
    """Give a file the checksums that it should have; now and then with a number in it that is absurd."""
    if name == "batches":
        return _repaired_log(data)
    if name == "index":
        return b"".join(_summed(data[at : at + ENTRY_BYTES], 32) for at in range(0, len(data), ENTRY_BYTES))
    if name == "vote":
        return b"".join(_summed(data[at : at + SLOT_BYTES], SLOT_BYTES - 4) for at in range(0, len(data), SLOT_BYTES))
    if name == "checkpoint":
        return _repaired_checkpoint(chance, data)
    head, between = (data.partition(b"\n")[2], b"\n") if name == "hosted" else (data.partition(b" ")[2], b" ")
    return b"%08x" % crc(head) + between + head


def _repaired_log(log: bytes) -> bytes:
    """Go from batch to batch by what their headers say."""
    parts, position = [], 0
    while position < len(log):
        rest = log[position:]
        if not rest.startswith(MAGIC) or len(rest) < HEADER_BYTES:
            behind = log.find(MAGIC, position + 1)
            behind = len(log) if behind < 0 else behind
            parts.append(log[position:behind])
            position = behind
            continue
        length = HEADER_BYTES + (_U32.unpack_from(rest, 12)[0] + 7) // 8 * 8
        parts.append(mended(rest[:length]))
        position += length
    return b"".join(parts)


def _repaired_checkpoint(chance: Random, data: bytes) -> bytes:
    if len(data) < CHECKPOINT_BYTES:
        return data
    head, state = bytearray(data[: CHECKPOINT_BYTES - 4]), data[CHECKPOINT_BYTES:]
    if chance.random() < 0.5:
        at = 8 * chance.randrange(1, 13)
        head[at : at + 8] = (number(chance) % 2**64).to_bytes(8, "little")
    head[96:104] = len(state).to_bytes(8, "little")
    return bytes(head) + _U32.pack(crc(bytes(head) + state)) + state


def _summed(record: bytes, at: int) -> bytes:
    if len(record) < at + 4:
        return record
    return record[:at] + _U32.pack(crc(record[:at])) + record[at + 4 :]
