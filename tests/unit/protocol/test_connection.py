"""The state machine of one side: what may come when, and what is the end of it."""

from __future__ import annotations

import gc
import struct
import weakref

import pytest
from crc32c import crc32c

from clymq.errors import (
    FrameTooLarge,
    InvalidRequest,
    LocalProtocolError,
    OutOfSequence,
    Overloaded,
    RemoteProtocolError,
    UnsupportedVersion,
)
from clymq.protocol.broker import ConInfo, Pull, Pulled, Push, Pushed
from clymq.protocol.connection import (
    Asked,
    Broken,
    Cancelled,
    Connection,
    Failed,
    Leaving,
    Opened,
    Pinged,
    Ponged,
    Replied,
    State,
    Told,
    Unreadable,
)
from clymq.protocol.consensus import Heartbeats
from clymq.protocol.frames import PREFIX, Kind, frame
from clymq.protocol.handshake import Window
from clymq.protocol.receive_buffer import CHUNK_BYTES_MAX, GROWTH
from clymq.protocol.verbs import encode, verb_of
from rpc_pair import feed, hello, opened, wire

PUSH = Push("t", "p", "u", "x", 1, -1)


def only(events: list[object]) -> object:
    (event,) = events
    return event


def broken(connection: Connection, data: bytes) -> Exception:
    event = feed(connection, data)[-1]
    assert isinstance(event, Broken)
    assert connection.state is State.BROKEN
    assert feed(connection, b"more of anything") == []
    return event.error


# --- Handshake ---


def test_both_sides_learn_who_the_other_is_and_what_they_have_in_common() -> None:
    dialer = Connection(hello("dialer", features=("a", "b"), incarnation=7))
    acceptor = Connection(hello("acceptor", features=("b", "c")))
    seen = only(feed(acceptor, wire(dialer.hello())))
    assert seen == Opened(dialer.ours, 1, frozenset({"b"}))
    assert only(feed(dialer, wire(acceptor.hello()))) == Opened(acceptor.ours, 1, frozenset({"b"}))


def test_the_highest_common_version_is_used() -> None:
    dialer = Connection(hello(version_min=1, version_max=5))
    acceptor = Connection(hello(version_min=2, version_max=3))
    feed(acceptor, wire(dialer.hello()))
    assert acceptor.version == 3


def test_no_version_in_common_is_an_error_that_names_both() -> None:
    acceptor = Connection(hello("old"))
    error = broken(acceptor, wire(Connection(hello("new", version_min=4, version_max=5)).hello()))
    assert isinstance(error, UnsupportedVersion)
    assert "4 to 5" in str(error)


@pytest.mark.parametrize(
    "fields",
    [{"window": Window(0, 1, 1, 1)}, {"window": Window(1, 1, 1, 0)}, {"frame_bytes_max": 100}],
    ids=["no requests", "no partition bytes", "tiny frames"],
)
def test_a_hello_that_could_not_work_is_refused(fields: dict[str, object]) -> None:
    error = broken(Connection(hello()), wire(Connection(hello(**fields)).hello()))
    assert isinstance(error, RemoteProtocolError)


def test_nothing_may_come_before_hello_and_no_second_one_after() -> None:
    dialer, acceptor = opened()
    assert isinstance(broken(Connection(hello()), wire(dialer.ask(1, PUSH))), RemoteProtocolError)
    assert isinstance(broken(acceptor, wire(Connection(hello()).hello())), RemoteProtocolError)


def test_nothing_can_be_sent_before_hello_and_no_second_one_after() -> None:
    fresh = Connection(hello())
    with pytest.raises(LocalProtocolError):
        fresh.tell(Heartbeats("a", 1))
    fresh.hello()
    with pytest.raises(LocalProtocolError):
        fresh.ask(1, PUSH)
    with pytest.raises(LocalProtocolError):
        fresh.hello()


def test_a_goodbye_before_the_handshake_says_why() -> None:
    event = only(feed(Connection(hello()), wire(Connection(hello()).goodbye(Overloaded("full")))))
    assert isinstance(event, Leaving)
    assert str(event.error) == "full"


# --- Frames ---


