"""Asking, telling and answering over a connection in memory, on virtual time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from clymq.clock import ManualClock
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    InvalidRequest,
    LocalProtocolError,
    OutOfSequence,
    Overloaded,
    RequestTimeout,
    UnknownServerError,
)
from clymq.protocol.broker import ConInfo, ConsumerKnown, FetchOffset, OffsetRange, Pub, Pull, Pulled, Push, Pushed
from clymq.protocol.consensus import Heartbeats
from clymq.rpc import Answer, Call, Link, Peer, Server, answering, connect
from clymq.rpc.memory import MemoryNetwork
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
        self.server: Server
        self.peer: Peer

    async def start(
        self,
        handlers: dict[type, Callable[[Call], None]] | None = None,
        client_handlers: dict[type, Callable[[Call], None]] | None = None,
        client: dict[str, Any] | None = None,
        **settings: Any,
    ) -> World:
        kept = {Push: self.calls.append, Pull: self.calls.append}
        served = endpoint(self.clock, "server", kept | (handlers or {}), **settings)
        self.server = Server(self.network.transport("server"), served)
        await self.server.start(ADDRESS)
        ours = endpoint(self.clock, "client", client_handlers, **(client or {}))
        self.peer = await connect(self.network.transport("client"), ADDRESS, ours)
        return self

    def ask_soon(self, request: Any, outcomes: list[Any], timeout_ms: float = 10_000) -> int:
        return self.peer.ask_soon(request, (), outcomes.append, timeout_ms=timeout_ms)

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, self.clock)


def in_world(test: Callable[[World], Any]) -> None:
    virtually(lambda clock, network: test(World(clock, network)))


def test_who_asks_too_late_to_be_told_of_the_end_is_told_of_it_soon() -> None:
    async def test(world: World) -> None:
        await world.start()
        world.network.cut("client", "server")
        assert world.peer.is_closed
        told: list[ClymqError | None] = []
        world.peer.on_closed(told.append)
        assert not told, "nobody is called back by what they call"
        await world.until(lambda: told)
        assert isinstance(told[0], ConnectionLost)

    in_world(test)


def test_a_link_whose_connection_is_gone_before_it_is_used_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated cluster, seed 7396: a broker waited for ever for the end of what had ended, and never came back."""
    take_hello = Peer._opened

    async def test(world: World) -> None:
        await world.start()
        ours, broken = endpoint(world.clock, "linked"), list[Peer]()

        def reset_with_the_handshake(peer: Peer, event: Any) -> None:
            take_hello(peer, event)
            if peer._endpoint is ours and not broken:
                broken.append(peer)
                peer.closed(ConnectionLost("reset"))

        monkeypatch.setattr(Peer, "_opened", reset_with_the_handshake)
        link = Link(world.network.transport("linked"), ADDRESS, ours, chance=lambda: 0.5)
        link.start()
        await world.until(lambda: link.peer is not None and link.peer.is_open)
        assert broken
        await link.close()

    in_world(test)


# --- Asking ---


def test_an_answer_comes_back_with_its_payload() -> None:
    async def test(world: World) -> None:
        await world.start({Push: lambda call: call.reply(Pushed(call.request.cmdindex), [call.payload, b"!"])})
        answer = await world.peer.ask(push(5), [b"a", b"b"], timeout_ms=1000)
        assert (answer.reply, bytes(answer.payload)) == (Pushed(5), b"ab!")
        assert (world.peer.name, world.peer.address) == ("server", ADDRESS)

    in_world(test)


def test_answers_may_come_in_another_order() -> None:
    async def test(world: World) -> None:
        await world.start()
        first = asyncio.create_task(world.peer.ask(push(1), timeout_ms=1000))
        second = asyncio.create_task(world.peer.ask(push(2), timeout_ms=1000))
        await world.until(lambda: len(world.calls) == 2)
        world.calls[1].reply(Pushed(2))
        assert (await second).reply == Pushed(2)
        assert not first.done()
        world.calls[0].reply(Pushed(1))
        assert (await first).reply == Pushed(1)

    in_world(test)


def test_either_side_may_ask() -> None:
    async def test(world: World) -> None:
        async def ask_back(call: Call) -> ConsumerKnown:
            answer = await call.peer.ask(ConInfo(call.request.consumer * 2), timeout_ms=1000)
            return ConsumerKnown(answer.reply.heartbeat_ms + 1)

        await world.start(
            {ConInfo: answering(ask_back)},
            {ConInfo: lambda call: call.reply(ConsumerKnown(len(call.request.consumer)))},
        )
        assert (await world.peer.ask(ConInfo("abc"), timeout_ms=1000)).reply == ConsumerKnown(7)

    in_world(test)


