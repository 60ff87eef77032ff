"""`clymq dlq`: messages that were given up, and another try for them.

What is sent again is remembered by a group of its own in the dead-letter topic: it is not listed any more, and not sent
twice. (Killed between the push and the ack, a message may be sent again all the same.) A letter that was too large and
is cut is read anew from where it came.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import click

from clymq.cli.asking import Asker, client_command
from clymq.cli.messages import document_of
from clymq.cli.printing import harmless, json_text, show_table
from clymq.cli.progress import progress
from clymq.client.admin import AsyncAdmin
from clymq.client.consumer import AsyncConsumer
from clymq.client.messages import Message
from clymq.client.producer import AsyncProducer
from clymq.clock import SystemClock, pause
from clymq.errors import PartitionUnset, UnknownTopic

RESENT_GROUP: Final = "clymq-resend"
OURS: Final = "clymq-"
CUT: Final = "clymq-cut"
PULL_SECONDS: Final = 1.0
SHOWN_MAX: Final = 40
# A busy cluster takes seconds to give a partition its state.
UNSET_TRIES: Final = 100
UNSET_PAUSE_MS: Final = 100


@click.group()
def dlq() -> None:
    """Show dead letters, and send them again."""


@dlq.command("list")
@click.argument("topic")
@client_command
def list_(asker: Asker, topic: str) -> None:
    """Show the dead letters of TOPIC that were not sent again: what they are, and why they were given up."""

    async def work() -> list[dict[str, Any]]:
        async with asker.admin() as admin:
            starts = await _starts(admin, topic)
        async with asker.consumer() as consumer:
            return [_document(message) for message in await _read(consumer, f"{topic}.dlq", starts)]

    found = asker.run(work)
    if asker.as_json:
        click.echo(json_text({"topic": topic, "messages": found}))
    elif found:
        columns = ("partition", "offset", "group", "deliveries", "reason")
        rows = [[*(each[column] for column in columns), _short(each["value"])] for each in found]
        show_table((*columns, "value"), rows)


@dlq.command()
@click.argument("topic")
@click.option("--max", "messages_max", type=click.IntRange(min=0), metavar="N", help="No more than so many.")
@client_command
def resend(asker: Asker, topic: str, messages_max: int | None) -> None:
    """Push the dead letters of TOPIC to where they came from, oldest first."""

    async def work() -> int:
        async with asker.admin() as admin:
            if not await _starts(admin, topic):
                return 0
        async with asker.producer() as producer, asker.consumer() as consumer, asker.consumer() as reader:
            await consumer.subscribe(f"{topic}.dlq", group=RESENT_GROUP)
            return await _resend(producer, consumer, reader, topic, messages_max)

    count = asker.run(work)
    asker.answer({"topic": topic, "resent": count}, f"{count} messages were sent again to {topic}")


async def _starts(admin: AsyncAdmin, topic: str) -> dict[str, int]:
    """Return where the dead letters begin that were not sent again; empty: there never was any."""
    await admin.describe_topic(topic)
    try:
        found = await admin.describe_topic(f"{topic}.dlq")
    except UnknownTopic:
        return {}
    starts = {each.partition: each.start for each in found.partitions}
    for each in await admin.groups(f"{topic}.dlq"):
        if each["group"] == RESENT_GROUP:
            starts[each["partition"]] = max(starts[each["partition"]], each["cursor"])
    return starts


async def _read(consumer: AsyncConsumer, topic: str, starts: dict[str, int]) -> list[Message]:
    """Read what there is now."""
    messages: list[Message] = []
    if not starts:
        return messages
    ends = await _ends(consumer, topic)
    for partition, start in starts.items():
        if start < ends.get(partition, 0):
            await consumer.assign(topic, partition, start)
    left = {partition for partition, start in starts.items() if start < ends.get(partition, 0)}
    while left:
        messages += await consumer.pull(timeout=PULL_SECONDS)
        left = {partition for partition in left if await consumer.position(topic, partition) < ends[partition]}
    return sorted(messages, key=lambda message: (message.partition, message.offset))


async def _ends(consumer: AsyncConsumer, topic: str) -> dict[str, int]:
    """Return where the partitions end; one that a broker is just making for its first letter has no state yet."""
    for _ in range(UNSET_TRIES):
        with suppress(PartitionUnset):
            return await consumer.end_offsets(topic)
        await pause(SystemClock(), UNSET_PAUSE_MS)
    return await consumer.end_offsets(topic)


async def _resend(
    producer: AsyncProducer, consumer: AsyncConsumer, reader: AsyncConsumer, topic: str, messages_max: int | None
) -> int:
    """Send until there are no more, or so many; each is acked when it is stored."""
    count = 0
    with progress(f"resend {topic}", messages_max) as report:
        while messages_max is None or count < messages_max:
            messages = await consumer.pull(1000 if messages_max is None else messages_max - count, timeout=PULL_SECONDS)
            if not len(messages):
                break
            for letter in messages:
                message = await _whole(reader, topic, letter)
                headers = [pair for pair in message.headers if not pair[0].startswith(OURS)]
                await producer.push(
                    topic,
                    message.value,
                    key=message.key,
                    headers=headers,
                    partition=message.partition,
                    timestamp=message.timestamp,
                )
                await consumer.ack(letter)
                count += 1
                report(1)
    return count


async def _whole(reader: AsyncConsumer, topic: str, letter: Message) -> Message:
    """Return the message as it was: of a letter that was cut, from where it came."""
    headers = dict(letter.headers)
    if CUT not in headers:
        return letter
    await reader.assign(topic, letter.partition, int(headers["clymq-offset"] or b""))
    while not len(messages := await reader.pull(1, timeout=PULL_SECONDS)):
        continue  # what is gone is an error, and the command has its time
    return next(iter(messages))


def _document(message: Message) -> dict[str, Any]:
    headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers}
    return {
        **document_of(message),
        "reason": headers.get("clymq-reason", ""),
        "group": headers.get("clymq-group", ""),
        "deliveries": int(headers.get("clymq-deliveries") or 0),
        "original_offset": int(headers.get("clymq-offset") or -1),
        "original_bytes": int(headers[CUT]) if CUT in headers else len(message.value),
    }


def _short(value: object) -> str:
    text = harmless(value) if isinstance(value, str) else "(bytes)"
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 3]}..."
