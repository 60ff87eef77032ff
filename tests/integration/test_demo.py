"""The demo does what the README says that it does, and its last line can be relied upon."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from examples.demo import Tally

from clymq import Messages

ROOT = Path(__file__).parents[2]


@pytest.mark.quick_skip
def test_the_demo_loses_a_broker_and_no_message(tmp_path: Path) -> None:
    summary_file = tmp_path / "summary.json"
    command = [sys.executable, "-m", "examples.demo", "--no-spark", "--json", str(summary_file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"demo: sent 1000000 received 1000000 lost 0 duplicated 0 in [\d.]+ s", last)
    summary = json.loads(summary_file.read_text())
    assert (summary["sent"], summary["lost"], summary["duplicated"]) == (1_000_000, 0, 0)
    assert summary["killed"].startswith("Broker")


class _Came:
    """Messages as the demo looks at them: numbers, each for the first time as far as anybody knows."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def to_arrow(self) -> pa.Table:
        return pa.table({"value": [b"%d" % each for each in self.numbers], "delivery_count": [1] * len(self)})


def _add(tally: Tally, *numbers: int) -> list[int]:
    return tally.add(cast(Messages, _Came(*numbers)))


def test_what_was_open_when_the_broker_was_killed_may_come_again_whoever_finishes_it_first() -> None:
    tally = Tally()
    tally.finished(_add(tally, 1))
    _add(tally, 2)
    tally.broker_was_killed(pushed=4)
    tally.finished(_add(tally, 2))
    _add(tally, 3)
    _add(tally, 3)
    assert (tally.redelivered, tally.duplicated) == (2, 0)


def test_what_was_acked_before_or_came_to_be_after_the_kill_must_not_come_again() -> None:
    tally = Tally()
    tally.finished(_add(tally, 1))
    tally.broker_was_killed(pushed=4)
    _add(tally, 1, 4, 4)
    assert (tally.redelivered, tally.duplicated) == (0, 2)