def test_an_error_comes_back_as_itself_and_the_connection_goes_on() -> None:
    async def test(world: World) -> None:
        def refuse(call: Call) -> None:
            raise OutOfSequence("gap", expected=7, hint="renumber")

        async def refuse_later(call: Call) -> None:
            raise OutOfSequence("gap", expected=8)

        await world.start({Push: refuse, Pull: answering(refuse_later)})
        for request, expected in ((push(), 7), (Pull("t", "p", "u"), 8)):
            with pytest.raises(OutOfSequence) as caught:
                await world.peer.ask(request, timeout_ms=1000)  # type: ignore[arg-type]
            assert caught.value.expected == expected
        assert world.peer.is_open

    in_world(test)


def test_what_is_closed_at_the_server_is_a_lost_connection_to_who_asked() -> None:
    """`ClosedError` is for whoever closed something; the caller has closed nothing, and may ask somebody else."""

    async def test(world: World) -> None:
        def refuse(call: Call) -> None:
            raise ClosedError("the store is not open")

        await world.start({Push: refuse})
        with pytest.raises(ConnectionLost, match="the store is not open"):
            await world.peer.ask(push(), timeout_ms=1000)

    in_world(test)


def test_a_mistake_in_a_handler_is_logged_and_answered_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        def stumble(call: Call) -> None:
            raise KeyError("lost")

        async def stumble_later(call: Call) -> None:
            raise KeyError("lost")

        await world.start({Push: stumble, Pull: answering(stumble_later), Heartbeats: stumble})
        world.peer.tell(Heartbeats("a", 1))
        for request in (push(), Pull("t", "p", "u")):
            with pytest.raises(UnknownServerError, match="KeyError"):
                await world.peer.ask(request, timeout_ms=1000)  # type: ignore[arg-type]
        assert world.peer.is_open

    in_world(test)
    assert sum("no name for" in record.message for record in caplog.records) == 3


def test_what_is_not_served_here_is_answered_so() -> None:
    async def test(world: World) -> None:
        await world.start()
        with pytest.raises(InvalidRequest, match="FetchOffset is not served by server"):
            await world.peer.ask(FetchOffset("t", "p", "u", "g"), timeout_ms=1000)

    in_world(test)


def test_a_message_without_an_answer_cannot_be_asked() -> None:
    async def test(world: World) -> None:
        await world.start()
        with pytest.raises(LocalProtocolError):
            world.ask_soon(Heartbeats("a", 1), [])

    in_world(test)


def test_no_answer_in_time_is_a_timeout_and_the_other_side_is_told() -> None:
    async def test(world: World) -> None:
        await world.start()
        began = world.clock.monotonic_ms()
        with pytest.raises(RequestTimeout, match="Push within 200 ms"):
            await world.peer.ask(push(), timeout_ms=200)
        assert 199 <= world.clock.monotonic_ms() - began <= 205
        await world.until(lambda: world.calls[0].cancelled)
        world.calls[0].reply(Pushed(1))
        assert world.server.connections == 1

    in_world(test)


def test_every_deadline_counts_whatever_the_order() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=1)
        outcomes: list[tuple[int, float]] = []
        for timeout_ms in (300, 100, 200, 400):
            done = lambda outcome, t=timeout_ms: outcomes.append((t, world.clock.monotonic_ms()))  # noqa: E731
            world.peer.ask_soon(push(), (), done, timeout_ms=timeout_ms)
        began = world.clock.monotonic_ms()
        await world.until(lambda: len(outcomes) == 4)
        assert [timeout for timeout, _ in outcomes] == [100, 200, 300, 400]
        assert all(abs(at - began - timeout) <= 5 for timeout, at in outcomes)

    in_world(test)


def test_a_cancelled_task_cancels_its_call_and_frees_its_place() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=1)
        seen: list[str] = []
        first = asyncio.create_task(world.peer.ask(push(1), timeout_ms=10_000))
        second = asyncio.create_task(world.peer.ask(push(2), timeout_ms=10_000))
        await world.until(lambda: world.calls)
        world.calls[0].on_cancel(lambda: seen.append("cancelled"))
        first.cancel()
        await world.until(lambda: len(world.calls) == 2)
        assert seen == ["cancelled"]
        world.calls[1].reply(Pushed(2))
        assert (await second).reply == Pushed(2)

    in_world(test)


