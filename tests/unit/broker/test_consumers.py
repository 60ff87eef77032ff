"""Who is there: heartbeats on virtual time, with connections that are only pretended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clymq.broker.consumers import Consumers
from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClymqError, ConnectionLost, InvalidRequest, Overloaded, RequestTimeout
from clymq.protocol.broker import PingPong
from clymq.protocol.verbs import Done


class FakePeer:
    """A connection to a consumer."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.answer: object = Done()
        self.asked: list[float] = []
        self._closed: list[Callable[[ClymqError | None], None]] = []

    def ask_soon(self, request: PingPong, payload: object, done: Callable[[Any], None], *, timeout_ms: float) -> int:
        del payload
        self.asked.append(self.clock.monotonic_ms())
        if isinstance(self.answer, ConnectionLost):
            raise self.answer
        if self.answer is None:
            self.clock.call_later(timeout_ms, lambda: done(RequestTimeout("no answer")))
        else:
            done(self.answer)
        return 1

    def on_closed(self, callback: Callable[[ClymqError | None], None]) -> None:
        self._closed.append(callback)

    def close(self) -> None:
        self.answer = ConnectionLost("gone")
        for callback in self._closed:
            callback(None)


class Fixture:
    def __init__(self, **config: int) -> None:
        self.clock = ManualClock()
        self.gone: list[tuple[str, float]] = []
        self.consumers = Consumers(self.clock, Config(**config), self._gone)

    def _gone(self, name: str) -> None:
        self.gone.append((name, self.clock.monotonic_ms()))

    def heard(self, name: str, peer: FakePeer) -> None:
        self.consumers.heard(name, peer)

    def peer(self) -> FakePeer:
        return FakePeer(self.clock)


def test_a_consumer_that_answers_stays_and_is_asked_every_second() -> None:
    fixture, peer = Fixture(), None
    peer = fixture.peer()
    fixture.heard("one", peer)
    fixture.clock.advance(60_000)
    assert fixture.gone == []
    assert 55 <= len(peer.asked) <= 61


def test_an_error_is_an_answer_too() -> None:
    fixture = Fixture()
    peer = fixture.peer()
    peer.answer = InvalidRequest("what is a PingPong?")
    fixture.heard("one", peer)
    fixture.clock.advance(60_000)
    assert fixture.gone == []


@pytest.mark.parametrize("silent_from", [0, 100, 499, 500, 999, 1500, 2750])
def test_a_silent_consumer_is_gone_after_three_misses_and_within_four_seconds(silent_from: int) -> None:
    fixture = Fixture()
    peer = fixture.peer()
    fixture.heard("one", peer)
    fixture.clock.advance(silent_from)
    peer.answer = None
    fixture.clock.advance(4_000)
    ((name, at),) = fixture.gone
    assert name == "one"
    assert 2_000 <= at - silent_from <= 4_000
    assert "one" not in fixture.consumers


def test_whatever_a_consumer_asks_is_a_sign_of_life() -> None:
    fixture = Fixture()
    peer = fixture.peer()
    peer.answer = None
    for _ in range(10):
        fixture.heard("one", peer)
        fixture.clock.advance(2_500)
    assert fixture.gone == []


def test_a_consumer_whose_connection_is_lost_has_the_same_grace_and_may_come_back() -> None:
    fixture = Fixture()
    first, second = fixture.peer(), fixture.peer()
    fixture.heard("one", first)
    fixture.heard("two", first)
    first.close()
    fixture.clock.advance(2_000)
    fixture.heard("one", second)
    fixture.clock.advance(10_000)
    assert [name for name, _ in fixture.gone] == ["two"]
    assert fixture.gone[0][1] <= 4_000


def test_a_consumer_that_is_expected_has_longer_until_it_shows_up_and_no_longer_then() -> None:
    fixture = Fixture()
    fixture.consumers.expect("one", 30_000)
    fixture.consumers.expect("two", 30_000)
    peer = fixture.peer()
    peer.answer = None
    fixture.clock.advance(10_000)
    fixture.heard("one", peer)
    fixture.clock.advance(10_000)
    assert [(name, at <= 14_000) for name, at in fixture.gone] == [("one", True)]
    fixture.clock.advance(15_000)
    assert [name for name, _ in fixture.gone] == ["one", "two"]


def test_a_consumer_that_was_here_once_and_is_expected_again_has_as_long_as_any_other() -> None:
    fixture = Fixture()
    peer = fixture.peer()
    fixture.heard("one", peer)
    peer.close()
    fixture.consumers.expect("one", 30_000)
    fixture.clock.advance(29_000)
    assert fixture.gone == []
    fixture.clock.advance(2_000)
    assert [name for name, _ in fixture.gone] == ["one"]


def test_a_broker_that_stood_still_does_not_take_that_for_the_others_silence() -> None:
    fixture = Fixture()
    peer = fixture.peer()
    fixture.heard("one", peer)
    fixture.clock.advance(1_000)
    fixture.clock._monotonic_ms += 60_000
    fixture.clock.advance(5_000)
    assert fixture.gone == []


def test_one_that_leaves_is_gone_at_once_and_nobody_is_asked_any_more() -> None:
    fixture = Fixture()
    peer = fixture.peer()
    fixture.heard("one", peer)
    fixture.consumers.leave("one")
    assert fixture.gone == [("one", 0.0)]
    fixture.clock.advance(60_000)
    assert peer.asked == []


def test_a_connection_has_a_bound_on_its_consumers() -> None:
    fixture = Fixture(subscriptions_max=2)
    peer = fixture.peer()
    for name in ("one", "two", "one"):
        fixture.heard(name, peer)
    with pytest.raises(Overloaded):
        fixture.heard("three", peer)
    fixture.consumers.leave("two")
    fixture.heard("three", peer)
