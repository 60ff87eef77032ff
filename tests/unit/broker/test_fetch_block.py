"""A fetch block as its broker sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clymq.broker.fetch_block import FetchBlock
from clymq.clock import ManualClock
from clymq.errors import ClymqError
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


def test_whoever_waits_at_the_end_of_a_block_that_is_let_go_asks_elsewhere() -> None:
    place: Any = SimpleNamespace(block=1, start=0)
    machine: Any = SimpleNamespace(sealed=False)
    group = SimpleNamespace(leader="a", name="p/1")
    block = FetchBlock("a", place, machine, ManualClock(), SimpleNamespace())  # type: ignore[arg-type]
    block.attach(SimpleNamespace(visible_end=0, read=None, group=group))  # type: ignore[arg-type]
    failed: list[str] = []

    class Waiting:
        request = SimpleNamespace(offset=0, wait_ms_max=5000)

        def on_cancel(self, _: object) -> None:
            pass

        def fail(self, error: ClymqError) -> None:
            failed.append(error.code)

    block._readers.pull(Waiting())  # type: ignore[arg-type]
    assert failed == []
    block.let_go()
    assert failed == ["NotLeader"]
