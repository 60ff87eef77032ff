"""Each checker of clusters, told of what it must catch, and of the same without the mistake."""

from __future__ import annotations

from typing import Any

import pytest

from clymq.metadata.nodes import Mirror, NowBlock, Partition, Pending, SealedBlock, encode
from clymq.protocol.broker import Push, Pushed, StoredAt
from clymq.protocol.hosting import BlockClosed, CloseAccept
from clymq.simulation.cluster.checkers import Checkers, Tree
from clymq.simulation.cluster.history import History, Log
from clymq.simulation.cluster.watching import Served

PATH = "/Topics/t/Partitions/p"
PLACE = ("t", "p")


class Told:
    """Checkers, and what they complain of."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.checkers = Checkers(self.complaints.append, lambda _: None)
        self.history = History(self.complaints.append)

    @property
    def by(self) -> list[str]:
        return [complaint.partition(":")[0] for complaint in self.complaints]

    def store(self, **nodes: Any) -> None:
        paths = {name: PATH if name == "partition" else f"{PATH}/{name}" for name in nodes}
        self.checkers.stored({paths[name]: encode(value) for name, value in nodes.items()})

    def intend(self, block: int) -> None:
        pending = Pending(block=block, epoch=block, mode=1, dupnum=3, replicas=())
        self.store(partition=partition(block, pending=pending))

    def move(self, block: int, start: int = 0, **nodes: Any) -> None:
        self.store(partition=partition(block + 1), NowBlock=NowBlock(block=block, start=start, epoch=block), **nodes)

    def begin(self) -> None:
        """Make a partition with its first block active."""
        self.store(partition=partition(1), NowBlock=NowBlock())
        self.intend(1)
        self.move(1)

    def answer(self, broker: str, request: Any, reply: Any, **served: int) -> None:
        self.checkers.answered(broker, request, reply, Served(**served))


def partition(next_block: int, pending: Pending | None = None) -> Partition:
    return Partition(name="p", uid="u", state=1, next_block=next_block, epoch=next_block - 1, pending=pending)


def sealed(block: int, start: int, end: int, crc: int = 7) -> SealedBlock:
    return SealedBlock(block=block, start=start, end=end, mode=1, seal_index=9, seal_crc=crc)


def close(epoch: int, *, block: int = 1, fence: bool = False, seal: bool = False) -> CloseAccept:
    return CloseAccept("t", "p", "u", block, epoch, fence=fence, seal=seal)


def push() -> Push:
    return Push("t", "p", "u", "producer", 1, 1)


CLOSED = BlockClosed(start=0, end=10, seal_index=9, seal_crc=7)


@pytest.fixture
def told() -> Told:
    made = Told()
    made.begin()
    return made


def test_a_chain_that_moves_as_it_should_is_no_violation(told: Told) -> None:
    told.intend(2)
    told.move(2, 10, Block_1=sealed(1, 0, 10))
    told.store(Mirror=Mirror(ends={1: 10}, lost={1: 3}))
    assert told.by == []


@pytest.mark.parametrize(("start", "end"), [(9, 10), (11, 10)])
def test_blocks_that_do_not_adjoin_are_caught(told: Told, start: int, end: int) -> None:
    told.intend(2)
    told.move(2, start, Block_1=sealed(1, 0, end))
    assert told.by == ["ChainAdjoins"]


def test_a_block_that_vanishes_from_the_middle_is_caught(told: Told) -> None:
    told.intend(2)
    told.move(2)
    assert told.by == []  # the first may go: that is retention
    told.intend(3)
    told.move(3, 5, Block_1=sealed(1, 0, 5))
    assert told.by == ["ChainAdjoins"]


def test_a_sealed_block_that_changes_is_caught(told: Told) -> None:
    told.intend(2)
    told.move(2, 10, Block_1=sealed(1, 0, 10))
    told.store(Block_1=sealed(1, 0, 10, crc=8))
    assert told.by == ["SealedNeverChanges"]


def test_a_move_without_an_intent_one_that_skips_and_an_intent_that_is_dropped_are_caught(told: Told) -> None:
    told.move(2, 10, Block_1=sealed(1, 0, 10))
    assert told.by == ["IntentFirst"]
    told.intend(3)
    told.store(partition=partition(3))
    assert told.by == ["IntentFirst", "IntentFirst"]
    told.intend(3)
    told.store(partition=partition(5), NowBlock=NowBlock(block=4, start=10, epoch=4), Block_3=sealed(3, 10, 10))
    assert "IntentFirst" in told.by[2:]


def test_a_mirror_that_falls_is_caught(told: Told) -> None:
    told.store(Mirror=Mirror(ends={1: 10}))
    told.store(Mirror=Mirror(ends={1: 9}))
    assert told.by == ["MirrorNeverFalls"]


def test_a_broker_that_acts_for_a_lower_epoch_is_caught(told: Told) -> None:
    told.answer("a", close(3), CLOSED, block=1, epoch=3)
    assert told.by == []
    told.answer("a", close(2), CLOSED, block=1, epoch=3)
    assert told.by == ["EpochFences"]


def test_a_fence_that_a_restart_has_forgotten_is_caught(told: Told) -> None:
    told.answer("a", close(5, fence=True), CLOSED, block=1, epoch=1)
    told.answer("b", close(4, fence=True), CLOSED, block=1, epoch=1)
    assert told.by == []
    told.answer("a", close(4, fence=True), CLOSED, block=1, epoch=1)
    assert told.by == ["EpochFences"]


def test_an_acknowledgement_behind_a_fence_or_the_end_is_caught(told: Told) -> None:
    told.answer("a", push(), Pushed(0), block=1, mode=1, counts=(1,))
    told.answer("a", close(2, fence=True), CLOSED, block=1, epoch=1)
    told.answer("b", push(), Pushed(1), block=1, mode=1, counts=(1,))
    assert told.by == []
    told.answer("a", push(), Pushed(2), block=1, mode=1, counts=(1,))
    assert told.by == ["NoAckAfterFence"]
    told.intend(2)
    told.move(2, 10, Block_1=sealed(1, 0, 10))
    told.answer("b", push(), Pushed(3), block=1, mode=1, counts=(1,))
    assert told.by == ["NoAckAfterFence", "NoAckAfterEnd"]


# --- What clients know ---


def judge(told: Told, values: list[str], *, strictly: bool = True, replaced: bool = False) -> list[str]:
    """`replaced`: who led a block does not have it any more."""
    tree: Tree = told.checkers.trees["u"]
    holders = [] if replaced else [(leader, block) for block, leader in tree.leaders.items()]
    told.history.judge(PLACE, Log(0, values), "u", told.checkers.ends, tree, holders, strictly=strictly)
    return told.by


def test_a_history_that_fits_its_log_is_no_violation(told: Told) -> None:
    told.history.acknowledged(PLACE, told.history.next_values("a", PLACE, 2), 0, quorum=True)
    told.history.read(PLACE, 0, "a 0", strictly=True)
    assert judge(told, ["a 0", "a 1"]) == []


def test_values_that_are_doubled_reordered_or_invented_are_caught(told: Told) -> None:
    told.history.next_values("a", PLACE, 2)
    assert judge(told, ["a 0", "a 0"]) == ["ProducerOrder"]
    assert judge(told, ["a 1", "a 0"]) == ["ProducerOrder"] * 2
    assert judge(told, ["a 2"]) == ["ProducerOrder"] * 2 + ["NothingInvented"]


def test_a_value_that_was_read_and_is_not_there_is_caught(told: Told) -> None:
    told.history.next_values("a", PLACE, 2)
    told.history.read(PLACE, 0, "a 0", strictly=True)
    told.history.read(PLACE, 0, "a 1", strictly=True)
    assert told.by == ["OneValuePerOffset"]
    assert judge(told, ["a 0"])[1:] == ["ReadStays"]


def test_a_position_that_goes_back_is_caught(told: Told) -> None:
    told.history.committed("g", PLACE, 7)
    told.history.found("g", PLACE, 7, strictly=True)
    assert told.by == []
    told.history.found("g", PLACE, 6, strictly=True)
    assert told.by == ["CursorNeverGoesBack"]


@pytest.mark.parametrize(
    ("mode", "by_fence", "end", "quorum", "caught"),
    [
        (-1, True, 0, False, True),  # Raft never loses
        (1, False, 0, False, True),  # nor does a fetch block that its leader ended
        (1, True, 1, False, True),  # nor one that the fenced replicas have
        (1, True, 0, True, True),  # nor what a producer asked a majority for
        (1, True, 0, False, False),
    ],
)
def test_a_loss_is_caught_unless_a_fetch_leader_took_it_along(
    told: Told, mode: int, by_fence: bool, end: int, quorum: bool, caught: bool
) -> None:
    values = told.history.next_values("a", PLACE, 1)
    told.answer("a", push(), Pushed(0), block=1, mode=mode, counts=(1,))
    told.history.acknowledged(PLACE, values, 0, quorum=quorum)
    if by_fence:
        told.answer("b", close(2, fence=True, seal=True), CLOSED, block=1, epoch=1)
    told.intend(2)
    told.move(2, end, Block_1=sealed(1, 0, end))
    told.store(Mirror=Mirror(lost={1: 1}))
    told.history.next_values("b", PLACE, 1)
    assert judge(told, ["b 0"]) == (["NoAckedLoss"] if caught else [])
    assert told.history.lost == (0 if caught else 1)


def test_a_fetch_leader_may_take_every_batch_of_a_run_along(told: Told) -> None:
    values = told.history.next_values("a", PLACE, 3)
    told.answer("a", push(), Pushed(0, more=(StoredAt(2, 0, False),)), block=1, mode=1, counts=(2, 1))
    told.history.acknowledged(PLACE, values, 0, quorum=False)
    told.answer("b", close(2, fence=True, seal=True), CLOSED, block=1, epoch=1)
    told.intend(2)
    told.move(2, 0, Block_1=sealed(1, 0, 0))
    told.store(Mirror=Mirror(lost={1: 3}))
    assert judge(told, []) == []
    assert told.history.lost == 3


@pytest.mark.parametrize("replaced", [False, True])
def test_a_loss_that_nobody_counts_is_caught_as_long_as_there_is_somebody_who_could(told: Told, replaced: bool) -> None:
    told.answer("a", push(), Pushed(0), block=1, mode=1, counts=(1,))
    told.history.acknowledged(PLACE, told.history.next_values("a", PLACE, 1), 0, quorum=False)
    told.answer("b", close(2, fence=True, seal=True), CLOSED, block=1, epoch=1)
    told.intend(2)
    told.move(2, 0, Block_1=sealed(1, 0, 0))
    assert judge(told, [], replaced=replaced) == ([] if replaced else ["LossIsCounted"])
