"""Where reading begins: `earliest`, `latest`, an offset, or a time.

By time means at the first message whose timestamp is not before it. A leader stamps each batch with the time of its
append, which never falls; the timestamps of messages are their producers'. So batches are searched by halves for the
first that was appended at the time or later, and from there on messages one after the other. A message that claims to
be from the future of its own append may be missed, no other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

from clymq.client.consumer import AsyncConsumer
from clymq.client.messages import Run

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
SEARCH_MESSAGES: Final = 10_000


def start_of(_context: click.Context, parameter: click.Parameter, value: str) -> str | int | datetime:
    """Return a word, an offset or a time; a time without a zone is in that of this machine."""
    if value in {EARLIEST, LATEST}:
        return value
    if value.isdecimal():
        return int(value)
    try:
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        told = "is not earliest, latest, an offset or a time like 2026-01-31T12:00:00Z"
        raise click.BadParameter(f"{value!r} {told}", param=parameter) from None


def microseconds(time: datetime) -> int:
    """Return a time as messages have it."""
    whole = time.replace(microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + time.microsecond


async def offset_at(consumer: AsyncConsumer, topic: str, partition: str, time_us: int, *, start: int, end: int) -> int:
    """Return the first offset in [start, end) whose message is not from before a time; `end` if there is none."""
    low, high = start, end
    while low < high:
        batch = (await _read(consumer, topic, partition, (low + high) // 2, 1)).batch
        if batch.append_time < time_us:
            low = batch.end_offset
        else:
            high = max(low, batch.base_offset)
    while low < end:
        run = await _read(consumer, topic, partition, low, SEARCH_MESSAGES)
        for at, timestamp in enumerate(run.columns().column("timestamp").to_pylist()):
            if timestamp >= time_us:
                return min(run.start + at, end)
        low = run.end
    return end


async def _read(consumer: AsyncConsumer, topic: str, partition: str, offset: int, messages_max: int) -> Run:
    """Read at an offset that is there; the consumer reads nothing else."""
    if await consumer.position(topic, partition) != offset:
        await consumer.seek(topic, partition, offset)
    while True:
        runs = (await consumer.pull(messages_max)).runs
        if runs:
            return runs[0]
