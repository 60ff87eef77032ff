"""A host lets its groups perform, and is never silent for long, however many of them want something."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from clymq.clock import ManualClock, Timer
from clymq.replication.raft_host import RaftHost
from clymq.replication.surroundings import Driven
from raft_hosts import CONFIG


class Loop(ManualClock):
    """Turns of an event loop: what is due runs when told, and time passes only in what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.due: list[Callable[[], None]] = []

    def monotonic_ms(self) -> float:
        return self.now

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        assert not delay_ms
        self.due.append(callback)
        return _Due(self, callback)

    def turn(self) -> None:
        due, self.due = self.due, []
        for callback in due:
            callback()


@dataclass
class _Due:
    loop: Loop
    callback: Callable[[], None]

    def cancel(self) -> None:
        if self.callback in self.loop.due:
            self.loop.due.remove(self.callback)


@dataclass(eq=False)
class Group:
    loop: Loop
    disk_is_idle: bool = True
    group: str = "g"
    peers: Sequence[str] = field(default=())
    performed: int = 0

    def perform(self) -> None:
        self.performed += 1


def host_on(loop: Loop) -> RaftHost:
    return RaftHost("a", clock=loop, config=CONFIG, links=cast(Any, None), draw=random.Random(1).randint, incarnation=1)


def scheduled(host: RaftHost, groups: Sequence[Group]) -> None:
    for group in groups:
        host.schedule(cast(Driven, group))


def test_a_host_whose_groups_have_all_performed_is_not_woken_for_nothing() -> None:
    loop = Loop()
    host = host_on(loop)
    at_rest, syncing = Group(loop), Group(loop, disk_is_idle=False)
    scheduled(host, [at_rest])
    host.settle()
    assert (at_rest.performed, loop.due) == (1, [])
    scheduled(host, [at_rest, syncing])
    host.settle()
    assert (at_rest.performed, syncing.performed, len(loop.due)) == (2, 0, 1)
    loop.turn()
    assert (at_rest.performed, syncing.performed) == (2, 1)
