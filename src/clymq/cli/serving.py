"""Running a server from the command line: say when it is ready, and leave when a signal says so."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Protocol

import click

from clymq.errors import ClymqError
from clymq.node.collector import calm_collector
from clymq.rpc.transport import parse_address
from clymq.types import check_name


class Node(Protocol):
    """A process that serves."""

    @property
    def address(self) -> str:
        """Where it listens."""
        ...

    async def start(self, address: str) -> None:
        """Serve; when this returns, it does."""
        ...

    async def failed(self) -> ClymqError:
        """Wait until it can serve no more, and say why."""
        ...

    async def close(self) -> None:
        """Stop cleanly."""
        ...


def serve(name: str, listen: str, make: Callable[[], Node]) -> None:
    """Run a node until SIGTERM or SIGINT, or until it fails; `ready NAME HOST:PORT` is the first line of stdout."""
    try:
        check_name(name)
        parse_address(listen)
    except ClymqError as error:
        raise click.UsageError(str(error)) from None
    calm_collector()
    asyncio.run(_serve(name, listen, make))


def addresses_of(_context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """Split host:port[,host:port...] and check each."""
    addresses = [address.strip() for address in value.split(",")]
    try:
        for address in addresses:
            parse_address(address)
    except ClymqError as error:
        raise click.BadParameter(str(error), param=parameter) from None
    return addresses


async def _serve(name: str, listen: str, make: Callable[[], Node]) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    node = make()
    starting = asyncio.create_task(node.start(listen))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if starting.done():
            starting.result()
            click.echo(f"ready {name} {node.address}")
            sys.stdout.flush()
            failing = asyncio.ensure_future(node.failed())
            await asyncio.wait({failing, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise failing.result()  # whoever watches over this process starts it again
            failing.cancel()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        stopped.cancel()
        await node.close()
