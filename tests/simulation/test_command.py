"""`scripts/simulate`: what its arguments mean, and what it says."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from clymq.simulation.cluster.mutations import MUTATIONS as CLUSTER_MUTATIONS
from clymq.simulation.command import main
from clymq.simulation.mutations import MUTATIONS


@pytest.fixture(autouse=True)
def loud_again() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


def test_seeds_without_a_violation_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "10", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds, 0 violations")


def test_one_seed_prints_its_options_its_trace_and_the_hash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 3: replicas=")
    assert "everything heals" in said
    assert "\ntrace " in said


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_mutation_stops_at_the_first_seed_that_catches_it(jobs: str) -> None:
    # In a process of its own: it forks, and what forks must not have the threads that other tests have left.
    arguments = ["--mutation", "skip_the_log_check_of_pre_votes", "--seeds", "1000", "--jobs", jobs]
    done = subprocess.run(
        [sys.executable, "-m", "clymq.simulation", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    first, last = done.stdout.splitlines()
    assert first.startswith("seed 1: Violation: VotesSeeWholeLogs: ")
    assert last.startswith("skip_the_log_check_of_pre_votes is caught by seed 1, ")


def test_a_mutation_that_no_seed_catches_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "skip_the_log_check_of_pre_votes", "--seeds", "1", "--first", "0", "--jobs", "1"]) == 0
    assert "is not caught by 1 seeds" in capsys.readouterr().out


def test_the_search_begins_at_the_seed_that_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "accept_after_seal", "--seeds", "1000", "--first", "1", "--jobs", "1"]) == 1
    assert "is caught by seed 0" not in capsys.readouterr().out


def test_one_seed_of_a_mutation_prints_what_led_to_the_violation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "skip_the_log_check_of_pre_votes", "--seed", "1"]) == 1
    said = capsys.readouterr().out
    assert "Violation: VotesSeeWholeLogs: " in said
    assert said.splitlines()[-1].startswith("1 seeds, 1 violations")


def test_the_mutations_are_listed_with_what_they_break(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-mutations"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(MUTATIONS)
    assert all(line.endswith(".") for line in lines)


def test_clusters_are_run_listed_and_broken_by_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cluster", "--seeds", "1", "--first", "3", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 seeds, 0 violations, ")
    assert main(["--cluster", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 3: brokers=")
    assert "everything heals" in said
    assert "\ntrace " in said
    assert main(["--cluster", "--list-mutations"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == sorted(CLUSTER_MUTATIONS)


def test_an_unknown_mutation_exits_with_2_and_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["--mutation", "break_everything"])
    said = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert all(name in said for name in MUTATIONS)


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--jobs", "0"], ["--first", "-1"], ["--seed", "x"]])
def test_arguments_that_make_no_sense_exit_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(wrong)
    assert exit_info.value.code == 2