def test_request_reply_error_and_the_rest_arrive_as_what_they_are() -> None:
    dialer, acceptor = opened()
    data = b"".join(
        wire(made)
        for made in (
            dialer.ask(5, PUSH, [b"ab", b"c"]),
            dialer.tell(Heartbeats("a", 1), [b"x" * 5000]),
            dialer.cancel(5),
            dialer.ping(6),
            dialer.pong(7),
            dialer.goodbye(OutOfSequence("gap", expected=3)),
        )
    )
    asked, told, cancelled, pinged, ponged, leaving = feed(acceptor, data)
    assert isinstance(asked, Asked)
    assert (asked.correlation, asked.message, bytes(asked.payload)) == (5, PUSH, b"abc")
    assert asked.frame_bytes == dialer.ask(5, PUSH, [b"abc"])[1]
    assert isinstance(told, Told)
    assert (told.message, bytes(told.payload)) == (Heartbeats("a", 1), b"x" * 5000)
    assert (cancelled, pinged, ponged) == (Cancelled(5), Pinged(6), Ponged(7))
    assert isinstance(leaving, Leaving)
    push = verb_of(Push)
    replied, failed = feed(
        dialer,
        wire(acceptor.reply(5, push, Pushed(9), [b"z"])) + wire(acceptor.fail(6, OutOfSequence("gap", expected=3))),
    )
    assert isinstance(replied, Replied)
    assert (replied.correlation, replied.reply, bytes(replied.payload)) == (5, Pushed(9), b"z")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, OutOfSequence)
    assert failed.error.expected == 3


def test_a_large_payload_is_not_copied_when_it_is_sent() -> None:
    dialer, _ = opened()
    batch = memoryview(bytearray(100_000))
    buffers, size = dialer.ask(1, PUSH, [batch, batch])
    assert buffers[1] is batch
    assert buffers[2] is batch
    assert size == sum(map(len, buffers))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 2047, 2048, 2049, 4095, 65536, 300_000, 1_000_000])
def test_payloads_are_whole_aligned_in_the_stream_and_writable(size: int) -> None:
    dialer, acceptor = opened()
    payload = bytes(n % 251 for n in range(size))
    data = wire(dialer.ask(1, PUSH, [payload]))
    assert len(data) % 8 == 0
    first, second = feed(acceptor, data + data)
    assert isinstance(first, Asked)
    assert isinstance(second, Asked)
    assert bytes(first.payload) == bytes(second.payload) == payload
    if size:
        first.payload[0] = 255
        assert bytes(second.payload) == payload


def test_a_payload_that_is_kept_is_never_written_over() -> None:
    dialer, acceptor = opened()
    kept = []
    for number in range(200):
        (event,) = feed(acceptor, wire(dialer.ask(number + 1, PUSH, [bytes([number]) * 3000])))
        assert isinstance(event, Asked)
        kept.append(event.payload)
    assert [bytes(payload) for payload in kept] == [bytes([number]) * 3000 for number in range(200)]


def test_memory_that_nobody_holds_is_used_again() -> None:
    dialer, acceptor = opened()
    data = wire(dialer.ask(1, PUSH, [bytes(3000)]))
    feed(acceptor, data)
    room = acceptor.get_buffer()
    first = room.obj
    del room
    feed(acceptor, data)
    assert acceptor.get_buffer().obj is first


def test_a_frame_of_a_gigabyte_that_is_only_announced_takes_no_memory() -> None:
    dialer, acceptor = opened(frame_bytes_max=2**31)
    head = frame(Kind.REQUEST, 100, 1, 1, encode(PUSH))[0][0]
    fields = list(PREFIX.unpack_from(head))
    fields[2] += 2**30
    fields[5] = 2**30
    announced = bytearray(PREFIX.pack(*fields) + head[32:])
    struct.pack_into("<I", announced, 4, crc32c(bytes(announced[8:])))
    assert feed(acceptor, bytes(announced)) == []
    assert acceptor.in_frame
    arrived = len(announced)
    while arrived < 3 * 2**20:
        room = acceptor.get_buffer()
        assert len(room.obj) <= GROWTH * arrived + CHUNK_BYTES_MAX
        acceptor.received(len(room))
        arrived += len(room)
    assert dialer.state is State.OPEN


def test_a_connection_that_rests_holds_no_memory() -> None:
    dialer, acceptor = opened()
    feed(acceptor, wire(dialer.ask(1, PUSH, [bytes(500_000)])))
    acceptor.rest()
    assert len(acceptor.get_buffer().obj) <= 4096


def test_half_a_frame_survives_a_rest() -> None:
    dialer, acceptor = opened()
    data = wire(dialer.ask(1, PUSH, [b"x" * 5000]))
    assert feed(acceptor, data[:2000]) == []
    acceptor.rest()
    (event,) = feed(acceptor, data[2000:])
    assert isinstance(event, Asked)
    assert bytes(event.payload) == b"x" * 5000


# --- What is wrong with a message is not the end; what is wrong with the framing is ---


def test_a_verb_that_does_not_exist_is_answered_and_the_connection_goes_on() -> None:
    dialer, acceptor = opened()
    unknown = b"".join(frame(Kind.REQUEST, 9999, 1, 4, b"\x80")[0])
    first, second = feed(acceptor, unknown + wire(dialer.ask(5, PUSH)))
    assert isinstance(first, Unreadable)
    assert (first.correlation, type(first.error)) == (4, InvalidRequest)
    assert "9999" in str(first.error)
    assert isinstance(second, Asked)


