"""Cells of the tables: each is a child process with a time limit. One that fails says why, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.system import System, end_family
from benchmarks.peers.work import Request
from benchmarks.processes import folder

ROOT = Path(__file__).parents[2]
REASON_CHARACTERS_MAX = 300
JOIN_SECONDS_MAX = 5.0


class CellFailed(Exception):
    """A cell has no figure; the text says why."""


def run_cell(
    system: System, work: str, seconds_max: float, *, on_ready: Callable[[], object] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Let a child do the work; `on_ready` is called when the child says that it is, and the child told afterwards."""
    promise = system.promise
    request = Request(
        system.key, system.address, promise.replicas, promise.synced, promise.acknowledged, system.pids,
        str(system.folder), work, arguments,
    )  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
    ) as child:  # fmt: skip
        limit = _Limit(child, seconds_max)
        errors = _Drain(child)
        try:
            return _converse(child, request, on_ready)
        except (CellFailed, json.JSONDecodeError) as failure:
            raise CellFailed(limit.passed() or errors.reason() or str(failure)) from failure
        finally:
            limit.lift()
            _end(child)
            errors.close()


def run_raw(limit: str, seconds: float, seconds_max: float) -> float:
    """Return one of the machine's limits, in MB/s; all that the child starts and writes is gone afterwards."""
    with (
        folder() as data,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.raw", limit, str(seconds)], stdout=subprocess.PIPE, text=True,
            start_new_session=True, cwd=ROOT, env=os.environ | {"CLYMQ_BENCH_DATA": data},
        ) as child,
    ):  # fmt: skip
        try:
            told, _ = child.communicate(timeout=seconds_max)
        except subprocess.TimeoutExpired as error:
            raise CellFailed(f"not done after {seconds_max:g} s") from error
        finally:
            _end(child)
    if child.returncode:
        raise CellFailed(f"ended with {child.returncode}")
    return float(json.loads(told)["mb_per_second"])


def _converse(child: subprocess.Popen[str], request: Request, on_ready: Callable[[], object] | None) -> dict[str, Any]:
    assert child.stdin is not None
    assert child.stdout is not None
    answer: dict[str, Any] = {}
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(asdict(request)) + "\n")
        child.stdin.flush()
        for line in child.stdout:
            answer = json.loads(line)
            if answer.get("is_ready") and on_ready is not None:
                on_ready()
                child.stdin.write("go on\n")
                child.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()  # here: what could not be written is tried once more, and would fail outside
    if child.wait() or answer.get("is_ready"):
        raise CellFailed(f"the client ended with {child.returncode}")
    return answer


class _Limit:
    """Ends a child when its time is over."""

    def __init__(self, child: subprocess.Popen[str], seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._is_over = threading.Event()
        self._timer = threading.Timer(seconds_max, self._end, [child])
        self._timer.start()

    def _end(self, child: subprocess.Popen[str]) -> None:
        self._is_over.set()
        _end(child)

    def passed(self) -> str:
        """Return what to say if the time was over, else nothing."""
        return f"not done after {self._seconds_max:g} s" if self._is_over.is_set() else ""

    def lift(self) -> None:
        """Let the child alone."""
        self._timer.cancel()
        self._timer.join()


class _Drain:
    """Reads what a child writes to stderr, so that it never waits for us, and knows the last line of it."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        assert child.stderr is not None
        self._lines = child.stderr
        self._last = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._lines:
            self._last = line.strip() or self._last

    def reason(self) -> str:
        """Return the last line, which names the error."""
        self._thread.join(JOIN_SECONDS_MAX)
        return self._last[:REASON_CHARACTERS_MAX]

    def close(self) -> None:
        """Wait until all is read; the child has ended."""
        self._thread.join(JOIN_SECONDS_MAX)


def _end(child: subprocess.Popen[str]) -> None:
    if child.poll() is None:
        end_family(child.pid)
    child.wait()
