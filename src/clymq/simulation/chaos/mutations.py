"""Brokers that break one rule each, to prove that the checker bites; see docs/testing.md for which run catches which.

Each mutation replaces methods of the product by ones that lack a rule, in the process of a broker that the launcher
starts. The mutations of `clymq.simulation.mutations`, which break replicas, can be had here too, by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from clymq.broker.broker import Broker
from clymq.broker.raft_block import RaftBlock
from clymq.broker.sealed_block import SealedBlock
from clymq.broker.subscriptions.leases import GroupLeases, Offer
from clymq.broker.subscriptions.spans import Spans
from clymq.errors import UnknownProducer
from clymq.protocol.verbs import Done
from clymq.record import Header
from clymq.record.batch import Batch
from clymq.replication.entries import Genesis
from clymq.replication.fetch_driver import FetchDriver
from clymq.replication.fetch_holders import Holders
from clymq.replication.fetch_leader import FetchLeader
from clymq.replication.machine import PartitionMachine, State
from clymq.replication.producers import Producers, ProducerState, Submitted
from clymq.replication.raft_driver import RaftDriver
from clymq.replication.raft_partition import RaftPartition, Stored
from clymq.replication.replica import Replica
from clymq.rpc.peer import Call
from clymq.simulation.mutations import MUTATIONS as OF_REPLICAS
from clymq.simulation.mutations import Patches
from clymq.storage.block import Block
from clymq.storage.files import RealFile


def ack_before_commit() -> Patches:
    """A leader acknowledges a push when it has appended it, whatever becomes of it."""
    original = RaftPartition.push

    def push(self: RaftPartition, batches: Sequence[Batch], answer: Callable[[Any], None]) -> None:
        answered: list[object] = []

        def once(outcome: Any) -> None:
            if not answered:
                answered.append(outcome)
                answer(outcome)

        original(self, batches, once)
        once([Stored(batch.base_offset, duplicate=False) for batch in batches])

    return [(RaftPartition, "push", push)]


def ack_before_fsync() -> Patches:
    """Nobody waits for the disk: what is acknowledged may be gone with the power."""
    return [(RealFile, "sync", lambda self: None)]


def serve_uncommitted() -> Patches:
    """A leader shows readers everything that it has appended."""

    def read(self: RaftDriver, offset: int, bytes_max: int) -> memoryview:
        block = self.replica.block
        return block.read_at(block.locate(offset), bytes_max, block.end_position)

    def write(self: RaftDriver, entries: Any) -> None:
        original(self, entries)
        advanced = getattr(self._owner, "on_advance", None)
        if advanced is not None:
            advanced()

    original = RaftDriver._write
    end = property(lambda self: self.driver.replica.block.end_offset)
    return [(RaftBlock, "end", end), (RaftDriver, "read", read), (RaftDriver, "_write", write)]


def show_what_only_the_leader_has() -> Patches:
    """A fetch leader shows readers what no follower has pulled."""
    original = Holders.__init__

    def init(self: Holders, group: Any, _: str) -> None:
        original(self, group, "leader")

    return [(Holders, "__init__", init)]


def ignore_sessions() -> Patches:
    """A fetch leader goes on without a session with the store, beside the one that was put in its place."""
    return [(FetchLeader, "_unconfirmed", lambda self: None), (FetchDriver, "lose_session", lambda self: None)]


def let_zombies_write() -> Patches:
    """Nobody looks at the epoch of a batch, so that a producer's former process goes on beside the present one."""

    def state_of(self: Submitted, header: Header) -> ProducerState:
        state = self.producers.by_id.get(header.producer)
        if state is None:
            raise UnknownProducer(f"producer {header.producer.hex()} is not known here")
        return state

    def store(self: Producers, header: Header) -> int:
        state = self.by_id[header.producer]
        self.by_id[header.producer] = state.after(header)
        return state.last

    return [(Submitted, "_state_of", state_of), (Producers, "store", store)]


def never_deduplicate() -> Patches:
    """A batch that is sent again is stored again."""

    def store(self: Producers, header: Header) -> int:
        state = self.by_id[header.producer]
        self.by_id[header.producer] = state.after(header)
        return state.last

    return [
        (Submitted, "judge", lambda self, header: None),
        (Submitted, "store", lambda self, header, index, *, applied: None),
        (Producers, "store", store),
    ]


def forget_commits() -> Patches:
    """A position that a group commits is acknowledged and goes nowhere."""

    def commit_offset(self: Broker, call: Call) -> None:
        del self
        call.reply(Done())

    return [(Broker, "_commit_offset", commit_offset)]


def forget_the_block_before() -> Patches:
    """A new block begins without what the one before knew of producers and groups."""

    def begin(self: PartitionMachine, index: int, entry: Genesis) -> None:
        del index, entry
        self._state = State()

    return [(PartitionMachine, "_begin", begin)]


def trust_an_empty_disk() -> Patches:
    """A broker whose files were wiped begins anew in the name of the old one."""
    original = Replica.begin

    def begin(self: Replica, hosted: Any, name: str, **fields: Any) -> None:
        original(self, hosted, name, **{**fields, "named_here": True})

    return [(Replica, "begin", begin)]


def serve_a_block_that_is_not_whole() -> Patches:
    """A replica of a sealed block takes itself for whole, whatever it lacks, and answers readers with what it has."""

    def settle(self: SealedBlock, block: Block) -> None:
        self.whole = True
        block.commit_all()
        block.rest()

    return [(SealedBlock, "_settle", settle)]


def forget_leases() -> Patches:
    """A leader forgets one lease in eight as soon as it has given it, and gives the same messages to the next."""
    original = GroupLeases._claimed

    def claimed(self: GroupLeases, offer: Offer) -> Spans:
        spans = original(self, offer)
        if offer.start % 8 == 0 and offer.deliveries == 0:
            self._free.add(offer.start, offer.end)
        return spans

    return [(GroupLeases, "_claimed", claimed)]


OF_BROKERS: Final[dict[str, Callable[[], Patches]]] = {
    mutation.__name__: mutation
    for mutation in (
        ack_before_commit,
        ack_before_fsync,
        serve_uncommitted,
        show_what_only_the_leader_has,
        ignore_sessions,
        let_zombies_write,
        never_deduplicate,
        forget_commits,
        forget_the_block_before,
        trust_an_empty_disk,
        serve_a_block_that_is_not_whole,
        forget_leases,
    )
}
# Those of replicas that only the simulator can have: `trust_an_empty_disk` is what this one is on real disks.
_OF_THE_SIMULATOR: Final = frozenset({"trust_a_wiped_disk"})
MUTATIONS: Final = {
    **{name: mutation for name, mutation in OF_REPLICAS.items() if name not in _OF_THE_SIMULATOR},
    **OF_BROKERS,
}


@contextmanager
def applied(name: str | None) -> Iterator[None]:
    """Break one rule for a while; none if no name is given."""
    with ExitStack() as stack:
        for owner, attribute, replacement in MUTATIONS[name]() if name else ():
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        yield
