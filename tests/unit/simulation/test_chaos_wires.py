"""Connections inside a server as the nemesis wants them. In a process of its own: what is replaced stays replaced."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, socket
from clymq.errors import ConnectFailed
from clymq.rpc.transport import TcpTransport
from clymq.simulation.chaos.wires import Wires

class Received:
    def __init__(self):
        self.data, self.room, self.is_closed = b"", bytearray(4096), asyncio.Event()
    def get_buffer(self):
        return memoryview(self.room)
    def received(self, count):
        self.data += self.room[:count]
    def closed(self, error):
        self.is_closed.set()

async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)

async def silence(*received):
    await asyncio.sleep(0.2)
    assert not any(each.data for each in received)

async def main():
    wires = Wires()
    wires.install()
    there, here, accepted, loop = Received(), Received(), [], asyncio.get_running_loop()
    def accept(wire):
        accepted.append(wire)
        wire.start(there)
    transport = TcpTransport()
    listener = await transport.listen("127.0.0.1:0", accept)
    address = listener.address
    wire = await transport.connect(address, 1000)
    wire.start(here)
    await until(lambda: accepted)
    {steps}

asyncio.run(main())
"""


def run(steps: str) -> None:
    program = PROGRAM.replace("{steps}", steps.strip().replace("\n", "\n    "))
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_is_said_to_a_muted_address_arrives_when_the_cut_is_healed() -> None:
    run("""
wires.cut(mute=frozenset({address}), deaf=frozenset())
wire.write([b"there"], 5)
accepted[0].write([b"back"], 4)
await until(lambda: here.data == b"back")
await silence(there)
wires.cut(mute=frozenset(), deaf=frozenset())
await until(lambda: there.data == b"there")
""")


def test_what_a_deaf_server_is_told_arrives_when_the_cut_is_healed() -> None:
    run("""
wires.cut(mute=frozenset(), deaf=frozenset({address}))
wire.write([b"there"], 5)
accepted[0].write([b"back"], 4)
await until(lambda: there.data == b"there")
await silence(here)
wires.cut(mute=frozenset(), deaf=frozenset())
await until(lambda: here.data == b"back")
""")


@pytest.mark.parametrize("side", ["mute", "deaf"])
def test_nobody_connects_through_a_cut(side: str) -> None:
    cut = {"mute": "frozenset()", "deaf": "frozenset()"} | {side: "frozenset({address})"}
    run(f"""
wires.cut(mute={cut["mute"]}, deaf={cut["deaf"]})
try:
    await transport.connect(address, 100)
except ConnectFailed:
    pass
else:
    raise AssertionError("connected")
task = asyncio.create_task(transport.connect(address, 20_000))
await asyncio.sleep(0.05)
wires.cut(mute=frozenset(), deaf=frozenset())
(await task).abort()
""")


def test_a_delay_makes_everything_late_and_loses_nothing() -> None:
    run("""
wires.delay_seconds = 0.2
begin = loop.time()
wire.write([b"one "], 4)
await until(lambda: there.data == b"one ")
assert loop.time() - begin >= 0.2
wire.write([b"two"], 3)
await until(lambda: there.data == b"one two")
wires.delay_seconds = 0.0
accepted[0].write([b"back"], 4)
await until(lambda: here.data == b"back")
""")


def test_a_reset_breaks_both_sides() -> None:
    run("""
wires.reset()
async with asyncio.timeout(20):
    await here.is_closed.wait()
    await there.is_closed.wait()
""")
