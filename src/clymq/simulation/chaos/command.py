"""`scripts/chaos --minutes M --seed S [--store zookeeper|embedded] [--mode raft|fetch|mixed]`, or `--check FILE...`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clymq.simulation.chaos.checker import Verdict, check_files
from clymq.simulation.chaos.events import BadHistory
from clymq.simulation.chaos.mutations import MUTATIONS, OF_BROKERS
from clymq.simulation.chaos.plan import KINDS, Options, draw, shown
from clymq.simulation.chaos.run import Chaos, Size
from clymq.testing.namespaces import Namespaces


def main(argv: Sequence[str] | None = None) -> int:
    """Make a run or judge a history; exit code 1 on an anomaly."""
    arguments = _parse(argv)
    if arguments.check:
        return _check(arguments.check)
    if arguments.list_mutations:
        for name, mutation in sorted(OF_BROKERS.items()):
            print(f"{name:34}{(mutation.__doc__ or '').partition(chr(10))[0]}")
        return 0
    options = Options(
        seed=arguments.seed,
        minutes=arguments.minutes,
        store=arguments.store,
        mode=arguments.mode,
        network=Namespaces.refusal() is None,
        faults=tuple(arguments.fault or KINDS),
    )
    if arguments.plan:
        print(*shown(draw(options)), sep="\n")
        return 0
    return _run(options, arguments)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes under real faults.")
    parser.add_argument("--minutes", type=float, default=1.5, metavar="M", help="how long faults are made (1.5)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides which faults, and when (0)")
    parser.add_argument("--store", choices=["embedded", "zookeeper"], default="embedded", help="(embedded)")
    parser.add_argument("--mode", choices=["raft", "fetch", "mixed"], default="raft", help="of the partitions (raft)")
    parser.add_argument("--brokers", type=int, default=3, choices=range(3, 6), metavar="N", help="3 to 5 (3)")
    parser.add_argument("--producers", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--readers", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="point to point (2)")
    parser.add_argument("--pause-ms", type=float, default=20.0, metavar="MS", help="between pushes, on average (20)")
    parser.add_argument("--fault", action="append", choices=KINDS, metavar="KIND", help="only this kind; repeatable")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), metavar="NAME", help="brokers that break a rule")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave history and logs there")
    parser.add_argument("--plan", action="store_true", help="say what would be done")
    parser.add_argument("--list-mutations", action="store_true", help="say which rules brokers can break")
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", help="judge a history (files or folders)")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0 or min(arguments.producers, arguments.readers, arguments.workers) < 1:
        parser.error("--minutes is positive, --producers, --readers and --workers are at least 1")
    return arguments


def _run(options: Options, arguments: argparse.Namespace) -> int:
    logging.disable(logging.WARNING)
    size = Size(arguments.brokers, arguments.producers, arguments.readers, arguments.workers, arguments.pause_ms)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="clymq-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}, {options.store}, {options.mode}: history and logs in {folder}", flush=True)
    chaos = Chaos(options, folder, size=size, mutation=arguments.mutation, say=lambda text: print(text, flush=True))
    try:
        verdict = asyncio.run(_until_interrupted(chaos))
    except KeyboardInterrupt:
        return 130
    code = _tell(verdict, options.minutes)
    if code == 0 and not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return code


async def _until_interrupted(chaos: Chaos) -> Verdict:
    """Make the run; SIGTERM ends it as the keyboard does, so that no process is left behind."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    return await chaos.run()


def _check(paths: Sequence[Path]) -> int:
    files = [file for path in paths for file in (sorted(path.glob("*.jsonl")) if path.is_dir() else [path])]
    try:
        verdict = check_files(files)
    except (BadHistory, OSError) as error:
        print(f"error: {error} [BadHistory]")
        return 2
    return _tell(verdict)


def _tell(verdict: Verdict, minutes: float | None = None) -> int:
    verdict.seconds = verdict.seconds if minutes is None else 60 * minutes
    for line in verdict.report():
        print(line)
    return 1 if verdict.anomalies else 0
