"""`clymq cluster`: where partitions are, moved by hand."""

from __future__ import annotations

from typing import Any

import click

from clymq.cli.asking import Asker, client_command
from clymq.client.admin import AsyncAdmin


@click.group()
def cluster() -> None:
    """Move partitions between brokers, and empty a broker."""


@cluster.command()
@click.argument("broker")
@client_command
def drain(asker: Asker, broker: str) -> None:
    """Move everything off BROKER; done when nothing needs it any more, and then it may be destroyed.

    Leaders are handed over, active blocks move, sealed ones are copied elsewhere. Interrupted or timed out, it goes on
    in the cluster; the same command shows how far it is.
    """

    async def ask(admin: AsyncAdmin) -> dict[str, int]:
        return await admin.drain(broker)

    progress = asker.ask(ask)
    words = f"{broker} is empty: {progress['moved']} blocks have left it"
    asker.answer({"broker": broker, **progress}, words)


@cluster.command()
@click.argument("broker")
@client_command
def undrain(asker: Asker, broker: str) -> None:
    """Let BROKER take blocks again; what has left it stays where it is."""

    async def ask(admin: AsyncAdmin) -> None:
        await admin.undrain(broker)

    asker.ask(ask)
    asker.answer({"broker": broker, "moved": 0, "remaining": 0}, f"{broker} takes blocks again")


@cluster.command()
@click.argument("topic")
@click.argument("partition")
@click.option("--to", required=True, metavar="A,B,C", help="The brokers that take it, the leader first.")
@client_command
def move(asker: Asker, topic: str, partition: str, to: str) -> None:
    """Move the active block of a partition to other brokers; what is sealed stays where it is."""
    brokers = [name for name in to.split(",") if name]
    if not brokers:
        raise click.UsageError(f"--to {to!r} names no broker")

    async def ask(admin: AsyncAdmin) -> tuple[int, int]:
        before = await _epoch(admin, topic, partition)
        await admin.move_partition(topic, partition, brokers)
        return before, await _epoch(admin, topic, partition)

    before, after = asker.ask(ask)
    moved = int(after != before)
    document = {"topic": topic, "partition": partition, "brokers": brokers, "moved": moved, "remaining": 0}
    asker.answer(document, f"{topic}/{partition} {'is now' if moved else 'was already'} on {', '.join(brokers)}")


@cluster.command("force-seal")
@click.argument("topic")
@click.argument("partition")
@click.option("--trust", required=True, metavar="BROKER", help="The replica whose end counts.")
@client_command
def force_seal(asker: Asker, topic: str, partition: str, trust: str) -> None:
    """End a block that has no majority at what one replica holds. What only the others held is LOST."""

    async def ask(admin: AsyncAdmin) -> dict[str, int]:
        return await admin.force_seal(topic, partition, trust=trust)

    sealed = asker.ask(ask)
    document: dict[str, Any] = {"topic": topic, "partition": partition, **sealed, "moved": 1, "remaining": 0}
    words = f"{topic}/{partition} ends at {sealed['end']}; at most {sealed['lost_messages_max']} messages are lost"
    asker.answer(document, words)


async def _epoch(admin: AsyncAdmin, topic: str, partition: str) -> int:
    """Return how often a partition has moved; -1 for one that is not there, which the move itself will refuse."""
    found = (await admin.describe_topic(topic)).partitions
    return next((each.epoch for each in found if each.partition == partition), -1)