def test_an_answer_that_was_under_way_when_its_request_was_given_up_is_told_to_whoever_cares() -> None:
    async def test(world: World) -> None:
        await world.start()
        late: list[object] = []
        asking = asyncio.create_task(world.peer.ask(push(1), timeout_ms=10_000, late=late.append))
        await world.until(lambda: world.calls)
        world.calls[0].reply(Pushed(7))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await world.until(lambda: late)
        (answer,) = late
        assert answer.reply == Pushed(7)  # type: ignore[attr-defined]

    in_world(test)


def test_late_answers_that_never_come_are_not_looked_out_for_without_end() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=1000)
        for number in range(1, 400):
            asking = asyncio.create_task(world.peer.ask(push(number), timeout_ms=10_000, late=lambda _: None))
            await world.until(lambda number=number: len(world.calls) == number)
            asking.cancel()
        assert world.peer._asks is not None
        assert len(world.peer._asks._late) <= 256

    in_world(test)


def test_a_coroutine_handler_is_cancelled_with_its_call() -> None:
    async def test(world: World) -> None:
        ended: list[str] = []

        async def wait(call: Call) -> Pulled:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
            return Pulled(0, 0)

        await world.start({Pull: answering(wait)})
        with pytest.raises(RequestTimeout):
            await world.peer.ask(Pull("t", "p", "u"), timeout_ms=50)
        await world.until(lambda: ended)

    in_world(test)


def test_a_lost_connection_fails_everything_at_once_and_tells_the_other_side_s_handlers() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=2)
        outcomes: list[ClymqError] = []
        gone: list[object] = []
        world.peer.on_closed(gone.append)
        for number in range(4):
            world.ask_soon(push(number), outcomes)
        await world.until(lambda: len(world.calls) == 2)
        world.network.cut("client", "server")
        assert [type(each) for each in outcomes] == [ConnectionLost] * 4
        assert all(call.cancelled for call in world.calls)
        assert len(gone) == 1
        with pytest.raises(ConnectionLost):
            world.ask_soon(push(), outcomes)
        assert not world.peer.tell(Heartbeats("a", 1))
        world.calls[0].reply(Pushed(1))
        assert world.server.connections == 0

    in_world(test)


def test_closing_fails_what_is_under_way_here() -> None:
    async def test(world: World) -> None:
        await world.start()
        outcomes: list[ClymqError] = []
        world.ask_soon(push(), outcomes)
        world.peer.close()
        assert [type(each) for each in outcomes] == [ClosedError]
        await world.until(lambda: world.server.connections == 0)

    in_world(test)


def test_a_mistake_of_one_asker_does_not_cost_the_others_their_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.start({Push: lambda call: call.reply(Pushed(1))})
        outcomes: list[Answer[Pushed]] = []

        def stumble(outcome: object) -> None:
            raise KeyError("mine")

        world.peer.ask_soon(push(), (), stumble, timeout_ms=1000)
        world.ask_soon(push(), outcomes)
        await world.until(lambda: outcomes)

    in_world(test)
    assert "the asker of Push failed on its answer" in caplog.text


def test_a_request_too_large_for_the_other_side_is_refused_here_and_a_reply_there() -> None:
    async def test(world: World) -> None:
        limits = {"frame_bytes_max": 1 << 17, "batch_bytes_max": 1 << 16, "message_bytes_max": 1 << 16}
        await world.start({Pull: lambda call: call.reply(Pulled(0, 0), [bytes(1 << 18)])}, client=limits, **limits)
        with pytest.raises(FrameTooLarge):
            await world.peer.ask(push(), [bytes(1 << 18)], timeout_ms=1000)
        with pytest.raises(FrameTooLarge):
            await world.peer.ask(Pull("t", "p", "u"), timeout_ms=1000)
        assert world.peer.is_open

    in_world(test)


# --- Telling ---


