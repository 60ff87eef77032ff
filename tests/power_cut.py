"""A random workload on a partition's log during which the power goes after every single operation of the disk.

After each cut: everything whose sync had returned is there, nothing that was never appended is, offsets are dense, no
loss is reported (nothing rotted), what was sealed is sealed, the vote is the last one or the one being written, and
appends go on.
"""

from __future__ import annotations

import random

from clymq.config import Config
from clymq.record import Batch, BatchBuilder, control_batch
from clymq.storage.log import PartitionLog
from clymq.storage.memory import MemoryFiles
from clymq.storage.vote import Vote, VoteFile
from factory import EPOCH, new_log, reopened_log, stamped

CONFIG = Config(index_interval_bytes=1024, disk_reserve_bytes=0, set_aside_files_max=2, set_aside_bytes_max=4096)
OPERATIONS = 300


class Model:
    """What must be found after a crash. While a change is under way, either side of it will do."""

    def __init__(self) -> None:
        self.possible: list[list[bytes]] = [[]]
        self.starts = [0]
        self.durable_end = 0
        self.votes = [Vote()]

    @property
    def messages(self) -> list[bytes]:
        return self.possible[-1]

    def settle(self) -> None:
        self.possible = self.possible[-1:]
        self.starts = self.starts[-1:]
        self.votes = self.votes[-1:]

    def check(self, log: PartitionLog, vote: VoteFile) -> None:
        assert log.losses == []
        assert log.start_offset in self.starts
        assert log.end_offset >= self.durable_end
        values = read_all(log)
        assert len(values) == log.end_offset - log.start_offset
        assert any(values == sequence[log.start_offset : log.end_offset] for sequence in self.possible)
        assert vote.vote in self.votes
        assert not vote.damaged


def read_all(log: PartitionLog) -> list[bytes]:
    for block in log.blocks.values():
        block.commit_all()
    values: list[bytes] = []
    for batch in log.batches(log.start_offset):
        values += batch.values()
    return values


