"""The asynchronous and the blocking client behind one face, so that one suite of tests holds for both.

Everything is awaited; a blocking call waits in a thread of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Literal

from clymq import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Message, Producer

Kind = Literal["async", "sync"]
KINDS: tuple[Kind, ...] = ("async", "sync")
SECONDS_MAX = 60.0
THREADS_MAX = 250

_numbers = itertools.count(1)


class Subject:
    """A client whose methods are all awaited."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if not callable(found):
            return found

        async def call(*arguments: Any, **options: Any) -> Any:
            if inspect.iscoroutinefunction(found):
                return await found(*arguments, **options)
            if isinstance(self.client, AsyncAdmin | AsyncProducer | AsyncConsumer):
                return found(*arguments, **options)
            return await asyncio.to_thread(found, *arguments, **options)

        return call

    async def first(self, count: int) -> list[Message]:
        """Return the first messages of an iteration."""
        if isinstance(self.client, AsyncConsumer):
            messages = []
            async for message in self.client:
                messages.append(message)
                if len(messages) == count:
                    break
            return messages
        return await asyncio.to_thread(lambda: list(itertools.islice(self.client, count)))


class Clients:
    """Makes clients of one kind for one cluster."""

    def __init__(self, kind: Kind, bootstrap: str) -> None:
        self.kind = kind
        self.bootstrap = bootstrap

    def admin(self, **options: Any) -> Any:
        return self._entered(AsyncAdmin if self.kind == "async" else Admin, options)

    def producer(self, **options: Any) -> Any:
        return self._entered(AsyncProducer if self.kind == "async" else Producer, options)

    def consumer(self, **options: Any) -> Any:
        return self._entered(AsyncConsumer if self.kind == "async" else Consumer, options)

    @asynccontextmanager
    async def _entered(self, make: Callable[..., Any], options: dict[str, Any]) -> AsyncIterator[Subject]:
        client = make(self.bootstrap, **options)
        if self.kind == "async":
            async with client:
                yield Subject(client)
        else:
            await asyncio.to_thread(client.__enter__)
            try:
                yield Subject(client)
            finally:
                await asyncio.to_thread(client.close)


def run(work: Coroutine[Any, Any, None], seconds_max: float = SECONDS_MAX) -> None:
    """Run a test; none takes longer than this."""

    async def limited() -> None:
        # A blocking call needs a thread for as long as it waits, and there may be many that wait.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX))
        async with asyncio.timeout(seconds_max):
            await work

    asyncio.run(limited())


def new_topic() -> str:
    """Return a name that no other test uses."""
    return f"topic{next(_numbers)}"


async def pulled(consumer: Subject, count: int, *, seconds: float = 20.0) -> list[Message]:
    """Pull until there are so many messages."""
    messages: list[Message] = []
    async with asyncio.timeout(seconds):
        while len(messages) < count:
            messages += await consumer.pull(timeout=1.0)
    return messages


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, *, seconds: float = 20.0) -> None:
    """Wait until something is so."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None
