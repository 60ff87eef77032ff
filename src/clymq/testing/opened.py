"""What is open inside a `with` block, for blocking code and for coroutines alike."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Opened(ABC):
    """Has `open` and `close`, which wait; a coroutine leaves the waiting to a thread."""

    def open(self) -> None:  # noqa: B027 who has nothing to begin with need not say so
        """Begin; if that fails, nothing is left."""

    @abstractmethod
    def close(self) -> None:
        """End, and leave nothing behind."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