@pytest.mark.parametrize(
    ("kind", "number", "header"),
    [
        (Kind.REQUEST, verb_of(Push).number, b"\x80"),
        (Kind.REQUEST, verb_of(Push).number, b"\xc1"),
        (Kind.REQUEST, verb_of(Push).number, b""),
        (Kind.REQUEST, verb_of(Heartbeats).number, encode(Heartbeats("a", 1))),
        (Kind.ONE_WAY, verb_of(ConInfo).number, encode(ConInfo("c"))),
        (Kind.ONE_WAY, 9999, b""),
    ],
    ids=["fields missing", "no msgpack", "empty", "one-way asked", "request told", "unknown told"],
)
def test_a_message_that_makes_no_sense_is_not_the_end(kind: Kind, number: int, header: bytes) -> None:
    _, acceptor = opened()
    data = b"".join(frame(kind, number, 1, 0 if kind is Kind.ONE_WAY else 4, header)[0])
    event = only(feed(acceptor, data))
    assert isinstance(event, Unreadable)
    assert event.correlation == (0 if kind is Kind.ONE_WAY else 4)
    assert acceptor.state is State.OPEN


def test_a_reply_that_cannot_be_read_fails_its_request_only() -> None:
    dialer, acceptor = opened()
    data = b"".join(frame(Kind.REPLY, verb_of(Pull).number, 1, 4, b"\xc1")[0])
    data += b"".join(frame(Kind.REPLY, 9999, 1, 5, b"")[0])
    data += wire(acceptor.reply(6, verb_of(Pull), Pulled(1, 0)))
    four, five, six = feed(dialer, data)
    assert isinstance(four, Failed)
    assert isinstance(five, Failed)
    assert isinstance(six, Replied)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        b"".join(frame(77, 100, 1, 4, b"")[0]),
        b"".join(frame(Kind.REQUEST, 100, 2, 4, b"")[0]),
        b"".join(frame(Kind.REQUEST, 100, 1, 0, b"")[0]),
        b"".join(frame(Kind.ONE_WAY, 305, 1, 4, b"")[0]),
    ],
    ids=["http", "zeros", "ones", "no such kind", "another version", "request 0", "numbered one-way"],
)
def test_broken_framing_is_the_end(data: bytes) -> None:
    _, acceptor = opened()
    assert isinstance(broken(acceptor, data), RemoteProtocolError)


def test_what_came_before_the_breach_still_counts() -> None:
    dialer, acceptor = opened()
    asked, end = feed(acceptor, wire(dialer.ask(1, PUSH)) + bytes(32) + wire(dialer.ask(2, PUSH)))
    assert isinstance(asked, Asked)
    assert isinstance(end, Broken)


def test_a_frame_beyond_the_limit_is_refused_by_its_prefix() -> None:
    dialer, acceptor = opened()
    prefix = PREFIX.pack(b"CLYF", 0, 2**32 - 8, 0, 1, 2**32 - 40, 100, 1, 2)
    assert isinstance(broken(acceptor, prefix), FrameTooLarge)
    with pytest.raises(FrameTooLarge, match="takes 1048576"):
        dialer.ask(1, PUSH, [bytes(1 << 20)])


def test_a_header_beyond_its_limit_is_refused_by_the_prefix() -> None:
    dialer, acceptor = opened(frame_bytes_max=2**31)
    prefix = PREFIX.pack(b"CLYF", 0, 32 + 2**24, 2**24, 1, 0, 100, 1, 2)
    assert isinstance(broken(acceptor, prefix), FrameTooLarge)
    with pytest.raises(FrameTooLarge, match="header"):
        dialer.ask(1, ConInfo("c" * 2**24))


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.REQUEST, Kind.REPLY, Kind.ERROR, Kind.GOODBYE])
def test_a_header_that_is_nested_without_end_is_an_error_like_any_other(kind: Kind) -> None:
    _, acceptor = opened()
    nested = b"\x81\xa6colour" + b"\x91" * 60_000 + b"\x01"
    if kind is Kind.HELLO:
        assert isinstance(broken(Connection(hello()), b"".join(frame(kind, 0, 0, 0, nested)[0])), RemoteProtocolError)
    else:
        event = only(feed(acceptor, b"".join(frame(kind, 100, 1, 4, nested)[0])))
        assert isinstance(event, Unreadable | Failed | Leaving)


def test_a_hello_is_small() -> None:
    data = b"".join(frame(Kind.HELLO, 0, 0, 0, b"", [bytes(100_000)])[0])
    assert isinstance(broken(Connection(hello()), data), FrameTooLarge)


def test_a_broken_connection_leaves_no_garbage_behind() -> None:
    gc.disable()
    try:
        dialer, acceptor = opened()
        buffer = weakref.ref(acceptor)
        end = feed(acceptor, wire(dialer.ask(1, PUSH, [b"x" * 3000])) + bytes(32))
        del acceptor, end
        assert buffer() is None
    finally:
        gc.enable()
