"""The fuzzer itself: an input can be made again, what fails is found, named and shrunk, whatever it does."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from clymq.simulation.fuzz.command import TARGETS, main
from clymq.simulation.fuzz.mutation import spoilt
from clymq.simulation.fuzz.running import made, opened
from clymq.simulation.fuzz.shrinking import shrunk
from clymq.simulation.fuzz.target import Input, Target, Violated
from clymq.simulation.fuzz.watching import Held, check_growth

WITHOUT_SERVERS = sorted(set(TARGETS) - {"cli", "cluster"})

# A target of its own, in a process of its own, because of the limits: it does what one byte of its input says.
PROGRAM = r"""
import json, os, sys
from pathlib import Path
from clymq.simulation.fuzz.running import run_inputs
from clymq.simulation.fuzz.target import Target
from clymq.simulation.fuzz.watching import limit_process

class Bad(Target):
    name, full, usual, seconds_max = "bad", 1, 1, 0.5
    kept = []
    def make(self, chance):
        return b"first", chance.randbytes(20) + (sys.argv[1].encode() if chance.random() < 0.2 else b"") + b"end"
    def run(self, given):
        if b"raise" in b"".join(given):
            raise ValueError("found")
        if b"hang" in b"".join(given):
            while True:
                pass
        if b"huge" in b"".join(given):
            bytearray(2**40)
        if b"keep" in b"".join(given):
            self.kept.append(bytearray(10**6))
        if b"file" in b"".join(given):
            self.kept.append(open(os.devnull))
        return "done"

bad = Bad()
limit_process(bad)
print(json.dumps(run_inputs(bad, 3, 0, int(sys.argv[2]), Path(sys.argv[3])).as_json()))
"""


def run_bad(word: str, tmp_path: object, inputs: int = 30) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, word, str(inputs), f"{tmp_path}/progress"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failures: list[dict[str, object]] = json.loads(done.stdout)["failures"]
    return failures


@pytest.mark.parametrize("name", WITHOUT_SERVERS)
def test_a_seed_and_a_number_make_the_same_input_again(name: str) -> None:
    inputs: list[list[Input]] = []
    for _ in range(2):
        target: Target = TARGETS[name]()
        with opened(target):
            inputs.append([made(target, 7, number) for number in range(40)])
    assert inputs[0] == inputs[1]
    assert len(set(inputs[0])) > 20
    assert made(TARGETS["cli"](), 7, 1) != made(TARGETS["cli"](), 8, 1)


def test_an_error_without_a_name_is_found_with_its_number_and_shrunk(tmp_path: object) -> None:
    (failure,) = run_bad("raise", tmp_path)
    assert failure["problem"] == "ValueError: found"
    assert failure["least"] == "(b'raise',)"
    assert int(str(failure["number"])) >= 0
    assert int(str(failure["times"])) > 1


def test_an_input_that_takes_for_ever_is_found(tmp_path: object) -> None:
    (failure,) = run_bad("hang", tmp_path, inputs=12)
    assert str(failure["problem"]).startswith("TookTooLong")


def test_an_allocation_of_an_absurd_size_is_found(tmp_path: object) -> None:
    (failure,) = run_bad("huge", tmp_path)
    assert str(failure["problem"]).startswith("MemoryError")


@pytest.mark.parametrize(("word", "problem"), [("keep", "the process grew"), ("file", "open files")])
def test_what_inputs_leave_behind_is_found(word: str, problem: str, tmp_path: object) -> None:
    (failure,) = run_bad(word, tmp_path, inputs=1500)
    assert problem in str(failure["problem"])
    assert failure["number"] == -1


def test_a_process_that_is_ended_by_an_input_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert main(["--what", "config", "--inputs", "5"]) == 1


def test_objects_that_are_kept_are_found() -> None:
    target = TARGETS["batch"]()
    check_growth(target, Held(1000, 1000, 5), Held(1000, 1500, 5))
    with pytest.raises(Violated, match="objects"):
        check_growth(target, Held(1000, 1000, 5), Held(1000, 50_000, 5))


def test_shrinking_leaves_what_is_needed() -> None:
    given = (b"a" * 50, b"xxNEEDLExx", b"b" * 9)
    assert shrunk(given, lambda each: any(b"NEEDLE" in part for part in each)) == (b"NEEDLE",)


def test_spoiling_changes_and_is_bounded() -> None:
    chance, data = Random(1), bytes(range(256))
    results = {spoilt(chance, data, [data[::-1]]) for _ in range(500)}
    assert len(results) > 400
    assert max(map(len, results)) < 200_000


def test_a_wrong_use_of_the_command_is_refused() -> None:
    for arguments in (["--input", "3"], ["--what", "nothing"], ["--jobs", "0"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
