"""One suite for TCP, the short way on one machine, the twin in memory, and the one between simulated processes."""

from __future__ import annotations

import asyncio
import errno
import itertools
import mmap
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from clymq.clock import SystemClock
from clymq.errors import ConfigError, ConnectFailed, ConnectionLost, InvalidRequest
from clymq.rpc.memory import MemoryNetwork
from clymq.rpc.transport import TcpTransport, Transport, Wire, format_address, parse_address
from clymq.simulation.cluster.loop import Life, VirtualLoop
from clymq.simulation.cluster.network import Network
from clymq.storage.files import File, RealFiles

WAIT_SECONDS = 20
# Wires that a test has made or accepted; closed behind it.
WIRES: list[Wire] = []


class Collector:
    """A receiver that keeps what it gets."""

    def __init__(self, room: int = 4096) -> None:
        self.data = bytearray()
        self.ended: asyncio.Future[ConnectionLost | None] = asyncio.get_running_loop().create_future()
        self._chunk = bytearray(room)
        self._changed = asyncio.Event()
        self.ends = 0

    def get_buffer(self) -> memoryview:
        return memoryview(self._chunk)

    def received(self, count: int) -> None:
        assert count > 0
        self.data += self._chunk[:count]
        self._changed.set()

    def closed(self, error: ConnectionLost | None) -> None:
        self.ends += 1
        self.ended.set_result(error)
        self._changed.set()

    async def have(self, size: int) -> bytes:
        while len(self.data) < size:
            self._changed.clear()
            await self._changed.wait()
        return bytes(self.data)


async def alone(transport: Transport, test: Callable[[Transport], Awaitable[None]]) -> None:
    """Run a test, for so long at most, and leave no wire behind."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await test(transport)
    finally:
        for wire in WIRES:
            wire.abort()
        WIRES.clear()


@pytest.fixture(params=["tcp", "local", "memory", "simulated"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Transport], Awaitable[None]]], None]:
    async def main(test: Callable[[Transport], Awaitable[None]]) -> None:
        transport: Transport = TcpTransport(local=request.param == "local")
        if request.param == "memory":
            transport = MemoryNetwork(SystemClock()).transport("127.0.0.1")
        elif request.param == "simulated":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            transport = Network(loop, lambda *_: 0.1).transport(Life(loop, "127.0.0.1"))
        await alone(transport, test)

    def run_main(test: Callable[[Transport], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop if request.param == "simulated" else None) as runner:
            runner.run(main(test))

    return run_main


Run = Callable[[Callable[[Transport], Awaitable[None]]], None]


async def pair(transport: Transport, room: int = 4096) -> tuple[Wire, Collector, Wire, Collector]:
    """Return both ends of a connection, started."""
    accepted: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
    listener = await transport.listen("127.0.0.1:0", accepted.set_result)
    ours = await transport.connect(listener.address, 5000)
    theirs = await accepted
    listener.close()
    WIRES.extend((ours, theirs))
    here, there = Collector(room), Collector(room)
    ours.start(here)
    theirs.start(there)
    return ours, here, theirs, there


def mapped_file(folder: Path, size: int) -> tuple[bytes, memoryview, File]:
    """Return what a file holds, all of it as a view, and the file."""
    whole = random.Random(size).randbytes(size)
    (folder / "mapped").write_bytes(whole)
    file = RealFiles().open(str(folder / "mapped"))
    return whole, file.view(0, size), file


def test_bytes_arrive_in_order_in_both_directions(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, here, theirs, there = await pair(transport)
        ours.write([b"one ", bytearray(b"two ")], 8)
        ours.write([memoryview(b"three")], 5)
        theirs.write([b"back"], 4)
        assert await there.have(13) == b"one two three"
        assert await here.have(4) == b"back"

    run(test)


def test_the_port_of_a_listener_is_a_real_one_and_the_other_side_has_an_address(run: Run) -> None:
    async def test(transport: Transport) -> None:
        listener = await transport.listen("127.0.0.1:0", WIRES.append)
        host, port = parse_address(listener.address)
        assert host == "127.0.0.1"
        assert port > 0
        ours = await transport.connect(listener.address, 5000)
        assert ours.address == listener.address
        ours.abort()
        listener.close()

    run(test)


def test_more_than_any_buffer_holds_arrives_whole(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, _, _, there = await pair(transport, room=100_000)
        parts = [bytes([n % 256]) * (1 + n * 7 % 50_000) for n in range(2000)]
        for part in parts:
            ours.write([part], len(part))
        whole = b"".join(parts)
        assert await there.have(len(whole)) == whole
        assert ours.buffered == 0

    run(test)


def test_a_view_of_a_mapped_file_can_be_sent(run: Run, tmp_path: Path) -> None:
    async def test(transport: Transport) -> None:
        path = tmp_path / "mapped"
        path.write_bytes(bytes(range(256)) * 4096)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            ours, _, _, there = await pair(transport)
            view = memoryview(mapped)[1000:900_000]
            ours.write([b"head", view], 4 + len(view))
            assert await there.have(899_004) == b"head" + path.read_bytes()[1000:900_000]
            ours.abort()
            del view

    run(test)


def test_stretches_of_files_arrive_in_their_place_among_other_bytes(run: Run, tmp_path: Path) -> None:
    """In pieces, because the other side reads slowly; large ones from the file, small ones from memory."""

    async def test(transport: Transport) -> None:
        whole, view, file = mapped_file(tmp_path, 6_000_000)
        ours, _, theirs, there = await pair(transport, room=70_000)
        theirs.pause_reading()
        sent = [
            b"head",
            view[5:3_000_000],
            b"",
            b"x" * 100_000,
            b"",
            view[3:100],
            view[3_000_001:],
            view[77:200_000],
            b"tail",
        ]
        for _ in range(3):
            ours.write(sent, sum(map(len, sent)))
        ours.write([view[:1_000_000]], 1_000_000)
        theirs.resume_reading()
        expected = 3 * b"".join(sent) + whole[:1_000_000]
        assert await there.have(len(expected)) == expected
        assert ours.buffered == 0
        file.close()

    run(test)


def test_what_was_written_of_a_file_leaves_though_the_file_is_closed_meanwhile(run: Run, tmp_path: Path) -> None:
    async def test(transport: Transport) -> None:
        whole, view, file = mapped_file(tmp_path, 6_000_000)
        ours, _, theirs, there = await pair(transport, room=70_000)
        theirs.pause_reading()
        ours.write([b"head", view], 4 + len(view))
        ours.flush()
        file.close()
        theirs.resume_reading()
        assert await there.have(4 + len(whole)) == b"head" + whole

    run(test)


@pytest.mark.parametrize("local", [False, True])
def test_a_large_stretch_of_a_file_is_taken_from_it_and_if_it_is_not_there_the_connection_ends(
    tmp_path: Path, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What follows the part of a frame that is missing must not be taken for it."""
    taken: list[int] = []
    sendfile = os.sendfile

    def note(to: int, descriptor: int, position: int, count: int) -> int:
        taken.append(sent := sendfile(to, descriptor, position, count))
        return sent

    monkeypatch.setattr(os, "sendfile", note)

    async def test(transport: Transport) -> None:
        whole, view, file = mapped_file(tmp_path, 6_000_000)
        ours, here, _, there = await pair(transport, room=70_000)
        ours.write([b"head", view[:5_000_000]], 5_000_004)
        assert await there.have(5_000_004) == b"head" + whole[:5_000_000]
        assert sum(taken) > 5_000_000 - 64 * 1024  # a remainder is copied
        (tmp_path / "mapped").write_bytes(whole[:4_000_000])  # which nobody may do to what has been mapped
        ours.write([b"next", view[:5_000_000], b"behind"], 5_000_010)
        error = await here.ended
        assert error is not None
        assert "cannot be read" in str(error)
        await there.ended
        assert bytes(there.data[5_000_004:]) == b"next" + whole[:4_000_000]
        file.close()

    asyncio.run(alone(TcpTransport(local=local), test))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EBADF])
