"""`clymq status`: how the cluster is, as the active zkserver sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from clymq.cli.asking import Asker, client_command
from clymq.cli.printing import json_text, show_table
from clymq.client.admin import AsyncAdmin
from clymq.types import Ack

PARTITION_COLUMNS: Final = ("topic", "partition", "ack", "leader", "replicas", "online", "blocks", "start", "end")
_COLUMNS: Final = {
    "zkservers": ("name", "address", "active"),
    "brokers": (
        "name",
        "address",
        "online",
        "draining",
        "power",
        "cpu",
        "disk_io",
        "disk_free_bytes",
        "partitions",
        "leaders",
    ),
    "partitions": (*PARTITION_COLUMNS, "lost_messages"),
    "groups": ("topic", "group", "partition", "cursor", "end", "lag"),
}


@click.command()
@click.option("--check", is_flag=True, help="Exit code 1 if a partition has no leader or misses a replica.")
@client_command
def status(asker: Asker, check: bool) -> int:
    """Show zkservers, brokers, partitions and groups.

    Ends and cursors are what brokers told last, about a second ago. With --check, partitions in state unset are left
    out: they are to have no leader.
    """

    async def ask(admin: AsyncAdmin) -> dict[str, Any]:
        return await admin.status()

    found = asker.ask(ask)
    if asker.as_json:
        click.echo(json_text(found))
    else:
        _show(found)
    problems = [problem for each in found["partitions"] for problem in problems_of(each)] if check else []
    if problems:
        click.echo(f"error: {'; '.join(problems)} [CheckFailed]", err=True)
    return 1 if problems else 0


def problems_of(partition: Mapping[str, Any]) -> list[str]:
    """Say what a partition lacks."""
    if partition["ack"] == Ack.UNSET:
        return []
    name = f"{partition['topic']}/{partition['partition']}"
    missing = [broker for broker in partition["replicas"] if broker not in partition["online"]]
    found = [f"{name} misses {', '.join(missing)}"] if missing else []
    if not partition["leader"]:
        found.append(f"{name} has no leader")
    elif partition["leader"] in missing:
        found.append(f"{name} has no leader but {partition['leader']}, which is offline")
    return found


def partition_rows(partitions: list[dict[str, Any]], columns: tuple[str, ...]) -> list[list[object]]:
    """Return what a table shows of partitions."""
    return [[_shown(each, column) for column in columns] for each in partitions]


def _shown(row: Mapping[str, Any], column: str) -> object:
    value = row[column]
    if column == "ack":
        return Ack(value).name.lower()
    return f"{value:.2f}" if isinstance(value, float) else value


def _show(found: dict[str, Any]) -> None:
    for index, (kind, columns) in enumerate(_COLUMNS.items()):
        if not found[kind]:
            continue
        if index:
            click.echo()
        click.echo(f"{kind}:")
        show_table(columns, partition_rows(found[kind], columns))