class Workload:
    """Random operations of an owner that keeps the rules, with a power cut after every operation of the disk."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = MemoryFiles()
        self.model = Model()
        self.log = new_log(self.files, config=CONFIG)
        self.vote = VoteFile.open(self.files, "/data/vote", create=True)
        self.crashes = 0
        self.sent: dict[tuple[int, int], Batch] = {}
        self.files.on_operation = self.power_cut

    def run(self) -> int:
        choices = [self.append] * 9 + [self.sync] * 4 + [self.checkpoint, self.truncate] + [self.roll, self.drop] * 2
        choices += [self.save_vote, self.reopen]
        for _ in range(OPERATIONS):
            self.chance.choice(choices)()
            self.model.settle()
        return self.crashes

    def power_cut(self, operation: str, path: str) -> None:
        self.crashes += 1
        after = self.files.crash(self.chance)
        if self.crashes % 7 == 0:
            # Again while the first recovery runs: it must be as safe to interrupt as anything else.
            after = self.recover_interrupted(after)
        log, vote = reopened_log(after, config=CONFIG), VoteFile.open(after, "/data/vote")
        self.model.check(log, vote)
        for number, block in self.log.blocks.items():
            durably_sealed = block.sealed and block.synced_position == block.end_position
            assert not durably_sealed or number not in log.blocks or log.blocks[number].sealed
        if self.crashes % 3 == 0:
            self.go_on(after, log)

    def recover_interrupted(self, files: MemoryFiles) -> MemoryFiles:
        """Return what a power cut leaves at some moment of a recovery."""
        states: list[MemoryFiles] = []
        files.on_operation = lambda operation, path: states.append(files.crash(self.chance))
        reopened_log(files, config=CONFIG)
        return self.chance.choice(states)

    def go_on(self, files: MemoryFiles, log: PartitionLog) -> None:
        if log.active.sealed:
            log.roll()
        # Half of the time what was lost is sent again, byte for byte, as a producer does.
        lost = self.sent.get((log.active_number, log.active.last_index + 1))
        resend = lost is not None and lost.base_offset == log.end_offset and self.chance.random() < 0.5
        batch = lost if resend else self.batch(log, [b"after the crash"])
        log.append([batch])
        log.active.sync()
        again = reopened_log(files.crash(self.chance), config=CONFIG)
        assert again.end_offset == batch.end_offset
        assert again.active.read_at(again.active.position_of(batch.index), 1, again.active.end_position) == batch.buffer

    def batch(
        self,
        log: PartitionLog,
        values: list[bytes],
        *,
        seal: bool = False,
        index: int | None = None,
        offset: int | None = None,
    ) -> Batch:
        block = log.active
        codec = self.chance.choice(["none", "none", "lz4"])
        data = (
            control_batch(b"\x80", seal=seal)
            if not values
            else BatchBuilder(codec).add_values(values).build(producer="p", cmdindex=1, now=EPOCH)
        )
        return stamped(
            data,
            index=block.last_index + 1 if index is None else index,
            offset=block.end_offset if offset is None else offset,
            append_time=EPOCH,
            commit_index=block.commit_index,
        )

    # --- What the owner does ---

    def append(self) -> None:
        if self.log.active.sealed:
            return
        batches, messages, index, offset = (
            [],
            list(self.model.messages),
            self.log.active.last_index,
            self.log.end_offset,
        )
        for _ in range(self.chance.choice([1, 1, 1, 4])):
            values = [
                b"%d %d " % (len(messages) + n, self.chance.getrandbits(32)) + b"." * self.chance.randint(0, 400)
                for n in range(self.chance.randint(0, 3))
            ]
            index += 1
            batch = self.batch(self.log, values, index=index, offset=offset)
            offset = batch.end_offset
            messages += values
            batches.append(batch)
            self.sent[self.log.active_number, index] = batch
        self.model.possible.append(messages)
        self.log.append(batches)

    def sync(self) -> None:
        if self.chance.random() < 0.5:
            self.log.active.sync()
            self.model.durable_end = self.log.end_offset
        else:
            # Off the loop, while appends go on: only what was there when it began is promised.
            end = self.log.end_offset
            self.log.active.sync_soon(lambda error: None)
            self.append()
            self.files.run_syncs()
            self.model.durable_end = end
            return
        if self.chance.random() < 0.7:
            self.log.active.commit_all()

    def checkpoint(self) -> None:
        block = self.log.active
        committed = block.committed_position
        if committed and committed <= block.synced_position:
            last = max(i for i in range(1, block.last_index + 1) if block.end_at(i).position <= committed)
            block.write_checkpoint(self.chance.randint(1, last), self.chance.randbytes(50))

    def truncate(self) -> None:
        block = self.log.active
        free = [i for i in range(1, block.last_index + 1) if block.position_of(i) >= block.committed_position]
        if free:
            index = self.chance.choice(free)
            end = block.end_at(index - 1).offset
            self.model.durable_end = min(self.model.durable_end, end)
            self.model.possible.append(self.model.messages[:end])
            block.truncate(index)

    def roll(self) -> None:
        block = self.log.active
        block.sync()
        self.model.durable_end = self.log.end_offset
        block.commit_all()
        self.log.roll(None if block.sealed else self.batch(self.log, [], seal=True), state=b"s")

    def drop(self) -> None:
        if len(self.log.blocks) > 3:
            oldest = min(self.log.blocks)
            self.model.starts.append(sorted(self.log.blocks.items())[1][1].start_offset)
            self.log.drop([oldest])

    def save_vote(self) -> None:
        vote = Vote(self.chance.getrandbits(30), f"Broker{self.chance.randint(0, 4)}", self.chance.getrandbits(8))
        self.model.votes.append(vote)
        self.vote.save(vote)

    def reopen(self) -> None:
        self.log.close()
        self.log = reopened_log(self.files, config=CONFIG)
        self.model.durable_end = self.log.end_offset
        self.vote = VoteFile.open(self.files, "/data/vote")
