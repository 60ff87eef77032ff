"""A partition's log against a plain list: whatever is done to both, they say the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clymq.config import Config
from clymq.errors import BlockSealed, OffsetOutOfRange
from clymq.record import Batch
from clymq.storage.memory import MemoryFiles
from factory import EPOCH, control, following, new_log, reopened_log

CONFIG = Config(index_interval_bytes=1024, disk_reserve_bytes=0, open_files_max=2, block_bytes_max=64 * 1024)
TIMES = st.integers(0, 50)


class LogModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.log = new_log(self.files, config=CONFIG)
        # One item per message: value, timestamp, entry index in its block, block number.
        self.messages: list[tuple[bytes, int, int, int]] = []
        self.start = 0
        self.synced = 0
        self.committed = 0

    # --- Changes ---

    @rule(sizes=st.lists(st.integers(0, 300), max_size=5), time=TIMES, codec=st.sampled_from(["none", "lz4", "zstd"]))
    def append(self, sizes: list[int], time: int, codec: str) -> None:
        block = self.log.active
        values = [b"%d:" % (len(self.messages) + n) + b"x" * size for n, size in enumerate(sizes)]
        batch = following(block, values, timestamp=time, codec=codec) if values else control(block)
        if block.sealed:
            with pytest.raises(BlockSealed):
                self.log.append([batch])
            return
        self.log.append([batch])
        self.messages += [(value, time, batch.index, self.log.active_number) for value in values]

    @rule()
    def sync(self) -> None:
        self.log.active.sync()
        self.synced = len(self.messages)

    @rule()
    def commit(self) -> None:
        self.sync()
        self.log.active.commit_all()
        self.committed = len(self.messages)

    @rule()
    def checkpoint(self) -> None:
        self.commit()
        self.log.active.write_checkpoint(self.log.active.last_index, b"state")

    @precondition(lambda self: self.log.active.end_position > self.log.active.committed_position)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        block = self.log.active
        lowest = next(i for i in range(1, block.last_index + 1) if block.position_of(i) >= block.committed_position)
        index = data.draw(st.integers(lowest, block.last_index + 1))
        block.truncate(index)
        number = self.log.active_number
        self.messages = [m for m in self.messages if m[3] < number or m[2] < index]
        self.synced = min(self.synced, len(self.messages))

    @rule()
    def roll(self) -> None:
        block = self.log.active
        self.log.roll(None if block.sealed else control(block, seal=True), state=b"s")
        self.synced = self.committed = len(self.messages)

    @rule(keep=st.integers(0, 30_000))
    def retain(self, keep: int) -> None:
        # The log judges by its config; here the limit is drawn.
        self.log._config = Config(**{**_fields(CONFIG), "retention_bytes": keep, "retention_ms": -1})
        due = self.log.retention_due(EPOCH)
        sizes = {number: block.end_position for number, block in self.log.blocks.items()}
        expected: list[int] = []
        for number in sorted(sizes)[:-1]:
            if sum(sizes.values()) - sum(sizes[n] for n in expected) <= keep:
                break
            expected.append(number)
        assert due == expected
        self.log.drop(due)
        self.start = self.log.start_offset

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = reopened_log(self.files, config=CONFIG)
        self.synced = len(self.messages)
        self._committed_again()

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        self.files = self.files.crash(random.Random(seed))
        self.log = reopened_log(self.files, config=CONFIG)
        assert self.log.losses == []
        assert self.synced <= self.log.end_offset <= len(self.messages)
        del self.messages[self.log.end_offset :]
        self.synced = len(self.messages)
        self._committed_again()

    def _committed_again(self) -> None:
        """After opening, what a checkpoint or a batch names is committed; the owner says the rest."""
        self.log.active.commit_all()
        self.committed = len(self.messages)

    # --- What must hold ---

    @invariant()
    def offsets_are_those_of_the_list(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.messages))

    @invariant()
    def all_that_is_committed_is_read_in_order(self) -> None:
        values = [value for batch in self.log.batches(self.start, bytes_max=700) for value in batch.values()]
        committed = [m[0] for m in self.messages[self.start : self.committed]]
        assert values[: len(committed)] == committed
        assert len(values) == len(committed)

    @rule(data=st.data())
    def read_somewhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start - 2, len(self.messages) + 2))
        if not self.start <= offset <= len(self.messages):
            with pytest.raises(OffsetOutOfRange):
                self.log.read(offset, 100)
        elif offset < self.committed:
            batch = Batch.parse(self.log.read(offset, 100))
            assert batch.values()[offset - batch.base_offset] == self.messages[offset][0]
        else:
            assert len(self.log.read(offset, 100)) == 0

    @rule(time=TIMES)
    def find_a_time(self, time: int) -> None:
        later = (n for n in range(self.start, self.committed) if self.messages[n][1] >= time)
        assert self.log.locate_time(time) == next(later, len(self.messages))


def _fields(config: Config) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(stateful_step_count=60, max_examples=5 * settings().max_examples)
