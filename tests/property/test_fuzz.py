"""Every kind of hostile input, some of each: what `scripts/fuzz` does, at the size of this run."""

from __future__ import annotations

import pytest

from clymq.simulation.fuzz.command import TARGETS, main

JOBS = {"quick": "1", "normal": "1", "long": "2"}


@pytest.mark.parametrize("what", sorted(TARGETS))
def test_hostile_input_is_taken_or_refused_by_name(what: str, size: str, capfd: pytest.CaptureFixture[str]) -> None:
    target = TARGETS[what]
    inputs = {"quick": target.usual // 4, "normal": target.usual, "long": target.full}[size]
    code = main(["--what", what, "--inputs", str(inputs), "--jobs", JOBS[size]])
    said = capfd.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].startswith(f"{inputs} inputs, 0 failures, ")
