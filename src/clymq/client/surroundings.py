"""What a client stands on: connections, time, settings and chance. Tests hand in their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from clymq.clock import Clock, SystemClock
from clymq.config import Config
from clymq.rpc.transport import TcpTransport, Transport


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Making one touches nothing: TCP connects when it is asked to."""

    transport: Transport = field(default_factory=TcpTransport)
    clock: Clock = field(default_factory=SystemClock)
    config: Config = field(default_factory=Config)
    chance: Callable[[], float] = random.random
    """A number in [0, 1): it spreads pauses, so that all clients do not come back at once."""
