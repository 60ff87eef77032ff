"""What one run of a cluster is like, drawn from its seed; each kind of fault and of work is there or not."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

from clymq.config import KiB


@dataclass(frozen=True, slots=True)
class Options:
    """The character of one run. Rates are per second of virtual time, for the whole cluster.

    `modes`: the states that partitions may have; `power`: whether a kill may take the machine's power, and with it what
    was not synced; `isolate_rate`: how often a server is cut off the store and nothing else, which is what makes two
    zkservers believe to be active; `leader_bias`: how often a fault looks for somebody who leads.
    """

    brokers: int
    partitions: int
    modes: tuple[int, ...]
    replicas: int
    fsync: str
    producers: int
    consumers: int
    push_ms: int
    batch_messages_max: int
    value_bytes: int
    in_flight: int
    delay_ms_max: float
    kill_rate: float
    power: bool
    pause_rate: float
    cut_rate: float
    one_way: bool
    reset_rate: float
    isolate_rate: float
    stall_rate: float
    zkserver_rate: float
    slow_disk_ms: int
    full_disk_rate: float
    state_rate: float
    move_rate: float
    drain_rate: float
    create_rate: float
    client_rate: float
    block_age_ms: int
    retention_bytes: int
    replace_after_ms: int
    leader_bias: float

    @classmethod
    def draw(cls, seed: int) -> Options:
        """Draw a run from its seed."""
        chance = random.Random(f"cluster {seed}")

        def sometimes(low: float, high: float, odds: float = 0.5) -> float:
            return round(chance.uniform(low, high), 3) if chance.random() < odds else 0.0

        rolls = chance.random() < 0.4
        return cls(
            brokers=chance.choice([3, 3, 3, 4, 5]),
            partitions=chance.randint(1, 3),
            modes=chance.choice([(-1,), (-1,), (1,), (1,), (-1, 1), (-1, 1), (-1, 1, 0)]),
            replicas=chance.choice([1, 2, 3, 3, 3, 3]),
            fsync=chance.choice(["interval", "commit"]),
            producers=chance.randint(1, 3),
            consumers=chance.randint(1, 2),
            push_ms=chance.choice([20, 60, 150]),
            batch_messages_max=chance.choice([1, 3, 20]),
            value_bytes=chance.choice([0, 0, 0, 2 * KiB]),
            in_flight=chance.choice([1, 2, 4]),
            delay_ms_max=chance.choice([1.0, 5.0, 30.0]),
            kill_rate=sometimes(0.1, 0.8, 0.7),
            power=chance.random() < 0.5,
            pause_rate=sometimes(0.1, 0.6, 0.4),
            cut_rate=sometimes(0.1, 0.6),
            one_way=chance.random() < 0.3,
            reset_rate=sometimes(0.1, 2.0, 0.4),
            isolate_rate=sometimes(0.1, 0.6, 0.6),
            stall_rate=sometimes(0.05, 0.3, 0.2),
            zkserver_rate=sometimes(0.1, 0.5),
            slow_disk_ms=int(sometimes(5, 100, 0.3)),
            full_disk_rate=sometimes(0.1, 0.4, 0.15),
            state_rate=sometimes(0.2, 1.0),
            move_rate=sometimes(0.2, 1.0),
            drain_rate=sometimes(0.1, 0.3, 0.2),
            create_rate=sometimes(0.1, 0.3, 0.3),
            client_rate=sometimes(0.1, 0.5),
            block_age_ms=chance.choice([600, 2000]) if rolls else -1,
            retention_bytes=chance.choice([1, 20_000]) if rolls and chance.random() < 0.4 else -1,
            replace_after_ms=chance.choice([1500, 600_000, 600_000]),
            leader_bias=chance.choice([0.0, 0.5, 0.9]),
        )

    @property
    def keeps_what_readers_saw(self) -> bool:
        """Whether what a majority held outlives every fault of this run, in fetch mode too.

        A power cut takes what a fetch replica had not synced, unless every write is synced before it counts.
        """
        return not self.power or self.fsync == "commit"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value)
