"""The checker: a history in, a verdict out. It needs nothing but the lines; see `log_checks` and `reader_checks`.

Partitions are judged one after the other; each by sorts and single passes, so that the time grows with the length of
the history and the memory with its largest partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clymq.simulation.chaos import log_checks, reader_checks
from clymq.simulation.chaos.anomalies import SHOWN_PER_KIND_MAX, Anomaly, Kind, in_context
from clymq.simulation.chaos.events import Event
from clymq.simulation.chaos.facts import Facts, Send
from clymq.simulation.chaos.figures import Availability, Fault, availability, faults_of, visible_lags, write_times
from clymq.simulation.chaos.history import History
from clymq.simulation.chaos.power import without_what_power_took

# A fetch leader's promise may fail with the leader: only then, and only for what its followers had no time to pull.
WEAK_LOSS_SECONDS_MAX: Final = 10.0


@dataclass
class Verdict:
    """What a history shows."""

    anomalies: list[Anomaly] = field(default_factory=list)
    acknowledged: int = 0
    read: int = 0
    documented_losses: int = 0
    read_and_lost: int = 0
    """In fetch mode, when the power went: what readers had been given and no disk had."""
    seconds: float = 0.0
    lags_us: list[int] = field(default_factory=list)
    availability: list[Availability] = field(default_factory=list)

    @property
    def counts(self) -> Counter[Kind]:
        """How many anomalies there are of each kind."""
        return Counter(anomaly.kind for anomaly in self.anomalies)

    @property
    def last_line(self) -> str:
        """The sum of it all."""
        return f"{self.seconds / 60:.1f} min, {self.acknowledged} acknowledged, {len(self.anomalies)} anomalies"

    def report(self) -> Iterator[str]:
        """Yield the whole verdict, line by line."""
        told: Counter[Kind] = Counter()
        for anomaly in self.anomalies:
            told[anomaly.kind] += 1
            if told[anomaly.kind] <= SHOWN_PER_KIND_MAX:
                yield str(anomaly)
        for kind, count in self.counts.items():
            yield f"{kind}: {count}"
        if self.documented_losses:
            yield f"{self.documented_losses} messages that a fetch leader alone had acknowledged went with it"
        if self.read_and_lost:
            yield f"{self.read_and_lost} messages of fetch mode were read and were on no disk when the power went"
        if self.lags_us:
            lags = sorted(self.lags_us)
            middle, late = lags[len(lags) // 2] / 1000, lags[len(lags) * 99 // 100] / 1000
            yield f"acknowledged to visible: p50 {middle:.1f} ms, p99 {late:.1f} ms, longest {lags[-1] / 1000:.1f} ms"
        if self.availability:
            yield f"{'without a write, seconds':40}{'faults':>8}{'median':>8}{'longest':>9}"
        for row in self.availability:
            yield f"{row.kind:40}{row.faults:8}{row.median_seconds:8.2f}{row.longest_seconds:9.2f}"
        yield self.last_line


def check_files(paths: Iterable[Path]) -> Verdict:
    """Judge a history that lies in one or more files."""
    with History(paths) as history:
        faults = faults_of(history.general)
        ended = {(event.by, event.rest["life"]): event.t for event in history.general if event.do == "ended"}
        cuts = [event.t for event in history.general if event.do == "unsynced"]
        stuck = [Anomaly(Kind.STUCK, event.rest["text"]) for event in history.general if event.do == "stuck"]
        verdict = Verdict(stuck)
        times: list[list[int]] = []
        begin, end = _span(history.general)
        for place in history.places:
            events = history.partition(place)
            first, last = _span(events)
            begin, end = min(begin, first), max(end, last)
            events, taken = without_what_power_took(events, cuts)
            verdict.read_and_lost += taken
            facts = Facts(events, ended)
            times.append(write_times(facts))
            _judge(facts, faults, verdict)
        verdict.seconds = max(0, end - begin) / 1e6
        verdict.availability = availability(faults, times)
        return verdict


def check_events(
    events: Sequence[Event], faults: Sequence[Fault] = (), ended: Mapping[tuple[str, int], int] | None = None
) -> Verdict:
    """Judge the history of one partition that is in memory."""
    verdict = Verdict()
    _judge(Facts(events, ended), faults, verdict)
    return verdict


def _judge(facts: Facts, faults: Sequence[Fault], verdict: Verdict) -> None:
    partition = facts.events[0].partition
    found = [anomaly for check in (*log_checks.CHECKS, *reader_checks.CHECKS) for anomaly in check(facts)]
    losses = log_checks.documented_losses(facts)
    found += _losses_without_cause(losses, faults)
    verdict.anomalies += in_context(found, facts.events, partition)
    verdict.documented_losses += len(losses)
    verdict.acknowledged += sum(len(send.event.values) for send in facts.sends.values() if send.is_acknowledged)
    verdict.read += len(facts.read.values)
    verdict.lags_us += visible_lags(facts)


def _losses_without_cause(losses: Sequence[tuple[Send, str]], faults: Sequence[Fault]) -> Iterator[Anomaly]:
    """Yield what was lost at a weak promise though nothing happened to its leader in time."""
    for send, value in losses:
        assert send.answer is not None
        time, patience = send.answer.t, WEAK_LOSS_SECONDS_MAX * 1e6
        if not any(fault.begin - patience <= time <= fault.end + patience for fault in faults):
            text = f"{value} was acknowledged by its leader at {time / 1e6:.6f} and is nowhere; there was no fault near"
            yield Anomaly(Kind.LOST, text, (value,))


def _span(events: Sequence[Event]) -> tuple[int, int]:
    return (events[0].t, events[-1].t) if events else (1 << 62, 0)
