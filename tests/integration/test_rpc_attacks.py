"""Peers that mean no good, on real sockets: each is dropped for a reason that is logged, and nobody else notices."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clymq.clock import SystemClock
from clymq.errors import ConnectFailed, Overloaded
from clymq.protocol.broker import ConInfo, ConsumerKnown, Pull, Pulled, Push, Pushed
from clymq.protocol.connection import Connection, Event, Failed, Replied
from clymq.protocol.consensus import Heartbeats
from clymq.protocol.frames import PREFIX
from clymq.protocol.verbs import verb_of
from clymq.rpc import Call, Peer, Server, connect
from clymq.rpc.transport import TcpTransport, parse_address
from rows import descriptors
from rpc_pair import endpoint, feed, hello, until, wire

WAIT_SECONDS = 60
MiB = 1 << 20


class Target:
    """A server, and a peer of good will that must not be disturbed."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.held: list[Call] = []
        self.beats = 0
        self.server: Server
        self.good: Peer

    async def start(self, **settings: Any) -> Target:
        handlers: dict[type, Callable[[Call], None]] = {
            ConInfo: lambda call: call.reply(ConsumerKnown(1)),
            Push: self.held.append,
            Pull: lambda call: call.reply(Pulled(0, 0), [bytes(call.request.bytes_max)]),
            Heartbeats: self._beat,
        }
        self.server = Server(TcpTransport(), endpoint(self.clock, "server", handlers, **settings))
        await self.server.start("127.0.0.1:0")
        self.good = await connect(TcpTransport(), self.server.address, endpoint(self.clock, "good"))
        return self

    def _beat(self, call: Call) -> None:
        self.beats += 1

    async def dropped(self) -> None:
        """Wait until only the good peer is left, and see that it is served."""
        await until(lambda: self.server.connections == 1, self.clock)
        assert (await self.good.ask(ConInfo("good"), timeout_ms=10_000)).reply == ConsumerKnown(1)


