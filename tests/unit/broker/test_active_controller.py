"""Whom a broker takes for the active zkserver."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from clymq.broker.neighbours import ActiveController
from clymq.errors import ClymqError, ConnectFailed, LeaderUnavailable, NotController, RequestTimeout
from clymq.protocol.controller import Status
from clymq.protocol.verbs import Done


class Zkservers:
    """Those at each address answer, or fail as they are told; `active` is what the tree says."""

    def __init__(self) -> None:
        self.active = "old:1"
        self.failing: dict[str, ClymqError] = {}
        self.address = ""
        self.asked: list[str] = []
        self.looked_up = 0

    def know(self, addresses: dict[str, str]) -> None:
        (self.address,) = addresses.values()

    def is_connected(self, _: str) -> bool:
        return bool(self.address)

    async def ask(self, _: str, request: Any, *, timeout_ms: float) -> Any:
        del request, timeout_ms
        self.asked.append(self.address)
        if self.address in self.failing:
            raise self.failing[self.address]
        return SimpleNamespace(reply=Done())

    async def find(self) -> str:
        self.looked_up += 1
        return self.active


@pytest.mark.parametrize(
    "failure", [RequestTimeout("silent"), ConnectFailed("gone"), NotController("not the active zkserver")]
)
def test_one_that_is_silent_gone_or_not_active_any_more_is_looked_up_anew(failure: ClymqError) -> None:
    async def test() -> None:
        zkservers = Zkservers()
        controller = ActiveController(zkservers, zkservers.find)  # type: ignore[arg-type]
        await controller.ask(Status(), timeout_ms=1000)
        await controller.ask(Status(), timeout_ms=1000)
        assert (zkservers.asked, zkservers.looked_up) == (["old:1", "old:1"], 1)
        zkservers.active, zkservers.failing["old:1"] = "new:1", failure
        with pytest.raises(type(failure)):
            await controller.ask(Status(), timeout_ms=1000)
        await controller.ask(Status(), timeout_ms=1000)
        assert zkservers.asked[-1] == "new:1"

    asyncio.run(test())


def test_one_that_answers_with_an_error_is_asked_again() -> None:
    async def test() -> None:
        zkservers = Zkservers()
        controller = ActiveController(zkservers, zkservers.find)  # type: ignore[arg-type]
        zkservers.failing["old:1"] = LeaderUnavailable("not yet")
        for _ in range(2):
            with pytest.raises(LeaderUnavailable):
                await controller.ask(Status(), timeout_ms=1000)
        assert zkservers.looked_up == 1

    asyncio.run(test())