def test_one_way_messages_arrive_in_order_in_both_directions() -> None:
    async def test(world: World) -> None:
        here: list[int] = []
        there: list[int] = []

        def back(call: Call) -> None:
            there.append(call.request.incarnation)
            call.peer.tell(Heartbeats("server", call.request.incarnation * 10))

        await world.start({Heartbeats: back}, {Heartbeats: lambda call: here.append(call.request.incarnation)})
        for number in range(100):
            assert world.peer.tell(Heartbeats("client", number))
        await world.until(lambda: len(here) == 100)
        assert there == list(range(100))
        assert here == [number * 10 for number in range(100)]

    in_world(test)


def test_requests_and_one_way_messages_keep_their_order() -> None:
    async def test(world: World) -> None:
        seen: list[object] = []
        await world.start(
            {Push: lambda call: seen.append(call.request.cmdindex), Heartbeats: lambda _: seen.append("b")}
        )
        for number in range(5):
            world.ask_soon(push(number), [])
            world.peer.tell(Heartbeats("a", number))
        await world.until(lambda: len(seen) == 10)
        assert seen == [0, "b", 1, "b", 2, "b", 3, "b", 4, "b"]

    in_world(test)


def test_one_way_messages_to_a_peer_that_does_not_read_are_dropped() -> None:
    async def test(world: World) -> None:
        await world.start(client={"one_way_buffer_bytes_max": 100_000})
        world.network.freeze("client", "server")
        sent = [world.peer.tell(Heartbeats("a", 1), [bytes(10_000)]) for _ in range(30)]
        assert sent == [True] * 10 + [False] * 20

    in_world(test)


def test_coroutine_handlers_of_one_way_messages_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clymq.rpc.handlers.ONE_WAY_RUNNING_MAX", 5)

    async def test(world: World) -> None:
        running: list[int] = []

        async def wait(call: Call) -> None:
            running.append(call.request.incarnation)
            await asyncio.Event().wait()

        await world.start({Heartbeats: answering(wait)})
        for number in range(7):
            world.peer.tell(Heartbeats("a", number))
        await world.until(lambda: caplog.text.count("dropped") == 2)
        assert running == [0, 1, 2, 3, 4]

    in_world(test)


# --- Windows ---


def test_the_asking_side_waits_inside_the_window() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=3)
        outcomes: list[Answer[Pushed]] = []
        for number in range(10):
            world.ask_soon(push(number, uid=str(number)), outcomes)
        await world.until(lambda: len(world.calls) == 3)
        world.calls[0].reply(Pushed(0))
        await world.until(lambda: len(world.calls) == 4)
        for call in world.calls[1:]:
            call.reply(Pushed(0))
        while len(outcomes) < 10:
            await world.until(lambda: any(not call.answered for call in world.calls) or len(outcomes) == 10)
            for call in [call for call in world.calls if not call.answered]:
                call.reply(Pushed(0))
        assert [call.request.cmdindex for call in world.calls] == list(range(10))
        assert all(type(outcome) is Answer for outcome in outcomes)

    in_world(test)


def test_a_slow_partition_does_not_hold_up_another() -> None:
    async def test(world: World) -> None:
        await world.start(partition_window_requests=2)
        for number in range(5):
            world.ask_soon(push(number, uid="slow"), [])
        world.ask_soon(push(99, uid="quick"), [])
        await world.until(lambda: len(world.calls) == 3)
        assert [call.request.cmdindex for call in world.calls] == [0, 1, 99]

    in_world(test)


def test_too_many_that_wait_are_refused_here() -> None:
    async def test(world: World) -> None:
        await world.start(window_requests=1, client={"waiting_requests_max": 2})
        for _ in range(3):
            world.ask_soon(push(), [])
        with pytest.raises(Overloaded):
            world.ask_soon(push(), [])

    in_world(test)


def test_replies_pass_a_full_window() -> None:
    async def test(world: World) -> None:
        # Both sides have used up their windows, and still answer each other.
        held: list[Call] = []
        await world.start(
            {ConInfo: held.append}, {ConInfo: held.append}, client={"window_requests": 1}, window_requests=1
        )
        here: list[Any] = []
        there: list[Any] = []
        world.ask_soon(ConInfo("a"), here)
        await world.until(lambda: held)
        server_side = held[0].peer
        server_side.ask_soon(ConInfo("b"), (), there.append, timeout_ms=1000)
        await world.until(lambda: len(held) == 2)
        for call in held:
            call.reply(ConsumerKnown(1))
        await world.until(lambda: here and there)

    in_world(test)


# --- Time ---


