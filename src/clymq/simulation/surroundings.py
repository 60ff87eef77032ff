"""What replicas and producers may know of the world they live in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from clymq.clock import ManualClock
from clymq.raft.groups import PairHeartbeat
from clymq.raft.messages import Message
from clymq.simulation.checkers import Checkers
from clymq.simulation.options import Options


class Surroundings(Protocol):
    """The time, chance, the others by name, somebody who carries messages, and somebody who watches."""

    clock: ManualClock
    chance: random.Random
    options: Options
    checkers: Checkers
    names: tuple[str, ...]
    founders: dict[str, int]

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        ...

    def carry(self, message: Message, payload: bytes) -> None:
        """Take a message to another replica, if the network will."""
        ...

    def cut(self, name: str) -> None:
        """A replica has cut its log."""
        ...

    def carry_beat(self, sender: str, receiver: str, beat: PairHeartbeat) -> None:
        """Take the heartbeats of one broker to another."""
        ...

    def ask(
        self, producer: str, target: str, request: Callable[[Any, Any], None], answer: Callable[[Any, bool], None]
    ) -> None:
        """Take a producer's request to a replica, and the answer back."""
        ...
