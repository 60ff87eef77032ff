"""How far long work is, and how fast: a line on stderr that is rewritten, if somebody looks at it.

Nothing is shown where stderr is no terminal, and never anything on stdout: that is for the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text


class Report(Protocol):
    """Hears of work that is done."""

    def __call__(self, messages: int, size_bytes: int = 0) -> None:
        """So many more messages, of so many bytes."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Report]:
    """Show how many of `total` messages are done; None: nobody knows how many there will be."""
    if not sys.stderr.isatty():
        yield _silent
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    columns += [BarColumn()] if total else []
    columns += [_Count(), _Rate(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5) as shown:
        task = shown.add_task(what, total=total, size_bytes=0)

        def report(messages: int, size_bytes: int = 0) -> None:
            shown.update(task, advance=messages, size_bytes=shown.tasks[0].fields["size_bytes"] + size_bytes)

        yield report


def _silent(messages: int, size_bytes: int = 0) -> None:
    pass


class _Count(ProgressColumn):
    """How many there are."""

    def render(self, task: Task) -> Text:
        """Return it."""
        of = f" of {task.total:,.0f}" if task.total else ""
        return Text(f"{task.completed:,.0f}{of} messages")


class _Rate(ProgressColumn):
    """How many a second, and how much."""

    def render(self, task: Task) -> Text:
        """Return it."""
        seconds = task.elapsed or 0.0
        if seconds <= 0.0:
            return Text("")
        size = f", {task.fields['size_bytes'] / seconds / 1e6:,.1f} MB/s" if task.fields["size_bytes"] else ""
        return Text(f"{task.completed / seconds:,.0f}/s{size}")
