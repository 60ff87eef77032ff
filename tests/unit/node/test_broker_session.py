"""A broker whose session ended is back in the tree as soon as the store takes it, however often that fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from clymq.clock import ManualClock
from clymq.config import Config
from clymq.errors import ClosedError, RequestTimeout
from clymq.node.broker import BrokerNode, Place


def test_a_session_that_began_and_could_not_be_announced_is_announced_later() -> None:
    """The session is alive then, so nobody will say again that it has ended; without `state` the broker is offline."""

    async def test() -> None:
        clock, config, announced, failures = ManualClock(), Config(), asyncio.Event(), [RequestTimeout("too slow")]

        async def nothing(*_: Any, **__: Any) -> str:
            return "cluster"

        async def announce(*_: Any, **__: Any) -> None:
            if failures:
                raise failures.pop()
            announced.set()

        node: Any = object.__new__(BrokerNode)
        node.name, node._clock, node._config, node._disk_id, node._incarnation = "B0", clock, config, "disk", 1
        node._place, node._chance = Place(), SimpleNamespace(getrandbits=lambda _: 1)
        node._server = SimpleNamespace(address="here:1")
        node._folder = SimpleNamespace(kept_line=lambda _name, first: first(), path="/data")
        node._store = SimpleNamespace(open=nothing, session=SimpleNamespace(on_lost=lambda _: None))
        node._catalog = SimpleNamespace(
            prepare=nothing, cluster_id=nothing, register_broker=nothing, announce_broker=announce
        )
        asked: list[None] = []
        node.broker = SimpleNamespace(ask_again=lambda: asked.append(None))
        node._session_ended = asyncio.Event()
        node._session_ended.set()
        keeping = asyncio.create_task(node._keep_session())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not failures
        clock.advance(config.reconnect_ms_max + 1)
        for _ in range(20):
            await asyncio.sleep(0)
        keeping.cancel()
        assert announced.is_set()
        assert asked == [None]

    asyncio.run(test())


def test_without_any_session_nothing_is_confirmed_and_nobody_is_hurt() -> None:
    """A store that could not be opened again has no session at all: a fetch leader that asks is just not confirmed."""

    class Closed:
        @property
        def session(self) -> Any:
            raise ClosedError("the store is not open")

    node: Any = object.__new__(BrokerNode)
    node._store, node._clock = Closed(), ManualClock()
    assert not node._session_is_confirmed()
    assert node._session_id() == ""
