"""The commands by name, each loaded when it is asked for.

A server is started more often than help is asked for, and most of what the other commands need (the client, tables,
progress) is nothing to it: loading all of them took as long again as loading what one needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import click

# Where each is: a module beside this one, in which it has its own name.
_MODULES: Final[Mapping[str, str]] = {
    "bench": "bench",
    "broker": "broker",
    "call": "call",
    "cluster": "cluster",
    "completion": "completion",
    "consume": "consume",
    "dlq": "dlq",
    "dump": "dump",
    "group": "group",
    "pipeline": "pipeline",
    "pull": "pull",
    "push": "push",
    "status": "status",
    "sub": "group",
    "topic": "topic",
    "up": "up",
    "zkserver": "zkserver",
    "zookeeper": "zookeeper",
}


class Commands(click.Group):
    """A group whose commands are in `_MODULES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted({*_MODULES, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded by now; None if there is none of this name."""
        if cmd_name not in self.commands and cmd_name in _MODULES:
            module = import_module(f"clymq.cli.{_MODULES[cmd_name]}")
            self.add_command(vars(module)[cmd_name])
        return super().get_command(ctx, cmd_name)

    def load_all(self) -> Mapping[str, click.Command]:
        """Return all commands by name."""
        context = click.Context(self)
        return {name: found for name in _MODULES if (found := self.get_command(context, name)) is not None}
