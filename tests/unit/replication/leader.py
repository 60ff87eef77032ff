"""Plays the driver of a leading replica: judges, stamps and appends to a list, and applies what is in it."""

from __future__ import annotations

from functools import lru_cache

from clymq.record import Batch, BatchBuilder
from clymq.replication.entries import BeLeader, Entry, Genesis, Seal, batch_of
from clymq.replication.machine import Answer, PartitionMachine
from clymq.replication.producers import Duplicate, Initialised
from factory import EPOCH, stamped

UID = b"u" * 16
HOUR_US = 3600 * 1_000_000
DAY_US = 24 * HOUR_US


def named(name: str) -> bytes:
    """Return a producer id that can be read in a failing test."""
    return name.encode().ljust(16, b".")


@lru_cache(maxsize=4096)
def data(producer: str, cmdindex: int, count: int = 1, *, epoch: int = 1, sparse: bool = False) -> bytes:
    messages = BatchBuilder().add_values([b"x"] * count)
    return messages.build(producer=named(producer), cmdindex=cmdindex, epoch=epoch, sparse=sparse, now=EPOCH)


class Leader:
    def __init__(self, *, snapshot: bytes = b"", leases: tuple[bytes, ...] = (), start: int = 0, **limits: int) -> None:
        self.machine = PartitionMachine(**limits)
        self.log: list[Batch] = []
        self.start = start
        self.term = 0
        self.now = EPOCH
        self.append(batch_of(Genesis(uid=UID, snapshot=snapshot, leases=leases)))
        self.elected = self.elect()

    @property
    def end(self) -> int:
        return self.log[-1].end_offset if self.log else self.start

    def elect(self) -> Answer:
        self.term += 1
        self.machine.lead(self.term)
        self.append(batch_of(BeLeader(replica="Broker0")))
        return self.apply()

    def append(self, batch: bytes) -> Batch:
        index = len(self.log) + 1
        self.log.append(stamped(batch, index=index, offset=self.end, term=self.term, append_time=self.now))
        return self.log[-1]

    def propose(self, entry: Entry) -> int:
        """Append an entry without applying it; return its index."""
        batch = self.append(batch_of(entry))
        self.machine.submitted(batch.index, batch)
        return batch.index

    def push(
        self, producer: str, cmdindex: int, count: int = 1, *, epoch: int = 1, sparse: bool = False
    ) -> Batch | Duplicate:
        """Append a batch without applying it, unless it is a duplicate."""
        pushed = data(producer, cmdindex, count, epoch=epoch, sparse=sparse)
        duplicate = self.machine.judge(Batch.parse(pushed))
        if duplicate:
            return duplicate
        batch = self.append(pushed)
        self.machine.submitted(batch.index, batch)
        return batch

    def apply(self, count: int | None = None) -> Answer:
        """Apply so many entries, or all; return the answer to the last."""
        answer: Answer = None
        first = self.machine.applied
        for batch in self.log[first : None if count is None else first + count]:
            answer = self.machine.apply(batch.index, batch)
        return answer

    def commit(self, entry: Entry) -> Answer:
        self.propose(entry)
        return self.apply()

    def init(self, producer: str) -> Initialised:
        answer = self.commit(self.machine.init_producer(named(producer), now=self.now))
        assert isinstance(answer, Initialised)
        return answer

    def lose_leadership(self, *, keep: int = 0) -> None:
        """Step down; of what is not applied the next leader has only the first `keep` entries."""
        del self.log[self.machine.applied + keep :]
        self.machine.roll_back()

    def seal(self, leases: tuple[bytes, ...] = ()) -> Seal:
        entry = self.machine.seal(end=self.end, now=self.now, leases=leases)
        self.commit(entry)
        return entry

    def next_block(self, seal: Seal, **limits: int) -> Leader:
        following = Leader(snapshot=seal.snapshot, leases=seal.leases, start=seal.end, **limits)
        following.now = self.now
        return following
