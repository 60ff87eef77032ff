"""Several drafts, one answer: what `push_many` and `flush` wait for."""

from __future__ import annotations

import asyncio

from clymq.client.accumulator import Draft
from clymq.client.receipts import Delivery, Outcome, Receipts, merged
from clymq.errors import ClymqError


class Gathering:
    """Waits until all drafts that it was told of are settled; one future, however many messages."""

    def __init__(self, topic: str = "") -> None:
        self._topic = topic
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ranges: list[tuple[str, int | None, int]] = []
        self._pending = 0
        self._error: ClymqError | None = None
        self._is_complete = False

    @property
    def pending(self) -> int:
        """How many of those that were expected are not settled."""
        return self._pending

    def expect(self, draft: Draft, count: int) -> None:
        """Wait for the last `count` messages of a draft, which were just added."""
        at, before = len(self._ranges), draft.count - count
        self._ranges.append((draft.partition, None, count))
        self._pending += 1

        def settled(outcome: Outcome) -> None:
            if isinstance(outcome, Delivery):
                first = None if outcome.base_offset is None else outcome.base_offset + before
                self._ranges[at] = draft.partition, first, count
            else:
                self._error = self._error or outcome
            self._pending -= 1
            self._look()

        draft.listeners.append(settled)

    async def settled(self) -> None:
        """Wait for all of them, whatever their fate."""
        self._is_complete = True
        self._look()
        await self._done

    async def receipts(self) -> Receipts:
        """Wait for all of them; raise the first error if there is one."""
        await self.settled()
        if self._error is not None:
            raise self._error
        return Receipts(sum(count for _, _, count in self._ranges), merged(self._ranges), self._topic)

    def _look(self) -> None:
        if self._is_complete and not self._pending and not self._done.done():
            self._done.set_result(None)
