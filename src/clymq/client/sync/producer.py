"""The blocking producer: `send` gathers in the caller's thread (`chunks`), everything else is the twin's.

What was sent goes over to the event loop in chunks, in order, and before anything else that the producer is asked for.
When the buffer is full, `send` waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from clymq.client.accumulator import MESSAGE_BYTES
from clymq.client.outbox import OnDelivery
from clymq.client.producer import IN_FLIGHT_MAX, AsyncProducer
from clymq.client.surroundings import Surroundings
from clymq.client.sync.calls import Blocking, blocking, described_by
from clymq.client.sync.chunks import Chunk, Chunks, Values
from clymq.config import KiB, MiB
from clymq.errors import BufferFull, ClosedError, ClymqError
from clymq.record.elements import Headers
from clymq.types import Ack

log = logging.getLogger("clymq.client")

P = ParamSpec("P")
T = TypeVar("T")

# Whoever waits for room looks this often whether there still is somebody to make some.
LOOK_SECONDS: Final = 0.5


def _behind(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking method, which comes behind everything that was sent."""

    def call(self: Producer, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self._wait_for(self._hand_over_and(lambda: method(self._twin, *arguments, **options)))

    return described_by(method, call)


class Producer(Blocking[AsyncProducer]):
    """Pushes messages. `with`, or `start()` and `close()`. All methods wait but `send`, which waits for room only."""

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str | None = None,
        ack: Ack | int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 64 * KiB,
        codec: str = "none",
        buffer_bytes_max: int = 64 * MiB,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout: float = 30.0,
        on_delivery: OnDelivery | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`ack` None: each partition's own. `on_delivery` is called once for each batch."""
        twin = AsyncProducer(
            bootstrap,
            name=name,
            ack=ack,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            codec=codec,
            buffer_bytes_max=buffer_bytes_max,
            in_flight_max=in_flight_max,
            timeout=timeout,
            on_delivery=on_delivery,
            surroundings=surroundings,
        )
        super().__init__(twin)
        self.name = twin.name
        config = (surroundings or Surroundings()).config
        self._linger_ms = linger_ms
        self._buffer_bytes_max = buffer_bytes_max
        self._intake = twin._intake
        self._chunks = Chunks(min(batch_bytes, config.message_bytes_max))
        self._open = self._chunks.open
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._going_over = asyncio.Lock()
        self._linger: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Accept one message and return at once; while the buffer is full, wait for room.

        Its fate is told to `on_delivery`, batch by batch; `flush` raises the first error.
        """
        if key is None and headers is None and partition is None and timestamp is None and type(value) is bytes:
            with self._lock:
                chunk = self._open.get(topic)
                if chunk is not None:
                    left = chunk.left - len(value) - MESSAGE_BYTES
                    if left >= 0:
                        chunk.left = left
                        chunk.values.append(value)
                        return
        else:
            self._intake.check(value, key, headers, timestamp)
        self._accept(topic, value, key, headers, partition, timestamp)

    push = _behind(AsyncProducer.push)
    push_many = _behind(AsyncProducer.push_many)
    push_arrow = _behind(AsyncProducer.push_arrow)
    drain = _behind(AsyncProducer.drain)
    flush = _behind(AsyncProducer.flush)
    last_cmdindex = blocking(AsyncProducer.last_cmdindex)
    create_topic = blocking(AsyncProducer.create_topic)
    create_partition = blocking(AsyncProducer.create_partition)
    set_partition_state = blocking(AsyncProducer.set_partition_state)

    @property
    def lost_messages(self) -> int:
        """How many messages were acknowledged at ack 1 or 0 and went with a leader."""
        return self._twin.lost_messages

    def close(self) -> None:
        """Send what was accepted, within `timeout`; then everything is settled and every connection closed.

        Raises the first error of what was sent with `send` and not reported by `flush`.
        """
        super().close()

    async def _close_twin(self) -> None:
        await self._hand_over()
        await self._twin.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClymqError as problem:
            if error is None:
                raise
            log.warning("producer %s: %s: %s", self.name, problem.code, problem)

    # --- In the caller's thread ---

    def _accept(self, topic: str, value: bytes, *rest: Any) -> None:
        """Take a message that needs more than a place in a list: a new list, or room."""
        if self._is_closed:
            raise ClosedError(f"producer {self.name} is closed")
        thread = self._loop_thread()
        self._intake.check_open()
        if len(value) > self._chunks.chunk_bytes:
            self._intake.check(value, None, None, None)
        with self._lock:
            while self._buffered_bytes() > self._buffer_bytes_max:
                if thread.is_current:
                    raise BufferFull(f"{self._buffered_bytes()} bytes are buffered", hint="on_delivery cannot wait")
                self._room.wait(LOOK_SECONDS)
                thread.check()
                self._intake.check_open()
            was_empty = self._chunks.is_empty
            self._chunks.add(topic, value, *rest)
            if self._chunks.closed or was_empty:
                thread.call_soon(self._look)

    def _buffered_bytes(self) -> int:
        return self._intake.buffered_bytes + self._chunks.closed_bytes

    # --- In the event loop's ---

    def _look(self) -> None:
        """Something was accepted: take what is complete, and the rest after `linger_ms`."""
        if self._chunks.closed:
            self._begin(self._take_closed())
        if self._linger is None and not self._is_closed:
            self._linger = asyncio.get_running_loop().call_later(self._linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._linger = None
        self._begin(self._hand_over(send_now=True))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over_and(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._hand_over()
        return await work()

    async def _hand_over(self, *, send_now: bool = False) -> None:
        """Take everything that was accepted until now."""
        with self._lock:
            if self._chunks.is_empty and not self._going_over.locked():
                return
            self._chunks.close_all()
        await self._take_closed()
        if send_now:
            self._intake.send_now()

    async def _take_closed(self) -> None:
        """Take what is complete; in order, whoever else takes."""
        async with self._going_over:
            while self._chunks.closed:
                with self._lock:
                    chunk = self._chunks.take()
                await self._take(chunk)
                with self._room:
                    self._room.notify_all()

    async def _take(self, chunk: Chunk) -> None:
        if isinstance(chunk, Values):
            await self._intake.add_values(chunk.topic, chunk.values, chunk.size_bytes)
        else:
            for message in chunk.messages:
                await self._intake.add(*message)
