"""Where reading begins: `earliest`, `latest`, an offset, or a time."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import click

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
START_METAVAR: Final = "earliest|latest|N|ISO-TIME"


def start_of(_context: click.Context, parameter: click.Parameter, value: str) -> str | int | datetime:
    """Return a word, an offset or a time; a time without a zone is in that of this machine."""
    if value in {EARLIEST, LATEST}:
        return value
    if value.isdecimal():
        return int(value)
    try:
        return datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        told = "is not earliest, latest, an offset or a time like 2026-01-31T12:00:00Z"
        raise click.BadParameter(f"{value!r} {told}", param=parameter) from None
