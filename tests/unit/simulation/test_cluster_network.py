"""The network between simulated processes: what is held arrives later, who is killed is noticed, or is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from clymq.errors import ConnectFailed, ConnectionLost
from clymq.rpc.transport import Wire
from clymq.simulation.cluster.loop import Life, VirtualLoop
from clymq.simulation.cluster.network import Network


class Receiver:
    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[ConnectionLost | None] = []
        self._room = bytearray(16)

    def get_buffer(self) -> memoryview:
        return memoryview(self._room)

    def received(self, count: int) -> None:
        self.data += self._room[:count]

    def closed(self, error: ConnectionLost | None) -> None:
        self.ends.append(error)


class Pair:
    """Two processes, `a` and `b`, and a connection from `a` to `b`."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = Network(self.loop, lambda *_: 1.0)
        self.lives = {name: Life(self.loop, name) for name in "ab"}
        self.receivers = {name: Receiver() for name in "ab"}
        self.wires: dict[str, Wire] = {}
        for life in self.lives.values():
            life.on_killed.append(lambda life=life: self.network.lose(life, silently=self.silently))
        self.silently = False
        self.run(self._connect())

    async def _connect(self) -> None:
        await self.lives["b"].spawn(self.network.transport(self.lives["b"]).listen("b:1", self._accept))
        self.wires["a"] = await self.lives["a"].spawn(self.network.transport(self.lives["a"]).connect("b:1", 1000))
        self.wires["a"].start(self.receivers["a"])
        await asyncio.sleep(0.1)

    def _accept(self, wire: Wire) -> None:
        self.wires["b"] = wire
        wire.start(self.receivers["b"])

    def run(self, work: object) -> None:
        self.loop.run_until_complete(self.loop.create_task(work))  # type: ignore[arg-type]

    def write(self, name: str, data: bytes) -> None:
        self.lives[name].context.run(self.wires[name].write, [data], len(data))
        self.wait()

    def wait(self, seconds: float = 0.1) -> None:
        self.run(asyncio.sleep(seconds))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for life in made.lives.values():
        life.kill()
    made.wait()
    made.loop.close()


def test_what_is_held_in_one_direction_arrives_later_and_the_other_direction_passes(pair: Pair) -> None:
    pair.network.hold("a", "b")
    pair.write("a", b"later")
    pair.write("b", b"now")
    pair.wait(5)
    assert (bytes(pair.receivers["b"].data), bytes(pair.receivers["a"].data)) == (b"", b"now")
    pair.network.release("a", "b")
    pair.wait()
    assert bytes(pair.receivers["b"].data) == b"later"
    assert pair.receivers["a"].ends == pair.receivers["b"].ends == []


def test_what_is_held_twice_passes_when_it_is_released_twice_or_everything_heals(pair: Pair) -> None:
    for undo in (lambda: pair.network.release("a", "b"), pair.network.heal):
        pair.network.hold("a", "b")
        pair.network.hold("a", "b")
        pair.network.release("a", "b")
        before = bytes(pair.receivers["b"].data)
        pair.write("a", b".")
        assert bytes(pair.receivers["b"].data) == before
        undo()
        pair.wait()
        assert bytes(pair.receivers["b"].data) == before + b"."


def test_no_connection_is_made_while_either_direction_is_held(pair: Pair) -> None:
    pair.network.hold("b", "a")

    async def connect(timeout_ms: float) -> None:
        (await pair.network.transport(pair.lives["a"]).connect("b:1", timeout_ms)).abort()

    with pytest.raises(ConnectFailed, match="within 300 ms"):
        pair.run(connect(300))
    pair.loop.call_later(1, pair.network.heal)
    pair.run(connect(2000))


def test_a_reset_is_noticed_on_both_sides(pair: Pair) -> None:
    pair.network.reset("a", "b")
    pair.wait()
    assert all(isinstance(pair.receivers[name].ends[0], ConnectionLost) for name in "ab")


def test_the_connections_of_a_killed_process_are_reset(pair: Pair) -> None:
    pair.lives["b"].kill()
    pair.wait()
    (end,) = pair.receivers["a"].ends
    assert isinstance(end, ConnectionLost)
    assert "b:1" not in pair.network.listeners


def test_a_machine_without_power_says_nothing_until_it_is_back(pair: Pair) -> None:
    pair.silently = True
    pair.lives["b"].kill()
    pair.write("a", b"hello?")
    pair.wait(10)
    assert pair.receivers["a"].ends == []
    pair.network.come_back("b")
    pair.wait()
    assert isinstance(pair.receivers["a"].ends[0], ConnectionLost)
    assert bytes(pair.receivers["b"].data) == b""


def test_a_paused_process_gets_what_was_sent_when_it_goes_on(pair: Pair) -> None:
    pair.lives["b"].pause()
    pair.write("a", b"patience")
    pair.wait(10)
    assert bytes(pair.receivers["b"].data) == b""
    pair.lives["b"].resume()
    pair.wait()
    assert bytes(pair.receivers["b"].data) == b"patience"