def test_an_idle_connection_is_kept_by_pings_and_a_dead_one_is_noticed() -> None:
    async def test(world: World) -> None:
        await world.start(client={"idle_ping_ms": 100}, idle_ping_ms=100)
        began = world.clock.monotonic_ms()
        await world.until(lambda: world.clock.monotonic_ms() - began > 2000)
        assert world.peer.is_open
        assert world.server.connections == 1
        world.network.freeze("client", "server")
        frozen = world.clock.monotonic_ms()
        await world.until(lambda: world.peer.is_closed and world.server.connections == 0)
        assert world.clock.monotonic_ms() - frozen < 400

    in_world(test)


def test_a_connection_that_talks_is_not_pinged_to_death() -> None:
    async def test(world: World) -> None:
        heard: list[Call] = []
        await world.start({Heartbeats: heard.append}, client={"idle_ping_ms": 50}, idle_ping_ms=50)
        for _ in range(300):
            world.peer.tell(Heartbeats("a", 1))
            count = len(heard)
            await world.until(lambda count=count: len(heard) > count)
        assert world.peer.is_open

    in_world(test)


# --- Server ---


def test_closing_lets_running_calls_finish_and_takes_no_more() -> None:
    async def test(world: World) -> None:
        await world.start()
        running = asyncio.create_task(world.peer.ask(push(1), timeout_ms=5000))
        await world.until(lambda: world.calls)
        closing = asyncio.create_task(world.server.close())
        await world.until(lambda: not world.peer.is_open)
        with pytest.raises(ConnectionLost, match="server is closing"):
            await world.peer.ask(push(2), timeout_ms=1000)
        with pytest.raises(ConnectFailed):
            await connect(world.network.transport("client"), ADDRESS, endpoint(world.clock, "late"))
        assert not closing.done()
        world.calls[0].reply(Pushed(5))
        assert (await running).reply == Pushed(5)
        await closing
        assert world.server.connections == 0
        assert world.peer.is_closed

    in_world(test)


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
        await world.start(drain_ms_max=300)
        running = asyncio.create_task(world.peer.ask(push(1), timeout_ms=5000))
        await world.until(lambda: world.calls)
        began = world.clock.monotonic_ms()
        await world.server.close()
        assert 290 <= world.clock.monotonic_ms() - began <= 350
        assert world.calls[0].cancelled
        with pytest.raises(ConnectionLost):
            await running

    in_world(test)
    assert "closed with 1 calls under way" in caplog.text


def test_a_server_takes_so_many_connections_and_says_so_to_the_next() -> None:
    async def test(world: World) -> None:
        await world.start(connections_max=2)
        ours = endpoint(world.clock, "client")
        second = await connect(world.network.transport("client"), ADDRESS, ours)
        with pytest.raises(ConnectFailed, match="which is all that it takes"):
            await connect(world.network.transport("client"), ADDRESS, ours)
        second.close()
        await world.until(lambda: world.server.connections == 1)
        await connect(world.network.transport("client"), ADDRESS, ours)

    in_world(test)


# --- Link ---


def link(world: World, opened: list[Peer] | None = None, **settings: Any) -> Link:
    ours = endpoint(world.clock, "linked", **settings)
    on_open = None if opened is None else opened.append
    made = Link(world.network.transport("client"), ADDRESS, ours, chance=lambda: 0.5, on_open=on_open)
    made.start()
    return made


def test_a_link_comes_back_after_a_cut() -> None:
    async def test(world: World) -> None:
        await world.start({Push: lambda call: call.reply(Pushed(1))})
        opened: list[Peer] = []
        made = link(world, opened)
        assert (await made.ask(push(), timeout_ms=1000)).reply == Pushed(1)
        world.network.cut("client", "server")
        await world.until(lambda: made.peer is None)
        assert not made.tell(Heartbeats("a", 1))
        with pytest.raises(ConnectFailed, match="cut"):
            await made.ask(push(), timeout_ms=500)
        asking = asyncio.create_task(made.ask(push(), timeout_ms=10_000))
        world.network.heal("client", "server")
        assert (await asking).reply == Pushed(1)
        assert len(opened) == 2
        await made.close()

    in_world(test)


