"""A host lets its groups perform, and is never silent for long, however many of them want something."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from clymq.clock import ManualClock, Timer
from clymq.raft.messages import RequestVote
from clymq.replication.raft_host import CAMPAIGNS_MAX, EARLY_MAX, RaftHost
from clymq.replication.surroundings import Driven
from raft_hosts import CONFIG, Hosts


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
    due_at: float = 0.0
    would_campaign: bool = False
    is_saving: bool = False
    ticks: int = 0

    def perform(self) -> None:
        self.performed += 1

    def tick(self) -> None:
        self.ticks += 1


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


def ticked(groups: Sequence[Group], *, now: float = 100.0) -> list[int]:
    """Let time pass once; return how often each group was ticked so far."""
    host = host_on(Loop())
    cast(Loop, host.clock).now = now
    for group in groups:
        host.woken(cast(Driven, group))
    host._let_time_pass()
    return [group.ticks for group in groups]


def test_groups_are_ticked_when_they_are_due_and_not_while_they_wait_for_the_disk() -> None:
    loop = Loop()
    groups = [Group(loop, due_at=100.0), Group(loop, due_at=100.1), Group(loop, is_saving=True), Group(loop)]
    assert ticked(groups) == [1, 0, 0, 1]


def test_of_a_thousand_groups_without_a_leader_a_few_run_for_it_at_a_time() -> None:
    """All at once keep their brokers so busy that nobody hears of whoever wins, and all run again, without end."""
    loop = Loop()
    groups = [Group(loop, would_campaign=True) for _ in range(1000)]
    leader = Group(loop)
    assert sum(ticked([*groups, leader])) == CAMPAIGNS_MAX + 1
    assert leader.ticks == 1


def test_nobody_runs_for_leader_when_the_process_has_just_stood_still() -> None:
    """What the leaders have said meanwhile waits in the sockets; but a process that always stands must look for one."""
    loop = Loop()
    host, group = host_on(loop), Group(loop, would_campaign=True)
    host.woken(cast(Driven, group))
    ticks = []
    for now in (30, 60, 400, 430, 800, 1200, 1600):
        loop.now = now
        host._let_time_pass()
        ticks.append(group.ticks)
    assert ticks == [1, 2, 2, 3, 3, 4, 4]


def test_groups_whose_promises_are_on_their_way_to_the_disk_count_as_running() -> None:
    loop = Loop()
    saving = [Group(loop, is_saving=True) for _ in range(CAMPAIGNS_MAX - 3)]
    groups = [Group(loop, would_campaign=True) for _ in range(100)]
    assert sum(ticked([*saving, *groups])) == 3
    saving += [Group(loop, is_saving=True) for _ in range(10)]
    assert sum(ticked([*saving, *groups])) == 3, "none was added"


def test_groups_that_cannot_win_do_not_keep_the_others_from_running() -> None:
    loop = Loop()
    groups = [Group(loop, would_campaign=True) for _ in range(4 * CAMPAIGNS_MAX)]
    for now in (10.0, 20.0, 30.0, 40.0):
        before = [group.ticks for group in groups]
        ticked(groups, now=now)
        for group, ticks in zip(groups, before, strict=True):
            if group.ticks > ticks:
                group.due_at = now + 1  # in vain: it wants to run again at the next tick
    assert {group.ticks for group in groups} == {1}


def test_hundreds_of_groups_elect_one_leader_each_though_disks_are_slow() -> None:
    hosts = Hosts(groups=[f"g{number}" for number in range(200)])
    for disk in hosts.disks.values():
        disk.sync_delay_ms = 300  # one's own vote and another's: longer than anybody waits for a leader
    for group in hosts.groups:
        hosts.leader(group, within_ms=20_000)
    terms = [hosts.driver("a", group).node.term for group in hosts.groups]
    assert max(terms) <= 8  # it was 43 after 20 s, and no leader, when one waited for its own disk as for the others


def test_a_vote_that_is_asked_for_before_the_group_is_here_is_given_when_it_is() -> None:
    """The first leader of a new block must not wait for an election timeout because others were told a little later."""
    hosts = Hosts(groups=())
    hosts.brokers["a"].open("g").campaign()
    hosts.clock.advance(20)
    hosts.brokers["b"].open("g")
    hosts.clock.advance(20)
    assert hosts.driver("a").node.is_ready
    assert hosts.driver("a").node.term == 1


def test_a_vote_that_was_asked_for_long_ago_is_not_given() -> None:
    hosts = Hosts(groups=())
    hosts.brokers["a"].open("g").campaign()
    hosts.clock.advance(5)
    hosts.kill("a")
    hosts.clock.advance(CONFIG.election_ms_min)
    hosts.brokers["b"].sent.clear()
    hosts.brokers["b"].open("g")
    hosts.clock.advance(20)
    assert not hosts.brokers["b"].sent


def test_votes_for_groups_that_never_come_are_forgotten_and_the_newest_kept() -> None:
    hosts = Hosts(groups=())
    for number in range(2 * EARLY_MAX):
        message = RequestVote("a", "b", 1, 7, 0, 0, 0, pre=True)
        hosts.brokers["b"].host.receive(f"g{number}", message)
    kept = hosts.brokers["b"].host._early
    assert len(kept) == EARLY_MAX
    assert next(iter(kept)) == (f"g{EARLY_MAX}", "a")
