"""The history of a run: one event per line of JSON, written by many processes, judged by the checker.

Every event has `t` (microseconds of the machine's monotonic clock, the same for all processes), `by` (who saw it) and
`do` (what it was). What concerns a partition names `topic` and `partition`. docs/testing.md has the table.

A line is on its way to the file BEFORE what it announces is done, and after what it reports has happened, so that a
process which is killed in between leaves a question open and never a lie.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

# What each kind of event must have beside t, by and do; True: it concerns a partition.
KINDS: Final[dict[str, tuple[bool, tuple[str, ...]]]] = {
    "send": (True, ("op", "values")),
    "ack": (True, ("op", "ranges")),
    "refused": (True, ("op", "error")),
    "unknown": (True, ("op", "error")),
    "assign": (True, ("offset",)),
    "poll": (True, ("offset", "values")),
    "commit": (True, ("group", "offset")),
    "committed": (True, ("group", "offset", "asked")),
    "deliver": (True, ("group", "offset", "values", "count")),
    "done": (True, ("group", "offset", "messages", "asked")),
    "dead": (True, ("group", "offset", "values", "reason")),
    "drained": (True, ("group",)),
    "final": (True, ("offset", "values")),
    "replica": (True, ("block", "offset", "values")),
    "bytes": (True, ("block", "bytes", "sha256")),
    "mode": (True, ("ack", "stage")),
    "ended": (False, ("life",)),
    "fault": (False, ("id", "kind", "stage")),
    "unsynced": (False, ("brokers",)),
    "stuck": (False, ("text",)),
    "note": (False, ("text",)),
}


class BadHistory(ValueError):
    """A line is not an event."""


@dataclass(slots=True)
class Event:
    """One line; `rest` is what its kind adds."""

    t: int
    by: str
    do: str
    place: tuple[str, str] | None
    offset: int | None
    values: list[str]
    rest: dict[str, Any]

    @property
    def end(self) -> int:
        """One past the last offset that it speaks of."""
        assert self.offset is not None
        messages: int = self.rest.get("messages", 0)
        return self.offset + max(len(self.values), messages)

    @property
    def partition(self) -> str:
        """Topic and partition, for people."""
        return "/".join(self.place) if self.place else ""


def parse(line: str | bytes, where: str = "") -> Event:
    """Return the event of a line, or raise `BadHistory` that says what is wrong with it."""
    try:
        fields = json.loads(line)
        do = fields.pop("do")
        concerns_partition, needed = KINDS[do]
        place = (fields.pop("topic"), fields.pop("partition")) if concerns_partition else None
        missing = [name for name in needed if name not in fields]
        # Each value is told by many: it is in memory once.
        values = [sys.intern(value) for value in fields.pop("values", ())]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadHistory(f"{where}: {type(error).__name__} {error}: {line[:200]!r}") from None
    if missing or "t" not in fields or "by" not in fields:
        raise BadHistory(f"{where}: {do} without {', '.join(missing) or 't or by'}: {line[:200]!r}")
    return Event(fields.pop("t"), fields.pop("by"), do, place, fields.pop("offset", None), values, fields)


def now_us() -> int:
    """Return the time that events are stamped with."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Journal:
    """Writes one process's part of a history; each line reaches the file whole, also if the process is killed."""

    def __init__(self, path: Path, by: str) -> None:
        self.by = by
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, do: str, **fields: Any) -> int:
        """Add an event; return its time."""
        now = now_us()
        line = json.dumps({"t": now, "by": self.by, "do": do, **fields}, ensure_ascii=False, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
        return now

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()
