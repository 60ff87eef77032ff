"""One open connection, the same on both sides: either may ask, tell, answer.

It puts the pieces together: the protocol's state machine, a wire, the window granted to us (`asks`) and the one that we
granted. It must not know sockets, nor what any verb means. Invariants:

* every request that arrives is answered once, unless its asker cancelled it or the connection ends;
* every request that is asked ends once: `asks`;
* messages reach their handlers in the order of their arrival, within the call that received them;
* nothing is unbounded: requests by the windows, what is written by `write_buffer_bytes_max`, one-way messages by
  `one_way_buffer_bytes_max`. A peer that does not read what it asked for is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeVar

from clymq.config import FRAME_HEAD_BYTES
from clymq.errors import (
    ClosedError,
    ClymqError,
    ConnectionLost,
    FrameTooLarge,
    InvalidRequest,
    LocalProtocolError,
    Overloaded,
    ProtocolError,
    UnknownServerError,
)
from clymq.protocol.connection import (
    Asked,
    Broken,
    Cancelled,
    Connection,
    Event,
    Failed,
    Leaving,
    Opened,
    Pinged,
    Replied,
    Told,
    Unreadable,
)
from clymq.protocol.frames import Buffer
from clymq.protocol.handshake import Hello
from clymq.protocol.verbs import OneWay, Reply, Request, Verb, verb_of
from clymq.rpc.asks import Ask, Asks, Done
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.pulse import Pulse
from clymq.rpc.transport import Wire
from clymq.rpc.window import ReceiveWindow

logger = logging.getLogger("clymq.rpc")

R = TypeVar("R", bound=Reply)
Answer = Replied
Made = tuple[list[Buffer], int]
_ONE_WAY: Final = 0


class Call:
    """What has arrived. A request is answered once, by `reply` or `fail`; a one-way message by nothing."""

    __slots__ = ("_on_cancel", "answered", "cancelled", "correlation", "key", "payload", "peer", "request", "size",
                 "verb")  # fmt: skip

    def __init__(
        self, peer: Peer, verb: Verb, request: Any, payload: memoryview, correlation: int, key: Hashable, size: int
    ) -> None:
        self.peer = peer
        self.verb = verb
        self.request = request
        self.payload = payload
        """A writable view that is the handler's to keep; keeping it keeps the memory around it, up to 512 KiB."""
        self.correlation = correlation
        self.key = key
        self.size = size
        self.answered = correlation == _ONE_WAY
        self.cancelled = False
        """Nobody waits for the answer any more: the asker cancelled, or the connection is gone."""
        self._on_cancel: Callable[[], object] | None = None

    def reply(self, reply: Reply, payload: Sequence[Buffer] = ()) -> None:
        """Answer; `payload` must stay as it is until it is sent."""
        assert type(reply) is self.verb.reply, f"{self.verb.name} is not answered with {type(reply).__name__}"
        if self.cancelled:
            self._end()
            return
        # Made BEFORE the call is over: a reply that cannot be written down leaves it to be answered with an error.
        try:
            made = self.peer.connection.reply(self.correlation, self.verb, reply, payload)
        except FrameTooLarge as error:
            made = self.peer.connection.fail(self.correlation, error)
        if self._end():
            self.peer.send(*made)

    def fail(self, error: ClymqError) -> None:
        """Answer with an error."""
        if isinstance(error, ClosedError):
            # What is closed is ours and not the caller's, who may have its answer from somebody else.
            error = ConnectionLost(f"this side is closing: {error}")
        if self._end():
            self.peer.send(*self.peer.connection.fail(self.correlation, error))

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Be called when nobody waits for the answer any more, at once if that is so already."""
        if self.cancelled:
            callback()
        else:
            self._on_cancel = callback

    def cancel(self) -> None:
        """Note that nobody waits any more."""
        self.cancelled = True
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            self.peer.call_back(callback)

    def _end(self) -> bool:
        """Note that the call is over; return whether somebody waits for the answer."""
        assert not self.answered, f"{self.verb.name} was answered twice"
        self.answered = True
        self._on_cancel = None
        return self.peer.call_ended(self)


class Peer:
    """See the module. Made by `Server`, `connect` and `Link`."""

    def __init__(self, endpoint: Endpoint, wire: Wire, *, on_open: Callable[[], None], dialer: bool) -> None:
        self.address = wire.address
        self.connection = Connection(endpoint.hello, endpoint.large_chunks)
        self.features: frozenset[str] = frozenset()
        """Those that both sides have."""
        self.is_closed = False
        self._endpoint = endpoint
        self._config = endpoint.config
        self._handlers = endpoint.handlers
        self._wire = wire
        self._on_open: Callable[[], None] | None = on_open
        self._on_closed: list[Callable[[ClymqError | None], None]] | None = []
        self._asks: Asks | None = None
        self._correlation = 0
        self._granted = ReceiveWindow(endpoint.hello.window)
        self._calls: dict[int, Call] = {}
        self._cancelled_calls = 0
        self._leaving: ClymqError | None = None
        self._on_idle: Callable[[], None] | None = None
        self._reason: ClymqError | None = None
        self._unreadable = 0
        self._pulse = Pulse(endpoint.config, endpoint.clock.monotonic_ms())
        endpoint.look_after(self)
        wire.start(self)
        if dialer:
            self.send(*self.connection.hello())

    def __str__(self) -> str:
        theirs = self.connection.theirs
        return f"{theirs.name}@{self.address}" if theirs else self.address

    @property
    def hello(self) -> Hello:
        """What the other side said of itself."""
        assert self.connection.theirs is not None, "the handshake is over before a peer is handed out"
        return self.connection.theirs

    @property
    def name(self) -> str:
        """The other side's name."""
        return self.hello.name

    @property
    def is_open(self) -> bool:
        """Whether requests can be asked."""
        return self._asks is not None and self._leaving is None and not self.is_closed

    @property
    def payload_bytes_max(self) -> int:
        """What one frame to the other side can carry; a single batch may be a little more."""
        return max(1, self.hello.frame_bytes_max - FRAME_HEAD_BYTES)

    @property
    def buffered_bytes(self) -> int:
        """What was written and has not left: who sends much looks at this first."""
        return self._wire.buffered

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call once, from the event loop, when nothing is buffered any more or the connection is gone."""
        self._wire.when_drained(callback)

    # --- Asking and telling ---

    async def ask(
        self,
        request: Request[R],
        payload: Sequence[Buffer] = (),
        *,
        timeout_ms: float,
        late: Callable[[Answer[R]], None] | None = None,
    ) -> Answer[R]:
        """Ask and wait for the answer; raises the error that it is answered with, or a `TransportError`.

        `late` hears of an answer that was under way when the request was given up.
        """
        future: asyncio.Future[Answer[R]] = asyncio.get_running_loop().create_future()

        def done(outcome: Answer[R] | ClymqError) -> None:
            if not future.done():
                if isinstance(outcome, ClymqError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

        correlation = self.ask_soon(request, payload, done, timeout_ms=timeout_ms, late=late)
        try:
            return await future
        except asyncio.CancelledError:
            self.give_up(correlation)
            raise

    def ask_soon(
        self,
        request: Request[Any],
        payload: Sequence[Buffer],
        done: Done,
        *,
        timeout_ms: float,
        late: Done | None = None,
    ) -> int:
        """Ask without a coroutine: `done` is called once with the `Answer` or the error.

        Return the number of the request, for `give_up`. What can be refused here is raised here, and then `done` is
        not called: `ConnectionLost`, `Overloaded`, `FrameTooLarge`.
        """
        asks = self._asks
        if asks is None or self.is_closed or self._leaving is not None:
            raise self._lost()
        verb = verb_of(type(request))
        if verb.reply is None:
            raise LocalProtocolError(f"{verb.name} has no answer: tell it")
        self._correlation = correlation = self._correlation + 1
        buffers, size = self.connection.ask(correlation, request, payload)
        key = request.window_key() if verb.keyed else None
        asks.begin(Ask(correlation, verb, key, buffers, size, done, timeout_ms, late))
        return correlation

    def flush(self) -> None:
        """Send now what waits for the end of this turn of the event loop: nothing more is going to join it."""
        self._wire.flush()

    def give_up(self, correlation: int) -> None:
        """No longer wait for an answer; `done` is not called any more."""
        if self._asks is not None:
            self._asks.give_up(correlation, None)

    def tell(self, message: OneWay, payload: Sequence[Buffer] = (), *, now: bool = False) -> bool:
        """Send a one-way message; False: it was dropped, because the peer is gone or reads too slowly.

        `now`: it is not worth waiting for others that may go with it.
        """
        if self.is_closed or self._asks is None or self._wire.buffered > self._config.one_way_buffer_bytes_max:
            return False
        self.send(*self.connection.tell(message, payload))
        if now:
            self._wire.flush()
        return True

    # --- The end ---

    def close(self) -> None:
        """Send what is written, then close; requests under way fail with `ClosedError`."""
        if not self.is_closed:
            self._end(ClosedError(f"the connection with {self} was closed here"))
            self._close_wire()

    def leave(self, reason: ClymqError, idle: Callable[[], None]) -> None:
        """Take no more requests, and say so; those under way go on, and `idle` is called when the last has ended."""
        if not self.is_closed:
            self._on_idle = idle
            self.send(*self.connection.goodbye(reason))

    def drop(self, reason: ClymqError) -> None:
        """Close because of what the other side did, or failed to do, and say why here and there."""
        if self.is_closed:
            return
        logger.warning("%s dropped: %s", self, reason)
        if not isinstance(reason, ConnectionLost):
            self._wire.write(*self.connection.goodbye(reason))
        self._end(ConnectionLost(f"connection with {self} dropped: {reason}"))
        if isinstance(reason, ConnectionLost):
            self._wire.abort()
        else:
            self._close_wire()

    def on_closed(self, callback: Callable[[ClymqError | None], None]) -> None:
        """Be called once the connection is gone, with the reason (None: the other side closed it); once.

        Soon, if it is gone already: between its handshake and whoever waits for that it may have come and gone.
        """
        if self._on_closed is None:
            self._endpoint.clock.call_later(0, lambda: self.call_back(callback, self._reason))
        else:
            self._on_closed.append(callback)

    @property
    def asks_under_way(self) -> int:
        """Requests of this side that have not been answered."""
        return len(self._asks) if self._asks is not None else 0

    @property
    def calls_under_way(self) -> int:
        """Requests of the other side that have not been answered."""
        return len(self._calls)

    def _lost(self) -> ClymqError:
        if self._leaving is not None:
            return ConnectionLost(f"{self} takes no more requests: {self._leaving}")
        return ConnectionLost(f"the connection with {self} is closed")

    def _end(self, reason: ClymqError | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._reason = reason
        self._endpoint.forget(self)
        if self._asks is not None:
            lost = ConnectionLost(f"{self} closed the connection")
            self._asks.end_all(reason if isinstance(reason, ConnectionLost | ClosedError) else lost)
        calls, self._calls = self._calls, {}
        self._cancelled_calls += len(calls)
        for call in calls.values():
            call.cancel()
        self._tell_idle()

    def _close_wire(self) -> None:
        """Close once all is sent; a peer that does not take it within `drain_ms_max` does without."""
        timer = self._endpoint.clock.call_later(self._config.drain_ms_max, self._wire.abort)
        self.on_closed(lambda _: timer.cancel())
        self._wire.close()

    # --- What the wire calls ---

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go."""
        return self.connection.get_buffer()

    def received(self, count: int) -> None:
        """Take in what has arrived."""
        self._pulse.heard = True
        events = self.connection.received(count)
        if events:
            self._pulse.frame_ended()
            asks = self._asks
            for event in events:
                # The two that matter for throughput first.
                if type(event) is Asked:
                    self._asked(event)
                elif type(event) is Replied and asks is not None:
                    asks.finish(event.correlation, event)
                else:
                    self._take(event)
                if self.is_closed:
                    return
            settle = self._endpoint.on_settled
            if settle is not None:
                settle()
            if self._leaving is not None and not self._asks:
                self.close()

    def closed(self, error: ConnectionLost | None) -> None:
        """Take note that the wire is gone."""
        self._end(error)
        callbacks, self._on_closed = self._on_closed, None
        for callback in callbacks or ():
            self.call_back(callback, self._reason)

    def call_back(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call somebody who wanted to hear of something; their mistakes are theirs alone."""
        try:
            callback(*arguments)
        except Exception:
            logger.exception("%s: a listener failed on what it was told", self)

    def send(self, buffers: list[Buffer], size: int) -> None:
        """Write a frame; a peer that lets too many of them pile up is dropped."""
        wire = self._wire
        if wire.buffered + size > self._config.write_buffer_bytes_max and wire.buffered:
            unread = wire.buffered
            self.drop(ConnectionLost(f"it does not read: {unread} bytes wait for it"))
        else:
            wire.write(buffers, size)

    # --- What has arrived ---

    def _asked(self, event: Asked) -> None:
        message, correlation, size = event.message, event.correlation, event.frame_bytes
        key = message.window_key() if event.verb.keyed else None
        if correlation in self._calls:
            self.drop(ProtocolError(f"two requests with the number {correlation}"))
            return
        if (
            self._on_idle is not None
            or self._cancelled_calls > self._config.window_requests
            or not self._granted.take(key, size)
        ):
            self.send(*self.connection.fail(correlation, self._refusal()))
            return
        call = Call(self, event.verb, message, event.payload, correlation, key, size)
        self._calls[correlation] = call
        self._handle(call)

    def _refusal(self) -> ClymqError:
        """Return why a request is not taken."""
        if self._on_idle is not None:
            return ConnectionLost("this side is closing; the request was not looked at")
        # Who cancels has its place in the window back at once, but what it started may still run: so much, no more.
        if self._cancelled_calls > self._config.window_requests:
            return Overloaded(f"{self._cancelled_calls} cancelled requests are still running")
        return Overloaded("more requests than were granted are under way", hint="keep to the window of the HELLO")

    def _handle(self, call: Call) -> None:
        handler = self._handlers.get(type(call.request))
        try:
            if handler is None:
                raise InvalidRequest(f"{call.verb.name} is not served by {self._endpoint.name}")
            handler(call)
        except ClymqError as error:
            if call.answered:
                logger.warning("%s: %s: %s", self, call.verb.name, error)
            else:
                call.fail(error)
        except (Exception, asyncio.CancelledError) as error:
            # A mistake in one handler must not take the connection with it, nor what was received behind the call.
            logger.exception("%s: %s met an error that it has no name for", self, call.verb.name)
            if not call.answered:
                call.fail(UnknownServerError(f"{call.verb.name}: {type(error).__name__}: {error}"))

    def call_ended(self, call: Call) -> bool:
        """Take note that a call is over; return whether its answer is to be sent."""
        if call.cancelled:
            self._cancelled_calls -= 1
            return False
        if self._calls.pop(call.correlation, None) is None:
            return False
        self._granted.give_back(call.key, call.size)
        if self._on_idle is not None:
            self._tell_idle()
        return True

    def _tell_idle(self) -> None:
        if self._on_idle is not None and not self._calls:
            self._on_idle()

    def _take(self, event: Event) -> None:
        if isinstance(event, Told):
            self._handle(Call(self, event.verb, event.message, event.payload, _ONE_WAY, None, 0))
        elif isinstance(event, Failed):
            if self._asks is not None:
                self._asks.finish(event.correlation, event.error)
        elif isinstance(event, Cancelled):
            self._cancelled(event.correlation)
        elif isinstance(event, Pinged):
            self.send(*self.connection.pong(event.correlation))
        elif isinstance(event, Unreadable):
            self._not_understood(event)
        elif isinstance(event, Opened):
            self._opened(event)
        elif isinstance(event, Leaving):
            self._leaves(event.error)
        elif isinstance(event, Broken):
            self.drop(event.error)

    def _cancelled(self, correlation: int) -> None:
        call = self._calls.pop(correlation, None)
        if call is not None:
            self._granted.give_back(call.key, call.size)
            self._cancelled_calls += 1
            call.cancel()
            self._tell_idle()

    def _not_understood(self, event: Unreadable) -> None:
        if event.correlation:
            self.send(*self.connection.fail(event.correlation, event.error))
            return
        self._unreadable += 1
        if self._unreadable == 1:
            logger.warning("%s: a one-way message was passed over, later ones silently: %s", self, event.error)

    def _opened(self, event: Opened) -> None:
        self.features = event.features
        self._asks = Asks(
            str(self),
            self._endpoint.clock,
            event.hello.window,
            self._config.waiting_requests_max,
            write=self.send,
            cancel=lambda correlation: self.send(*self.connection.cancel(correlation)),
        )
        if not self.connection.said_hello:
            self.send(*self.connection.hello())
        on_open, self._on_open = self._on_open, None
        if on_open is not None:
            on_open()

    def _leaves(self, error: ClymqError) -> None:
        self._leaving = error
        if self._asks is None:
            # It refused us during the handshake: its reason is the reason.
            self._end(error)
            self._close_wire()

    # --- Time ---

    def look(self, now_ms: float) -> None:
        """Notice a handshake, a frame or a sign of life that is overdue."""
        pulse = self._pulse
        if not pulse.heard:
            self.connection.rest()
        problem = pulse.look(now_ms, is_open=self._asks is not None, in_frame=self.connection.in_frame)
        if problem is not None:
            self.drop(problem)
        elif self._leaving is not None and not self._asks:
            self.close()
        elif self._asks is not None and pulse.wants_ping(now_ms):
            self.send(*self.connection.ping(1))
