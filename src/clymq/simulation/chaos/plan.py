"""What goes wrong and when, drawn from a seed: the same seed and options give the same plan.

Pure. A plan is a list of turns. A turn draws faults, lets them last, undoes them and leaves the cluster in peace for a
moment; a quarter of the turns draw none. Who is struck is drawn as a kind (`leader`, `minority`) and a number, because
who leads is known only when it happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

StoreKind = Literal["embedded", "zookeeper"]
ModeKind = Literal["raft", "fetch", "mixed"]

NO_FAULT: Final = 0.25
TWO_FAULTS: Final = 0.3
WHO: Final = ("one", "minority", "majority", "all", "leader")

# What can happen, and how often against each other. In the order in which faults of one turn begin; they end in the
# opposite one, so that who is started again finds the network and the store that it needs.
_WEIGHTS: Final[dict[str, int]] = {
    "kill": 14,
    "power cut": 10,
    "freeze": 10,
    "stop": 6,
    "damage": 8,
    "disk full": 4,
    "clock jump": 4,
    "kill producer": 6,
    "zombie producer": 4,
    "kill reader": 3,
    "kill worker": 4,
    "freeze worker": 4,
    "add broker": 3,
    "drain broker": 3,
    "move": 4,
    "create topic": 3,
    "switch mode": 8,
    "isolate": 8,
    "one way": 6,
    "ring": 4,
    "flaky": 5,
    "reset": 5,
    "expire session": 5,
    "kill zkserver": 5,
    "freeze zkserver": 3,
    "stop zkserver": 2,
    "kill zookeeper": 4,
}
KINDS: Final = tuple(_WEIGHTS)
_NETWORK: Final = frozenset({"isolate", "one way", "ring", "flaky", "expire session"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    who: str
    pick: float
    """Chooses among those who could be meant, from 0 to 1."""
    amount: float
    """How much of it, from 0 to 1."""

    @property
    def name(self) -> str:
        """What reports call it."""
        return f"{self.kind} {self.who}" if self.who else self.kind


@dataclass(frozen=True, slots=True)
class Turn:
    """Faults that happen together, how long they last, and how long nothing happens after them."""

    faults: tuple[Fault, ...]
    seconds: float
    calm_seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """What a plan is for."""

    seed: int
    minutes: float
    store: StoreKind = "embedded"
    mode: ModeKind = "raft"
    network: bool = True
    """Whether servers can be cut off from each other here."""
    faults: tuple[str, ...] = KINDS
    """Which kinds there may be."""


def draw(options: Options) -> list[Turn]:
    """Return the turns of a run."""
    chance = random.Random(f"{options.seed} {options.store} {options.mode}")
    kinds = [kind for kind in KINDS if kind in options.faults and _is_possible(kind, options)]
    turns: list[Turn] = []
    seconds = 0.0
    while seconds < options.minutes * 60:
        faults = tuple(_draw_faults(chance, kinds)) if kinds and chance.random() >= NO_FAULT else ()
        turn = Turn(faults, round(chance.uniform(1.0, 5.0), 2), round(chance.uniform(1.0, 3.0), 2))
        turns.append(turn)
        seconds += turn.seconds + turn.calm_seconds
    return turns


def shown(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield a plan for people, equal turns together."""
    for names, same in groupby(", ".join(fault.name for fault in turn.faults) or "nothing" for turn in turns):
        count = len(list(same))
        yield names if count == 1 else f"{names}, {count} times"


def _draw_faults(chance: random.Random, kinds: Sequence[str]) -> Iterator[Fault]:
    weights = [_WEIGHTS[kind] for kind in kinds]
    count = 2 if chance.random() < TWO_FAULTS else 1
    chosen = {chance.choices(kinds, weights)[0] for _ in range(count)}
    if len(chosen & _NETWORK) > 1:
        chosen = {min(chosen)}  # the end of one would be the end of the other
    for kind in sorted(chosen, key=KINDS.index):
        yield Fault(kind, _draw_who(chance, kind), round(chance.random(), 4), round(chance.random(), 4))


def _draw_who(chance: random.Random, kind: str) -> str:
    if kind in {"kill", "power cut", "freeze"}:
        return chance.choice(WHO)
    if kind == "stop":
        return chance.choice(("one", "leader", "rolling"))
    if kind in {"isolate", "reset", "flaky", "one way", "expire session", "disk full", "clock jump"}:
        return chance.choice(("one", "minority", "leader") if kind == "isolate" else ("one", "leader"))
    if kind == "damage":
        return chance.choice(("truncate", "flip", "wipe"))
    return ""


def _is_possible(kind: str, options: Options) -> bool:
    if kind in _NETWORK and not options.network:
        return False
    if kind == "kill zookeeper":
        return options.store == "zookeeper"
    if kind == "switch mode":
        return options.mode == "mixed"
    return True
