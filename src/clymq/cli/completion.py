"""`clymq completion`: what a shell needs to complete commands and flags."""

from __future__ import annotations

import os
from typing import Final

import click
from click.shell_completion import get_completion_class, shell_complete

VARIABLE: Final = "_CLYMQ_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands, flags and their values.

    Bash: eval "$(clymq completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc; fish: clymq completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "clymq", VARIABLE).source())


def asked_to_complete() -> bool:
    """Whether a shell has started us to complete what somebody is typing."""
    return bool(os.environ.get(VARIABLE))


def complete(command: click.Command) -> int:
    """Answer the shell; return the exit code."""
    return shell_complete(command, {}, "clymq", VARIABLE, os.environ[VARIABLE])
