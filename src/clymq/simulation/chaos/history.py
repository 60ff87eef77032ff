"""A history as the checker wants it: the events of one partition at a time, in order of time.

Histories may be much larger than memory. They are split by partition, line by line, into files of their own; then only
one partition is held at a time. A line that was cut short by a kill can only be the last of its file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

from clymq.simulation.chaos.events import BadHistory, Event, parse

Place = tuple[str, str]
# More than these are open at once by nobody: the least recently used spool is closed and opened again.
_SPOOLS_MAX: Final = 128


class History:
    """The events of one or more files. `with`: what is spooled to disk is gone at the end."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._spools: dict[Place, Path] = {}
        self._stack = ExitStack()
        self.general: list[Event] = []
        """What concerns no partition: faults, notes."""
        self.lines = 0

    def __enter__(self) -> History:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clymq-history-")))
            with _Spools(folder) as spools:
                for path in self._paths:
                    self._split(path, spools)
                self._spools = spools.paths
            self.general.sort(key=lambda event: event.t)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def places(self) -> list[Place]:
        """All partitions that something is known of."""
        return sorted(self._spools)

    def partition(self, place: Place) -> list[Event]:
        """Return what happened to a partition, in order of time."""
        with self._spools[place].open("rb") as lines:
            events = [parse(line) for line in lines]
        events.sort(key=lambda event: event.t)
        return events

    def _split(self, path: Path, spools: _Spools) -> None:
        for number, line, is_last in _numbered(path):
            try:
                event = parse(line, f"{path.name}:{number}")
            except BadHistory:
                if is_last and not line.endswith(b"\n"):
                    return  # its writer was killed
                raise
            self.lines += 1
            if event.place is None:
                self.general.append(event)
            else:
                spools.write(event.place, line)


class _Spools:
    """One file per partition; few of them open."""

    def __init__(self, folder: Path) -> None:
        self.paths: dict[Place, Path] = {}
        self._folder = folder
        self._open: dict[Place, IO[bytes]] = {}

    def write(self, place: Place, line: bytes) -> None:
        file = self._open.pop(place, None)
        if file is None:
            if len(self._open) >= _SPOOLS_MAX:
                self._open.pop(next(iter(self._open))).close()
            path = self.paths.setdefault(place, self._folder / str(len(self.paths)))
            file = path.open("ab")
        self._open[place] = file  # the one used last is the last
        file.write(line if line.endswith(b"\n") else line + b"\n")

    def __enter__(self) -> _Spools:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()


def _numbered(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the lines of a file with their numbers, and whether it is the last."""
    with path.open("rb") as lines:
        before: bytes | None = None
        number = 0
        for number, line in enumerate(lines, 1):
            if before is not None:
                yield number - 1, before, False
            before = line
        if before is not None:
            yield number, before, True


def shown(event: Event, values_max: int = 4, about: Iterable[str] = ()) -> str:
    """Return an event as a line for people: long lists of values are cut, those that it is `about` stay."""
    wanted = set(about)
    values = [value for value in event.values if value in wanted] or event.values[:values_max]
    fields: dict[str, object] = dict(event.rest)
    if event.offset is not None:
        fields["offset"] = event.offset
    if event.values:
        left = len(event.values) - len(values)
        fields["values"] = [*values, f"and {left} more"] if left else values
    told = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
    return f"{event.t / 1e6:.6f} {event.by} {event.do} {told}"
