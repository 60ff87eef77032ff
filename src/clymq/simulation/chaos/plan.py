"""What goes wrong and when, drawn from a seed: the same seed and options give the same plan.

Pure. A plan is a list of turns. A turn draws faults, lets them last, undoes them and leaves the cluster in peace for a
moment; a quarter of the turns draw none. Who is struck is drawn as a kind (`leader`, `minority`) and a number, because
who leads is known only when it happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
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
    "stop": 8,
    "damage": 8,
    "disk full": 4,
    "clock jump": 4,
    "kill producer": 6,
    "zombie producer": 4,
    "kill reader": 3,
    "freeze reader": 3,
    "kill worker": 4,
    "freeze worker": 4,
    "add broker": 4,
    "remove broker": 4,
    "move": 4,
    "create topic": 3,
    "switch mode": 8,
    "isolate": 8,
    "one way": 6,
    "ring": 4,
    "loss": 5,
    "delay": 5,
    "reset": 5,
    "expire session": 6,
    "kill zkserver": 5,
    "freeze zkserver": 3,
    "stop zkserver": 2,
    "kill zookeeper": 6,
    "freeze zookeeper": 3,
}
KINDS: Final = tuple(_WEIGHTS)
# Cuts; where there are two, the end of one would be the end of the other.
_NETWORK: Final = frozenset({"isolate", "one way", "ring", "loss", "expire session"})
_WHO: Final[dict[str, tuple[str, ...]]] = {
    "kill": WHO,
    "power cut": WHO,
    "freeze": WHO,
    "stop": (*WHO, "rolling"),
    "isolate": ("one", "minority", "leader"),
    "one way": ("one", "leader"),
    "loss": ("one", "leader"),
    "delay": WHO,
    "reset": ("one", "leader"),
    "expire session": ("one", "leader", "zkserver"),
    "disk full": ("one", "minority", "leader"),
    "clock jump": WHO,
    "damage": ("truncate", "flip", "wipe"),
    "kill zookeeper": ("one", "one", "majority", "all"),
    "freeze zookeeper": ("one", "all"),
}


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
    faults: tuple[str, ...] = KINDS
    """What there may be: kinds, or names such as `kill leader`; none: a run in peace."""
    kills_cut_power: bool = False
    """Whether every kill takes what was not synced."""
    by_the_clock: bool = False
    """Whether the minutes are over when the clock says so; if not, when all turns of the plan were taken, and what it
    takes to make and undo a fault is beside them: on a busy machine as long again.
    """


def draw(options: Options) -> list[Turn]:
    """Return the turns of a run."""
    chance = random.Random(f"{options.seed} {options.store} {options.mode}")
    wanted = _wanted(options)
    turns: list[Turn] = []
    seconds = 0.0
    while seconds < options.minutes * 60:
        faults = tuple(_draw_faults(chance, wanted)) if wanted and chance.random() >= NO_FAULT else ()
        turn = Turn(faults, round(chance.uniform(1.0, 5.0), 2), round(chance.uniform(1.0, 3.0), 2))
        turns.append(turn)
        seconds += turn.seconds + turn.calm_seconds
    return turns


def names() -> Iterator[str]:
    """Yield everything that can be asked for: kinds, and kinds with whom they strike."""
    for kind in KINDS:
        yield kind
        yield from (f"{kind} {who}" for who in dict.fromkeys(_WHO.get(kind, ())))


def _wanted(options: Options) -> dict[str, tuple[str, ...]]:
    """Return the kinds that there may be, and whom each may strike."""
    wanted: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        if _is_possible(kind, options):
            whole = _WHO.get(kind, ("",))
            some = tuple(who for who in whole if f"{kind} {who}" in options.faults)
            if kind in options.faults or some:
                wanted[kind] = whole if kind in options.faults else some
    return wanted


def shown(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield a plan for people, equal turns together."""
    for names, same in groupby(", ".join(fault.name for fault in turn.faults) or "nothing" for turn in turns):
        count = len(list(same))
        yield names if count == 1 else f"{names}, {count} times"


def _draw_faults(chance: random.Random, wanted: Mapping[str, tuple[str, ...]]) -> Iterator[Fault]:
    kinds = list(wanted)
    weights = [_WEIGHTS[kind] for kind in kinds]
    count = 2 if chance.random() < TWO_FAULTS else 1
    chosen = {chance.choices(kinds, weights)[0] for _ in range(count)}
    if len(chosen & _NETWORK) > 1:
        chosen = {min(chosen)}
    for kind in sorted(chosen, key=KINDS.index):
        yield Fault(kind, chance.choice(wanted[kind]), round(chance.random(), 4), round(chance.random(), 4))


def _is_possible(kind: str, options: Options) -> bool:
    if kind in {"kill zookeeper", "freeze zookeeper"}:
        return options.store == "zookeeper"
    if kind == "switch mode":
        return options.mode == "mixed"
    return True
