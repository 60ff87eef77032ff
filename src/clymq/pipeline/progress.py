"""What the progress of a query means: rates, lag and times, for people to look at. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clymq.errors import ClymqError
from clymq.spark.offsets import lag


@dataclass(frozen=True, slots=True)
class Figures:
    """One query at one moment."""

    query: str
    state: str
    batch: int = -1
    """The last one; -1: none yet."""
    rows: int = 0
    """Of that batch."""
    rows_per_second: float = 0.0
    lag: int = 0
    batch_ms: int = 0


def figures(query: str, state: str, progress: Mapping[str, Any] | None) -> Figures:
    """Return what a query's last progress says; it is the JSON that Spark makes of it."""
    if progress is None:
        return Figures(query, state)
    return Figures(
        query=query,
        state=state,
        batch=int(progress.get("batchId", -1)),
        rows=int(progress.get("numInputRows", 0)),
        rows_per_second=float(progress.get("processedRowsPerSecond", 0.0) or 0.0),
        lag=sum(_lag(source) for source in progress.get("sources", ())),
        batch_ms=int(progress.get("durationMs", {}).get("triggerExecution", 0)),
    )


def _lag(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if not end or not latest:
        return 0
    try:
        return sum(number for partitions in lag(end, latest).values() for number in partitions.values())
    except ClymqError:
        return 0  # a source that is none of ours


def _offsets(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
