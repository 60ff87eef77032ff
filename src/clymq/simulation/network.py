"""A network that delays, loses, doubles, reorders and cuts, on virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

from clymq.clock import ManualClock
from clymq.simulation.options import Options


class Network:
    """Carries calls between named ends."""

    def __init__(self, clock: ManualClock, chance: random.Random, options: Options) -> None:
        self.healed = False
        self._clock = clock
        self._chance = chance
        self._options = options
        self._cut: set[tuple[str, str]] = set()

    def send(self, sender: str, receiver: str, deliver: Callable[[], None]) -> None:
        """Deliver later, once, twice or never."""
        if (sender, receiver) in self._cut:
            return
        options, chance = self._options, self._chance
        if not self.healed and chance.random() < options.loss:
            return
        self._later(deliver)
        if not self.healed and chance.random() < options.duplication:
            self._later(deliver)

    def cut(self, sides: tuple[set[str], set[str]], *, one_way: bool) -> None:
        """Let nothing through from one side to the other, and back unless it is one way."""
        left, right = sides
        self._cut |= {(a, b) for a in left for b in right}
        if not one_way:
            self._cut |= {(b, a) for a in left for b in right}

    def join(self) -> None:
        """Let everything through again."""
        self._cut.clear()

    def heal(self) -> None:
        """Be a good network from now on."""
        self.join()
        self.healed = True

    def _later(self, deliver: Callable[[], None]) -> None:
        delay = self._chance.uniform(0.1, self._options.delay_ms_max)
        if not self.healed and self._chance.random() < self._options.reordering:
            delay += self._chance.uniform(0, 300)
        self._clock.call_later(min(delay, 20) if self.healed else delay, deliver)
