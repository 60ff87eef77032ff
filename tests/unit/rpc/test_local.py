from __future__ import annotations

import asyncio
import os
import socket

import pytest

from clymq.rpc import local
from clymq.rpc.local import connect_locally, listen_locally
from clymq.rpc.transport import TcpTransport, Wire, parse_address


def dialler_of(listens: TcpTransport, dials: TcpTransport, address: str = "127.0.0.1:0", dial: str = "") -> str:
    """Connect once and say a word; return what the listener calls the one that said it."""

    class Ear:
        def __init__(self, wire: Wire) -> None:
            self.wire, self.buffer = wire, bytearray(10)

        def get_buffer(self) -> memoryview:
            return memoryview(self.buffer)

        def received(self, count: int) -> None:
            heard.set_result(self.wire.address)

        def closed(self, error: Exception | None) -> None: ...

    async def main() -> str:
        def accept(wire: Wire) -> None:
            accepted.append(wire)
            wire.start(Ear(wire))

        listener = await listens.listen(address, accept)
        _, port = parse_address(listener.address)
        ours = await dials.connect(f"{dial}:{port}" if dial else listener.address, 5000)
        ours.write([b"here"], 4)
        async with asyncio.timeout(10):
            name = await heard
        for wire in (ours, *accepted):
            wire.abort()
        listener.close()
        return name

    with asyncio.Runner() as runner:
        heard: asyncio.Future[str] = runner.get_loop().create_future()
        accepted: list[Wire] = []
        return runner.run(main())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.0.0.2:0"])
def test_two_ends_on_one_machine_take_the_short_way(address: str) -> None:
    assert dialler_of(TcpTransport(), TcpTransport(), address) == f"process {os.getpid()}"


@pytest.mark.parametrize(("listens", "dials"), [(False, True), (True, False)])
def test_one_end_that_does_not_know_the_short_way_is_enough_for_tcp(listens: bool, dials: bool) -> None:
    assert dialler_of(TcpTransport(local=listens), TcpTransport(local=dials)).startswith("127.0.0.1:")


def test_a_listener_on_all_addresses_is_reached_by_its_port() -> None:
    assert dialler_of(TcpTransport(), TcpTransport(), "0.0.0.0:0", dial="127.0.0.1").startswith("127.0.0.1:")


@pytest.mark.parametrize("own", ["\0clymq-test-{}", ""])
def test_a_dialler_with_a_name_of_its_own_is_a_connection_like_any_other(own: str) -> None:
    """It once made the listener stumble, which then held the descriptor for good."""

    async def main() -> None:
        accepted: list[Wire] = []
        listener = await TcpTransport().listen("127.0.0.1:0", accepted.append)
        _, port = parse_address(listener.address)
        with socket.socket(socket.AF_UNIX) as dialler:
            if own:
                dialler.bind(own.format(os.getpid()))
            dialler.connect(f"\0clymq/127.0.0.1/{port}")
            async with asyncio.timeout(10):
                while not accepted:
                    await asyncio.sleep(0.01)
        assert accepted[0].address == f"process {os.getpid()}"
        accepted[0].abort()
        listener.close()

    asyncio.run(main())


def test_without_a_descriptor_for_the_name_the_port_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def none_left(family: int = -1, *rest: int) -> socket.socket:
        if family == socket.AF_UNIX:
            raise OSError(24, "too many open files")
        return real(family, *rest)

    monkeypatch.setattr(local.socket, "socket", none_left)
    assert listen_locally("127.0.0.1", 1) is None
    assert connect_locally("127.0.0.1", 1) is None


def test_an_address_is_the_same_however_it_is_written() -> None:
    port = free_port()
    nearby = listen_locally("::1", port)
    assert nearby is not None
    with nearby:
        dialled = connect_locally("0:0:0:0:0:0:0:1", port)
        assert dialled is not None
        dialled.close()


def test_a_name_that_somebody_has_taken_leaves_the_port() -> None:
    port = free_port()
    squatter = listen_locally("127.0.0.1", port)
    assert squatter is not None
    with squatter:
        assert listen_locally("127.0.0.1", port) is None


def test_a_process_of_another_user_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_own_user", lambda: 12_345)
    monkeypatch.setattr(local, "_ROOT", 54_321)
    port = free_port()
    stranger = listen_locally("127.0.0.1", port)
    assert stranger is not None
    with stranger:
        assert connect_locally("127.0.0.1", port) is None
    assert dialler_of(TcpTransport(), TcpTransport()).startswith("127.0.0.1:")


def test_nothing_listens_beside_the_port_once_the_listener_is_closed() -> None:
    async def main() -> None:
        listener = await TcpTransport().listen("127.0.0.1:0", lambda _: None)
        _, port = parse_address(listener.address)
        listener.close()
        assert connect_locally("127.0.0.1", port) is None

    asyncio.run(main())
