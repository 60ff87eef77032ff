"""`scripts/fuzz [--what WHAT] [--seed S] [--inputs N] [--quick] [--input N] [--jobs J]`.

Inputs run in processes of their own, with little memory: one that is ended by an input takes nobody with it, and is
found out. The last line of a run is `N inputs, F failures, S s`; the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from clymq.simulation.fuzz.batches import Batches
from clymq.simulation.fuzz.block_files import BlockFiles
from clymq.simulation.fuzz.clients import Clients
from clymq.simulation.fuzz.command_lines import CommandLines
from clymq.simulation.fuzz.pipeline_files import PipelineFiles
from clymq.simulation.fuzz.running import JUDGED_FROM, PROGRESS, Failure, Report, made, opened, run_inputs, shown
from clymq.simulation.fuzz.servers import Servers
from clymq.simulation.fuzz.settings import Settings
from clymq.simulation.fuzz.target import Target
from clymq.simulation.fuzz.watching import TookTooLong, limit_process, run_watched
from clymq.simulation.fuzz.wires import Wires

TARGETS: Final[dict[str, type[Target]]] = {
    kind.name: kind for kind in (Wires, Clients, Servers, Batches, BlockFiles, Settings, PipelineFiles, CommandLines)
}
PROCESS_SECONDS_MAX: Final = 6 * 3600


def main(argv: Sequence[str] | None = None) -> int:
    """Try inputs and say what came of them; exit code 1 if anything failed."""
    arguments = _parse(argv)
    if arguments.worker is not None:
        return _work(arguments)
    if arguments.input is not None:
        return _replay(TARGETS[arguments.what](), arguments.seed, arguments.input)
    began = time.monotonic()
    names = list(TARGETS) if arguments.what == "all" else [arguments.what]
    inputs = failures = 0
    for name in names:
        report = _run(TARGETS[name], arguments)
        _show(name, report)
        inputs += report.inputs
        failures += sum(each.times for each in report.failures)
    print(f"{inputs} inputs, {failures} failures, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description="Hostile input, by seed.")
    parser.add_argument("--what", choices=[*TARGETS, "all"], default="all", help="which kind of input (all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides all inputs (0)")
    parser.add_argument("--inputs", type=int, metavar="N", help="how many of each kind (each kind's full number)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first (0)")
    parser.add_argument("--quick", action="store_true", help="as many as are tried with every change")
    parser.add_argument("--input", type=int, metavar="N", help="try one alone, and show it; needs --what")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes at once (1)")
    parser.add_argument("--worker", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.input is not None and arguments.what == "all":
        parser.error("--input needs --what")
    if arguments.jobs < 1 or arguments.first < 0 or (arguments.inputs or 1) < 1:
        parser.error("--jobs and --inputs are at least 1, --first is not negative")
    return arguments


# --- Processes ---


def _run(kind: type[Target], arguments: argparse.Namespace) -> Report:
    count = arguments.inputs or (kind.usual if arguments.quick else kind.full)
    each = -(-count // arguments.jobs)
    last = arguments.first + count
    parts = [(first, min(each, last - first)) for first in range(arguments.first, last, each)]
    began = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        reports = list(pool.map(lambda part: _in_a_process(kind.name, arguments.seed, *part), parts))
    whole = _together(reports)
    whole.seconds = time.monotonic() - began
    if count >= JUDGED_FROM:
        missing = [outcome for outcome in kind.wanted if not whole.outcomes[outcome]]
        whole.failures += [Failure(-1, f"no input of so many was {outcome}") for outcome in missing]
    return whole


def _in_a_process(what: str, seed: int, first: int, count: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="clymq-fuzz-") as folder:
        progress = Path(folder) / "progress"
        command = [sys.executable, "-m", "clymq.simulation.fuzz", "--what", what, "--seed", str(seed)]
        command += ["--first", str(first), "--inputs", str(count), "--worker", str(progress)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(  # noqa: S603 ourselves
            command, capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX, check=False, env=environment
        )
        try:
            return Report.of_json(json.loads(done.stdout))
        except ValueError:
            (number,) = PROGRESS.unpack(progress.read_bytes()) if progress.exists() else (-1,)
            problem = f"the process ended with code {done.returncode}"
            return Report(inputs=max(0, number - first), failures=[Failure(number, problem, shown=done.stderr[-4000:])])


def _work(arguments: argparse.Namespace) -> int:
    """Be such a process: the report goes to stdout, and nothing else does."""
    logging.disable(logging.CRITICAL)
    target = TARGETS[arguments.what]()
    limit_process(target)
    with contextlib.redirect_stdout(io.StringIO()):
        report = run_inputs(target, arguments.seed, arguments.first, arguments.inputs, arguments.worker)
    print(json.dumps(report.as_json()))
    return 0


def _together(reports: Sequence[Report]) -> Report:
    whole = Report()
    for report in reports:
        whole.inputs += report.inputs
        whole.outcomes += report.outcomes
        whole.failures += report.failures
        whole.peak_bytes = max(whole.peak_bytes, report.peak_bytes)
        whole.grown_bytes = max(whole.grown_bytes, report.grown_bytes)
    return whole


# --- What is said ---


def _show(name: str, report: Report) -> None:
    for line in _failures_shown(name, report):
        print(line)
    came = ", ".join(f"{outcome} {count}" for outcome, count in sorted(report.outcomes.items()))
    print(
        f"{name}: {report.inputs} inputs in {report.seconds:.0f} s, {sum(each.times for each in report.failures)} "
        f"failures, peak {report.peak_bytes / 1e6:.0f} MB, grown {report.grown_bytes / 1e6:.1f} MB; {came}",
        flush=True,
    )


def _failures_shown(name: str, report: Report) -> Iterator[str]:
    for failure in report.failures:
        yield f"{name} input {failure.number}, {failure.times} times: {failure.problem} at {failure.where}"
        if failure.least:
            yield f"  the least that does it: {failure.least}"
        if failure.shown:
            yield f"  as it was: {failure.shown}"


def _replay(target: Target, seed: int, number: int) -> int:
    limit_process(target)
    with opened(target):
        given = made(target, seed, number)
        print(f"{target.name} input {number} of seed {seed}: {shown(given)}")
        try:
            print(run_watched(target, number, given))
        except (Exception, TookTooLong):  # noqa: BLE001 it is shown
            traceback.print_exc()
            return 1
    return 0
