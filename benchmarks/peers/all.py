"""`scripts/bench all`: gets what may be got, runs everything, prints it and leaves it under `docs/benchmarks`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import kafka, machine, plots
from benchmarks.peers.figures import RAW, Book, Cell, rows
from benchmarks.peers.page import page
from benchmarks.peers.program import FULL, QUICK, Plan, Run
from benchmarks.peers.registry import systems
from benchmarks.peers.system import System
from benchmarks.peers.tables import cell_texts, show, show_facts
from benchmarks.peers.verdicts import Verdict, verdicts

OURS = "ClyMQ"
RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"
PACKAGES = ("redis-server", "rabbitmq-server", "maven")
POLICY = Path("/usr/sbin/policy-rc.d")


def run(*, is_quick: bool, json_path: str | None, is_to_install: bool, results: Path = RESULTS) -> None:
    """Measure; the program fails only if it cannot run at all."""
    for number in (signal.SIGINT, signal.SIGTERM):  # named, because a shell may have had the first one ignored
        signal.signal(number, _interrupt)
    began = time.monotonic()
    if is_to_install:
        install()
    kafka.get()
    plan, queues = QUICK if is_quick else FULL, systems()
    facts = {"machine": machine.machine(), "versions": machine.versions(queues), "missing": machine.missing(queues)}
    for title, named in facts.items():
        show_facts(title, named)
    measured = Run(plan, queues, _say)
    measured.everything()
    facts["run"] = {"command": _command(is_quick), "took": _duration(time.monotonic() - began),
                    "a cell": f"{plan.seconds:g} s, {plan.turns} turns at most"}  # fmt: skip
    book = measured.book
    _note_missing(book, queues)
    judged = verdicts(book, OURS)
    lines = list(_lines(book))
    show(lines, OURS, judged)
    for title in ("missing", "run"):
        show_facts(title, facts[title])
    _write(results, "quick" if is_quick else "all", facts, plan, queues, book, judged, lines, json_path)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def _command(is_quick: bool) -> str:
    return "scripts/bench all" + (" --quick" if is_quick else "")


def _duration(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# --- Peers ---


def install() -> None:
    """Install servers of the distribution, without letting them run as services; only where that is possible."""
    if os.getuid() or shutil.which("apt-get") is None:
        _say(f"--install-peers needs root and apt-get; by hand: apt-get install {' '.join(PACKAGES)}")
        return
    is_ours = not POLICY.exists()
    if is_ours:  # asked by Debian before it starts a service; 101 is no
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=sys.stderr)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], check=False,
                       env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, stdout=sys.stderr)  # fmt: skip
    finally:
        if is_ours:
            POLICY.unlink()


def _note_missing(book: Book, queues: Sequence[type[System]]) -> None:
    """A queue that is missing has a row in each table of what it was to do, with the reason."""
    places = {(cell.work, cell.what, cell.unit, cell.promise) for cell, _ in book if cell.system == OURS}
    for queue in queues:
        reason = queue.missing()
        for place in sorted(places) if reason is not None else ():
            book.fail(Cell(*place, queue.name), f"missing: {reason}")


# --- Results ---


def _lines(book: Book) -> Iterator[tuple[str, list[list[str]]]]:
    for work in book.works():
        yield (
            work,
            [
                cell_texts(
                    book, OURS, cell, figure, book.median(Cell(cell.work, cell.what, cell.unit, cell.promise, RAW))
                )
                for cell, figure in book.of(work)
            ],
        )


def _write(
    results: Path, name: str, facts: dict[str, dict[str, str]], plan: Plan, queues: Sequence[type[System]], book: Book,
    judged: list[Verdict], lines: list[tuple[str, list[list[str]]]], json_path: str | None,
) -> None:  # fmt: skip
    results.mkdir(parents=True, exist_ok=True)
    told = machine.settings(queues, plan.promises)
    document: dict[str, Any] = {
        "rows": [*rows(book), *(verdict.row() for verdict in judged)],
        **facts,
        "settings": [{"promise": promise, "queue": queue, "settings": text} for promise, queue, text in told],
    }
    text = json.dumps(document, indent=1) + "\n"
    (results / f"{name}.json").write_text(text)
    if json_path is not None:
        Path(json_path).write_text(text)
    images = plots.plots(book) if plots.is_possible() else {}
    for image, content in images.items():
        (results / f"{name}-{image}.png").write_bytes(content)
    html = page(facts=facts, settings=told, tables=lines, verdicts=judged, plots=images, ours=OURS)
    (results / f"{name}.html").write_text(html)
    _say(f"written: {name}.html, {name}.json and {len(images)} plots in docs/benchmarks")
