"""`clymq pull`: messages to stdout, without a group and without a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import click

from clymq.cli.asking import Asker, client_command
from clymq.cli.messages import Write, writer
from clymq.cli.progress import progress
from clymq.cli.starts import EARLIEST, LATEST, START_METAVAR, start_of
from clymq.client.admin import PartitionInfo
from clymq.client.consumer import AsyncConsumer
from clymq.client.messages import Messages, Run
from clymq.errors import PartitionUnset, UnknownPartition
from clymq.types import Ack

PULL_MESSAGES_MAX: Final = 10_000
PULL_SECONDS: Final = 1.0


@click.command()
@click.argument("topic")
@click.option("--partition", "names", multiple=True, help="Only this one, as often as you like; not given: all.")
@click.option(
    "--from",
    "start",
    default=EARLIEST,
    show_default=True,
    callback=start_of,
    metavar=START_METAVAR,
    help="Where to begin; a time without a zone is in that of this machine.",
)
@click.option("--max", "messages_max", type=click.IntRange(min=0), metavar="N", help="End after so many messages.")
@click.option("--follow", is_flag=True, help="Go on with what comes; not given: end at the end seen at the start.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["value", "json"]),
    default="value",
    show_default=True,
    help="One value a line, or one JSON document a line with all that a message has.",
)
@client_command
def pull(
    asker: Asker,
    topic: str,
    names: Sequence[str],
    start: str | int | datetime,
    messages_max: int | None,
    follow: bool,
    form: str,
) -> None:
    """Print the messages of TOPIC, partition by partition in order.

    Partitions whose state is not set are left out, unless they are named.
    """
    write = writer(as_json=asker.as_json or form == "json")

    async def work() -> None:
        async with asker.admin() as admin:
            partitions = _chosen(topic, (await admin.describe_topic(topic)).partitions, names)
        async with asker.consumer() as consumer:
            reading = [_begin(consumer, each, start) for each in partitions]
            ends = dict(zip([each.partition for each in partitions], await asyncio.gather(*reading), strict=True))
            await _read(consumer, topic, None if follow else ends, messages_max, write)

    asker.run(work)


def _chosen(topic: str, found: Sequence[PartitionInfo], names: Sequence[str]) -> list[PartitionInfo]:
    there = {each.partition: each for each in found}
    for name in names:
        if name not in there:
            raise UnknownPartition(f"{topic} has no partition {name}; it has {', '.join(there) or 'none'}")
    chosen = [there[name] for name in dict.fromkeys(names)] or [each for each in found if each.ack is not Ack.UNSET]
    unset = [each.partition for each in chosen if each.ack is Ack.UNSET]
    if unset or not chosen:
        raise PartitionUnset(
            f"nothing can be read from {topic}: {', '.join(unset) or 'no partition'} has its state set"
        )
    return chosen


async def _begin(consumer: AsyncConsumer, info: PartitionInfo, start: str | int | datetime) -> int:
    """Read a partition from where it was asked for; return where it ends now."""
    await consumer.assign(info.topic, info.partition, LATEST)
    end = await consumer.position(info.topic, info.partition)
    if start != LATEST:
        await consumer.seek(info.topic, info.partition, start)
    return end


async def _read(
    consumer: AsyncConsumer, topic: str, ends: dict[str, int] | None, messages_max: int | None, write: Write
) -> None:
    """Print until the ends, if there are any, or so many messages."""
    left = messages_max
    with progress(f"pull {topic}", messages_max) as report:
        while left is None or left > 0:
            if ends is not None and not [p for p, end in ends.items() if await consumer.position(topic, p) < end]:
                return
            messages = await consumer.pull(min(left or PULL_MESSAGES_MAX, PULL_MESSAGES_MAX), timeout=PULL_SECONDS)
            if ends is not None:
                messages = Messages([run for each in messages.runs for run in _before(each, ends)])
            if len(messages):
                write(messages)
                report(len(messages))
            left = None if left is None else left - len(messages)


def _before(run: Run, ends: dict[str, int]) -> list[Run]:
    """Return what of a run was there at the start, if anything."""
    end = min(run.end, ends[run.partition])
    return [replace(run, end=end)] if run.start < end else []
