"""`run(handler)` with a consumer that is only pretended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from clymq.client.handling import Run
from clymq.client.messages import Message, Messages
from clymq.client.waiting import Deadline
from clymq.clock import SystemClock
from clymq.errors import ClosedError

SECONDS = 10.0


def message(offset: int) -> Message:
    return Message("t", "0", offset, 0, None, b"", (), 1)


class Pulled(list[Message]):
    """Messages, all leased."""

    runs = ()


class FakeConsumer:
    """Gives some messages once, and remembers what became of them."""

    def __init__(self, count: int) -> None:
        self.left = [message(offset) for offset in range(count)]
        self.acked: list[int] = []
        self.nacked: list[int] = []
        self.over = asyncio.Event()
        self._count = count

    async def pull(self, max_messages: int, timeout: float) -> Any:
        del timeout
        if not self.left:
            await self.over.wait()
            raise ClosedError("closed")
        some, self.left = self.left[:max_messages], self.left[max_messages:]
        return Pulled(some)

    async def ack(self, x: Message | Messages) -> None:
        assert isinstance(x, Message)
        self.acked.append(x.offset)
        self._look()

    async def nack(self, x: Message | Messages, *, delay: float = 0.0) -> None:
        del delay
        assert isinstance(x, Message)
        self.nacked.append(x.offset)
        self._look()

    async def commit(self) -> None:
        """Nothing to store."""

    async def give_back(self, messages: list[Message]) -> None:
        """Nothing is given back."""

    async def prolong(self) -> None:
        """Leases last."""

    def is_leased(self, message: Message) -> bool:
        del message
        return True

    def _look(self) -> None:
        if len(self.acked) + len(self.nacked) == self._count:
            self.over.set()


async def served(consumer: FakeConsumer, handler: Callable[[Message], Awaitable[None]]) -> None:
    handling = Run(consumer, handler, 1, SystemClock(), lambda: 0.5)
    serving = asyncio.create_task(handling.serve())
    try:
        await asyncio.wait_for(consumer.over.wait(), SECONDS)
    finally:
        await handling.stop(Deadline(SystemClock(), SECONDS))
        await serving


def test_a_handler_that_meets_a_cancelled_task_of_its_own_has_failed_and_the_run_goes_on() -> None:
    async def main() -> None:
        async def handler(each: Message) -> None:
            if each.offset == 0:
                inner = asyncio.create_task(asyncio.sleep(SECONDS))
                inner.cancel()
                await inner

        consumer = FakeConsumer(3)
        await served(consumer, handler)
        assert consumer.nacked == [0]
        assert consumer.acked == [1, 2]

    asyncio.run(main())
