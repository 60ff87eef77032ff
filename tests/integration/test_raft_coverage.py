"""Every branch of the consensus core is taken by a test of its own, not by luck of a simulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.quick_skip
def test_every_branch_of_the_core_is_covered(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/paper", "tests/unit/raft", "--cov=clymq.raft", "--cov-branch",
         "--cov-report=term-missing", "--cov-fail-under=100"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={"PATH": "/usr/bin:/bin", "COVERAGE_FILE": str(tmp_path / "coverage")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
