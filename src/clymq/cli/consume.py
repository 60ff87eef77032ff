"""`clymq consume`: messages to stdout, shared with the other consumers of a group."""

from __future__ import annotations

import time
from typing import Final

import click

from clymq.cli.amounts import Amount
from clymq.cli.asking import Asker, client_command
from clymq.cli.messages import Write, writer
from clymq.cli.progress import progress
from clymq.client.consumer import AsyncConsumer
from clymq.types import Mode

PULL_MESSAGES_MAX: Final = 1000
PULL_SECONDS: Final = 1.0


@click.command()
@click.argument("topic")
@click.option("--group", default="default", show_default=True, help="Who shares the messages.")
@click.option(
    "--mode",
    type=click.Choice(["pull", "push"]),
    default="pull",
    show_default=True,
    help="Ask for messages, or have them sent.",
)
@click.option("--max", "messages_max", type=click.IntRange(min=0), metavar="N", help="End after so many messages.")
@click.option(
    "--wait",
    "wait_seconds",
    type=Amount(min=0),
    metavar="SECONDS",
    help="End after so long without a message; not given: go on until interrupted.",
)
@click.option(
    "--ack",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Ack what was printed, or nothing: then it is delivered again.",
)
@client_command
def consume(
    asker: Asker,
    topic: str,
    group: str,
    mode: str,
    messages_max: int | None,
    wait_seconds: float | None,
    ack: str,
) -> None:
    """Print the messages of TOPIC that the group has not finished, each to one of its consumers, and ack them.

    A message is acked when it is printed. What was leased and not printed goes back to the group at the end.
    """
    write = writer(as_json=asker.as_json)

    async def work() -> None:
        async with asker.consumer() as consumer:
            await consumer.subscribe(topic, mode=Mode.PTP_PUSH if mode == "push" else Mode.PTP_PULL, group=group)
            with progress(f"consume {topic} as {group}", messages_max) as report:
                left = messages_max
                while left is None or left > 0:
                    count = await _some(consumer, left or PULL_MESSAGES_MAX, wait_seconds, write, acks=ack == "auto")
                    if not count:
                        return
                    report(count)
                    left = None if left is None else left - count

    asker.run(work)


async def _some(
    consumer: AsyncConsumer, messages_max: int, wait_seconds: float | None, write: Write, *, acks: bool
) -> int:
    """Print the next messages and ack them; return how many there were before the wait was over."""
    until = None if wait_seconds is None else time.monotonic() + wait_seconds
    while True:
        left = PULL_SECONDS if until is None else min(PULL_SECONDS, max(0.0, until - time.monotonic()))
        messages = await consumer.pull(min(messages_max, PULL_MESSAGES_MAX), timeout=left)
        if len(messages):
            write(messages)
            if acks:
                await consumer.ack(messages)
            return len(messages)
        if until is not None and time.monotonic() >= until:
            return 0
