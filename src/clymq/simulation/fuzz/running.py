"""One process full of inputs: each is made, tried and judged; what fails is shrunk and told."""

from __future__ import annotations

import mmap
import struct
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from clymq.simulation.fuzz.shrinking import shrunk
from clymq.simulation.fuzz.target import Input, Target
from clymq.simulation.fuzz.watching import TookTooLong, check_growth, held, peak_bytes, run_watched

FAILURES_SHOWN_MAX: Final = 20
SHRINKING_SECONDS_MAX: Final = 20.0
# Fewer inputs than this are no measure of what a process holds on to, nor of what comes of most inputs.
JUDGED_FROM: Final = 1_000
_LOOK_EVERY: Final = 1_000
_SHOWN_BYTES_MAX: Final = 4_000
PROGRESS: Final = struct.Struct("<q")


@dataclass
class Failure:
    """What went wrong, and the input that did it; -1: no single one."""

    number: int
    problem: str
    where: str = ""
    times: int = 1
    shown: str = ""
    least: str = ""


@dataclass
class Report:
    """What came of some inputs."""

    inputs: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    grown_bytes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return what another process understands."""
        return {**asdict(self), "outcomes": dict(self.outcomes)}

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Report:
        """Undo `as_json`."""
        failures = [Failure(**each) for each in fields["failures"]]
        return cls(**{**fields, "outcomes": Counter(fields["outcomes"]), "failures": failures})


def made(target: Target, seed: int, number: int) -> Input:
    """Return an input: these three decide which."""
    return target.make(Random(f"{target.name} {seed} {number}"))


def run_inputs(target: Target, seed: int, first: int, count: int, progress: Path) -> Report:
    """Try inputs of a seed in this process, and judge the process at the end. `progress` says where it is."""
    report = Report()
    began = time.monotonic()
    with opened(target), _progress(progress) as note:
        warm_at, before = max(1, count // 5), held()
        for number in range(first, first + count):
            note(number)
            _try(target, number, made(target, seed, number), report)
            report.inputs += 1
            if report.inputs == warm_at:
                before = held()
            if report.inputs % _LOOK_EVERY == 0 or report.inputs == count:
                _judge(report, target.look)
        after = held()
        if count >= JUDGED_FROM:
            _judge(report, lambda: check_growth(target, before, after))
    report.grown_bytes = after.resident_bytes - before.resident_bytes
    report.seconds = time.monotonic() - began
    report.peak_bytes = peak_bytes()
    return report


@contextmanager
def opened(target: Target) -> Iterator[None]:
    """Have a target ready for a while."""
    target.open()
    with closing(target):
        yield


def _try(target: Target, number: int, given: Input, report: Report) -> None:
    try:
        report.outcomes[run_watched(target, number, given)] += 1
    except (Exception, TookTooLong) as error:  # noqa: BLE001 whatever it is, it is what we are looking for
        _note(target, report, Failure(number, _named(error), _place(error)), given)


def _judge(report: Report, look: Any) -> None:
    try:
        look()
    except Exception as error:  # noqa: BLE001 as above
        report.failures.append(Failure(-1, _named(error), _place(error)))


def _note(target: Target, report: Report, failure: Failure, given: Input) -> None:
    report.outcomes["failed"] += 1
    for known in report.failures:
        if (known.problem.partition(":")[0], known.where) == (failure.problem.partition(":")[0], failure.where):
            known.times += 1
            return
    if len(report.failures) < FAILURES_SHOWN_MAX:
        failure.shown = shown(given)
        failure.least = shown(least(target, failure, given))
        report.failures.append(failure)


def least(target: Target, failure: Failure, given: Input) -> Input:
    """Return the smallest input found that fails in the same place with the same error."""
    until = time.monotonic() + SHRINKING_SECONDS_MAX
    kind = failure.problem.partition(":")[0]

    def fails(each: Input) -> bool:
        if time.monotonic() > until:
            return False
        try:
            run_watched(target, failure.number, each)
        except (Exception, TookTooLong) as error:  # noqa: BLE001 as above
            return (_named(error).partition(":")[0], _place(error)) == (kind, failure.where)
        return False

    return shrunk(given, fails)


def shown(given: Input) -> str:
    """Return an input as Python writes it; a long one without its middle."""
    text = repr(given)
    if len(text) <= _SHOWN_BYTES_MAX:
        return text
    half = _SHOWN_BYTES_MAX // 2
    return f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _place(error: BaseException) -> str:
    """Return the last line of ours that an error came by."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "clymq" in frame.filename and "/fuzz/" not in frame.filename]
    last = (ours or frames)[-1] if frames else None
    return "" if last is None else f"{Path(last.filename).name}:{last.lineno} {last.name}"


@contextmanager
def _progress(path: Path) -> Iterator[Any]:
    """Let whoever looks from outside know which input it was that ended the process."""
    path.write_bytes(PROGRESS.pack(-1))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), PROGRESS.size) as shared:
        yield lambda number: PROGRESS.pack_into(shared, 0, number)
