"""What one run is like: every option is drawn from the seed, and each kind of fault is there or not.

Leaving faults out at random ("swarm testing") finds more than having all of them all the time: a world of constant
crashes never gets far enough to show what a rare one breaks.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Options:
    """The character of one run. Rates are per second of virtual time, for the whole cluster.

    `leader_bias`: how often a fault looks for the leader; `restart_odds`: of a stopped process, every 100 ms;
    `append_bytes_max` and `window_messages`: how the leader feeds its followers; `strike`: how often the power goes
    right behind a promise (a vote; twenty times less often an acknowledgement or a cut of the log), to be back at once.
    """

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
    leader_bias: float
    restart_odds: float
    append_bytes_max: int
    window_messages: int
    strike: float = 0.0

    @classmethod
    def draw(cls, seed: int) -> Options:
        """Draw a run from its seed."""
        chance = random.Random(f"options {seed}")

        def sometimes(low: float, high: float, odds: float = 0.5) -> float:
            return round(chance.uniform(low, high), 3) if chance.random() < odds else 0.0

        frantic = random.Random(f"frantic {seed}").random() < 0.4
        strikes = random.Random(f"strikes {seed}")
        drawn = cls(
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
            leader_bias=chance.choice([0.0, 0.5, 0.9]),
            restart_odds=chance.choice([0.1, 0.3, 0.8]),
            append_bytes_max=chance.choice([1, 2000, 1 << 20]),
            window_messages=chance.choice([1, 4, 64]),
            strike=round(strikes.uniform(0.1, 0.5), 3) if strikes.random() < 0.3 else 0.0,
        )
        return drawn._frantic(chance) if frantic else drawn

    def _frantic(self, chance: random.Random) -> Options:
        """Leaders that die as soon as they lead, on a slow network, one entry at a time: the world of figure 8."""
        return replace(
            self,
            replicas=chance.choice([3, 5]),
            push_ms=20,
            delay_ms_max=chance.choice([30, 100]),
            loss=0.0,
            crash_rate=round(chance.uniform(1.5, 6.0), 3),
            pause_rate=0.0,
            flip_rate=0.0,
            wipe=False,
            failed_sync_rate=0.0,
            leader_bias=chance.choice([0.3, 0.9]),
            restart_odds=chance.choice([0.12, 0.25, 0.6]),
            append_bytes_max=1,
            window_messages=chance.choice([1, 4]),
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)
