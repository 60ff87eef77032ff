"""The power goes after every single write, sync, rename and removal of random workloads; see `power_cut.py`."""

from __future__ import annotations

import pytest

from power_cut import Workload

SEEDS = {"quick": 5, "normal": 50, "long": 1000}


@pytest.mark.parametrize("part", range(5))
def test_no_power_cut_loses_or_invents_anything(part: int, size: str) -> None:
    crashes = 0
    for seed in range(part, SEEDS[size], 5):
        try:
            crashes += Workload(seed).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert crashes > 400 * len(range(part, SEEDS[size], 5))
