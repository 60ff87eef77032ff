"""`clymq dump`: what a file of batches holds, header by header, and where it is damaged. Reads only."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from clymq.config import GiB
from clymq.errors import CorruptBatch
from clymq.record.batch import Batch, Record
from clymq.record.layout import Kind
from clymq.storage.end import End
from clymq.storage.files import RealFiles
from clymq.storage.scan import Damage, Found, scan

COLUMNS = ("position", "bytes", "kind", "count", "base_offset", "term", "index", "codec", "cmdindex", "append_time")


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--messages", "messages_max", type=click.IntRange(min=0), default=0, help="Show the first N messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def dump(path: Path, messages_max: int, as_json: bool) -> int:
    """Print what a block folder or a batch file holds, batch by batch.

    Both checksums of every batch are checked, its body is opened, and it must follow on from the batch before. Exit
    code 1 if anything is damaged.
    """
    report = Report(messages_max)
    show = _as_json if as_json else _as_text
    file = RealFiles().open_to_read(str(path / "batches" if path.is_dir() else path))
    try:
        show(report, report.lines(scan(file, 0, file.size(), batch_bytes_max=GiB)))
    finally:
        file.close()
    return 0 if report.damaged_at is None else 1


@dataclass
class Report:
    """Turns what a scan finds into lines, and keeps count."""

    messages_left: int
    batches: int = 0
    messages: int = 0
    start: int | None = None
    end: int | None = None
    damaged_at: int | None = None
    _expected: End | None = field(default=None, repr=False)

    def lines(self, found: Iterator[Found | Damage]) -> Iterator[dict[str, Any]]:
        """Yield one line for each batch and each stretch of damage."""
        for item in found:
            line = self._batch(item) if isinstance(item, Found) else self._damage(item)
            if not line["ok"] and self.damaged_at is None:
                self.damaged_at = item.position
            yield line

    def summary(self) -> dict[str, Any]:
        """Return the figures of all lines so far."""
        names = ("batches", "messages", "start", "end", "damaged_at")
        return {name: getattr(self, name) for name in names}

    def _damage(self, damage: Damage) -> dict[str, Any]:
        self._expected = None
        line = dict.fromkeys(COLUMNS)
        problem = f"{damage.error.field}: {damage.error.problem}"
        return line | {
            "position": damage.position,
            "bytes": damage.end - damage.position,
            "ok": False,
            "problem": f"{problem}; the rest was not searched" if damage.given_up else problem,
        }

    def _batch(self, found: Found) -> dict[str, Any]:
        batch = found.batch
        problem = self._problem_of(found)
        self.batches += 1
        self.messages += batch.count
        self.start = batch.base_offset if self.start is None else self.start
        self.end = batch.end_offset
        line: dict[str, Any] = {name: getattr(batch, name, None) for name in COLUMNS}
        line |= {"position": found.position, "bytes": batch.length, "kind": Kind(batch.kind).name.lower()}
        line |= {"ok": problem is None, "problem": problem}
        if self.messages_left and batch.count and problem is None:
            shown = [_message(record) for record, _ in zip(batch, range(self.messages_left), strict=False)]
            self.messages_left -= len(shown)
            line["messages"] = shown
        return line

    def _problem_of(self, found: Found) -> str | None:
        batch = found.batch
        expected, self._expected = self._expected or _before(batch), _before(batch)
        self._expected.take(batch)
        try:
            expected.take(batch)
            if batch.kind == Kind.DATA:
                batch.to_arrow()
        except CorruptBatch as error:
            return f"{error.field}: {error.problem}"
        return None


def _before(batch: Batch) -> End:
    """Return the end that this batch follows on from, whatever was there."""
    end = End(batch.base_offset)
    end.index, end.term, end.append_time = batch.index - 1, batch.term, batch.append_time
    return end


def _as_json(report: Report, lines: Iterator[dict[str, Any]]) -> None:
    for line in lines:
        click.echo(json.dumps(line, ensure_ascii=False))
    click.echo(json.dumps({"summary": report.summary()}))


def _as_text(report: Report, lines: Iterator[dict[str, Any]]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    widths = (12, 10, 8, 8, 14, 6, 10, 6, 12, 18)
    click.echo("".join(name.rjust(width) for name, width in zip(COLUMNS, widths, strict=True)))
    for line in lines:
        cells = ("-" if line[name] is None else str(line[name]) for name in COLUMNS)
        row = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        if line["ok"]:
            click.echo(row)
        else:
            console.print(f"{row}  {line['problem']}", style="bold red", markup=False)
        for message in line.get("messages", ()):
            click.echo(f"    {json.dumps(message, ensure_ascii=False)}")
    total = report.summary()
    console.print(
        f"{total['batches']} batches, {total['messages']} messages, offsets [{total['start']}, {total['end']})",
        style="bold",
        markup=False,
    )
    if report.damaged_at is not None:
        console.print(f"damaged at {report.damaged_at}", style="bold red", markup=False)


def _message(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None if record.key is None else _text(record.key),
        "value": _text(record.value),
        "headers": [[key, None if value is None else _text(value)] for key, value in record.headers],
    }


def _text(data: bytes) -> str | dict[str, str]:
    """Return bytes as text where they are UTF-8, else in base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
