"""Messages on stdout: one value a line, or one JSON document a line with all that a message has."""

from __future__ import annotations

import sys
from typing import Protocol

import click

from clymq.cli.printing import harmless, json_text, text_of
from clymq.client.messages import Message, Messages


class Write(Protocol):
    """Prints messages."""

    def __call__(self, messages: Messages) -> None:
        """Print these."""


def writer(*, as_json: bool) -> Write:
    """Return what prints messages, and has done so when it returns."""
    return _write_json if as_json else _write_values


def document_of(message: Message) -> dict[str, object]:
    """Return a message as JSON has it: bytes as text where they are UTF-8, else in base64."""
    return message._asdict() | {
        "key": None if message.key is None else text_of(message.key),
        "value": text_of(message.value),
        "headers": [[key, None if value is None else text_of(value)] for key, value in message.headers],
    }


def _write_values(messages: Messages) -> None:
    if sys.stdout.isatty():
        for message in messages:
            click.echo(harmless(message.value.decode(errors="backslashreplace")))
    else:
        sys.stdout.buffer.writelines(message.value + b"\n" for message in messages)
    sys.stdout.flush()


def _write_json(messages: Messages) -> None:
    sys.stdout.writelines(json_text(document_of(message)) + "\n" for message in messages)
    sys.stdout.flush()
