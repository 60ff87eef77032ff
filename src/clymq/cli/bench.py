"""`clymq bench`: what this cluster does, measured from here with one client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from clymq.cli.asking import Asker, ack_of, client_command
from clymq.cli.printing import json_text, show_table
from clymq.cli.progress import progress
from clymq.client.admin import AsyncAdmin
from clymq.errors import BufferFull, MessageTooLarge
from clymq.types import Ack

PULL_MESSAGES: Final = 10_000
PULL_SECONDS: Final = 1.0
Row = dict[str, Any]
T = TypeVar("T")


@click.group()
def bench() -> None:
    """Measure a cluster: how much goes in and out, and how long a push takes."""


def _options(messages: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        ack_help = "How the topic is replicated, if it has to be made: quorum, leader or none."
        for option in (
            click.option("--ack", default="quorum", show_default=True, callback=ack_of, help=ack_help),
            click.option("--size", type=click.IntRange(min=1), default=100, show_default=True, help="Bytes of each."),
            click.option(
                "--messages", type=click.IntRange(min=1), default=messages, show_default=True, help="How many."
            ),
            click.option(
                "--topic", help="Not given: bench-quorum, bench-leader or bench-none; made if it is not there."
            ),
        ):
            command = option(command)
        return command

    return decorate


@bench.command()
@_options(messages=1_000_000)
@client_command
def produce(asker: Asker, topic: str | None, messages: int, size: int, ack: Ack) -> None:
    """Send messages one by one, as fast as they are taken, until all are stored."""
    name = topic or f"bench-{ack.name.lower()}"
    value = _message(asker, size)

    async def work() -> float:
        async with asker.admin() as admin:
            await _make(admin, name, ack)
        async with asker.producer() as producer:
            await producer.push(name, value)
            began = time.perf_counter()
            with progress(f"produce {name}", messages) as report:
                sent = told = 0
                while sent < messages:
                    try:
                        producer.send(name, value)
                        sent += 1
                    except BufferFull:
                        await producer.drain()
                        report(sent - told, (sent - told) * size)
                        told = sent
                await producer.flush()
            return time.perf_counter() - began

    seconds = asker.run(work)
    _answer(asker, _throughput("produce", messages, size, seconds))


@bench.command()
@_options(messages=1_000_000)
@client_command
def consume(asker: Asker, topic: str | None, messages: int, size: int, ack: Ack) -> None:  # noqa: ARG001 of all
    """Read messages from the beginning, as tables and as Python objects; `bench produce` makes some."""
    name = topic or f"bench-{ack.name.lower()}"

    async def read(*, as_objects: bool) -> tuple[int, int, float]:
        count = size_bytes = 0
        async with asker.consumer() as consumer:
            wanted = min(messages, sum((await consumer.end_offsets(name)).values()))
            for partition in await consumer.end_offsets(name):
                await consumer.assign(name, partition)
            began = time.perf_counter()
            with progress(f"consume {name}", wanted) as report:
                while count < wanted:
                    pulled = await consumer.pull(PULL_MESSAGES, timeout=PULL_SECONDS)
                    some = (
                        sum(len(each.value) for each in pulled)
                        if as_objects
                        else pulled.to_arrow().column("value").nbytes
                    )
                    count += len(pulled)
                    size_bytes += some
                    report(len(pulled), some)
            return count, size_bytes, time.perf_counter() - began

    rows: list[Row] = []
    for what, as_objects in (("to Arrow", False), ("to Python", True)):
        count, size_bytes, seconds = asker.run(lambda as_objects=as_objects: read(as_objects=as_objects))  # type: ignore[misc]
        rows += _throughput(f"consume {what}", count, size_bytes / max(1, count), seconds)
    _answer(asker, rows)


@bench.command()
@_options(messages=1000)
@client_command
def latency(asker: Asker, topic: str | None, messages: int, size: int, ack: Ack) -> None:
    """Push messages one after the other, each when the one before is stored."""
    name = topic or f"bench-{ack.name.lower()}"
    value = _message(asker, size)

    async def work() -> list[float]:
        async with asker.admin() as admin:
            await _make(admin, name, ack)
        times: list[float] = []
        async with asker.producer(linger_ms=0) as producer:
            await producer.push(name, value)
            with progress(f"latency {name}", messages) as report:
                for _ in range(messages):
                    began = time.perf_counter()
                    await producer.push(name, value)
                    times.append((time.perf_counter() - began) * 1000)
                    report(1, size)
        return sorted(times)

    times = asker.run(work)
    _answer(
        asker, [{"name": f"push {rank}", "unit": "ms", "value": _at(times, rank)} for rank in ("p50", "p99", "p99.9")]
    )


def _message(asker: Asker, size: int) -> bytes:
    """Return a message of so many bytes; whether the topic takes it is the topic's to say."""
    limit = asker.config.batch_bytes_max
    if size > limit:
        problem = f"--size {size}: no message is larger than batch_bytes_max = {limit}"
        raise MessageTooLarge(problem, size_bytes=size, limit_bytes=limit)
    return bytes(size)


async def _make(admin: AsyncAdmin, topic: str, ack: Ack) -> None:
    """Make the topic if it is not there; one that is stays as it is."""
    if topic not in await admin.list_topics():
        await admin.create_topic(topic, ack=ack)


def _throughput(name: str, count: int, size: float, seconds: float) -> list[Row]:
    seconds = max(seconds, 1e-9)
    return [
        {"name": name, "unit": "messages/s", "value": round(count / seconds)},
        {"name": name, "unit": "MB/s", "value": round(count * size / seconds / 1e6, 3)},
    ]


def _at(times: Sequence[float], rank: str) -> float:
    share = float(rank.removeprefix("p")) / 100
    return round(times[min(len(times) - 1, int(len(times) * share))], 3)


def _answer(asker: Asker, rows: list[Row]) -> None:
    if asker.as_json:
        click.echo(json_text({"rows": rows}))
    else:
        show_table(("name", "value", "unit"), [(row["name"], f"{row['value']:,}", row["unit"]) for row in rows])
