"""A fetch block as its broker sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clymq.broker.fetch_block import FetchBlock
from clymq.clock import ManualClock
from clymq.replication.machine import Elected


def test_that_a_block_has_begun_is_told_when_its_beginning_outlives_its_leader() -> None:
    """From then on retention may take the block before. If followers are fenced empty, they need the SEAL in it."""
    news: list[int] = []
    place: Any = SimpleNamespace(block=2, start=10)
    machine: Any = SimpleNamespace(sealed=False)
    block = FetchBlock("a", place, machine, ManualClock(), SimpleNamespace(began=news.append))  # type: ignore[arg-type]
    driver: Any = SimpleNamespace(visible_end=10, read=None, is_begun_by_majority=False)
    block.attach(driver)
    block.leads(Elected("a", 3, ()))
    block.advanced()
    assert news == []
    driver.is_begun_by_majority = True
    block.advanced()
    block.advanced()
    assert news == [3]
