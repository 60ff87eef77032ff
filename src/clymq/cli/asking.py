"""What all client commands share: how they find the cluster, how long they wait, and how they answer.

A command that reaches none of the servers that it was told of says so at once: `ConnectFailed`, exit code 3. From then
on it has `--timeout` for each of its requests: servers may come and go meanwhile, and it looks for the right one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from clymq.cli.amounts import Amount
from clymq.cli.flags import setting_option
from clymq.cli.printing import json_text
from clymq.client.admin import AsyncAdmin
from clymq.client.cluster import parse_bootstrap
from clymq.client.consumer import AsyncConsumer
from clymq.client.producer import AsyncProducer
from clymq.client.surroundings import Surroundings
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError, ConnectFailed
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.transport import TcpTransport
from clymq.types import Ack

T = TypeVar("T")
ACK_METAVAR: Final = "quorum|leader|none|unset"


@dataclass(frozen=True)
class Asker:
    """A client command's way to the cluster and back to whoever typed it."""

    bootstrap: str
    timeout: float
    as_json: bool
    config: Config

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work with the cluster, if there is one."""

        async def reach_and_work() -> T:
            await self._reach()
            return await work()

        return asyncio.run(reach_and_work())

    def ask(self, work: Callable[[AsyncAdmin], Coroutine[Any, Any, T]]) -> T:
        """Do work with an administrator."""

        async def with_admin() -> T:
            async with self.admin() as admin:
                return await work(admin)

        return self.run(with_admin)

    def answer(self, document: Any, words: str) -> None:
        """Print the answer: the document for programs, or words for people."""
        click.echo(json_text(document) if self.as_json else words)

    def admin(self) -> AsyncAdmin:
        """Return an administrator."""
        return AsyncAdmin(self.bootstrap, timeout=self.timeout, surroundings=self._surroundings())

    def producer(self, *, linger_ms: float = 5) -> AsyncProducer:
        """Return a producer."""
        return AsyncProducer(
            self.bootstrap, linger_ms=linger_ms, timeout=self.timeout, surroundings=self._surroundings()
        )

    def consumer(self) -> AsyncConsumer:
        """Return a consumer."""
        return AsyncConsumer(self.bootstrap, timeout=self.timeout, surroundings=self._surroundings())

    def _surroundings(self) -> Surroundings:
        return Surroundings(config=self.config)

    async def _reach(self) -> None:
        """Return when any of the servers answers; raise when none does."""
        addresses = parse_bootstrap(self.bootstrap)
        knocks = [asyncio.create_task(self._knock(address)) for address in addresses]
        problems: list[ClymqError] = []
        try:
            for knock in asyncio.as_completed(knocks):
                try:
                    await knock
                    return
                except ClymqError as error:
                    problems.append(error)
        finally:
            for task in knocks:
                task.cancel()
            await asyncio.gather(*knocks, return_exceptions=True)
        if len(problems) == 1:
            raise problems[0]
        raise ConnectFailed(f"no server can be reached: {'; '.join(map(str, problems))}")

    async def _knock(self, address: str) -> None:
        endpoint = Endpoint(SystemClock(), self.config, name="clymq", role="client")
        limit_ms = min(self.timeout * 1000, self.config.connect_ms_max)
        peer = await connect(TcpTransport(), address, endpoint, timeout_ms=limit_ms)
        gone = asyncio.Event()
        peer.on_closed(lambda _reason: gone.set())
        peer.close()
        await gone.wait()


def client_command(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the flags of all client commands; it gets an `Asker` first."""

    @setting_option(
        "--bootstrap",
        default="127.0.0.1:7878",
        show_default=True,
        metavar="HOST:PORT,...",
        callback=_checked_bootstrap,
        help="Any zkservers or brokers; also from the environment as CLYMQ_BOOTSTRAP.",
    )
    @setting_option(
        "--timeout",
        type=Amount(min=0, min_open=True, max=86_400),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a request may take.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Answer in JSON, errors too.")
    @functools.wraps(command)
    def with_asker(bootstrap: str, timeout: float, as_json: bool, **fields: Any) -> T:
        config = click.get_current_context().find_object(Config) or Config()
        return command(Asker(bootstrap, timeout, as_json, config), **fields)

    return with_asker


def ack_of(_context: click.Context, parameter: click.Parameter, value: str) -> Ack:
    """Return what a word or a number of the wire means."""
    for ack in Ack:
        if value.lower() in {ack.name.lower(), str(int(ack))}:
            return ack
    raise click.BadParameter(f"{value!r} is not quorum (-1), leader (1), none (0) or unset (-2)", param=parameter)


def pairs(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Split each KEY=VALUE."""
    found = []
    for value in values:
        name, equals, rest = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not KEY=VALUE", param=parameter)
        found.append((name, rest))
    return tuple(found)


def _checked_bootstrap(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        parse_bootstrap(value)
    except ClymqError as error:
        raise click.BadParameter(str(error), param=parameter) from None
    return value
