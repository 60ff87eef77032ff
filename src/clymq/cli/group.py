"""`clymq group`: where groups stand, and how they are set elsewhere; `clymq sub`: who has subscribed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import click

from clymq.cli.asking import Asker, client_command
from clymq.cli.printing import json_text, show_table
from clymq.cli.starts import START_METAVAR, start_of
from clymq.client.admin import AsyncAdmin
from clymq.errors import NotSubscribed
from clymq.types import Mode

GROUP_COLUMNS: Final = ("topic", "group", "partition", "cursor", "end", "lag")


@click.group()
def group() -> None:
    """Show and move groups of consumers."""


@group.command("list")
@click.option("--topic", default="", help="Only those of this topic; not given: of all.")
@client_command
def list_(asker: Asker, topic: str) -> None:
    """Show where every group stands, and how much it has before it."""

    async def ask(admin: AsyncAdmin) -> list[dict[str, Any]]:
        return await admin.groups(topic)

    _show(asker, asker.ask(ask))


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", required=True, help="The topic that it reads.")
@client_command
def describe(asker: Asker, name: str, topic: str) -> None:
    """Show where GROUP stands in each partition of a topic."""

    async def ask(admin: AsyncAdmin) -> list[dict[str, Any]]:
        return [each for each in await admin.groups(topic) if each["group"] == name]

    found = asker.ask(ask)
    if not found:
        raise NotSubscribed(f"{topic} has no group {name}", hint="clymq group list shows those that there are")
    _show(asker, found)


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--topic", required=True, help="The topic that it reads.")
@click.option("--partition", help="Only in this one; not given: in all.")
@click.option(
    "--to",
    required=True,
    callback=start_of,
    metavar=START_METAVAR,
    help="Where it goes on; a time without a zone is in that of this machine.",
)
@client_command
def reset(asker: Asker, name: str, topic: str, partition: str | None, to: str | int | datetime) -> None:
    """Let GROUP go on elsewhere in a topic; what it had acknowledged behind that place is forgotten."""

    async def ask(admin: AsyncAdmin) -> list[dict[str, Any]]:
        return await admin.reset_group(topic, name, to, partition=partition)

    _show(asker, asker.ask(ask))


@click.group()
def sub() -> None:
    """Show subscriptions."""


@sub.command("list")
@click.argument("topic", default="")
@client_command
def list_subscriptions(asker: Asker, topic: str) -> None:
    """Show who has subscribed to TOPIC, or to any."""

    async def ask(admin: AsyncAdmin) -> list[dict[str, Any]]:
        return await admin.subscriptions(topic)

    found = asker.ask(ask)
    if asker.as_json:
        click.echo(json_text({"subscriptions": found}))
        return
    rows = [
        (each["topic"], Mode(each["option"]).name, each["partition"] or "all", name, sorted(consumers))
        for each in found
        for name, consumers in sorted(each["groups"].items())
    ]
    if rows:
        show_table(("topic", "mode", "partition", "group", "consumers"), rows)


def _show(asker: Asker, groups: list[dict[str, Any]]) -> None:
    if asker.as_json:
        click.echo(json_text(groups))
    elif groups:
        show_table(GROUP_COLUMNS, [[each[column] for column in GROUP_COLUMNS] for each in groups])