def test_a_file_that_fails_while_it_is_sent_ends_the_connection_and_is_no_dead_socket(
    tmp_path: Path, local: bool, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sendfile = os.sendfile
    calls = itertools.count()

    def fail(to: int, descriptor: int, position: int, count: int) -> int:
        if next(calls):
            raise OSError(number, "no more")
        return sendfile(to, descriptor, position, min(count, 100_000))

    monkeypatch.setattr(os, "sendfile", fail)

    async def test(transport: Transport) -> None:
        _, view, file = mapped_file(tmp_path, 6_000_000)
        ours, here, _, there = await pair(transport, room=70_000)
        ours.write([b"head", view], 4 + len(view))
        ours.flush()
        ours.write([b"next"], 4)
        error = await here.ended
        assert "cannot be read" in str(error)
        await there.ended
        assert bytes(there.data) == b"head" + bytes(view[:100_000])
        assert f"{tmp_path / 'mapped'} cannot be sent from 100000 on" in caplog.text
        file.close()

    asyncio.run(alone(TcpTransport(local=local), test))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM, errno.ENOMEM])
def test_files_that_cannot_be_sent_are_read_as_memory(
    tmp_path: Path, local: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "sendfile", refuse)

    async def test(transport: Transport) -> None:
        whole, view, file = mapped_file(tmp_path, 6_000_000)
        ours, _, _, there = await pair(transport, room=70_000)
        ours.write([b"head", view], 4 + len(view))
        assert await there.have(4 + len(whole)) == b"head" + whole
        ours.abort()
        file.close()

    asyncio.run(alone(TcpTransport(local=local), test))


