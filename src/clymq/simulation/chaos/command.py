"""`scripts/chaos --minutes M --seed S [--store zookeeper|embedded] [--mode raft|fetch|mixed]`, all six with `--matrix`,
or `--check FILE...`.
"""

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
from clymq.simulation.chaos.directed import DIRECTED
from clymq.simulation.chaos.events import BadHistory
from clymq.simulation.chaos.matrix import MODES, STORES, Cell, cells, run_all, table
from clymq.simulation.chaos.mutations import MUTATIONS
from clymq.simulation.chaos.plan import KINDS, Options, draw, names, shown
from clymq.simulation.chaos.run import Chaos, Size


def main(argv: Sequence[str] | None = None) -> int:
    """Make a run or judge a history; exit code 1 on an anomaly."""
    arguments = _parse(argv)
    if arguments.check:
        return _check(arguments.check)
    if arguments.list_mutations:
        for name, mutation in sorted(MUTATIONS.items()):
            print(f"{name:34}{(mutation.__doc__ or '').partition(chr(10))[0]}")
        return 0
    if arguments.matrix:
        return _run_matrix(arguments)
    cell = Cell(arguments.store or STORES[0], arguments.mode or MODES[0], arguments.seed)
    if arguments.plan:
        print(*shown(draw(_options(cell, arguments))), sep="\n")
        return 0
    verdict = _run(cell, arguments, arguments.keep)
    return 130 if verdict is None else _tell(verdict)


def _options(cell: Cell, arguments: argparse.Namespace) -> Options:
    return Options(
        seed=cell.seed,
        minutes=arguments.minutes,
        store=cell.store,
        mode=cell.mode,
        faults=() if arguments.no_faults else tuple(arguments.fault or KINDS),
        kills_cut_power=arguments.power_cut,
        by_the_clock=arguments.by_the_clock,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description="Real processes under real faults.")
    parser.add_argument("--minutes", type=float, default=1.5, metavar="M", help="how long faults are made (1.5)")
    parser.add_argument(
        "--by-the-clock", action="store_true", help="the minutes include what it takes to make and undo faults"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides which faults, and when (0)")
    parser.add_argument("--store", choices=STORES, help="(embedded)")
    parser.add_argument("--mode", choices=MODES, help="of the partitions (raft)")
    parser.add_argument("--matrix", action="store_true", help="every store with every mode, one after the other")
    parser.add_argument("--brokers", type=int, default=3, choices=range(3, 6), metavar="N", help="3 to 5 (3)")
    parser.add_argument("--producers", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--readers", type=int, default=2, metavar="N", help="publish-subscribe (2)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="point to point (2)")
    parser.add_argument("--pause-ms", type=float, default=20.0, metavar="MS", help="between pushes, on average (20)")
    parser.add_argument(
        "--fault",
        action="append",
        choices=tuple(names()),
        metavar="KIND",
        help="only this (`kill`, `kill leader`); repeatable",
    )
    parser.add_argument("--no-faults", action="store_true", help="a run in peace")
    parser.add_argument("--directed", choices=tuple(DIRECTED), metavar="NAME", help=f"one of: {', '.join(DIRECTED)}")
    parser.add_argument("--power-cut", action="store_true", help="every kill takes what was not synced")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), metavar="NAME", help="brokers that break a rule")
    parser.add_argument("--network", choices=["auto", "namespaces", "proxies"], default="auto", help="who cuts (auto)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave history and logs there")
    parser.add_argument("--plan", action="store_true", help="say what would be done")
    parser.add_argument("--list-mutations", action="store_true", help="say which rules brokers can break")
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", help="judge a history (files or folders)")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0 or min(arguments.producers, arguments.readers, arguments.workers) < 1:
        parser.error("--minutes is positive, --producers, --readers and --workers are at least 1")
    return arguments


def _run(cell: Cell, arguments: argparse.Namespace, keep: Path | None) -> Verdict | None:
    """Make one run; None if it was interrupted."""
    logging.disable(logging.WARNING)
    size = Size(arguments.brokers, arguments.producers, arguments.readers, arguments.workers, arguments.pause_ms)
    folder = keep or Path(tempfile.mkdtemp(prefix="clymq-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    _say(f"seed {cell.seed}, {cell.store}, {cell.mode}: history and logs in {folder}")
    chaos = Chaos(
        _options(cell, arguments), folder,
        size=size, mutation=arguments.mutation, directed=arguments.directed, network=arguments.network, say=_say,
    )  # fmt: skip
    try:
        verdict = asyncio.run(_until_interrupted(chaos))
    except KeyboardInterrupt:
        return None
    if not arguments.directed:
        verdict.seconds = 60 * arguments.minutes
    if not verdict.anomalies and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _run_matrix(arguments: argparse.Namespace) -> int:
    stores = (arguments.store,) if arguments.store else STORES
    modes = (arguments.mode,) if arguments.mode else MODES
    chosen = cells(stores, modes, arguments.seed)
    if arguments.plan:
        for cell in chosen:
            print(f"{cell.name}, seed {cell.seed}", *shown(draw(_options(cell, arguments))), sep="\n")
        return 0

    def run(cell: Cell) -> Verdict:
        verdict = _run(cell, arguments, arguments.keep / cell.name if arguments.keep else None)
        if verdict is None:
            raise KeyboardInterrupt
        return verdict

    try:
        verdicts = run_all(chosen, run, _say)
    except KeyboardInterrupt:
        return 130
    for line in table(chosen, verdicts):
        _say(line)
    return 1 if any(verdict.anomalies for verdict in verdicts) else 0


def _say(text: str) -> None:
    print(text, flush=True)


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


def _tell(verdict: Verdict) -> int:
    for line in verdict.report():
        print(line)
    return 1 if verdict.anomalies else 0
