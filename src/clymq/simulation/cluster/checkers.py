"""What must never happen to a cluster, one small class each.

`TreeChecker`s hear of every write of the store, `AnswerChecker`s of every answer that promises something; what clients
were told is judged by `history` at the end. Each fails by `Violation`, through `Checkers.fail`, because who notices is
somewhere inside the product, which would take it for an error of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from clymq.metadata.nodes import Mirror, NowBlock, Partition, SealedBlock, block_number, decode
from clymq.protocol.broker import Push, Pushed
from clymq.protocol.hosting import BlockClosed, CloseAccept, PrepareAccept
from clymq.protocol.verbs import Reply
from clymq.simulation.cluster.watching import Served

_PARTITION = re.compile(r"/Topics/[^/]+/Partitions/[^/]+")


@dataclass
class Tree:
    """A partition as the store has it."""

    path: str
    partition: Partition | None = None
    now: NowBlock = field(default_factory=NowBlock)
    mirror: Mirror = field(default_factory=Mirror)
    sealed: dict[int, SealedBlock] = field(default_factory=dict)
    ever_sealed: dict[int, SealedBlock] = field(default_factory=dict)
    """Those that retention has taken away, too."""
    leaders: dict[int, str] = field(default_factory=dict)
    """Who was named to lead each block."""

    def copy(self) -> Tree:
        """Return what it is now, to compare with later."""
        return Tree(self.path, self.partition, self.now, self.mirror, dict(self.sealed), self.ever_sealed, self.leaders)

    def take(self, name: str, value: bytes | None) -> None:
        """Take in what a node below it (or itself, without a name) holds from now on."""
        if name == "":
            self.partition = None if value is None else decode(Partition, self.path, value)
        elif value is None:
            self.sealed.pop(block_number(name) or 0, None)
        elif name == "NowBlock":
            self.now = decode(NowBlock, self.path, value)
            self.leaders[self.now.block] = self.now.leader
        elif name == "Mirror":
            self.mirror = decode(Mirror, self.path, value)
        elif (number := block_number(name)) is not None:
            self.sealed[number] = decode(SealedBlock, self.path, value)
            self.ever_sealed.setdefault(number, self.sealed[number])


Fail = Callable[[str], None]


class Checker:
    """Hears of everything; each class below cares for one thing."""

    def __init__(self, trees: Mapping[str, Tree], fail: Fail) -> None:
        self.trees = trees
        """By uid."""
        self._fail = fail

    def moved(self, before: Tree, after: Tree) -> None:
        """A partition has changed in the store."""

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        """A broker answers, not with an error."""

    def fail(self, text: str) -> None:
        """Say what was broken."""
        self._fail(f"{type(self).__name__}: {text}")


class ChainAdjoins(Checker):
    """Block n + 1 begins where block n ended, and numbers have no hole."""

    def moved(self, before: Tree, after: Tree) -> None:
        numbers = sorted(after.sealed)
        expected = list(range(after.now.block - len(numbers), after.now.block))
        if numbers != expected:
            self.fail(f"{after.path} has the sealed blocks {numbers} before block {after.now.block}")
            return
        chain = [(number, block.start, block.end) for number, block in sorted(after.sealed.items())]
        chain.append((after.now.block, after.now.start, after.now.start))
        for (number, _, end), (_, start, _) in pairwise(chain):
            if end != start:
                self.fail(f"block {number} of {after.path} ends at {end}, the next one begins at {start}")
        if after.partition is not None and numbers and after.partition.first_offset > chain[0][1]:
            self.fail(f"{after.path} begins at {after.partition.first_offset}, its first block at {chain[0][1]}")


class SealedNeverChanges(Checker):
    """What a sealed block is stands once and for all."""

    def moved(self, before: Tree, after: Tree) -> None:
        for number, block in after.sealed.items():
            first = after.ever_sealed[number]
            if _identity(block) != _identity(first):
                self.fail(f"sealed block {number} of {after.path} was {_identity(first)}, is {_identity(block)}")


def _identity(block: SealedBlock) -> tuple[int, ...]:
    return block.start, block.end, block.mode, block.seal_index, block.seal_crc


class IntentFirst(Checker):
    """A chain moves by one block at a time, each announced before, under a higher epoch; no intent is dropped."""

    def moved(self, before: Tree, after: Tree) -> None:
        if before.partition is None or after.partition is None:
            return
        intent, later = before.partition.pending, after.partition.pending
        if after.now.block != before.now.block:
            self._check_move(before, after)
        elif intent is not None and later is None:
            self.fail(f"the intent of block {intent.block} of {after.path} is gone and the chain has not moved")
        if later is not None and (later.epoch, later.block) != (after.partition.epoch + 1, after.partition.next_block):
            self.fail(f"{after.path} intends block {later.block} of epoch {later.epoch}, out of turn")
        if after.partition.first_offset < before.partition.first_offset:
            self.fail(f"the first offset of {after.path} falls to {after.partition.first_offset}")

    def _check_move(self, before: Tree, after: Tree) -> None:
        assert before.partition is not None
        intent = before.partition.pending
        step = (before.now.block + 1, before.partition.epoch + 1)
        if (after.now.block, after.now.epoch) != step:
            self.fail(f"{after.path} moves to block {after.now.block} of epoch {after.now.epoch}, not {step}")
        elif intent is None or intent.epoch != after.now.epoch:
            self.fail(f"{after.path} moves to block {after.now.block} and nobody had said so")


class MirrorNeverFalls(Checker):
    """Ends and losses that were told never go back. Positions of groups may: a fetch leader tells of one, and is gone
    before anybody else has it. What was acknowledged of them is judged by `history`.
    """

    def moved(self, before: Tree, after: Tree) -> None:
        for what in ("ends", "lost"):
            told, tells = getattr(before.mirror, what), getattr(after.mirror, what)
            for key in told.keys() & tells.keys():
                if tells[key] < told[key]:
                    self.fail(f"{what} of {after.path}: {key} falls from {told[key]} to {tells[key]}")


class EpochFences(Checker):
    """A broker acts for no move whose epoch is lower than one that it has seen; fences outlive the process."""

    def __init__(self, trees: Mapping[str, Tree], fail: Fail) -> None:
        super().__init__(trees, fail)
        self._fenced: dict[tuple[str, str, int], int] = {}

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        if not isinstance(request, CloseAccept | PrepareAccept):
            return
        if request.epoch < served.epoch:
            self.fail(f"{broker} acts for epoch {request.epoch} of {request.uid}, and knows {served.epoch}")
        if isinstance(request, CloseAccept):
            key = broker, request.uid, request.block
            if request.epoch < self._fenced.get(key, 0):
                self.fail(f"{broker} closes block {request.block} for epoch {request.epoch} behind {self._fenced[key]}")
            if request.fence:
                self._fenced[key] = request.epoch


class NoAckAfterFence(Checker):
    """A replica that has told its end to a fence acknowledges nothing of that block any more."""

    def __init__(self, trees: Mapping[str, Tree], fail: Fail) -> None:
        super().__init__(trees, fail)
        self._fenced: set[tuple[str, str, int]] = set()

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        if isinstance(request, CloseAccept) and request.fence:
            self._fenced.add((broker, request.uid, request.block))
        elif isinstance(request, Push) and (broker, request.uid, served.block) in self._fenced:
            self.fail(f"{broker} acknowledges a push into block {served.block} of {request.uid}, which it has fenced")


class NoAckAfterEnd(Checker):
    """Nothing is acknowledged for a block that the chain has sealed: not by a leader that stood still, either."""

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        if isinstance(request, Push):
            tree = self.trees.get(request.uid)
            if tree is not None and served.block in tree.ever_sealed:
                self.fail(f"{broker} acknowledges a push into block {served.block} of {request.uid}, which is sealed")


@dataclass(frozen=True)
class Acked:
    """A batch that a broker has acknowledged: which offsets of which block."""

    block: int
    mode: int
    start: int
    end: int


class Ends(Checker):
    """Not a rule but a memory: what was acknowledged in which block, and which blocks ended without their leader."""

    def __init__(self, trees: Mapping[str, Tree], fail: Fail) -> None:
        super().__init__(trees, fail)
        self.acked: dict[str, list[Acked]] = {}
        self._without_leader: set[tuple[str, int, int, int]] = set()

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        if isinstance(request, Push) and served.block:
            assert isinstance(reply, Pushed)
            offsets = reply.base_offset, *(batch.base_offset for batch in reply.more)
            for offset, count in zip(offsets, served.counts, strict=True):
                if offset >= 0:
                    acked = Acked(served.block, served.mode, offset, offset + count)
                    self.acked.setdefault(request.uid, []).append(acked)
        elif isinstance(request, CloseAccept) and request.seal:
            assert isinstance(reply, BlockClosed)
            self._without_leader.add((request.uid, request.block, reply.seal_index, reply.seal_crc))

    def failed_over(self, uid: str, block: SealedBlock) -> bool:
        """Whether a block was ended by a fence, and not by its leader."""
        return (uid, block.block, block.seal_index, block.seal_crc) in self._without_leader

    def may_be_lost_from(self, uid: str, offset: int) -> set[int]:
        """Return the blocks from which what was acknowledged at an offset may be lost: with its fetch leader, and only
        behind the end at which the fenced replicas sealed the block.
        """
        sealed = self.trees[uid].ever_sealed
        blocks: set[int] = set()
        for acked in self.acked.get(uid, ()):
            block = sealed.get(acked.block)
            inside = acked.mode != -1 and acked.start <= offset < acked.end
            if inside and block is not None and offset >= block.end and self.failed_over(uid, block):
                blocks.add(acked.block)
        return blocks


CHECKERS = (
    ChainAdjoins,
    SealedNeverChanges,
    IntentFirst,
    MirrorNeverFalls,
    EpochFences,
    NoAckAfterFence,
    NoAckAfterEnd,
)


class Checkers:
    """All of them, told of everything. `fail` is told of a violation; `note` of what belongs into the trace."""

    def __init__(self, fail: Fail, note: Callable[[str], None]) -> None:
        self.trees: dict[str, Tree] = {}
        self._by_path: dict[str, Tree] = {}
        self._note = note
        self.ends = Ends(self.trees, fail)
        self._all: list[Checker] = [self.ends, *(kind(self.trees, fail) for kind in CHECKERS)]

    def stored(self, changes: Mapping[str, bytes | None]) -> None:
        """These nodes of the store hold this from now on."""
        befores: dict[str, Tree] = {}
        for path, value in changes.items():
            found = _PARTITION.match(path)
            rest = path[found.end() + 1 :] if found else ""
            if found is None or "/" in rest:
                continue
            tree = self._by_path.setdefault(found[0], Tree(found[0]))
            befores.setdefault(found[0], tree.copy())
            tree.take(rest, value)
        for path, before in befores.items():
            after = self._by_path[path]
            if after.partition is not None:
                self.trees[after.partition.uid] = after
            self._tell(before, after)

    def _tell(self, before: Tree, after: Tree) -> None:
        if before.now.block != after.now.block:
            now = after.now
            self._note(f"{after.path} has block {now.block} from {now.start}, mode {now.mode}, led by {now.leader}")
        for checker in self._all:
            checker.moved(before, after)

    def answered(self, broker: str, request: Any, reply: Reply, served: Served) -> None:
        """A broker answers a request."""
        for checker in self._all:
            checker.answered(broker, request, reply, served)
