"""`clymq dump`: what a file of batches holds, header by header, and where it is damaged. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from clymq.cli.printing import json_text, text_of
from clymq.errors import CorruptBatch, CorruptBlock, InvalidRequest
from clymq.record.batch import Batch, Record
from clymq.record.layout import Kind
from clymq.storage.checkpoint import Checkpoint, read_checkpoint
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

    Both checksums of every batch are checked, its body is opened, and it must follow on from the batch before. A block
    must also hold everything that its checkpoint knows of. Exit code 1 if anything is damaged or missing.
    """
    block = path.is_dir()
    batches = path / "batches" if block else path
    if not batches.is_file():
        raise InvalidRequest(f"{path}: there is neither a block folder nor a batch file")
    files = RealFiles()
    report = Report(messages_max, _read_promise(files, path) if block else None)
    file = files.open_to_read(str(batches))
    try:
        show = _as_json if as_json else _as_text
        show(report, report.lines(scan(file, 0, file.size()), file.size()))
    finally:
        file.close()
    return 0 if report.damaged_at is None else 1


def _read_promise(files: RealFiles, folder: Path) -> Checkpoint | CorruptBlock:
    """Return a block's checkpoint, which knows how much must be there, or what is wrong with it."""
    path = str(folder / "checkpoint")
    try:
        return read_checkpoint(files, path) or CorruptBlock(path, 0, "the checkpoint is missing")
    except CorruptBlock as error:
        return error


@dataclass
class Report:
    """Turns what a scan finds into lines, and keeps count."""

    messages_left: int
    promise: Checkpoint | CorruptBlock | None = None
    batches: int = 0
    messages: int = 0
    start: int | None = None
    end: int | None = None
    last_index: int = 0
    damaged_at: int | None = None
    _expected: End | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.promise, Checkpoint):
            self._expected = End(self.promise.start_offset)

    def lines(self, found: Iterator[Found | Damage], size: int) -> Iterator[dict[str, Any]]:
        """Yield one line for each batch and each stretch of damage, and one for what a block lacks."""
        for item in found:
            line = self._batch(item) if isinstance(item, Found) else self._damage(item)
            yield self._noted(line)
        missing = self._missing()
        if missing is not None:
            yield self._noted(_line(size, 0, missing))

    def _noted(self, line: dict[str, Any]) -> dict[str, Any]:
        if not line["ok"] and self.damaged_at is None:
            self.damaged_at = line["position"]
        return line

    def _missing(self) -> str | None:
        """Say what the checkpoint knows was there and is not."""
        if isinstance(self.promise, CorruptBlock):
            return f"checkpoint: {self.promise.problem}"
        if self.promise is not None and self.last_index < self.promise.commit_index:
            return f"index: ends at {self.last_index}; entries up to {self.promise.commit_index} were committed"
        return None

    def summary(self) -> dict[str, Any]:
        """Return the figures of all lines so far."""
        names = ("batches", "messages", "start", "end", "damaged_at")
        return {name: getattr(self, name) for name in names}

    def _damage(self, damage: Damage) -> dict[str, Any]:
        self._expected = None
        problem = f"{damage.error.field}: {damage.error.problem}"
        if damage.given_up:
            problem += "; the rest was not searched"
        return _line(damage.position, damage.end - damage.position, problem)

    def _batch(self, found: Found) -> dict[str, Any]:
        batch = found.batch
        problem = self._problem_of(batch)
        self.batches += 1
        self.messages += batch.count
        self.start = batch.base_offset if self.start is None else self.start
        self.end, self.last_index = batch.end_offset, batch.index
        line = _line(found.position, batch.length, problem, batch)
        if self.messages_left and batch.count and problem is None:
            shown = [_message(record) for record, _ in zip(batch, range(self.messages_left), strict=False)]
            self.messages_left -= len(shown)
            line["messages"] = shown
        return line

    def _problem_of(self, batch: Batch) -> str | None:
        expected = self._expected or _before(batch)
        self._expected = _before(batch)
        self._expected.take(batch)
        try:
            expected.take(batch)
            if batch.kind == Kind.DATA:
                batch.to_arrow()
        except CorruptBatch as error:
            return f"{error.field}: {error.problem}"
        return None


def _line(position: int, length: int, problem: str | None, batch: Batch | None = None) -> dict[str, Any]:
    """Return one line of the report; what is not a batch has no fields of one."""
    line: dict[str, Any] = dict.fromkeys(COLUMNS)
    if batch is not None:
        line["kind"] = Kind(batch.kind).name.lower()
        line |= {name: getattr(batch, name) for name in COLUMNS[3:]}
    return line | {"position": position, "bytes": length, "ok": problem is None, "problem": problem}


def _before(batch: Batch) -> End:
    """Return the end that this batch follows on from, whatever was there."""
    end = End(batch.base_offset)
    end.index, end.term, end.append_time = batch.index - 1, batch.term, batch.append_time
    return end


def _as_json(report: Report, lines: Iterator[dict[str, Any]]) -> None:
    for line in lines:
        click.echo(json_text(line))
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
            click.echo(f"    {json_text(message)}")
    total = report.summary()
    offsets = f", offsets [{total['start']}, {total['end']})" if total["batches"] else ""
    console.print(f"{total['batches']} batches, {total['messages']} messages{offsets}", style="bold", markup=False)
    if report.damaged_at is not None:
        console.print(f"damaged at {report.damaged_at}", style="bold red", markup=False)


def _message(record: Record) -> dict[str, Any]:
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None if record.key is None else text_of(record.key),
        "value": text_of(record.value),
        "headers": [[key, None if value is None else text_of(value)] for key, value in record.headers],
    }
