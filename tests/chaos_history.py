"""Hand-written histories: one partition, events in order, times counted up unless they are given."""

from __future__ import annotations

import json
from typing import Any

from clymq.simulation.chaos.checker import Verdict, check_events
from clymq.simulation.chaos.events import Event, parse
from clymq.simulation.chaos.figures import Fault


class Story:
    """Events of partition t/0, told one after the other; each is a thousand microseconds after the one before."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._operations = 0

    def tell(self, by: str, do: str, **fields: Any) -> Story:
        line = {"t": 1000 * (len(self.lines) + 1), "by": by, "do": do, "topic": "t", "partition": "0", **fields}
        self.lines.append(json.dumps(line))
        return self

    def send(self, by: str, *values: str, **fields: Any) -> str:
        self._operations += 1
        operation = str(self._operations)
        self.tell(by, "send", op=operation, values=values, **fields)
        return operation

    def ack(self, by: str, operation: str, offset: int | None, count: int = 1, **fields: Any) -> Story:
        return self.tell(by, "ack", op=operation, ranges=[[offset, count]], **fields)

    def push(self, by: str, offset: int | None, *values: str) -> Story:
        return self.ack(by, self.send(by, *values), offset, len(values))

    def poll(self, by: str, offset: int, *values: str) -> Story:
        return self.tell(by, "poll", offset=offset, values=values)

    def final(self, *values: str, offset: int = 0) -> Story:
        return self.tell("final", "final", offset=offset, values=values)

    def events(self) -> list[Event]:
        return sorted((parse(line) for line in self.lines), key=lambda event: event.t)

    def verdict(self, *faults: Fault, ended: dict[tuple[str, int], int] | None = None) -> Verdict:
        return check_events(self.events(), faults, ended)
