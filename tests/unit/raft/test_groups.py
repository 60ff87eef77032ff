"""One message per pair of brokers and interval; sleeping groups cost nothing and wake when they must."""

from __future__ import annotations

import pytest

from clymq.raft.groups import Coalescer, PairHeartbeat
from clymq.raft.messages import Heartbeat, HeartbeatResponse, Message, TimeoutNow
from raft_cluster import say


def coalescer(*groups: str, now: float = 0) -> Coalescer:
    """Return the coalescer of broker a; each group is named by the other brokers that have a replica of it."""
    made = Coalescer("a", 1, heartbeat_ms=90, election_ms=300)
    for peers in groups:
        made.join(peers, now)
    return made


def heard(who: str, incarnation: int = 5) -> PairHeartbeat:
    return PairHeartbeat(who, incarnation, ())


# --- Sending ---


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_one_message_goes_to_each_broker_per_interval_whatever_the_number_of_groups(count: int) -> None:
    made = coalescer(*["bc"] * count)
    for number in range(count):
        for receiver in "bc":
            beat = say(Heartbeat, "a", 1, receiver=receiver, commit=number)
            assert made.gather(f"group {number}", [beat]) == []
    sent = made.beat(0)
    assert [(receiver, message.sender, message.incarnation) for receiver, message in sent] == [
        ("b", "a", 1),
        ("c", "a", 1),
    ]
    assert [len(message.beats) for _, message in sent] == [count, count]
    assert [group for group, _ in sent[0][1].beats][:1] == ["group 0"]


def test_between_two_intervals_nothing_goes_out_and_what_gathers_waits() -> None:
    made = coalescer("b")
    assert len(made.beat(5)) == 1
    assert made.due_at() == 95
    beat = say(HeartbeatResponse, "a", 1, receiver="b", commit=0)
    made.gather("g", [beat])
    assert made.beat(94) == []
    ((receiver, message),) = made.beat(95)
    assert (receiver, message.beats) == ("b", (("g", beat),))
    ((_, message),) = made.beat(185)
    assert message.beats == (), "each goes once; the message itself says that the broker is alive"


def test_only_heartbeats_wait_everything_else_goes_at_once_and_in_order() -> None:
    made = coalescer("b")
    first, second = say(TimeoutNow, "a", 1, receiver="b"), say(TimeoutNow, "a", 2, receiver="b")
    messages: list[Message] = [first, say(Heartbeat, "a", 1, receiver="b", commit=0), second]
    assert made.gather("g", messages) == [first, second]


def test_a_broker_that_shares_no_group_any_more_is_sent_nothing() -> None:
    made = coalescer("bc", "b")
    made.leave("first", "bc")
    assert [receiver for receiver, _ in made.beat(0)] == ["b"]
    made.leave("second", "b")
    assert made.beat(90) == []


def test_a_group_that_leaves_is_not_woken_any_more() -> None:
    made = coalescer("b")
    made.sleeps("g", "b", "b")
    made.leave("g", "b")
    assert made.silent(1000) == set()


# --- Waking ---


def test_the_first_word_of_a_broker_wakes_nobody_and_neither_does_the_next() -> None:
    made = coalescer("bc")
    made.sleeps("g", "b", "bc")
    assert made.hear(heard("b"), 10) == set()
    assert made.hear(heard("b"), 20) == set()


def test_another_process_of_the_leaders_broker_wakes_the_groups_it_led() -> None:
    made = coalescer("bc", "bc", "bc")
    made.hear(heard("b", 5), 0)
    made.sleeps("led by b", "b", "bc")
    made.sleeps("led by c", "c", "bc")
    assert made.hear(heard("b", 6), 10) == {"led by b"}
    made.woken("led by b")
    assert made.hear(heard("b", 6), 20) == set()


def test_another_process_of_a_followers_broker_wakes_the_groups_led_here() -> None:
    """What it had may be gone: the leader must look."""
    made = coalescer("bc", "cd")
    made.hear(heard("b", 5), 0)
    made.sleeps("with b", "a", "bc")
    made.sleeps("without b", "a", "cd")
    assert made.hear(heard("b", 6), 10) == {"with b"}


