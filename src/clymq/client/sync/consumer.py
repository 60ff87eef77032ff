"""The blocking consumer. Heartbeats are answered by the client's own thread, whatever the program is busy with."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from clymq.client.consumer import AsyncConsumer
from clymq.client.handling import Handler
from clymq.client.messages import Message
from clymq.client.surroundings import Surroundings
from clymq.client.sync.calls import Blocking, blocking
from clymq.config import MiB
from clymq.errors import InvalidRequest


class Consumer(Blocking[AsyncConsumer]):
    """Pulls messages. `with`, or `start()` and `close()`. All methods wait."""

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str | None = None,
        credit_bytes: int = 16 * MiB,
        timeout: float = 30.0,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`credit_bytes` bounds what is read ahead, over all partitions."""
        twin = AsyncConsumer(
            bootstrap, name=name, credit_bytes=credit_bytes, timeout=timeout, surroundings=surroundings
        )
        super().__init__(twin)
        self.name = twin.name
        self._handling = threading.local()

    subscribe = blocking(AsyncConsumer.subscribe)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)
    assign = blocking(AsyncConsumer.assign)
    seek = blocking(AsyncConsumer.seek)
    position = blocking(AsyncConsumer.position)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    pull = blocking(AsyncConsumer.pull)
    ack = blocking(AsyncConsumer.ack)
    nack = blocking(AsyncConsumer.nack)
    extend = blocking(AsyncConsumer.extend)
    reject = blocking(AsyncConsumer.reject)
    commit = blocking(AsyncConsumer.commit)
    committed = blocking(AsyncConsumer.committed)

    def __iter__(self) -> Iterator[Message]:
        """Yield message after message, without end; `position` follows what was yielded.

        What was pulled for a loop that was left is what the next loop, or `pull`, begins with.
        """
        in_hand = self._twin._in_hand
        while True:
            run = in_hand.next_run()
            if run is None:
                in_hand.put(self.pull())
            else:
                yield from run

    def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler(message)` for each message, so many at a time: it returns -> ack, it raises -> nack.

        What failed comes again, after a pause that grows, until it is a dead letter. Runs until the consumer is closed
        by another thread, or interrupted. Handlers have threads of their own; coroutine functions share the client's.
        """
        if inspect.iscoroutinefunction(handler):
            self._wait_for(self._twin.run(handler, concurrency=concurrency))
            return

        def handle(message: Message) -> object:
            self._handling.now = True
            return handler(message)

        with ThreadPoolExecutor(max(1, concurrency), thread_name_prefix="clymq-handler") as pool:

            async def handle_in_thread(message: Message) -> object:
                return await asyncio.get_running_loop().run_in_executor(pool, handle, message)

            self._wait_for(self._twin.run(handle_in_thread, concurrency=concurrency))

    def close(self) -> None:
        """Stop reading, give leases back, and close every connection; positions are not stored by this.

        What `run` has begun is finished first, and acks that are under way are answered, within `timeout`.
        """
        if getattr(self._handling, "now", False):
            raise InvalidRequest("a handler cannot close its consumer: it would wait for itself", hint="raise instead")
        super().close()
