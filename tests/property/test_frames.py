"""Frames against chance: any cutting gives the same events, no flipped bit goes unnoticed, no bytes can hurt."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from clymq.protocol.broker import Push, Pushed
from clymq.protocol.connection import Asked, Broken, Connection, Event, State
from clymq.protocol.consensus import Heartbeats
from clymq.protocol.frames import PREFIX_BYTES
from clymq.protocol.verbs import verb_of
from rpc_pair import feed, hello, opened, wire

PAYLOADS = st.one_of(st.binary(max_size=40), st.integers(0, 20_000).map(lambda size: b"\xa5" * size))
NUMBERS = st.integers(1, 2**64 - 1)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    dialer, _ = opened()
    kind = draw(st.sampled_from(["ask", "tell", "reply", "cancel", "ping", "garbage"]))
    payload = draw(PAYLOADS)
    parts = [payload[: len(payload) // 3], payload[len(payload) // 3 :]]
    number = draw(NUMBERS)
    return {
        "ask": lambda: wire(dialer.ask(number, Push(draw(st.text()), "p", "u", "x", 1, -1), parts)),
        "tell": lambda: wire(dialer.tell(Heartbeats("a", 1), parts)),
        "reply": lambda: wire(dialer.reply(number, verb_of(Push), Pushed(5), parts)),
        "cancel": lambda: wire(dialer.cancel(number)),
        "ping": lambda: wire(dialer.ping(number)),
        "garbage": lambda: draw(st.binary(min_size=1, max_size=80)),
    }[kind]()


def told(events: list[Event]) -> list[Any]:
    """Return events so that they can be compared; errors by their text."""
    out = []
    for event in events:
        fields = msgspec.structs.asdict(event)
        out.append(
            (type(event), {n: str(v) if isinstance(v, Exception) else bytes(v) if isinstance(v, memoryview) else v
                           for n, v in fields.items()})
        )  # fmt: skip
    return out


@given(st.lists(frames(), max_size=8), st.lists(st.integers(1, 60_000), max_size=30))
def test_any_cutting_gives_the_same_events(stream: list[bytes], cuts: list[int]) -> None:
    data = b"".join(stream)
    _, whole = opened()
    _, cut = opened()
    assert told(feed(cut, data, cuts)) == told(feed(whole, data))
    assert cut.state is whole.state


@given(st.lists(frames(), min_size=1, max_size=3))
def test_byte_by_byte_gives_the_same_events(stream: list[bytes]) -> None:
    data = b"".join(stream)[:3000]
    _, whole = opened()
    _, cut = opened()
    assert told(feed(cut, data, range(len(data)))) == told(feed(whole, data))


@given(NUMBERS, st.text(max_size=50), st.binary(max_size=50), st.data())
def test_a_flipped_bit_in_prefix_or_header_is_noticed(number: int, topic: str, payload: bytes, data: Any) -> None:
    dialer, acceptor = opened()
    good = wire(dialer.ask(number, Push(topic, "p", "u", "x", 1, -1), [payload]))
    covered = len(good) - len(payload) - -len(payload) % 8
    bit = data.draw(st.integers(0, covered * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    # More follows, so that a length that grew does not simply wait.
    events = feed(acceptor, bytes(bad) + good)
    assert isinstance(events[0], Broken)


def test_every_flipped_bit_of_one_frame_is_noticed() -> None:
    dialer, _ = opened()
    good = wire(dialer.ask(3, Push("t", "p", "u", "x", 1, -1)))
    assert len(good) > PREFIX_BYTES
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        _, acceptor = opened()
        events = feed(acceptor, bytes(bad) + good)
        assert [type(event) for event in events] == [Broken], bit


@given(st.binary(max_size=300))
def test_no_bytes_can_hurt_a_fresh_connection(data: bytes) -> None:
    fresh = Connection(hello())
    events = feed(fresh, data)
    assert all(isinstance(event, Broken) for event in events)


@given(st.lists(st.binary(max_size=5000), max_size=60))
def test_payloads_that_are_kept_stay_as_they_were(payloads: list[bytes]) -> None:
    dialer, acceptor = opened()
    kept = []
    for number, payload in enumerate(payloads):
        for event in feed(acceptor, wire(dialer.ask(number + 1, Push("t", "p", "u", "x", 1, -1), [payload]))):
            assert isinstance(event, Asked)
            kept.append(event.payload)
    assert [bytes(view) for view in kept] == payloads
    assert acceptor.state is State.OPEN
