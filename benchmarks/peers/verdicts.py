"""The aims that a run is held against, and whether each is met: ratios in one run, ours against the best peer.

An aim that the run has no figures for is said not to be measured; one that is missed is no failure of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.figures import Book, Cell

PRODUCE, CONSUME, LATENCY, PARTITIONS, FAILOVER = "produce", "consume", "latency", "partitions", "failover"
RATE, MILLISECONDS, SECONDS = "messages/s", "ms", "s"


@dataclass(frozen=True)
class Verdict:
    """One aim, where it was looked at, what came out and whether that is enough; `is_met` is None without figures."""

    aim: str
    where: str
    ratio: float | None
    target: str
    is_met: bool | None
    beside: str

    def row(self) -> dict[str, Any]:
        """As a row of the report."""
        return {
            "name": f"aim: {self.aim}, {self.where}", "unit": "ratio" if self.aim != FAILOVER_AIM else SECONDS,
            "value": self.ratio, "raw": None, "ratio": self.ratio, "target": self.target, "met": self.is_met,
            "beside": self.beside,
        }  # fmt: skip


THROUGHPUT_AIM = "produce and consume, beside the best peer at equal durability"
REPLICATED_AIM = "three replicas, synced before the ack, beside the best peer with the same promise"
LATENCY_AIM = "p99 latency, beside the best peer at equal durability"
FAILOVER_AIM = "median failover of Raft"
PARTITIONS_AIM = "1,000 partitions, beside 10"
REPLICATED = "3 replicas, synced before the ack"


def verdicts(book: Book, ours: str) -> list[Verdict]:
    """Hold all figures of ours against the aims."""
    found = [*_throughput(book, ours), *_latency(book, ours), *_failover(book, ours), *_partitions(book, ours)]
    for aim in (THROUGHPUT_AIM, REPLICATED_AIM, LATENCY_AIM, FAILOVER_AIM, PARTITIONS_AIM):
        if not any(verdict.aim == aim for verdict in found):
            found.append(Verdict(aim, "not measured in this run", None, "", None, ""))
    return found


def _throughput(book: Book, ours: str) -> Iterator[Verdict]:
    for cell, figure in book:
        if cell.system != ours or cell.work not in {PRODUCE, CONSUME} or figure.median is None:
            continue
        peers = book.others(cell)
        if not peers:
            continue
        is_replicated = cell.work == PRODUCE and cell.promise == REPLICATED
        best, wanted = max(peers, key=lambda name: peers[name]), 1.5 if is_replicated else 2.0
        ratio = figure.median / peers[best]
        yield Verdict(REPLICATED_AIM if is_replicated else THROUGHPUT_AIM, f"{cell.work} {cell.what}, {cell.promise}",
                      ratio, f">= {wanted:g}", ratio >= wanted, best)  # fmt: skip


def _latency(book: Book, ours: str) -> Iterator[Verdict]:
    for cell, figure in book:
        if cell.system != ours or cell.work != LATENCY or "p99," not in cell.what or figure.median is None:
            continue
        peers = book.others(cell)
        if peers:
            best = min(peers, key=lambda name: peers[name])
            ratio = figure.median / peers[best]
            yield Verdict(LATENCY_AIM, f"{cell.what}, {cell.promise}", ratio, "<= 2", ratio <= 2, best)


def _failover(book: Book, ours: str) -> Iterator[Verdict]:
    for cell, figure in book:
        if cell.system == ours and cell.work == FAILOVER and figure.median is not None:
            yield Verdict(FAILOVER_AIM, cell.what, figure.median, "< 1 s", figure.median < 1, "")


def _partitions(book: Book, ours: str) -> Iterator[Verdict]:
    for cell, figure in book:
        if cell.system != ours or cell.work != PARTITIONS or partition_count(cell.what) != 1000:
            continue
        few = book.median(Cell(cell.work, cell.what.replace("1,000", "10"), cell.unit, cell.promise, ours))
        if figure.median is not None and few:
            ratio = figure.median / few
            yield Verdict(PARTITIONS_AIM, cell.promise, ratio, ">= 0.8", ratio >= 0.8, "")


def partition_count(what: str) -> int:
    """Return how many partitions a cell was about."""
    return int(what.split(maxsplit=1)[0].replace(",", ""))
