"""A shared partition by itself: a log that is only pretended, so that it can refuse, be slow, or be set back."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from clymq.broker import sharing as sharing_module
from clymq.broker.endings import BURIALS_MAX
from clymq.broker.sharing import RANGES_MAX, Sharing
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError, InvalidRequest, NotLeader, NotPrepared, NotReady, Overloaded
from clymq.protocol.broker import Ack, Extend, Lease, Nack, OffsetRange, Pull, Pulled, Reject
from clymq.protocol.verbs import Done
from clymq.replication import entries
from clymq.replication.cursors import DEAD_LETTERS_MAX, Cursor, Groups, Refused
from clymq.replication.handed_over import decode_group
from clymq.types import Mode

GROUP = "g"


class Log:
    """An active block: what is written waits until `apply`, or is refused at once."""

    number = 1
    start = 0

    def __init__(self, end: int) -> None:
        self.end = end
        self.machine = self
        self.groups = Groups()
        self.sealed = False
        self.refusal: ClymqError | None = None
        self.written: list[tuple[Any, Callable[[object], None]]] = []
        self._seq = 0

    def check_sharing(self) -> None:
        """It leads."""

    def cursor(self, group: str) -> Cursor | None:
        found = self.groups.ptp.get(group)
        return found.cursor if found else None

    def dead(
        self, group: str, offsets: entries.Range, reason: str, deliveries: int = 0, *, block: int = 1
    ) -> entries.Dead:
        self._seq += block
        return entries.Dead(group=group, range=offsets, reason=reason, seq=self._seq, deliveries=deliveries)

    def write(self, entry: entries.Entry, answer: Callable[[object], None]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.written.append((entry, answer))

    def apply(self) -> None:
        while self.written:
            entry, answer = self.written.pop(0)
            answer(self.groups.apply(entry))


class Asked:
    """A request, and what became of it."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.cancelled = False
        self.outcomes: list[Any] = []

    def reply(self, reply: Any, payload: object = ()) -> None:
        del payload
        self.outcomes.append(reply)

    def fail(self, error: ClymqError) -> None:
        self.outcomes.append(error)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Nobody cancels."""

    @property
    def leases(self) -> tuple[Lease, ...]:
        (outcome,) = self.outcomes
        assert isinstance(outcome, Pulled), outcome
        return outcome.leases

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(lease.range.start, lease.range.end) for lease in self.leases]


class World:
    """One partition with `end` messages, and a group that begins at 0."""

    def __init__(self, end: int = 10, **config: Any) -> None:
        self.clock = ManualClock()
        self.log = Log(end)
        self.log.groups.apply(entries.Prepare(group=GROUP, offset=0))
        partition = SimpleNamespace(
            topic="t",
            name="0",
            uid="u",
            config=Config(**config),
            sealed={},
            sealed_with=lambda _: None,
            active=self.log,
        )
        around = SimpleNamespace(
            clock=self.clock,
            locating=SimpleNamespace(known=lambda *_: None),
            expect=lambda *_: None,
            dead=lambda _: None,
            spawn=lambda work: work.close(),
        )
        self.sharing = Sharing(partition, self.log, around)  # type: ignore[arg-type]
        self.sharing.leads(SimpleNamespace(leases=()))  # type: ignore[arg-type]

    def pull(self, consumer: str = "one", **more: Any) -> Asked:
        asked = Asked(Pull("t", "0", "u", mode=Mode.PTP_PULL, group=GROUP, consumer=consumer, **more))
        self.sharing.pull(asked)  # type: ignore[arg-type]
        return asked

    def ask(
        self, kind: type, leases: tuple[Lease, ...], consumer: str = "one", *, turn_ends: bool = True, **more: Any
    ) -> Asked:
        asked = Asked(kind("t", "0", "u", GROUP, consumer, tuple(lease.lease for lease in leases), **more))
        getattr(self.sharing, kind.__name__.lower())(asked)
        if turn_ends:
            self.clock.advance(0)
        return asked

    def fail(self, times: int, messages: int = 1) -> None:
        """Have messages delivered in vain."""
        for _ in range(times):
            self.ask(Nack, self.pull(messages_max=messages).leases)
            self.log.apply()


@pytest.fixture(autouse=True)
def _bytes_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_here(partition: Any, offset: int, bytes_max: int) -> Any:
        del offset, bytes_max
        return SimpleNamespace(end=partition.active.end, block=1, up_to=lambda _: memoryview(b""))

    monkeypatch.setattr(sharing_module, "read_here", read_here)


def test_what_the_log_refuses_to_bury_is_not_leased_twice_meanwhile() -> None:
    world = World(end=6, delivery_count_max=1)
    world.log.groups.apply(entries.Timeout(ended=(entries.EndedLease(GROUP, entries.Range(0, 1)),)))
    world.log.refusal = Overloaded("the log is full")
    assert world.pull("one").ranges == [(1, 6)]
    assert world.pull("two").ranges == []


def test_many_that_the_log_refuses_to_bury_are_no_matter() -> None:
    world = World(end=2_000, delivery_count_max=1)
    worn = tuple(entries.EndedLease(GROUP, entries.Range(at, at + 1)) for at in range(0, 1_600, 2))
    world.log.groups.apply(entries.Timeout(ended=worn))
    world.log.refusal = Overloaded("the log is full")
    assert world.pull("one").leases


def test_a_lease_that_ends_over_what_is_finished_meanwhile_does_not_hold_up_an_ordered_group() -> None:
    world = World(end=10)
    assert world.pull(messages_max=4, ordered=True, lease_ms=100).ranges == [(0, 4)]
    world.log.groups.apply(entries.Ack(group=GROUP, ranges=(entries.Range(0, 6),)))  # retention: they are gone
    world.clock.advance(200)
    world.log.apply()
    assert world.pull(ordered=True).ranges == [(6, 10)]


def test_a_message_that_is_worn_when_its_group_is_reset_is_delivered_again_and_not_buried() -> None:
    world = World(end=2, delivery_count_max=1)
    leases = world.pull().leases
    world.ask(Nack, leases)
    world.sharing.resets(GROUP)
    world.log.write(entries.Reset(group=GROUP, offset=0), lambda _: world.sharing.was_reset(GROUP))
    world.log.apply()
    assert world.log.groups.ptp[GROUP].dead == {}
    assert world.pull().ranges == [(0, 2)]


def test_of_two_resets_the_first_does_not_let_anybody_in_before_the_second() -> None:
    world = World(end=4)
    for _ in range(2):
        world.sharing.resets(GROUP)
    world.sharing.was_reset(GROUP)
    with pytest.raises(ClymqError, match="being set"):
        world.pull()
    world.sharing.was_reset(GROUP)
    assert world.pull().ranges == [(0, 4)]


def test_a_long_range_that_is_worn_is_buried_part_by_part_and_the_rest_waits_as_one() -> None:
    world = World(end=10_000_000, delivery_count_max=1)
    world.ask(Nack, world.pull().leases)
    world.log.apply()
    assert len(world.log.groups.ptp[GROUP].dead) == BURIALS_MAX
    (record,) = world.sharing.leases()
    assert len(decode_group(record).delays) == 1


def test_of_a_reject_of_very_much_a_part_is_buried_and_the_rest_comes_again() -> None:
    world = World(end=10_000_000)
    asked = world.ask(Reject, world.pull().leases)
    assert len(world.log.written) == DEAD_LETTERS_MAX
    world.log.apply()
    assert [type(outcome) for outcome in asked.outcomes] == [Overloaded]
    assert len(world.log.groups.ptp[GROUP].dead) == DEAD_LETTERS_MAX
    world.clock.advance(2_000)
    low = world.log.groups.ptp[GROUP].cursor.low
    assert world.pull().ranges == [(low, 10_000_000)]


@pytest.mark.parametrize("lease_ms", [-1, 86_400_001, 2**63, 2**64 - 1])
def test_a_lease_of_no_length_or_of_any_length_is_refused(lease_ms: int) -> None:
    world = World()
    with pytest.raises(InvalidRequest):
        world.pull(lease_ms=lease_ms)
    leases = world.pull().leases
    with pytest.raises(InvalidRequest):
        world.ask(Extend, leases, lease_ms=lease_ms)
    world.sharing.leases()


@pytest.mark.parametrize("delay_ms", [-1, 2**63, 2**64 - 1])
def test_a_delay_that_nobody_can_write_down_is_refused(delay_ms: int) -> None:
    world = World()
    leases = world.pull().leases
    with pytest.raises(InvalidRequest):
        world.ask(Nack, leases, delay_ms=delay_ms, unread=True)
    world.sharing.leases()
    assert world.ask(Nack, leases, unread=True).outcomes
    assert world.pull().ranges == [(0, 10)]


def test_a_pull_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        World().pull(messages_max=-1)


def test_a_request_that_names_too_many_ranges_is_refused() -> None:
    world = World(end=10 * RANGES_MAX)
    leases = world.pull().leases
    ranges = tuple(OffsetRange(2 * at, 2 * at + 1) for at in range(RANGES_MAX + 1))
    with pytest.raises(InvalidRequest):
        world.ask(Ack, leases, ranges=ranges)


def test_an_ordered_group_goes_to_the_next_when_its_holder_has_nothing_and_does_not_ask() -> None:
    world = World(end=4)
    held = world.pull("one", ordered=True, messages_max=2)
    waiting = world.pull("two", ordered=True, wait_ms_max=60_000)
    world.clock.advance(10_000)
    assert waiting.outcomes == [], "it has leases"
    world.ask(Ack, held.leases)
    world.log.apply()
    assert waiting.outcomes == [], "it may ask again in a moment"
    world.clock.advance(10_000)
    assert waiting.ranges == [(2, 4)]


def test_the_holder_of_an_ordered_group_that_waits_keeps_it() -> None:
    world = World(end=0)
    other = world.pull("one", ordered=True, wait_ms_max=60_000)
    waiting = world.pull("two", ordered=True, wait_ms_max=60_000)
    world.clock.advance(30_000)
    world.log.end = 2
    world.sharing.advanced()
    assert other.ranges == [(0, 2)]
    assert waiting.outcomes == []


def test_acks_of_one_turn_are_one_entry_and_each_is_answered() -> None:
    world = World(end=10)
    pulls = {f"c{number}": world.pull(f"c{number}", messages_max=1) for number in range(5)}
    asked = [world.ask(Ack, pull.leases, name, turn_ends=False) for name, pull in pulls.items()]
    assert world.log.written == [], "the turn has not ended"
    world.clock.advance(0)
    assert [entry for entry, _ in world.log.written] == [entries.Ack(group=GROUP, ranges=(entries.Range(0, 5),))]
    world.log.apply()
    assert [each.outcomes for each in asked] == [[Done()]] * 5
    assert world.log.groups.ptp[GROUP].cursor.low == 5


def test_an_ack_that_finds_no_room_in_the_log_fails_alone() -> None:
    world = World(end=10)
    pulls = {name: world.pull(name, messages_max=2) for name in ("one", "two")}
    asked = {name: world.ask(Ack, pull.leases, name, turn_ends=False) for name, pull in pulls.items()}
    world.clock.advance(0)
    ((_, answer),) = world.log.written
    answer(Refused(Overloaded("no room"), (entries.Range(2, 4),)))
    assert asked["one"].outcomes == [Done()]
    assert [type(each) for each in asked["two"].outcomes] == [Overloaded]
    (record,) = world.sharing.leases()
    assert [lease.ranges for lease in decode_group(record).leases] == [((2, 4),)], "it is leased as before"


def test_an_ack_that_is_not_in_the_log_yet_is_refused_before_the_leases_go_to_the_next_leader() -> None:
    world = World(end=4)
    asked = world.ask(Ack, world.pull().leases, turn_ends=False)
    (record,) = world.sharing.leases()
    assert [lease.ranges for lease in decode_group(record).leases] == [((0, 4),)]
    assert [type(each) for each in asked.outcomes] == [NotReady]
    world.clock.advance(0)
    assert world.log.written == []


@pytest.mark.parametrize("end", ["lost", "reset"])
def test_an_ack_that_is_not_in_the_log_when_the_leader_goes_or_its_group_is_reset_is_refused(end: str) -> None:
    world = World(end=4)
    asked = world.ask(Ack, world.pull().leases, turn_ends=False)
    if end == "lost":
        world.sharing.lost(NotLeader("another leads"))
    else:
        world.sharing.resets(GROUP)
    assert [type(each) for each in asked.outcomes] == [NotLeader if end == "lost" else NotPrepared]
    world.clock.advance(0)
    assert world.log.written == []
