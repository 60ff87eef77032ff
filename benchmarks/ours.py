"""The product's own clients, as a user has them: every setting at its default unless it says otherwise."""

from __future__ import annotations

import asyncio
import time

from benchmarks.contest import Turn, Watch
from benchmarks.load import DISTINCT, Load
from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.client.sync.producer import Producer
from clymq.errors import BufferFull
from clymq.types import Ack

WRITE = "write"
PULLED_MAX = {False: 1000, True: 10_000}  # to Python messages as by default, to Arrow more
GIVEN_AT_ONCE = 50  # times a thousand: what one `push_many` gets
WAIT_SECONDS = 10.0


def read_topic(load: Load) -> str:
    """Return the topic whose messages of this size are read."""
    return f"read-{load.size_bytes}"


class Ours:
    """See the module."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    async def create(self, topic: str, *, ack: Ack = Ack.LEADER, replicas: int = 1) -> None:
        """Make a topic of one partition."""
        async with AsyncAdmin(self._bootstrap) as admin:
            await admin.create_topic(topic, ack=ack, replicas=replicas)

    # --- Producing ---

    async def send(self, load: Load) -> Turn:
        """Call `send` for each message, `drain` when the buffer is full, then `flush`.

        Every thousand messages the event loop gets its turn, as it does in a program that gets them from somewhere.
        """
        async with AsyncProducer(self._bootstrap) as producer:
            await producer.push(WRITE, b"warm")
            send, some = producer.send, load.some
            watch = Watch()
            for _ in range(load.count // DISTINCT):
                for value in some:
                    try:
                        send(WRITE, value)
                    except BufferFull:
                        await producer.drain()
                        send(WRITE, value)
                await asyncio.sleep(0)
            await producer.flush()
            return watch.stop(load.count)

    async def send_blocking(self, load: Load) -> Turn:
        """Do the same with the class whose calls block."""
        return await asyncio.to_thread(self._send_blocking, load)

    def _send_blocking(self, load: Load) -> Turn:
        with Producer(self._bootstrap) as producer:
            producer.push(WRITE, b"warm")
            send, some = producer.send, load.some
            watch = Watch()
            for _ in range(load.count // DISTINCT):
                for value in some:
                    send(WRITE, value)
            producer.flush()
            return watch.stop(load.count)

    async def push_many(self, load: Load) -> Turn:
        """Call `push_many` with long lists, one after the other."""
        async with AsyncProducer(self._bootstrap) as producer:
            await producer.push(WRITE, b"warm")
            thousands = load.count // DISTINCT
            watch = Watch()
            for first in range(0, thousands, GIVEN_AT_ONCE):
                await producer.push_many(WRITE, load.some * min(GIVEN_AT_ONCE, thousands - first))
            return watch.stop(load.count)

    async def fill(self, load: Load) -> None:
        """Store what is going to be read."""
        await self.create(read_topic(load))
        async with AsyncProducer(self._bootstrap) as producer:
            for _ in range(load.count // DISTINCT):
                await producer.push_many(read_topic(load), load.some)

    async def push_one_by_one(self, topic: str, value: bytes, count: int) -> list[float]:
        """Call `push` again and again, each after the one before; return how long each took, in milliseconds."""
        async with AsyncProducer(self._bootstrap) as producer:
            await producer.push(topic, value)
            taken = []
            for _ in range(count):
                began = time.perf_counter()
                await producer.push(topic, value)
                taken.append(1000 * (time.perf_counter() - began))
            return taken

    # --- Consuming ---

    async def pull(self, load: Load) -> Turn:
        """Call `pull` and make Python messages of what comes."""
        return await self._pull(load, as_arrow=False)

    async def pull_arrow(self, load: Load) -> Turn:
        """Call `pull` and make an Arrow table of what comes."""
        return await self._pull(load, as_arrow=True)

    async def _pull(self, load: Load, *, as_arrow: bool) -> Turn:
        async with AsyncConsumer(self._bootstrap) as consumer:
            await consumer.end_offsets(read_topic(load))
            watch, left = Watch(), load.count
            await consumer.assign(read_topic(load), "0")
            while left:
                messages = await consumer.pull(PULLED_MAX[as_arrow], WAIT_SECONDS)
                assert messages, "no message in time"
                left -= messages.to_arrow().num_rows if as_arrow else len(list(messages))
            return watch.stop(load.count)

    async def iterate(self, load: Load) -> Turn:
        """`async for`, publish-subscribe."""
        async with AsyncConsumer(self._bootstrap) as consumer, asyncio.timeout(WAIT_SECONDS * 6):
            await consumer.end_offsets(read_topic(load))
            watch, left = Watch(), load.count
            await consumer.assign(read_topic(load), "0")
            async for _message in consumer:
                left -= 1
                if not left:
                    break
            return watch.stop(load.count)
