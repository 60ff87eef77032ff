"""What a review of the wire found: each test here failed on the code as it was first written."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import Any

import pytest

from clymq.clock import ManualClock, SystemClock
from clymq.errors import (
    ClymqError,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidRequest,
    NodeMissing,
    RemoteProtocolError,
    UnknownServerError,
)
from clymq.protocol.broker import ConInfo, ConsumerKnown, Pull, Pulled, Push, Pushed
from clymq.protocol.failures import decode_error, encode_error
from clymq.protocol.handshake import HELLO_BYTES_MAX, Window
from clymq.protocol.verbs import verb_of
from clymq.rpc import Call, Link, Peer, Server, answering, connect
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.transport import TcpTransport, parse_address
from clymq.rpc.window import SendWindow
from rpc_pair import endpoint, until, virtually

ADDRESS = "server:7774"


def push(number: int = 1, uid: str = "u") -> Push:
    return Push("t", "p", uid, "x", number, -1)


class World:
    """A server with handlers, and a client that is connected to it."""

    def __init__(self, clock: ManualClock, network: MemoryNetwork) -> None:
        self.clock = clock
        self.network = network
        self.calls: list[Call] = []
        self.accepted: list[Peer] = []

    async def start(self, handlers: dict[type, Callable[[Call], None]] | None = None, **settings: Any) -> World:
        kept = {Push: self.calls.append, Pull: self.calls.append}
        served = endpoint(self.clock, "server", kept | (handlers or {}), **settings)
        self.server = Server(self.network.transport("server"), served)
        await self.server.start(ADDRESS)
        self.peer = await self.connect()
        return self

    async def connect(self, **settings: Any) -> Peer:
        return await connect(
            self.network.transport("client"), ADDRESS, endpoint(self.clock, "client", **settings), timeout_ms=1000
        )

    def link(self, address: str = ADDRESS, on_open: Callable[[Peer], None] | None = None) -> Link:
        made = Link(
            self.network.transport("client"),
            address,
            endpoint(self.clock, "client", connect_ms_max=2000, reconnect_ms_min=10, reconnect_ms_max=50),
            chance=lambda: 0.5,
            on_open=on_open,
        )
        made.start()
        return made

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, self.clock)

    async def passed(self, milliseconds: float) -> None:
        over = asyncio.Event()
        self.clock.call_later(milliseconds, over.set)
        await over.wait()


def in_world(test: Callable[[World], Any]) -> None:
    virtually(lambda clock, network: test(World(clock, network)))


def answer(call: Call) -> None:
    call.reply(Pushed(1))


# --- Every request that arrives is answered once, and its place is free again ---


def test_a_call_that_is_cancelled_before_its_coroutine_began_is_over() -> None:
    """Request and CANCEL in one read: the task never runs, and after `window_requests` of these nothing was taken."""

    async def test(world: World) -> None:
        async def serve(call: Call) -> Pulled:
            return Pulled(0, 0)

        await world.start({Pull: answering(serve)}, window_requests=4)
        for _ in range(50):
            correlation = world.peer.ask_soon(Pull("t", "p", "u"), (), print, timeout_ms=1000)
            world.peer.give_up(correlation)
            await world.passed(2)
        found = await world.peer.ask(Pull("t", "p", "u"), timeout_ms=1000)
        assert found.reply == Pulled(0, 0)

    in_world(test)


def test_a_reply_that_cannot_be_written_down_is_an_error_and_not_silence() -> None:
    async def test(world: World) -> None:
        async def too_much(call: Call) -> Pushed:
            return Pushed(2**80)

        await world.start({Push: lambda call: call.reply(Pushed(2**80)), Pull: answering(too_much)})
        for request in (push(), Pull("t", "p", "u")):
            with pytest.raises(UnknownServerError):
                await world.peer.ask(request, timeout_ms=1000)

    in_world(test)


def test_a_coroutine_that_answers_nothing_is_an_error_and_not_silence() -> None:
    async def test(world: World) -> None:
        async def forgets(call: Call) -> None:
            return None

        await world.start({Pull: answering(forgets)})
        with pytest.raises(UnknownServerError):
            await world.peer.ask(Pull("t", "p", "u"), timeout_ms=1000)

    in_world(test)


def test_a_coroutine_may_answer_by_itself_and_go_on() -> None:
    async def test(world: World) -> None:
        went_on: list[bool] = []

        async def serve(call: Call) -> None:
            call.reply(Pulled(7, 7))
            await asyncio.sleep(0)
            went_on.append(call.cancelled)

        await world.start({Pull: answering(serve)})
        assert (await world.peer.ask(Pull("t", "p", "u"), timeout_ms=1000)).reply == Pulled(7, 7)
        await world.until(lambda: went_on == [False])

    in_world(test)


@pytest.mark.parametrize("mistake", [asyncio.CancelledError, RecursionError, InvalidRequest])
def test_a_handler_that_raises_costs_nobody_else_an_answer(mistake: type[BaseException]) -> None:
    """`future.result()` of a cancelled future raises what is no `Exception`: what came behind it was lost."""

    async def test(world: World) -> None:
        def fail(call: Call) -> None:
            raise mistake

        await world.start({Pull: fail, Push: answer})
        outcomes: list[Any] = []
        world.peer.ask_soon(Pull("t", "p", "u"), (), outcomes.append, timeout_ms=1000)
        world.peer.ask_soon(push(), (), outcomes.append, timeout_ms=1000)
        await world.until(lambda: len(outcomes) == 2)
        assert isinstance(outcomes[0], UnknownServerError | InvalidRequest)
        assert outcomes[1].reply == Pushed(1)

    in_world(test)


def test_a_handler_may_raise_after_its_answer() -> None:
    async def test(world: World) -> None:
        def fail(call: Call) -> None:
            answer(call)
            raise ValueError("too late")

        await world.start({Push: fail})
        for _ in range(3):
            assert (await world.peer.ask(push(), timeout_ms=1000)).reply == Pushed(1)

    in_world(test)


def test_a_reply_of_another_verb_is_no_answer() -> None:
    async def test(world: World) -> None:
        def confuse(call: Call) -> None:
            call.peer.send(*call.peer.connection.reply(call.correlation, verb_of(ConInfo), ConsumerKnown(1)))

        await world.start({Push: confuse})
        with pytest.raises(RemoteProtocolError, match="Push"):
            await world.peer.ask(push(), timeout_ms=1000)

    in_world(test)


# --- Callbacks ---


def test_a_bad_callback_takes_neither_the_others_nor_the_server_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """One `on_cancel` that raises: the other calls were not told, and `Server.close` waited for ever."""

    async def test(world: World) -> None:
        told: list[str] = []

        def bad(*_: object) -> None:
            raise ValueError("a mistake")

        def keep(call: Call) -> None:
            call.peer.on_closed(bad)
            call.peer.on_closed(lambda _: told.append("closed"))
            call.on_cancel(bad if call.request.cmdindex == 1 else lambda: told.append("cancelled"))

        await world.start({Push: keep, Pull: lambda call: call.reply(Pulled(1, 1))}, drain_ms_max=100)
        for number in (1, 2):
            world.peer.ask_soon(push(number), (), print, timeout_ms=10_000)
        await world.peer.ask(Pull("t", "p", "u"), timeout_ms=100)
        world.peer.close()
        await world.until(lambda: "closed" in told)
        assert "cancelled" in told
        await world.server.close()
        assert world.server.connections == 0

    in_world(test)


def test_a_bad_on_cancel_does_not_lose_what_came_with_the_cancel(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        def bad() -> None:
            raise ValueError("a mistake")

        await world.start({Pull: lambda call: call.on_cancel(bad), Push: answer})
        first = world.peer.ask_soon(Pull("t", "p", "u"), (), print, timeout_ms=10_000)
        await world.passed(5)
        world.peer.give_up(first)
        assert (await world.peer.ask(push(), timeout_ms=1000)).reply == Pushed(1)

    in_world(test)


def test_a_link_survives_a_listener_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        seen: list[Peer] = []

        def first_time_bad(peer: Peer) -> None:
            seen.append(peer)
            if len(seen) == 1:
                raise ValueError("a mistake")

        await world.start({Push: answer})
        made = world.link(on_open=first_time_bad)
        assert (await made.ask(push(), timeout_ms=5000)).reply == Pushed(1)
        await made.close()

    in_world(test)


# --- Links ---


def test_a_link_that_is_moved_while_it_connects_leads_to_the_new_address() -> None:
    async def test(world: World) -> None:
        world.network.delay_ms = lambda *_: 20.0
        await world.start()
        moved = Server(world.network.transport("moved"), endpoint(world.clock, "moved", {Push: answer}))
        await moved.start("moved:1")
        made = world.link()
        await world.passed(10)  # in the middle of connecting
        made.move("moved:1")
        assert (await made.ask(push(), timeout_ms=2000)).reply == Pushed(1)
        assert made.peer is not None
        assert made.peer.name == "moved"
        await made.close()

    in_world(test)


def test_a_link_that_is_moved_does_not_wait_for_an_address_that_is_silent() -> None:
    async def test(world: World) -> None:
        await world.start()
        world.network.freeze("client", "server")
        moved = Server(world.network.transport("moved"), endpoint(world.clock, "moved", {Push: answer}))
        await moved.start("moved:1")
        made = world.link()
        await world.passed(10)
        made.move("moved:1")
        assert (await made.ask(push(), timeout_ms=500)).reply == Pushed(1)
        await made.close()

    in_world(test)


def test_what_waits_for_a_link_goes_in_the_order_in_which_it_was_asked() -> None:
    async def test(world: World) -> None:
        numbers: list[int] = []

        def note(call: Call) -> None:
            numbers.append(call.request.cmdindex)
            answer(call)

        made = world.link()
        asking = [asyncio.create_task(made.ask(push(n), timeout_ms=5000)) for n in range(40)]
        await world.passed(20)
        await world.start({Push: note}, partition_window_requests=100)
        await asyncio.gather(*asking)
        assert numbers == list(range(40))
        await made.close()

    in_world(test)


def test_a_link_can_be_closed_at_any_moment_of_its_connecting() -> None:
    async def test(world: World) -> None:
        world.network.delay_ms = lambda *_: 5.0
        await world.start()
        world.peer.close()
        for moment in range(0, 30, 1):
            made = world.link()
            asking = asyncio.create_task(made.ask(push(), timeout_ms=5000))
            await world.passed(moment)
            await made.close()
            with pytest.raises(ClymqError):
                await asking
        await world.until(lambda: world.server.connections == 0)

    in_world(test)


def test_a_server_that_is_closing_is_a_reason_to_try_again() -> None:
    """`ClosedError` is not retriable: who met a server in its last moments gave up for good."""

    async def test(world: World) -> None:
        await world.start(drain_ms_max=500)
        kept = asyncio.create_task(world.peer.ask(push(), timeout_ms=5000))
        await world.until(lambda: world.calls)
        world.network.delay_ms = lambda *_: 20.0
        connecting = asyncio.create_task(world.connect())
        await world.passed(21)  # it is accepted, and has not said who it is
        closing = asyncio.create_task(world.server.close())
        with pytest.raises(ConnectFailed) as refused:
            await connecting
        assert refused.value.retriable
        answer(world.calls[0])
        await kept
        await closing

    in_world(test)


def test_a_peer_that_said_goodbye_and_stays_is_left() -> None:
    """The last request ran into its deadline: nothing arrived any more that would have closed the connection."""

    async def test(world: World) -> None:
        await world.start(drain_ms_max=60_000)
        asking = asyncio.create_task(world.peer.ask(push(), timeout_ms=100))
        await world.until(lambda: world.calls)
        world.calls[0].peer.leave(ConnectionLost("leaving"), lambda: None)
        with pytest.raises(ClymqError):
            await asking
        await world.passed(3000)
        assert world.peer.is_closed

    in_world(test)


# --- Time ---


def test_a_process_that_stood_still_drops_nobody_unheard() -> None:
    """After a stop by a signal every idle connection was dropped, although nobody had been pinged."""

    async def test(world: World) -> None:
        await world.start(idle_ping_ms=1000)
        peer = world.peer
        before = world.clock.monotonic_ms()
        # All that was due meanwhile happens at once, at the end of it: that is what a stop looks like from inside.
        world.clock._monotonic_ms = before + 60_000
        await world.passed(5000)
        assert not peer.is_closed
        assert (world.server.connections, peer.is_open) == (1, True)

    in_world(test)


def test_a_deadline_in_the_past_is_over_at_once_and_leaks_nothing() -> None:
    async def test(world: World) -> None:
        await world.start({Pull: lambda call: call.reply(Pulled(0, 0))}, window_requests=4)
        for timeout_ms in (0, -1, -1e9, 0.0001) * 5:
            with pytest.raises(ClymqError):
                await world.peer.ask(push(), timeout_ms=timeout_ms)
        assert len(world.peer._asks or ()) == 0
        for call in world.calls:
            answer(call)
        assert (await world.peer.ask(Pull("t", "p", "u"), timeout_ms=100)).reply == Pulled(0, 0)

    in_world(test)


# --- Windows ---


class Waiting:
    def __init__(self, size: int, key: str | None = "p") -> None:
        self.size = size
        self.key = key


def test_what_waited_behind_a_large_request_goes_when_that_is_given_up() -> None:
    window = SendWindow(Window(requests=8, bytes=1000, partition_requests=8, partition_bytes=100), 8)
    running, large, small = Waiting(10), Waiting(99), Waiting(5)
    assert window.enter(running)
    assert not window.enter(large)
    assert not window.enter(small)
    assert window.forget(large) == [small]
    window.leave(running)
    window.leave(small)
    assert window.enter(Waiting(100))


# --- Errors ---


def test_the_flags_of_an_error_survive_a_second_journey() -> None:
    class Newer(ClymqError):
        retriable = True
        refresh = True

    once = decode_error(encode_error(Newer("from the future")))
    twice = decode_error(encode_error(once))
    assert isinstance(twice, UnknownServerError)
    assert (twice.retriable, twice.refresh) == (True, True)


def test_an_error_fits_into_the_smallest_frame_whatever_hangs_on_it() -> None:
    error = NodeMissing("gone")
    error.path = "x" * 10_000_000  # type: ignore[attr-defined]
    assert len(encode_error(error)) < HELLO_BYTES_MAX - 64
    assert type(decode_error(encode_error(error))) is NodeMissing


def test_an_address_with_a_port_of_ten_thousand_digits_is_no_address() -> None:
    with pytest.raises(InvalidRequest):
        parse_address("host:" + "1" * 10_000)


# --- The twin in memory ---


def test_in_memory_a_frozen_side_does_not_hear_that_the_other_gave_up() -> None:
    """Half-open connections are the point of `freeze`: a reset does not get through either."""

    async def test(world: World) -> None:
        await world.start({Push: answer})
        await world.peer.ask(push(), timeout_ms=100)
        world.network.freeze("client", "server")
        world.peer.drop(ConnectionLost("gave up"))
        await world.passed(100)
        assert world.server.connections == 1
        world.network.heal("client", "server")
        await world.until(lambda: world.server.connections == 0)

    in_world(test)


def test_in_memory_a_reset_does_not_overtake_what_was_sent_before() -> None:
    async def test(world: World) -> None:
        world.network.delay_ms = lambda *_: 10.0
        await world.start()
        world.peer.ask_soon(push(), (), lambda _: None, timeout_ms=1000)
        await world.passed(1)
        world.peer.drop(ConnectionLost("gave up"))
        await world.passed(50)
        assert len(world.calls) == 1

    in_world(test)


# --- On sockets ---


def on_sockets(test: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())
    gc.collect()


def test_a_server_may_be_closed_twice_and_its_port_is_free_at_once() -> None:
    async def test() -> None:
        clock = SystemClock()
        address = "127.0.0.1:0"
        for _ in range(3):
            server = Server(TcpTransport(), endpoint(clock, "server", {Push: answer}))
            await server.start(address)
            address = server.address
            peer = await connect(TcpTransport(), address, endpoint(clock, "client"))
            assert (await peer.ask(push(), timeout_ms=5000)).reply == Pushed(1)
            await server.close()
            await server.close()
            peer.close()

    on_sockets(test)


@pytest.mark.parametrize("local", [False, True])
def test_answers_that_arrived_before_the_connection_broke_are_not_lost(local: bool) -> None:
    """A send that fails says that the other side is gone, not that it had said nothing."""

    async def test() -> None:
        clock, transport = SystemClock(), TcpTransport(local=local)
        server = Server(transport, endpoint(clock, "server", {Push: answer}, drain_ms_max=50))
        await server.start("127.0.0.1:0")
        peer = await connect(transport, server.address, endpoint(clock, "client"))
        outcomes: list[Any] = []
        peer._wire.pause_reading()
        peer.ask_soon(push(), (), outcomes.append, timeout_ms=5000)
        await asyncio.sleep(0.1)  # the answer lies in the socket
        await server.close()
        # The other side's socket is gone: over TCP what is sent first is answered by a reset, the next cannot be sent.
        if not local:
            peer._wire.write([b"x" * 40], 40)
            await asyncio.sleep(0.1)
        peer._wire.resume_reading()
        peer._wire.write([b"x" * 40], 40)
        await until(lambda: outcomes, clock)
        assert not isinstance(outcomes[0], ClymqError), outcomes[0]
        peer.close()

    on_sockets(test)


def test_a_name_that_cannot_be_encoded_is_a_failed_connection_or_a_wrong_setting() -> None:
    async def test() -> None:
        with pytest.raises(ConnectFailed):
            await TcpTransport().connect(f"{'a' * 70}.example:1", 1000)
        with pytest.raises(ConfigError):
            await TcpTransport().listen(f"{'a' * 70}.example:0", lambda _: None)

    on_sockets(test)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
def test_ipv6_from_end_to_end() -> None:
    async def test() -> None:
        clock = SystemClock()
        server = Server(TcpTransport(), endpoint(clock, "server", {Push: answer}))
        try:
            await server.start("[::1]:0")
        except ConnectFailed:
            pytest.skip("no IPv6 loopback here")
        peer = await connect(TcpTransport(), server.address, endpoint(clock, "client"))
        assert (await peer.ask(push(), timeout_ms=5000)).reply == Pushed(1)
        peer.close()
        await server.close()

    on_sockets(test)
