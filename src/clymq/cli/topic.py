"""`clymq topic`: topics and their partitions are made, looked at, changed and deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from clymq.cli.asking import ACK_METAVAR, Asker, ack_of, client_command, pairs
from clymq.cli.printing import show_table
from clymq.cli.status import PARTITION_COLUMNS, partition_rows
from clymq.client.admin import PARTITIONS_MAX, AsyncAdmin, TopicInfo
from clymq.config import TOPIC_SETTINGS
from clymq.types import Ack

SETTINGS_HELP: Final = f"A setting of the topic, as often as you like: {', '.join(TOPIC_SETTINGS)}."
REPLICAS_HELP: Final = "How many brokers hold each block; not given: 3, or all where there are fewer."
ACK_HELP: Final = "When a push is acknowledged: a majority has it on disk, the leader has it, at once, or not yet."

_NUMBER: Final = re.compile(r"\s*[+-]?\d+\s*")
# Not longer than int() reads.
_PLAIN_NUMBER: Final = re.compile(r"[0-9]{1,100}")


def _partitions_of(_context: click.Context, parameter: click.Parameter, value: str) -> int | list[str]:
    """Return a number of partitions, or their names; who writes -1 has meant a number, and not a name."""
    if _PLAIN_NUMBER.fullmatch(value):
        return int(value)
    if _NUMBER.fullmatch(value):
        raise click.BadParameter(f"{value!r} must be from 0 to {PARTITIONS_MAX}, without a sign", param=parameter)
    names = value.split(",")
    if not all(names):
        raise click.BadParameter(f"{value!r} must be a number, or names of which none is empty", param=parameter)
    return names


@click.group()
def topic() -> None:
    """Make, show, change and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--partitions",
    default="1",
    show_default=True,
    callback=_partitions_of,
    metavar="N|a,b,c",
    help='How many, named "0", "1", ...; or their names.',
)
@click.option("--ack", default="quorum", show_default=True, callback=ack_of, metavar=ACK_METAVAR, help=ACK_HELP)
@click.option("--replicas", type=click.IntRange(min=1), help=REPLICAS_HELP)
@click.option("--set", "settings", multiple=True, callback=pairs, metavar="KEY=VALUE", help=SETTINGS_HELP)
@client_command
def create(
    asker: Asker,
    name: str,
    partitions: int | list[str],
    ack: Ack,
    replicas: int | None,
    settings: Sequence[tuple[str, str]],
) -> None:
    """Make the topic NAME with its partitions; what is there already stays as it is."""

    async def ask(admin: AsyncAdmin) -> TopicInfo:
        return await admin.create_topic(
            name, partitions=partitions, ack=ack, replicas=replicas, settings=dict(settings)
        )

    made = asker.ask(ask)
    names = ", ".join(each.partition for each in made.partitions)
    words = (
        f"topic {made.name} {'is made' if made.created else 'was there'}, id {made.id}, partitions {names or 'none'}"
    )
    document = {"topic": made.name, "id": made.id, "created": made.created, "partitions": _partitions(made)}
    asker.answer(document, words)


@topic.command("list")
@client_command
def list_(asker: Asker) -> None:
    """Show the names of all topics."""

    async def ask(admin: AsyncAdmin) -> list[str]:
        return await admin.list_topics()

    names = asker.ask(ask)
    if names or asker.as_json:
        asker.answer({"topics": names}, "\n".join(names))


@topic.command()
@click.argument("name")
@client_command
def describe(asker: Asker, name: str) -> None:
    """Show the topic NAME: its settings and its partitions."""

    async def ask(admin: AsyncAdmin) -> TopicInfo:
        return await admin.describe_topic(name)

    found = asker.ask(ask)
    settings = ", ".join(f"{key}={value}" for key, value in sorted(found.settings.items()))
    partitions = _partitions(found)
    document = {"topic": found.name, "id": found.id, "settings": found.settings, "partitions": partitions}
    asker.answer(document, f"topic {found.name}, id {found.id}, settings: {settings or 'the defaults'}")
    if not asker.as_json and partitions:
        show_table(PARTITION_COLUMNS[1:], partition_rows(partitions, PARTITION_COLUMNS[1:]))


@topic.command()
@click.argument("name")
@client_command
def delete(asker: Asker, name: str) -> None:
    """Delete the topic NAME with its messages."""

    async def ask(admin: AsyncAdmin) -> None:
        await admin.delete_topic(name)

    asker.ask(ask)
    asker.answer({"topic": name, "deleted": True}, f"topic {name} is deleted")


@topic.command("add-partition")
@click.argument("name")
@click.argument("partition")
@click.option("--ack", default="unset", show_default=True, callback=ack_of, metavar=ACK_METAVAR, help=ACK_HELP)
@click.option("--replicas", type=click.IntRange(min=1), help=REPLICAS_HELP)
@client_command
def add_partition(asker: Asker, name: str, partition: str, ack: Ack, replicas: int | None) -> None:
    """Make PARTITION in the topic NAME; until its state is set, by --ack or later, it takes nothing."""

    async def ask(admin: AsyncAdmin) -> bool:
        created = await admin.create_partition(name, partition)
        if ack is not Ack.UNSET:
            await admin.set_partition_state(name, partition, ack=ack, replicas=replicas)
        return created

    created = asker.ask(ask)
    words = f"partition {name}/{partition} {'is made' if created else 'was there'}"
    asker.answer({"topic": name, "partition": partition, "created": created}, words)


@topic.command()
@click.argument("name")
@click.option(
    "--set", "settings", multiple=True, required=True, callback=pairs, metavar="KEY=VALUE", help=SETTINGS_HELP
)
@client_command
def alter(asker: Asker, name: str, settings: Sequence[tuple[str, str]]) -> None:
    """Change settings of the topic NAME; those not named stay."""

    async def ask(admin: AsyncAdmin) -> dict[str, Any]:
        await admin.alter_topic(name, dict(settings))
        return (await admin.describe_topic(name)).settings

    now = asker.ask(ask)
    words = ", ".join(f"{key}={value}" for key, value in sorted(now.items()))
    asker.answer({"topic": name, "settings": now}, f"topic {name} has {words}")


@topic.command("set-state")
@click.argument("name")
@click.argument("partition")
@click.option("--ack", required=True, callback=ack_of, metavar=ACK_METAVAR, help=ACK_HELP)
@click.option(
    "--replicas", type=click.IntRange(min=1), help="How many brokers hold each block; not given: as many as now."
)
@client_command
def set_state(asker: Asker, name: str, partition: str, ack: Ack, replicas: int | None) -> None:
    """Choose how PARTITION of the topic NAME is replicated, while it is in use or before."""

    async def ask(admin: AsyncAdmin) -> str:
        return await admin.set_partition_state(name, partition, ack=ack, replicas=replicas)

    result = asker.ask(ask)
    asker.answer({"topic": name, "partition": partition, "result": result}, f"{name}/{partition}: {result}")


def _partitions(info: TopicInfo) -> list[dict[str, Any]]:
    """Return partitions as `status` has them."""
    return [asdict(each) for each in info.partitions]
