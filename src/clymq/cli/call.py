"""`clymq call ADDRESS VERB JSON`: one request, one answer, as JSON. For people who want to see, and for scripts."""

from __future__ import annotations

import asyncio

import click

from clymq.cli.amounts import Amount
from clymq.clock import SystemClock
from clymq.config import Config
from clymq.errors import ClymqError
from clymq.protocol.as_json import json_of, message_of
from clymq.protocol.verbs import Message, OneWay
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.transport import TcpTransport, parse_address


@click.command()
@click.argument("address")
@click.argument("verb")
@click.argument("fields", metavar="[JSON]", default="{}")
@click.option(
    "--timeout",
    type=Amount(min=0, min_open=True, max=86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Errors as JSON too; the answer always is.")
def call(address: str, verb: str, fields: str, timeout: float, as_json: bool) -> None:  # noqa: ARG001 errors are main's
    """Send one VERB to the server at ADDRESS, with its fields as a JSON object, and print the answer.

    For verbs that carry no batches. A message that has no answer is sent, and `{}` is printed.
    """
    try:
        parse_address(address)
        message = message_of(verb, fields)
    except ClymqError as error:
        raise click.UsageError(str(error)) from None
    click.echo(asyncio.run(_ask(address, message, timeout * 1000)))


async def _ask(address: str, message: Message, timeout_ms: float) -> str:
    clock = SystemClock()
    endpoint = Endpoint(clock, Config(), name="clymq call", role="client")
    began_ms = clock.monotonic_ms()
    peer = await connect(TcpTransport(), address, endpoint, timeout_ms=timeout_ms)
    try:
        if isinstance(message, OneWay):
            peer.tell(message)
            return "{}"
        remaining_ms = timeout_ms - (clock.monotonic_ms() - began_ms)
        answer = await peer.ask(message, timeout_ms=max(1.0, remaining_ms))
        return json_of(answer.reply)
    finally:
        gone = asyncio.Event()
        peer.on_closed(lambda _: gone.set())
        peer.close()
        await gone.wait()