def test_a_closed_wire_sends_what_was_written_and_then_ends_in_order(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, here, _, there = await pair(transport, room=65536)
        ours.write([b"x" * 3_000_000], 3_000_000)
        ours.close()
        ours.close()
        ours.write([b"too late"], 8)
        assert await there.ended is None
        assert bytes(there.data) == b"x" * 3_000_000
        assert await here.ended is None
        assert here.ends == 1

    run(test)


def test_an_aborted_wire_ends_at_once_on_both_sides(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, here, _, there = await pair(transport)
        ours.write([b"never"], 5)
        ours.abort()
        assert not here.ended.done()
        await here.ended
        await there.ended
        assert ours.buffered == 0
        assert (here.ends, there.ends) == (1, 1)

    run(test)


def test_nothing_more_arrives_once_a_wire_was_closed_here(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, here, theirs, there = await pair(transport)
        ours.close()
        theirs.write([b"into the void"], 13)
        await here.ended
        await there.ended
        assert here.data == b""

    run(test)


def test_a_wire_that_is_closed_while_it_delivers_delivers_no_more(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, _, theirs, there = await pair(transport, room=10)
        original = there.received

        def received(count: int) -> None:
            original(count)
            theirs.abort()

        there.received = received  # type: ignore[method-assign]
        ours.write([b"0123456789" * 100], 1000)
        await there.ended
        assert there.data == b"0123456789"

    run(test)


def test_a_wire_that_does_not_read_holds_up_its_sender_until_it_does(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, _, theirs, there = await pair(transport, room=65536)
        theirs.pause_reading()
        drained: list[int] = []
        for _ in range(200):
            ours.write([bytes(100_000)], 100_000)
        ours.when_drained(lambda: drained.append(len(there.data)))
        theirs.write([b"a turn of the loop"], 18)
        assert there.data == b""
        theirs.resume_reading()
        await there.have(20_000_000)
        while not drained:
            await asyncio.sleep(0)
        assert ours.buffered == 0

    run(test)


def test_a_wire_that_is_gone_or_has_nothing_to_send_counts_as_drained(run: Run) -> None:
    async def test(transport: Transport) -> None:
        ours, here, theirs, _ = await pair(transport)
        drained: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ours.when_drained(lambda: drained.set_result("at once"))
        assert not drained.done()
        assert await drained == "at once"
        theirs.pause_reading()
        ended: list[str] = []
        for _ in range(200):
            ours.write([bytes(100_000)], 100_000)
        ours.when_drained(lambda: ended.append("gone"))
        ours.abort()
        await here.ended
        assert ended == ["gone"]

    run(test)


def test_where_nobody_listens_is_an_error_that_names_the_address(run: Run) -> None:
    async def test(transport: Transport) -> None:
        listener = await transport.listen("127.0.0.1:0", WIRES.append)
        listener.close()
        with pytest.raises(ConnectFailed, match=listener.address):
            await transport.connect(listener.address, 5000)

    run(test)


def test_an_address_that_is_taken_is_an_error_and_free_again_once_closed(run: Run) -> None:
    async def test(transport: Transport) -> None:
        listener = await transport.listen("127.0.0.1:0", WIRES.append)
        with pytest.raises(ConfigError, match=listener.address):
            await transport.listen(listener.address, WIRES.append)
        listener.close()
        again = await transport.listen(listener.address, WIRES.append)
        again.close()

    run(test)


def test_a_connect_that_is_cancelled_leaves_nothing(run: Run) -> None:
    async def test(transport: Transport) -> None:
        listener = await transport.listen("127.0.0.1:0", lambda wire: wire.abort())
        task = asyncio.create_task(transport.connect(listener.address, 5000))
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            (await task).abort()
        listener.close()

    run(test)


@pytest.mark.parametrize("address", ["", "host", "host:", ":5", "host:x", "host:70000", "::1:5", "[::1]", "host:-1"])
def test_what_is_no_address_is_refused(run: Run, address: str) -> None:
    async def test(transport: Transport) -> None:
        with pytest.raises(InvalidRequest, match="host:port"):
            await transport.connect(address, 5000)
        with pytest.raises(InvalidRequest, match="host:port"):
            await transport.listen(address, WIRES.append)

    run(test)


def test_addresses_are_split_and_put_together_again() -> None:
    for address, parts in (("a.example:7774", ("a.example", 7774)), ("[::1]:0", ("::1", 0))):
        assert parse_address(address) == parts
        assert format_address(*parts) == address


def test_ipv6_and_names_work() -> None:
    async def test() -> None:
        transport = TcpTransport()
        for host in ("[::1]", "localhost"):
            try:
                listener = await transport.listen(f"{host}:0", lambda wire: wire.abort())
            except ConnectFailed as error:
                if host == "[::1]":
                    pytest.skip(f"no IPv6 here: {error}")
                raise
            (await transport.connect(listener.address, 5000)).abort()
            listener.close()

    asyncio.run(test())
