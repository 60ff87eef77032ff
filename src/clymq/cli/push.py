"""`clymq push`: messages from the command line, from a file or from a pipe, line by line."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import click

from clymq.cli.amounts import Amount
from clymq.cli.asking import Asker, client_command, pairs
from clymq.cli.progress import Report, progress
from clymq.client.producer import AsyncProducer
from clymq.client.receipts import Receipts
from clymq.config import MiB
from clymq.errors import MessageTooLarge

# What is on its way at once; the next are read when these are stored.
MESSAGES_AT_ONCE_MAX: Final = 10_000
READ_BYTES: Final = MiB
# With --rate messages leave in steps of this.
STEP_SECONDS: Final = 0.05


@click.command()
@click.argument("topic")
@click.argument("value", required=False)
@click.option("--partition", help="Where they go; not given: by their key, or to all in turn.")
@click.option("--key", help="The key of each.")
@click.option(
    "--header", "headers", multiple=True, callback=pairs, metavar="K=V", help="A header of each, as often as you like."
)
@click.option("--file", "file", type=click.File("rb"), help="A message for each line of this file; -: of stdin.")
@click.option("--count", type=click.IntRange(min=1), help="VALUE so many times; not given: once.")
@click.option("--rate", type=Amount(min=0, min_open=True), metavar="PER-SECOND", help="No more than so many a second.")
@client_command
def push(
    asker: Asker,
    topic: str,
    value: str | None,
    partition: str | None,
    key: str | None,
    headers: Sequence[tuple[str, str]],
    file: BinaryIO | None,
    count: int | None,
    rate: float | None,
) -> None:
    """Push VALUE, or each line of a file, to TOPIC, and wait until all are stored."""
    if (value is None) == (file is None):
        raise click.UsageError("give either a VALUE or --file")
    if file is not None and count is not None:
        raise click.UsageError("--count goes with a VALUE, not with --file")
    with_each = _WithEach(
        None if key is None else os.fsencode(key), tuple((name, os.fsencode(text)) for name, text in headers)
    )
    at_once = MESSAGES_AT_ONCE_MAX if rate is None else min(MESSAGES_AT_ONCE_MAX, max(1, round(rate * STEP_SECONDS)))

    async def work() -> _Stored:
        if file is not None:
            source = lines_of(file.fileno(), asker.config.message_bytes_max)
        else:
            source = _copies(os.fsencode(value or ""), count or 1)
        with progress(f"push {topic}", None if file is not None else count or 1) as report:
            async with asker.producer() as producer:
                return await _push_all(producer, topic, partition, source, with_each, at_once, rate, report)

    stored = asker.run(work)
    document = {
        "topic": topic,
        "messages": stored.messages,
        "seconds": round(stored.seconds, 6),
        "partitions": stored.partitions,
    }
    where = ", ".join(f"{name} [{at['first']}, {at['last']}]" for name, at in sorted(stored.partitions.items()))
    asker.answer(document, f"{stored.messages} messages in {stored.seconds:.3f} s: {where or 'nothing to push'}")


@dataclass(frozen=True)
class _WithEach:
    """What all messages of one command have."""

    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    def columns(self, count: int) -> dict[str, Any]:
        """Return it for so many messages."""
        columns: dict[str, Any] = {}
        if self.key is not None:
            columns["keys"] = [self.key] * count
        if self.headers:
            columns["headers"] = [self.headers] * count
        return columns


@dataclass
class _Stored:
    """What was stored, and where: the first and last offset in each partition, null where nobody was told."""

    messages: int = 0
    seconds: float = 0.0
    partitions: dict[str, dict[str, int | None]] = field(default_factory=dict)

    def add(self, receipts: Receipts) -> None:
        """Count some more."""
        self.messages += receipts.count
        for partition, first, count in receipts.ranges:
            last = None if first is None else first + count - 1
            at = self.partitions.setdefault(partition, {"first": first, "last": last})
            if first is not None and last is not None:
                at["first"] = first if at["first"] is None else min(at["first"], first)
                at["last"] = last if at["last"] is None else max(at["last"], last)


async def _push_all(
    producer: AsyncProducer,
    topic: str,
    partition: str | None,
    source: AsyncIterator[list[bytes]],
    with_each: _WithEach,
    at_once: int,
    rate: float | None,
    report: Report,
) -> _Stored:
    stored = _Stored()
    began = time.monotonic()
    async for values in source:
        for some in _cut(values, at_once):
            columns = with_each.columns(len(some))
            stored.add(await producer.push_many(topic, some, partition=partition, **columns))
            report(len(some), sum(map(len, some)))
            if rate is not None:
                await asyncio.sleep(max(0.0, began + stored.messages / rate - time.monotonic()))
    stored.seconds = time.monotonic() - began
    return stored


def _cut(values: list[bytes], size: int) -> Iterator[list[bytes]]:
    return (values[start : start + size] for start in range(0, len(values), size))


async def _copies(value: bytes, count: int) -> AsyncIterator[list[bytes]]:
    while count:
        some = min(count, MESSAGES_AT_ONCE_MAX)
        yield [value] * some
        count -= some


async def lines_of(file: int, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of an open file as they come, several at a time; the last may have no end."""
    rest = b""
    while True:
        await _readable(file)
        data = os.read(file, READ_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        if not data:
            if rest:
                yield [rest]
            return
        if len(rest) > line_bytes_max:
            raise MessageTooLarge(
                f"a line is longer than message_bytes_max = {line_bytes_max}",
                size_bytes=len(rest),
                limit_bytes=line_bytes_max,
            )
        if lines:
            yield lines


async def _readable(file: int) -> None:
    """Wait until a read does not block, so that an interrupt is heard meanwhile."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except PermissionError:
        return  # a file on a disk, which nobody can wait for
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