def test_silence_of_the_leaders_broker_for_an_election_timeout_wakes_its_groups_once() -> None:
    made = coalescer("bc")
    made.hear(heard("b"), 100)
    made.hear(heard("c"), 399)
    made.sleeps("g", "b", "bc")
    assert made.silent(399) == set()
    assert made.silent(400) == {"g"}
    assert made.silent(401) == set()


def test_a_broker_that_is_heard_again_can_be_lost_again() -> None:
    made = coalescer("b")
    made.sleeps("g", "b", "b")
    assert made.silent(300) == {"g"}
    made.hear(heard("b"), 350)
    assert made.silent(649) == set()
    assert made.silent(650) == {"g"}


def test_a_broker_that_was_lost_and_is_back_wakes_the_groups_led_here_that_it_takes_part_in() -> None:
    """They fell asleep without it, or may have: it is live again, and nobody has told it anything meanwhile."""
    made = coalescer("bc", "cd")
    made.sleeps("with b", "a", "bc")
    made.sleeps("without b", "a", "cd")
    for peer in "bcd":
        made.hear(heard(peer), 0)
    for peer in "cd":
        made.hear(heard(peer), 250)
    assert made.silent(300) == set()
    assert made.hear(heard("b"), 310) == {"with b"}
    assert made.hear(heard("b"), 320) == set()


@pytest.mark.parametrize(
    ("peers", "lost", "wakes"),
    [
        ("b", "b", True),
        ("bc", "b", False),
        ("bc", "bc", True),
        ("bcd", "b", False),
        ("bcd", "bc", True),
        ("bcde", "bc", False),
        ("bcde", "bcd", True),
    ],
)
def test_a_group_led_here_wakes_when_fewer_than_a_majority_are_heard(peers: str, lost: str, wakes: bool) -> None:
    made = coalescer(peers)
    made.sleeps("g", "a", peers)
    for peer in set(peers) - set(lost):
        made.hear(heard(peer), 250)
    assert made.silent(300) == ({"g"} if wakes else set())


def test_a_group_that_was_woken_is_not_woken_again_and_waking_who_is_awake_changes_nothing() -> None:
    made = coalescer("bc")
    made.sleeps("g", "a", "bc")
    made.woken("g")
    made.woken("g")
    assert made.silent(300) == set()


def test_a_broker_that_shares_no_group_is_not_kept() -> None:
    made = coalescer()
    assert made.hear(heard("z"), 70) == set()
    assert not made.brokers


def test_it_is_known_when_each_broker_was_heard_last() -> None:
    made = coalescer("bc", now=5)
    made.hear(heard("b"), 80)
    assert {name: (broker.heard_at, broker.since) for name, broker in made.brokers.items()} == {
        "b": (80, 5),
        "c": (5, 5),
    }


def test_it_is_known_since_when_a_broker_is_the_same_process() -> None:
    made = coalescer("b", now=5)
    made.hear(heard("b"), 80)
    made.hear(heard("b"), 900)
    assert made.brokers["b"].since == 5, "it was silent, and is the same"
    made.hear(heard("b", 6), 950)
    assert made.brokers["b"].since == 950


def test_sleeping_groups_cost_nothing_until_they_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: a set of a thousand sleeping groups is never walked through."""

    class Watched(set[str]):
        walks = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Watched.walks += 1
            return super().__iter__()

    made = coalescer(*["bc"] * 2000)
    made._led_by["b"], made._leading[frozenset("bc")] = Watched(), Watched()
    for number in range(1000):
        made.sleeps(f"led by b {number}", "b", "bc")
        made.sleeps(f"led by a {number}", "a", "bc")
    for now in range(0, 10_000, 90):
        assert [len(message.beats) for _, message in made.beat(now)] == [0, 0]
        for peer in "bc":
            assert made.hear(heard(peer), now) == set()
        assert made.silent(now) == set()
    assert Watched.walks == 0
    assert len(made.silent(20_000)) == 2000
