"""What commands print: JSON for programs, aligned columns for people, and bytes that may be anything."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

_CONTROLS = re.compile("[\\x7f-\\x9f]")
_CONTROLS_BUT_TABS = re.compile("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f]")


def text_of(data: bytes) -> str | dict[str, str]:
    """Show bytes as text if they are any, else in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_text(document: Any) -> str:
    """Return JSON as people read it; characters that would command the terminal are escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(document, ensure_ascii=False))


def harmless(text: str) -> str:
    """Return text for a terminal, with what would command it escaped."""
    return _CONTROLS_BUT_TABS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns as wide as what is in them, the headings in capitals."""
    lines = [[heading.upper() for heading in headings]]
    lines += [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return harmless(str(value)) or "-"