def test_a_link_pauses_longer_and_longer_but_not_for_ever() -> None:
    async def test(world: World) -> None:
        attempts: list[float] = []
        transport = world.network.transport("client")
        original = transport.connect

        async def counted(address: str, timeout_ms: float) -> Any:
            attempts.append(world.clock.monotonic_ms())
            return await original(address, timeout_ms)

        transport.connect = counted  # type: ignore[method-assign]
        ours = endpoint(world.clock, "linked", reconnect_ms_min=100, reconnect_ms_max=400)
        made = Link(transport, ADDRESS, ours, chance=lambda: 0.0)
        made.start()
        await world.until(lambda: len(attempts) == 6)
        pauses = [round(later - earlier) for earlier, later in itertools.pairwise(attempts)]
        assert all(abs(pause - wanted) <= 2 for pause, wanted in zip(pauses, (50, 100, 200, 200, 200), strict=True))
        await made.close()

    in_world(test)


def test_a_link_to_a_server_that_drops_it_at_once_does_not_run_hot() -> None:
    async def test(world: World) -> None:
        opened: list[Peer] = []
        await world.start()
        made = Link(
            world.network.transport("client"),
            ADDRESS,
            endpoint(world.clock, "linked", reconnect_ms_min=100, reconnect_ms_max=100),
            chance=lambda: 0.0,
            on_open=lambda peer: (opened.append(peer), peer.close()),  # type: ignore[func-returns-value]
        )
        made.start()
        began = world.clock.monotonic_ms()
        await world.until(lambda: len(opened) == 5)
        assert world.clock.monotonic_ms() - began >= 4 * 50
        await made.close()

    in_world(test)


def test_a_link_follows_its_address() -> None:
    async def test(world: World) -> None:
        await world.start()
        made = link(world)
        await world.until(lambda: made.peer)
        moved = Server(
            world.network.transport("server"),
            endpoint(world.clock, "moved", {Push: lambda call: call.reply(Pushed(9))}),
        )
        await moved.start("server:9999")
        made.move("server:9999")
        await world.until(lambda: made.peer and made.peer.name == "moved")
        assert (await made.ask(push(), timeout_ms=1000)).reply == Pushed(9)
        await made.close()
        with pytest.raises(ClosedError):
            await made.ask(push(), timeout_ms=1000)

    in_world(test)


def test_a_link_to_a_server_that_closes_politely_comes_back_when_it_is_there_again() -> None:
    async def test(world: World) -> None:
        await world.start({Push: lambda call: call.reply(Pushed(1))})
        made = link(world)
        await world.until(lambda: made.peer)
        await world.server.close()
        await world.until(lambda: made.peer is None)
        again = Server(
            world.network.transport("server"),
            endpoint(world.clock, "again", {Push: lambda call: call.reply(Pushed(2))}),
        )
        await again.start(ADDRESS)
        assert (await made.ask(push(), timeout_ms=5000)).reply == Pushed(2)
        await made.close()

    in_world(test)


def test_a_delay_keeps_the_order_and_costs_its_time() -> None:
    async def test(world: World) -> None:
        delays = iter([30.0, 20.0, 10.0] * 100)
        world.network.delay_ms = lambda *_: next(delays)
        await world.start({Push: lambda call: call.reply(Pushed(call.request.cmdindex))})
        outcomes: list[Answer[Pushed]] = []
        began = world.clock.monotonic_ms()
        for number in range(5):
            world.ask_soon(push(number), outcomes)
            await world.until(lambda: True)
        await world.until(lambda: len(outcomes) == 5)
        assert [outcome.reply.base_offset for outcome in outcomes] == list(range(5))
        assert world.clock.monotonic_ms() - began >= 30

    in_world(test)


def test_what_a_consumer_is_sent_is_a_view_it_may_keep() -> None:
    async def test(world: World) -> None:
        kept: list[memoryview] = []
        calls: list[Call] = []
        await world.start({ConInfo: calls.append}, {Pub: lambda call: kept.append(call.payload)})
        world.ask_soon(ConInfo("c"), [])
        await world.until(lambda: calls)
        for number in range(50):
            calls[0].peer.tell(Pub(1, "t", "p", OffsetRange(number, number + 1)), [bytes([number]) * 2500])
        await world.until(lambda: len(kept) == 50)
        assert [bytes(view) for view in kept] == [bytes([number]) * 2500 for number in range(50)]

    in_world(test)


def test_logs_name_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(world: World) -> None:
        await world.start(client={"idle_ping_ms": 50})
        world.network.freeze("client", "server")
        await world.until(lambda: world.peer.is_closed)

    in_world(test)
    assert f"server@{ADDRESS} dropped: no sign of life" in caplog.text
