"""What one run is like: every option is drawn from the seed, and each kind of fault is there or not.

Leaving faults out at random ("swarm testing") finds more than having all of them all the time: a world of constant
crashes never gets far enough to show what a rare one breaks.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The character of one run. Rates are per second of virtual time, for the whole cluster."""

    replicas: int
    producers: int
    push_ms: int
    batch_messages_max: int
    delay_ms_max: int
    loss: float
    duplication: float
    reordering: float
    partition_rate: float
    one_way: bool
    crash_rate: float
    pause_rate: float
    slow_disk_ms: int
    flip_rate: float
    wipe: bool
    full_disk_rate: float
    failed_sync_rate: float
    transfer_rate: float
    roll: bool

    @classmethod
    def draw(cls, seed: int) -> Options:
        """Draw a run from its seed."""
        chance = random.Random(f"options {seed}")

        def sometimes(low: float, high: float, odds: float = 0.5) -> float:
            return round(chance.uniform(low, high), 3) if chance.random() < odds else 0.0

        return cls(
            replicas=chance.choice([1, 2, 3, 3, 3, 3, 4, 5, 5]),
            producers=chance.randint(1, 3),
            push_ms=chance.choice([5, 20, 60]),
            batch_messages_max=chance.choice([1, 3, 20]),
            delay_ms_max=chance.choice([1, 5, 30, 100]),
            loss=sometimes(0.0, 0.2),
            duplication=sometimes(0.0, 0.2),
            reordering=sometimes(0.0, 0.3),
            partition_rate=sometimes(0.1, 1.0),
            one_way=chance.random() < 0.3,
            crash_rate=sometimes(0.1, 1.5, 0.7),
            pause_rate=sometimes(0.1, 1.0, 0.4),
            slow_disk_ms=int(sometimes(5, 200, 0.3)),
            flip_rate=sometimes(0.2, 1.0, 0.4),
            wipe=chance.random() < 0.15,
            full_disk_rate=sometimes(0.1, 0.5, 0.2),
            failed_sync_rate=sometimes(0.1, 0.5, 0.2),
            transfer_rate=sometimes(0.1, 1.0, 0.3),
            roll=chance.random() < 0.3,
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)
