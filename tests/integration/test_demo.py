"""The demo does what the README says that it does, and its last line can be relied upon."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