class Attacker:
    """A bare socket."""

    def __init__(self, target: Target) -> None:
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self._where = parse_address(target.server.address)
        self.connection = Connection(hello("attacker"))
        self._loop = asyncio.get_running_loop()

    async def open(self) -> Attacker:
        await self._loop.sock_connect(self.socket, self._where)
        return self

    async def shake_hands(self) -> Attacker:
        await self.send(wire(self.connection.hello()))
        await self.events(1)
        return self

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def events(self, count: int) -> list[Event]:
        events: list[Event] = []
        while len(events) < count:
            data = await self._loop.sock_recv(self.socket, 1 << 16)
            assert data, f"the connection ended after {events}"
            events += feed(self.connection, data)
        return events

    @property
    def name(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"


def attack(
    caplog: pytest.LogCaptureFixture, test: Callable[[Target, Attacker], Awaitable[None]], **settings: Any
) -> list[str]:
    """Run an attack; return what was logged of it, one line for each peer that was dropped."""
    caplog.set_level(logging.INFO, "clymq.rpc")

    async def main() -> None:
        target = await Target().start(**settings)
        attacker = await Attacker(target).open()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await test(target, attacker)
        finally:
            attacker.socket.close()
            target.good.close()
            await target.server.close()

    asyncio.run(main())
    return [record.message for record in caplog.records if "dropped" in record.message]


@pytest.mark.parametrize("after_handshake", [False, True], ids=["at once", "after the handshake"])
def test_garbage(caplog: pytest.LogCaptureFixture, after_handshake: bool) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        if after_handshake:
            await attacker.shake_hands()
        await attacker.send(b"\x16\x03\x01" + b"garbage" * 1000)
        await target.dropped()

    (line,) = attack(caplog, test)
    assert "no frame" in line
    assert "127.0.0.1:" in line


def test_a_length_of_four_gigabytes(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        await attacker.send(PREFIX.pack(b"CLYF", 0, 2**32 - 8, 0, 1, 2**32 - 40, 100, 1, 2))
        await target.dropped()

    (line,) = attack(caplog, test)
    assert "4294967288 bytes" in line


def test_a_wrong_checksum(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        data = bytearray(wire(attacker.connection.ask(1, ConInfo("c"))))
        data[35] ^= 1
        await attacker.send(bytes(data))
        await target.dropped()

    (line,) = attack(caplog, test)
    assert "checksum" in line


def test_half_a_frame(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        data = wire(attacker.connection.ask(1, Push("t", "p", "u", "x", 1, -1), [bytes(100_000)]))
        await attacker.send(data[:50_000])
        await target.dropped()

    (line,) = attack(caplog, test, frame_ms_max=200)
    assert "half a frame" in line
    assert "attacker@127.0.0.1:" in line


def test_a_frame_that_comes_drop_by_drop(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        data = wire(attacker.connection.ask(1, Push("t", "p", "u", "x", 1, -1), [bytes(MiB)]))
        for byte in data:
            try:
                await attacker.send(bytes([byte]))
            except OSError:
                break
            await asyncio.sleep(0)
            if target.server.connections == 1:
                break
        await target.dropped()

    (line,) = attack(caplog, test, frame_ms_max=200)
    assert "half a frame" in line


def test_a_handshake_that_never_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await target.dropped()

    (line,) = attack(caplog, test, handshake_ms_max=200)
    assert "no handshake within 200 ms" in line


def test_a_handshake_that_comes_drop_by_drop(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        for byte in wire(attacker.connection.hello())[:-1]:
            await attacker.send(bytes([byte]))
        await target.dropped()

    (line,) = attack(caplog, test, handshake_ms_max=200)
    assert "no handshake within 200 ms" in line


def test_a_hello_that_never_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.send(PREFIX.pack(b"CLYF", 0, 32 + MiB, MiB, 0, 0, 0, 0, 1))
        await target.dropped()

    (line,) = attack(caplog, test)
    assert "65536 were agreed on" in line


def test_a_peer_that_never_reads(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        number = 0
        while target.server.connections == 2:
            number += 1
            ask = wire(attacker.connection.ask(number, Pull("t", "p", "u", bytes_max=500_000)))
            try:
                await attacker.send(ask)
            except OSError:
                break
            await asyncio.sleep(0)
        await target.dropped()

    (line,) = attack(caplog, test, write_buffer_bytes_max=4 * MiB)
    assert "does not read" in line


def test_a_flood_past_the_window_is_refused_and_what_follows_gets_through(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        asks = b"".join(
            wire(attacker.connection.ask(number, Push("t", "p", str(number), "x", number, -1)))
            for number in range(1, 101)
        )
        # The server holds on to every push, so the window stays full; behind the flood are a heartbeat and a cancel.
        await attacker.send(asks + wire(attacker.connection.tell(Heartbeats("a", 1))))
        events = await attacker.events(90)
        assert all(isinstance(event, Failed) and isinstance(event.error, Overloaded) for event in events)
        assert [event.correlation for event in events if isinstance(event, Failed)] == list(range(11, 101))
        await until(lambda: target.beats == 1, target.clock)
        assert len(target.held) == 10
        for call in target.held:
            call.reply(Pushed(1))
        assert all(isinstance(event, Replied) for event in await attacker.events(10))
        await attacker.send(wire(attacker.connection.ask(200, ConInfo("still here"))))
        (answer,) = await attacker.events(1)
        assert isinstance(answer, Replied)

    assert attack(caplog, test, window_requests=10) == []


def test_a_flood_at_one_partition_is_refused_and_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        for number, uid in enumerate(["hot"] * 8 + ["cold"]):
            await attacker.send(wire(attacker.connection.ask(number + 1, Push("t", "p", uid, "x", 1, -1))))
        events = await attacker.events(5)
        assert [event.correlation for event in events if isinstance(event, Failed)] == [4, 5, 6, 7, 8]
        await until(lambda: len(target.held) == 4, target.clock)
        assert target.held[-1].request.uid == "cold"

    assert attack(caplog, test, partition_window_requests=3) == []


def test_requests_that_are_cancelled_at_once_do_not_pile_up(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        for number in range(1, 201):
            ask = wire(attacker.connection.ask(number, Push("t", "p", "u", "x", 1, -1)))
            await attacker.send(ask + wire(attacker.connection.cancel(number)))
        await attacker.events(150)
        assert len(target.held) <= 12

    assert attack(caplog, test, window_requests=10) == []


def test_the_same_number_twice(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        await attacker.send(wire(attacker.connection.ask(1, Push("t", "p", "u", "x", 1, -1))) * 2)
        await target.dropped()

    (line,) = attack(caplog, test)
    assert "two requests with the number 1" in line


def test_a_million_tiny_frames(caplog: pytest.LogCaptureFixture, size: str) -> None:
    count = 50_000 if size == "quick" else 1_000_000

    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        some = wire(attacker.connection.tell(Heartbeats("a", 1))) * 1000
        for _ in range(count // 1000):
            await attacker.send(some)
        # Served all the while: the flood is cut into reads, and between them others have their turn.
        answer = await target.good.ask(ConInfo("good"), timeout_ms=10_000)
        assert answer.reply == ConsumerKnown(1)
        await until(lambda: target.beats == count, target.clock)

    assert attack(caplog, test) == []


def test_replies_that_nobody_asked_for_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        await attacker.shake_hands()
        for number in range(1000):
            await attacker.send(wire(attacker.connection.reply(number, verb_of(Push), Pushed(1))))
            await attacker.send(wire(attacker.connection.fail(number, Overloaded("no"))))
        await attacker.send(wire(attacker.connection.ask(1, ConInfo("c"))))
        (answer,) = await attacker.events(1)
        assert isinstance(answer, Replied)

    assert attack(caplog, test) == []


def test_connections_that_come_and_go_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        attacker.socket.close()
        before = descriptors()
        for number in range(200):
            visitor = await Attacker(target).open()
            if number % 2:
                await visitor.send(b"x" * number)
            linger = struct.pack("ii", 1, 0)
            if number % 3:
                visitor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            visitor.socket.close()
        await target.dropped()
        assert descriptors() <= before

    attack(caplog, test)


def test_more_connections_than_are_taken_are_turned_away_politely(caplog: pytest.LogCaptureFixture) -> None:
    async def test(target: Target, attacker: Attacker) -> None:
        ours = endpoint(target.clock, "visitor")
        attempts = [connect(TcpTransport(), target.server.address, ours) for _ in range(20)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        visitors = [result for result in results if isinstance(result, Peer)]
        refusals = [str(result) for result in results if isinstance(result, ConnectFailed)]
        assert all("which is all that it takes" in refusal for refusal in refusals)
        assert len(refusals) == 17
        assert len(visitors) == 3
        for visitor in visitors:
            visitor.close()
        attacker.socket.close()
        await target.dropped()

    attack(caplog, test, connections_max=5)
    assert sum("refused" in record.message for record in caplog.records) == 17
